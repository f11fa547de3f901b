"""`if` and `while`: values merged from branches, jumps, nesting. Kernels are compared with the same functions run by Python."""

import numpy as np
import pytest
from backend.twin import run_both

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]
INTS = sg.types.ndarray(sg.i32, 1)
FLOATS = sg.types.ndarray(sg.f32, 1)


def ints(n: int) -> np.ndarray:
    return np.zeros(n, np.int32)


def floats(n: int) -> np.ndarray:
    return np.zeros(n, np.float32)


def test_if_merges_values(arch: str) -> None:
    @sg.kernel
    def run(a: sg.i32, x: sg.f32, out: FLOATS):
        y = 0.0
        n = 1
        if a > 0:
            y = x * 2
            n = n + a
        elif a < -5:
            y = -x
        elif a == -5:
            n = 100
        else:
            if x > 1:
                y = 7
            else:
                n = -3
            y += 0.5
        out[0] = y
        out[1] = n
        if a > 3:
            out[2] = 1
        if a > 3 and x > 2:
            out[3] = 1
        else:
            out[3] = 2
            out[4] = out[3] + 1

    for a in (-7, -5, -1, 0, 2, 9):
        for x in (0.5, 2.5):
            run_both(run, a, x, floats(5))


def test_variable_defined_in_both_branches(arch: str) -> None:
    @sg.kernel
    def run(a: sg.i32, out: FLOATS):
        if a > 0:
            y = 1
            z = a * 2
        else:
            y = 2
            z = a - 1
        out[0] = y
        out[1] = z
        if a > 2:
            w = 1.5
        elif a > 1:
            w = 2
        else:
            w = a
        out[2] = w
        if a == 1:
            inner = 5
            out[3] = inner

    for a in (-2, 1, 2, 3):
        run_both(run, a, floats(4))


def test_variable_of_one_branch_is_not_defined_after(arch: str) -> None:
    @sg.kernel
    def run(a: sg.i32) -> sg.i32:
        if a > 0:
            y = 1
        return y

    with pytest.raises(sg.SpirogradNameError, match="only one branch"):
        run(1)


def test_branches_in_parallel_iterations(arch: str) -> None:
    @sg.kernel
    def run(x: INTS, out: INTS):
        for i in range(x.shape[0]):
            v = x[i]
            r = 0
            if v % 2 == 0:
                r = v
                if v % 3 == 0:
                    r *= 10
                elif v % 5 == 0:
                    r += 1
                    if v > 20:
                        r = -r
            elif v > 10:
                r = 1 if v < 20 else 2
            out[i] = r

    run_both(run, np.arange(-40, 40, dtype=np.int32), ints(80))


def test_while(arch: str) -> None:
    @sg.kernel
    def run(x: INTS, out: INTS):
        for i in range(x.shape[0]):
            n = x[i]
            steps = 0
            while n != 1 and steps < 100:
                if n % 2 == 0:
                    n //= 2
                else:
                    n = 3 * n + 1
                steps += 1
            out[i] = steps * 1000 + n

    run_both(run, np.arange(1, 30, dtype=np.int32), ints(29))


def test_while_with_break_and_continue(arch: str) -> None:
    @sg.kernel
    def run(x: INTS, out: INTS):
        for i in range(x.shape[0]):
            n = x[i]
            total = 0
            k = 0
            while True:
                k += 1
                if k % 3 == 0:
                    continue
                if k > n:
                    break
                total += k
                if total > 50:
                    total = -total
                    break
            out[i] = total + 10000 * k

    run_both(run, np.arange(0, 20, dtype=np.int32), ints(20))


def test_nested_while(arch: str) -> None:
    @sg.kernel
    def run(x: INTS, out: INTS):
        for i in range(x.shape[0]):
            total = 0
            a = x[i]
            while a > 0:
                b = a
                a -= 1
                if a == 3:
                    continue
                while b > 0:
                    b -= 1
                    if b == 2:
                        continue
                    if b * a > 20:
                        break
                    c = 0
                    while c < b:
                        c += 2
                        if c == 4:
                            break
                        total += c
                    total += 100
                else_count = a
                total += else_count
                if total > 2000:
                    break
            out[i] = total

    run_both(run, np.arange(0, 14, dtype=np.int32), ints(14))


def test_while_at_top_level(arch: str) -> None:
    """A `while` of the kernel itself runs in one thread, its loops in order."""

    @sg.kernel
    def run(n: sg.i32, out: INTS) -> sg.i32:
        k = 0
        total = 0
        while k < n:
            for i in range(4):
                out[i] = out[i] * 2 + k
                if i == k:
                    total += i
            k += 1
        return total

    for n in (0, 1, 5):
        run_both(run, n, ints(4))


def test_loops_in_a_top_level_if(arch: str) -> None:
    @sg.kernel
    def run(n: sg.i32, out: INTS):
        if n > 2:
            for i in range(8):
                out[i] = i * n
        elif n == 2:
            for i in range(8):
                out[i] = -i
            out[0] = 77
        else:
            out[3] = 5
        for i in range(8):
            out[i] += 1

    for n in (1, 2, 3):
        run_both(run, n, ints(8))


def test_break_and_continue_in_inner_loops(arch: str) -> None:
    @sg.kernel
    def run(x: INTS, out: INTS):
        for i in range(x.shape[0]):
            if x[i] == 5:
                continue
            total = 0
            for j in range(x[i]):
                if j == 2:
                    continue
                if j > 6:
                    break
                for k in range(j):
                    if k == 4:
                        break
                    if (k + j) % 3 == 0:
                        continue
                    total += k * j + 1
                total += 1000
            if total > 3000:
                total -= 1
                if x[i] % 2:
                    continue
                total *= 2
            out[i] = total

    run_both(run, np.arange(0, 16, dtype=np.int32), ints(16))


def test_jumps_in_branches_that_merge(arch: str) -> None:
    """What follows an `if` that sometimes jumps runs under the flags; values assigned on the way out are kept."""

    @sg.kernel
    def run(x: INTS, out: INTS):
        for i in range(x.shape[0]):
            last = -1
            count = 0
            for j in range(10):
                last = j
                if j > 3:
                    if x[i] == j:
                        count += 100
                        break
                    elif x[i] == j + 1:
                        count += 7
                        continue
                    count += 1
                if x[i] < 0 and j == 2:
                    last = 50
                    break
                count += 10
            out[i] = last * 1000 + count

    run_both(run, np.arange(-2, 14, dtype=np.int32), ints(16))


def test_swaps_and_dependent_carried_values(arch: str) -> None:
    @sg.kernel
    def run(x: INTS, out: INTS):
        for k in range(x.shape[0]):
            n = x[k]
            a, b = 0, 1
            for _ in range(n):
                a, b = b, a + b
            c = a
            d = c
            c = 5
            for i in range(n):
                if i % 2 == 0:
                    c, d = d + i, c
                else:
                    d = c - d
            out[4 * k] = a
            out[4 * k + 1] = b
            out[4 * k + 2] = c
            out[4 * k + 3] = d

    run_both(run, np.array([0, 1, 2, 3, 10], np.int32), ints(20))


def test_assignment_expressions(arch: str) -> None:
    @sg.kernel
    def run(x: INTS, out: INTS):
        for i in range(x.shape[0]):
            n = x[i]
            if (half := n // 2) > 2:
                out[i] = half
            total = 0
            while (n := n - 1) > 0:
                total += n
            out[i] += total * 100
            m = 1
            flag = x[i] > 3 and (m := n + x[i]) > 3
            out[i] += flag * 10000 + m * 7
            k = 5
            out[i] += (k := k + n) if n < 0 else 3
            out[i] += k * 3

    run_both(run, np.arange(0, 9, dtype=np.int32), ints(9))


def test_types_merge_across_branches(arch: str) -> None:
    """A name that both branches introduce has the type both promote to."""

    @sg.kernel
    def run(a: sg.i32, big: sg.i64) -> sg.f64:
        if a > 0:
            y = 1
        else:
            y = big
        if a > 1:
            z = 2.5
        else:
            z = y
        return z + y

    assert run(0, 2**40) == pytest.approx(2.0**41)
    assert run(1, 2**40) == 2
    assert run(2, 2**40) == 3.5

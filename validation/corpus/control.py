"""Loops and branches of every shape."""

from __future__ import annotations

import numpy as np

import spirograd as sg
from validation.case import Results, case

WORDS = sg.types.ndarray(sg.i32, 1)
NUMBERS = sg.types.ndarray(sg.f32, 1)


@case((0, 1, 7, 256, 1000))
def range_loop(n) -> Results:
    """Any number of iterations, none included."""
    out = np.full(1000, -1, np.int32)

    @sg.kernel
    def run(out: WORDS, n: sg.i32):
        for i in range(n):
            out[i] = i * i

    run(out, n)
    return {"out": (out, np.where(np.arange(1000) < n, np.arange(1000) ** 2, -1))}


@case(((3, 20), (-4, 4), (5, 5), (9, 2)))
def range_with_begin(begin, end) -> Results:
    out = np.zeros(40, np.int32)

    @sg.kernel
    def run(out: WORDS, begin: sg.i32, end: sg.i32):
        for i in range(begin, end):
            out[i + 10] = i

    run(out, begin, end)
    want = np.zeros(40, np.int32)
    want[np.arange(begin, end) + 10] = np.arange(begin, end)
    return {"out": (out, want)}


@case()
def steps() -> Results:
    """Steps of a serial loop, downwards too."""
    out = np.zeros(3, np.int32)

    @sg.kernel
    def run(out: WORDS):
        for _ in range(1):
            for i in range(0, 20, 3):
                out[0] += i
            for i in range(20, 0, -4):
                out[1] = out[1] * 3 + i
            for i in range(5, 5, -1):
                out[2] += i

    run(out)
    second = 0
    for i in range(20, 0, -4):
        second = second * 3 + i
    return {"out": (out, [sum(range(0, 20, 3)), second, 0])}


@case()
def bounds_from_memory() -> Results:
    """The bound of a parallel loop may be known to the device only."""
    n = sg.field(sg.i32, shape=())
    out = sg.field(sg.i32, shape=64)
    n[None] = 37

    @sg.kernel
    def run():
        for i in range(n[None]):
            out[i] = i + 1
        n[None] += 5
        for i in range(n[None]):
            out[i] += 100

    run()
    k = np.arange(64)
    return {"out": (out.to_numpy(), np.where(k < 37, k + 1, 0) + np.where(k < 42, 100, 0))}


@case()
def nested_loops() -> Results:
    out = np.zeros(50, np.int32)

    @sg.kernel
    def run(out: WORDS):
        for i in out:
            total = 0
            for j in range(5):
                for k in range(j, 7):
                    for m in range(2):
                        total += i * j + k - m
            out[i] = total

    run(out)
    want = [sum(i * j + k - m for j in range(5) for k in range(j, 7) for m in range(2)) for i in range(50)]
    return {"out": (out, want)}


@case()
def ragged_loops() -> Results:
    """Trip counts from memory, zero among them."""
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 30, 100).astype(np.int32)
    out = np.zeros(100, np.float32)

    @sg.kernel
    def run(counts: WORDS, out: NUMBERS):
        for i in counts:
            v = 1.0
            for k in range(counts[i]):
                v = v * 0.9 + k
            out[i] = v

    run(counts, out)
    want = []
    for count in counts:
        v = 1.0
        for k in range(count):
            v = v * 0.9 + k
        want.append(v)
    return {"out": (out, np.array(want, np.float32))}


@case()
def while_loop() -> Results:
    """The length of Collatz sequences."""
    out = np.zeros(60, np.int32)

    @sg.kernel
    def run(out: WORDS):
        for i in out:
            n = i + 1
            count = 0
            while n != 1:
                n = n // 2 if n % 2 == 0 else 3 * n + 1
                count += 1
            out[i] = count

    def length(n):
        count = 0
        while n != 1:
            n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
        return count

    run(out)
    return {"out": (out, [length(i + 1) for i in range(60)])}


@case()
def break_and_continue() -> Results:
    out = np.zeros((2, 40), np.int32)

    @sg.kernel
    def run(out: sg.types.ndarray(sg.i32, 2)):
        for i in range(40):
            if i % 5 == 3:
                continue
            total = 0
            for k in range(100):
                if k % 3 == 1:
                    continue
                if k * k > 7 * i:
                    break
                total += k
            out[0, i] = total
            while True:
                total -= 2
                if total < 0:
                    break
            out[1, i] = total

    run(out)
    want = np.zeros((2, 40), np.int32)
    for i in range(40):
        if i % 5 == 3:
            continue
        total = 0
        for k in range(100):
            if k % 3 == 1:
                continue
            if k * k > 7 * i:
                break
            total += k
        want[:, i] = total, (-2 if total % 2 == 0 else -1)
    return {"out": (out, want)}


@case()
def leaving_two_loops() -> Results:
    """A flag leaves the outer loop: Python has no break of two loops either."""
    out = np.zeros((2, 30), np.int32)

    @sg.kernel
    def run(out: sg.types.ndarray(sg.i32, 2)):
        for n in range(30):
            found = False
            for a in range(1, 20):
                for b in range(a, 20):
                    if a * a + b * b == n:
                        out[0, n] = a
                        out[1, n] = b
                        found = True
                        break
                if found:
                    break

    run(out)
    want = np.zeros((2, 30), np.int32)
    for n in range(30):
        pairs = [(a, b) for a in range(1, 20) for b in range(a, 20) if a * a + b * b == n]
        if pairs:
            want[:, n] = pairs[0]
    return {"out": (out, want)}


@case()
def ndrange() -> Results:
    out = np.zeros((4, 5, 6), np.int32)

    @sg.kernel
    def run(out: sg.types.ndarray(sg.i32, 3)):
        for i, j, k in sg.ndrange(4, (1, 5), 6):
            out[i, j, k] = 100 * i + 10 * j + k

    run(out)
    i, j, k = np.indices((4, 5, 6))
    return {"out": (out, np.where(j >= 1, 100 * i + 10 * j + k, 0))}


@case()
def grouped_ndrange() -> Results:
    out = np.zeros((5, 7), np.int32)

    @sg.kernel
    def run(out: sg.types.ndarray(sg.i32, 2)):
        for p in sg.grouped(sg.ndrange(5, 7)):
            out[p] = p.x * 10 + p[1]

    run(out)
    i, j = np.indices((5, 7))
    return {"out": (out, 10 * i + j)}


@case()
def unrolled() -> Results:
    """`sg.static` loops and branches are done by the compiler."""
    out = np.zeros(12, np.float32)
    weights = (0.5, 0.25, 0.125)

    @sg.kernel
    def run(out: NUMBERS):
        for i in out:
            total = 0.0
            for k, w in sg.static(enumerate(weights)):
                if sg.static(k % 2 == 0):
                    total += w * i
                else:
                    total -= w * i
            out[i] = total

    run(out)
    return {"out": (out, np.arange(12) * 0.375)}


@case()
def if_chain() -> Results:
    out = np.zeros(30, np.int32)

    @sg.kernel
    def run(out: WORDS):
        for i in out:
            kind = 0
            if i < 5:
                kind = 1
            elif i % 7 == 0 and i > 10:
                kind = 2
            elif not (i < 20 or i == 25):
                kind = 3
                if i % 2 == 1:
                    kind = 4
            else:
                kind = 5
            out[i] = kind

    def kind(i):
        if i < 5:
            return 1
        if i % 7 == 0 and i > 10:
            return 2
        if not (i < 20 or i == 25):
            return 4 if i % 2 else 3
        return 5

    run(out)
    return {"out": (out, [kind(i) for i in range(30)])}


@case()
def conditional_expression() -> Results:
    """Only the side that is chosen is evaluated: no square root of a negative number, no division by zero."""
    x = np.linspace(-2, 2, 41, dtype=np.float32)
    out = np.zeros_like(x)

    @sg.kernel
    def run(x: NUMBERS, out: NUMBERS):
        for i in x:
            out[i] = sg.sqrt(x[i]) if x[i] > 0.0 else (-1.0 if -1.0 < x[i] < -0.5 else 0.0)

    run(x, out)
    return {"out": (out, np.where(x > 0, np.sqrt(np.abs(x)), np.where((x > -1) & (x < -0.5), -1, 0)).astype(np.float32))}


@case()
def short_circuit() -> Results:
    """The right side of `and` does not run if the left is false: the index stays inside."""
    x = np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32)
    out = np.zeros(8, np.int32)

    @sg.kernel
    def run(x: WORDS, out: WORDS):
        for i in x:
            k = i
            while k < x.shape[0] and x[k] < 5:
                k += 1
            out[i] = k

    run(x, out)
    return {"out": (out, [next((k for k in range(i, 8) if x[k] >= 5), 8) for i in range(8)])}


@case()
def serial_loop() -> Results:
    """A recurrence over an array, in order."""
    x = np.random.default_rng(4).uniform(0, 1, 200).astype(np.float32)
    out = np.zeros_like(x)

    @sg.kernel
    def run(x: NUMBERS, out: NUMBERS):
        previous = 0.0
        sg.loop_config(serialize=True)
        for i in range(x.shape[0]):
            previous = 0.9 * previous + x[i]
            out[i] = previous

    run(x, out)
    want, previous = [], 0.0
    for value in x.astype(np.float64):
        previous = 0.9 * previous + value
        want.append(previous)
    return {"out": (out, np.array(want, np.float32))}


@case((1, 32, 100, 256))
def workgroup_sizes(size) -> Results:
    out = np.zeros(1000, np.int32)

    @sg.kernel
    def run(out: WORDS):
        sg.loop_config(block_dim=size)
        for i in out:
            out[i] = i + size

    run(out)
    return {"out": (out, np.arange(1000) + size)}


@case()
def several_steps() -> Results:
    """Loops and plain statements in turns: each sees what those before it did."""
    x = np.arange(10, dtype=np.float32)
    out = np.zeros(10, np.float32)

    @sg.kernel
    def run(x: NUMBERS, out: NUMBERS, k: sg.i32):
        total = 0.0
        for i in x:
            total += x[i]
        mean = total / x.shape[0]
        if k > 2:
            mean *= 2.0
        for i in x:
            out[i] = x[i] - mean
        out[0] = total

    run(x, out, 3)
    want = x - 9
    want[0] = 45
    return {"out": (out, want)}


@case()
def carried_values() -> Results:
    """Many variables through one loop, swapped and mixed."""
    out = np.zeros((3, 20), np.int32)

    @sg.kernel
    def run(out: sg.types.ndarray(sg.i32, 2)):
        for n in range(20):
            a, b, c = 0, 1, n
            for _ in range(n):
                a, b = b, (a + b) % 1000
                c = c ^ a
            out[0, n] = a
            out[1, n] = b
            out[2, n] = c

    run(out)
    want = np.zeros((3, 20), np.int32)
    for n in range(20):
        a, b, c = 0, 1, n
        for _ in range(n):
            a, b = b, (a + b) % 1000
            c ^= a
        want[:, n] = a, b, c
    return {"out": (out, want)}

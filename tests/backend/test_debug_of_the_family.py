"""What debug mode tells programs of the Taichi family: overflow as text, narrow types and atomics too, powers, indices from Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg
import spirograd.compat.taichi as ti

pytestmark = pytest.mark.vulkan_or_wgpu

NARROW = {"i8": (100, 100), "u8": (200, 200), "i16": (30000, 3000), "u16": (65000, 1000)}


@pytest.fixture
def debug(arch: str) -> Any:
    def start(**options: Any) -> None:
        sg.init(arch=arch, debug=True, **options)

    return start


def test_overflow_is_printed_and_the_kernel_goes_on(debug: Any, capfd: pytest.CaptureFixture[str]) -> None:
    debug(overflow="warn")
    x = sg.field(sg.i32, shape=5)

    @sg.kernel
    def run(a: sg.i32, b: sg.u64) -> (sg.i32, sg.u64):
        for i in x:
            x[i] = a * (i + 1)
        return a << 4, b - 1

    big = 2**29 + 1
    assert run(big, 0) == (16, 2**64 - 1)
    want = (np.arange(1, 6, dtype=np.int64) * big).astype(np.int32)
    assert (x.to_numpy() == want).all()
    lines = sorted(line for line in capfd.readouterr().out.splitlines() if "does not fit" in line)
    told = [f"Multiplication overflow detected: {big} * {k} does not fit i32" for k in (4, 5)]
    told += ["Subtraction overflow detected: 0 - 1 does not fit u64", f"Shift left overflow detected: {big} << 4 does not fit i32"]
    assert [line.partition(" at ")[0] for line in lines] == sorted(told)
    assert all(line.partition(" at ")[2].startswith(__file__) for line in lines)
    assert run(1, 1) == (16, 0)
    sg.sync()
    assert "does not fit" not in capfd.readouterr().out


@pytest.mark.parametrize("t", ["i8", "i32", "i64"])
def test_the_division_that_wraps_is_an_overflow(debug: Any, t: str) -> None:
    debug()
    dtype, lowest = getattr(sg, t), int(getattr(sg, t).min)

    @sg.kernel
    def divided(x: dtype, y: dtype) -> dtype:
        return x // y

    @sg.kernel
    def turned(x: dtype) -> dtype:
        return x // sg.cast(-1, dtype)

    @sg.kernel
    def remainder(x: dtype, y: dtype) -> dtype:
        return x % y

    assert divided(lowest + 1, -1) == turned(lowest + 1) == -lowest - 1
    assert divided(lowest, 1) == lowest
    assert remainder(lowest, -1) == 0
    for run, args in ((divided, (lowest, -1)), (turned, (lowest,))):
        with pytest.raises(sg.SpirogradAssertionError, match=f"{lowest} // -1 does not fit {t}"):
            run(*args)


@pytest.mark.parametrize("t", NARROW)
def test_narrow_types_are_checked(debug: Any, t: str) -> None:
    debug()
    dtype, (a, b) = getattr(sg, t), NARROW[t]

    @sg.kernel
    def total(x: dtype, y: dtype) -> dtype:
        return x + y

    assert total(1, 2) == 3
    with pytest.raises(sg.SpirogradAssertionError, match=rf"{a} \+ {b} does not fit {t}"):
        total(a, b)
        sg.sync()


def test_atomic_additions_are_checked(debug: Any) -> None:
    debug()
    x, u = sg.field(sg.i32, shape=()), sg.field(sg.u32, shape=())

    @sg.kernel
    def add(n: sg.i32):
        for _ in range(n):
            x[None] += 2**28

    @sg.kernel
    def subtract(n: sg.i32):
        for _ in range(n):
            u[None] -= 2

    u[None] = 6
    subtract(3)
    add(7)
    sg.sync()
    assert (x[None], u[None]) == (7 * 2**28, 0)
    with pytest.raises(sg.SpirogradAssertionError, match=f"{7 * 2**28} [+] {2**28} does not fit i32"):
        add(1)
        sg.sync()


def test_powers_of_integers(debug: Any) -> None:
    """The squares that only a larger exponent needs may overflow."""
    debug()

    @sg.kernel
    def power(a: sg.i32, n: sg.i32) -> sg.i32:
        return a**n

    for a, n in ((50000, 1), (7, 0), (-3, 19), (2, 30), (46340, 2), (0, 5)):
        assert power(a, n) == a**n
    sg.sync()
    for a, n, message in ((2, -1, "2 [*][*] -1: an integer to a negative power"), (50000, 2, "50000 [*] 50000 does not fit i32")):
        with pytest.raises(sg.SpirogradAssertionError, match=message):
            power(a, n)
            sg.sync()


def test_programs_of_the_family_go_on(arch: str, capfd: pytest.CaptureFixture[str]) -> None:
    ti.init(arch=arch, debug=True)

    @ti.kernel
    def hashed(n: ti.i32) -> ti.u32:
        h = ti.u32(2166136261)
        for _ in range(1):
            for i in range(n):
                h = (h ^ ti.cast(i, ti.u32)) * ti.u32(16777619)
        return h

    want = 2166136261
    for i in range(4):
        want = (want ^ i) * 16777619 % 2**32
    assert hashed(4) == want
    ti.sync()
    assert "does not fit u32" in capfd.readouterr().out


def test_indices_from_python(session: Any) -> None:
    for x in (sg.field(sg.i32, shape=3), sg.ndarray(sg.i32, shape=3), sg.Vector.field(2, sg.i32, shape=3)):
        for key in (3, -1, (0, 0)):
            for kind in (IndexError, AssertionError, sg.SpirogradIndexError, ti.TaichiAssertionError):
                with pytest.raises(kind, match=r"out of range|1 axis"):
                    x[key]
                with pytest.raises(kind, match=r"out of range|1 axis"):
                    x[key] = 1


def test_orders_and_offsets(session: Any) -> None:
    refused = [{"order": o} for o in ("ik", "i", "ii", "JI", (1, 0))] + [{"offset": o} for o in (1, (1,), (1.5, 2), 1.5, "ab")]
    for options in refused:
        for kind in (SyntaxError, ti.TaichiSyntaxError, sg.SpirogradRuntimeError):
            with pytest.raises(kind, match=r"order|offset"):
                sg.field(sg.i32, shape=(3, 4), **options)
    with pytest.raises(SyntaxError, match="need a `shape`"):
        sg.field(sg.i32, order="ij")
    with pytest.raises(SyntaxError, match=r"permutation of 0 to 1, got \(1, 1\)"):
        list(sg.ndrange(2, 3, axes=(1, 1)))


def test_messages_of_assertions_are_strings(debug: Any) -> None:
    debug()

    @sg.kernel
    def run(a: sg.i32):
        assert a > 3, ("a is", a)

    with pytest.raises(sg.SpirogradSyntaxError, match="the message of an `assert` is a string, not a tuple of 2"):
        run(5)


def test_the_option_is_one_of_two() -> None:
    with pytest.raises(sg.SpirogradRuntimeError, match="option `overflow` is one of 'error', 'warn', not 'ignore'"):
        sg.init(arch=sg.cpu, overflow="ignore")

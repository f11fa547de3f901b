"""The types of operations, against a table that quadrants 1.4.0 gives: kernels added two variables and looked at what the sum holds."""

from __future__ import annotations

import itertools
import linecache

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.dtypes import ALL, DType

# u1 + u1, u1 + i8, i8 + u1 and u8 + u1 end its process; those are as of arithmetic on other integers here.
_TABLE = """
     u1  i8 i16 i32 i64  u8 u16 u32 u64 f16 f32 f64
 u1 i32  i8 i16 i32 i64  u8 u16 u32 u64 f16 f32 f64
 i8  i8  i8 i16 i32 i64  u8 u16 u32 u64 f16 f32 f64
i16 i16 i16 i16 i32 i64 i16 u16 u32 u64 f16 f32 f64
i32 i32 i32 i32 i32 i64 i32 i32 u32 u64 f16 f32 f64
i64 i64 i64 i64 i64 i64 i64 i64 i64 u64 f16 f32 f64
 u8  u8  u8 i16 i32 i64  u8 u16 u32 u64 f16 f32 f64
u16 u16 u16 u16 i32 i64 u16 u16 u32 u64 f16 f32 f64
u32 u32 u32 u32 u32 i64 u32 u32 u32 u64 f16 f32 f64
u64 u64 u64 u64 u64 u64 u64 u64 u64 u64 f16 f32 f64
f16 f16 f16 f16 f16 f16 f16 f16 f16 f16 f16 f32 f64
f32 f32 f32 f32 f32 f32 f32 f32 f32 f32 f32 f32 f64
f64 f64 f64 f64 f64 f64 f64 f64 f64 f64 f64 f64 f64
"""


def test_the_table_of_quadrants() -> None:
    lines = [line.split() for line in _TABLE.strip().splitlines()]
    assert [line.split() for line in sg.types.promotion_table().splitlines()] == lines


def in_kernel(expression: str, a: DType, b: DType) -> str:
    """The name of the type of ``expression``, of variables of these types."""
    seen: list[DType] = []

    @sg.pyfunc
    def note(x: sg.template()):
        sg.static(seen.append(x.dtype))

    text = f"def run(a: A, b: B):\n    note({expression})\n"
    return _traced(text, a, b, note, seen)


def _traced(text: str, a: DType, b: DType, note: object, seen: list[DType]) -> str:
    name = f"<promotion {text!r}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    names = {"A": a, "B": b, "note": note, "sg": sg}
    exec(compile(text, name, "exec"), names)
    sg.kernel(names["run"])(a(1), b(1))
    return str(seen[-1])


@pytest.mark.parametrize("t", ALL, ids=str)
def test_kernels_follow_it(t: DType) -> None:
    sg.init(arch=sg.interpreter)
    table = {line.split()[0]: line.split()[1:] for line in _TABLE.strip().splitlines()[1:]}
    for k, other in enumerate(ALL):
        want = table[str(t)][k]
        for op in "+*%":
            assert in_kernel(f"a {op} b", t, other) == want, (op, other)
        floats = [str(x) if x.is_float else "f32" for x in (t, other)]
        assert in_kernel("a / b", t, other) == max(floats, key=lambda name: int(name[1:])), other
        power = want if t.is_float or other.is_float else "i32" if t is sg.u1 else str(t)
        if t is not sg.u1:
            assert in_kernel("a ** b", t, other) == power, other
    sg.reset()


@pytest.mark.usefixtures("session")
def test_powers_keep_the_type_of_the_base() -> None:
    @sg.kernel
    def signed(a: sg.i32, n: sg.u32) -> sg.i64:
        return a**n

    @sg.kernel
    def narrow(a: sg.i16, n: sg.i32) -> sg.i64:
        return a**n

    for a, n in itertools.product((-3, -1, 0, 1, 2, 7), (0, 1, 3, 10, 300)):
        assert signed(a, n) == int(np.int64(pow(a, n, 2**32)).astype(np.int32))
        assert narrow(a, n) == int(np.int64(pow(a, n, 2**16)).astype(np.int16))

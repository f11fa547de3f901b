"""Arithmetic of the language on NumPy scalars, written from its description (docstring of spirograd/ir/ops.py), not from its code.

A value is a NumPy scalar of the exact type, or a plain Python bool, int or float: a literal, which adapts to what it meets.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

NUMPY: dict[str, Any] = {
    "u1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32,
    "u64": np.uint64, "f16": np.float16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
NAMES = {np.dtype(t): name for name, t in NUMPY.items()}
FLOATS = ("f16", "f32", "f64")
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


def bits(t: str) -> int:
    return int(t[1:])


def is_literal(x: Any) -> bool:
    return type(x) in (bool, int, float)


def type_of(x: Any) -> str:
    if is_literal(x):
        return {bool: "u1", int: "i32", float: "f32"}[type(x)]
    return NAMES[x.dtype]


def limits(t: str) -> tuple[int, int]:
    return (-(1 << (bits(t) - 1)), (1 << (bits(t) - 1)) - 1) if t[0] == "i" else (0, (1 << bits(t)) - 1)


def promoted(a: str, b: str) -> str:
    """Float over integer, wide over narrow, unsigned over signed; u1 is the least, and two of it count in i32."""
    if a == b == "u1":
        return "i32"
    rank = {t: k for k, t in enumerate(["u1", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "f32", "f64"])}
    return max(a, b, key=rank.__getitem__)


def wrapped(t: str, x: int) -> Any:
    low, high = limits(t)
    return NUMPY[t]((x - low) % (high - low + 1) + low)


def cast(x: Any, t: str) -> Any:
    source = type(x) if is_literal(x) else None
    if t == "u1":
        return np.bool_(x != 0)
    if t in FLOATS:
        with np.errstate(all="ignore"):
            return NUMPY[t](float(x) if source in (bool, int) else x)
    if source is float or (source is None and type_of(x) in FLOATS):
        low, high = limits(t)
        if math.isnan(x):
            return NUMPY[t](0)
        return NUMPY[t](max(low, min(high, int(x) if math.isfinite(x) else (high if x > 0 else low))))
    return wrapped(t, int(x))


def settled(x: Any) -> Any:
    """What a variable holds."""
    return cast(x, type_of(x)) if is_literal(x) else x


def truth(x: Any) -> bool:
    return bool(x != 0)


# --- operators -----------------------------------------------------------------------------------------------------------


def _shift(left: bool) -> Callable[[str, int, int], int]:
    def run(t: str, a: int, b: int) -> int:
        return a << (b % bits(t)) if left else a >> (b % bits(t))

    return run


def _guarded(function: Callable[[int, int], int]) -> Callable[[str, int, int], int]:
    return lambda t, a, b: 0 if b == 0 else function(a, b)


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_INTEGER: dict[str, Callable[[str, int, int], int]] = {
    "+": lambda t, a, b: a + b,
    "-": lambda t, a, b: a - b,
    "*": lambda t, a, b: a * b,
    "//": _guarded(lambda a, b: a // b),
    "%": _guarded(lambda a, b: a % b),
    "&": lambda t, a, b: a & b,
    "|": lambda t, a, b: a | b,
    "^": lambda t, a, b: a ^ b,
    "<<": _shift(True),
    ">>": _shift(False),
    "raw_div": _guarded(_truncated),
    "raw_mod": _guarded(lambda a, b: a - b * _truncated(a, b)),
    "min": lambda t, a, b: min(a, b),
    "max": lambda t, a, b: max(a, b),
}
_FLOAT: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": lambda a, b: np.floor(a / b),
    "%": lambda a, b: a - np.floor(a / b) * b,
    "raw_div": operator.truediv,
    "raw_mod": lambda a, b: a - np.trunc(a / b) * b,
    "min": np.fmin,
    "max": np.fmax,
}
PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift, "**": operator.pow,
    "min": min, "max": max,
}  # fmt: skip


def binary(op: str, a: Any, b: Any) -> Any:
    """``a op b`` with promotion."""
    if is_literal(a) and is_literal(b):
        return PYTHON[op](a, b)
    s, t = type_of(a), type_of(b)
    if op in ("<<", ">>"):
        t = "i32" if s == "u1" else s
        return wrapped(t, _INTEGER[op](t, int(cast(a, t)), int(cast(b, t))))
    if s == t == "u1" and op in ("&", "|", "^", "min", "max"):
        return np.bool_(PYTHON[op](bool(a), bool(b)))
    if op == "**":
        return _power(a, b)
    t = promoted(s, t)
    if op == "/" and t not in FLOATS:
        t = "f32"
    x, y = cast(a, t), cast(b, t)
    if t in FLOATS:
        with np.errstate(all="ignore"):
            return NUMPY[t](_FLOAT[op](x, y))
    return wrapped(t, _INTEGER[op](t, int(x), int(y)))


def _power(a: Any, b: Any) -> Any:
    """Of integers: a constant exponent keeps the type of the base; a negative one truncates the true value."""
    t = type_of(a) if is_literal(b) else promoted(type_of(a), type_of(b))
    x, n = int(cast(a, t)), int(b) if is_literal(b) else int(cast(b, t))
    if n >= 0:
        return wrapped(t, pow(x, n, 1 << 64))
    return wrapped(t, 1 if x == 1 or (x == -1 and n % 2 == 0) else -1 if x == -1 else 0)


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def compare(op: str, a: Any, b: Any) -> Any:
    if is_literal(a) and is_literal(b):
        return _COMPARE[op](a, b)
    t = promoted(type_of(a), type_of(b))
    return np.bool_(_COMPARE[op](cast(a, t), cast(b, t)))


def negative(x: Any) -> Any:
    if is_literal(x):
        return -x
    t = type_of(x)
    return -x if t in FLOATS else wrapped("i32" if t == "u1" else t, -int(x))


def inverted(x: Any) -> Any:
    return ~x if is_literal(x) else np.bool_(not x) if type_of(x) == "u1" else wrapped(type_of(x), ~int(x))


def absolute(x: Any) -> Any:
    t = type_of(x)
    return np.abs(x) if t in FLOATS else wrapped("i32" if t == "u1" else t, abs(int(x)))


def minimum(a: Any, b: Any) -> Any:
    return binary("min", a, b)


def maximum(a: Any, b: Any) -> Any:
    return binary("max", a, b)


def select(condition: Any, a: Any, b: Any) -> Any:
    t = "u1" if type_of(a) == type_of(b) == "u1" else promoted(type_of(a), type_of(b))
    return cast(a if truth(condition) else b, t)


def rounding(function: Callable[[Any], Any]) -> Callable[..., Any]:
    def run(x: Any, t: str | None = None) -> Any:
        y = function(x) if type_of(x) in FLOATS else x
        return y if t is None else cast(y, t)

    return run


def bit_cast(x: Any, t: str) -> Any:
    return np.asarray(settled(x)).view(NUMPY[t])[()]


def _unsigned(x: Any) -> int:
    return int(x) & ((1 << bits(type_of(x))) - 1)


def popcnt(x: Any) -> Any:
    return np.int32(_unsigned(x).bit_count())


def clz(x: Any) -> Any:
    return np.int32(bits(type_of(x)) - _unsigned(x).bit_length())


def bit_shr(a: Any, b: Any) -> Any:
    t = type_of(a)
    return wrapped(t, _unsigned(a) >> (int(cast(b, t)) % bits(t)))


def square_root(x: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.sqrt(x if type_of(x) in FLOATS else cast(x, "f32"))

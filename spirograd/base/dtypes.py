"""Scalar data types, IR vector types, and the promotion rules of the language."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from spirograd.base.errors import SpirogradTypeError
from spirograd.base.records import dataclass
from spirograd.base.wording import integer_text

if TYPE_CHECKING:
    from spirograd.base.arrays import Array

_LARGEST = sys.float_info.max


class DType:
    """A scalar type, such as `f32`. There is one instance of each type, so types are compared with ``is``. Calling a type converts a number
    to it.

    Attributes: ``name`` (``"f32"``), ``kind`` (``"bool"``, ``"int"``, ``"uint"`` or ``"float"``), ``bits``, ``size`` (bytes in
    memory; u1 takes one 32-bit word in buffers, see `storage`), ``np`` (the NumPy dtype).
    """

    __slots__ = ("_range", "bits", "is_float", "is_int", "is_signed", "kind", "name", "np", "size")

    def __init__(self, name: str, kind: str, bits: int, np_name: str) -> None:
        self.name = name
        self.kind = kind
        self.bits = bits
        self.np = np.dtype(np_name)
        self.size = max(bits // 8, 1)
        self.is_float = kind == "float"
        self.is_int = kind in ("int", "uint")
        self.is_signed = kind in ("int", "float")
        self._range = (0, 0) if self.is_float else (int(self.min), int(self.max))

    def __repr__(self) -> str:
        return self.name

    def to_string(self) -> str:
        """Return the name, as types of the Taichi family do."""
        return self.name

    def __call__(self, value: Any) -> Any:
        """Convert ``value`` to this type: a cast in a kernel, the same conversion of a number outside of one."""
        convert = getattr(value, "__sg_cast__", None)
        if convert is not None:
            return convert(self)
        if _trace_constant is not None:
            traced = _trace_constant(value, self)
            if traced is not None:
                return traced
        if self.is_int and isinstance(value, (int, float)):
            return self.integer(value)
        return self.array(value)[()].item()

    def integer(self, value: int | float) -> int:
        """Convert a number to this integer type: integers wrap, floats are truncated and saturate, NaN gives 0."""
        low, high = self._range
        if isinstance(value, float):
            if value != value:
                return 0
            return high if value >= high else low if value <= low else int(value)
        return value if low <= value <= high else (value - low) % (1 << self.bits) + low

    def array(self, values: object) -> Array:
        """Return ``values`` as a NumPy array of this type, converted as in a kernel; the array itself if it has this type."""
        given = np.asarray(values)
        if self.is_int and given.dtype.kind == "O":  # integers of more than 64 bits
            return np.array([self.integer(v) for v in given.ravel().tolist()], self.np).reshape(given.shape)
        with np.errstate(all="ignore"):
            if given.dtype.kind == "O" and self.is_float:
                for value in given.ravel().tolist():
                    if isinstance(value, int) and abs(value) > _LARGEST:
                        raise SpirogradTypeError(f"{integer_text(value)} does not fit {self}", None, "write it as a float")
            if not self.is_int or given.dtype.kind != "f":
                return given.astype(self.np, copy=False)
            # The largest 64-bit integers round up to a power of two, which saturates, too.
            low, high = given.dtype.type(self.min), given.dtype.type(self.max)
            inside = (given > low) & (given < high)
            out = np.where(inside, given, 0).astype(self.np)
        out[given >= high], out[given <= low] = self.max, self.min
        return out

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        return (by_name, (self.name,))

    @property
    def min(self) -> int | float:
        """The smallest finite value."""
        if self.kind == "float":
            return float(np.finfo(self.np).min)
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @property
    def max(self) -> int | float:
        """The largest finite value."""
        if self.kind == "float":
            return float(np.finfo(self.np).max)
        return (1 << (self.bits - (self.kind == "int"))) - 1


# Turns a literal into a typed constant of the kernel being traced, and returns None outside of a kernel. Set by the language.
_trace_constant: Callable[[object, DType], object] | None = None


def set_constant_tracer(tracer: Callable[[object, DType], object]) -> None:
    """Set the function by which ``sg.u64(3)`` inside a kernel builds a typed constant. The language package calls this once."""
    global _trace_constant
    _trace_constant = tracer


u1 = DType("u1", "bool", 1, "bool")
i8 = DType("i8", "int", 8, "int8")
i16 = DType("i16", "int", 16, "int16")
i32 = DType("i32", "int", 32, "int32")
i64 = DType("i64", "int", 64, "int64")
u8 = DType("u8", "uint", 8, "uint8")
u16 = DType("u16", "uint", 16, "uint16")
u32 = DType("u32", "uint", 32, "uint32")
u64 = DType("u64", "uint", 64, "uint64")
f16 = DType("f16", "float", 16, "float16")
f32 = DType("f32", "float", 32, "float32")
f64 = DType("f64", "float", 64, "float64")

ALL = (u1, i8, i16, i32, i64, u8, u16, u32, u64, f16, f32, f64)
INTEGERS = (i8, i16, i32, i64, u8, u16, u32, u64)
FLOATS = (f16, f32, f64)
_BY_NAME = {t.name: t for t in ALL}
_BY_NUMPY = {t.np: t for t in ALL}
_UNSIGNED = {8: u8, 16: u16, 32: u32, 64: u64}
_SIGNED = {8: i8, 16: i16, 32: i32, 64: i64}


@dataclass(frozen=True, slots=True)
class Vec:
    """An IR vector of ``n`` scalars; only run-time indexed locals need one."""

    n: int
    elem: DType

    def __repr__(self) -> str:
        return f"vec<{self.n},{self.elem.name}>"


@dataclass(frozen=True, slots=True)
class Lanes:
    """A scalar for each of ``n`` iterations of a loop that run at once."""

    n: int
    elem: DType

    def __repr__(self) -> str:
        return f"lanes<{self.n},{self.elem.name}>"


class _Void:
    __slots__ = ()

    def __repr__(self) -> str:
        return "void"

    def __reduce__(self) -> str:
        return "VOID"  # `copy` and `pickle` find it by this name: types are compared with ``is``


VOID = _Void()
# The type of an IR operation: a scalar, a vector, lanes, None, or a tuple (results of `for`, `while`, `if`).
Type = Union[DType, Vec, Lanes, _Void, tuple["Type", ...]]


def scalar_of(t: Type) -> DType:
    """``t``, or the type of each lane."""
    scalar = t.elem if isinstance(t, Lanes) else t
    assert isinstance(scalar, DType), t
    return scalar


def like(t: Type, scalar: DType) -> Type:
    """``scalar``, or as many lanes of it as ``t`` has."""
    return Lanes(t.n, scalar) if isinstance(t, Lanes) else scalar


def by_name(name: str) -> DType:
    """Return the dtype called ``name``; KeyError if there is none."""
    return _BY_NAME[name]


def from_numpy(dtype: Any) -> DType:
    """Return the dtype that stores a NumPy dtype; KeyError if the language has none (complex, strings ...)."""
    return _BY_NUMPY[np.dtype(dtype)]


def unsigned(t: DType) -> DType:
    """Return the unsigned integer of the same width (of floats too: the type of their bit pattern)."""
    return _UNSIGNED[t.bits]


def signed(t: DType) -> DType:
    """Return the signed integer of the same width."""
    return _SIGNED[t.bits]


def storage(t: DType) -> DType:
    """Return the type that holds ``t`` in memory: u1 lives in a byte-sized u8 on the host and in buffers, the rest as itself."""
    return u8 if t is u1 else t


def promote(a: DType, b: DType) -> DType:
    """Return the common type of a binary operation (the rules of C on fixed widths, as in the Taichi family).

    A float beats an integer; among floats and among integers the wider wins; at equal width unsigned wins. u1 counts as the
    narrowest integer, and two u1 give i32, because arithmetic on truth values counts.
    """
    if a is b:
        return i32 if a is u1 else a
    if a.is_float or b.is_float:
        if a.is_float and b.is_float:
            return a if a.bits >= b.bits else b
        return a if a.is_float else b
    if a is u1:
        return b
    if b is u1:
        return a
    if a.bits != b.bits:
        return a if a.bits > b.bits else b
    return a if not a.is_signed else b

"""The operations of reductions and scans over threads, by name."""

from __future__ import annotations

from collections.abc import Callable

from spirograd.base.dtypes import DType
from spirograd.ir import ops as ir
from spirograd.lang import scalar
from spirograd.lang.scalar import Value, type_error

Combine = Callable[[Value, Value], Value]


def named(kind: str) -> Combine:
    """Return the operation ``kind``: "add", "mul", "min", "max", "and", "or" or "xor"."""
    code = ir.COMBINE[kind]

    def combine(a: Value, b: Value) -> Value:
        if kind in ("and", "or", "xor") and a.dtype.is_float:
            raise type_error(f"`{kind}` combines integers, got {a.dtype}", "take the bits as an integer with `sg.bit_cast`")
        return scalar.emit(code, a, b)

    return combine


def identity(kind: str, dtype: DType) -> Value:
    """Return the identity of the operation for ``dtype``."""
    return scalar.constant(ir.identity(kind, dtype), dtype)

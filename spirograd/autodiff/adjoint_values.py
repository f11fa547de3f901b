"""Zeros, sums and choices of adjoints and tangents, which are scalars or vectors of floats."""

from __future__ import annotations

from spirograd.base.dtypes import DType, Type, Vec
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op, TempRef


def element(t: object) -> DType:
    """Return the type of the scalars of values of type ``t``, a scalar or a vector."""
    scalar = t.elem if isinstance(t, Vec) else t
    assert isinstance(scalar, DType), t
    return scalar


def zero(b: Builder, t: Type) -> Op:
    """Return 0 of type ``t``."""
    if isinstance(t, Vec):
        return b.emit(ops.vec, *[b.const(0.0, t.elem)] * t.n)
    return b.const(0.0, element(t))


def entries(b: Builder, value: Op) -> list[Op]:
    """Return the scalars of a vector, or a tuple of the scalar itself."""
    if not isinstance(value.type, Vec):
        return [value]
    return [b.emit(ops.extract, value, b.const(k)) for k in range(value.type.n)]


def combine(b: Builder, t: Type, parts: list[Op]) -> Op:
    """Return a value of type ``t`` from its scalars."""
    return b.emit(ops.vec, *parts) if isinstance(t, Vec) else parts[0]


def total(b: Builder, x: Op, y: Op) -> Op:
    """Return the sum of ``x`` and ``y``."""
    if not isinstance(x.type, Vec):
        return b.emit(ops.add, x, y)
    return combine(b, x.type, [b.emit(ops.add, p, q) for p, q in zip(entries(b, x), entries(b, y))])


def temp_of(name: str, t: Type) -> TempRef:
    """Return a temporary that holds a value of type ``t``."""
    return TempRef(name, element(t), (t.n,) if isinstance(t, Vec) else ())


def places(b: Builder, ref: TempRef) -> list[tuple[Op, ...]]:
    """Return the indices of each scalar of a temporary, which has at most one axis."""
    return [(b.const(k),) for k in range(ref.shape[0])] if ref.shape else [()]


def load_temp(b: Builder, ref: TempRef, t: Type) -> Op:
    return combine(b, t, [b.load(ref, *at) for at in places(b, ref)])


def store_temp(b: Builder, ref: TempRef, value: Op) -> None:
    for at, part in zip(places(b, ref), entries(b, value)):
        b.store(ref, *at, part)


def add_temp(b: Builder, ref: TempRef, value: Op) -> None:
    """Add to a temporary, atomically, because iterations of a parallel loop share it."""
    for at, part in zip(places(b, ref), entries(b, value)):
        b.atomic("add", ref, *at, part)

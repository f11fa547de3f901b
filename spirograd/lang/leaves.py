"""Types of aggregates, and the protocol that takes them apart into scalars and builds them again."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Union

import numpy as np

from spirograd.base.dtypes import DType, promote
from spirograd.base.near_names import NearNames
from spirograd.lang import arithmetic, scalar
from spirograd.lang.context import current_trace
from spirograd.lang.scalar import Number, Scalar, Value
from spirograd.lang.traced_numbers import TracedNumber, plain

if TYPE_CHECKING:
    from spirograd.lang.data.enums import Layout
    from spirograd.lang.data.field import MemberField


class AggregateType(NearNames, ABC):
    """A vector, matrix or struct type. Callable: constructs a value, converting members to the type's."""

    @abstractmethod
    def leaf_dtypes(self) -> tuple[DType, ...]:
        """Return the types of the scalars of a value, in order."""

    @abstractmethod
    def build(self, leaves: Sequence[Scalar]) -> object:
        """Return the value that consists of the scalars ``leaves``, used as they are."""

    def host_types(self) -> tuple[type | None, ...]:
        """Return the types of the scalars of a value that a kernel returns to Python: NumPy's types of entries of vectors and matrices,
        which remember theirs, None for Python's own numbers."""
        return (None,) * len(self.leaf_dtypes())

    @abstractmethod
    def numbers_of(self, value: object) -> list[Scalar]:
        """Return the scalars of ``value`` as they are; raises SpirogradTypeError if it has another structure."""

    def leaves_of(self, value: object) -> list[Scalar]:
        """Return the scalars of ``value`` converted to `leaf_dtypes`; raises SpirogradTypeError if it has another structure."""
        return [t(number) for t, number in zip(self.leaf_dtypes(), self.numbers_of(value))]

    def converted(self, value: object) -> object:
        """Return ``value`` as this type has it; raises SpirogradTypeError if it has another structure."""
        return self.build(self.leaves_of(value))

    @abstractmethod
    def unplaced_field(self, name: str, needs_grad: bool, needs_dual: bool, layout: Layout) -> MemberField:
        """Return a field ``name`` of such elements that is in no tree yet; ``needs_grad``, ``needs_dual``, ``layout`` are the options of
        `field`."""


ValueType = Union[DType, AggregateType]


def as_type(t: object) -> ValueType:
    """Return a scalar or aggregate type from a user's notation for one; raise SpirogradTypeError."""
    return t if isinstance(t, AggregateType) else arithmetic.as_dtype(t)


def leaf_dtypes(t: ValueType) -> tuple[DType, ...]:
    """Return the types of the scalars of a value of type ``t``."""
    return (t,) if isinstance(t, DType) else t.leaf_dtypes()


def build(t: ValueType, leaves: Sequence[Scalar]) -> object:
    """Return a value of type ``t`` from its scalars."""
    return leaves[0] if isinstance(t, DType) else t.build(leaves)


def host_types(t: ValueType) -> tuple[type | None, ...]:
    """Return `AggregateType.host_types` of a type."""
    return (None,) if isinstance(t, DType) else t.host_types()


def numbers_of(t: ValueType, value: object) -> list[Scalar]:
    """Return the scalars of ``value``, which must have the structure of ``t``, as they are."""
    if isinstance(t, AggregateType):
        return t.numbers_of(value)
    if not scalar.is_scalar(value):
        raise scalar.type_error(f"expected a number of type {t}, got {scalar.describe(value)}")
    return [value]


def typed(x: Scalar, t: DType) -> Scalar:
    """Return ``x`` as ``t``: a cast in a kernel, a NumPy scalar (which remembers its type) outside of one."""
    if isinstance(x, Value) or current_trace() is not None:
        return scalar.cast(x, t)
    if t.kind == "bool":
        return bool(x)
    number: Number = t(x)
    return number if isinstance(x, TracedNumber) else t.np.type(number)


def common_dtype(entries: Sequence[Scalar]) -> DType:
    """Return the type that all entries promote to."""
    kinds = [e.dtype if isinstance(e, Value) else _kind(e) for e in entries]
    return functools.reduce(lambda a, b: a if a is b else promote(a, b), kinds)


def _kind(x: Number) -> DType:
    return arithmetic.as_dtype(type(plain(x))) if _plain(plain(x)) else scalar.dtype_of(x)


def _plain(x: object) -> bool:
    return isinstance(x, (bool, int, float)) and not isinstance(x, np.generic)


def unify_entries(entries: Sequence[Scalar]) -> list[Scalar]:
    """Return entries of one type: numbers stay numbers if all are, else all become values of the common type."""
    out = list(entries)
    if any(isinstance(e, Value) for e in out):
        t = common_dtype(out)
        return [scalar.cast(e, t) for e in out]
    if len({type(e) for e in out}) <= 1:
        return out
    if any(isinstance(e, TracedNumber) for e in out):
        return [e if isinstance(e, TracedNumber) else float(e) for e in out]
    if all(_plain(e) for e in out):
        return [float(e) for e in out] if any(isinstance(e, float) for e in out) else [int(e) for e in out]
    return list(np.array(out))

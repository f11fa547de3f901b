"""Values that the kernel computes: scalars, and the vectors and structs that are made of scalars.

The IR has scalars only. `leaves` takes an aggregate apart, and `rebuild` makes one of the same structure from other scalars: so aggregates
pass through branches, loops and calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeGuard

from spirograd.base.dtypes import u1
from spirograd.ir.nodes import Region
from spirograd.lang import scalar
from spirograd.lang.frontend import lossy_conversions
from spirograd.lang.matrix import Matrix, make
from spirograd.lang.scalar import Scalar, Value, describe, type_error
from spirograd.lang.struct import Methods, Struct, make_struct

# A value that the kernel computes.
Traced = Value | Matrix | Struct


def is_runtime(x: object) -> TypeGuard[Traced]:
    """Return whether ``x`` is a value that the kernel computes (rather than an object known while compiling)."""
    return isinstance(x, (Value, Matrix, Struct))


def contains_runtime(x: object) -> bool:
    """Return whether ``x`` is, or holds, something that the kernel computes."""
    if isinstance(x, dict):
        return any(contains_runtime(e) for e in x.values())
    if isinstance(x, (list, tuple, set)):
        return any(contains_runtime(e) for e in x)
    return is_runtime(x)


def leaves(x: object) -> list[Value]:
    """Return the scalars of a run-time value, in order."""
    if isinstance(x, Matrix):
        return [scalar.as_value(e) for e in x.entries]
    if isinstance(x, Struct):
        return [leaf for member in x.entries.values() for leaf in leaves(member)]
    return [scalar.as_value(x)]


def rebuild(model: Traced, values: Sequence[Value]) -> Traced:
    """Return a value of the structure of ``model`` from its scalars."""
    return _rebuild(model, list(reversed(values)))


def _rebuild(model: object, stack: list[Value]) -> Traced:
    if isinstance(model, Matrix):
        return make([stack.pop() for _ in model.entries], model.shape)
    if isinstance(model, Struct):
        return model.with_entries({name: _rebuild(member, stack) for name, member in model.entries.items()})
    return stack.pop()


def settle(x: object) -> object:
    """Return ``x`` as something a variable can hold: numbers become typed constants, in vectors and structs too."""
    if scalar.is_scalar(x):
        return scalar.as_value(x)
    if isinstance(x, (Matrix, Struct)):
        return rebuild(x, leaves(x))
    return x


def pack_tuple(value: tuple[object, ...]) -> object:
    """Return a tuple of run-time values as a struct, so that the tuples of several `return` statements can be merged; others as they
    are."""
    members = [pack_tuple(v) if isinstance(v, tuple) else settle(v) for v in value]
    if not members or not all(is_runtime(m) for m in members):
        return value
    return make_struct({f"{k}": m for k, m in enumerate(members)}, _TUPLE)


def unpack_tuple(value: object) -> object:
    """Return what `pack_tuple` was given."""
    if isinstance(value, Struct) and value._methods is _TUPLE:
        return tuple(unpack_tuple(v) for v in value.entries.values())
    return value


_TUPLE: Methods = {}  # marks such structs


def emit_if(condition: Value, then: Callable[[], Sequence[Value]], otherwise: Callable[[], Sequence[Value]]) -> list[Value]:
    """Emit a branch of what two functions emit, and return the values that they return."""
    b, regions = scalar.builder(), list[Region]()
    for side in (then, otherwise):
        b.begin()
        regions.append(b.end([v.op for v in side()]))
    return [Value(op) for op in b.if_(condition.op, *regions)]


def where(condition: Scalar, then: Callable[[], object]) -> None:
    """Emit what ``then`` emits, under a condition."""

    def run() -> Sequence[Value]:
        then()
        return ()

    emit_if(scalar.cast(condition, u1), run, lambda: ())


def same_structure(a: object, b: object) -> bool:
    """Return whether two run-time values have the same structure (types of scalars apart)."""
    if isinstance(a, Matrix) and isinstance(b, Matrix):
        return bool(a.shape == b.shape)
    if isinstance(a, Struct) and isinstance(b, Struct):
        return list(a.entries) == list(b.entries) and all(same_structure(a.entries[k], b.entries[k]) for k in a.entries)
    return isinstance(a, Value) and isinstance(b, Value)


def convert(value: object, model: Traced, what: str) -> Traced:
    """Return ``value`` with the structure and the types of ``model``, for an assignment to an existing variable."""
    if isinstance(model, Matrix) and scalar.is_scalar(value):
        value = make([value] * len(model.entries), model.shape)
    if isinstance(model, Matrix) and isinstance(value, (list, tuple)):
        value = Matrix(value)
    if isinstance(model, Value) and isinstance(value, float):  # a literal, which adapts: 0.1 for an f64 is not rounded to f32 first
        lossy_conversions.check([value], [model.dtype], what, lossy_conversions.VARIABLE)
        return scalar.cast(value, model.dtype)
    value = settle(value)
    if not is_runtime(value) or not same_structure(value, model):
        raise type_error(
            f"cannot assign {describe(value)} to {what}, which is {describe(model)}", "use another name for a value of another kind"
        )
    values, types = leaves(value), [m.dtype for m in leaves(model)]
    lossy_conversions.check(values, types, what, lossy_conversions.VARIABLE)
    return rebuild(model, [scalar.cast(v, t) for v, t in zip(values, types)])

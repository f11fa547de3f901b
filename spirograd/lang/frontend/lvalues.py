"""Lvalues: what can stand on the left of an assignment. Elements of memory, and parts of them or of local variables."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeGuard

import numpy as np

from spirograd.base.dtypes import VOID, i32, u1
from spirograd.ir import ops as ir
from spirograd.ir.nodes import ArrayRef, FieldRef, Label, Op, SharedRef, TempRef
from spirograd.lang import arithmetic, groups, scalar
from spirograd.lang.data.field import MatrixField, ScalarField, StructField
from spirograd.lang.frontend import lossy_conversions
from spirograd.lang.frontend.array_proxy import ArrayProxy, TripletsProxy
from spirograd.lang.frontend.indices import component_index
from spirograd.lang.frontend.runtime_values import Traced, emit_if, where
from spirograd.lang.frontend.view_proxy import Viewed, ViewProxy
from spirograd.lang.groups import SharedArray
from spirograd.lang.indexing import axis_positions, flat_position, shape_name, swizzle_of
from spirograd.lang.matrix import Matrix, make
from spirograd.lang.scalar import Scalar, Value, describe, type_error
from spirograd.lang.struct import Struct

MemoryRef = FieldRef | ArrayRef | TempRef | SharedRef


class Lvalue:
    """Somewhere a value can be read from and written to. ``what``: how messages call it."""

    what = "it"

    def load(self) -> Traced:
        raise NotImplementedError

    def store(self, value: object) -> None:
        raise NotImplementedError

    def index(self, key: object) -> Lvalue:
        """Return the part at ``[key]``."""
        return Part(self, "index", key)

    def member(self, name: str) -> Lvalue:
        """Return the part at ``.name``."""
        return Part(self, "member", name)

    def atomic(self, kind: str, value: object) -> Traced:
        """Update with a value, and return the old one: atomically in memory, by a plain update elsewhere."""
        old = self.load()
        self.store(combined(kind, old, value))
        return old

    def update(self, kind: str, value: object) -> None:
        """Update with a value as `atomic` does, where the old value is not used."""
        self.atomic(kind, value)


def element_shape(ref: MemoryRef) -> tuple[int, ...]:
    assert not isinstance(ref, SharedRef), "a SharedElement knows its shape"
    return ref.shape if isinstance(ref, TempRef) else ref.element_shape


class Element(Lvalue):
    """An element of a field or array: scalar, vector or matrix, as its element shape says. ``label``: its index as the program has it, for
    elements whose accesses are compared where races are looked for."""

    def __init__(self, ref: MemoryRef, indices: Sequence[Op], components: tuple[Op, ...] = (), label: Sequence[Op] | None = None) -> None:
        self.ref = ref
        self.indices = tuple(indices)
        self.components = components
        self.label = label

    @property
    def shape(self) -> tuple[int, ...]:
        return element_shape(self.ref)[len(self.components) :]

    @property
    def owner(self) -> str:
        """How messages call what this is an element of."""
        name = self.ref.name.partition(".")[0] if isinstance(self.ref, TempRef) else self.ref.name
        return f"`{name}`"

    @property
    def what(self) -> str:  # type: ignore[override]
        return self.owner if isinstance(self.ref, TempRef) and not self.components else f"an element of {self.owner}"

    def _each(self) -> list[tuple[Op, ...]]:
        b = scalar.builder()
        return [(*self.indices, *self.components, *[b.const(k, i32) for k in position]) for position in np.ndindex(*self.shape)]

    def _accessed(self, atomic: bool = False) -> None:
        """Say which element the next accesses are to, where races are looked for. ``atomic``: they count as such."""
        if self.label is not None and scalar.trace_of().options.detect_races:
            scalar.builder().emit(ir.label, *self.label, attr=Label(self.ref, math.prod(self.shape), atomic), type=VOID)

    def load(self) -> Traced:
        b = scalar.builder()
        self._accessed()
        values = [Value(b.load(self.ref, *at)) for at in self._each()]
        return values[0] if not self.shape else make(values, self.shape)

    def store(self, value: object) -> None:
        b = scalar.builder()
        self._accessed()
        for at, v in zip(self._each(), self._entries(value)):
            b.store(self.ref, *at, scalar.fitting(v, self.ref.dtype).op)

    def _entries(self, value: object) -> list[Scalar]:
        """Return the scalars of a value that this takes."""
        entries = entries_for(value, self.shape, self.what)
        kind = lossy_conversions.VARIABLE if isinstance(self.ref, TempRef) else lossy_conversions.MEMORY
        lossy_conversions.check(entries, itertools.repeat(self.ref.dtype), self.what, kind)
        return entries

    def index(self, key: object) -> Lvalue:
        keys = key if isinstance(key, tuple) else (key,)
        if isinstance(key, Matrix):
            keys = tuple(key.entries)
        if len(keys) > len(self.shape):
            return Part(self, "index", key)
        if any(isinstance(k, slice) for k in keys):
            keys = (*keys, *[slice(None)] * (len(self.shape) - len(keys)))
            axes = [axis_positions(k, n, self.shape) for k, n in zip(keys, self.shape)]
            shape = tuple(len(axis) for axis, k in zip(axes, keys) if isinstance(k, slice))
            return Selection([self._component(at) for at in itertools.product(*axes)], shape)
        return self._component(keys)

    def _component(self, keys: Sequence[object]) -> Element:
        components = [component_index(k, n) for k, n in zip(keys, self.shape)]
        return self._with((*self.components, *components))

    def _with(self, components: tuple[Op, ...]) -> Element:
        return Element(self.ref, self.indices, components, self.label)

    def member(self, name: str) -> Lvalue:
        """Return the component, or the components, that a swizzle names: no other is touched."""
        positions = swizzle_of(name)
        if positions is None or len(self.shape) != 1 or max(positions) >= self.shape[0]:
            what = f"a {shape_name(self.shape)}" if self.shape else "a scalar"
            raise type_error(f"{self.what} is {what}, which has no component `{name}`")
        parts = [self._component((k,)) for k in positions]
        return parts[0] if len(parts) == 1 else Selection(parts, (len(parts),))

    def atomic(self, kind: str, value: object) -> Traced:
        b = scalar.builder()
        dtype = self.ref.dtype
        values = self._entries(value)
        if kind == "sub":  # negated in the type of the memory: a narrower unsigned value would wrap around
            kind, values = "add", [-scalar.fitting(v, dtype) for v in values]
        if dtype.kind == "bool":
            raise type_error(f"{self.owner} holds u1, which has no atomic operations", "use a field of i32")
        if kind in ("and", "or", "xor") and dtype.is_float:
            raise type_error(f"bitwise atomics need integers, {self.owner} holds {dtype}", "store the bits in an integer field")
        old = []
        self._accessed()
        for at, v in zip(self._each(), values):
            old.append(Value(b.atomic(kind, self.ref, *at, scalar.fitting(v, dtype).op)))
        return old[0] if not self.shape else make(old, self.shape)

    def update(self, kind: str, value: object) -> None:
        if self.ref.dtype.kind != "bool" or kind not in ("and", "or"):
            self.atomic(kind, value)
            return

        # Storing True where the value is true (False where it is false) is `or` (`and`), in whatever order others do the same.
        def put(at: tuple[Op, ...]) -> None:
            scalar.builder().store(self.ref, *at, scalar.constant(kind == "or").op)

        self._accessed(atomic=True)
        for at, v in zip(self._each(), entries_for(value, self.shape, self.what)):
            changes = scalar.truth(v) if kind == "or" else scalar.logical_not(v)
            where(changes, functools.partial(put, at))

    def compare_and_swap(self, expected: Scalar, desired: Scalar) -> Value:
        b = scalar.builder()
        dtype = self.ref.dtype
        if dtype.kind == "bool":
            raise type_error(f"{self.owner} holds u1, which has no atomic operations", "use a field of i32")
        operands = (scalar.cast(expected, dtype).op, scalar.cast(desired, dtype).op)
        self._accessed()
        return Value(b.emit(ir.cas, *self.indices, *self.components, *operands, attr=self.ref, type=dtype))


class SharedElement(Element):
    """An element of a shared array. Its memory has one index: the number of a scalar."""

    def __init__(self, array: SharedArray, indices: Sequence[Op], components: tuple[Op, ...] = ()) -> None:
        super().__init__(array.ref, indices, components)
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.element_shape[len(self.components) :]

    def _each(self) -> list[tuple[Op, ...]]:
        extents = (*self.array.shape, *self.array.element_shape)
        return [(groups.flattened(at, extents),) for at in super()._each()]

    def _with(self, components: tuple[Op, ...]) -> Element:
        return SharedElement(self.array, self.indices, components)

    def compare_and_swap(self, expected: Scalar, desired: Scalar) -> Value:
        raise type_error(f"`atomic_cas` does not work on shared arrays such as {self.owner}", "use a field or an ndarray")


class Selection(Lvalue):
    """Several scalars of one element of memory: a slice or a swizzle. The others are neither read nor written."""

    def __init__(self, parts: Sequence[Lvalue], shape: tuple[int, ...]) -> None:
        self.parts = list(parts)
        self.shape = shape

    @property
    def what(self) -> str:  # type: ignore[override]
        return f"a part of {self.parts[0].what}"

    def index(self, key: object) -> Lvalue:
        keys = key.entries if isinstance(key, Matrix) else key if isinstance(key, tuple) else (key,)
        if len(keys) > len(self.shape):
            return Part(self, "index", key)
        keys = (*keys, *[slice(None)] * (len(self.shape) - len(keys)))
        axes = [axis_positions(k, n, self.shape) for k, n in zip(keys, self.shape)]
        positions = axes[0] if len(axes) == 1 else [flat_position(i, self.shape[1], j) for i in axes[0] for j in axes[1]]
        parts = [Chosen(self.parts, p) if isinstance(p, Value) else self.parts[p] for p in positions]
        shape = tuple(len(axis) for axis, k in zip(axes, keys) if isinstance(k, slice))
        return Selection(parts, shape) if shape else parts[0]

    def member(self, name: str) -> Lvalue:
        positions = swizzle_of(name)
        if positions is None or len(self.shape) != 1 or max(positions) >= self.shape[0]:
            return Part(self, "member", name)
        parts = [self.parts[k] for k in positions]
        return parts[0] if len(parts) == 1 else Selection(parts, (len(parts),))

    def load(self) -> Traced:
        return make([scalar.as_value(part.load()) for part in self.parts], self.shape)

    def store(self, value: object) -> None:
        for part, v in zip(self.parts, self._values(value)):
            part.store(v)

    def atomic(self, kind: str, value: object) -> Traced:
        old = [scalar.as_value(part.atomic(kind, v)) for part, v in zip(self.parts, self._values(value))]
        return make(old, self.shape)

    def update(self, kind: str, value: object) -> None:
        for part, v in zip(self.parts, self._values(value)):
            part.update(kind, v)

    def _values(self, value: object) -> list[Scalar]:
        return entries_for(value, self.shape, self.what)


class SpreadElement(Selection):
    """An element of a field whose components have no common layout."""


class Chosen(Lvalue):
    """The one of several scalars whose number, ``position``, is known at run time."""

    def __init__(self, parts: Sequence[Lvalue], position: Value) -> None:
        self.parts = list(parts)
        self.position = position
        if scalar.trace_of().options.check_bounds:
            inside = scalar.bit_and(scalar.greater_equal(position, 0), scalar.less(position, len(parts)))
            scalar.emit_check("bounds", inside, f"index out of range for a vector of {len(parts)}")

    @property
    def what(self) -> str:  # type: ignore[override]
        return self.parts[0].what

    def load(self) -> Traced:
        return self._of_one(lambda part: scalar.as_value(part.load()))

    def store(self, value: object) -> None:
        for number, part in enumerate(self.parts):
            where(scalar.equal(self.position, number), functools.partial(part.store, value))

    def atomic(self, kind: str, value: object) -> Traced:
        return self._of_one(lambda part: scalar.as_value(part.atomic(kind, value)))

    def update(self, kind: str, value: object) -> None:
        for number, part in enumerate(self.parts):
            where(scalar.equal(self.position, number), functools.partial(part.update, kind, value))

    def _of_one(self, result: Callable[[Lvalue], Value], first: int = 0) -> Value:
        """Emit what ``result`` emits for the part at the position, and return its value."""
        part, rest = self.parts[first], first + 1
        if rest == len(self.parts):
            return result(part)
        here = scalar.cast(scalar.equal(self.position, first), u1)
        return emit_if(here, lambda: [result(part)], lambda: [self._of_one(result, rest)])[0]


class StructElement(Lvalue):
    """An element of a field of structs: one lvalue per member."""

    def __init__(self, members: dict[str, Lvalue], make: Callable[[dict[str, object]], Struct]) -> None:
        self.members = members
        self.make = make

    def load(self) -> Traced:
        return self.make({name: member.load() for name, member in self.members.items()})

    def store(self, value: object) -> None:
        if not isinstance(value, Struct):
            raise type_error(f"cannot store {describe(value)} in an element that is a struct with {', '.join(self.members)}")
        check_members(value, self.members)
        for name, member in self.members.items():
            member.store(value.entries[name])

    def member(self, name: str) -> Lvalue:
        if name not in self.members:
            raise type_error(f"the struct has no member `{name}`", f"it has {', '.join(self.members)}")
        return self.members[name]

    def atomic(self, kind: str, value: object) -> Traced:
        if not isinstance(value, Struct):
            raise type_error(f"cannot combine a struct with {describe(value)}")
        check_members(value, self.members)
        return self.make({name: member.atomic(kind, value.entries[name]) for name, member in self.members.items()})


def check_members(value: Struct, members: Collection[str]) -> None:
    if set(value.entries) != set(members):
        raise type_error(f"structs with different members: {', '.join(value.entries)} and {', '.join(members)}")


class Part(Lvalue):
    """A part of the lvalue ``container``, which a write replaces with a changed copy."""

    def __init__(self, container: Lvalue, kind: str, key: Any) -> None:
        self.container = container
        self.kind = kind
        self.key = key

    def load(self) -> Traced:
        value = self.container.load()
        if self.kind == "member":
            part: Traced = getattr(value, self.key)
        elif isinstance(value, Value):
            raise type_error(f"{describe(value)} cannot be indexed")
        else:
            part = value[self.key]
        return part

    @property
    def what(self) -> str:  # type: ignore[override]
        return f"a part of {self.container.what}"

    def store(self, value: object) -> None:
        before = self.container.load()
        old = before.entries.get(self.key) if self.kind == "member" and isinstance(before, Struct) else before
        if isinstance(old, Matrix):
            given = value.entries if isinstance(value, Matrix) else [value] if scalar.is_scalar(value) else []
            lossy_conversions.check(given, itertools.repeat(scalar.dtype_of(old.entries[0])), self.what, lossy_conversions.VARIABLE)
        elif isinstance(old, Value) and scalar.is_scalar(value):
            lossy_conversions.check([value], [old.dtype], self.what, lossy_conversions.VARIABLE)
        if self.kind == "index" and isinstance(before, Matrix):
            self.container.store(before.with_entry(self.key, value))
        elif self.kind == "member" and isinstance(before, Struct):
            self.container.store(before.with_member(self.key, value))
        elif self.kind == "member" and isinstance(before, Matrix):
            try:
                changed = before.with_swizzle(self.key, value)
            except AttributeError as error:
                raise type_error(str(error)) from None
            self.container.store(changed)
        else:
            raise type_error(f"cannot assign to a part of {describe(before)}")


def combined(kind: str, old: object, value: object) -> object:
    """Return what an atomic of this kind leaves in a local variable."""
    return _COMBINE[kind](old, value)


_COMBINE: dict[str, Callable[[object, object], object]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "exchange": lambda old, value: value,
    "min": arithmetic.min,
    "max": arithmetic.max,
}


def has_elements(base: object) -> TypeGuard[Viewed | ViewProxy | TripletsProxy]:
    """Return whether ``base`` is a field, an array of the kernel, or the builder of a matrix."""
    return isinstance(base, (ArrayProxy, TripletsProxy, ViewProxy, ScalarField, MatrixField, StructField, SharedArray))


def entries_for(value: object, shape: tuple[int, ...], what: str) -> list[Scalar]:
    """Return the scalars of ``value`` for something of ``shape``; a scalar fills it."""
    if scalar.is_scalar(value):
        count = int(np.prod(shape)) if shape else 1
        return [value] * count
    if isinstance(value, (list, tuple)) and shape:
        rows = [row if isinstance(row, (list, tuple)) else [row] for row in value]
        entries = [entry for row in rows for entry in row]
        if len(value) == shape[0] and all(map(scalar.is_scalar, entries)) and {len(row) for row in rows} == {math.prod(shape[1:])}:
            return entries  # each is converted on its own, and not to a type that all of them have
        value = Matrix(value)
    if isinstance(value, Matrix) and tuple(value.shape) == shape:
        return list(value.entries)
    wanted = f"a {shape_name(shape)}" if shape else "a scalar"
    hint = "name one of its elements" if hasattr(value, "element_shape") else ""
    raise type_error(f"cannot assign {describe(value)} to {what}, which is {wanted}", hint)

"""Fields: global data that lives in field trees. Vectors and matrices, structs, and the construction of fields of all kinds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Union

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradCallError, SpirogradRuntimeError, SpirogradTypeError, SpirogradUnsupportedError
from spirograd.base.near_names import NoAttribute
from spirograd.base.once import one_at_a_time
from spirograd.base.records import replace
from spirograd.base.wording import counted
from spirograd.ir.nodes import Layout
from spirograd.lang import context, scalar, traced_numbers
from spirograd.lang.data import elements, shadows, tree
from spirograd.lang.data.contents import Contents, elements_text
from spirograd.lang.data.enums import Layout as Arrangement
from spirograd.lang.data.index_space import IndexSpace
from spirograd.lang.data.nodes import SNode
from spirograd.lang.data.numpy_transfer import Array
from spirograd.lang.data.regions import Path
from spirograd.lang.data.scalar_field import UNPLACED, BuildElement, Field, ScalarField, placement
from spirograd.lang.data.shapes import element_index, shape_tuple
from spirograd.lang.data.views import HostView
from spirograd.lang.leaves import AggregateType

if TYPE_CHECKING:
    import torch
    from numpy.typing import DTypeLike

    from spirograd.lang.data.batches import Batch
    from spirograd.lang.data.device_arrays import TorchDevice
    from spirograd.lang.matrix import Matrix
    from spirograd.lang.struct import Methods, Struct, StructType

    MemberField = Union[ScalarField, "StructField"]

    class FieldOptions(TypedDict, total=False):
        """Options of `matrix_field`."""

        order: str | None
        name: str
        offset: object
        needs_grad: bool
        needs_dual: bool
        layout: Arrangement
        fill: object

    class MakeStruct(Protocol):
        """Makes a struct of its members and methods. ``write``: writes a member back to memory."""

        def __call__(
            self, members: Mapping[str, object], methods: Methods, write: Callable[[str, object], None] | None = None
        ) -> Struct: ...


__all__ = ["ComponentField", "Field", "MatrixField", "ScalarField", "StructField", "field", "matrix_field", "place_by_shape"]


class MatrixField(ScalarField):
    """A field of vectors (``element_shape`` (n,)) or matrices (n, m), made by `Vector.field`, `Matrix.field` or `field`.

    Components that are placed one by one may lie at strides that differ. Each is then accessed as a field of its own.
    """

    def __init__(
        self,
        element_shape: tuple[int, ...],
        dtype: object,
        build: BuildElement,
        name: str = "",
        needs_grad: bool = False,
        needs_dual: bool = False,
        arrangement: Arrangement = Arrangement.AOS,
        *,
        role: str = "primal",
        primal: ScalarField | None = None,
    ) -> None:
        super().__init__(dtype, name, needs_grad, needs_dual, role=role, primal=primal)
        self.element_shape = element_shape
        self.arrangement = arrangement
        self._build = build

    def _shadow(self, role: str) -> ScalarField:
        return type(self)(self.element_shape, self.dtype, self._build, arrangement=self.arrangement, role=role, primal=self)

    def made_from(self) -> tuple[Callable[..., Field], tuple[object, ...]]:
        return type(self), (self.element_shape, self.dtype, self._build, "", self.has_grad(), self.has_dual(), self.arrangement)

    @property
    def n(self) -> int:
        """The number of rows of an element, or of entries of a vector."""
        return self.element_shape[0]

    @property
    def m(self) -> int:
        """The number of columns of an element; 1 for vectors."""
        return self.element_shape[1] if len(self.element_shape) == 2 else 1

    @property
    def ndim(self) -> int:
        """The number of axes of an element: 1 for vectors, 2 for matrices."""
        return len(self.element_shape)

    def __repr__(self) -> str:
        self.take_name()
        return f"<field `{self.name}` {self._shape_text}of {elements_text(self.element_shape)} of {self.dtype}{self._without_memory}>"

    def get_scalar_field(self, *indices: int) -> ComponentField:
        """Return one component of every element, as a scalar field over the same memory."""
        at = element_index(indices, self.element_shape, (), f"the elements of field `{self.name}`")
        return self.component_fields[int(np.ravel_multi_index(at, self.element_shape))]

    @functools.cached_property
    def component_fields(self) -> list[ComponentField]:
        """The components of the elements, each as a scalar field over the same memory."""
        return [ComponentField(self, c) for c in range(self.components)]

    @functools.cached_property
    def lies_apart(self) -> bool:
        """Whether the components of an element have no common layout: their strides differ, or they are below different sparse nodes.
        Closes the tree; raises SpirogradRuntimeError if they are in two trees."""
        self.snode.tree.settle()
        if len({place.above for place in self._places}) == 1:
            return False
        if len({place.tree for place in self._places}) > 1:
            self.take_name()
            raise SpirogradRuntimeError(f"the components of field `{self.name}` are in two field trees: place them in one")
        return len(set(map(placement, self._places))) > 1 or any(c.sparse_path is not None for c in self.component_fields)

    @property
    def by_components(self) -> bool:
        """Whether kernels access the components as fields of their own: where they, or those of the gradient or tangent, lie apart."""
        shadows = [self._grad if self.has_grad() else None, self._dual if self.has_dual() else None]
        return self.lies_apart or any(shadow is not None and shadow.lies_apart for shadow in shadows)

    @property
    def view(self) -> HostView:
        """As of all fields. Raises SpirogradUnsupportedError for components at different nodes of which one is sparse."""
        if not self.lies_apart:
            return super().view
        if any(c.sparse_path is not None for c in self.component_fields):
            raise SpirogradUnsupportedError(
                f"the components of field `{self.name}` lie at different nodes, and one of these is sparse: its contents are no memory "
                "that can be saved or shared as a whole",
                None,
                "place all components at one node",
            )
        views = [c.view for c in self.component_fields]
        blocks = tuple([replace(view.blocks[0], part=k) for k, view in enumerate(views)])
        return replace(views[0], element_shape=self.element_shape, blocks=blocks)

    @property
    def sparse_path(self) -> Path | None:
        if not self.lies_apart:
            return super().sparse_path
        return next((c.sparse_path for c in self.component_fields if c.sparse_path is not None), None)

    def _memory_of(self, component: int) -> ScalarField:
        return self.component_fields[component] if self.lies_apart else self

    def _addresses(self, key: object, activate: bool = False) -> list[int]:
        if not self.lies_apart:
            return super()._addresses(key, activate)
        return [c._addresses(key, activate)[0] for c in self.component_fields]

    def __getitem__(self, key: object) -> Matrix:
        first, size = self._address(key), self.dtype.np.itemsize
        addresses = self._addresses(key) if first is None else range(first, first + size * self.components, size)

        def write(component: int, value: object) -> None:
            value, numbers = traced_numbers.split(value, ())
            shadows.host_write(self, key, component, numbers=numbers)
            places = addresses if self.sparse_path is None else self._addresses(key, activate=True)
            self._memory_of(component)._write(places[component], value)

        if first is None:
            values: Sequence[bool | int | float] = [self._memory_of(c)._read(a) for c, a in enumerate(addresses)]
        else:
            values = elements.read(self.tree.allocation, self.dtype, self.components, first)
        return self._build(values if context.recorder() is None else traced_numbers.read(self, key, values), self.element_shape, write)

    def __setitem__(self, key: object, value: object) -> None:
        address = self._address(key)
        addresses = self._addresses(key, activate=True) if address is None else ()
        value, numbers = traced_numbers.split(value, self.element_shape)
        data = self._entries_of(value)
        shadows.host_write(self, key, numbers=numbers)
        if address is not None:
            self._write(address, *data)
        else:
            for component, (a, v) in enumerate(zip(addresses, data)):
                self._memory_of(component)._write(a, v)

    def _entries_of(self, value: object) -> Sequence[object]:
        """Return the numbers that an element is set to."""
        short = elements.entries_of(value, self.element_shape)
        return np.broadcast_to(self._filling(value), self.element_shape).reshape(-1).tolist() if short is None else short

    _filling = Contents._filling

    def to_numpy(self, keep_dims: object = False, dtype: DType | DTypeLike | None = None, *, copy: bool | None = True) -> Array:  # type: ignore[override]
        """Return the elements as `Contents.to_numpy` does; ``keep_dims`` gives vectors a trailing axis of 1. ``copy``: see there."""
        out = super().to_numpy(dtype, copy=copy)
        return out[..., None] if keep_dims and self.ndim == 1 else out

    def to_torch(self, device: TorchDevice = None, keep_dims: bool = False, *, copy: bool | None = True) -> torch.Tensor:
        """Return elements as `Contents.to_torch`, with its ``device`` and ``copy``; ``keep_dims`` gives vectors a trailing axis of 1."""
        out = super().to_torch(device, copy=copy)
        return out[..., None] if keep_dims and self.ndim == 1 else out


class ComponentField(ScalarField):
    """One component of a matrix field, seen as a scalar field. It shares the memory, and can be placed on its own."""

    def __init__(self, matrix_field: MatrixField, component: int) -> None:
        super().__init__(matrix_field.dtype, f"{matrix_field.name}[{component}]", role=matrix_field.role)
        self.key = matrix_field.key
        self.matrix_field = matrix_field
        self.component = component

    made_from = Field.made_from

    @property
    def placed(self) -> bool:
        return any(p.component == self.component for p in self.matrix_field._places)

    @property
    def snode(self) -> SNode:
        places = [p for p in self.matrix_field._places if p.component == self.component]
        return places[0] if places else super().snode

    @property
    def origin(self) -> tuple[int, ...]:
        return self.matrix_field.origin

    @property
    def batch(self) -> Batch | None:
        return self.matrix_field.batch

    def place_in(self, node: SNode, origin: tuple[int, ...]) -> None:
        self.matrix_field.place_components([self.component], node, origin)

    def _find_addresses(self) -> Layout:
        self._origin = self.matrix_field.origin
        self._places = [p for p in self.matrix_field._places if p.component == self.component]
        return super()._find_addresses()

    def _of(self, matrix_field: ScalarField | None) -> ComponentField | None:
        return matrix_field.component_fields[self.component] if isinstance(matrix_field, MatrixField) else None

    @property
    def grad(self) -> ComponentField | Any:
        return self._of(self.matrix_field.grad)

    @property
    def dual(self) -> ComponentField | Any:
        return self._of(self.matrix_field.dual)

    def make_duals(self) -> None:
        self.matrix_field.make_duals()

    def has_grad(self) -> bool:
        return self.matrix_field.has_grad()

    def has_dual(self) -> bool:
        return self.matrix_field.has_dual()


class StructField(Field):
    """A field of structs, made by `StructType.field` or `Struct.field`. Its ``members`` are fields, which are also attributes."""

    def __init__(
        self,
        members: Mapping[str, MemberField],
        methods: Methods,
        make: MakeStruct,
        name: str,
        arrangement: Arrangement,
        struct_type: StructType | None = None,
    ) -> None:
        self.members: dict[str, MemberField] = dict(members)
        self.methods = methods
        self.name = name
        self.arrangement = arrangement
        self.dtype = struct_type
        self._make = make

    def suggest_name(self, name: str) -> None:
        if not self.name:
            self.name = name
            for key, member in self.members.items():
                member.suggest_name(f"{name}.{key}")

    def made_from(self) -> tuple[Callable[..., Field], tuple[object, ...]]:
        if self.dtype is None or self.has_grad() or self.has_dual():  # Members of integers have none.
            raise SpirogradTypeError("a field of structs with gradients can be neither pickled nor copied", None, "copy its members")
        return self.dtype.unplaced_field, ("", False, False, self.arrangement)

    def make_value(self, members: Mapping[str, object]) -> Struct:
        """Return a struct value with these members and the methods of the elements of this field."""
        return self._make(members, self.methods)

    @property
    def keys(self) -> list[str]:
        """The names of the members, in order."""
        return list(self.members)

    def get_member_field(self, name: str) -> MemberField:
        """Return the field of one member; raises SpirogradTypeError if there is none."""
        if name not in self.members:
            raise SpirogradTypeError(f"the struct field has no member `{name}`", None, f"it has {', '.join(self.members)}")
        return self.members[name]

    def __getattr__(self, name: str) -> Any:
        members = self.__dict__.get("members", {})
        if name in members:
            return members[name]
        if name.startswith("__") or hasattr(type(self), name):
            return super().__getattr__(name)  # type: ignore[misc]
        raise NoAttribute("the struct field", name, lambda: members, "member")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.members})

    def __repr__(self) -> str:
        return f"<field of structs with members {', '.join(self.members)}>"

    def __str__(self) -> str:
        return str(self.to_numpy()) if self.placed else str(self._first) if self._first.role != "primal" else UNPLACED

    @property
    def _first(self) -> MemberField:
        if not self.members:
            raise SpirogradTypeError("this field has no memory, because its structs have no members", None, "declare a member")
        return next(iter(self.members.values()))

    @property
    def placed(self) -> bool:
        """Whether every member is placed in a tree."""
        return all(m.placed for m in self.members.values())

    @property
    def snode(self) -> SNode:
        """The place of the first scalar of the first member in its tree; raises SpirogradRuntimeError if it has none."""
        return self._first.snode

    @property
    def origin(self) -> tuple[int, ...]:
        return self._first.origin

    @property
    def batch(self) -> Batch | None:
        return self._first.batch if self.members else None

    def place_in(self, node: SNode, origin: tuple[int, ...]) -> None:
        """Place every scalar of every member in the cells of ``node``. ``origin``: the smallest index of each axis."""
        for m in self.members.values():
            m.place_in(node, origin)

    def share(self, space: IndexSpace) -> None:
        """Make all members share ``space``. It is for new members, which have neither places nor gradients yet."""
        for m in self.members.values():
            m.share(space)

    def _shadow(self, role: str) -> StructField | None:
        shadows = {k: getattr(m, role) for k, m in self.members.items()}
        shadows = {k: m for k, m in shadows.items() if m is not None}
        return StructField(shadows, self.methods, self._make, f"{self.name}.{role}", self.arrangement) if shadows else None

    @property
    def grad(self) -> StructField | Any:
        """The gradients of the members that have one; None if no member has one."""
        return self._shadow("grad")

    @property
    def dual(self) -> StructField | Any:
        """The tangents of the members that have one; None if no member has one."""
        return self._shadow("dual")

    def has_grad(self) -> bool:
        """Return whether a member has memory for gradients."""
        return any(m.has_grad() for m in self.members.values())

    def has_dual(self) -> bool:
        """Return whether a member has memory for tangents."""
        return any(m.has_dual() for m in self.members.values())

    def __getitem__(self, key: object) -> Struct:
        def write(name: str, value: object) -> None:
            self.members[name][key] = value

        return self._make({name: m[key] for name, m in self.members.items()}, self.methods, write)

    def __setitem__(self, key: object, value: object) -> None:
        entries = value.entries if hasattr(value, "entries") else value
        if not isinstance(entries, Mapping) or set(entries) != set(self.members):
            members = ", ".join(self.members)
            raise SpirogradTypeError(f"an element of the field is a struct with members {members}, got {scalar.describe(value)}")
        for name, m in self.members.items():
            m[key] = entries[name]

    def fill(self, value: object) -> None:
        """Set all elements to ``value``: a struct, or a number for every scalar."""
        entries = value.entries if hasattr(value, "entries") else value
        for name, m in self.members.items():
            m.fill(entries[name] if isinstance(entries, Mapping) else entries)

    def copy_from(self, other: object) -> None:
        """Copy the contents of ``other``, a field with the same members and shape; raises SpirogradTypeError for anything else."""
        if not isinstance(other, StructField) or set(other.members) != set(self.members):
            raise SpirogradTypeError(f"`copy_from` needs a field of structs with members {', '.join(self.members)}")
        for name, m in self.members.items():
            m.copy_from(other.members[name])

    def __array__(self, dtype: object = None, copy: object = None) -> Array:
        hint = f"`.to_numpy()` gives a dict of arrays; `np.asarray(x.{self.keys[0]})` works for one member"
        raise SpirogradTypeError("a field of structs is not one array", None, hint)

    def to_numpy(self, *, copy: bool | None = True) -> dict[str, Any]:
        """Return the contents as a dict of arrays; ``copy`` is the option of `ScalarField.to_numpy`."""
        return {name: m.to_numpy(copy=copy) for name, m in self.members.items()}

    def from_numpy(self, arrays: Mapping[str, Any]) -> None:
        """Set the contents from a dict of arrays."""
        for name, array in arrays.items():
            self.get_member_field(name).from_numpy(array)

    def to_torch(self, device: TorchDevice = None) -> dict[str, Any]:
        """Return the contents as a dict of torch tensors on ``device``, the CPU by default."""
        return {name: m.to_torch(device) for name, m in self.members.items()}

    def from_torch(self, tensors: Mapping[str, Any]) -> None:
        """Set the contents from a dict of torch tensors."""
        for name, t in tensors.items():
            self.get_member_field(name).from_torch(t)


# --- making fields ---


def _scalars(f: MemberField) -> list[ScalarField]:
    if isinstance(f, StructField):
        return [s for m in f.members.values() for s in _scalars(m)]
    if isinstance(f, MatrixField):
        return list(f.component_fields)
    return [f]


def _shadows(f: MemberField, role: str) -> MemberField | None:
    """Return the gradients (tangents) of those members of ``f`` that requested them, or None."""
    if isinstance(f, StructField):
        given = {k: _shadows(m, role) for k, m in f.members.items()}
        shadows = {k: p for k, p in given.items() if p is not None}
        return StructField(shadows, f.methods, f._make, f.name, f.arrangement) if shadows else None
    return (f.grad if role == "grad" else f.dual) if getattr(f, f"needs_{role}") else None


@one_at_a_time
def place_by_shape(f: MemberField, shape: object, order: str | None, offset: object) -> None:
    """Place a new field and its gradients under `root`. Do nothing without a shape."""
    if shape is None:
        if offset is not None or order is not None:
            raise SpirogradCallError("`offset` and `order` need a `shape`; a field placed by hand takes `offset` in `.place`")
        return
    extents, batch = shape_tuple(shape), context.set_batch(None)
    try:
        _place(f, extents, order, offset, batch)
    finally:
        context.set_batch(batch)


def _place(f: MemberField, extents: tuple[int, ...], order: str | None, offset: object, batch: Batch | None) -> None:
    """Place a field and its gradients; those of a batch as `batches` describes."""
    axes = _axis_order(order, len(extents))
    arrangement = getattr(f, "arrangement", Arrangement.AOS)
    if batch is not None:
        if offset is not None:
            raise SpirogradUnsupportedError("fields of a batch have no `offset`", None, "subtract it where kernels index the field")
        _put_in_batch(f, batch)
        extents, axes, arrangement = (batch.size, *extents), [*[axis + 1 for axis in axes], 0], Arrangement.SOA
    for placeable in (f, _shadows(f, "grad"), _shadows(f, "dual")):
        if placeable is not None:
            for part in _scalars(placeable) if arrangement is Arrangement.SOA else [placeable]:
                _dense_levels(extents, axes, order is None and batch is None).place(part, offset=offset)


def _put_in_batch(f: MemberField, batch: Batch) -> None:
    if isinstance(f, StructField):
        for member in f.members.values():
            _put_in_batch(member, batch)
    else:
        f.space.batch = batch


_AXES = "ijklmnopqrstuvwxyz"  # the names of axes in ``order``


def _axis_order(order: str | None, ndim: int) -> list[int]:
    """Return the axes in memory order, slowest first."""
    if order is None:
        return list(range(ndim))
    letters = _AXES[:ndim]
    expected = f"`order` must be a permutation of {letters!r}"
    if not isinstance(order, str) or len(order) != ndim:
        raise SpirogradCallError(f"{expected}, which names {counted(ndim, 'axis', 'axes')}, got {order!r}")
    unknown = next((c for c in order if c not in letters), None)
    if unknown is not None:
        raise SpirogradCallError(f"{expected}, got {order!r} with the axis {unknown!r}")
    if len(set(order)) < ndim:
        raise SpirogradCallError(f"{expected}, got {order!r}, which repeats an axis")
    return [letters.index(c) for c in order]


def _dense_levels(extents: tuple[int, ...], axes: list[int], as_one: bool) -> SNode | tree.GlobalRoot:
    """Return a node with these extents, the last of ``axes`` fastest. ``as_one``: whether they are in order."""
    if not extents:
        return tree.root
    if as_one:
        return tree.root.dense(axes, extents)
    node: SNode | tree.GlobalRoot = tree.root
    for a in axes:
        node = node.dense(a, extents[a])
    return node


def field(
    dtype: object,
    shape: object = None,
    order: str | None = None,
    name: str = "",
    offset: object = None,
    needs_grad: bool = False,
    needs_dual: bool = False,
    *,
    fill: object = None,
) -> MemberField:
    """Make a field of ``dtype``: a scalar, vector, matrix or struct type. Its elements are zero at first, or ``fill``.

    ``shape``: the extents of the index space, an int or a tuple of positive ints; ``()`` for one element, ``x[None]``. Without it the
    field must be placed by hand. ``order``: the axes from slowest to fastest in memory, as in ``"ji"``. ``offset``: the smallest index of
    each axis. ``name``: what messages and dumps call it, by default the variable. ``needs_grad``, ``needs_dual``: have memory for
    gradients, tangents.

    Raises SpirogradRuntimeError for wrong shapes and orders, SpirogradTypeError for values that no element can have.
    """
    f: MemberField
    if isinstance(dtype, AggregateType):
        f = dtype.unplaced_field(name, needs_grad, needs_dual, Arrangement.AOS)
    else:
        f = ScalarField(dtype, name, needs_grad, needs_dual)
    if fill is not None:
        if isinstance(f, StructField):
            raise SpirogradTypeError("a field of structs takes no `fill`", None, "fill its members, as in `x.mass.fill(1)`")
        f.fill_at_first(fill)
    place_by_shape(f, shape, order, offset)
    return f


def matrix_field(
    element_shape: tuple[int, ...],
    dtype: object,
    build: BuildElement,
    shape: object = None,
    order: str | None = None,
    name: str = "",
    offset: object = None,
    needs_grad: bool = False,
    needs_dual: bool = False,
    layout: Arrangement = Arrangement.AOS,
    *,
    fill: object = None,
) -> MatrixField:
    """Return a field of vectors or matrices; options as of `field`. SOA gives each component an array of its own."""
    if not all(isinstance(n, (int, np.integer)) and n > 0 for n in element_shape):
        raise SpirogradRuntimeError(f"vectors and matrices have one entry or more, got the shape {element_shape}")
    f = MatrixField(element_shape, dtype, build, name, needs_grad, needs_dual, layout)
    f.fill_at_first(fill)
    place_by_shape(f, shape, order, offset)
    return f

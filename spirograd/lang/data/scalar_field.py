"""Fields of scalars, and the base of all fields."""

from __future__ import annotations

import itertools
import linecache
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from spirograd.base.artifact import part_name
from spirograd.base.dtypes import DType
from spirograd.base.errors import (
    SpirogradRuntimeError,
    SpirogradTypeError,
)
from spirograd.base.once import one_at_a_time
from spirograd.base.tracebacks import user_location
from spirograd.ir.addresses import NUMBERS, cell_offset
from spirograd.ir.nodes import FieldRef, Layout, Term
from spirograd.lang import arithmetic, context, plain_python, scalar, traced_numbers
from spirograd.lang.data import elements, numpy_transfer, shadows, sparse_contents
from spirograd.lang.data.contents import Contents
from spirograd.lang.data.host_scope import HostScope
from spirograd.lang.data.index_space import IndexSpace
from spirograd.lang.data.nodes import Place, SNode, Tabled
from spirograd.lang.data.numpy_transfer import Array
from spirograd.lang.data.regions import Path, path_to
from spirograd.lang.data.shapes import element_index
from spirograd.lang.data.tree import GlobalRoot, Tree, root
from spirograd.lang.data.tree_layout import Digit, terms_of
from spirograd.lang.data.views import HostView, view_of
from spirograd.lang.host_arrays import without_axes
from spirograd.lang.scalar import Number, Scalar, Value

if TYPE_CHECKING:
    from spirograd.lang.data.batches import Batch
    from spirograd.lang.data.field import StructField
    from spirograd.lang.matrix import Matrix

_keys = itertools.count(1)
UNPLACED = "<field without a place: declare it with `shape=`, or put it into a tree with `.place`>"
# Role of memory -> role of its tangents.
_DUALS = {"primal": "dual", "grad": "grad_dual"}
# The hint for placing a field, by its role.
_REMEDIES = {
    "primal": "declare it with `shape=`, or put it into a tree with `.place`",
    "grad": "declare the field with `needs_grad=True`, or call `sg.root.lazy_grad()`",
    "dual": "declare the field with `needs_dual=True`, or call `sg.root.lazy_dual()`",
    "grad_dual": "declare the field with `needs_dual=True`, or call `sg.root.lazy_dual()`",
}
S = TypeVar("S", bound="ScalarField")
# A line that is one statement, and assigns to one name or attribute, whose last part is the group.
_ASSIGNED = re.compile(r"(?!.*;)\s*(?:\w+\.)*([^\W\d]\w*)\s*(?::[^=]*)?=[^=]")
# Makes a vector or matrix of its entries and shape; the last argument writes an entry back.
BuildElement = Callable[[Sequence[Scalar], tuple[int, ...], Callable[[int, object], None]], "Matrix"]


def indices_of(digits: Sequence[Digit], ndim: int, origin: Sequence[int], counter: Value) -> list[Value]:
    """Return the index of the cell that a loop counter stands for, as run-time values; see `SNode.decode`."""
    out: list[Scalar] = [origin[axis] if origin else 0 for axis in range(ndim)]
    for axis, div, mod, mul in digits:
        digit: Scalar = counter if div == 1 else scalar.raw_div(counter, div)
        digit = scalar.raw_mod(digit, mod) if mod else digit
        digit = digit if mul == 1 else scalar.mul(digit, mul)
        out[axis] = digit if isinstance(out[axis], int) and out[axis] == 0 else scalar.add(digit, out[axis])
    return [scalar.cast(v, counter.dtype) for v in out]


def placement(place: SNode) -> tuple[tuple[int, ...], tuple[Term, ...]]:
    """Return the extents and the address terms of the memory of a scalar, once its tree is closed."""
    above = (place.stored_node or place).above
    assert above is not None
    return above.shape, terms_of(above.path, above.axis_numbers)


class Field(HostScope):
    """The base of all fields. ``shape``: the extents of the index space, without those of the elements."""

    name: str
    layout: tuple[int, ...] | None = None  # Of tensors: the axes from slowest to fastest in memory, if not in order.

    def suggest_name(self, name: str) -> None:
        """Take ``name`` (a variable that holds the field), unless the user gave it a name or a kernel already uses one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the index space, without those of the elements. Raises SpirogradRuntimeError for a field without a place."""
        return self.snode.above.shape if self.snode.above is not None else ()

    @property
    def batch(self) -> Batch | None:
        """The batch whose environments have elements of their own, or None."""
        raise NotImplementedError

    @property
    def shape_in_kernels(self) -> tuple[int, ...]:
        """The extents of the index space that kernels see: without the axis of the environments of a batch."""
        return self.shape if self.batch is None else self.shape[1:]

    @property
    def snode(self) -> SNode:
        """The place of the (first) scalar in its tree; raises SpirogradRuntimeError if it has none."""
        raise NotImplementedError

    def parent(self, n: int = 1) -> SNode | None:
        """Return the node ``n`` levels above the place of this field."""
        return self.snode.parent(n)

    @property
    def tree(self) -> Tree:
        """The tree that holds the field, closed."""
        place = self.snode
        if not place.tree.settled:
            place.tree.settle()
            place = self.snode  # Closing may have divided the tree.
        return (place.stored_node or place).tree

    @property
    def origin(self) -> tuple[int, ...]:
        """The smallest index of each axis; empty means zeros."""
        raise NotImplementedError

    def decode(self) -> list[Digit]:
        """Return the digits (axis, div, mod, mul) that turn a loop counter into an index in memory order (without `origin`):
        `SNode.decode`. Of a field of a batch, the index that kernels see."""
        above = self.snode.above
        assert above is not None
        digits = above.decode()
        if self.batch is None:
            return digits
        return [(axis - 1, div // self.batch.size, mod, mul) for axis, div, mod, mul in digits if axis > 0]  # Axis 0 is the fastest.

    def loop_order(self, counter: Value) -> list[Value]:
        """Return the index that a loop counter stands for, such that neighbouring counts touch neighbouring memory; offsets are
        included."""
        return indices_of(self.decode(), len(self.shape_in_kernels), self.origin, counter)

    def made_from(self) -> tuple[Callable[..., Field], tuple[object, ...]]:
        """Return the constructor of a field of this kind without a tree: a function, and its arguments. Raises SpirogradTypeError for parts
        of other fields."""
        hint = "copy the field, or keep `.to_numpy()`"
        raise SpirogradTypeError(f"{scalar.describe(self)} is a part of another field: it can be neither pickled nor copied", None, hint)

    def __copy__(self) -> Field:
        """Return the field itself: a shallow copy refers to the same memory."""
        return self

    def __deepcopy__(self, memo: object) -> object:
        remade, parts = self.__reduce__()
        return remade(*parts)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Return a field with the same elements, shape and offset, in a tree of its own: row-major, or in the layout of the tensor."""
        if self.batch is not None:
            hint = "make another by `batch.field`, and copy the contents: `new.copy_from(old)`"
            raise SpirogradTypeError(f"{scalar.describe(self)} is one of a batch: it can be neither pickled nor copied", None, hint)
        contents = [self.to_numpy()]  # type: ignore[attr-defined]
        contents += [p.to_numpy() if has() else None for p, has in ((self.grad, self.has_grad), (self.dual, self.has_dual))]  # type: ignore[attr-defined]
        return _remade, (*self.made_from(), self.shape, self.origin or None, self.layout, contents)

    def __iter__(self) -> Iterator[Any]:
        if plain_python.state.running:
            return plain_python.indices(self.shape, self.origin)
        raise SpirogradTypeError("a loop over a field works inside kernels only", None, "`.to_numpy()` gives an array to iterate over")


def _remade(
    make: Callable[..., ScalarField | StructField],
    args: tuple[object, ...],
    shape: tuple[int, ...],
    origin: tuple[int, ...] | None,
    layout: tuple[int, ...] | None,
    contents: Sequence[Any],
) -> object:
    """Return a copy of a field in the current session, see `Field.__reduce__`."""
    new = make(*args)
    new.layout = layout
    parts = [(part, data) for part, data in zip((new, new.grad, new.dual), contents) if data is not None]
    for part, _ in parts:
        above: SNode | GlobalRoot = root
        for axis in range(len(shape)) if layout is None else layout:
            above = above.dense(axis, shape[axis])
        above.place(part, offset=origin)
    for part, data in parts:
        part.from_numpy(data)
    return new


class ScalarField(Contents, Field):
    """A field of scalars of ``dtype``, made by `field`; the base of `MatrixField`.

    ``role``: "primal", "grad", "dual", or "grad_dual" (tangents of gradients).
    """

    _kind = "a field"
    element_shape: tuple[int, ...] = ()
    _initial: Number | Array | None = None  # What every element is at first, if not 0.
    hidden = False  # Whether it is internal to a sparse tree.
    sparse_node: Tabled | None = None  # The sparse node whose table this hidden field is.

    if TYPE_CHECKING:  # `Field.tree`, of the two that type checkers see.

        @property
        def tree(self) -> Tree: ...

    def __init__(
        self,
        dtype: object,
        name: str = "",
        needs_grad: bool = False,
        needs_dual: bool = False,
        *,
        role: str = "primal",
        primal: ScalarField | None = None,
    ) -> None:
        self.dtype: DType = arithmetic.as_dtype(dtype)
        if (needs_grad or needs_dual) and not self.dtype.is_float:
            raise SpirogradRuntimeError(
                f"only fields of floats have gradients, not of {self.dtype}: omit `needs_grad` and `needs_dual`, or choose f32 or f64"
            )
        self.key: int = primal.key if primal is not None else next(_keys)
        self.name = name or (f"field{self.key}" if primal is None else f"{primal.name}.{role}")
        self._made_at = None if name or primal is not None else user_location()
        self.needs_grad = needs_grad
        self.needs_dual = needs_dual
        self.role = role
        self.primal = primal
        self.layout = None if primal is None else primal.layout
        self.space: IndexSpace = IndexSpace() if primal is None else primal.space
        self._origin: tuple[int, ...] = ()
        self._places: list[Place] = []
        self._grad: ScalarField | None = None  # A field of the same class, or None.
        self._dual: ScalarField | None = None
        self._ref: FieldRef | None = None
        self._view: HostView | None = None
        self._view_stays = False  # The view of a dense field is the same once its tree is closed.
        self._addresses_found: Layout | None = None
        self._sparse_path: tuple[Path | None] | None = None
        self._fast_layout: tuple[elements.Places | None] | None = None

    @staticmethod
    def hidden_field(dtype: DType, name: str) -> ScalarField:
        """Return a field for internal use: a table of a sparse tree."""
        return ScalarField(dtype, name)

    def _shadow(self, role: str) -> ScalarField:
        return type(self)(self.dtype, role=role, primal=self)

    def made_from(self) -> tuple[Callable[..., Field], tuple[object, ...]]:
        return type(self), (self.dtype, "", self.has_grad(), self.has_dual())

    def suggest_name(self, name: str) -> None:
        if self.name != f"field{self.key}" or self._ref is not None:
            return
        self.name = name
        for shadow in (self._grad, self._dual):
            if shadow is not None and shadow._ref is None:
                shadow.name = f"{name}.{shadow.role}"

    def take_name(self) -> None:
        """Take the name of the variable or attribute that the line which made the field assigns to, unless there is a better name."""
        primal = self if self.primal is None else self.primal
        loc = primal._made_at
        match = None if loc is None else _ASSIGNED.match(linecache.getline(loc.file, loc.line))
        if match is not None:
            primal.suggest_name(match[1])

    def __repr__(self) -> str:
        self.take_name()
        return f"<field `{self.name}` {self._shape_text}of {self.dtype}{self._without_memory}>"

    @property
    def _shape_text(self) -> str:
        return f"{self.shape} " if self.placed else ""

    @property
    def _without_memory(self) -> str:
        """Return the addition to the text of a gradient without memory."""
        return "" if self.placed or self.role == "primal" else f", which has no memory: {_REMEDIES[self.role]}"

    def __sg_describe__(self) -> str:
        return f"the field `{self.name}`"

    def __str__(self) -> str:
        if self.placed:
            return str(self.to_numpy())
        return UNPLACED if self.role == "primal" else repr(self)

    # --- place ---

    @property
    def components(self) -> int:
        """The number of scalars per element."""
        return math.prod(self.element_shape) if self.element_shape else 1

    @property
    def placed(self) -> bool:
        """Whether every scalar of an element has a place in a tree."""
        return len(self._places) == self.components

    @property
    def snode(self) -> SNode:
        """The place of the first scalar of an element in its tree; raises SpirogradRuntimeError if it has none."""
        places = self._places
        if len(places) != self.components:
            raise SpirogradRuntimeError(f"field `{self.name}` has no place yet: {_REMEDIES[self.role]}")
        return places[0]

    @property
    def origin(self) -> tuple[int, ...]:
        return self._origin

    @property
    def batch(self) -> Batch | None:
        return self.space.batch

    def share(self, space: IndexSpace) -> None:
        """Share the extents and the origin of ``space``, like the other members of a field of structs."""
        self.space = space

    def place_in(self, node: SNode, origin: tuple[int, ...]) -> None:
        """Place every scalar of an element in the cells of ``node``. ``origin``: the smallest index of each axis."""
        self.place_components(range(self.components), node, origin)

    def place_components(self, components: Sequence[int], node: SNode, origin: tuple[int, ...]) -> None:
        """Place the scalars with the numbers ``components`` of an element in the cells of ``node``, like `place_in`.

        Raises SpirogradRuntimeError if one of them has a place already.
        """
        if any(p.component in components for p in self._places):
            raise SpirogradRuntimeError(f"field `{self.name}` has a place already: declare another field for this place")
        self.space.agree(self, node.shape, origin, user_location())
        self._places += [node.add_place(self, c, self.dtype) for c in components]
        self._places.sort(key=lambda p: p.component)
        self._origin = origin

    def has_memory(self) -> bool:
        """Return whether there is memory of the running session already."""
        return self.placed and self.snode.tree.closed and self.tree.has_memory()

    def check_shadows(self) -> None:
        """Raise SpirogradRuntimeError if a gradient was requested and has no place, or a component has none."""
        if not self.placed:
            raise SpirogradRuntimeError(
                f"field `{self.name}`: {self.components - len(self._places)} of its components have no place: place all, or "
                "the field as a whole"
            )
        for wanted, shadow, what in ((self.needs_grad, self._grad, "grad"), (self.needs_dual, self._dual, "dual")):
            if wanted and (shadow is None or not shadow.placed):
                raise SpirogradRuntimeError(
                    f"field `{self.name}` has needs_{what}=True, but its {what} has no place: place `{self.name}.{what}` too, "
                    f"call `lazy_{what}()` on the root, or declare the field with `shape=`"
                )

    @property
    def addresses(self) -> Layout:
        """The address terms of the elements in the buffer of the tree; closes the tree."""
        if self._addresses_found is None:
            self._addresses_found = self._find_addresses()
        return self._addresses_found

    def _find_addresses(self) -> Layout:
        self.snode.tree.settle()
        assert not self.lies_apart, "its components have addresses, the field has none"
        offsets = tuple((p.stored_node or p).byte_offset for p in self._places)
        return Layout(placement(self.snode)[1], offsets, () if self.sparse_path else self._origin)

    @property
    def sparse_path(self) -> Path | None:
        """The path to the elements through sparse nodes, None if there are none above the field; closes the tree."""
        if self._sparse_path is None:
            self.snode.tree.settle()
            above = self.snode.above
            assert above is not None
            path = None if self.snode.tree.regions is None else path_to(above, above.axis_numbers)
            self._sparse_path = (path if path is not None and path.levels else None,)
        return self._sparse_path[0]

    @property
    def storage_shape(self) -> tuple[int, ...]:
        """The extents of the memory: of the index space, or of the region of cells below sparse nodes."""
        if self.sparse_path is None:
            return self.shape
        return placement(self.snode)[0]

    def refs(self, role: str = "primal") -> FieldRef:
        """Return the reference of kernels to this field (``role`` "primal"), its gradient ("grad") or its tangent ("dual").

        Raises SpirogradRuntimeError if there is none.
        """
        if role != "primal":
            shadow = self.grad if role == "grad" else self.dual
            if shadow is None or not shadow.placed:
                raise SpirogradRuntimeError(f"field `{self.name}` has no {role}: declare it with `needs_{role}=True`")
            ref: FieldRef = shadow.refs()
            return ref
        return self._ref or self._make_ref()

    @one_at_a_time
    def _make_ref(self) -> FieldRef:
        if self._ref is None:
            self.take_name()
            self._check_node()
            shape = self.storage_shape
            self._ref = FieldRef(self.name, self.tree.id, self.key, self.dtype, shape, self.element_shape, self.addresses, self.role)
        return self._ref

    def _check_node(self) -> None:
        """Raise an error if a shadow of a field below sparse nodes is at another node, with cells of its own."""
        primal = self.primal
        if primal is None or not (self.sparse_path or primal.sparse_path) or self.snode.above is primal.snode.above:
            return
        raise SpirogradRuntimeError(
            f"field `{primal.name}` and its {self.role} are at different nodes, of which one is sparse: place them at the same node, as "
            f"`lazy_{self.role}()` does"
        )

    # --- gradients ---

    @property
    def grad(self: S) -> S | Any:
        """The field of gradients, which may have no place (see `has_grad`); None for integers and for gradients themselves."""
        if self._grad is None and self.role == "primal" and self.dtype.is_float:
            self._make_shadow("_grad", "grad")
        return self._grad

    @property
    def dual(self: S) -> S | Any:
        """The field of tangents of forward mode, which may have no place (see `has_dual`); None for integers and for tangents."""
        if self._dual is None and self.role in _DUALS and self.dtype.is_float:
            self._make_shadow("_dual", _DUALS[self.role])
        return self._dual

    @one_at_a_time
    def _make_shadow(self, name: str, role: str) -> None:
        if getattr(self, name) is None:
            setattr(self, name, shadows.register(self._shadow(role), role, self))

    def make_duals(self) -> None:
        """Allocate tangents of this field and of its gradient, whether or not they were requested; new ones are zero."""
        for field in (self, self.grad):
            dual = field.dual if field is not None and field.placed else None
            if dual is not None and not dual.placed:
                root, above = Tree().root, self.snode.above
                assert above is not None
                node = root.dense(above.axis_numbers, self.shape) if self.shape else root
                node.place(dual, offset=self.origin or None)

    def has_grad(self) -> bool:
        """Return whether there is memory for gradients."""
        return self._grad is not None and self._grad.placed

    def has_dual(self) -> bool:
        """Return whether there is memory for tangents."""
        return self._dual is not None and self._dual.placed

    # --- elements ---

    @property
    def view(self) -> HostView:
        """The host's view of the memory; below sparse nodes of the cells of the region that may store values."""
        if self._view is not None and self._view_stays:
            return self._view
        region, shape = self.tree.region, self.storage_shape
        self._view_stays = region is None and self.sparse_path is None
        if region is not None and shape:
            shape = (min(region.extent, shape[0]), *shape[1:])
        if self._view is None or self._view.shape != shape:
            part = part_name(self.key, self.role)
            self._view = view_of(self.dtype, shape, self.element_shape, self.addresses, part)
        return self._view

    def _addresses(self, key: object, activate: bool = False) -> list[int]:
        layout = self.addresses
        index = element_index(key, self.shape, self._origin, f"field `{self.name}`")
        if self.sparse_path is not None:
            index = sparse_contents.stored_index(self.sparse_path, index, activate)
        base = cell_offset(layout, index, NUMBERS) or 0
        return [base + c for c in layout.components]

    @property
    def _element_places(self) -> elements.Places | None:
        """Return the layout for fast access to single elements, if there is one."""
        if self._fast_layout is None:
            regular = self.sparse_path is None and not self.lies_apart
            layout = elements.places_of(self.dtype, self.shape, self.addresses) if regular else None
            self._fast_layout = (layout,)
        return self._fast_layout[0]

    def _address(self, key: object) -> int | None:
        """Return the address of an element whose components are adjacent; None: see `_addresses`."""
        places = self._element_places
        return None if places is None or places.form is None else places.address(key)

    def _memory_of(self, component: int) -> ScalarField:
        """Return the field whose memory holds a component: this one, or the component's own if it is placed apart."""
        return self

    def _read(self, address: int) -> bool | int | float:
        return elements.read(self.tree.allocation, self.dtype, 1, address)[0]

    def _write(self, address: int, *values: object) -> None:
        """Write adjacent numbers."""
        data = elements.packed(elements.form_of(self.dtype, len(values)), self.dtype, values)
        raw = numpy_transfer.bytes_of(self.dtype.array(values)) if data is None else memoryview(data)
        self.tree.allocation.write(address, raw, self.view.part)

    def __getitem__(self, key: object) -> Any:
        address = self._address(key)
        value = self._read(self._addresses(key)[0] if address is None else address)
        if context.recorder() is not None:
            return traced_numbers.read(self, key, (value,))[0]
        return plain_python.placed(value, self, key) if plain_python.state.running else value

    def __setitem__(self, key: object, value: object) -> None:
        if not scalar.is_number(value):
            value = without_axes(value)
            if not scalar.is_number(value):
                raise SpirogradTypeError(f"an element of field `{self.name}` is a {self.dtype}, not {scalar.describe(value)}")
        address = self._address(key)
        if address is None:
            address = self._addresses(key, activate=True)[0]
        value, numbers = traced_numbers.split(value, ())
        shadows.host_write(self, key, numbers=numbers)
        self._write(address, value)

    def clear_element(self, key: object, component: int | None) -> None:
        """Set the element at index ``key``, or one component of it, to zero."""
        for k, address in enumerate(self._addresses(key)):
            if component in (None, k):
                self._memory_of(k)._write(address, 0)

    # --- whole contents ---

    def fill_at_first(self, value: object) -> None:
        """Set all elements to ``value`` when they get their memory; None leaves them 0. Raises SpirogradTypeError for values that no
        element can have."""
        self._initial = None if value is None else self._filling(value)

    def write_initial(self) -> None:
        """Write what `fill_at_first` asked for to new memory. Raises SpirogradRuntimeError for fields below sparse nodes."""
        if self._initial is None:
            return
        if self.sparse_path is not None:
            self.take_name()
            problem = f"field `{self.name}` is below a sparse node, so it has no element yet that `fill` could set"
            raise SpirogradRuntimeError(f"{problem}: omit `fill`, and set elements where they are activated")
        numpy_transfer.fill(self.tree.allocation, self.view, self._initial)

    def _for_all(self, array: object) -> object:
        if self.batch is None:
            return array
        data: Array = np.asarray(array)
        is_of_one = data.shape == (*self.shape_in_kernels, *self.element_shape)
        return np.broadcast_to(data, (self.batch.size, *data.shape)) if is_of_one else data

    def _subject(self) -> str:
        self.take_name()
        return f"field `{self.name}`"

    def _filling(self, value: object) -> Number | Array:
        value = without_axes(value)
        if not scalar.is_number(value):
            raise SpirogradTypeError(f"field `{self.name}` is filled with a number, not {scalar.describe(value)}")
        return value

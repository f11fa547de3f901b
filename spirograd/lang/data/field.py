"""Fields: global data that lives in field trees. Scalars, vectors and matrices, structs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradIndexError, SpirogradRuntimeError, SpirogradTypeError
from spirograd.ir.nodes import FieldRef, Layout
from spirograd.lang import ops, scalar
from spirograd.lang.data import transfer, tree
from spirograd.lang.data.enums import Layout as Arrangement
from spirograd.lang.data.layout import Digit, terms_of
from spirograd.lang.data.transfer import Array, HostView
from spirograd.lang.data.tree import Place, SNode, Tree
from spirograd.lang.scalar import Value

_keys = itertools.count(1)
_UNPLACED = "<field without a place: declare it with `shape=`, or put it into a tree with `.place`>"
BuildElement = Callable[[Sequence[Any], tuple[int, ...], Callable[[int, Any], None]], Any]


def shape_tuple(shape: Any) -> tuple[int, ...]:
    """A shape as users give it, an int or a sequence, as a tuple; raises SpirogradRuntimeError unless all extents are positive."""
    extents = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    for axis, e in enumerate(extents):
        if not isinstance(e, (int, np.integer)) or e < 1:
            raise SpirogradRuntimeError(f"every extent of a field must be a positive integer, got {e!r} on axis {axis}")
    return tuple(int(e) for e in extents)


def element_index(key: Any, shape: tuple[int, ...], origin: tuple[int, ...], what: str) -> tuple[int, ...]:
    """The index of one element from 0, from what stands in brackets in Python scope."""
    parts: list[Any] = []
    for k in key if isinstance(key, tuple) else (key,):
        parts += k.entries if hasattr(k, "entries") else [] if k is None else [k]
    if any(isinstance(k, slice) for k in parts):
        raise SpirogradTypeError(f"{what} cannot be sliced", None, "`.to_numpy()` gives an array that can")
    if len(parts) != len(shape):
        hint = "write `f[None]`" if not shape else ""
        raise SpirogradIndexError(f"{what} with {len(shape)} axes is indexed with {len(parts)} indices: {key!r}", None, hint)
    out = []
    for axis, (k, extent) in enumerate(zip(parts, shape)):
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
            raise SpirogradTypeError(f"an index of {what} is an integer, got {k!r}")
        low = origin[axis] if origin else 0
        if not low <= k < low + extent:
            raise SpirogradIndexError(f"index {k} is out of range on axis {axis} of {what}: {low} to {low + extent - 1} are valid")
        out.append(int(k) - low)
    return tuple(out)


def indices_of(digits: Sequence[Digit], ndim: int, origin: Sequence[int], counter: Value) -> list[Value]:
    """The index of the cell that a loop counter stands for, as run-time values; see `SNode.decode`."""
    out: list[Any] = [origin[axis] if origin else 0 for axis in range(ndim)]
    for axis, div, mod, mul in digits:
        digit: Any = counter if div == 1 else scalar.raw_div(counter, div)
        digit = scalar.raw_mod(digit, mod) if mod else digit
        digit = digit if mul == 1 else scalar.mul(digit, mul)
        out[axis] = digit if isinstance(out[axis], int) and out[axis] == 0 else scalar.add(digit, out[axis])
    return [scalar.cast(v, counter.dtype) for v in out]


class Field:
    """What all fields have in common. ``shape``: of the index space, without that of the elements."""

    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.snode.above.shape if self.snode.above is not None else ()

    @property
    def snode(self) -> SNode:
        """The place of the (first) scalar in its tree; raises SpirogradRuntimeError if it has none."""
        raise NotImplementedError

    def parent(self, n: int = 1) -> SNode | None:
        """The node ``n`` levels above the place of this field."""
        return self.snode.parent(n)

    @property
    def tree(self) -> Tree:
        return self.snode.tree

    @property
    def origin(self) -> tuple[int, ...]:
        """The smallest index of each axis; empty means zeros."""
        raise NotImplementedError

    def loop_shape(self) -> tuple[int, ...]:
        """The extents of a loop over this field."""
        return self.shape

    def decode(self) -> list[Digit]:
        """Digits (axis, div, mod, mul) that turn a loop counter into an index in memory order (without `origin`): `SNode.decode`."""
        above = self.snode.above
        assert above is not None
        return above.decode()

    def loop_order(self, counter: Value) -> list[Value]:
        """The index that a loop counter stands for, such that neighbouring counts touch neighbouring memory; offsets are included."""
        return indices_of(self.decode(), len(self.shape), self.origin, counter)

    def __iter__(self) -> Any:
        raise SpirogradTypeError("a loop over a field works inside kernels only", None, "`.to_numpy()` gives an array to iterate over")


class ScalarField(Field):
    """A field of scalars of ``dtype``; base of `MatrixField`. ``role``: "primal", "grad" or "dual"."""

    element_shape: tuple[int, ...] = ()

    def __init__(
        self,
        dtype: Any,
        name: str = "",
        needs_grad: bool = False,
        needs_dual: bool = False,
        *,
        role: str = "primal",
        primal: ScalarField | None = None,
    ) -> None:
        self.dtype: DType = ops.as_dtype(dtype)
        if (needs_grad or needs_dual) and not self.dtype.is_float:
            raise SpirogradRuntimeError(f"only fields of floats have gradients, not of {self.dtype}")
        self.key: int = primal.key if primal is not None else next(_keys)
        self.name = name or (f"field{self.key}" if primal is None else f"{primal.name}.{role}")
        self.needs_grad = needs_grad
        self.needs_dual = needs_dual
        self.role = role
        self.primal = primal
        self._origin: tuple[int, ...] = ()
        self._places: list[Place] = []
        self._grad: ScalarField | None = None
        self._dual: ScalarField | None = None
        self._ref: FieldRef | None = None
        self._view: HostView | None = None

    def _partner(self, role: str) -> ScalarField:
        return ScalarField(self.dtype, role=role, primal=self)

    def __repr__(self) -> str:
        return f"<field `{self.name}` of {self.dtype}>"

    def __sg_describe__(self) -> str:
        return f"the field `{self.name}`"

    def __str__(self) -> str:
        return str(self.to_numpy()) if self.placed else _UNPLACED

    # --- place ---

    @property
    def components(self) -> int:
        """Scalars per element."""
        return math.prod(self.element_shape)

    @property
    def placed(self) -> bool:
        return len(self._places) == self.components

    @property
    def snode(self) -> SNode:
        if not self.placed:
            raise SpirogradRuntimeError(
                f"field `{self.name}` has no place yet: declare it with `shape=`, or put it into a tree with `.place`"
            )
        return self._places[0]

    @property
    def origin(self) -> tuple[int, ...]:
        return self._origin

    def place_in(self, node: SNode, origin: tuple[int, ...]) -> None:
        """Give every scalar of an element a place in the cells of ``node``."""
        self.place_components(range(self.components), node, origin)

    def place_components(self, components: Sequence[int], node: SNode, origin: tuple[int, ...]) -> None:
        """Give some scalars of an element a place in the cells of ``node``."""
        for c in components:
            if any(p.component == c for p in self._places):
                raise SpirogradRuntimeError(f"field `{self.name}` has a place already")
            self._places.append(node.add_place(self, c, self.dtype))
        self._places.sort(key=lambda p: p.component)
        self._origin = origin

    def check_partners(self) -> None:
        """Raise if a gradient was asked for and has no place, or a component has none."""
        if not self.placed:
            raise SpirogradRuntimeError(f"field `{self.name}`: {self.components - len(self._places)} of its components have no place")
        for wanted, partner, what in ((self.needs_grad, self._grad, "grad"), (self.needs_dual, self._dual, "dual")):
            if wanted and (partner is None or not partner.placed):
                raise SpirogradRuntimeError(
                    f"field `{self.name}` has needs_{what}=True, but its {what} has no place: place `{self.name}.{what}` too, "
                    f"call `lazy_{what}()` on the root, or declare the field with `shape=`"
                )

    @property
    def layout(self) -> Layout:
        """Where the elements lie in the buffer of the tree; closes the tree."""
        above = self.snode.above
        assert above is not None
        self.tree.close()
        terms = terms_of(above.path, above.axis_numbers)
        for p in self._places[1:]:
            other = p.above
            assert other is not None
            if p.tree is not self.tree or other.shape != above.shape or terms_of(other.path, other.axis_numbers) != terms:
                raise SpirogradRuntimeError(
                    f"the components of field `{self.name}` lie at different strides: place them under nodes of one shape "
                    "and beside the same kind of neighbours"
                )
        return Layout(terms, tuple(p.byte_offset for p in self._places), self._origin)

    def refs(self, role: str = "primal") -> FieldRef:
        """How kernels refer to this field ("primal"), its gradient ("grad") or its tangent ("dual")."""
        if role != "primal":
            partner = self.grad if role == "grad" else self.dual
            if partner is None or not partner.placed:
                raise SpirogradRuntimeError(f"field `{self.name}` has no {role}: declare it with `needs_{role}=True`")
            return partner.refs()
        if self._ref is None:
            layout = self.layout
            self._ref = FieldRef(self.name, self.tree.id, self.key, self.dtype, self.shape, self.element_shape, layout, self.role)
        return self._ref

    # --- gradients ---

    @property
    def grad(self) -> ScalarField | None:
        """The field of gradients, which may have no place (see `has_grad`); None for integers and for gradients themselves."""
        if self._grad is None and self.role == "primal" and self.dtype.is_float:
            self._grad = self._partner("grad")
        return self._grad

    @property
    def dual(self) -> ScalarField | None:
        """The field of tangents of forward mode, which may have no place (see `has_dual`); None as of `grad`."""
        if self._dual is None and self.role == "primal" and self.dtype.is_float:
            self._dual = self._partner("dual")
        return self._dual

    def has_grad(self) -> bool:
        """Whether there is memory for gradients."""
        return self._grad is not None and self._grad.placed

    def has_dual(self) -> bool:
        """Whether there is memory for tangents."""
        return self._dual is not None and self._dual.placed

    # --- elements ---

    @property
    def view(self) -> HostView:
        """The host's view of the memory."""
        if self._view is None:
            self._view = transfer.view_of(self.dtype, self.shape, self.element_shape, self.refs().layout)
        return self._view

    def _addresses(self, key: Any) -> list[int]:
        layout = self.refs().layout
        index = element_index(key, self.shape, self._origin, f"field `{self.name}`")
        base = sum((index[t.axis] // t.div % t.mod if t.mod else index[t.axis] // t.div) * t.stride for t in layout.terms)
        return [base + c for c in layout.components]

    def _read(self, address: int) -> Any:
        out = np.empty(1, self.dtype.np)
        self.tree.allocation.read_into(address, transfer.bytes_of(out))
        return out[0].item()

    def _write(self, address: int, value: Any) -> None:
        with np.errstate(all="ignore"):
            data = np.asarray([value]).astype(self.dtype.np)
        self.tree.allocation.write(address, transfer.bytes_of(data))

    def __getitem__(self, key: Any) -> Any:
        return self._read(self._addresses(key)[0])

    def __setitem__(self, key: Any, value: Any) -> None:
        if not scalar.is_number(value):
            raise SpirogradTypeError(f"an element of field `{self.name}` is a {self.dtype}, not {scalar.describe(value)}")
        self._write(self._addresses(key)[0], value)

    # --- whole contents ---

    def _number(self, value: Any) -> Any:
        if not scalar.is_number(value):
            raise SpirogradTypeError(f"field `{self.name}` is filled with a number, not {scalar.describe(value)}")
        return value

    def fill(self, value: Any) -> None:
        """Set all elements to ``value``."""
        transfer.fill(self.tree.allocation, self.view, self._number(value))

    def copy_from(self, other: Any) -> None:
        """Take over the contents of another field or array of the same shape; raises ValueError if shapes differ."""
        if not hasattr(other, "view") or not hasattr(other, "tree"):
            raise SpirogradTypeError(f"`copy_from` takes a field, not {scalar.describe(other)}")
        if other.shape != self.shape or other.element_shape != self.element_shape:
            raise ValueError(f"field `{self.name}` of shape {self.shape} cannot copy from shape {other.shape}")
        transfer.copy(self.tree.allocation, self.view, other.tree.allocation, other.view)

    def to_numpy(self, dtype: Any = None, *, copy: bool = True) -> Array:
        """The contents as an array of ``shape`` + element shape, converted to ``dtype`` if given.

        ``copy=False`` asks for an array over the memory itself and raises ValueError where there is none.
        """
        if copy:
            return converted(transfer.read(self.tree.allocation, self.view), dtype)
        return shared_array(self.tree.allocation, self.view, dtype)

    def from_numpy(self, array: Any) -> None:
        """Set the contents; raises ValueError if the shape is not ``shape`` + element shape."""
        transfer.write(self.tree.allocation, self.view, matching(array, self.view, f"field `{self.name}`"))

    def to_torch(self, device: Any = None, *, copy: bool = True) -> Any:
        """The contents as a torch tensor on ``device`` (the CPU by default)."""
        return transfer.to_torch(self.to_numpy(copy=copy), device)

    def from_torch(self, tensor: Any) -> None:
        """Set the contents from a torch tensor on any device."""
        self.from_numpy(transfer.from_torch(tensor))

    def __dlpack__(self, **options: Any) -> Any:
        return exported(self.tree.allocation, self.view).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def to_dlpack(self) -> Any:
        """A DLPack capsule: of the memory itself where the host can address it, else of a copy on the host."""
        return self.__dlpack__()


def converted(array: Array, dtype: Any) -> Array:
    """``array`` as a NumPy dtype or one of ours; as it is for None."""
    return array if dtype is None else array.astype(dtype.np if isinstance(dtype, DType) else dtype)


def shared_array(allocation: Any, view: HostView, dtype: Any) -> Array:
    """An array over the memory itself, or ValueError."""
    out = transfer.shared(allocation, view)
    if out is None or (dtype is not None and converted(out[:0], dtype).dtype != out.dtype):
        raise ValueError("`copy=False` needs memory that the host can address, in one regular range, and no conversion")
    return out


def exported(allocation: Any, view: HostView) -> Array:
    """The memory itself where the host can address it, else a copy."""
    out = transfer.shared(allocation, view)
    return transfer.read(allocation, view) if out is None else out


def matching(array: Any, view: HostView, what: str) -> Array:
    """``array`` as NumPy has it, with the shape of ``view``; a trailing axis of 1 is dropped from matrices of one column."""
    out: Array = np.asarray(array)
    if len(view.element_shape) == 1 and out.shape == (*view.full_shape, 1):
        out = out[..., 0]
    if out.shape != view.full_shape:
        raise ValueError(f"{what} needs an array of shape {view.full_shape}, got {out.shape}")
    return out


class MatrixField(ScalarField):
    """A field of vectors (``element_shape`` (n,)) or matrices (n, m)."""

    def __init__(
        self,
        element_shape: tuple[int, ...],
        dtype: Any,
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

    def _partner(self, role: str) -> ScalarField:
        return MatrixField(self.element_shape, self.dtype, self._build, arrangement=self.arrangement, role=role, primal=self)

    @property
    def n(self) -> int:
        return self.element_shape[0]

    @property
    def m(self) -> int:
        return self.element_shape[1] if len(self.element_shape) == 2 else 1

    @property
    def ndim(self) -> int:
        return len(self.element_shape)

    def __repr__(self) -> str:
        return f"<field `{self.name}` of {'x'.join(map(str, self.element_shape))} {self.dtype}>"

    def get_scalar_field(self, *indices: int) -> ComponentField:
        """One component of every element, as a scalar field over the same memory."""
        at = element_index(indices, self.element_shape, (), f"the elements of field `{self.name}`")
        return ComponentField(self, int(np.ravel_multi_index(at, self.element_shape)))

    def __getitem__(self, key: Any) -> Any:
        addresses = self._addresses(key)
        return self._build([self._read(a) for a in addresses], self.element_shape, lambda k, v: self._write(addresses[k], v))

    def __setitem__(self, key: Any, value: Any) -> None:
        data = np.broadcast_to(self._number(value), self.element_shape).reshape(-1)
        for a, v in zip(self._addresses(key), data):
            self._write(a, v)

    def _number(self, value: Any) -> Any:
        if scalar.is_number(value):
            return value
        data: Array = np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)
        if data.shape != self.element_shape or data.dtype.kind not in "biuf":
            raise SpirogradTypeError(f"an element of field `{self.name}` has shape {self.element_shape}, got {scalar.describe(value)}")
        return data

    def to_numpy(self, keep_dims: Any = False, dtype: Any = None, *, copy: bool = True) -> Array:  # type: ignore[override]
        """As of `ScalarField`; ``keep_dims`` gives vectors a trailing axis of 1."""
        out = super().to_numpy(dtype, copy=copy)
        return out[..., None] if keep_dims and self.ndim == 1 else out

    def to_torch(self, device: Any = None, keep_dims: bool = False, *, copy: bool = True) -> Any:
        """The contents as a torch tensor on ``device``; ``keep_dims`` gives vectors a trailing axis of 1."""
        return transfer.to_torch(self.to_numpy(keep_dims, copy=copy), device)


class ComponentField(ScalarField):
    """One component of a matrix field, seen as a scalar field. It shares the memory, and can be placed on its own."""

    def __init__(self, whole: MatrixField, component: int) -> None:
        super().__init__(whole.dtype, f"{whole.name}[{component}]", role=whole.role)
        self.key = whole.key
        self.whole = whole
        self.component = component
        self._partners: dict[str, ComponentField] = {}

    @property
    def placed(self) -> bool:
        return any(p.component == self.component for p in self.whole._places)

    @property
    def snode(self) -> SNode:
        found = [p for p in self.whole._places if p.component == self.component]
        return found[0] if found else super().snode

    @property
    def origin(self) -> tuple[int, ...]:
        return self.whole.origin

    def place_in(self, node: SNode, origin: tuple[int, ...]) -> None:
        self.whole.place_components([self.component], node, origin)

    @property
    def layout(self) -> Layout:
        self._origin = self.whole.origin
        self._places = [p for p in self.whole._places if p.component == self.component]
        return super().layout

    def _of(self, whole: ScalarField | None, role: str) -> ComponentField | None:
        if not isinstance(whole, MatrixField):
            return None
        return self._partners.setdefault(role, ComponentField(whole, self.component))

    @property
    def grad(self) -> ScalarField | None:
        return self._of(self.whole.grad, "grad")

    @property
    def dual(self) -> ScalarField | None:
        return self._of(self.whole.dual, "dual")

    def has_grad(self) -> bool:
        return self.whole.has_grad()

    def has_dual(self) -> bool:
        return self.whole.has_dual()


class StructField(Field):
    """A field of structs: ``members`` are fields of their own, also reachable as attributes."""

    def __init__(
        self,
        members: Mapping[str, Any],
        methods: Mapping[str, Callable[..., Any]],
        make: Callable[..., Any],
        name: str,
        arrangement: Arrangement,
        struct_type: Any = None,
    ) -> None:
        self.members: dict[str, Any] = dict(members)
        self.methods = methods
        self.name = name
        self.arrangement = arrangement
        self.dtype = struct_type
        self._make = make

    def make_value(self, members: Mapping[str, Any]) -> Any:
        """A struct value with these members and the methods of the elements of this field."""
        return self._make(members, self.methods)

    @property
    def keys(self) -> list[str]:
        return list(self.members)

    def get_member_field(self, name: str) -> Any:
        """The field of one member; raises SpirogradTypeError if there is none."""
        if name not in self.members:
            raise SpirogradTypeError(f"the struct field has no member `{name}`", None, f"it has {', '.join(self.members)}")
        return self.members[name]

    def __getattr__(self, name: str) -> Any:
        members = self.__dict__.get("members", {})
        if name in members:
            return members[name]
        raise AttributeError(f"the struct field has no member `{name}`; it has {', '.join(members)}")

    def __repr__(self) -> str:
        return f"<field of structs with members {', '.join(self.members)}>"

    def __str__(self) -> str:
        return str(self.to_numpy()) if self.placed else _UNPLACED

    @property
    def _first(self) -> Any:
        return next(iter(self.members.values()))

    @property
    def placed(self) -> bool:
        return all(m.placed for m in self.members.values())

    @property
    def snode(self) -> SNode:
        node: SNode = self._first.snode
        return node

    @property
    def origin(self) -> tuple[int, ...]:
        origin: tuple[int, ...] = self._first.origin
        return origin

    def place_in(self, node: SNode, origin: tuple[int, ...]) -> None:
        for m in self.members.values():
            m.place_in(node, origin)

    def _partner(self, role: str) -> StructField | None:
        found = {k: getattr(m, role) for k, m in self.members.items()}
        found = {k: m for k, m in found.items() if m is not None}
        return StructField(found, self.methods, self._make, f"{self.name}.{role}", self.arrangement) if found else None

    @property
    def grad(self) -> StructField | None:
        """The gradients of the members that have them; None if none has."""
        return self._partner("grad")

    @property
    def dual(self) -> StructField | None:
        """The tangents of the members that have them; None if none has."""
        return self._partner("dual")

    def has_grad(self) -> bool:
        """Whether a member has memory for gradients."""
        return any(m.has_grad() for m in self.members.values())

    def has_dual(self) -> bool:
        """Whether a member has memory for tangents."""
        return any(m.has_dual() for m in self.members.values())

    def __getitem__(self, key: Any) -> Any:
        def write(name: str, value: Any) -> None:
            self.members[name][key] = value

        return self._make({name: m[key] for name, m in self.members.items()}, self.methods, write)

    def __setitem__(self, key: Any, value: Any) -> None:
        entries = value.entries if hasattr(value, "entries") else value
        if not isinstance(entries, Mapping) or set(entries) != set(self.members):
            members = ", ".join(self.members)
            raise SpirogradTypeError(f"an element of the field is a struct with members {members}, got {scalar.describe(value)}")
        for name, m in self.members.items():
            m[key] = entries[name]

    def fill(self, value: Any) -> None:
        """Set all elements to a struct, or every scalar to a number."""
        entries = value.entries if hasattr(value, "entries") else value
        for name, m in self.members.items():
            m.fill(entries[name] if isinstance(entries, Mapping) else entries)

    def copy_from(self, other: Any) -> None:
        """Take over the contents of another field with the same members and shape."""
        if not isinstance(other, StructField) or set(other.members) != set(self.members):
            raise SpirogradTypeError(f"`copy_from` needs a field of structs with members {', '.join(self.members)}")
        for name, m in self.members.items():
            m.copy_from(other.members[name])

    def to_numpy(self, *, copy: bool = True) -> dict[str, Any]:
        """The contents as a dict of arrays."""
        return {name: m.to_numpy(copy=copy) for name, m in self.members.items()}

    def from_numpy(self, arrays: Mapping[str, Any]) -> None:
        """Set the contents from a dict of arrays."""
        for name, array in arrays.items():
            self.get_member_field(name).from_numpy(array)

    def to_torch(self, device: Any = None) -> dict[str, Any]:
        """The contents as a dict of torch tensors."""
        return {name: m.to_torch(device) for name, m in self.members.items()}

    def from_torch(self, tensors: Mapping[str, Any]) -> None:
        """Set the contents from a dict of torch tensors."""
        for name, t in tensors.items():
            self.get_member_field(name).from_torch(t)


# --- making fields ---


def _scalars(f: Any) -> list[ScalarField]:
    if isinstance(f, StructField):
        return [s for m in f.members.values() for s in _scalars(m)]
    if isinstance(f, MatrixField):
        return [ComponentField(f, c) for c in range(f.components)]
    return [f]


def _partners(f: Any, role: str) -> Any:
    """The gradients (tangents) of those members of ``f`` that asked for them, or None."""
    if isinstance(f, StructField):
        found = {k: _partners(m, role) for k, m in f.members.items()}
        found = {k: p for k, p in found.items() if p is not None}
        return StructField(found, f.methods, f._make, f.name, f.arrangement) if found else None
    return (f.grad if role == "grad" else f.dual) if getattr(f, f"needs_{role}") else None


def place_by_shape(f: Any, shape: Any, order: str | None, offset: Any) -> None:
    """Place a new field, and its gradients, under `root`: nothing happens without a shape."""
    if shape is None:
        if offset is not None or order is not None:
            raise SpirogradRuntimeError("`offset` and `order` need a `shape`; a field placed by hand takes `offset` in `.place`")
        return
    extents = shape_tuple(shape)
    axes = _axis_order(order, len(extents))
    arrangement = getattr(f, "arrangement", Arrangement.AOS)
    for whole in (f, _partners(f, "grad"), _partners(f, "dual")):
        if whole is not None:
            for part in _scalars(whole) if arrangement is Arrangement.SOA else [whole]:
                _dense_levels(extents, axes, order).place(part, offset=offset)


def _axis_order(order: str | None, ndim: int) -> list[int]:
    """The axes in memory order, slowest first."""
    if order is None:
        return list(range(ndim))
    axes = [ord(c) - ord("i") for c in order]
    if sorted(axes) != list(range(ndim)):
        expected = "".join(chr(ord("i") + a) for a in range(ndim))
        raise SpirogradRuntimeError(f"`order` must be a permutation of {expected!r}, got {order!r}")
    return axes


def _dense_levels(extents: tuple[int, ...], axes: list[int], order: str | None) -> Any:
    if not extents:
        return tree.root
    if order is None:
        return tree.root.dense(axes, extents)
    node: Any = tree.root
    for a in axes:
        node = node.dense(a, extents[a])
    return node


def field(
    dtype: Any,
    shape: Any = None,
    order: str | None = None,
    name: str = "",
    offset: Any = None,
    needs_grad: bool = False,
    needs_dual: bool = False,
) -> Any:
    """A field of scalars, or of the elements of a vector, matrix or struct type.

    ``shape``: extents of the index space; without it the field must be placed by hand. ``order``: the axes from slowest to fastest in
    memory, as ``"ji"``. ``offset``: the smallest index of each axis. Raises SpirogradRuntimeError for bad shapes and orders.
    """
    if hasattr(dtype, "unplaced_field"):
        f = dtype.unplaced_field(name, needs_grad, needs_dual, Arrangement.AOS)
    else:
        f = ScalarField(dtype, name, needs_grad, needs_dual)
    place_by_shape(f, shape, order, offset)
    return f


def matrix_field(
    element_shape: tuple[int, ...],
    dtype: Any,
    build: BuildElement,
    shape: Any = None,
    order: str | None = None,
    name: str = "",
    offset: Any = None,
    needs_grad: bool = False,
    needs_dual: bool = False,
    layout: Arrangement = Arrangement.AOS,
) -> MatrixField:
    """A field of vectors or matrices; options as of `field`. SOA gives each component an array of its own."""
    f = MatrixField(element_shape, dtype, build, name, needs_grad, needs_dual, layout)
    place_by_shape(f, shape, order, offset)
    return f

"""Structs: named members of scalar, vector, matrix or struct type, with methods."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.base.near_names import NearNamesOfClass, NoAttribute
from spirograd.lang import scalar
from spirograd.lang.annotations import MatrixType, element_type
from spirograd.lang.context import current_trace
from spirograd.lang.data import field as fields
from spirograd.lang.data.enums import Layout
from spirograd.lang.data.index_space import IndexSpace
from spirograd.lang.host_arrays import host_array, without_axes
from spirograd.lang.leaves import AggregateType, ValueType, as_type, build, host_types, leaf_dtypes, numbers_of, typed
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Scalar, Value, describe, type_error

if TYPE_CHECKING:
    from typing import TypedDict

    from typing_extensions import Unpack

    class StructFieldOptions(TypedDict, total=False):
        """Options of `StructType.field`."""

        name: str
        offset: object
        needs_grad: bool
        needs_dual: bool
        layout: Layout
        order: str | None


Methods = Mapping[str, Callable[..., object]]
_RESERVED = frozenset({"entries", "methods", "with_member", "with_entries", "to_dict", "field"})


def _member(value: object) -> object:
    """Return a member as the language represents it: lists become vectors, dicts become structs."""
    value = without_axes(value)
    if isinstance(value, (Matrix, Struct)) or scalar.is_scalar(value):
        return value
    if isinstance(value, Mapping):
        return Struct(value)
    if isinstance(value, (list, tuple)) or host_array(value) is not None:
        return Matrix(value)
    raise type_error(f"a member of a struct is a number, vector, matrix or struct, not {scalar.describe(value)}")


def _like(given: object, old: object, name: str) -> object:
    """Return ``given`` in the type of the member that it replaces."""
    value = _member(given)
    if isinstance(old, Matrix):
        return old.filled(value) if scalar.is_scalar(value) or isinstance(value, Matrix) else _misfit(name, old, value)
    if isinstance(old, Struct):
        if not isinstance(value, Struct) or set(value.entries) != set(old.entries):
            _misfit(name, old, value)
        return old.with_entries({k: _like(value.entries[k], v, k) for k, v in old.entries.items()})
    if not scalar.is_scalar(value):
        _misfit(name, old, value)
    if isinstance(old, Value):
        return scalar.cast(value, old.dtype)
    if isinstance(old, np.generic) or current_trace() is not None:
        return typed(value, scalar.literal_type(old))
    return value


def _misfit(name: str, old: object, value: object) -> NoReturn:
    raise type_error(f"member `{name}` is {scalar.describe(old)} and cannot be assigned {scalar.describe(value)}")


class Struct(metaclass=NearNamesOfClass):
    """A struct value: ``Struct(a=1, b=[1, 2])`` or ``Struct({"a": 1})``. Members are attributes and items.

    In Python scope members can be assigned; in kernels structs are values, and the front end uses `with_member`.
    Names of members take precedence over methods; a few names that the class itself needs raise SpirogradTypeError.
    """

    __slots__ = ("__weakref__", "_members", "_methods", "_write")
    __sg_traceable__ = True
    _members: dict[str, object]
    _methods: Methods
    _write: Callable[[str, object], None] | None

    def __init__(self, *args: object, **members: object) -> None:
        if args:
            if len(args) != 1 or members or not isinstance(args[0], (Mapping, Struct)):
                raise type_error("Struct takes one dict, or keyword arguments")
            members = dict(args[0].entries if isinstance(args[0], Struct) else args[0])
        methods = _taken_methods(members)
        _set(self, {check_name(name): _member(value) for name, value in members.items()}, methods)

    @property
    def entries(self) -> dict[str, object]:
        """The members by name."""
        return dict(self._members)

    @property
    def methods(self) -> Methods:
        """Functions that take the struct as their first argument."""
        return self._methods

    def with_entries(self, entries: Mapping[str, object]) -> Struct:
        """Return a struct with the members ``entries``, used as they are, and the methods of this one."""
        return make_struct(entries, self._methods)

    def with_member(self, name: str, value: object) -> Struct:
        """Return a copy in which the member ``name`` is ``value``, converted to the type of the old one."""
        if name not in self._members:
            raise type_error(f"the struct has no member `{name}`", f"it has {', '.join(self._members)}")
        return self.with_entries({**self._members, name: _like(value, self._members[name], name)})

    def __getattr__(self, name: str) -> Any:
        if name in self._members:
            return self._members[name]
        if name in self._methods:
            return types.MethodType(self._methods[name], self)
        if name == "keys":
            return list(self._members)
        if name == "items":
            return self._members.items()
        raise NoAttribute("the struct", name, lambda: [*self._members, *self._methods], "member")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._members, *self._methods})

    def __getitem__(self, name: str) -> Any:
        if name not in self._members:
            raise KeyError(f"the struct has no member `{name}`; it has {', '.join(self._members)}")
        return self._members[name]

    def __setattr__(self, name: str, value: object) -> None:
        new = self.with_member(name, value)._members[name]
        self._members[name] = new
        if self._write is not None:
            self._write(name, new)

    __setitem__ = __setattr__

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct) or set(other._members) != set(self._members):
            return False
        return all(_equal(v, other._members[k]) for k, v in self._members.items())

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        if any(isinstance(leaf, Value) for leaf in _leaves(self)):
            return f"<{self.__sg_describe__()}>"
        return repr(self.to_dict())

    def __sg_describe__(self) -> str:
        return f"a struct with members {', '.join(self._members)}"

    def __reduce__(self) -> tuple[object, ...]:
        return (make_struct, (self._members, dict(self._methods)))

    def __copy__(self) -> Struct:
        return self.with_entries(self._members)

    def to_dict(self, include_methods: bool = False) -> dict[str, Any]:
        """Return the members as a dict of Python numbers, lists and dicts; with ``include_methods`` also the methods, as
        ``__struct_methods``."""
        out: dict[str, object] = {}
        for name, v in self._members.items():
            if isinstance(v, (Matrix, Struct)):
                out[name] = v.to_list() if isinstance(v, Matrix) else v.to_dict()
            else:
                out[name] = v.item() if isinstance(v, np.generic) else v
        if include_methods and self._methods:
            out["__struct_methods"] = dict(self._methods)
        return out

    @classmethod
    def field(
        cls, members: Mapping[str, object], methods: Methods | None = None, shape: object = None, **options: Unpack[StructFieldOptions]
    ) -> fields.StructField:
        """Return a field of structs with ``members`` of these types and with ``methods``; other options as of `field`."""
        return StructType(dict(members), methods).field(shape, **options)


def _set(s: Struct, members: dict[str, object], methods: Methods, write: Callable[[str, object], None] | None = None) -> None:
    object.__setattr__(s, "_members", members)
    object.__setattr__(s, "_methods", methods)
    object.__setattr__(s, "_write", write)


def make_struct(members: Mapping[str, object], methods: Methods, write: Callable[[str, object], None] | None = None) -> Struct:
    """Return a struct with these members, used as they are. ``write(name, value)`` is called when a member is assigned in Python scope."""
    s: Struct = object.__new__(Struct)
    _set(s, dict(members), methods, write)
    return s


def _taken_methods(members: dict[str, object]) -> Methods:
    """Remove the methods from ``members``, and return them."""
    methods = members.pop("__struct_methods", {})
    if not isinstance(methods, Mapping):
        raise type_error(f"the methods of a struct are functions by name, got {describe(methods)}")
    return methods


def check_name(name: object) -> str:
    """Return ``name`` if a member can have that name. Names that are no identifiers are for subscripts: ``s["21"]``."""
    if not isinstance(name, str) or not name:
        raise type_error(f"{name!r} is no name for a member of a struct", "names are strings that are not empty")
    if name in _RESERVED:
        raise type_error(f"a struct cannot have a member called `{name}`", f"these names are taken: {', '.join(sorted(_RESERVED))}")
    return name


def _leaves(x: object) -> list[object]:
    if isinstance(x, Struct):
        return [leaf for v in x._members.values() for leaf in _leaves(v)]
    return list(x.entries) if isinstance(x, Matrix) else [x]


def _equal(a: object, b: object) -> bool:
    same = a == b
    return bool(same.all()) if isinstance(same, Matrix) else bool(same)


class StructType(AggregateType):
    """A struct type: member types by name, and methods. Calling it with positional or keyword arguments makes a value; members that are
    not given are zero.
    """

    __slots__ = ("defaults", "members", "methods", "name")
    __sg_traceable__ = True

    def __init__(self, members: Mapping[str, object], methods: Methods | None = None, name: str = "struct") -> None:
        members = dict(members)
        if methods is not None and not isinstance(methods, Mapping):
            raise type_error(f"the methods of a struct are functions by name, got {describe(methods)}", "pass a shape as `shape=`")
        self.methods: Methods = {**_taken_methods(members), **(methods or {})}
        self.members: dict[str, ValueType] = {check_name(k): as_type(t) for k, t in members.items()}
        self.name = name

    @property
    def dtype(self) -> StructType:
        """The type itself, so that struct types can stand where scalar types do."""
        return self

    def _key(self) -> tuple[object, ...]:
        return (tuple(self.members.items()), tuple(self.methods.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StructType) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(tuple(self.members))

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={t}' for k, t in self.members.items())})"

    def __sg_describe__(self) -> str:
        return f"the type {self!r}"

    def __call__(self, *args: object, **given: object) -> Struct:
        if len(args) == 1 and not given and isinstance(args[0], (Struct, Mapping)):
            given = dict(args[0].entries if isinstance(args[0], Struct) else args[0])
            args = ()
        if len(args) > len(self.members):
            raise type_error(f"{self!r} has {len(self.members)} members, got {len(args)} values")
        for name, value in zip(self.members, args):
            if name in given:
                raise type_error(f"member `{name}` of {self!r} is given twice")
            given[name] = value
        self._check_names(given)
        return self._assemble({name: _construct(t, given.get(name, 0)) for name, t in self.members.items()})

    def _check_names(self, names: Mapping[str, object]) -> None:
        for name in names:
            if name not in self.members:
                raise type_error(f"{self!r} has no member `{name}`", f"it has {', '.join(self.members)}")

    def _assemble(self, members: Mapping[str, object]) -> Struct:
        return make_struct(members, self.methods)

    def cast(self, value: object) -> Struct:
        """Return ``value``, a struct or dict, converted to this type."""
        return self(value)

    def filled_with_scalar(self, value: Scalar) -> Struct:
        """Return a struct with every scalar set to ``value``."""
        return self._assemble({name: _fill(t, value) for name, t in self.members.items()})

    def leaf_dtypes(self) -> tuple[DType, ...]:
        return tuple(d for t in self.members.values() for d in leaf_dtypes(t))

    def host_types(self) -> tuple[type | None, ...]:
        return tuple(kind for t in self.members.values() for kind in host_types(t))

    def build(self, leaves: Sequence[Scalar]) -> Struct:
        members, at = {}, 0
        for name, t in self.members.items():
            count = len(leaf_dtypes(t))
            members[name] = build(t, leaves[at : at + count])
            at += count
        return self._assemble(members)

    def numbers_of(self, value: object) -> list[Scalar]:
        if isinstance(value, Mapping):
            value = Struct(value)
        if not isinstance(value, Struct):
            raise type_error(f"expected {self!r}, got {scalar.describe(value)}")
        missing = [name for name in self.members if name not in value]
        if missing or len(value) != len(self.members):
            raise type_error(f"expected {self!r}, got {scalar.describe(value)}")
        return [number for name, t in self.members.items() for number in numbers_of(t, value[name])]

    def unplaced_field(self, name: str, needs_grad: bool, needs_dual: bool, layout: Layout) -> fields.StructField:
        members: dict[str, fields.MemberField] = {}
        for key, t in self.members.items():
            label = f"{name}.{key}" if name else key
            if isinstance(t, DType):
                members[key] = fields.ScalarField(t, label, needs_grad, needs_dual)
            else:
                members[key] = t.unplaced_field(label, needs_grad, needs_dual, layout)
        struct_field = fields.StructField(members, self.methods, make_struct, name, layout, self)
        struct_field.share(IndexSpace())
        return struct_field

    def field(
        self,
        shape: object = None,
        name: str = "",
        offset: object = None,
        needs_grad: bool = False,
        needs_dual: bool = False,
        layout: Layout = Layout.AOS,
        order: str | None = None,
    ) -> fields.StructField:
        """Return a field of this type. ``layout``: AOS keeps the members of an element together; SOA gives each scalar an array of its own.

        ``shape``, ``offset``, ``needs_grad``, ``needs_dual``, ``order``: as of `field`.
        """
        struct_field = self.unplaced_field(name, needs_grad, needs_dual, layout)
        fields.place_by_shape(struct_field, shape, order, offset)
        return struct_field


def _construct(t: ValueType, value: object) -> object:
    """Return ``value`` as a member of type ``t``; a number fills."""
    value = without_axes(value)
    if isinstance(t, DType):
        if not scalar.is_scalar(value):
            raise type_error(f"expected a number of type {t}, got {scalar.describe(value)}")
        return typed(value, t)
    if scalar.is_scalar(value):
        return _fill(t, value)
    return t(value)  # type: ignore[operator]


def _fill(t: ValueType, value: Scalar) -> object:
    if isinstance(t, DType):
        return typed(value, t)
    return t(value) if isinstance(t, MatrixType) else t.filled_with_scalar(value)  # type: ignore[attr-defined]


def struct(**members: object) -> StructType:
    """Return a struct type: ``types.struct(pos=vec3, mass=f32)``."""
    return StructType(members)


def dataclass(cls: type) -> StructType:
    """Make a struct type of a class, as a decorator. Its annotations become the members, its functions the methods."""
    hints = inspect.get_annotations(cls)
    if any(isinstance(h, str) for h in hints.values()):
        frame = sys._getframe(1)
        hints = {k: v for k, v in typing.get_type_hints(cls, frame.f_globals, frame.f_locals).items() if k in hints}
    for name in hints:
        if name in cls.__dict__:
            message = f"member `{name}` of `{cls.__name__}` has a default"
            raise type_error(message, "members not given are zero; pass other values on construction")
    methods = {k: v for k, v in cls.__dict__.items() if callable(v) and not k.startswith("__") and not isinstance(v, type)}
    return StructType(hints, methods, cls.__name__)


def type_of(value: object) -> ValueType:
    """Return the type of a run-time value, number, vector or struct."""
    if isinstance(value, Matrix):
        return element_type(value.shape, value.dtype)
    if isinstance(value, Struct):
        return StructType({name: type_of(v) for name, v in value.entries.items()}, value.methods)
    return value.dtype if isinstance(value, Value) else scalar.literal_type(value)

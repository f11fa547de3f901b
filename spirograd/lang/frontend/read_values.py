"""The values that a trace reads from outside of its kernel, as text that another process can compare.

`Values` describes values in the order in which they are read. Two series of values with the same texts lead to the same trace: numbers,
strings and the contents of containers are told apart by value, functions and classes by name (the source of functions that are inlined is
compared separately, see `recorded_reads`), and other objects by their class, because what the trace uses of them is read, and described,
as attributes. An object that was described before is described by its number, so that the texts tell which names share an object.

Fields get their text when the trace is complete (`field_text`): before that a field may have no layout.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import hashlib
import types
from collections.abc import Callable, Iterable
from typing import TypeVar, cast

import numpy as np

from spirograd.base.dtypes import DType
from spirograd.lang.annotations import FunctionArgument, MatrixType, NdarrayType, Reference, Template, TripletsType
from spirograd.lang.data.field import MatrixField, StructField
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.scalar_field import Field, ScalarField
from spirograd.lang.frontend.func import BoundFunc, Func
from spirograd.lang.frontend.parameters import array_signature
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import describe
from spirograd.lang.struct import Struct, StructType
from spirograd.lang.tiles import TileType

T = TypeVar("T")
PLAIN = frozenset((bool, int, float, str, bytes, type(None)))
MOST_BITS = 2048  # of an integer, which has a text whatever limit `sys.set_int_max_str_digits` sets
_MOST_VALUES = 20_000  # of one kernel
_LARGEST_ARRAY = 1 << 22  # bytes of a NumPy array
# Special methods that may decide what a trace does with an object, and read anything.
_COMPARING = frozenset(("__eq__", "__ne__", "__hash__"))  # where a trace compares objects, `compares_by_itself` is asked
_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
_DECIDING = frozenset((
    "__lt__", "__le__", "__gt__", "__ge__", "__bool__", "__len__", "__iter__", "__next__", "__reversed__",
    "__contains__", "__getitem__", "__missing__", "__call__", "__index__", "__int__", "__float__", "__complex__",
    "__length_hint__", "__divmod__", "__rdivmod__", "__neg__", "__pos__", "__abs__", "__invert__", "__round__", "__trunc__",
    "__floor__", "__ceil__", "__array__", "__array_ufunc__", "__array_function__",
    *[f"__{kind}{name}__" for name in _OPERATORS for kind in ("", "r", "i")],
))  # fmt: skip
_SHOWING = frozenset(("__str__", "__repr__", "__format__"))  # of enumerations: only texts of these depend on them
_HEAP_TYPE = 1 << 9  # the flag of classes that Python code defines
STANDARD = ("builtins", "typing", "abc", "collections.abc", "contextlib", "os")  # modules of classes that decide what instances are
_GENERATED = "<string>"  # the file of methods that `dataclasses` writes: they read the members, which are described


class Unrecordable(Exception):
    """A trace that depends on something that cannot be compared in another process; the text says on what."""


class Differs(Exception):
    """A value is not the one that was recorded."""


class Values:
    """The values of one trace, with their texts. ``expected``: the texts of an earlier trace; the first text that differs raises
    `Differs`."""

    def __init__(self, expected: list[str] | None = None) -> None:
        self.texts: list[str] = []
        self.objects: list[object] = []
        self._numbers: dict[int, int] = {}
        self._expected = expected

    def number(self, value: object) -> int | None:
        """Return the number of an object that was described."""
        return self._numbers.get(id(value))

    def put(self, text: str) -> None:
        if self._expected is not None:
            at = len(self.texts)
            if at >= len(self._expected) or self._expected[at] != text:
                raise Differs
        self.texts.append(text)

    def add(self, value: object) -> None:
        """Describe a value, and what it holds."""
        kind = type(value)
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise Unrecordable(f"it reads an integer of more than {MOST_BITS} bits")
        if kind in PLAIN:
            self.put(f"{kind.__name__} {value!r}")
            return
        known = self._numbers.get(id(value))
        if known is not None:
            self.put(f"= {known}")
            return
        if len(self.objects) >= _MOST_VALUES:
            raise Unrecordable(f"it reads more than {_MOST_VALUES} values")
        self._numbers[id(value)] = len(self.objects)
        self.objects.append(value)
        text, held = _described(value)
        self.put(text)
        for one in held:
            self.add(one)
        if isinstance(value, Func):  # names that its code reads belong to the function
            self._numbers.setdefault(id(value.function), self._numbers[id(value)])


_Described = tuple[str, Iterable[object]]


_BY_CLASS: dict[type, Callable[[object], _Described]] = {}


def _described(value: object) -> _Described:
    """Return the text of a value, and the values that it holds, which are described after it."""
    for cls in type(value).__mro__:
        describe = _BY_CLASS.get(cls)
        if describe is not None:
            return describe(value)
    return _other(value)


def _describes(*classes: type) -> Callable[[Callable[[T], _Described]], None]:
    """Have a function describe the instances of ``classes``, sooner than `functools.singledispatch`, which is slow in a new process."""

    def register(describe: Callable[[T], _Described]) -> None:
        _BY_CLASS.update(dict.fromkeys(classes, cast("Callable[[object], _Described]", describe)))

    return register


def _name(value: type | types.FunctionType) -> str:
    return f"{value.__module__}.{value.__qualname__}"


@_describes(type)
def _(value: type) -> _Described:
    if type(value) not in (type, abc.ABCMeta, enum.EnumMeta) and not value.__module__.startswith("spirograd."):
        raise Unrecordable(f"it reads the class `{value.__name__}`, whose metaclass may do anything")
    if any("__subclasshook__" in vars(base) for base in value.__mro__ if base.__module__ not in STANDARD):
        raise Unrecordable(f"it reads the class `{value.__name__}`, which decides itself what its instances are")
    return f"class {_name(value)}", list(value) if isinstance(value, enum.EnumMeta) else ()


@_describes(types.ModuleType)
def _(value: types.ModuleType) -> _Described:
    return f"module {value.__name__}", ()


@_describes(types.FunctionType)
def _(value: types.FunctionType) -> _Described:
    return f"function {_name(value)}", (value.__defaults__, value.__kwdefaults__)


@_describes(types.MethodType)
def _(value: types.MethodType) -> _Described:
    return "method", (value.__func__, value.__self__)


@_describes(types.BuiltinFunctionType)
def _(value: types.BuiltinFunctionType) -> _Described:
    owner = value.__self__
    return f"builtin {value.__qualname__}", () if owner is None or isinstance(owner, types.ModuleType) else (owner,)


@_describes(functools.partial)
def _(value: functools.partial[object]) -> _Described:
    return "partial", (value.func, value.args, value.keywords)


@_describes(Func)
def _(value: Func) -> _Described:
    function = value.function
    assert isinstance(function, types.FunctionType)
    return f"{type(value).__name__} {_name(function)}", (function.__defaults__, function.__kwdefaults__)


@_describes(BoundFunc)
def _(value: BoundFunc) -> _Described:
    return "bound", (value.func, value.instance)


@_describes(enum.Enum)
def _(value: enum.Enum) -> _Described:
    if _decides(type(value)):
        raise Unrecordable(f"it reads {_called(value)}, which may behave in any way")
    return f"enum {_name(type(value))}.{value.name}", (value.value,)


# --- numbers and containers ----------------------------------------------------------------------------------------------------


@_describes(np.generic)
def _(value: object) -> _Described:
    assert isinstance(value, np.generic)
    return f"number {value.dtype.str} {value.tobytes().hex()}", ()


@_describes(np.dtype)
def _(value: object) -> _Described:
    assert isinstance(value, np.dtype)
    return f"dtype {value.str}", ()


@_describes(np.ufunc)
def _(value: np.ufunc) -> _Described:
    return f"ufunc {value.__name__}", ()


@_describes(np.ndarray)
def _(value: object) -> _Described:
    assert isinstance(value, np.ndarray)
    if type(value) is not np.ndarray or value.dtype.kind not in "biufcSU" or value.nbytes > _LARGEST_ARRAY:
        raise Unrecordable(f"it reads {describe(value)}")
    return f"array {value.dtype.str} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}", ()


@_describes(tuple)
def _(value: tuple[object, ...]) -> _Described:
    if type(value) is not tuple and not hasattr(value, "_fields"):
        raise Unrecordable(f"it reads an instance of `{type(value).__name__}`")
    return f"{_name(type(value))} {len(value)}", value


@_describes(list, set, frozenset)
def _(value: object) -> _Described:
    assert isinstance(value, (list, set, frozenset))
    if type(value) not in (list, set, frozenset):
        raise Unrecordable(f"it reads an instance of `{type(value).__name__}`")
    return f"{type(value).__name__} {len(value)}", value


@_describes(range, slice)
def _(value: object) -> _Described:
    assert isinstance(value, (range, slice))
    return type(value).__name__, (value.start, value.stop, value.step)


@_describes(dict)
def _(value: dict[object, object]) -> _Described:
    if type(value) is not dict:
        raise Unrecordable(f"it reads an instance of `{type(value).__name__}`")
    return f"dict {len(value)}", [part for item in value.items() for part in item]


# --- objects of the language -----------------------------------------------------------------------------------------------------


@_describes(DType)
def _(value: DType) -> _Described:
    return f"type {value.name}", ()


@_describes(MatrixType)
def _(value: MatrixType) -> _Described:
    return f"type {value.shape} {value.entry_dtype}", ()


@_describes(TileType)
def _(value: TileType) -> _Described:
    return f"tile type {value.SIZE}", ()


@_describes(StructType)
def _(value: StructType) -> _Described:
    text = f"struct type {value.name} {list(value.members)} {list(value.methods)}"
    return text, (*value.members.values(), *value.methods.values(), getattr(value, "defaults", None))


@_describes(Matrix)
def _(value: Matrix) -> _Described:
    return f"matrix {value.shape}", value.entries


@_describes(Struct)
def _(value: Struct) -> _Described:
    return f"struct {list(value.entries)} {list(value.methods)}", (*value.entries.values(), *value.methods.values())


@_describes(Field)
def _(value: Field) -> _Described:
    if isinstance(value, StructField):
        names = [list(value.members), list(value.methods)]
        return f"struct field {names}", (*value.members.values(), *value.methods.values(), value.dtype)
    return "field", ()


@_describes(Ndarray)
def _(value: Ndarray) -> _Described:
    return f"ndarray {array_signature(value)}", ()


@_describes(NdarrayType, Template, TripletsType, Reference, FunctionArgument)
def _(value: object) -> _Described:
    return f"{type(value).__name__} {value!r} {getattr(value, 'boundary', '')}", ()


# --- objects of programs ---------------------------------------------------------------------------------------------------------


def _other(value: object) -> _Described:
    """Describe an instance of a class of the program: of dataclasses all members, of others only the class."""
    cls: type = type(value)
    if getattr(cls, "__sg_is_kernel__", False):
        return f"kernel {getattr(value, '__qualname__', '')}", ()
    if getattr(cls, "__sg_gives_session__", False):
        return f"session {_name(cls)}", ()
    if not _may_be_known_by_class(cls):
        raise Unrecordable(f"it reads {_called(value)}, which may behave in any way")
    if dataclasses.is_dataclass(cls):
        return f"instance of {_name(cls)}", [getattr(value, f.name) for f in dataclasses.fields(cls)]
    return f"instance of {_name(cls)}", ()


def _called(value: object) -> str:
    text = describe(value)
    return text if text.startswith(("a ", "an ", "the ")) else f"an instance of `{type(value).__name__}`"


def _may_be_known_by_class(cls: type) -> bool:
    """Return whether instances do nothing by themselves, so that the attributes which a trace reads are all that it depends on."""
    own = _written_classes(cls)
    return own is not None and not any(_defines(base, _DECIDING) for base in own)


def _decides(cls: type[enum.Enum]) -> bool:
    """Return whether an enumeration of the program says how its members are computed with."""
    return _has_own(cls, _DECIDING)


def shows_itself(cls: type[enum.Enum]) -> bool:
    """Return whether an enumeration of the program says how its members are shown."""
    return _has_own(cls, _SHOWING)


@functools.cache
def _has_own(cls: type[enum.Enum], names: frozenset[str]) -> bool:
    methods = [method for base in cls.__mro__ for name, method in vars(base).items() if name in names]
    return any(isinstance(method, types.FunctionType) and method.__globals__.get("__name__") != "enum" for method in methods)


def compares_by_itself(value: object) -> bool:
    """Return whether a comparison of ``value``, or of what it holds, runs a method of the program."""
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        return any(map(compares_by_itself, value)) or (isinstance(value, dict) and any(map(compares_by_itself, value.values())))
    cls: type = type(value)
    return any(_defines(base, _COMPARING) for base in _written_classes(cls) or ())


@functools.cache
def _written_classes(cls: type) -> tuple[type, ...] | None:
    """Return the classes written in Python that instances of ``cls`` have their methods from; None if there are others."""
    bases = tuple(base for base in cls.__mro__ if base is not object and base.__module__ not in ("typing", "abc", "enum"))
    if types.SimpleNamespace in bases:
        return ()
    of_python = all(base.__flags__ & _HEAP_TYPE and base.__module__.partition(".")[0] != "spirograd" for base in bases)
    return bases if of_python else None


@functools.cache
def _defines(cls: type, names: frozenset[str]) -> bool:
    methods = [method for name, method in vars(cls).items() if name in names and method is not None]
    return any(getattr(getattr(method, "__code__", None), "co_filename", "") != _GENERATED for method in methods)


# --- fields ------------------------------------------------------------------------------------------------------------------


def field_text(field: ScalarField | MatrixField, laid_out: bool | None = None) -> str:
    """Return what a kernel can see of a field, without its name. ``laid_out``: whether the layout of its tree counts; by default if it is
    fixed. Raises Unrecordable for fields of sparse trees."""
    if laid_out is None:
        laid_out = field.placed and field.snode.tree.closed
    text = f"{type(field).__name__} {field.key} {field.role} {field.dtype} {field.element_shape} {field.needs_grad} {field.needs_dual}"
    if not laid_out:
        return f"open {text}"
    if isinstance(field, MatrixField) and field.by_components:
        raise Unrecordable(f"it uses the field `{field.name}`, whose components have layouts of their own")
    if field.sparse_path or field.hidden or field.tree.regions is not None:
        raise Unrecordable(f"it uses the field `{field.name}` of a sparse tree")
    place = f"{field.tree.id} {field.shape} {field.origin} {field.decode()} {field.addresses} {field.layout}"
    place += "" if field.batch is None else f" {field.batch} {field.batch.masked}"
    shadows = [None if shadow is None else shadow.placed for shadow in (field._grad, field._dual)]
    return f"closed {text} {place} {shadows}"

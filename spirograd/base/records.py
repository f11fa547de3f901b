"""`dataclass` as in the standard library, but defining a class takes a tenth of the time.

The standard library generates and compiles the source of six methods for each class when its module is imported. `import spirograd`
defines 70 such classes, and the first kernel, which loads the compiler, about as many again. CPU time in ms, minima of 20 processes whose
bytecode was cached (12 with Python 3.13), with the classes of this module and with those of the standard library:

===========================================  ===========  ===========
..                                           Python 3.11  Python 3.13
import spirograd                             68, 126      91, 164
import, `init`, compile and run one kernel   229, 298     266, 361
===========================================  ===========  ===========

Here `__init__` is compiled once a class has a few instances, and the other methods are built from functions that all classes share. Use
`fields` and `replace` of this module: those of `dataclasses` work, too, but `dataclasses.fields` is slow.

Supported: ``frozen``, ``slots``, ``eq``, ``repr``, `dataclasses.field`, ``__post_init__``, ``ClassVar``, inheritance. Annotations must be
strings (``from __future__ import annotations``). Not supported: ``InitVar``, ``order``, ``unsafe_hash``.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, field, make_dataclass
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

# Number of instances after which the constructor of a class is compiled. Compiling takes as long as interpreting it thirty times, and many
# classes have few instances.
_UNCOMPILED = 4

if TYPE_CHECKING:  # type checkers know the functions of the standard library
    from dataclasses import dataclass as dataclass
    from dataclasses import fields as fields
    from dataclasses import replace as replace
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True, repr=True):
        """See `dataclasses.dataclass`."""
        if cls is None:
            return lambda cls: _define(cls, frozen, slots, eq, repr)
        return _define(cls, frozen, slots, eq, repr)

    def fields(cls):
        """See `dataclasses.fields`."""
        return tuple(cls.__sg_fields__.values())

    def replace(instance, /, **changes):
        """See `dataclasses.replace`."""
        cls = type(instance)
        for name, entry in cls.__sg_fields__.items():
            if entry.init and name not in changes:
                changes[name] = getattr(instance, name)
        return cls(**changes)


def _define(cls: Any, frozen: bool, slots: bool, eq: bool, shown: bool) -> object:
    own = _own_fields(cls)
    fields: dict[str, Field[object]] = {}
    for base in cls.__mro__[-1:0:-1]:
        fields |= base.__dict__.get("__sg_fields__", {})
    fields |= own
    if slots:
        cls = _with_slots(cls, own)
    methods: dict[str, object] = {"__init__": _first_init(cls, frozen)}
    if shown:
        methods["__repr__"] = _repr([name for name, entry in fields.items() if entry.repr])
    if eq:
        methods |= _comparisons([name for name, entry in fields.items() if entry.compare], frozen)
    if frozen:
        methods |= _FROZEN | (_state(list(fields)) if slots else {})
    if eq and cls.__dict__.get("__hash__") is None and "__hash__" in cls.__dict__:
        del cls.__hash__  # which Python set to None because the class defines `__eq__`
    for name, method in methods.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)
    cls.__sg_fields__, cls.__dataclass_fields__ = fields, _STANDARD
    positional = tuple([name for name, entry in fields.items() if entry.init and entry.kw_only is not True])
    type.__setattr__(cls, "__match_args__", positional)
    return cls


def _own_fields(cls: type) -> dict[str, Field[object]]:
    entries: dict[str, Field[object]] = {}
    for name, annotation in inspect.get_annotations(cls).items():
        assert isinstance(annotation, str), f"{cls.__module__} lacks `from __future__ import annotations`"
        if annotation.startswith("ClassVar"):
            continue
        default = cls.__dict__.get(name, MISSING)
        entry = default if isinstance(default, Field) else field(default=default)
        entry.name, entry.type = name, annotation
        if default is entry and entry.default is MISSING:
            delattr(cls, name)
        elif default is entry:
            setattr(cls, name, entry.default)
        entries[name] = entry
    return entries


def _with_slots(cls: type, own: dict[str, Field[object]]) -> type:
    """Return a copy of the class with slots for its fields."""
    members = {name: value for name, value in cls.__dict__.items() if name not in own and name not in ("__dict__", "__weakref__")}
    inherited = {name for base in cls.__mro__[1:] for name in base.__dict__.get("__slots__", ())}
    members["__slots__"] = tuple([name for name in own if name not in inherited])
    copy = type(cls)(cls.__name__, cls.__bases__, members)
    copy.__qualname__ = cls.__qualname__
    return copy


def _first_init(cls: Any, frozen: bool) -> Callable[..., None]:
    left = _UNCOMPILED

    def __init__(self: object, *args: object, **kwargs: object) -> None:
        """Construct the first instances by interpretation; then compile the constructor of the class and call it."""
        nonlocal left
        left -= 1
        if left < 0 or not _constructed(cls, object.__setattr__ if frozen else setattr, self, args, kwargs):
            cls.__init__ = compiled = _compile_init(cls, frozen)
            compiled(self, *args, **kwargs)

    return __init__


def _constructed(
    cls: Any, assign: Callable[[object, str, object], None], instance: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> bool:
    """Assign the fields as the constructor would; return False if the arguments do not fit, so that the constructor raises the error."""
    positional = cls.__match_args__
    given = {**dict(zip(positional, args)), **kwargs}
    if len(given) < len(args) + len(kwargs):
        return False
    values = {}
    for name, entry in cls.__sg_fields__.items():
        if entry.init and name in given:
            values[name] = given.pop(name)
        elif entry.default is not MISSING:
            values[name] = entry.default
        elif entry.default_factory is not MISSING:
            values[name] = entry.default_factory()
        elif entry.init:
            return False
    if given:
        return False
    for name, value in values.items():
        assign(instance, name, value)
    if hasattr(cls, "__post_init__"):
        instance.__post_init__()
    return True


def _compile_init(cls: Any, frozen: bool) -> Callable[..., None]:
    """Compile the constructor from source, as the standard library does. Constructors of frozen classes write to slots without
    `__setattr__`."""
    names: dict[str, Any] = {"_missing": MISSING, "_set": object.__setattr__}
    by_place: list[str] = []
    by_name: list[str] = []
    body: list[str] = []
    for name, entry in cls.__sg_fields__.items():
        value, parameter = name, name
        if entry.default is not MISSING:
            names[f"_d_{name}"], parameter = entry.default, f"{name}=_d_{name}"
        elif entry.default_factory is not MISSING:
            names[f"_f_{name}"], parameter = entry.default_factory, f"{name}=_missing"
            value = f"_f_{name}() if {name} is _missing else {name}"
        if entry.init:
            (by_name if entry.kw_only is True else by_place).append(parameter)
        elif parameter == name:
            continue  # left to `__post_init__`
        else:
            value = f"_d_{name}" if entry.default is not MISSING else f"_f_{name}()"
        slot = getattr(cls, name, None)
        if not frozen:
            body.append(f"self.{name} = {value}")
        elif isinstance(slot, MemberDescriptorType):
            names[f"_s_{name}"] = slot.__set__
            body.append(f"_s_{name}(self, {value})")
        else:
            body.append(f"_set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(["self", *by_place, *(["*"] if by_name else []), *by_name])
    exec(f"def __init__({parameters}):\n " + "\n ".join(body or ["pass"]), names)
    constructor: Callable[..., None] = names["__init__"]
    return constructor


def _repr(names: list[str]) -> object:
    def __repr__(self: object) -> str:
        return f"{type(self).__qualname__}({', '.join([f'{name}={getattr(self, name)!r}' for name in names])})"

    return __repr__


def _comparisons(names: list[str], frozen: bool) -> dict[str, object]:
    values: object
    if len(names) > 1:
        values = operator.attrgetter(*names)
    else:  # as a tuple, too: a tuple equals itself even if its element does not
        values = lambda instance: tuple([getattr(instance, name) for name in names])  # noqa: E731

    def __eq__(self: object, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: object) -> int:
        return hash(values(self))

    return {"__eq__": __eq__, "__hash__": __hash__ if frozen else None}


def _refuse_set(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


_FROZEN = {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}


def _state(names: list[str]) -> dict[str, object]:
    """Return the state for `copy` and `pickle`, which would otherwise set attributes."""

    def __getstate__(self: object) -> list[object]:
        return [getattr(self, name) for name in names]

    def __setstate__(self: object, state: list[object]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return {"__getstate__": __getstate__, "__setstate__": __setstate__}


class _Standard:
    """`__dataclass_fields__`, which the functions of `dataclasses` read, computed when a class first needs it."""

    def __get__(self, instance: object, cls: Any) -> dict[str, Field[object]]:
        owner = next(base for base in cls.__mro__ if base.__dict__.get("__dataclass_fields__") is self)
        standard: Any = make_dataclass(owner.__name__, [(name, entry.type, entry) for name, entry in owner.__sg_fields__.items()])
        entries: dict[str, Field[object]] = standard.__dataclass_fields__
        type.__setattr__(owner, "__dataclass_fields__", entries)
        return entries


_STANDARD = _Standard()

"""Values from outside of a kernel that are constants of its compilation: names of the module, variables of functions around it, members
and items of objects that these hold.

A kernel is not compiled again when one of them changes, as in the Taichi family. So each launch compares them, by identity, and the first
one after a change warns. Compiled code does the same for launches without Python.
"""

from __future__ import annotations

import functools
import gc
import logging
import sys
import types
from collections.abc import Callable
from typing import Any

from spirograd.base.dtypes import DType
from spirograd.base.errors import render
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass
from spirograd.base.validity import StepRecorder
from spirograd.lang.data.field import Field
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.frontend.fingerprints import BY_VALUE, PLAIN, fingerprint
from spirograd.lang.frontend.guards import is_guardable
from spirograd.lang.leaves import AggregateType
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Value, describe
from spirograd.lang.struct import Struct

logger = logging.getLogger("spirograd")
_HINT = "pass it as an argument, hold it in a field, or make it an attribute of a `@sg.data_oriented` class, whose kernels follow it"
_MISSING = object()
# What is never rebound on purpose, or is not a value of a program.
_STEADY = (types.ModuleType, types.BuiltinFunctionType, DType, AggregateType)
_PACKAGES = frozenset(("spirograd", "numpy", "torch", "scipy", "jax", "cupy")) | (sys.stdlib_module_names - {"__main__"})


@dataclass(slots=True, eq=False)
class OutsideValue:
    """A ``value`` that was found at ``key`` of ``owner``, `_MISSING` if there was none. ``kind``: "item" of a dict, "entry" of a list,
    "member" of an object, or "cell". ``name``: what messages call it. ``hides``: of a value that is missing, what would take its place."""

    kind: str
    owner: Any
    key: Any
    value: object
    name: str
    loc: Loc | None
    hides: object = _MISSING

    def getter(self) -> Callable[[], object]:
        """Return a function that gives the present value, or raises an error if there is none."""
        if self.kind == "item":
            return functools.partial(self.owner.get, self.key, _MISSING)
        if self.kind == "cell":
            return functools.partial(getattr, self.owner, "cell_contents")
        if self.kind == "entry":
            return functools.partial(self.owner.__getitem__, self.key)
        return functools.partial(getattr, self.owner, self.key, _MISSING)

    def now(self) -> object:
        """Return the present value; `_MISSING` if there is none."""
        try:
            return self.getter()()
        except (ValueError, LookupError, AttributeError):
            return _MISSING


class OutsideValues:
    """The values from outside that one kernel uses: collected while it is traced, compared at its launches."""

    def __init__(self) -> None:
        self.values: list[OutsideValue] = []
        self._known: set[tuple[int, object]] = set()
        self._looks: list[tuple[Callable[[], object], object]] | None = None

    # --- while tracing -----------------------------------------------------------------------------------------------------

    def name(self, function: Callable[..., object], name: str, value: object, loc: Loc | None) -> None:
        """Record that ``function`` sees ``value`` from outside, under ``name``."""
        if _is_ours(function) or isinstance(value, _STEADY) or _is_of_package(value):
            return
        code = function.__code__
        if function.__closure__ is not None and name in code.co_freevars:
            cell = function.__closure__[code.co_freevars.index(name)]
            self._add(OutsideValue("cell", cell, None, value, f"`{name}`", loc))
        elif name in function.__globals__:
            self._add(OutsideValue("item", function.__globals__, name, value, f"the global `{name}`", loc))

    def member(self, owner: object, name: str, value: object, text: str, loc: Loc | None) -> None:
        """Record that ``value`` is the attribute ``name`` of ``owner``, which no argument leads to; messages call it ``text``."""
        if isinstance(value, _STEADY) or _is_ours(owner) or _is_of_package(value) or not _is_member(owner, name, value):
            return
        if isinstance(owner, types.ModuleType):
            self._add(OutsideValue("item", vars(owner), name, value, text, loc))
            return
        own, holder = _dictionary(owner, name), None if isinstance(owner, type) else _holder(type(owner), name)
        if isinstance(owner, type):
            holder = _holder(owner, name)
        elif own is not None and name in own:
            self._add(OutsideValue("item", own, name, value, text, loc))
            return
        if holder is None or holder.get(name) is not value:
            self._add(OutsideValue("member", owner, name, value, text, loc))
            return
        self._add(OutsideValue("item", holder, name, value, text, loc))
        if own is not None:  # the object may get an attribute that hides that of the class
            self._add(OutsideValue("item", own, name, _MISSING, text, loc, value))

    def item(self, owner: object, key: object, value: object, text: str, loc: Loc | None) -> None:
        """Record an item of a dict or a list."""
        if isinstance(value, _STEADY):
            return
        if type(owner) is dict:
            self._add(OutsideValue("item", owner, key, value, text, loc))
        elif type(owner) is list and isinstance(key, int):
            self._add(OutsideValue("entry", owner, key, value, text, loc))

    def _add(self, value: OutsideValue) -> None:
        place = id(value.owner), value.key
        if place not in self._known:
            self._known.add(place)
            self.values.append(value)

    # --- at launches -------------------------------------------------------------------------------------------------------

    def are_same(self) -> bool:
        """Return whether all are the objects that they were."""
        looks = self._looks
        if looks is None:
            looks = self._looks = [(value.getter(), value.value) for value in self.values]
        try:
            for look, value in looks:
                if look() is not value:
                    return False
        except (ValueError, LookupError, AttributeError):
            return False
        return True

    def record(self, into: StepRecorder) -> None:
        """Record how compiled code compares them."""
        dictionaries: dict[int, tuple[dict[object, object], dict[object, tuple[object, ...]]]] = {}
        cells = [value for value in self.values if value.kind == "cell"]
        for value in self.values:
            if value.kind == "item":
                items = dictionaries.setdefault(id(value.owner), (value.owner, {}))[1]
                items[value.key] = () if value.value is _MISSING else (value.value,)
            elif value.kind != "cell":
                into.given(value.owner)
                (into.entry if value.kind == "entry" else into.member)(value.key)
                (into.equal if isinstance(value.value, PLAIN) else into.same)(value.value)
        for dictionary, items in dictionaries.values():
            into.names(dictionary, items)
        if cells:
            into.cells([cell.owner for cell in cells], [cell.value for cell in cells])

    def report(self, kernel: Callable[..., object], warned: set[object]) -> bool:
        """Warn of those that have changed, once for each, and follow them no more. Whether there were any."""
        kept, changed = list[OutsideValue](), False
        for value in self.values:
            now = value.now()
            old = value.hides if value.value is _MISSING and now is not _MISSING else value.value
            if now is old or (now is not _MISSING and fingerprint(now) == fingerprint(old)):
                value.value = now
                kept.append(value)
                continue
            changed = True
            about = ("outside value", kernel, value.name)
            if about not in warned:
                warned.add(about)
                logger.warning(render(_message(kernel.__name__, value.name, old, now), value.loc, _HINT))
        self.values, self._looks = kept, None
        return changed


def _message(kernel: str, name: str, old: object, now: object) -> str:
    became = "is gone" if now is _MISSING else f"is now {_shown(now, old)}"
    return f"kernel `{kernel}` was compiled with {_shown(old, now)} for {name}, which {became}: it keeps what it was compiled with"


def _dictionary(owner: object, name: str) -> dict[object, object] | None:
    """Return the dictionary in which ``owner`` has its own attributes, if ``name`` may be one of them."""
    if isinstance(owner, type) or hasattr(getattr(type(owner), name, None), "__set__"):
        return None
    attributes = getattr(owner, "__dict__", None)
    return attributes if type(attributes) is dict else None


def _holder(cls: type, name: str) -> dict[object, object] | None:
    """Return the dictionary of the class in which ``cls`` finds ``name``."""
    for base in cls.__mro__:
        if name in vars(base):
            referents = gc.get_referents(vars(base))  # what the read-only view is of
            return referents[0] if referents and type(referents[0]) is dict else None
    return None


def _shown(value: object, other: object) -> str:
    """Return how messages show ``value``, so that it can be told from ``other``."""
    if isinstance(value, (*BY_VALUE, list, tuple, dict)):
        return repr(value)
    text = describe(value)
    return f"another {text.partition(' ')[2] or text}" if text == describe(other) and text.startswith(("a ", "an ")) else text


def _is_ours(owner: object) -> bool:
    """Return whether what ``owner`` holds does not change: a function or an object of this package or of another library."""
    if isinstance(owner, types.ModuleType):
        return owner.__name__.partition(".")[0] in _PACKAGES
    of = owner if isinstance(owner, (type, types.FunctionType)) else type(owner)
    if isinstance(owner, (Field, Ndarray, Matrix, Struct, Value)):
        return True
    return of is not types.SimpleNamespace and (of.__module__ or "").partition(".")[0] in _PACKAGES


def _is_of_package(value: object) -> bool:
    """Return whether ``value`` is a function or a class of this package or of another library: such names are imported."""
    return isinstance(value, (type, types.FunctionType)) and (value.__module__ or "").partition(".")[0] in _PACKAGES


def _is_member(owner: object, name: str, value: object) -> bool:
    if isinstance(owner, (types.ModuleType, type)):
        return name in vars(owner) or isinstance(owner, type)
    return is_guardable(owner, name, value) and (
        isinstance(value, Ndarray) or not callable(value) or name in getattr(owner, "__dict__", ())
    )

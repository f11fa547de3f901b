"""The reads of a trace: everything outside of the kernel that it depends on, recorded so that another process can repeat the reads.

A trace reads names that functions see from outside, attributes and items of what these stand for, and the source of each function that it
inlines. `Reads` records these as events, in order and once each, with the values as text (`read_values`). What cannot be recorded, such as
the result of a Python function that may have effects, makes the trace `refused`: it is made anew in each process.
"""

from __future__ import annotations

import abc
import enum
import functools
import types
from collections.abc import Mapping, Sequence

import numpy as np

from spirograd.base.loc import Loc
from spirograd.ir.nodes import FieldRef
from spirograd.lang import forms
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.func import BoundFunc, Func
from spirograd.lang.frontend.pure_functions import is_literal, is_of_math, is_pure, literal
from spirograd.lang.frontend.read_values import PLAIN, STANDARD, Unrecordable, Values, compares_by_itself, shows_itself
from spirograd.lang.frontend.source import Source
from spirograd.lang.frontend.texts import Text
from spirograd.lang.frontend.trace_events import Event, code_of, digest, looked_up, signature_of
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Value, describe
from spirograd.lang.struct import Struct
from spirograd.lang.tiles import TileType

# Packages whose functions depend on nothing but their arguments and the options of the session, and whose source is part of the key.
_LIBRARIES = tuple(f"spirograd.{package}" for package in ("lang.", "simt.", "algorithms.", "linalg.", "base.", "math", "types"))
_PURE = frozenset((
    isinstance, issubclass, type, callable, str, sorted, divmod, set, frozenset, iter, next, chr, ord, slice, complex,
))  # fmt: skip
_OF_CLASSES = (isinstance, issubclass, type, callable)
_MISSING = object()


class Reads:
    """The events of one trace. ``refused``: why they cannot be repeated, or ""."""

    def __init__(self) -> None:
        self.values = Values()
        self.events: list[Event] = []
        self.refused = ""
        self._seen: dict[tuple[object, ...], object] = {}

    def refuse(self, reason: str) -> None:
        self.refused = self.refused or reason

    def root(self, value: object) -> None:
        """Record a value that every trace begins with."""
        self._add(value)

    def name(self, function: object, name: str, value: object, loc: Loc | None) -> None:
        """Record that ``function`` sees ``value`` under a name."""
        if self.refused:
            return
        base = self.values.number(function)
        if base is not None:
            self._event(Event("name", base, name, None, loc), value)
        elif not _of_library(function) or name in code_of(function).co_freevars:
            self.refuse(f"it reads `{name}` in a function that Python made while compiling")

    def attribute(self, owner: object, name: str, value: object, text: str, reachable: bool, loc: Loc | None) -> None:
        """Record an attribute of an object. It is recorded again once the object is ``reachable`` from the arguments of a launch: from then
        on launches follow the attribute."""
        if self.refused or type(owner) in PLAIN:
            return
        base = self.values.number(owner)
        if base is not None:
            self._event(Event("attribute", base, name, None, loc, text), value, reachable)
        elif not _is_of_trace(owner):
            self.refuse(f"it reads `{text or name}` of an object that Python made while compiling")

    def item(self, owner: object, key: object, value: object, text: str, named: str, loc: Loc | None) -> None:
        """Record an item of an object. ``named``: the name that a field gets by it."""
        if self.refused:
            return
        base = self.values.number(owner)
        if base is None:
            if not _is_of_trace(owner) and type(owner) not in PLAIN:
                self.refuse(f"it reads `{text}` of an object that Python made while compiling")
        elif all(type(part) in (str, int, bool) for part in (key if isinstance(key, tuple) else (key,))):
            self._event(Event("item", base, "", list(key) if isinstance(key, tuple) else key, loc, text, named), value)
        else:
            self.refuse(f"it reads `{text}` by {describe(key)}")

    def array(self, array: Ndarray, name: str) -> None:
        """Record that a variable of the kernel holds an ndarray from outside."""
        if self.refused or ("array", id(array)) in self._seen:
            return
        self._seen["array", id(array)] = array
        base = self.values.number(array)
        if base is None:
            self.refuse(f"`{name}` is an array that Python found while compiling")
        else:
            self.events.append(Event("array", base, name))

    def call(self, callee: object, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Record that Python calls ``callee`` while compiling. That can be repeated if the result depends on the arguments alone."""
        if self.refused or self._repeatable(callee, args, kwargs) is not None:
            return
        values = (*args, *kwargs.values())
        base = self.values.number(values[0]) if values else None
        if (callee is getattr or callee is hasattr) and base is not None and isinstance(values[1], str):
            self._event(Event("look", base, values[1]), looked_up(values[0], values[1]))
        elif getattr(callee, "__sg_gives_session__", False) and not values and (function := self.values.number(callee)) is not None:
            assert callable(callee)
            self._event(Event("call", function), callee())
        elif (callee is isinstance or callee is issubclass) and _follows_registrations(callee, *values):
            self.refuse("it asks an abstract class, with which the program may register others")
        elif not _is_pure(callee) or not (any(callee is one for one in _OF_CLASSES) or all(map(_is_data, values))):
            self.refuse(f"Python runs `{getattr(callee, '__qualname__', describe(callee))}` while compiling")

    def result(self, callee: object, args: Sequence[object], kwargs: Mapping[str, object], value: object) -> None:
        """Record what a call gave, if another process can call the same function."""
        if not self.refused and (base := self._repeatable(callee, args, kwargs)) is not None:
            self._event(Event("result", base, "", literal(args, kwargs)), value)

    def _repeatable(self, callee: object, args: Sequence[object], kwargs: Mapping[str, object]) -> int | None:
        """Return the number of a function that has no effects and is called with literals."""
        base = self.values.number(callee) if type(callee) is types.FunctionType else None
        return base if base is not None and is_literal((*args, *kwargs.values())) and is_pure(callee) else None

    def compare(self, *values: object) -> None:
        """Record that Python compares ``values``, or finds them by their hashes."""
        if not self.refused and any(map(compares_by_itself, values)):
            self.refuse("it compares objects whose class says how")

    def shown(self, value: object) -> None:
        """Record that Python makes a text of ``value``."""
        if not self.refused and not _is_data(value):
            self.refuse(f"it makes a text of {describe(value)}")

    def source(self, func: Func) -> None:
        """Record the source of a function that is inlined or called."""
        if self.refused:
            return
        base = self.values.number(func.function)
        if base is not None:
            self._source(base, func.source, func._text, signature_of(func))
        elif not _of_library(func.function):
            self.refuse(f"Python made the function `{func.function.__name__}` while compiling")

    def kernel_source(self, source: Source, text: Text | None) -> None:
        """Record the source of the kernel, the first function."""
        if not self.refused:
            self._source(0, source, text, "")

    def _source(self, base: int, source: Source, text: Text | None, signature: str) -> None:
        if ("source", base) in self._seen:
            return
        self._seen["source", base] = source
        if text is None:
            self.refuse(f"the source of `{source.name}` is not in a file")
            return
        count = lines_of(source, text)
        self.events.append(Event("source", base, "", [count, digest(source.function, text, count, signature)]))

    def _event(self, event: Event, value: object, reachable: bool = False) -> None:
        key = (event.kind, event.base, event.name, type(event.key), str(event.key), reachable)
        before = self._seen.get(key, _MISSING)
        if before is _MISSING:
            self._seen[key] = value
            self.events.append(event)
            self._add(value)
        elif before is not value and not _same(before, value):
            self.refuse(f"`{event.text or event.name}` changes while the kernel is compiled")

    def _add(self, value: object) -> None:
        if self.refused:
            return
        try:
            self.values.add(value)
        except Unrecordable as error:
            self.refuse(str(error))


def _same(before: object, now: object) -> bool:
    """Return whether two objects are the same number, string or tuple of these, or the same method, of which Python makes an object at each
    read."""
    if type(before) is not type(now):
        return False
    if type(now) in PLAIN or is_literal(now):
        return repr(before) == repr(now)
    return isinstance(now, (BoundFunc, types.MethodType)) and before == now


def _is_of_trace(value: object) -> bool:
    """Return whether ``value`` is an object of the trace itself, which follows from what was recorded."""
    if isinstance(value, (Value, Matrix, Struct, list, tuple, dict, set, range, slice, np.generic)):
        return True
    return type(value).__module__.startswith("spirograd.lang.frontend.") or (isinstance(value, type) and _of_library(value))


def _of_library(value: object) -> bool:
    """Return whether our packages define a function or a class. `functools.wraps` gives a function of the program the module of ours, and a
    function of ours that of the program; in both cases the function of the program decides what runs."""
    while isinstance(value, (types.MethodType, functools._lru_cache_wrapper)):
        value = value.__func__ if isinstance(value, types.MethodType) else value.__wrapped__
    names = [getattr(value, "__module__", "")]
    if isinstance(value, types.FunctionType):
        names.append(value.__globals__.get("__name__", ""))
    return all(str(name).startswith(_LIBRARIES) for name in names)


def _is_pure(callee: object) -> bool:
    """Return whether the result of ``callee`` depends on its arguments alone."""
    owner = getattr(callee, "__self__", None)
    if isinstance(owner, (Value, Matrix, Struct, TileType, list, tuple, dict, set, str)):
        return True
    if owner is not None and type(owner) in PLAIN:
        return True
    if owner is not None and not isinstance(owner, (type, types.ModuleType)):
        return type(owner).__module__.startswith("spirograd.lang.frontend.")
    if isinstance(callee, np.ufunc):
        return getattr(np, callee.__name__, None) is callee  # no function of the program that `np.frompyfunc` has wrapped
    if type(callee) is np.dtype or (isinstance(callee, type) and issubclass(callee, np.generic)):
        return True
    if type(callee).__hash__ is not None and callee in _PURE:
        return True
    if is_of_math(callee):
        return True
    return callee is not forms.static_print and (_of_library(callee) or _of_library(type(callee)))


def _follows_registrations(callee: object, value: object, classes: object) -> bool:
    """Return whether `isinstance` or `issubclass` asks an abstract class of the program that the class of ``value`` is not derived from."""
    own = value if callee is issubclass else type(value)
    asked = classes if isinstance(classes, tuple) else (classes,)
    return any(type(cls) is abc.ABCMeta and cls.__module__ not in STANDARD and cls not in getattr(own, "__mro__", ()) for cls in asked)


def _is_data(value: object) -> bool:
    """Return whether a function that gets ``value`` runs no function of the program, and sees no address."""
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        return all(map(_is_data, value)) and (not isinstance(value, dict) or all(map(_is_data, value.values())))
    if isinstance(value, enum.Enum):
        return not shows_itself(type(value))
    return type(value) in PLAIN or isinstance(value, (range, slice, np.generic)) or _of_library(type(value))


# --- sources -----------------------------------------------------------------------------------------------------------------


def lines_of(source: Source, text: Text) -> int:
    """Return how many lines of the file, from the first of the function, decide what the function is: its own, and those after it up to the
    first that is neither empty nor a comment, which ends it. 0 means all of the file."""
    first = code_of(source.function).co_firstlineno - 1
    if source.name == "<lambda>":
        return 0
    end = (source.tree.end_lineno or 0) + source.line_offset
    while end < len(text.lines) and text.lines[end].strip()[:1] in ("", "#", ")"):
        end += 1
    return end + 1 - first


def fields_described(values: Values, fields: Mapping[FieldRef, ScalarField]) -> list[tuple[int, FieldRef, ScalarField]]:
    """Return (number, reference, field) of each field that a kernel accesses. Raises Unrecordable if one was not read by name."""
    out = []
    for ref, field in fields.items():
        number = values.number(field)
        if number is None:
            raise Unrecordable(f"it uses the field `{field.name}`, which Python found while compiling")
        out.append((number, ref, field))
    return out

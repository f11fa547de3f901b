"""Errors for missing attributes that suggest similar names: the exception, and bases for the classes that users hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from spirograd.base.wording import did_you_mean


class NoAttribute(AttributeError):
    """``what`` has no attribute ``missing``; ``known`` gives the names that it has. The message is computed when it is read, because
    programs call `hasattr`. ``hint``: what to write instead, in place of a similar name."""

    def __init__(self, what: str, missing: str, known: Callable[[], Iterable[str]], kind: str = "attribute", hint: str = "") -> None:
        super().__init__(name=missing)  # without `obj`: Python then adds no suggestions of its own
        self._parts = (what, missing, known, kind, hint)

    def __str__(self) -> str:
        what, missing, known, kind, hint = self._parts
        names = [name for name in known() if not name.startswith("_")]
        hint = hint or did_you_mean(missing, names)
        if kind == "member":
            hint = f"it has {', '.join(names)}" + (f"; {hint}" if hint else "")
        return f"{what} has no {kind} `{missing}`{'; ' if hint else ''}{hint}"

    def __reduce__(self) -> tuple[object, ...]:
        return AttributeError, (str(self),)


NoAttribute.__name__ = NoAttribute.__qualname__ = "AttributeError"  # tracebacks show what users can catch
NoAttribute.__module__ = "builtins"


def described(x: object) -> str:
    """Return a description of ``x``."""
    words = getattr(type(x), "__sg_describe__", None)
    return f"a {type(x).__name__}" if words is None else words(x)


class NearNames:
    """Base of classes whose instances suggest similar names for a missing attribute."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers know the attributes that exist

        def __getattr__(self, name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # a property: whatever it raised
            raise NoAttribute(described(self), name, lambda: dir(self))


class NearNamesOfClass(type):
    """Metaclass of classes that suggest similar names for missing attributes of the class."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
            raise NoAttribute(f"the class `{cls.__name__}`", name, lambda: dir(cls))

"""Count calls of a program's own methods, the ends of its tapes or lines that it prints as frames, if its windows do not end each step."""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Callable
from typing import Any


def count(calls: str, taichi: Any, shown: Callable[[], None]) -> None:
    """Call ``shown`` after each of ``calls``: "tape" for the end of each tape, "printed:words" for each line that begins so, or
    "module:Class.method"."""
    if calls == "tape":
        _after(taichi.ad.Tape, "__exit__", shown)
        return
    module, _, names = calls.partition(":")
    if module == "printed":
        _after_lines(names, shown)
        return
    owner, _, method = names.partition(".")
    ordinary = builtins.__import__

    def importing(*args: Any, **kwargs: Any) -> Any:
        """Import as usual, until the class exists: the program imports it after `init`, if its fields are created with it."""
        imported = ordinary(*args, **kwargs)
        loaded = getattr(sys.modules.get(module), owner, None)
        if loaded is not None:
            builtins.__import__ = ordinary
            _after(loaded, method, shown)
        return imported

    builtins.__import__ = importing


def _after(owner: Any, method: str, shown: Callable[[], None]) -> None:
    ordinary = getattr(owner, method)

    @functools.wraps(ordinary)
    def counted(*args: Any, **kwargs: Any) -> Any:
        result = ordinary(*args, **kwargs)
        shown()
        return result

    setattr(owner, method, counted)


def _after_lines(words: str, shown: Callable[[], None]) -> None:
    ordinary = builtins.print

    def counted(*args: Any, **kwargs: Any) -> None:
        ordinary(*args, **kwargs)
        if args and str(args[0]).startswith(words):
            shown()

    builtins.print = counted

"""Tracebacks that end at the user's own call: when an error of this package is printed, frames of this package are left out.

The hooks for uncaught exceptions do this, because Python offers no other place; they pass all other exceptions on to the hooks that were
installed before. The error itself keeps all frames for code that catches it, and SG_TRACEBACK=1 (or the option `print_full_traceback`)
shows them.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import TracebackType

from spirograd.base import knobs
from spirograd.base.errors import SpirogradCompilationError, SpirogradError
from spirograd.base.loc import Loc

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep
_full = False


def show_all(full: bool) -> None:
    """Set whether all frames are shown regardless of SG_TRACEBACK: the option `print_full_traceback`."""
    global _full
    _full = full


def user_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return ``traceback`` without the frames of this package."""
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    out: TracebackType | None = None
    for entry in reversed(frames):
        if not entry.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            out = TracebackType(out, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return out


class frames_hidden:
    """Cut the tracebacks of compilation errors at the user's call, unless an environment variable requests all frames."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, SpirogradCompilationError) and not knobs.flag("SG_TRACEBACK"):
            raise error.with_traceback(None) from error.__cause__


def user_location() -> Loc | None:
    """Return the location of the innermost frame outside of this package, or None."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE):
        if frame.f_back is None:
            return None
        frame = frame.f_back
    name = frame.f_code.co_name
    return Loc(frame.f_code.co_filename, frame.f_lineno, function="" if name == "<module>" else name)


def shortened(error: BaseException | None) -> None:
    """Cut the tracebacks of an error of this package and of its causes."""
    seen: set[int] = set()
    if not isinstance(error, SpirogradError) or _full or knobs.flag("SG_TRACEBACK"):
        return
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = user_frames(error.__traceback__)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def install() -> None:
    """Install the hooks that cut printed tracebacks of this package's uncaught errors, in all threads."""
    before, thread_before = sys.excepthook, threading.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        shortened(error)
        before(kind, error, error.__traceback__ if isinstance(error, SpirogradError) else traceback)

    def thread_hook(args: threading.ExceptHookArgs) -> None:
        shortened(args.exc_value)
        if isinstance(args.exc_value, SpirogradError):
            args = threading.ExceptHookArgs((args.exc_type, args.exc_value, args.exc_value.__traceback__, args.thread))
        thread_before(args)

    sys.excepthook = hook
    threading.excepthook = thread_hook

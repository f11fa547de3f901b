"""The exceptions that users meet, and the one renderer of their text."""

from __future__ import annotations

import linecache

from spirograd.base.loc import Loc


class SpirogradError(Exception):
    """Base of everything that spirograd raises on purpose."""


class SpirogradCompilationError(SpirogradError):
    """A kernel cannot be compiled. ``loc`` is where, ``hint`` what to do about it."""

    def __init__(self, message: str, loc: Loc | None = None, hint: str = "") -> None:
        self.message = message
        self.loc = loc
        self.hint = hint
        super().__init__(render(message, loc, hint))

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.loc, self.hint))


class SpirogradSyntaxError(SpirogradCompilationError):
    """A Python construct that kernels do not have, or have only elsewhere."""


class SpirogradTypeError(SpirogradCompilationError, TypeError):
    """Operand, argument or annotation of the wrong type."""


class SpirogradNameError(SpirogradCompilationError, NameError):
    """A name that is not defined at this point of the kernel."""


class SpirogradIndexError(SpirogradCompilationError, IndexError):
    """A constant index that is out of range, or the wrong number of indices."""


class SpirogradUnsupportedError(SpirogradCompilationError):
    """The program is right, but this device or back end lacks what it needs; the message names it."""


class SpirogradRuntimeError(SpirogradError, RuntimeError):
    """Something went wrong while running: a device fault, a lost device, misuse of the run-time interface."""


class SpirogradRuntimeTypeError(SpirogradRuntimeError, TypeError):
    """A kernel was called with an argument that does not fit its annotation."""


class SpirogradAssertionError(SpirogradRuntimeError, AssertionError):
    """An ``assert``, bounds check or overflow check failed inside a kernel."""


class AdStackOverflow(SpirogradRuntimeError):
    """A tape needed more room than its launch was sized for."""


class OutOfDeviceMemory(SpirogradRuntimeError, MemoryError):
    """The device cannot allocate what was asked for; it stays usable."""


def excerpt(loc: Loc) -> list[str]:
    """The source line of ``loc`` with a caret under the span; empty if the source is not to be had."""
    line = linecache.getline(loc.file, loc.line).rstrip("\n")
    if not line.strip():
        return []
    shown = line.expandtabs(4)
    indent = len(shown) - len(shown.lstrip())
    end = loc.end_col if loc.end_line in (0, loc.line) and loc.end_col > loc.col else len(line)
    width = max(1, len(line[loc.col : end].rstrip()))
    number = str(loc.line)
    pad = " " * len(number)
    column = max(0, len(line[: loc.col].expandtabs(4)) - indent)
    return [f"  {number} | {shown.lstrip()}", f"  {pad} | {' ' * column}{'^' * width}"]


def render(message: str, loc: Loc | None, hint: str = "") -> str:
    """Message, excerpt with caret, the chain of inlined calls, hint."""
    lines = [message]
    if loc is not None:
        for depth, at in enumerate(loc.chain()):
            where = f" in {at.function}" if at.function else ""
            lead = "  at" if depth == 0 else "  called from"
            lines.append(f"{lead} {at.file}:{at.line}{where}")
            lines += ["  " + text for text in excerpt(at)]
    if hint:
        lines.append(f"  hint: {hint}")
    return "\n".join(lines)

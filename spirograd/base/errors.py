"""The exceptions of the public interface, and the renderer of their text."""

from __future__ import annotations

import linecache
import unicodedata
from collections.abc import Callable

from spirograd.base.loc import Loc
from spirograd.base.wording import counted

_translation: Callable[[str], str] | None = None


def translate_by(translation: Callable[[str], str] | None) -> None:
    """Show the texts of errors as ``translation`` returns them; as they are, for None."""
    global _translation
    _translation = translation


class SpirogradError(Exception):
    """Base of all exceptions that spirograd raises on purpose."""

    def __str__(self) -> str:
        text = BaseException.__str__(self)  # KeyError's method would put the text in quotes
        return text if _translation is None else _translation(text)


class SpirogradCompilationError(SpirogradError):
    """A kernel cannot be compiled. ``message``: what is wrong; ``loc``: where, or None; ``hint``: what to do, or empty."""

    def __init__(self, message: str, loc: Loc | None = None, hint: str = "") -> None:
        self.message = message
        self.loc = loc
        self.hint = hint
        super().__init__(render(message, loc, hint))

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.loc, self.hint))


class SpirogradSyntaxError(SpirogradCompilationError, SyntaxError):
    """A Python construct that kernels do not support, or not in this place."""


class SpirogradTypeError(SpirogradCompilationError, TypeError):
    """An operand, an argument or an annotation has the wrong type."""


class SpirogradNameError(SpirogradCompilationError, NameError):
    """A name that is not defined at this point of the kernel."""


class SpirogradIndexError(SpirogradCompilationError, IndexError):
    """A constant index that is out of range, or the wrong number of indices."""


class SpirogradUnsupportedError(SpirogradCompilationError):
    """This device, back end or version lacks what a correct program needs; the message names it."""


class SpirogradRuntimeError(SpirogradError, RuntimeError):
    """A failure outside of compilation: a device that cannot be started or was lost, a wrong call of the run-time interface."""


class SpirogradRuntimeTypeError(SpirogradRuntimeError, TypeError):
    """A kernel was called with an argument that does not fit its annotation."""


class SpirogradCallError(SpirogradSyntaxError, SpirogradTypeError, SpirogradRuntimeTypeError):
    """A call of a kernel or a function has too many arguments, too few, or unknown names. It is a TypeError of Python and a syntax error of
    the Taichi family."""


class SpirogradValueError(SpirogradRuntimeError, ValueError):
    """A value given by Python is wrong: a shape, an extent, an option."""


class SpirogradArrayError(SpirogradRuntimeTypeError, SpirogradValueError):
    """An array lacks the type, the axes or the elements that the annotation of a parameter demands. It is a ValueError of the Taichi
    family."""


class SpirogradOptionError(SpirogradRuntimeError, KeyError):
    """An unknown option of `init`. It is a KeyError of the Taichi family."""


class SpirogradDamagedError(SpirogradRuntimeError):
    """A file of spirograd is damaged or was altered. ``file``: its path; ``field``: the damaged value, such as
    ``manifest.kernels[0].compiled.args.size``, or empty; ``problem``: what is wrong with it."""

    def __init__(self, file: str, problem: str, field: str = "") -> None:
        self.file = file
        self.field = field
        self.problem = problem
        super().__init__(f"{file} is damaged: {f'`{field}` ' if field else ''}{problem}")

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.file, self.problem, self.field))


class SpirogradAssertionError(SpirogradRuntimeError, AssertionError):
    """An ``assert``, bounds check or overflow check failed inside a kernel."""


class SpirogradBoundsError(SpirogradIndexError, SpirogradAssertionError):
    """An index given by Python is out of range, or the number of indices is wrong. It is an IndexError of Python and a failed assertion of
    the Taichi family."""


class AdStackOverflow(SpirogradRuntimeError):
    """A loop ran for more iterations than computed before the launch of its gradient, so its adstack lacks entries. The gradients are
    wrong."""


class OutOfDeviceMemory(SpirogradRuntimeError, MemoryError):
    """The device, or the limit that `init` set, has too little memory for an allocation. The session stays usable."""


_WIDEST = 120  # characters of a source line that are shown
_CHAIN = 8  # calls that are shown; of longer chains (recursion) the first and the last


def _columns(text: str) -> int:
    """Return the width of ``text`` in columns of a terminal."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)


def excerpt(loc: Loc) -> list[str]:
    """Return the source line of ``loc`` with a caret under the span; empty if the source is not available."""
    line = linecache.getline(loc.file, loc.line).rstrip("\n")
    if not line.strip():
        return []
    # Python counts columns in bytes of UTF-8.
    raw = line.encode()
    before = raw[: loc.col].decode(errors="ignore")
    ends_here = loc.end_line in (0, loc.line) and loc.end_col > loc.col
    span = raw[loc.col : loc.end_col if ends_here else len(raw)].decode(errors="ignore").rstrip()
    shown, lead, upto = line.expandtabs(4), before.expandtabs(4), (before + span).expandtabs(4)
    start = len(shown) - len(shown.lstrip())
    prefix = suffix = ""
    if len(shown) - start > _WIDEST:
        cut = max(start, min(len(lead) - _WIDEST // 3, len(shown) - _WIDEST))
        prefix, start = ("...", cut) if cut > start else ("", start)
        suffix = "..." if len(shown) > start + _WIDEST else ""
    text = prefix + shown[start : start + _WIDEST] + suffix
    column = len(prefix) + _columns(lead[start:])
    width = max(1, min(_columns(upto[max(start, len(lead)) :]), _columns(text) - column))
    number = str(loc.line)
    pad = " " * len(number)
    return [f"  {number} | {text}", f"  {pad} | {' ' * column}{'^' * width}"]


def _calls(chain: list[Loc]) -> list[Loc | str]:
    """Return the part of a chain of calls to show: each location once, because recursion repeats them, and the ends of a long chain."""
    groups: list[Loc | int] = []  # an integer counts calls from locations that are listed already
    seen = set()
    for at in chain:
        place = (at.file, at.line, at.col)
        if place not in seen:
            seen.add(place)
            groups.append(at)
        elif isinstance(groups[-1], int):
            groups[-1] += 1
        else:
            groups.append(1)
    shown: list[Loc | str] = [f"  ... {counted(g, 'more call')} from the same lines ..." if isinstance(g, int) else g for g in groups]
    half = _CHAIN // 2
    middle = groups[half:-half]
    if len(middle) > 1:
        left_out = sum(g if isinstance(g, int) else 1 for g in middle)
        shown[half:-half] = [f"  ... {left_out} more calls ..."]
    return shown


def render(message: str, loc: Loc | None, hint: str = "") -> str:
    """Return the text of an error: message, excerpt with caret, chain of inlined calls, hint."""
    lines = [message]
    for depth, at in enumerate(_calls(loc.chain() if loc is not None else [])):
        if isinstance(at, str):
            lines.append(at)
            continue
        where = f" in {at.function}" if at.function else ""
        lead = "  at" if depth == 0 else "  called from"
        lines.append(f"{lead} {at.file}:{at.line}{where}")
        lines += ["  " + text for text in excerpt(at)]
    if hint:
        lines.append(f"  hint: {hint}")
    return "\n".join(lines)

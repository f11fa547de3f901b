"""Functions for algorithms on tapes, which differentiate an algorithm as one operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Protocol

from spirograd.base.errors import SpirogradRuntimeError, SpirogradUnsupportedError, render
from spirograd.lang import context

if TYPE_CHECKING:
    from spirograd.lang.context import ProgramRecorder

# mypy: disable-error-code="no-untyped-def, valid-type"


class HasGradient(Protocol):
    """A field, an array, or a matrix made of arrays."""

    def has_grad(self) -> bool:
        """Return whether it has a gradient."""


def tape() -> ProgramRecorder | None:
    """Return the tape that records now, or None. Its gradients of algorithms are formulas: it must not record their loops, too."""
    recorder = context.recorder()
    return recorder if recorder is not None and recorder.reverses else None


def tape_of(*memories: HasGradient | None) -> ProgramRecorder | None:
    """Return the tape that records now if one of ``memories`` (None for no memory) has a gradient; else None."""
    return tape() if any(m is not None and m.has_grad() for m in memories) else None


def nothing() -> None:
    """Do nothing: the reverse of an algorithm that computes integers, or reads memory without gradients."""


def refuse(name: str, what: str, hint: str = "") -> NoReturn:
    """Raise SpirogradUnsupportedError: ``name`` has no derivative."""
    raise SpirogradUnsupportedError(f"`{name}` {what}: a tape cannot differentiate it", None, hint)


def need_gradient(memory: HasGradient, argument: str, name: str) -> None:
    """Raise SpirogradRuntimeError unless a result has a gradient."""
    if not memory.has_grad():
        problem = f"gradients end at `{argument}` of `{name}`, which has none, and is computed from memory with gradients"
        raise SpirogradRuntimeError(render(problem, None, "declare it with `needs_grad=True`"))

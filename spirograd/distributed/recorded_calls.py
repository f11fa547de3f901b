"""Recording of collective calls on tapes: as Python code with a reverse of its own, which all processes run in the same order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spirograd.ad.forward_mode import FwdMode
from spirograd.ad.memory_keys import FieldOrArray
from spirograd.ad.tape import Tape
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.recorder import R
from spirograd.lang import context


def tape_of(what: str) -> Tape | None:
    """Return the tape that records now, or None. Raises SpirogradUnsupportedError if derivatives would be wrong."""
    recorder = context.recorder()
    if isinstance(recorder, FwdMode):
        raise SpirogradUnsupportedError(f"forward mode does not reach other processes: {what} has no tangents", None, "use `sg.ad.Tape`")
    if not isinstance(recorder, Tape) or not recorder.reverses:
        return None
    if recorder.checks_gradients:
        hint = "compare with a program on one process"
        raise SpirogradUnsupportedError(f"`Tape(grad_check=)` runs launches again on one process only: it cannot check {what}", None, hint)
    return recorder


def recorded(tape: Tape | None, function: Callable[[], R], reverse: Callable[[], None], memories: Sequence[FieldOrArray], what: str) -> R:
    """Run ``function``; ``reverse`` is its derivative. ``memories``: the memory that it reads."""
    if tape is None:
        return function()
    for memory in memories:
        if not memory.has_grad():
            tape.numbers_of(memory, what)
    return tape.run_aside(function, reverse, False)

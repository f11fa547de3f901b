"""Custom gradient functions must change gradients only: this recorder saves all other memory that they write, and restores it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spirograd.ad.entries import Launch, footprint_of
from spirograd.ad.versions import Saved, Stored, memory_identity
from spirograd.lang import context
from spirograd.lang.data import shadows
from spirograd.lang.data.scalar_field import ScalarField


class Guard(context.Recorder):
    """Saves all memory that is written, once."""

    def __init__(self) -> None:
        self._saved: dict[Any, Saved] = {}

    def launch(self, kernel: Any, specialization: Any, packer: Any, args: Sequence[Any]) -> Any:
        """Launch a kernel; see `context.Recorder`."""
        self.writes(Launch(context.session(), kernel, specialization, packer, args))
        return specialization.plan.launch(packer.scalars, packer.arrays, specialization.trees)

    def writes(self, launch: Launch) -> None:
        """Save what a launch is about to write."""
        for access in footprint_of(launch.specialization).written:
            whole = launch.memory(access)[1]
            if whole is not None:
                self.save(whole)

    def host_write(self, memory: Any, key: Any, clear: Callable[..., None], source: Any, repeat: Any) -> None:
        """The host is about to write; see `context.Recorder`."""
        self.save(memory)

    def save(self, memory: Any) -> None:
        """Save memory, unless it is a gradient."""
        if shadows.is_shadow(memory) or (isinstance(memory, ScalarField) and memory.role != "primal"):
            return
        key, whole = memory_identity(memory)
        if key not in self._saved:
            self._saved[key] = Saved(Stored("", whole), None)

    def restore(self) -> None:
        """Put everything back."""
        for saved in self._saved.values():
            saved.put()


def run_guarded(run: Callable[[], None]) -> None:
    """Run a gradient function, and put back what it writes to memory that is no gradient."""
    guard = Guard()
    before = context.set_recorder(guard)
    try:
        run()
    finally:
        context.set_recorder(before)
        guard.restore()

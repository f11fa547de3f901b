"""Custom gradient functions must change gradients only: this recorder saves all other memory that they write, and restores it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spirograd.ad.entries import Launch, footprint_of
from spirograd.ad.memory_keys import FieldOrArray, Key, Part, ProgramRecorder, Returned
from spirograd.ad.undo_log import UndoLog
from spirograd.ad.versions import Stored, memory_identity, slice_at
from spirograd.base.recorder import Clear
from spirograd.lang import context
from spirograd.lang.data import shadows
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.kernel import Kernel
from spirograd.lang.frontend.specialization import Specialization
from spirograd.lang.frontend.steps import Packer


class Guard(ProgramRecorder):
    """Saves what is written, before it is: slices that the host knows, each once, else all of the memory."""

    def __init__(self) -> None:
        self._log = UndoLog()
        self._stored: dict[Key, Stored] = {}

    def launch(self, kernel: Kernel, specialization: Specialization, packer: Packer, args: Sequence[object]) -> Returned:
        """Launch a kernel; see `Recorder`."""
        self.writes(Launch(context.session(), kernel, specialization, packer, args))
        returned: Returned = specialization.plan.launch(packer)
        return returned

    def writes(self, launch: Launch) -> None:
        """Save what a launch is about to write."""
        for access in footprint_of(launch.specialization).writes:
            storage = launch.memory(access)[1]
            if storage is not None:
                self.save(storage, launch.part(access.at))

    def host_write(
        self, memory: FieldOrArray, key: object, clear: Clear, source: FieldOrArray | None, repeat: Callable[[], None] | None
    ) -> None:
        """Save what the host is about to write; see `Recorder`."""
        self.save(memory, slice_at(key))

    def save(self, memory: FieldOrArray, at: Part | None) -> None:
        """Save memory, one slice or (None) all of it, unless it is a gradient."""
        if shadows.is_shadow(memory) or (isinstance(memory, ScalarField) and memory.role != "primal"):
            return
        key, storage = memory_identity(memory)
        stored = self._stored.get(key)
        if stored is None:
            stored = self._stored[key] = Stored("", storage)
        self._log.before([(key, stored, stored.part(at))])

    def restore(self) -> None:
        """Put everything back."""
        self._log.restore()


def run_guarded(run: Callable[[], None]) -> None:
    """Run a gradient function, and put back what it writes to memory that is no gradient."""
    guard = Guard()
    before = context.set_recorder(guard)
    try:
        run()
    finally:
        context.set_recorder(before)
        guard.restore()

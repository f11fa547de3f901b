"""`kernel.grad(..., replay=True)`: the gradient of a kernel that overwrites what the gradient reads, from memory as it is now."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.ad import external_arrays
from spirograd.ad.memory_keys import Returned
from spirograd.ad.restored import Guard
from spirograd.ad.tape import Tape
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.lang import context
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.frontend.kernel import Kernel
from spirograd.lang.frontend.specialization import Specialization
from spirograd.lang.frontend.steps import Packer, objects_of
from spirograd.lang.session_protocol import Session


def replay_gradient(kernel: Kernel, session: Session, specialization: Specialization, args: Sequence[object], returned: object) -> None:
    """Run the kernel again, which saves what it overwrites, then its reverse; afterwards memory holds what it held, but for gradients.

    Right if memory holds what it held before the kernel. Random numbers are those of the last launch.
    """
    if context.recorder() is not None:
        raise SpirogradRuntimeError("`kernel.grad` cannot replay a kernel inside of a tape, a `FwdMode` or a gradient function")
    external = [array for array in objects_of(specialization.steps, args) if array is not None and not isinstance(array, Ndarray)]
    undo = [external_arrays.undo(array) for array in external]
    guard = Guard()
    tape = _OneLaunch(returned, specialization.last_number, guard)
    try:
        with tape:
            kernel._launch(session, specialization, args)
        tape.grad()
    finally:
        guard.restore()
        for run in undo:
            run()


class _OneLaunch(Tape):
    """The tape of one launch. ``guard`` keeps what it overwrites."""

    def __init__(self, returned: object, number: int | None, guard: Guard) -> None:
        super().__init__(clear_gradients=False)
        self.returned = returned
        self.drawn = number
        self._guard = guard

    def launch(self, kernel: Kernel, specialization: Specialization, packer: Packer, args: Sequence[object]) -> Returned:
        """Launch the kernel and record it."""
        self._outer = self._guard
        try:
            return super().launch(kernel, specialization, packer, args)
        finally:
            self._outer = None

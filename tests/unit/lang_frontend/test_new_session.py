"""A session that begins in another thread while a kernel is called."""

from typing import Any

import spirograd as sg
from spirograd.lang import context
from spirograd.lang.frontend.kernel import Kernel


class Interrupted(Kernel):
    """Another thread calls it in the new session, between two steps of a call: when the quick call has been read."""

    armed = False

    @property
    def _quick(self) -> Any:
        held = self.held
        if self.armed:
            self.armed = False
            self._start(context.session())
        return held

    @_quick.setter
    def _quick(self, value: Any) -> None:
        self.held = value


def test_a_quick_call_is_of_its_session() -> None:
    def twice(n: sg.i32) -> sg.i32:
        return 2 * n

    kernel = Interrupted(twice)
    sg.init(arch=sg.cpu)
    try:
        assert kernel(3) == kernel(3) == 6
        old = next(iter(kernel._specializations.values()))[0]
        sg.init(arch=sg.cpu)
        kernel.armed = True
        assert kernel(4) == 8
        new = next(iter(kernel._specializations.values()))[0]
        assert new is not old
    finally:
        sg.reset()

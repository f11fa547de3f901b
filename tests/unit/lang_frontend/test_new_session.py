"""A session that begins in another thread while a kernel is called."""

from typing import Any

import pytest

import spirograd as sg
from spirograd.lang import context
from spirograd.lang.frontend.kernel import Kernel


class Interrupted(Kernel):
    """Another thread calls it in the new session, between two steps of a call: when what belongs to a session has been read."""

    armed = False

    @property
    def _in_session(self) -> Any:
        held = self.held
        if self.armed:
            self.armed = False
            self._start(context.session())
        return held

    @_in_session.setter
    def _in_session(self, value: Any) -> None:
        self.held = value


def test_a_call_is_of_its_session() -> None:
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


class Rebound(Kernel):
    """Another thread begins a session and calls it there, while a call binds its arguments."""

    meanwhile: Any = None

    def _bind(self, *args: Any) -> Any:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            sg.init(arch=sg.cpu)
            meanwhile()
        return super()._bind(*args)


@pytest.mark.parametrize("known", [True, False], ids=["compiled before", "compiled then"])
def test_what_is_compiled_is_of_its_session(known: bool) -> None:
    def scaled(n: sg.i32, *, factor: sg.template()) -> sg.i32:  # by name alone, which `_bind` takes care of
        return factor * n

    kernel = Rebound(scaled)
    sg.init(arch=sg.cpu)
    try:
        first = context.session()
        assert kernel(3, factor=1) == 3
        if known:
            assert kernel(3, factor=5) == 15
        kernel.meanwhile = lambda: kernel(3, factor=5 if known else 2)
        session, made, _ = kernel.specialized((3,), {"factor": 5})
        assert session is first and context.session() is not first
        assert made not in [held for found in kernel._specializations.values() for held in found]
        assert kernel(4, factor=5) == 20 and kernel(4, factor=2) == 8
    finally:
        sg.reset()

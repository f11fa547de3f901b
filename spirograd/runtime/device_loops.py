"""Loops whose condition lies on the device, repeated by the device itself.

The loop body is planned first: Python runs it once, launch plans record what they would launch, and no kernel runs. A loop that was planned
before with the same arguments is recorded already; otherwise the device records it. The host repeats loops that cannot be planned: those
with prints, checks, random numbers, arrays of other libraries, or memory that is allocated in the body.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Union

from spirograd.base.device import CallsNatively, Loop, RecordsLoops, Sections, Step
from spirograd.base.validity import NotPrepared, Record
from spirograd.runtime import graph_recording, stream_order
from spirograd.runtime.graph_recording import GraphRecording, NotPlanned, NumberedLaunch
from spirograd.runtime.launcher import Launcher

if TYPE_CHECKING:
    from spirograd.base.arguments import Arguments
    from spirograd.runtime.native.launch_preparation import Prepared

_KEPT = 32  # recorded loops of a session
_Node = Union[Step, Sections, Loop]


class LoopPlan(GraphRecording):
    """The work of one iteration of a loop, as the device would do it."""

    plans = True

    def __init__(self, launcher: Launcher) -> None:
        super().__init__(launcher)
        self.nodes: list[_Node] = []
        self._open: list[list[Any]] = [self.nodes]

    @contextlib.contextmanager
    def loop(self, flag: int) -> Iterator[None]:
        """Plan the body of a loop in the block. ``flag``: the address of its condition."""
        loop = Loop(flag, [])
        self._open[-1].append(loop)
        with self._into(loop.body):
            yield

    def sections(self, works: Sequence[Callable[[], None]]) -> None:
        """Plan ``works``, which may run at the same time."""
        sections = Sections([[] for _ in works])
        self._open[-1].append(sections)
        for steps, work in zip(sections.sections, works):
            with self._into(steps):
                work()

    @contextlib.contextmanager
    def _into(self, nodes: list[Any]) -> Iterator[None]:
        self._open.append(nodes)
        try:
            yield
        finally:
            self._open.pop()

    # --- called by launches and allocations ---

    def launched(self, launch: Step | NumberedLaunch) -> None:
        if isinstance(launch, NumberedLaunch):
            raise NotPlanned
        self._open[-1].append(launch)

    def uploaded(self, *_: object) -> None:
        raise NotPlanned

    def filled(self, *_: object) -> None:
        raise NotPlanned

    def copied(self, *_: object) -> None:
        raise NotPlanned

    def afterwards(self, *_: object) -> None:
        raise NotPlanned

    def holds_while(self, *_: object) -> None:
        raise NotPlanned


class RecordedLoop:
    """A loop that the device has just run. ``recorded``: see `RecordsLoops`. ``written``: generations that it increases, with parts."""

    def __init__(self, device: RecordsLoops, recorded: object, written: Sequence[tuple[dict[str, int], str]]) -> None:
        self._device, self._recorded, self._written = device, recorded, written

    def prepared(self, native: CallsNatively, arguments: Arguments, record: Record) -> Prepared:
        """See `PreparesLaunches`. The loop has its arguments in it, so that calls with the same ones only can run it."""
        from spirograd.runtime.native.launch_preparation import LaunchSteps  # Many processes record no launch.

        code = native.native_code()
        if code is None:
            raise NotPrepared
        recording = LaunchSteps(None, code.steps, b"", record, native.on_host)
        recording.keep_all()
        record.steps(recording)
        for generations, part in self._written:
            recording.wrote(generations, part)
        entry = self._device.entry_of(self._recorded)
        assert entry.report is not None
        recording.reported(entry.failed, entry.report)
        return recording.finish((entry.function, entry.context), (entry.kept,), None, entry.lock)


class DeviceLoops:
    """Loops that ``launcher``'s device repeats by itself. ``launches`` counts them."""

    def __init__(self, launcher: Launcher, device: RecordsLoops) -> None:
        self.launches = 0
        self._launcher, self._device = launcher, device
        self._recorded: dict[object, object] = {}  # Recorded loops by their key, in the order of their recording.

    def run(self, make: Callable[[LoopPlan], None]) -> RecordedLoop | None:
        """Run the loop that ``make`` plans, and return it. Return None, without any effect, if the host has to repeat it."""
        launcher, device = self._launcher, self._device
        if graph_recording.active() is not None or "launch" in vars(device):  # The thread is being recorded, or its tasks are timed.
            return None
        plan = LoopPlan(launcher)
        try:
            with plan.open():
                make(plan)
        except NotPlanned:
            return None
        (loop,) = plan.nodes
        with launcher.lock:
            recorded = self._recorded_as(loop)
            if recorded is None:
                return None
            if stream_order.active is None:
                device.repeat(recorded)
            else:
                stream_order.active.after_all(lambda: device.repeat(recorded))
        self.launches += 1
        return RecordedLoop(device, recorded, plan.written)

    def _recorded_as(self, loop: _Node) -> object:
        key = _key(loop)
        recorded = self._recorded.get(key)
        if recorded is None:
            assert isinstance(loop, Loop)
            recorded = self._device.record_loop(loop)
            if recorded is not None:
                if len(self._recorded) >= _KEPT:
                    del self._recorded[next(iter(self._recorded))]
                self._recorded[key] = recorded
        return recorded


def _key(node: _Node) -> object:
    """Return a key that is equal for loops that do the same. It keeps the launched kernels alive, but no memory."""
    if isinstance(node, Loop):
        return (node.flag, *map(_key, node.body))
    if isinstance(node, Sections):
        return tuple([tuple(map(_key, steps)) for steps in node.sections])
    return node.work

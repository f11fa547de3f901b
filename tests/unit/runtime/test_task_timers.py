"""Times of tasks by marks of the device: on stand-ins for the drivers of CUDA and HIP, whose events are a nanosecond apart."""

from time import perf_counter_ns

import pytest
from unit.runtime import gpu_modules

import spirograd as sg
from spirograd.base.arguments import Arguments
from spirograd.base.artifact import TaskInfo
from spirograd.lang import context
from spirograd.runtime.devices.query_timer import Alignment, QueryTimer
from spirograd.runtime.launcher import Launcher
from spirograd.runtime.profiling import Profile


@pytest.fixture
def profile(standin):
    """Measures the launches of a launcher of its own."""
    sg.init(arch=standin.api.arch)
    found = Profile(Launcher(context.session().device, context.session().memory), standin.api.arch)
    found.start()
    yield found
    standin.hold(False)
    found.end()
    sg.reset()


@pytest.mark.parametrize("by_address", [False, True])
def test_each_launch_lies_between_two_events(profile, standin, by_address):
    array = sg.ndarray(sg.i32, shape=4)
    plan = profile._launcher.prepare(gpu_modules.compiled(context.session().device, "count", by_address=by_address))
    for n in (3, 0, 2):
        plan.launch(Arguments.of([None, n, 5], [None] * 3, {0: array.allocation}))
    profile.collect()
    assert array.to_numpy().tolist() == [25, 0, 0, 0]
    assert [(r.iterations, r.launch) for r in profile.records] == [(3, 1), (2, 3)]  # nothing was dispatched for the other
    assert [r.duration for r in profile.records] == [1, 1]
    assert profile.records[0].end <= profile.records[1].begin


def test_graphs_of_the_driver_are_repeated_launch_by_launch(standin):
    sg.init(arch=standin.api.arch)
    array, session = sg.ndarray(sg.i32, shape=4), context.session()
    plan = session.launcher.prepare(gpu_modules.compiled(session.device, "count"))
    with sg.Graph() as graph:
        for k in range(3):
            plan.launch(Arguments.of([None, 2, k], [None] * 3, {0: array.allocation}))
    assert standin.calls("graph_make") == 1
    profile = session.profile()
    profile.start()
    graph.launch()
    profile.stop()
    assert len(profile.records) == 3 and standin.calls("graph_launch") == 0
    graph.launch()
    assert standin.calls("graph_launch") == 1 and array.to_numpy()[0] == 18
    sg.reset()


@pytest.mark.parametrize("symbol", ["event_record", "event_elapsed", "launch"])
def test_a_driver_that_refuses(profile, standin, symbol):
    array = sg.ndarray(sg.i32, shape=4)
    plan = profile._launcher.prepare(gpu_modules.compiled(context.session().device, "count"))
    standin.fail(symbol, 1)
    with pytest.raises(sg.SpirogradRuntimeError, match=r"INVALID_VALUE|hipErrorInvalidValue"):
        plan.launch(Arguments.of([None, 1, 5], [None] * 3, {0: array.allocation}))
        profile.collect()
    standin.fail(symbol, 0, 0)
    profile.collect()
    plan.launch(Arguments.of([None, 1, 5], [None] * 3, {0: array.allocation}))
    profile.collect()
    assert profile.records[-1].launch == 2


class Marks(QueryTimer):
    """A device whose clock began ``ahead`` ns before the host's, and whose alignment is off by ``error``."""

    def __init__(self, ahead: int, error: int) -> None:
        device = type("Device", (), {"_turn": _Turn(), "_finish": lambda self: None})()
        super().__init__(device, 4)
        self.ahead, self.error, self.made = ahead, error, []

    def _split(self, executable):
        return [executable]

    def _run(self, slot, part, block, counts):
        begin = perf_counter_ns() + self.ahead
        self.made[slot:] = [(begin, begin + 10)]

    def _marks(self, count):
        return self.made[:count]

    def _align(self):
        now = perf_counter_ns()
        return Alignment(now + self.ahead + self.error, now, now)

    def _close(self):
        pass


class _Turn:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize("error", [0, 10**9, -(10**9)])
@pytest.mark.parametrize("ahead", [0, 12345678901, -12345678901])
def test_the_clock_of_a_device_is_aligned_by_causes(ahead, error):
    kernel, executable = type("K", (), {"tasks": (TaskInfo("k", "serial", "k", 0),)})(), _Turn()
    timer = Marks(ahead, error)
    begin = perf_counter_ns()
    for number in range(10):  # more than it can mark
        timer.launch(kernel, executable, b"", (1,), number)
    times = timer.collect()
    assert [t.launch for t in times] == list(range(10))
    assert all(begin <= t.begin and t.end - t.begin == 10 and t.end <= perf_counter_ns() for t in times)
    assert timer.collect() == []

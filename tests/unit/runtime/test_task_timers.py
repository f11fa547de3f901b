"""Times of tasks by marks of the device: on stand-ins for the drivers of CUDA and HIP, whose events are a nanosecond apart."""

import ctypes
import gc
from time import perf_counter_ns

import pytest
from unit.runtime import gpu_modules

import spirograd as sg
from spirograd.base.arguments import Arguments
from spirograd.base.artifact import TaskInfo
from spirograd.base.options import GROUP_SIZES
from spirograd.base.records import replace
from spirograd.lang import context
from spirograd.runtime import trials, tuning
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


@pytest.fixture
def session(standin):
    sg.init(arch=standin.api.arch, tune=False)
    yield context.session()
    standin.hold(False)
    sg.reset()


def work(session, n, by_address=False):
    """A kernel that adds 5 to the array n times, and the arguments of its launch by a device."""
    array = sg.ndarray(sg.i32, shape=4)
    plan = session.launcher.prepare(gpu_modules.compiled(session.device, "count", by_address=by_address))
    block, counts = plan._pack([None, n, 5], [None] * 3, {0: array.allocation}, 0, 0, ())
    return array, (plan.executable, block, counts)


def arrived(measurement):
    """The times. The stand-in does a piece of work at each query."""
    return next(times for _ in range(100) if (times := measurement.take()) is not None)


@pytest.mark.parametrize("by_address", [False, True])
def test_a_stopwatch_waits_for_nothing(session, standin, by_address):
    array, launch = work(session, 3, by_address)
    stopwatch, waits = session.device.stopwatch(), session.device.waits
    standin.hold()
    measured = [stopwatch.measure(*launch) for _ in range(3)]
    assert [m.take() for m in measured] == [None] * 3 and session.device.waits == waits
    standin.hold(False)
    assert list(map(arrived, measured)) == [[1]] * 3 and session.device.waits == waits
    assert array.to_numpy()[0] == 45
    events = standin.live("events")
    del measured
    for _ in range(10):
        assert arrived(stopwatch.measure(*launch)) == [1]
    assert standin.live("events") == events, "slots of measurements that were dropped are not used again"
    stopwatch.close()
    assert standin.live("events") < events


def test_tasks_without_a_dispatch_take_no_time(session):
    _, launch = work(session, 0)
    stopwatch = session.device.stopwatch()
    assert arrived(stopwatch.measure(*launch)) == [0]
    stopwatch.close()
    assert stopwatch.measure(*launch) is None


def test_profiles_and_recordings_of_other_libraries_are_not_measured(session, standin):
    array, launch = work(session, 2)
    stopwatch = session.device.stopwatch()
    profile = session.profile()
    profile.start()
    assert stopwatch.measure(*launch) is None
    profile.stop()
    driver, other, graph = session.device._driver, ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("create a stream", driver.stream_create, ctypes.byref(other), 1)
    session.device.switch(other.value)
    assert arrived(stopwatch.measure(*launch)) == [1]
    driver.call("record a graph", driver.capture_begin, other, 2)
    assert stopwatch.measure(*launch) is None
    driver.call("record a graph", driver.capture_end, other, ctypes.byref(graph))
    driver.graph_destroy(graph)
    assert array.to_numpy()[0] == 10
    session.device.switch(session.device._stream.own)
    driver.stream_destroy(other)
    stopwatch.close()


def test_combined_executables_keep_their_kernels(session, standin):
    array, (executable, block, counts) = work(session, 2)
    combined = session.device.combine([executable])
    modules = standin.live("modules")
    del executable
    session.device.launch(combined, block, counts)
    session.sync()
    gc.collect()
    assert array.to_numpy()[0] == 10 and standin.live("modules") == modules


def test_launches_choose_by_events(session, standin, monkeypatch):
    """Two tasks, of which each takes groups of another size from its best candidate; results are those of all launches."""
    monkeypatch.setattr(trials, "SHORTEST", 0)
    monkeypatch.setattr(tuning, "worth_of", lambda compilation, alternatives: 0)
    monkeypatch.setattr(trials.Trial, "_is_faster", lambda trial, part, name: True)
    monkeypatch.setattr(trials.Trial, "_best", lambda trial, part: trial.parts[part][part])
    names = ("groups of 64", "groups of 128")

    def candidate(name=""):
        kernel = gpu_modules.compiled(session.device, "count", "count")
        size = GROUP_SIZES.get(name, 32)
        return replace(kernel, key=name, tasks=tuple([replace(task, group_size=size, alternatives=names) for task in kernel.tasks]))

    tuner = tuning.Tuner(session.launcher, "a card", None)
    plan = session.launcher.prepare(candidate())
    tuner.tune(plan, candidate, 0)
    array, launches = sg.ndarray(sg.i32, shape=4), 60
    for _ in range(launches):
        plan.launch(Arguments.of([None, 3, 5], [None] * 3, {0: array.allocation}))
        session.device.synchronize()
        tuner.wait()
    assert array.to_numpy()[0] == launches * 2 * 3 * 5
    assert [launch.group_size for launch in standin.launches[-2:]] == [64, 128]
    assert [line.split(":")[1].split(";")[0] for line in plan.measured_choices()] == [f" {name} chosen" for name in names]
    tuner.close()


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

    def _arrival(self, slots):
        raise NotImplementedError

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

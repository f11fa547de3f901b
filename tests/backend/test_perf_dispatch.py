"""`perf_dispatch`: functions with several implementations."""

import functools

import pytest

import spirograd as sg


@pytest.fixture
def dispatched(monkeypatch):
    """Makes a function of (size, flag) with three implementations, and the list of the names of those that ran. The clock shows the seconds
    that each is said to take: real ones would depend on what else the machine does."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return functools.partial(_dispatched, now)


def _dispatched(now, **options):
    ran = []

    @sg.perf_dispatch(get_geometry_hash=lambda size, flag: size, **options)
    def work(size, flag):
        """What all of them do."""

    def implementation(name, seconds):
        def run(size, flag):
            ran.append(name)
            now[0] += seconds
            return name

        return run

    work.register(implementation("s", 0.02))
    work.register(is_compatible=lambda size, flag: flag)(implementation("f", 0.0))
    work.register(implementation("m", 0.01))
    return work, ran


@pytest.mark.archs("cpu")
def test_the_fastest_runs_once_all_are_timed(session, dispatched):
    work, ran = dispatched(first_warmup=1, warmup=0, active=2, repeat_after_count=5)
    assert [work(1, True) for _ in range(22)] == ran
    assert "".join(ran) == "sfmsfmsfm" + "fffff" + "sfmsfm" + "ff"
    assert work.__name__ == "work" and work.__doc__ == "What all of them do."


@pytest.mark.archs("cpu")
def test_each_geometry_is_timed_by_itself_and_only_what_can_run(session, dispatched):
    work, ran = dispatched(active=1)
    for _ in range(6):
        work(1, False)
    assert "".join(ran) == "smsmmm"
    ran.clear()
    work(2, False)
    work(1, True)  # which now may run `f`, not timed yet
    assert "".join(ran) == "sm"


@pytest.mark.archs("cpu")
def test_kernels_are_implementations_and_one_that_fits_runs_at_once(session):
    x = sg.field(sg.i32, shape=4)

    @sg.perf_dispatch(get_geometry_hash=lambda n: 0)
    def add(n): ...

    @add.register(is_compatible=lambda n: n < 3)
    @sg.kernel
    def small(n: sg.i32):
        for i in x:
            x[i] += n

    add(2)
    add(n=1)
    assert x.to_numpy().tolist() == [3] * 4
    with pytest.raises(sg.SpirogradRuntimeError, match="`add` has no implementation that can run on these arguments"):
        add(3)
    with pytest.raises(sg.SpirogradRuntimeError, match="at least 1"):
        sg.perf_dispatch(get_geometry_hash=hash, active=0)

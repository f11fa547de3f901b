"""Tasks in which a condition tells the iterations that have adstacks from those that have none.

On GPUs only the invocations that meet one of the former take a thread slot, of as many as a kernel counts before: whatever the condition
is, as long as the task does not write what it depends on. Each test checks gradients on all back ends, and the thread slots where they are
counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grad.chains import AMPLIFIED, advance, advanced, chains, starts
from grad.guarded import Data, N, check_slots, counts, guarded_chains, masks

import spirograd as sg

# --- sizes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.archs("cpu", "vulkan", "wgpu")  # minutes on the interpreter
@pytest.mark.parametrize("n,block", [(65_700, 192), (131_072 + 4_321, 64), pytest.param(300_001, 256, marks=pytest.mark.long)])
def test_more_iterations_than_can_run_at_once(session: Any, n: int, block: int) -> None:
    """All of them are looked at; who meets several that pass keeps the thread slot that it has."""
    data = Data(n)
    x, y, trips, b = data.x, data.y, data.trips, data.b

    @sg.kernel
    def run():
        sg.loop_config(block_dim=block)
        for i in x:
            if b[i] > 0:
                v = x[i]
                for _ in range(trips[i]):
                    v = advance(v)
                y[i] = AMPLIFIED * v

    for on in masks(n)[:4]:
        b.from_numpy(on.astype(np.int32))
        data.check(run, on, np.arange(n) % 5)


@pytest.mark.vulkan_or_wgpu
@pytest.mark.usefixtures("session")
def test_bounds_that_the_host_knows() -> None:
    """Where the length of the loop is a constant, a scalar or an extent; arrays that change their length, too."""
    extent = sg.types.ndarray(sg.i32, 1)

    @sg.kernel
    def run(x: sg.types.ndarray(sg.f32, 1), y: sg.types.ndarray(sg.f32, 1), on: sg.types.ndarray(sg.f32, 1), long: extent, k: sg.i32):
        for i in range(x.shape[0]):
            if on[i] > 0.5:
                v = x[i]
                for _ in range(11):
                    v = advance(v)
                for _ in range(long.shape[0]):
                    v = advance(v)
                for _ in range(k):
                    v = advance(v)
                y[i] = AMPLIFIED * v

    rng = np.random.default_rng(1)
    for n, shape, k, part in [(40, 3, 2, 0.3), (193, 9, 0, 0.1), (7, 1, 20, 0.0), (193, 2, 2, 1.0), (193, 2, 2, 0.2)]:
        x, y = sg.ndarray(sg.f32, n, needs_grad=True), sg.ndarray(sg.f32, n, needs_grad=True)
        switch, long = sg.ndarray(sg.f32, n), sg.ndarray(sg.i32, shape)
        x.from_numpy(starts(n))
        on = rng.random(n) < part
        switch.from_numpy(on.astype(np.float32))
        for _ in range(2):  # the second time nothing is counted again
            x.grad.fill(0.0)
            y.grad.fill(1.0)
            run.grad(x, y, switch, long, k)
            wanted = np.where(on, AMPLIFIED * advanced(starts(n), 11 + shape + k)[1], 0)
            np.testing.assert_allclose(x.grad.to_numpy(), wanted, rtol=3e-3, atol=1e-3)
        check_slots(run, on, x, y, switch, long, k)


@pytest.mark.vulkan_or_wgpu
@pytest.mark.usefixtures("session")
def test_small_tapes_are_not_counted() -> None:
    """All that is known at compile time, and little: a thread slot for each iteration, no kernel that counts."""
    x, y = chains(N)
    on = sg.field(sg.i32, N)

    @sg.kernel
    def run():
        for i in x:
            if on[i] > 0:
                v = x[i]
                for _ in range(12):
                    v = advance(v)
                y[i] = AMPLIFIED * v

    x.from_numpy(starts(N))
    on.from_numpy((np.arange(N) % 2).astype(np.int32))
    sg.ad.sizings(reset=True)
    y.grad.fill(1.0)
    run.grad()
    wanted = np.where(np.arange(N) % 2, AMPLIFIED * advanced(starts(N), 12)[1], 0)
    np.testing.assert_allclose(x.grad.to_numpy(), wanted, rtol=3e-3, atol=1e-3)
    assert sg.ad.sizings().counted == 0


# --- adstacks and tasks -----------------------------------------------------------------------------------------------------


@pytest.mark.vulkan_or_wgpu
@pytest.mark.usefixtures("session")
def test_tapes_of_floats_and_of_integers() -> None:
    """Two loops behind one condition, the second in a branch of its own; an integer that decides which way the float goes."""
    data = Data(N)
    x, y, trips, b = data.x, data.y, data.trips, data.b

    @sg.kernel
    def run():
        for i in x:
            if b[i] > 0:
                v, k = x[i], 1 + i
                for _ in range(trips[i]):
                    if k % 2 == 0:
                        v = advance(v)
                    k = (k * 7 + 3) % 1013
                if b[i] > 1:
                    for _ in range(b[i]):
                        if k % 3 != 0:
                            v = advance(v)
                        k = (k * k + 1) % 1009
                y[i] = AMPLIFIED * v

    rng = np.random.default_rng(5)
    for on in masks(N):
        given, more = rng.integers(0, 40, N), np.where(on, rng.integers(1, 9, N), 0)
        b.from_numpy(more.astype(np.int32))
        made = np.zeros(N, np.int32)
        for i in np.flatnonzero(on):
            k = 1 + i
            for _ in range(given[i]):
                made[i] += k % 2 == 0
                k = (k * 7 + 3) % 1013
            for _ in range(more[i] if more[i] > 1 else 0):
                made[i] += k % 3 != 0
                k = (k * k + 1) % 1009
        data.check_gradient(run, given, made, on)
        check_slots(run, on)


@pytest.mark.vulkan_or_wgpu
@pytest.mark.usefixtures("session")
def test_sparse_and_dense_tasks_in_one_kernel() -> None:
    """Two that are sparse under conditions of their own, two that are dense, and a serial loop with adstacks."""
    n, fewer = N, 101
    x, y = chains(4 * n + 1)
    a, b, trips = sg.field(sg.i32, n), sg.field(sg.i32, n), sg.field(sg.i32, 3)

    @sg.kernel
    def run():
        for i in range(n):
            if a[i] > 0:
                v = x[i]
                for _ in range(trips[0]):
                    v = advance(v)
                y[i] = AMPLIFIED * v
        for i in range(fewer):
            v = x[n + i]
            for _ in range(trips[1] + i % 3):
                v = advance(v)
            y[n + i] = AMPLIFIED * v
        w = x[4 * n]
        sg.loop_config(serialize=True)
        for _ in range(trips[2]):
            w = advance(w)
        y[4 * n] = AMPLIFIED * w
        for i in range(n):
            if b[i] > 0:
                v = x[2 * n + i]
                for _ in range(trips[2]):
                    v = advance(v)
                y[2 * n + i] = AMPLIFIED * v
        for i in range(n):
            v = x[3 * n + i]
            for _ in range(trips[0] + i % 2):
                v = advance(v)
            if a[i] > 0:  # only this one of its adstacks
                for _ in range(trips[1]):
                    v = advance(v)
            y[3 * n + i] = AMPLIFIED * v

    i = np.arange(n)
    for part, (p, q, r) in zip((0.1, 0.0, 1.0, 0.5), [(3, 8, 20), (40, 1, 0), (0, 5, 9), (17, 17, 17)]):
        rng = np.random.default_rng(p)
        first, second = rng.random(n) < part, rng.random(n) < part / 2
        a.from_numpy(first.astype(np.int32))
        b.from_numpy(second.astype(np.int32))
        trips.from_numpy(np.array([p, q, r], np.int32))
        many = np.concatenate([np.full(n, p), q + i % 3, np.full(n, r), p + i % 2 + q * first, [r]])
        on = np.concatenate([first, i < fewer, second, np.ones(n + 1, bool)])
        x.from_numpy(starts(4 * n + 1))
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        run.grad()
        wanted = np.where(on, AMPLIFIED * advanced(starts(4 * n + 1), many)[1], 0)
        np.testing.assert_allclose(x.grad.to_numpy(), wanted, rtol=3e-3, atol=1e-3)
        if counts():
            slots = [task.slots for task in run.grad.memory_plan().tasks if task.task is not None]
            assert slots[0] in (n, 256) and slots[3] in (fewer, 256), "as many as iterations, or invocations: they run backwards"
            assert [slots[1], slots[2], slots[4]] == [max(int(on.sum()), 1) for on in (first, second, first)]


@pytest.mark.vulkan_or_wgpu
@pytest.mark.usefixtures("session")
def test_two_conditions_in_one_task() -> None:
    """Each guards adstacks of its own, and an iteration may pass both."""
    data = Data(N)
    x, y, trips, b, at = data.x, data.y, data.trips, data.b, data.at

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            if b[i] > 0:
                for _ in range(trips[i]):
                    v = advance(v)
            if at[i] > 0:
                for _ in range(trips[i] + 2):
                    v = advance(v)
            y[i] = AMPLIFIED * v

    for on in masks(N):
        for other in masks(N + 1):
            more, given = other[:N], np.arange(N) % 7
            b.from_numpy(on.astype(np.int32))
            at.from_numpy(more.astype(np.int32))
            data.check_gradient(run, given, on * given + more * (given + 2))
            if counts():
                assert sorted(guarded_slots(run)) == sorted(max(int(n.sum()), 1) for n in (on, more))


def guarded_slots(run: Any) -> list[int]:
    tasks = run.grad.memory_plan().tasks
    assert all(task.guarded for task in tasks)
    return [task.slots for task in tasks]


@pytest.mark.vulkan_or_wgpu
@pytest.mark.usefixtures("session")
def test_conditions_in_each_other() -> None:
    """A loop behind a condition, and two more behind the branches of another one in there; elsewhere integers in all iterations."""
    data = Data(N)
    x, y, trips, b, at = data.x, data.y, data.trips, data.b, data.at

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            if b[i] > 0:
                for _ in range(trips[i]):
                    v = advance(v)
                if at[i] > 0:
                    for _ in range(trips[i] + 1):
                        v = advance(v)
                else:
                    k = i
                    for _ in range(trips[i] + 3):
                        if k % 2 == 0:
                            v = advance(v)
                        k = (k * 7 + 3) % 1013
            y[i] = AMPLIFIED * v

    for on, other in zip(masks(N), masks(N + 1)[::-1]):
        inner, given = other[:N], np.arange(N) % 6
        b.from_numpy(on.astype(np.int32))
        at.from_numpy(inner.astype(np.int32))
        even = np.zeros(N, np.int32)
        for i in range(N):
            k = i
            for _ in range(given[i] + 3):
                even[i] += k % 2 == 0
                k = (k * 7 + 3) % 1013
        data.check_gradient(run, given, on * (given + np.where(inner, given + 1, even)))
        if counts():
            passing = [on, on & inner, on & ~inner]
            assert sorted(guarded_slots(run)) == sorted(max(int(n.sum()), 1) for n in passing)


@pytest.mark.vulkan_or_wgpu
@pytest.mark.usefixtures("session")
def test_a_loop_around_the_condition() -> None:
    """A thread slot lasts for a whole iteration of the task, so that the loop is what claims it; if there is nothing around that, all
    do."""
    data = Data(N)
    x, y, trips, a, b = data.x, data.y, data.trips, data.a, data.b

    @sg.kernel
    def guarded():
        for i in x:
            if a[i] > 0.0:
                v = x[i]
                for k in range(3):
                    if (b[i] >> k) & 1 == 1:
                        for _ in range(trips[i]):
                            v = advance(v)
                y[i] = AMPLIFIED * v

    @sg.kernel
    def open():
        for i in x:
            for k in range(3):
                if (b[i] >> k) & 1 == 1:
                    v = x[i]
                    for _ in range(trips[i]):
                        v = advance(v)
                    y[i] += AMPLIFIED * v

    rng = np.random.default_rng(2)
    for on in masks(N):
        bits, given = rng.integers(0, 8, N), rng.integers(0, 9, N)
        many = np.array([bin(k).count("1") for k in bits])
        a.from_numpy(on.astype(np.float32))
        b.from_numpy(bits.astype(np.int32))
        data.check_gradient(guarded, given, many * given, on)
        check_slots(guarded, on)
        seeds = data.write(given)
        open.grad()
        wanted = AMPLIFIED * advanced(starts(N), given)[1] * many * seeds
        np.testing.assert_allclose(x.grad.to_numpy(), wanted, rtol=3e-3, atol=1e-3)
        if counts():
            assert open.grad.memory_plan().slots >= N


@pytest.mark.vulkan_or_wgpu
@pytest.mark.usefixtures("session")
def test_a_length_that_depends_on_a_carried_value() -> None:
    """A kernel that counts has adstacks itself, behind the same condition, and claims thread slots as well."""
    data = Data(N)
    x, y, trips, b = data.x, data.y, data.trips, data.b

    @sg.kernel
    def run():
        for i in x:
            if b[i] > 0:
                v, k = x[i], i
                for _ in range(trips[i]):
                    k = (k * 5 + 3) % 7
                    for _ in range(k):
                        v = advance(v)
                y[i] = AMPLIFIED * v

    rng = np.random.default_rng(4)
    for on in masks(N):
        b.from_numpy(on.astype(np.int32))
        given = rng.integers(0, 6, N)
        many = np.zeros(N, np.int32)
        for i in range(N):
            k = i
            for _ in range(given[i]):
                k = (k * 5 + 3) % 7
                many[i] += k
        data.check_gradient(run, given, many, on)
        check_slots(run, on)


# --- memory --------------------------------------------------------------------------------------------------------------


@pytest.mark.vulkan_or_wgpu
@pytest.mark.archs("cpu", "vulkan", "wgpu")  # the interpreter's adstacks grow
@pytest.mark.parametrize("part", [0.02, 0.6, 1.0])
def test_a_heap_without_room_for_all_claims(arch: str, part: float) -> None:
    """As many invocations take part as there are thread slots: claims do not fail, and none shares its thread slot."""
    n, k = 4_000, 512
    sg.init(arch=arch, ad_memory_GB=2**19 / 2**30)
    data = Data(n)
    x, y, b, run = data.x, data.y, data.b, guarded_chains(data)
    on = np.random.default_rng(1).random(n) < part
    b.from_numpy(on.astype(np.int32))
    seeds = data.write(np.full(n, k))
    for _ in range(2):
        x.grad.fill(0.0)
        y.grad.from_numpy(seeds)
        run.grad()
        sg.sync()
        wanted = np.where(on, AMPLIFIED * advanced(starts(n), k)[1], 0) * seeds
        np.testing.assert_allclose(x.grad.to_numpy(), wanted, rtol=3e-3, atol=1e-3)
    plan = run.grad.memory_plan()
    assert plan.nbytes <= plan.budget == 2**19
    if counts():
        assert plan.slots == on.sum() if part < 0.1 else plan.slots < on.sum()


@pytest.mark.vulkan_or_wgpu
@pytest.mark.archs("cpu", "vulkan", "wgpu")  # the interpreter's adstacks grow
@pytest.mark.parametrize("part", [0.02, 0.4, 1.0])
def test_a_heap_without_room_for_all_claims_of_two_conditions(arch: str, part: float) -> None:
    n, k = 4_000, 256
    sg.init(arch=arch, ad_memory_GB=2**19 / 2**30)
    data = Data(n)
    x, y, trips, b, at = data.x, data.y, data.trips, data.b, data.at

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            if b[i] > 0:
                for _ in range(trips[i]):
                    v = advance(v)
            if at[i] > 0:
                for _ in range(trips[i]):
                    v = advance(v)
            y[i] = AMPLIFIED * v

    rng = np.random.default_rng(1)
    on, more = rng.random(n) < part, rng.random(n) < part
    b.from_numpy(on.astype(np.int32))
    at.from_numpy(more.astype(np.int32))
    for _ in range(2):
        data.check_gradient(run, np.full(n, k), k * (on.astype(int) + more))
    plan = run.grad.memory_plan()
    assert plan.nbytes <= plan.budget == 2**19


@pytest.mark.archs("vulkan", "wgpu")  # where thread slots are claimed
def test_more_pass_than_were_counted(session: Any) -> None:
    """Written past all tracking: the next sync tells, and the launch after that is right."""
    data = Data(N)
    x, y, trips, b = data.x, data.y, data.trips, sg.ndarray(sg.i32, N)

    @sg.kernel
    def run(b: sg.types.ndarray(sg.i32, 1)):
        for i in x:
            if b[i] > 0:  # switch
                v = x[i]
                for _ in range(trips[i]):
                    v = advance(v)
                y[i] = AMPLIFIED * v

    for few in (1, 6):
        on = np.arange(N) < few
        b.from_numpy(on.astype(np.int32))
        trips.from_numpy(np.full(N, 25, np.int32))
        data.check_gradient(run, np.full(N, 25), on=on, args=(b,))
        values = np.ones(N, np.int32)
        b.allocation.device.upload(b.allocation.buffer, 0, memoryview(values).cast("B"))
        x.grad.fill(0.0)
        with pytest.raises(sg.AdStackOverflow, match="iterations reach the loops with adstacks here") as caught:
            run.grad(b)
            sg.sync()
        assert "test_sparse.py" in str(caught.value)
        data.check_gradient(run, np.full(N, 25), args=(b,))


@pytest.mark.vulkan_or_wgpu
@pytest.mark.usefixtures("session")
def test_more_pass_than_at_the_last_launch() -> None:
    """The host hears of that later; the launch has the memory of the one before, and does with it."""
    data = Data(N)
    run = guarded_chains(data)
    for part in (0.02, 1.0, 0.0, 1.0):
        on = np.random.default_rng(9).random(N) < part
        data.b.from_numpy(on.astype(np.int32))
        data.check(run, on, np.full(N, 25))


@pytest.mark.archs("vulkan", "wgpu")
def test_bytes_follow_what_passes(arch: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SG_DEBUG_ADSTACK", "1")
    sg.init(arch=arch)
    n = 4_000
    data = Data(n)
    run = guarded_chains(data)
    taken = []
    for active in (4, 200, n):
        on = np.arange(n) % (n // active) == 0
        data.b.from_numpy(on.astype(np.int32))
        for _ in range(2):  # by the second launch the host knows
            data.write(np.full(n, 32))
            run.grad()
            sg.sync()
        line = capsys.readouterr().err.splitlines()[-1]
        assert f" rows={active} " in line
        taken.append(run.grad.adstack_bytes)
        assert f" required_bytes={taken[-1]}" in line
    assert taken[0] < taken[1] / 50 < taken[2] / 850


@pytest.mark.archs("cpu", "vulkan", "wgpu")  # minutes on the interpreter
def test_random_numbers_decide(session: Any) -> None:
    """The kernel that counts draws the numbers that the gradient draws, whether or not the kernel itself has run before."""
    n = 3_000
    data = Data(n)
    x, y, trips = data.x, data.y, data.trips

    @sg.kernel
    def run():
        for i in x:
            if sg.random() < 0.5:
                v = x[i]
                for _ in range(trips[i]):
                    v = advance(v)
                y[i] = AMPLIFIED * v

    wanted = AMPLIFIED * advanced(starts(n), 12)[1]
    passed = set()
    for at in range(30):
        seeds = data.write(np.full(n, 12))
        if at >= 25:
            run()
        run.grad()
        sg.sync()
        grad = x.grad.to_numpy()
        on = grad != 0
        np.testing.assert_allclose(grad, np.where(on, wanted * seeds, 0), rtol=3e-3, atol=1e-3)
        assert 0.4 * n < on.sum() < 0.6 * n
        if at >= 25:
            np.testing.assert_array_equal(y.to_numpy() != 0, on)
        passed.add(int(on.sum()))
    assert len(passed) > 5

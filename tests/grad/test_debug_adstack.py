"""SG_DEBUG_ADSTACK: launches of gradients say how they use the heap of adstacks, a line for each slab of each task."""

from __future__ import annotations

import re
from typing import Any

import pytest
from grad.chains import advance, chains, counted_chains

import spirograd as sg
from spirograd.lang import context

pytestmark = pytest.mark.archs("cpu", "vulkan", "wgpu")  # the interpreter has no heap

LINE = re.compile(r"\[adstack_heap\] arch=(\w+) task='(\w+)' kind=([FI]) src=(host|device) rows=(\d+) stride=(\d+) required_bytes=(\d+)")
N = 500


def lines(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, ...]]:
    found = []
    for line in capsys.readouterr().err.splitlines():
        match = LINE.fullmatch(line)
        assert match, line
        found.append(match.groups())
    return found


def two_kinds() -> Any:
    """Two f32 and one i64 for each iteration: the integer is as it was in each of them, so nothing of it is left out."""
    x, y = chains(N)

    @sg.kernel
    def run(k: sg.i32):
        for i in x:
            v, u, m = x[i], x[i], sg.cast(i, sg.i64)
            for _ in range(k):
                m = (m * 7 + 1) % 1009
                if m % 2 == 0:
                    v = advance(v) * sg.sin(u)
                else:
                    u = advance(u) * sg.sin(v)
            y[i] = v + u

    return run


@pytest.mark.parametrize("name", ["SG_DEBUG_ADSTACK", "QD_DEBUG_ADSTACK"])
def test_known_sizes(arch: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(name, "1")
    sg.init(arch=arch)
    run = two_kinds()
    device: Any = context.session().device
    for k in (24, 24, 96):
        capsys.readouterr()
        run.grad(k)
        (plan,) = run.grad.memory_plan(k).tasks
        slabs = {slab.kind: slab for slab in plan.slabs}
        found = lines(capsys)
        assert [line[2] for line in found] == ["F", "I"], "one line for each slab, at each launch"
        for target, task, kind, source, *numbers in found:
            rows, stride, required = map(int, numbers)
            assert (target, task, source) == (arch, plan.task, "host")
            assert rows == plan.slots
            assert rows == N or (arch == "cpu" and rows % device.threads == 0)  # many threads share few iterations
            assert stride == slabs[kind].stride
            assert rows * stride <= required == slabs[kind].nbytes
        each = [adstack for adstack in plan.adstacks if adstack.entry_bytes == 4]
        assert slabs["F"].stride == sum(4 * -(-k // adstack.every) for adstack in each)
        assert slabs["I"].stride == sum(adstack.slot_bytes for adstack in plan.adstacks if adstack.entry_bytes == 8)
        assert slabs["I"].stride % (8 * k) == 0
        assert run.grad.adstack_bytes == sum(slab.nbytes for slab in slabs.values())


def test_counted_sizes(arch: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Devices place adstacks themselves: the lines come when the host hears of it, one for each launch, and tell what that took."""
    monkeypatch.setenv("SG_DEBUG_ADSTACK", "1")
    sg.init(arch=arch)
    run, *_, count = counted_chains(N)
    bounds = (4, 400, 40, 40, 4, 0, 30)
    plans = []
    for longest in bounds:
        count[N - 1] = longest
        plans.append(run.grad.memory_plan())
    for longest in bounds:
        count[N - 1] = longest
        run.grad()
    sg.sync()
    found = lines(capsys)
    assert len(found) == len(bounds)
    for plan, (target, task, kind, source, rows, stride, required) in zip(plans, found):
        (slab,) = plan.tasks[0].slabs
        assert (target, kind, source) == (arch, "F", "host" if arch == "cpu" else "device")
        assert task == plan.tasks[0].task
        assert (int(rows), int(stride), int(required)) == (plan.slots, slab.stride, slab.nbytes)
        assert int(stride) == max(4 * plan.adstacks[0].entries, 4) + (slab.stride - plan.adstacks[0].slot_bytes)
        assert int(rows) * int(stride) <= int(required)


@pytest.mark.parametrize("budget", [0, 1 << 18, 1 << 20])
def test_bytes_of_the_launch_that_they_name(arch: str, budget: int) -> None:
    """Whenever it is read, with or without a wait in between; also where memory is scarce."""
    sg.init(arch=arch, ad_memory_GB=budget / 2**30)
    run, *_, count = counted_chains(N)
    assert run.grad.adstack_bytes == 0
    for longest in (4, 400, 40, 4, 4, 120):
        count.fill(longest)
        plan = run.grad.memory_plan()
        run.grad()
        assert run.grad.adstack_bytes == plan.nbytes
        sg.sync()
        assert run.grad.adstack_bytes == plan.nbytes <= (budget or plan.nbytes)


def test_serial_tasks_go_by_the_name_of_the_kernel(arch: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SG_DEBUG_ADSTACK", "1")
    sg.init(arch=arch)
    x, y = chains(3)

    @sg.kernel
    def run(k: sg.i32):
        v = x[0]
        sg.loop_config(serialize=True)
        for _ in range(k):
            v = advance(v)
        y[0] = v

    run.grad(48)
    ((target, task, kind, source, rows, stride, required),) = lines(capsys)
    (adstack,) = run.grad.memory_plan(48).adstacks
    assert (target, task, kind, source, rows) == (arch, "run_grad", "F", "host", "1")
    assert int(stride) == int(required) == adstack.slot_bytes


def test_costs_nothing_when_off(arch: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """No line, and launches that are alike do not even get near to the place that would print it."""
    monkeypatch.setenv("SG_DEBUG_ADSTACK", "0")
    sg.init(arch=arch)
    run = two_kinds()
    run.grad(24)
    heap = context.session().launcher.adstacks
    for name in ("report", "reserve", "reserve_on_device", "plan"):
        monkeypatch.setattr(heap, name, None)
    for _ in range(3):
        run.grad(24)
    sg.sync()
    assert capsys.readouterr().err == ""

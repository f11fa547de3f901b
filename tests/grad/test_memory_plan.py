"""`kernel.grad.memory_plan(...)`: what a launch will take for its adstacks, told before, by what the launch takes then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest
from grad.chains import advance, chains, counted_chains, launch

import spirograd as sg
from spirograd.lang import context

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]

N = 300
LAUNCHING = ("cpu", "vulkan", "wgpu")  # the interpreter has no heap


def of_argument() -> tuple[Any, Any, Any]:
    x, y = chains(N)

    @sg.kernel
    def run(k: sg.i32):
        for i in x:
            v, m = x[i], i
            for _ in range(k * 2):
                m = (m * 7 + 1) % 1009
                if m % 2 == 0:
                    v = advance(v)
            y[i] = v

    return run, x, y


def check(plan: Any) -> None:
    """The numbers fit each other, and are in the text."""
    text = str(plan)
    for task in plan.tasks:
        assert sum(slab.stride for slab in task.slabs) <= sum(adstack.slot_bytes for adstack in task.adstacks) + 16
        assert task.nbytes <= plan.nbytes
        for adstack in task.adstacks:
            assert adstack.slot_bytes == adstack.entries * adstack.entry_bytes
            assert adstack.nbytes == adstack.slot_bytes * task.slots
            assert f"{adstack.entries} entr" in text
            assert f"{adstack.slot_bytes:,} bytes a thread slot" in text
            assert f"{Path(adstack.loop.file).name}:{adstack.loop.line}" in text
        for slab in task.slabs:
            assert slab.stride * task.slots <= slab.nbytes <= slab.stride * task.slots * 1.2 + 4096
    assert f"{plan.nbytes:,} bytes for adstacks" in text
    assert plan.slots == max(task.slots for task in plan.tasks)


@pytest.mark.archs(*LAUNCHING)
def test_known_before_the_launch() -> None:
    run, x, y = of_argument()
    heap = context.session().launcher.adstacks
    for k in (40, 7, 300):
        before = heap.nbytes
        plan = run.grad.memory_plan(k)
        assert heap.nbytes == plan.heap == before, "planning took memory"
        check(plan)
        floats, integers = [[adstack for adstack in plan.adstacks if kind in adstack.what] for kind in ("f32", "i32")]
        assert [adstack.entries * adstack.every for adstack in floats] == [2 * k] * len(floats)
        assert floats
        assert integers
        assert {(adstack.way, adstack.formula) for adstack in plan.adstacks} == {("known", "k * 2")}
        assert [slab.kind for task in plan.tasks for slab in task.slabs] == ["F", "I"]
        assert "k * 2, known before the launch" in str(plan)
        launch(run, (k,), x, y)
        assert run.grad.adstack_bytes == plan.nbytes
    again = run.grad.memory_plan(300)
    assert {adstack.way for adstack in again.adstacks} == {"reused"}
    assert again.nbytes == run.grad.adstack_bytes
    assert "k * 2, still as at the last launch" in str(again)


@pytest.mark.archs(*LAUNCHING)
def test_counted_or_read_from_memory() -> None:
    """By a kernel, but not by the gradient; and nothing that a launch goes by changes."""
    run, x, y, count = counted_chains(N)
    for longest in (64, 8, 320):
        counts = np.arange(N, dtype=np.int32) % 5
        counts[longest % N] = longest
        count.from_numpy(counts)
        x.grad.fill(0.25)
        sizings = context.session().launcher.adstacks.sized.copy()
        plan = run.grad.memory_plan()
        assert context.session().launcher.adstacks.sized == sizings
        assert (x.grad.to_numpy() == 0.25).all(), "the gradient ran"
        check(plan)
        (adstack,) = plan.adstacks
        assert adstack.way in ("known", "counted")
        assert "count[" in adstack.formula
        assert f": {adstack.formula}, " in str(plan)
        assert adstack.entries == -(-longest // adstack.every)
        for _ in range(2):  # a device tells what it needs after a launch
            launch(run, (), x, y)
            sg.sync()
        assert run.grad.adstack_bytes == plan.nbytes
        again = run.grad.memory_plan()
        assert [adstack.way for adstack in again.adstacks] == ["reused"]
        assert again.nbytes == plan.nbytes
        count[1] = 4  # a write, whatever it writes
        assert [adstack.way for adstack in run.grad.memory_plan().adstacks] == [adstack.way]


@pytest.mark.archs(*LAUNCHING)
def test_serial_tasks_methods_and_results() -> None:
    """Adstacks of serial tasks have one thread slot; a method's plan knows its object; and the adjoint of a result changes nothing."""

    @sg.data_oriented
    class Chain:
        def __init__(self, trips: int) -> None:
            self.trips = trips
            self.x = sg.field(sg.f32, (), needs_grad=True)

        @sg.kernel
        def run(self) -> sg.f32:
            v = self.x[None]
            for _ in range(self.trips):
                v = advance(v)
            return v

    for trips in (72, 80):
        chain = Chain(trips)
        plan = chain.run.grad.memory_plan()
        (task,) = plan.tasks
        assert task.task is None
        assert task.slots == 1
        assert "serial tasks: 1 thread slot" in str(plan)
        assert [adstack.entries * adstack.every for adstack in task.adstacks] == [trips]
        chain.run()
        chain.run.grad(returned=1.0)
        assert chain.run.grad.adstack_bytes == plan.nbytes


def test_nothing_to_record() -> None:
    x, y = chains(4)

    @sg.kernel
    def run():
        for i in x:
            y[i] = x[i] * x[i]

    plan = run.grad.memory_plan()
    assert (plan.tasks, plan.adstacks, plan.slots, plan.nbytes) == ((), (), 0, 0)
    assert str(plan) == "memory plan of the gradient of kernel `run`: no loop records anything"


@pytest.mark.archs("interpreter")
def test_interpreter() -> None:
    run, _, _ = of_argument()
    note = "the interpreter's adstacks grow as they are written"
    assert str(run.grad.memory_plan(3)) == f"memory plan of the gradient of kernel `run`: {note}"


@pytest.mark.archs(*LAUNCHING)
def test_what_has_no_room() -> None:
    run, _, _ = of_argument()
    with pytest.raises(sg.OutOfDeviceMemory, match="adstack"):
        run.grad.memory_plan(2**30 - 1)


def test_values_that_only_a_tape_notes() -> None:
    """Bounds may depend on them, so there is no plan without; as there is no launch."""
    x, y = chains(5)
    count = sg.field(sg.i32, 5)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(count[i]):
                v = advance(v)
            count[i] += 1
            for _ in range(count[i]):
                v = advance(v)
            y[i] = v
        for i in x:
            count[i] = count[i] * 2 + i

    with pytest.raises(sg.SpirogradCompilationError, match="overwrites"):
        run.grad.memory_plan()


@pytest.mark.archs(*LAUNCHING)
@pytest.mark.parametrize("kind", ["numpy", "torch", "array"])
def test_bounds_in_arrays_of_others(kind: str) -> None:
    """They are read as they are now, and left alone; while a tape records, too."""
    x, y = chains(N)

    @sg.kernel
    def run(counts: sg.types.ndarray(sg.i32, 1)):
        for i in x:
            v = x[i]
            for _ in range(counts[i % 4]):
                v = advance(v)
            y[i] = v

    data = np.array([3, 64, 0, 8], np.int32)
    for longest in (64, 128):
        data[1] = longest
        if kind == "array":
            given: Any = sg.ndarray(sg.i32, 4)
            given.from_numpy(data)
        else:
            given = data if kind == "numpy" else needs.package("torch").from_numpy(data)
        with sg.ad.Tape() as tape:
            plan = run.grad.memory_plan(given)
        assert "0 launches" in str(tape.memory_report())
        check(plan)
        (adstack_plan,) = plan.adstacks
        assert adstack_plan.entries == -(-longest // adstack_plan.every)
        for _ in range(2):  # a device tells what it needs after a launch
            launch(run, (given,), x, y)
            sg.sync()
        assert run.grad.adstack_bytes == plan.nbytes
        assert data[1] == longest

"""Series of work that Vulkan records once: barriers where work conflicts, arguments, repetition. Against NumPy."""

import gc

import numpy as np
import pytest
from unit.runtime.spirv_modules import compiled

from spirograd.base.arguments import Arguments
from spirograd.runtime.allocations import Memory
from spirograd.runtime.graph_recording import GraphRecording
from spirograd.runtime.launcher import Launcher


@pytest.fixture
def counted(vulkan, monkeypatch):
    """The device, and the barriers between work that it records for series."""
    barriers = []
    record = vulkan._fn.CmdPipelineBarrier
    own = {slot.commands for slot in vulkan._stream.slots}

    def counting(commands, first, then, *rest):
        if first == then and commands not in own:
            barriers.append(commands)
        record(commands, first, then, *rest)

    monkeypatch.setattr(vulkan._fn, "CmdPipelineBarrier", counting)
    return vulkan, barriers


def words(allocation):
    raw = bytearray(allocation.nbytes)
    allocation.read_into(0, memoryview(raw))
    return np.frombuffer(raw, np.uint32)


def recorded(launcher, work):
    recording = GraphRecording(launcher)
    with recording.open():
        work()
    return recording


@pytest.mark.parametrize("in_block", [False, True])
def test_barriers_lie_between_work_that_conflicts(counted, in_block):
    device, barriers = counted
    memory = Memory(device)
    launcher = Launcher(device, memory)
    plan = launcher.prepare(compiled("count", in_block=in_block))
    cells = [memory.allocate(4) for _ in range(4)]

    def work():
        for k in range(40):
            plan.launch(Arguments.of([None, 2, k], [None] * 3, {0: cells[k % 4]}))
        cells[0].copy_from(cells[1], 4)
        cells[2].fill(0, 4, 7)  # at the same time as the copy
        cells[1].fill(0, 4, 5)  # after the copy, which reads it

    recording = recorded(launcher, work)
    assert len(barriers) == 12  # one at the begin
    sums = [2 * sum(range(k, 40, 4)) for k in range(4)]
    for _ in range(40):  # more than may be under way at a time
        recording.repeat()
    assert [words(cell)[0] for cell in cells] == [5 + sums[1], 5, 7, 41 * sums[3]]


@pytest.mark.parametrize("apart", [True, False])
def test_sections_share_barriers(counted, apart):
    """Those that use memory of each other are done in their order."""
    device, barriers = counted
    memory = Memory(device)
    launcher = Launcher(device, memory)
    plan = launcher.prepare(compiled("count"))
    cells = [memory.allocate(4) for _ in range(2)]
    second = cells[1 if apart else 0]

    def section(cell, k, fills):
        def work():
            if fills:
                cell.fill(0, 4, 100)
            plan.launch(Arguments.of([None, 2, k], [None] * 3, {0: cell}))
            plan.launch(Arguments.of([None, 2, k], [None] * 3, {0: cell}))

        return work

    recording = GraphRecording(launcher)
    with recording.open():
        recording.sections([section(cells[0], 1, fills=False), section(second, 5, fills=True), lambda: None])
    assert len(barriers) == (3 if apart else 5)  # one at the begin
    assert [words(cell)[0] for cell in cells] == ([4, 120] if apart else [120, 0])
    for _ in range(3):
        recording.repeat()
    assert [words(cell)[0] for cell in cells] == ([16, 120] if apart else [120, 0])


def test_a_series_goes_with_the_last_reference(vulkan):
    memory = Memory(vulkan)
    launcher = Launcher(vulkan, memory)
    plan = launcher.prepare(compiled("count", in_block=True))
    cell = memory.allocate(4)
    used = vulkan._allocator.used
    for _ in range(3):
        recording = recorded(launcher, lambda: [plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: cell})) for _ in range(2)])
        recording.repeat()
        assert len(vulkan._pools) == 1 and vulkan._allocator.used > used
        del recording
        gc.collect()
        vulkan.synchronize()
        assert not vulkan._pools and vulkan._allocator.used == used
    assert words(cell)[0] == 12


def test_work_that_is_pending_is_waited_for(vulkan):
    """Freed memory, and memory that the host reaches, while the series runs."""
    memory = Memory(vulkan)
    launcher = Launcher(vulkan, memory)
    plan = launcher.prepare(compiled("scale", "scale"))
    n = 50_000
    a = memory.allocate(4 * n)
    recording = recorded(launcher, lambda: [plan.launch(Arguments.of([None, n, k], [None] * 3, {0: a})) for k in range(3)])
    expected = words(a).copy()
    for step in range(4):
        recording.repeat()
        memory.allocate(4 * n).fill(0, 4 * n, step)  # at once freed
        for k in (0, 0, 1, 1, 2, 2):
            expected = expected * 2 + np.uint32(k) + np.arange(n, dtype=np.uint32)
        if step % 2:
            assert (words(a) == expected).all()
            a.write(0, memoryview(expected))

"""How a launch cuts the heap: no two elements of tapes in one place, none past the end. Few invocations at once would hide that."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spirograd.base.artifact import ArgBlock, CompiledKernel, TapeInfo, TaskInfo
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import f32, f64, i32
from spirograd.runtime.tapes import TapeHeap

TAPES = (TapeInfo("a", f32, 2, 0, "one"), TapeInfo("b", f64, 1, 1, "one"), TapeInfo("s", i32, 3, 1, None), TapeInfo("c", i32, 1, 0, "two"))


def heap(profile, threads, loop_limit):
    device = SimpleNamespace(caps=Capabilities(profile, loop_limit=loop_limit))
    if threads:
        device.threads = threads
    return TapeHeap(device, SimpleNamespace(allocate=lambda nbytes: SimpleNamespace(address=4096, nbytes=nbytes)))


def rows_on_gpu(cut, counts, task):
    """Whole workgroups run, and do nothing without an iteration."""
    rows = -(-cut.counts[task] // 64) * 64
    return rows if counts[task] is None else min(rows, counts[task])


@pytest.mark.parametrize(("profile", "threads", "loop_limit"), [("cpu", 3, 0), ("vulkan", 0, 0), ("wgpu", 0, 65535)])
@pytest.mark.parametrize("counts", [(100, 7), (0, 300), (63, None)])
def test_no_two_elements_meet(profile, threads, loop_limit, counts):
    tasks = tuple([TaskInfo(name, "range_for", name, 0, None, None, 64) for name in ("one", "two")])
    kernel = CompiledKernel("k", profile, "key", ArgBlock((), 0, ""), tasks, (), 0)
    kernel.tapes = TAPES
    capacities = (3, 2)
    cut = heap(profile, threads, loop_limit).cut(kernel, counts, capacities)
    assert cut.words[0] == 4096
    taken = {}
    for k, tape in sorted(enumerate(TAPES), key=lambda item: item[1].task is not None):
        base, pitch = cut.words[1 + 2 * k : 3 + 2 * k]
        rows = 1
        if tape.task is not None:
            rows = threads or rows_on_gpu(cut, counts, ("one", "two").index(tape.task))
        for row in range(min(rows, 500)):
            for entry in range(capacities[tape.capacity] * tape.width):
                at = base + (entry if tape.task is None else row * pitch + entry if threads else entry * pitch + row)
                place = {at * tape.dtype.size + byte for byte in range(tape.dtype.size)}
                # Tasks run one after the other; what serial ones note lasts.
                for task in {None, tape.task}:
                    assert not place & taken.setdefault(task, set()), (tape.name, row, entry)
                assert max(place) < cut.nbytes, (tape.name, row, entry)
                taken[tape.task] |= place

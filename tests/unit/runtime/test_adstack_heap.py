"""How a launch cuts the heap: no two elements of adstacks in one place, none past the end. Few invocations at once would hide that."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from unit.runtime.fake_device import FakeDevice

from spirograd.base.artifact import AdstackInfo, ArgBlock, CompiledKernel, TaskInfo
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import f32, f64, i32
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.runtime.adstack_heap import AdstackHeap, AdstackSizes, AdstacksTooLarge

TAPES = (
    AdstackInfo("a", f32, 2, 0, "one"),
    AdstackInfo("b", f64, 1, 1, "one"),
    AdstackInfo("s", i32, 3, 1, None),
    AdstackInfo("c", i32, 1, 0, "two"),
)
CAPACITIES = (3, 2)
COUNTS = [(100, 7), (0, 300), (63, None)]


def heap(target, threads, loop_limit, budget=None):
    device = FakeDevice()
    device.caps = Capabilities(target, loop_limit=loop_limit)
    if threads:
        device.threads = threads
    memory = SimpleNamespace(allocate=lambda nbytes, zeroed: SimpleNamespace(address=4096, nbytes=nbytes))
    return AdstackHeap(device, memory, budget)


def kernel_of(target, lanes=1):
    tasks = tuple([TaskInfo(name, "range_for", name, 0, None, None, 64, lanes=lanes) for name in ("one", "two")])
    kernel = CompiledKernel("k", target, "key", ArgBlock((), 0, ""), tasks, (), 0)
    kernel.adstacks = TAPES
    return kernel


def slots_on_gpu(plan, counts, task):
    """Whole workgroups run, and do nothing without an iteration."""
    slots = -(-plan.counts[task] // 64) * 64
    return slots if counts[task] is None else min(slots, counts[task])


def check_apart(plan, elements):
    """``elements(number, adstack, base, pitch)``: of an adstack, each as its thread slot and its number."""
    taken = {}
    for k, adstack in sorted(enumerate(TAPES), key=lambda item: item[1].task is not None):
        for what, at in elements(k, adstack, plan.words.bases[k], plan.words.pitches[k]):
            place = {at * adstack.dtype.size + byte for byte in range(adstack.dtype.size)}
            # Tasks run one after the other; what serial ones note lasts.
            for task in {None, adstack.task}:
                assert not place & taken.setdefault(task, set()), (adstack.name, what)
            assert max(place) < plan.nbytes, (adstack.name, what)
            taken[adstack.task] |= place


@pytest.mark.parametrize(("target", "loop_limit"), [("vulkan", 0), ("wgpu", 65535)])
@pytest.mark.parametrize("counts", COUNTS)
def test_no_two_elements_meet(target, loop_limit, counts):
    owner = heap(target, 0, loop_limit)
    plan = owner.reserve(kernel_of(target), counts, AdstackSizes(CAPACITIES))
    assert owner.address == 4096

    def elements(_, adstack, base, pitch):
        slots = 1 if adstack.task is None else slots_on_gpu(plan, counts, ("one", "two").index(adstack.task))
        for slot in range(min(slots, 500)):
            for entry in range(CAPACITIES[adstack.capacity] * adstack.width):
                yield (slot, entry), base + (entry if adstack.task is None else entry * pitch + slot)

    check_apart(plan, elements)


@pytest.mark.parametrize("lanes", [1, 8, 16])
@pytest.mark.parametrize("budget", [None, 2000])
@pytest.mark.parametrize("counts", COUNTS)
def test_no_two_elements_meet_however_the_pool_divides_the_slots(lanes, budget, counts):
    """Between threads, and iterations that one runs in lockstep."""
    threads = 3
    owner = heap("cpu", threads, 0, budget)
    plan = owner.reserve(kernel_of("cpu", lanes), counts, AdstackSizes(CAPACITIES))
    assert owner.address == 4096
    most = plan.words.slots
    for slots, count in zip(most, counts):
        wanted = threads * lanes if count is None else max(min(threads * lanes, count), 1)
        assert slots == wanted if budget is None else 1 <= slots <= wanted
    for used in {1, min(3, lanes), lanes}:

        def elements(_, adstack, base, pitch, used=used):
            for entry in range(CAPACITIES[adstack.capacity] * adstack.width):
                if adstack.task is None:
                    yield entry, base + entry
                    continue
                slots = most[("one", "two").index(adstack.task)]
                together = min(used, slots)
                for slot in range(slots // together):
                    for lane in range(together):
                        yield (slot, lane, entry), together * (base + slot * pitch + entry) + lane

        check_apart(plan, elements)


def test_fewer_slots_before_a_launch_is_refused():
    """Down to one."""
    most = 4 * (10 + 6)  # a thread slot of the first task and that of serial ones
    plan = heap("cpu", 64, 0, most).reserve(kernel_of("cpu", 16), (5000, 5000), AdstackSizes(CAPACITIES))
    assert plan.words.slots[0] == 1
    assert plan.nbytes <= most
    with pytest.raises(OutOfDeviceMemory, match=r"the adstacks of k need .* in each of 1 thread slot"):
        heap("cpu", 64, 0, most - 4).reserve(kernel_of("cpu", 16), (5000, 5000), AdstackSizes(CAPACITIES))


def test_sizes_of_a_device_that_executes_nothing():
    """They are whatever the memory held. The error says so, and not that the adstacks are too large."""
    owner = heap("vulkan", 0, 0)
    owner.reserve(kernel_of("vulkan"), (100, 100), AdstackSizes(CAPACITIES))
    huge = AdstackSizes((2**31, 2**31))
    with pytest.raises(AdstacksTooLarge, match=r"need [0-9,]+ bytes or more"):
        owner.reserve(kernel_of("vulkan"), (100, 100), huge)
    owner.device.fill = lambda *_: None
    with pytest.raises(SpirogradRuntimeError, match=r"fake did not execute what was submitted: its driver .* has a null device") as raised:
        owner.reserve(kernel_of("vulkan"), (100, 100), huge)
    assert not isinstance(raised.value, OutOfDeviceMemory)

"""`init(ad_memory_GB=...)`: with little memory for adstacks fewer invocations run at a time; with less than that, an error says which
loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from grad.chains import AMPLIFIED, advance, chains, compare, launch

import spirograd as sg
from spirograd.lang import context

N = 3000
TRIPS = 200
DEVICES = ("vulkan", "wgpu")


def known() -> Any:
    x, y = chains(N)

    @sg.kernel
    def run(k: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(k):  # known
                v = advance(v)
            y[i] = AMPLIFIED * v

    return run, x, y


def from_memory(count: Any) -> Any:
    x, y = chains(N)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(count[i]):  # from memory
                v = advance(v)
            y[i] = AMPLIFIED * v

    return run, x, y


def line_of(marker: str) -> int:
    with open(__file__, encoding="utf-8") as file:
        return next(n for n, line in enumerate(file, 1) if line.rstrip().endswith(f"# {marker}"))


def start(arch: str, nbytes: int) -> Any:
    """A session with so much memory for adstacks; its heap."""
    sg.init(arch=arch, ad_memory_GB=nbytes / 2**30)
    heap = context.session().launcher.adstacks
    assert heap.byte_limit == nbytes
    return heap


@pytest.mark.archs(*DEVICES)
@pytest.mark.parametrize("kind", ["known", "memory"])
def test_fewer_slots(arch: str, kind: str) -> None:
    """Enough for all, for some, for few: the same gradients."""
    slots: list[int] = []
    needed = 1 << 24
    for part in (1, 3, 8):
        nbytes = needed // part // 256 * 256
        heap = start(arch, nbytes)
        if kind == "known":
            run, x, y = known()
            args: tuple[Any, ...] = (TRIPS,)
            compare(run, args, x, y, TRIPS)
        else:
            count = sg.field(sg.i32, N)
            counts = np.arange(N) * 7 % (TRIPS + 1)
            counts[17] = TRIPS
            count.from_numpy(counts.astype(np.int32))
            run, x, y = from_memory(count)
            args = ()
            for _ in range(3):
                compare(run, args, x, y, counts)
        assert heap.nbytes <= nbytes
        plan = run.grad.memory_plan(*args)
        assert run.grad.adstack_bytes == plan.nbytes <= nbytes
        assert plan.budget == nbytes
        needed = plan.nbytes if part == 1 else needed
        slots.append(plan.slots)
    assert slots[0] == N > slots[1] > slots[2] >= 1


@pytest.mark.archs("cpu", *DEVICES)
@pytest.mark.parametrize("kind", ["known", "memory"])
def test_too_little(arch: str, kind: str) -> None:
    """The error names the kernel, the loop, and the bytes; smaller launches go on."""
    budget = 64 if arch == "cpu" else 1 << 12  # bytes, which not even nested checkpoints have room in
    heap = start(arch, budget)
    longest = 60_000
    small = 1  # of which 256 thread slots fit
    if kind == "known":
        run, x, y = known()
        marker, many, few = "known", (longest,), (small,)
    else:
        count = sg.field(sg.i32, N)
        count[5] = longest
        run, x, y = from_memory(count)
        marker, many, few = "from memory", (), ()
    for started in (run.grad.memory_plan, run.grad):
        with pytest.raises(sg.OutOfDeviceMemory) as caught:
            started(*many)
        message = str(caught.value)
        assert "the adstacks of run_grad need " in message
        assert f"may have {budget:,}" in message
        assert f"test_adstack_budget.py:{line_of(marker)}" in message
        assert isinstance(caught.value, MemoryError)
    if kind == "memory":
        count.fill(small)
    compare(run, few, x, y, small)
    assert heap.nbytes <= budget


@pytest.mark.archs(*DEVICES)
def test_more_than_fits_at_an_earlier_launch(arch: str) -> None:
    """The device ran that with few thread slots. When the host hears of it, it does not refuse a launch that needs little."""
    heap = start(arch, 1 << 22)
    count = sg.field(sg.i32, N)
    run, x, y = from_memory(count)
    for longest in (10, 10, 10_000, 10, 10, 10_000, 10):
        counts = np.full(N, 10, np.int32)
        counts[5] = longest
        count.from_numpy(counts)
        compare(run, (), x, y, counts, str(longest))
    assert heap.nbytes <= 1 << 22


@pytest.mark.archs("cpu", *DEVICES)
def test_device_with_little_memory(arch: str) -> None:
    """Less than is good to have for launches whose sizes are not known."""
    sg.init(arch=arch, device_memory_GB=1 / 64)
    count = sg.field(sg.i32, N)
    run, x, y = from_memory(count)
    for most in (3, TRIPS, 0, TRIPS):
        counts = np.arange(N) * 7 % (most + 1)
        count.from_numpy(counts.astype(np.int32))
        compare(run, (), x, y, counts, str(most))


class Scarce:
    """Memory that gives at most ``limit`` bytes, always in one place."""

    def __init__(self, memory: Any, limit: int) -> None:
        self.whole = memory.allocate(limit)

    def allocate(self, nbytes: int, zeroed: bool = True) -> Any:
        if nbytes > self.whole.nbytes:
            raise sg.OutOfDeviceMemory(f"{nbytes}")
        return SimpleNamespace(address=self.whole.address, nbytes=nbytes)


@pytest.mark.archs(*DEVICES)
@pytest.mark.parametrize("kind", ["known", "memory"])
def test_memory_that_others_have_taken(arch: str, kind: str) -> None:
    """Fewer thread slots, as with a budget."""
    heap = start(arch, 1 << 24)
    heap.memory = Scarce(heap.memory, 1 << 19)
    count = sg.field(sg.i32, N)
    count.fill(TRIPS)
    run, x, y = known() if kind == "known" else from_memory(count)
    for _ in range(3):
        compare(run, (TRIPS,) if kind == "known" else (), x, y, TRIPS)
    assert 0 < run.grad.adstack_bytes <= heap.nbytes <= 1 << 19


class Dirty:
    """Memory full of ones, unless zeros are asked for."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.dirty = 0

    def allocate(self, nbytes: int, zeroed: bool = True) -> Any:
        found = self.memory.allocate(nbytes, zeroed)
        if not zeroed:
            found.fill(0, -(-nbytes // 4) * 4, 0xFFFFFFFF)
            self.dirty += 1
        return found


@pytest.mark.archs("cpu", *DEVICES)
@pytest.mark.parametrize("kind", ["known", "memory"])
def test_the_heap_needs_no_zeros(arch: str, kind: str) -> None:
    heap = start(arch, 1 << 24)
    heap.memory = Dirty(heap.memory)
    count = sg.field(sg.i32, N)
    count.fill(TRIPS)
    run, x, y = known() if kind == "known" else from_memory(count)
    for _ in range(3):
        compare(run, (TRIPS,) if kind == "known" else (), x, y, TRIPS)
    assert heap.memory.dirty


@pytest.mark.archs("cpu", *DEVICES)
def test_smaller_heap_in_the_same_place(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heap was given up for a larger one, which there was no memory for: what was cut from it before is not used again."""
    heap = start(arch, 1 << 26)
    heap.memory = Scarce(heap.memory, 1 << 25)
    monkeypatch.setattr("spirograd.derivatives.nested_checkpoints.nestings", lambda *_: iter(()))
    (first, x, y), (second, *_), (third, u, v) = known(), known(), known()
    trips = 60_000 if arch == "cpu" else 3000  # more than a reference can follow in f32
    # Entries stand for 8 iterations on GPUs, for 2 where a CPU does their work.
    many = 10_000_000 if arch == "cpu" else 100_000 if context.session().device.caps.loop_limit else 400_000
    launch(first, (trips,), x, y)
    wanted = x.grad.to_numpy()
    with pytest.raises(sg.OutOfDeviceMemory, match="the adstacks of run_grad need"):
        second.grad(many)
    compare(third, (3,), u, v, 3)
    assert heap.nbytes < first.grad.adstack_bytes
    launch(first, (trips,), x, y)
    np.testing.assert_array_equal(x.grad.to_numpy(), wanted)
    assert heap.nbytes >= first.grad.adstack_bytes > 1 << 20


@pytest.mark.archs("cpu", *DEVICES)
def test_no_budget_of_ones_own(arch: str) -> None:
    """Then the limit is the device's."""
    sg.init(arch=arch)
    device, heap = context.session().device, context.session().launcher.adstacks
    assert heap.byte_limit <= device.caps.max_allocation
    assert heap.byte_limit >= min(device.caps.max_allocation, 1 << 31)


@pytest.mark.parametrize("name", ["ad_memory_GB", "device_memory_GB"])
def test_amounts_that_are_none(name: str) -> None:
    for value, wanted in ((-1, "0 or more"), (float("nan"), "0 or more"), (float("inf"), "0 or more"), ("much", "of type float")):
        with pytest.raises(sg.SpirogradRuntimeError, match=f"`{name}` is {wanted}"):
            sg.init(arch=sg.interpreter, **{name: value})


def test_budget_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SG_AD_MEMORY_GB", "0.25")
    sg.init(arch=sg.interpreter, ad_memory_GB=2)
    try:
        assert context.session().launcher.adstacks.byte_limit <= 1 << 28
    finally:
        sg.reset()

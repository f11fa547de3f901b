"""How much memory adstacks take, against what the sizes of their loops predict; and that launches leave nothing behind."""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import needs
import numpy as np
import pytest
from grad.chains import AMPLIFIED, advance, advanced, chains, compare, starts
from grad.check import on_devices_with_types
from grad.resident import resident

import spirograd as sg
from spirograd.lang import context

pytestmark = pytest.mark.usefixtures("session")

N = 2048
# Rows start at multiples of this, and their distance is odd where that is better for caches: per adstack and invocation.
SLACK = 1 / 32 + 0.01
_SLOT = re.compile(r"^  .*, of the loop at .*: (\d+) bytes (?:for each (\d+) iterations|an iteration)", re.MULTILINE)


def slots(kernel: Any, *args: Any) -> list[tuple[int, int]]:
    """Of each adstack that `explain` names: bytes of a slot, and how many trips share one."""
    return [(int(size), int(each or 1)) for size, each in _SLOT.findall(kernel.grad.explain(*args))]


def slot_bytes(kernel: Any, trips: int, *args: Any) -> int:
    """What one invocation needs where each loop with an adstack makes ``trips`` trips."""
    return sum(size * -(-trips // each) for size, each in slots(kernel, *args))


def invocations(n: int) -> tuple[int, int]:
    """The fewest and the most rows that a task of ``n`` iterations may have, all of them with tapes."""
    device: Any = context.session().device
    threads = getattr(device, "threads", 0)
    return (threads, threads * 16) if threads else (n, n + 127)  # lanes of vectors; whole workgroups


def one_loop(t: Any) -> Any:
    x, y = chains(N, t)

    @sg.kernel
    def run(k: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(k):
                v = advance(v)
            y[i] = v

    return run


def with_integers(t: Any) -> Any:
    x, y = chains(N, t)

    @sg.kernel
    def run(k: sg.i32):
        for i in x:
            v, m = x[i], i
            for _ in range(k):
                m = (m * 7 + 1) % 1009
                if m % 2 == 0:
                    v = advance(v)
            y[i] = v

    return run


def nest(t: Any) -> Any:
    x, y = chains(N, t)

    @sg.kernel
    def run(k: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(k):
                for _ in range(k):
                    v = advance(v)
            y[i] = v

    return run


def two_tasks(t: Any) -> Any:
    """They take the heap one after the other, or each its own part of it."""
    x, y = chains(N, t)
    u, w = chains(N, t)

    @sg.kernel
    def run(k: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(k):
                v = advance(v)
            y[i] = v
        for i in u:
            v = u[i]
            for _ in range(k):
                v = advance(v)
            w[i] = v

    return run


KERNELS = [(one_loop, 1), (with_integers, 2), (nest, 2), (two_tasks, 2)]


@on_devices_with_types  # the interpreter has no heap
@pytest.mark.parametrize("make,adstacks", KERNELS, ids=[make.__name__ for make, _ in KERNELS])
def test_bytes_are_those_of_the_slots(make: Callable[[Any], Any], adstacks: int, t: Any) -> None:
    """Rows times the sum over all adstacks: for a nest the sum of its trip counts, not their product. Fewer where bounds shrink."""
    needs.of_type(t)
    run = make(t)
    most = 64 if make is nest else 512
    assert len(slots(run, 1)) == adstacks
    taken = []
    for trips in (most // 8, most, most // 4, most // 2, most // 8):
        run.grad(trips)
        one = slot_bytes(run, trips, 1)
        least, limit = invocations(N)
        shared = 2 if make is two_tasks else 1
        assert least * one / shared <= run.grad.adstack_bytes <= limit * one * (1 + SLACK) + 8192, trips
        taken.append((one, run.grad.adstack_bytes))
    rows = taken[1][1] / taken[1][0]
    for one, nbytes in taken:
        assert abs(nbytes - rows * one) <= rows * one * SLACK + 8192, "not proportional to trips"
    run.grad(0)
    assert run.grad.adstack_bytes <= invocations(N)[1] * slot_bytes(run, 1, 1) + 8192


@pytest.mark.archs("cpu", "vulkan", "wgpu")  # the interpreter has no heap
def test_bytes_of_bounds_in_memory() -> None:
    """Of the longest loop, wherever it is; with some room where iterations are counted. Less as soon as that is shorter."""
    x, y = chains(N)
    count = sg.field(sg.i32, N)

    @sg.kernel
    def run():
        for i in x:
            v = x[i]
            for _ in range(count[i]):
                v = advance(v)
            y[i] = AMPLIFIED * v

    least, limit = invocations(N)
    for longest, at in ((400, 5), (3, 0), (2_000, N - 1), (60, 77), (0, 0)):
        counts = np.minimum(np.arange(N) % 4, longest)
        counts[at] = longest
        count.from_numpy(counts.astype(np.int32))
        for _ in range(2):  # a device may tell what it needs only after a launch
            compare(run, (), x, y, counts)
        assert least * slot_bytes(run, longest) <= run.grad.adstack_bytes
        assert run.grad.adstack_bytes <= limit * slot_bytes(run, longest + longest // 4 + 16 * 8) * (1 + SLACK) + 8192


@pytest.mark.archs("cpu", "vulkan", "wgpu")  # the interpreter has no heap
def test_rows_are_limited_however_many_iterations_there_are() -> None:
    n = 300_000
    x, y = chains(n)

    @sg.kernel
    def run(k: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(k):
                v = advance(v)
            y[i] = AMPLIFIED * v

    compare(run, (16,), x, y, 16)
    caps = context.session().device.caps
    most = 70_000 if caps.loop_limit or caps.target.slots_by_thread else 270_000  # cards have up to 1 << 18
    assert 0 < run.grad.adstack_bytes <= most * slot_bytes(run, 16, 1)


@pytest.mark.archs("cpu", "vulkan", "wgpu")  # the interpreter keeps nothing, and takes long
def test_launches_leave_nothing_behind(arch: str) -> None:
    """What is kept of sizes does not grow with the launches that find them again, nor with those that need others."""
    n = 4
    x, y = chains(n)
    field, array = sg.field(sg.i32, n), sg.ndarray(sg.i32, n)
    field.fill(3)
    array.fill(2)

    @sg.kernel
    def run(b: sg.types.ndarray(sg.i32, 1), k: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(field[i] + k):
                v = advance(v)
            for _ in range(b[i]):
                v = advance(v)
            y[i] += AMPLIFIED * v

    def same(number: int) -> int:
        for _ in range(number):
            run.grad(array, 1)
        sg.sync()
        return 3 + 1 + 2

    def other(number: int) -> None:
        for step in range(number):
            field[0] = step % 7
            run.grad(array, step % 251)
        sg.sync()

    def kept(launches: Callable[[int], Any], number: int) -> int:
        """Bytes of Python's that so many launches leave."""
        launches(20)
        gc.collect()
        tracemalloc.start()
        launches(20)
        gc.collect()
        begin = tracemalloc.get_traced_memory()[0]
        launches(number)
        gc.collect()
        end = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return end - begin

    x.from_numpy(starts(n))
    y.grad.fill(1.0)
    assert kept(same, 300) < 20_000
    assert kept(other, 3 * 251) < 60_000  # lists of free objects, and what the CPU keeps to launch without Python, are of a fixed size
    total = {"cpu": 20_000, "vulkan": 1_000, "wgpu": 300}[arch]
    field.fill(3)
    same(10)
    x.grad.fill(0.0)
    gc.collect()
    before = resident()
    trips = same(total)
    assert resident() - before < 8 * 2**20
    np.testing.assert_allclose(x.grad.to_numpy(), total * AMPLIFIED * advanced(starts(n), trips)[1], rtol=1e-2)

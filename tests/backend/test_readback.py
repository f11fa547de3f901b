"""Bytes of device memory without waiting (`Device.read_async`), and how often the host waited (`Device.waits`), on every back end."""

from __future__ import annotations

import gc
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.device import READBACK_LIMIT, Device, Readback
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.runtime import loader
from spirograd.runtime.allocations import Allocation, Memory

LATER = ("vulkan", "wgpu", "cuda", "amdgpu")  # back ends that do not do their work at once
BATCHING = ("vulkan", "wgpu")  # of these, the ones that submit it later
SECONDS = 20.0  # for what takes milliseconds


@pytest.fixture
def device(arch: str) -> Iterator[Device]:
    device = loader.open_device(arch)
    yield device
    device.close()


@pytest.fixture
def words(device: Device) -> Allocation:
    """Memory of 16 words."""
    return Memory(device).allocate(64)


def number(data: bytes | None) -> int:
    assert data is not None
    return int(struct.unpack("<I", data)[0])


def soon(readback: Readback, work: Callable[[], Any]) -> bytes:
    """What ``readback`` gives while ``work`` goes on; fails after SECONDS."""
    end = time.monotonic() + SECONDS
    while (data := readback.take()) is None:
        assert time.monotonic() < end, "the bytes never came"
        work()
    return data


def staging(device: Any) -> int:
    """How many pieces of staging memory the device has made for readbacks."""
    if device.info.arch in ("vulkan", "cuda", "amdgpu"):
        return len(device._cells.blocks)
    return int(device._stream.staging.buffers) if device.info.arch == "wgpu" else 0


# --- values and their order ---


def test_values_are_as_of_the_readback(session: Any) -> None:
    x = sg.ndarray(sg.i32, 8)

    @sg.kernel
    def add(x: sg.types.ndarray(), v: sg.i32):
        for i in range(8):
            x[i] += v * (i + 1)

    readbacks, want, total = [], [], 0
    for v in range(1, 200):
        add(x, v)
        total += v
        readbacks.append(x.allocation.read_async(4, 8))
        want.append((2 * total, 3 * total))
    before = session.device.waits
    x.fill(-1)
    for readback, pair in zip(readbacks, want):
        assert struct.unpack("<ii", readback.wait()) == pair
    assert session.device.waits == before + len(readbacks)
    assert (x.to_numpy() == -1).all()


def test_order_with_writes_fills_and_copies(device: Device) -> None:
    memory = Memory(device)
    a, b = memory.allocate(64), memory.allocate(64)
    readbacks: list[tuple[Readback, int]] = []
    for i in range(100):
        a.write(8, memoryview(struct.pack("<I", 3 * i)))
        readbacks.append((a.read_async(8, 4), 3 * i))
        a.fill(8, 4, 3 * i + 1)
        readbacks.append((a.read_async(8, 4), 3 * i + 1))
        b.fill(0, 64, 3 * i + 2)
        a.copy_from(b, 16)
        readbacks.append((a.read_async(8, 4), 3 * i + 2))
    a.write(0, memoryview(bytes(64)))
    device.synchronize()
    assert [number(readback.take()) for readback, _ in readbacks] == [value for _, value in readbacks]


def test_offsets_and_sizes(device: Device) -> None:
    memory = Memory(device)
    data = np.random.default_rng(1).integers(0, 256, 3 * READBACK_LIMIT, dtype=np.uint8)
    a = memory.allocate(data.nbytes)
    a.write(0, memoryview(data))
    rng = random.Random(2)
    ranges = [(0, 4), (4, 4), (12, 64), (100, 68), (READBACK_LIMIT, READBACK_LIMIT), (data.nbytes - 4, 4)]
    for _ in range(200):
        nbytes = 4 * rng.randint(1, 2000)
        ranges.append((4 * rng.randint(0, (data.nbytes - nbytes) // 4), nbytes))
    readbacks = [a.read_async(offset, nbytes) for offset, nbytes in ranges]
    a.fill(0, data.nbytes, 0)
    for readback, (offset, nbytes) in zip(readbacks, ranges):
        assert readback.wait() == readback.take() == data[offset : offset + nbytes].tobytes()


def test_large_readbacks_take_staging_memory_of_their_size(device: Device) -> None:
    memory = Memory(device)
    a = memory.allocate(READBACK_LIMIT)
    for _ in range(3):
        for nbytes in (4, READBACK_LIMIT, 4, READBACK_LIMIT // 2 + 4):
            a.fill(0, READBACK_LIMIT, nbytes)
            assert a.read_async(READBACK_LIMIT - nbytes, nbytes).wait() == struct.pack("<I", nbytes) * (nbytes // 4)
    if device.info.arch == "wgpu":
        sizes = {size: len(spare) for size, spare in device._stream.staging._spare.items()}  # type: ignore[attr-defined]
        assert sizes == {1 << 16: 1, READBACK_LIMIT: 1}


def test_the_memory_may_go_before_the_bytes_come(device: Device) -> None:
    memory = Memory(device)
    readbacks = []
    for i in range(200):
        a = memory.allocate(4096)
        a.fill(0, 4096, i)
        readbacks.append(a.read_async(4092, 4))
        del a  # the next allocation may be the same memory, and is zeroed
    assert [number(readback.wait()) for readback in readbacks] == list(range(200))


@pytest.mark.archs("vulkan")
def test_memory_that_the_host_cannot_see(arch: str) -> None:
    device = loader.open_device(arch, mappable=False)
    a = Memory(device).allocate(64)
    assert device.host_view(a.buffer) is None
    readbacks = []
    for i in range(300):
        a.fill(0, 8, i)
        readbacks.append(a.read_async(4, 4))
        if i % 100 == 50:
            device.synchronize()
    assert [number(readback.wait()) for readback in readbacks] == list(range(300))
    del readbacks
    device.close()


@pytest.mark.parametrize(
    ("offset", "nbytes", "message"), [(2, 4, "whole"), (0, 6, "whole"), (0, 0, "4 to"), (0, READBACK_LIMIT + 4, "4 to")]
)
def test_what_cannot_be_read_back(device: Device, offset: int, nbytes: int, message: str) -> None:
    a = Memory(device).allocate(2 * READBACK_LIMIT)
    with pytest.raises(ValueError, match=message):
        device.read_async(a.buffer, offset, nbytes)
    with pytest.raises(ValueError, match=message):
        a.read_async(offset, nbytes)


def test_a_readback_past_the_end(device: Device) -> None:
    a = Memory(device).allocate(40)
    for offset, nbytes in ((-4, 4), (40, 4), (0, 44), (4, 40)):
        with pytest.raises(ValueError, match="past the end"):
            a.read_async(offset, nbytes)
    for offset, nbytes in ((-4, 4), (48, 4), (4, 48)):  # what the device has is rounded up
        with pytest.raises(ValueError, match="outside"):
            device.read_async(a.buffer, offset, nbytes)
    a.free()
    with pytest.raises(SpirogradRuntimeError, match="freed"):
        a.read_async(0, 4)


# --- not waiting ---


def test_none_until_the_work_is_done_then_always_the_bytes(device: Device, words: Allocation) -> None:
    words.fill(0, 4, 7)
    readback = words.read_async(0, 4)
    if device.info.arch in BATCHING:
        assert readback.take() is None and readback.take() is None, "nothing was submitted yet"
    device.synchronize()
    data = readback.take()
    assert number(data) == 7
    words.fill(0, 4, 8)
    device.synchronize()
    assert readback.take() is data and readback.wait() is data


def test_later_work_brings_the_bytes_without_a_wait(device: Device, words: Allocation) -> None:
    words.fill(0, 4, 7)
    readback = words.read_async(0, 4)
    assert number(soon(readback, lambda: words.fill(4, 4, 1))) == 7
    # In a steady loop bytes keep coming, and the host never waits. How far it is ahead depends on what else the machine does.
    pending: list[tuple[Readback, int]] = []
    came, end = 0, time.monotonic() + SECONDS
    while came < 1000:
        assert time.monotonic() < end, f"only {came} came"
        i = came + len(pending)
        words.fill(0, 4, i)
        pending.append((words.read_async(0, 4), i))
        while pending and (data := pending[0][0].take()) is not None:
            assert number(data) == pending.pop(0)[1] == came
            came += 1
    assert device.waits == 0


@pytest.mark.archs(*LATER)
def test_taking_does_not_wait_for_long_work(session: Any) -> None:
    device = session.device
    out = sg.ndarray(sg.u32, 64)

    @sg.kernel
    def long(out: sg.types.ndarray(), n: sg.i32, m: sg.i32):
        for i in range(n):
            x = sg.u32(i)
            for _ in range(m):
                x = x * x + sg.u32(1013904223)
            if i < 64:
                out[i] = x

    words = Memory(device).allocate(64)
    asked, m, begin = 0, 8192, time.monotonic()
    while asked <= 10:  # until the work is long on this machine; taking that waits would be asked once, however long it is
        assert time.monotonic() - begin < SECONDS, "taking waits for the work"
        m, begin = 2 * m, time.monotonic()
        out.fill(0)
        long(out, 4096, m)
        readback, asked = out.allocation.read_async(4, 4), 0
        for i in range(300):  # more than one batch: it is submitted
            words.fill(0, 4, i)
        waits = device.waits
        while (data := readback.take()) is None:
            asked += 1
            time.sleep(0.001)
        assert device.waits == waits
        assert number(data) == out.to_numpy()[1] != 0


def test_take_while_another_thread_waits(device: Device, words: Allocation) -> None:
    """The device's lock is held for as long as a thread waits; whoever takes meanwhile goes on."""
    lock = device._turn.lock if device.info.arch in LATER else threading.Lock()  # type: ignore[attr-defined]
    words.fill(0, 4, 5)
    readback = words.read_async(0, 4)
    held, done = threading.Event(), threading.Event()
    late: list[str] = []

    def hold() -> None:
        with lock:
            held.set()
            if not done.wait(SECONDS):
                late.append("the lock was held until the time was up")

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(SECONDS)
    data = readback.take()
    done.set()
    thread.join()
    assert not late
    assert data is None if device.info.arch in LATER else number(data) == 5
    assert number(readback.wait()) == 5


# --- how many, how long ---


def test_many_outstanding(device: Device, words: Allocation) -> None:
    readbacks = []
    for i in range(5000):
        words.fill(0, 4, i)
        readbacks.append(words.read_async(0, 4))
    assert number(readbacks[-1].wait()) == 4999
    assert [number(readback.take()) for readback in reversed(readbacks)] == list(range(4999, -1, -1))


def test_dropped_readbacks_have_no_effect(device: Device, words: Allocation) -> None:
    rng = random.Random(3)
    kept: list[tuple[Readback, int]] = []
    for i in range(4000):
        words.fill(0, 4, i)
        readback = words.read_async(0, 4)
        if rng.random() < 0.3:
            kept.append((readback, i))
        if rng.random() < 0.1 and kept:
            kept.pop(rng.randrange(len(kept)))
        if rng.random() < 0.1 and kept:
            old, value = kept.pop(rng.randrange(len(kept)))
            data = old.take()
            assert data is None or number(data) == value
    assert [number(readback.wait()) for readback, _ in kept] == [value for _, value in kept]


@pytest.mark.parametrize("use", ["take", "drop", "wait"])
def test_nothing_grows(device: Device, words: Allocation, use: str) -> None:
    def some(times: int) -> None:
        pending: list[Readback] = []
        for i in range(times):
            words.fill(0, 4, i)
            readback = words.read_async(0, 4)
            if use == "wait":
                assert number(readback.wait()) == i
            elif use == "take":
                pending.append(readback)
                if len(pending) > 100 and pending[0].take() is not None:
                    pending.pop(0)
                if len(pending) > 1000:
                    pending.pop(0).wait()

    count = 4_000 if use != "wait" else 1000
    many = [words.read_async(0, 4) for _ in range(1002)]  # as many as may be pending on a device that is slow to answer
    del many
    some(count // 5)
    device.synchronize()
    gc.collect()
    objects, made = len(gc.get_objects()), staging(device)
    some(count)
    device.synchronize()
    gc.collect()
    # One object for each readback would be `count`; a device that answers late keeps some for each of the thousand pending at most.
    assert len(gc.get_objects()) < objects + (100 if use == "wait" else count // 3)
    assert staging(device) <= 20, made


# --- life ---


def test_close_with_pending_readbacks(arch: str) -> None:
    device = loader.open_device(arch)
    words = Memory(device).allocate(64)
    words.fill(0, 4, 1)
    taken = words.read_async(0, 4)
    data = taken.wait()
    words.fill(0, 4, 2)
    submitted = words.read_async(0, 4)
    for i in range(300):
        words.fill(4, 4, i)
    words.fill(0, 4, 3)
    recorded = words.read_async(0, 4)
    words.read_async(0, 4)
    device.close()
    assert taken.take() is data and taken.wait() is data
    for readback, value in ((submitted, 2), (recorded, 3)):
        if arch in LATER:
            for method in (readback.take, readback.wait):
                with pytest.raises(SpirogradRuntimeError, match="closed"):
                    method()
        else:
            assert number(readback.take()) == value
    del submitted, recorded, taken
    gc.collect()
    if arch in LATER:
        with pytest.raises(SpirogradRuntimeError, match="closed"):
            device.read_async(words.buffer, 0, 4)


def test_waits_are_counted(device: Device, words: Allocation) -> None:
    assert device.waits == 0
    words.write(0, memoryview(bytes(64)))
    words.fill(0, 4, 1)
    Memory(device).allocate(100).copy_from(words, 64)
    readback = words.read_async(0, 4)
    readback.take()
    device.host_view(words.buffer)
    assert device.waits == 0
    data = memoryview(bytearray(8))
    for step, wait in enumerate(
        (device.synchronize, device.synchronize, readback.wait, readback.wait, lambda: device.download(words.buffer, 0, data)), 1
    ):
        wait()
        assert device.waits == step
    words.read_into(0, data)
    assert device.waits == 6
    for i in range(20_000 if device.info.arch in LATER else 100):  # beyond what may be under way: the host is held back
        words.fill(0, 4, i)
    assert device.waits == 6
    soon(readback, lambda: None)
    assert device.waits == 6


@pytest.mark.archs("cpu", *LATER)  # the interpreter looks for faults after each launch
def test_waits_of_kernels(session: Any) -> None:
    x = sg.ndarray(sg.i32, 100)

    @sg.kernel
    def bump(x: sg.types.ndarray(), v: sg.i32):
        for i in range(100):
            x[i] += v

    @sg.kernel
    def total(x: sg.types.ndarray()) -> sg.i32:
        s = 0
        for i in range(100):
            s += x[i]
        return s

    bump(x, 1)
    before = session.device.waits
    for _ in range(1000):
        bump(x, 2)
    assert session.device.waits == before
    sg.sync()
    assert session.device.waits > before
    before = session.device.waits
    assert total(x) == 200_100
    assert session.device.waits > before


def test_threads(device: Device) -> None:
    """Each thread reads from its own memory while others launch, take and wait; two of them take the same readbacks."""
    memory = Memory(device)
    errors: list[BaseException] = []
    shared: list[tuple[Readback, int]] = []
    waited = [0]

    def work(seed: int) -> None:
        try:
            rng = random.Random(seed)
            mine = memory.allocate(64)
            pending: list[tuple[Readback, int]] = []
            for i in range(600):
                value = 1000 * seed + i
                mine.fill(0, 4, value)
                readback = mine.read_async(0, 4)
                pending.append((readback, value))
                if i % 3 == 0:
                    shared.append((readback, value))
                if rng.random() < 0.02:
                    assert number(readback.wait()) == value
                    waited[0] += 1
                for old, wanted in rng.sample(shared, min(3, len(shared))):
                    data = old.take()
                    assert data is None or number(data) == wanted
                if rng.random() < 0.5:
                    old, wanted = pending.pop(rng.randrange(len(pending)))
                    data = old.take()
                    assert data is None or number(data) == wanted
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors, errors
    assert [number(readback.wait()) for readback, _ in shared] == [value for _, value in shared]
    assert device.waits == waited[0] + len(shared)

"""Large readbacks of CUDA and HIP, also those into memory of the caller (`ReadsIntoMemory`). On stand-ins for the drivers."""

import struct

import numpy as np
import pytest
from unit.runtime.reading import read

from spirograd.base.arguments import Arguments
from spirograd.base.device import ARRIVAL_LIMIT
from spirograd.runtime.allocations import Memory
from spirograd.runtime.launcher import Launcher

SIZES = [4, 1 << 16, (1 << 20) + 4, ARRIVAL_LIMIT]


@pytest.fixture
def allocation(gpu):
    return Memory(gpu).allocate(2 * ARRIVAL_LIMIT)


@pytest.fixture
def data(allocation):
    found = np.random.default_rng(3).integers(0, 256, allocation.nbytes, dtype=np.uint8)
    allocation.write(0, memoryview(found))
    return found


@pytest.mark.parametrize("nbytes", SIZES)
def test_bytes_arrive_as_they_were(gpu, allocation, data, nbytes):
    outs = [np.zeros(nbytes, np.uint8) for _ in range(3)]
    arrivals = [allocation.read_into_async(8 * k, memoryview(out)) for k, out in enumerate(outs)]
    before = gpu.waits
    for arrival in arrivals:
        arrival.wait()
    assert gpu.waits == before + 3
    for k, out in enumerate(outs):
        np.testing.assert_array_equal(out, data[8 * k : 8 * k + nbytes])
    assert all(arrival.here() for arrival in arrivals)


@pytest.mark.parametrize("nbytes", SIZES)
def test_asking_never_waits(standin, gpu, allocation, data, nbytes):
    standin.hold()
    out = np.zeros(nbytes, np.uint8)
    arrival = allocation.read_into_async(0, memoryview(out))
    before = gpu.waits
    assert not any(arrival.here() for _ in range(20)) and not out.any()
    standin.hold(False)
    while not arrival.here():
        pass
    assert gpu.waits == before
    np.testing.assert_array_equal(out, data[:nbytes])


def test_what_is_dropped_is_not_written(standin, gpu, allocation, data):
    """Neither its memory nor its staging memory is used by two at a time."""
    standin.hold()
    out = np.zeros(ARRIVAL_LIMIT, np.uint8)
    allocation.read_into_async(0, memoryview(out))
    standin.hold(False)
    other = np.zeros(ARRIVAL_LIMIT, np.uint8)
    arrival = allocation.read_into_async(ARRIVAL_LIMIT, memoryview(other))
    arrival.wait()
    np.testing.assert_array_equal(other, data[ARRIVAL_LIMIT:])
    assert not out.any()


@pytest.mark.parametrize("offset, nbytes, message", [(2, 4, "whole"), (0, 6, "whole"), (0, ARRIVAL_LIMIT + 4, "4 to")])
def test_ranges_that_are_refused(allocation, offset, nbytes, message):
    with pytest.raises(ValueError, match=message):
        allocation.read_into_async(offset, memoryview(bytearray(nbytes)))


def test_large_readbacks_go_on_beside_later_work(gpu, standin, compiled):
    memory = Memory(gpu)
    a, b = memory.allocate(1 << 20), memory.allocate(64)
    data = np.random.default_rng(2).integers(0, 256, 1 << 20, dtype=np.uint8)
    a.write(0, memoryview(data))
    plan = Launcher(gpu, memory).prepare(compiled("count"))
    out = np.zeros(1 << 20, np.uint8)
    a.read_into_async(0, memoryview(out)).wait()
    np.testing.assert_array_equal(out, data)
    standin.hold(stream=gpu._transfers._beside)
    out[:] = 0
    arrival = a.read_into_async(0, memoryview(out))
    for _ in range(2):
        plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: b}))
    assert struct.unpack("<I", b.read_async(0, 4).wait()) == (2,) and not arrival.here()
    standin.hold(False, stream=gpu._transfers._beside)
    arrival.wait()
    np.testing.assert_array_equal(out, data)
    for _ in range(3):  # memory is freed after what still reads it
        a.write(0, memoryview(data))
        out[:] = 0
        arrival = a.read_into_async(0, memoryview(out))
        standin.hold()
        del a
        gpu._collect()
        a = memory.allocate(1 << 20)
        a.fill(0, 1 << 20, 1)
        standin.hold(False)
        arrival.wait()
        np.testing.assert_array_equal(out, data)
        del arrival  # its cell serves the next one
    assert read(b)[0] == 2


def test_large_readbacks_come_before_later_writes(gpu, standin):
    memory = Memory(gpu)
    a, b = memory.allocate(1 << 20), memory.allocate(1 << 20)
    a.write(0, memoryview(np.random.default_rng(3).integers(0, 256, 1 << 20, dtype=np.uint8)))
    out = np.zeros(1 << 20, np.uint8)
    a.read_into_async(0, memoryview(out)).wait()  # makes the stream beside
    standin.hold(stream=gpu._transfers._beside)
    a.read_into_async(0, memoryview(out))  # abandoned: its cell serves the next one, with a copy of other bytes pending
    b.fill(0, 1 << 20, 5)
    readback = b.read_async(0, 1 << 20)
    b.fill(0, 1 << 20, 7)
    assert readback.take() is None
    standin.hold(False, stream=gpu._transfers._beside)
    assert readback.wait() == struct.pack("<I", 5) * (1 << 18)
    standin.hold()
    readback = b.read_async(0, 1 << 20)
    b.fill(0, 1 << 20, 9)
    standin.hold(False)
    assert readback.wait() == struct.pack("<I", 7) * (1 << 18)

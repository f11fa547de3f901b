"""Large readbacks of CUDA and HIP that land in memory of the host (`ReadsIntoMemory`). On stand-ins for the drivers."""

import numpy as np
import pytest

from spirograd.runtime.allocations import Memory
from spirograd.runtime.device import ARRIVAL_LIMIT

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

"""Copies between host and device on stand-ins for the drivers of CUDA and HIP: the ring of pinned chunks, its reuse, errors."""

import contextlib
import struct

import numpy as np
import pytest
from unit.runtime.reading import read

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.runtime.allocations import Memory
from spirograd.runtime.devices.gpu import transfer


def test_transfers(gpu, standin):
    memory = Memory(gpu)
    rng = np.random.default_rng(1)
    sizes = (1, 3, 4, 100, 65536, transfer.SMALL_BYTES, transfer.SMALL_BYTES + 1, 5_000_001, transfer.CHUNK_BYTES * 3)
    for nbytes in sizes:
        data = rng.integers(0, 256, nbytes, dtype=np.uint8)
        a = memory.allocate(nbytes + 7)
        assert a.address % 256 == 0
        assert not read(a, np.uint8).any(), "fresh memory is zero"
        kept = data.copy()
        a.write(5, memoryview(data))
        data[:] = 0  # the caller may reuse it at once
        back = read(a, np.uint8)
        assert (back[5 : 5 + nbytes] == kept).all() and not back[:5].any() and not back[5 + nbytes :].any()
        b = memory.allocate(nbytes)
        b.copy_from(a, nbytes, 0, 5)
        assert (read(b, np.uint8) == kept).all()
    a.fill(8, 16, 0xDEADBEEF)
    assert read(a, np.uint32, 4, 6).tolist()[1:5] == [0xDEADBEEF] * 4
    with pytest.raises(ValueError, match="overlap"):
        a.copy_from(a, 100, 0, 50)
    assert gpu.host_view(a.buffer) is None and gpu.wrap(4096, 16) is None


def test_transfers_larger_than_the_ring(gpu):
    memory = Memory(gpu)
    nbytes = transfer.CHUNK_BYTES * (transfer.CHUNKS + 5) + 12345
    data = np.random.default_rng(2).integers(0, 256, nbytes, dtype=np.uint8)
    a = memory.allocate(nbytes, zeroed=False)
    a.write(0, memoryview(data))
    assert (read(a, np.uint8) == data).all()


def test_a_chunk_is_not_written_again_before_the_device_has_read_it(gpu, standin):
    """Many small uploads, and all the work later: each must find its own bytes."""
    memory = Memory(gpu)
    a = memory.allocate(4 * 3000)
    gpu.synchronize()
    standin.hold()
    for i in range(3000):
        a.write(4 * i, memoryview(struct.pack("<I", i)))
    standin.hold(False)
    assert (read(a) == np.arange(3000)).all()


def test_few_chunks_are_enough_where_little_is_pending(gpu, standin):
    memory = Memory(gpu)
    a = memory.allocate(transfer.CHUNK_BYTES)
    data = bytes(a.nbytes)
    for _ in range(5):
        a.write(0, memoryview(data))
        read(a)
    assert standin.live("pinned") < transfer.CHUNKS


@pytest.mark.parametrize("symbol", ["copy_to_device", "copy_to_host", "event_record", "event_query"])
def test_transfers_that_fail_lose_no_chunk(gpu, standin, symbol, monkeypatch):
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 1 << 20)  # a quarter of what has to be moved
    memory = Memory(gpu)
    nbytes = transfer.CHUNK_BYTES * (transfer.CHUNKS + 3)
    a = memory.allocate(nbytes)
    data = np.arange(nbytes, dtype=np.uint8)
    for _ in range(3):
        for use in (lambda: a.write(0, memoryview(data)), lambda: read(a)):
            standin.fail(symbol, 1)
            with contextlib.suppress(SpirogradRuntimeError):
                use()
            standin.fail(symbol, 0, 0)
    assert standin.live("pinned") <= transfer.CHUNKS
    a.write(0, memoryview(data))
    assert (read(a, np.uint8) == data).all()


def test_small_uploads_wait_for_nothing(gpu, standin):
    memory = Memory(gpu)
    a = memory.allocate(1 << 20)
    data = bytes(1 << 20)
    gpu.synchronize()
    standin.hold()
    for _ in range(transfer.CHUNK_BYTES * (transfer.CHUNKS - 1) // len(data)):
        a.write(0, memoryview(data))
    assert standin.pending
    standin.hold(False)

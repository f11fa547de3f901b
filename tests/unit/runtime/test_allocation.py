import gc

import numpy as np
import pytest
from unit.runtime.fake_device import FakeDevice

from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.runtime.allocations import Memory


@pytest.mark.parametrize("mappable", [True, False])
def test_read_back_what_was_written(mappable):
    memory = Memory(FakeDevice(mappable))
    a = memory.allocate(40)
    data = np.arange(5, dtype=np.float64)
    a.write(0, memoryview(data))
    out = np.zeros(3)
    a.read_into(16, memoryview(out).cast("B"))
    assert out.tolist() == [2.0, 3.0, 4.0]
    a.fill(0, 8, 0x01010101)
    one = bytearray(8)
    a.read_into(0, memoryview(one))
    assert one == b"\x01" * 8
    assert (a.host_address is not None) == mappable
    b = memory.allocate(16)
    b.copy_from(a, 8, 8, 32)
    b.read_into(8, memoryview(out[:1]).cast("B"))
    assert out[0] == 4.0


def test_generations_start_at_zero_and_grow_with_each_write():
    memory = Memory(FakeDevice())
    a = memory.allocate(16)
    seen = [a.generation]
    a.write(0, memoryview(b"abcd"))
    seen.append(a.generation)
    a.fill(0, 4, 0)
    seen.append(a.generation)
    a.bump()
    seen.append(a.generation)
    assert seen[0] == 0 and sorted(set(seen)) == seen


def test_memory_is_freed_with_its_last_reference():
    device = FakeDevice()
    memory = Memory(device)
    a = memory.allocate(100)
    assert len(device.live) == 1
    del a
    assert not device.live
    b = memory.allocate(100)
    b.free()
    b.free()
    assert not device.live and b.freed
    with pytest.raises(SpirogradRuntimeError, match="freed"):
        b.write(0, memoryview(b"x"))


def test_out_of_range_is_refused():
    a = Memory(FakeDevice()).allocate(8)
    with pytest.raises(ValueError, match="past the end of 8 bytes"):
        a.write(4, memoryview(b"12345"))
    with pytest.raises(ValueError, match="past the end"):
        a.read_into(-1, memoryview(bytearray(1)))
    with pytest.raises(ValueError, match="whole 32-bit words"):
        a.fill(1, 4, 0)
    with pytest.raises(ValueError, match="cannot allocate"):
        Memory(FakeDevice()).allocate(-1)


def test_memory_in_reference_cycles_is_collected_before_giving_up():
    memory = Memory(FakeDevice(limit=1000))
    gc.disable()
    try:
        holder = {"a": memory.allocate(600)}
        holder["self"] = holder
        del holder
        assert memory.allocate(600).nbytes == 600
        kept = memory.allocate(16)
        with pytest.raises(OutOfDeviceMemory):
            memory.allocate(2000)
        assert kept.nbytes == 16
    finally:
        gc.enable()

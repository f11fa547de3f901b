"""What asynchronous devices share, on one whose driver is a list of commands in Python."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

from spirograd.base.caps import Capabilities
from spirograd.base.device import Buffer, DeviceInfo
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.runtime.devices.choice import named_device
from spirograd.runtime.devices.deletion import DeletionQueue
from spirograd.runtime.devices.open_devices import OpenDevices
from spirograd.runtime.devices.streamed import DeviceLost, StreamedDevice


class _Transfers:
    """Commands are recorded, and run when the device finishes. ``lost``: every call says that the device is gone."""

    def __init__(self) -> None:
        self.commands: list[Any] = []
        self.done = 0
        self.lost = False
        self.staging = 0  # pieces in use

    def run(self) -> None:
        if self.lost:
            raise DeviceLost("the driver's words")
        while self.commands:
            self.commands.pop(0)()
            self.done += 1

    def upload(self, memory: bytearray, offset: int, data: memoryview) -> None:
        copy = bytes(data)
        self.commands.append(lambda: memory.__setitem__(slice(offset, offset + len(copy)), copy))

    def download(self, memory: bytearray, offset: int, out: memoryview) -> None:
        self.run()
        out[:] = memory[offset : offset + len(out)]

    def read_async(self, memory: bytearray, offset: int, nbytes: int) -> _Readback | bytes:
        if not self.commands:
            return bytes(memory[offset : offset + nbytes])
        readback = _Readback(self)
        self.commands.append(lambda: readback.land(bytes(memory[offset : offset + nbytes])))
        return readback

    def fill(self, memory: bytearray, offset: int, nbytes: int, word: int) -> None:
        self.upload(memory, offset, memoryview(word.to_bytes(4, "little") * (nbytes // 4)))

    def copy(self, target: bytearray, target_offset: int, source: bytearray, source_offset: int, nbytes: int) -> None:
        self.commands.append(
            lambda: target.__setitem__(slice(target_offset, target_offset + nbytes), source[source_offset : source_offset + nbytes])
        )


class _Readback:
    def __init__(self, transfers: _Transfers) -> None:
        self._transfers = transfers
        self._data: bytes | None = None
        transfers.staging += 1

    def land(self, data: bytes) -> None:
        self._data = data

    def poll(self) -> bytes | None:
        return self._data

    def wait(self) -> None:
        self._transfers.run()

    def __del__(self) -> None:
        self._transfers.staging -= 1


class _Device(StreamedDevice):
    api = "Toy"
    open_devices = OpenDevices()

    def __init__(self, limit: int = 1 << 20) -> None:
        super().__init__()
        self.info = DeviceInfo("toy", "toy", "0")
        self.caps = Capabilities(target_name="toy")
        self._device = self._transfers = self.work = _Transfers()
        self.limit, self.used = limit, 0
        self.reports: list[str] = []
        self.open_devices.add(self)

    def _allocate(self, nbytes: int, zeroed: bool) -> Buffer:
        if self.used + nbytes > self.limit:
            raise OutOfDeviceMemory("too much")
        self.used += nbytes
        return Buffer(nbytes, 256, bytearray(nbytes))

    def _delete(self, thing: bytearray) -> None:
        self.used -= len(thing)

    def _collect(self) -> None:
        self._deletions.collect(self.work.done + len(self.work.commands), lambda: self.work.done)

    def _finish(self) -> None:
        self.work.run()

    def _check(self) -> None:
        super()._check()
        if self.reports:
            raise SpirogradRuntimeError(self.reports.pop())

    def _delete_all(self) -> None:
        if not self._trouble:
            self.work.run()


def test_freed_memory_comes_back_when_no_work_uses_it() -> None:
    device = _Device(limit=100)
    a = device.allocate(60)
    device.fill(a, 0, 60, 1)
    device.free(a)
    device.allocate(40)
    assert device.used == 100, "the fill is still to come"
    device.allocate(60)  # waits for it
    assert device.used == 100 and device.work.done == 1
    with pytest.raises(OutOfDeviceMemory):
        device.allocate(4)


def test_copies_that_overlap() -> None:
    device = _Device()
    a = device.allocate(64)
    device.upload(a, 0, memoryview(bytes(range(16))))
    with pytest.raises(ValueError, match="overlap"):
        device.copy(a, 0, a, 15, 16)
    device.copy(a, 16, a, 0, 16)
    out = memoryview(bytearray(32))
    device.download(a, 0, out)
    assert bytes(out) == bytes(range(16)) * 2
    before = device.work.done
    for call in (lambda: device.copy(a, 0, a, 0, 0), lambda: device.fill(a, 0, 0, 1), lambda: device.upload(a, 0, memoryview(b""))):
        call()
    device.synchronize()
    assert device.work.done == before, "nothing to do is nothing recorded"


def test_readbacks() -> None:
    device = _Device()
    a = device.allocate(64)
    assert device.read_async(a, 0, 4).take() == bytes(4), "an idle device has the bytes"
    device.fill(a, 0, 4, 7)
    readbacks = [device.read_async(a, 0, 4) for _ in range(3)]
    assert [readback.take() for readback in readbacks] == [None] * 3 and device.work.staging == 3
    del readbacks[2]
    waits = device.waits
    data = readbacks[0].wait()
    assert int.from_bytes(data, "little") == 7 and readbacks[0].take() is data
    assert readbacks[1].take() == data and device.waits == waits + 1
    assert device.work.staging == 0, "whoever has the bytes needs no staging memory"


def test_a_readback_in_another_threads_turn() -> None:
    device = _Device()
    a = device.allocate(64)
    device.fill(a, 0, 4, 7)
    readback = device.read_async(a, 0, 4)
    device.synchronize()
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with device._turn:
            inside.set()
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(20)
    assert readback.take() is None
    done.set()
    thread.join()
    assert readback.take() == bytes([7, 0, 0, 0])


def test_a_lost_device_is_told_from_then_on() -> None:
    device = _Device()
    a = device.allocate(64)
    device.fill(a, 0, 4, 7)
    readback = device.read_async(a, 0, 4)
    device.work.lost = True
    calls = (device.synchronize, readback.wait, readback.take, lambda: device.allocate(4), lambda: device.fill(a, 0, 4, 1))
    for call in calls:
        with pytest.raises(SpirogradRuntimeError, match=r"the Toy device was lost .*call init again.*the driver's words"):
            call()
    device.free(a)
    device.close()
    with pytest.raises(SpirogradRuntimeError, match="was lost"):
        device.synchronize()


def test_what_the_driver_reports_is_raised_once() -> None:
    device = _Device()
    device.reports.append("a complaint")
    with pytest.raises(SpirogradRuntimeError, match="a complaint"):
        device.synchronize()
    device.synchronize()


def test_close() -> None:
    device = _Device()
    a = device.allocate(64)
    device.fill(a, 0, 4, 7)
    readback = device.read_async(a, 0, 4)
    device.close()
    device.close()
    assert device.work.done == 2, "it waits for the work under way"
    for call in (device.synchronize, readback.take, readback.wait, lambda: device.allocate(4)):
        with pytest.raises(SpirogradRuntimeError, match="this Toy device was closed"):
            call()
    device.free(a)


def test_abandoned_in_a_forked_child() -> None:
    device = _Device()
    device._turn.lock.acquire()  # by a thread that the child does not have
    device._abandon()
    found: list[str] = []

    def other() -> None:
        try:
            device.synchronize()
        except SpirogradRuntimeError as error:
            found.append(str(error))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(20)
    assert found == ["Toy does not survive a fork; call init in the child process, or start it with the 'spawn' method"]
    device.close()
    assert device.work.done == 0


def test_deletion_queue_deletes_in_order_and_once() -> None:
    deleted: list[str] = []
    queue = DeletionQueue(deleted.append)
    queue.put("a")
    queue.extend("bc")
    queue.collect(3, lambda: 2)
    queue.put("d")
    assert len(queue) == 1
    queue.collect(4, lambda: 2)
    assert deleted == []
    queue.collect(9, lambda: 3)
    assert deleted == ["a", "b", "c"]
    queue.collect(9, lambda: 9)
    assert deleted == ["a", "b", "c", "d"]
    queue.put("e")
    queue.collect()
    assert deleted[4:] == ["e"]


def test_a_dropped_device_is_not_kept() -> None:
    device = _Device()
    reference = weakref.ref(device)
    del device
    gc.collect()
    assert reference() is None


def test_the_device_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["Alpha 1", "Beta 1"]
    right = (("", None), ("1", 1), ("beta", 1), ("A", 0))
    wrong = (("2", r"there is no such toy; there are 2 \(0: Alpha 1, 1: Beta 1\)"), ("gamma", "no toy has this in its name"))
    for wanted, index in right:
        assert named_device(names, "toy", wanted) == index
    for wanted, message in wrong:
        with pytest.raises(SpirogradRuntimeError, match=f"the option `device={wanted}`: {message}"):
            named_device(names, "toy", wanted)
    with pytest.raises(SpirogradRuntimeError, match=r"there is no such toy; there is 1 \(0: Alpha 1\)"):
        named_device(names[:1], "toy", "1")
    for wanted, index in right[1:]:
        monkeypatch.setenv("SG_DEVICE", wanted)
        assert named_device(names, "toy", "nonsense") == index, "the variable takes precedence"
    for wanted, message in wrong:
        monkeypatch.setenv("SG_DEVICE", wanted)
        with pytest.raises(SpirogradRuntimeError, match=f"SG_DEVICE={wanted}: {message}"):
            named_device(names, "toy")

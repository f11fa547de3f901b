"""The base of asynchronous devices, which do work in the order of the calls: locking, failures, deferred deletion, closing, fork.

A device adds how memory is allocated, how bytes move (`DeviceTransfers`), and how kernels are loaded and launched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Protocol

from spirograd.base import validity
from spirograd.base.caps import Capabilities
from spirograd.base.device import Buffer, DeviceInfo, Readback
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.runtime.devices import interrupts
from spirograd.runtime.devices.completed_readback import CompletedReadback, check_range
from spirograd.runtime.devices.deletion import DeletionQueue
from spirograd.runtime.devices.open_devices import OpenDevices


class DeviceLost(SpirogradRuntimeError):
    """The driver refuses to work because the device is gone. ``outcome``: what has become of the device, and what to do."""

    outcome = (
        "was lost (the driver reset it, often because a kernel ran too long or wrote outside of its arrays); its memory is gone: "
        "call init again"
    )


class WorkLost(DeviceLost):
    """The driver did not take recorded work, and it cannot be recorded again: arrays lack what it would have written."""

    outcome = (
        "cannot be used any more: its driver found no memory for work that kernels were launched with, so that arrays lack their results. "
        "Have less memory in use, by this and other processes, and call init again"
    )


class StagedReadback(Protocol):
    """A recorded copy to staging memory, which is used again when the readback is dropped. Both methods are called in the device's turn."""

    def poll(self) -> bytes | None:
        """The bytes if they are there. Never waits, submits nothing."""

    def wait(self) -> None:
        """Submit what is recorded up to the copy, and wait until `poll` gives the bytes."""


class DeviceTransfers(Protocol):
    """Bytes between host and device, in order with launches. ``memory`` is the handle of a buffer. Called in the device's turn."""

    def upload(self, memory: Any, offset: int, data: memoryview) -> None: ...

    def download(self, memory: Any, offset: int, out: memoryview) -> None: ...

    def read_async(self, memory: Any, offset: int, nbytes: int) -> StagedReadback | bytes:
        """Record a readback; or give the bytes, where the host can read them without a wait."""

    def fill(self, memory: Any, offset: int, nbytes: int, word: int) -> None: ...

    def copy(self, target: Any, target_offset: int, source: Any, source_offset: int, nbytes: int) -> None: ...


class Turn:
    """``with turn:`` holds the lock of a device that can be used, and raises if it cannot. A DeviceLost raised inside is recorded.

    ``lock`` alone, released by `release`, is for what a lost or closed device still does; a thread that holds it may take a turn.
    """

    __slots__ = ("_device", "lock")

    def __init__(self, device: StreamedDevice) -> None:
        self._device = device
        self.lock = interrupts.device_lock()

    def __enter__(self) -> None:
        interrupts.watch()
        self.lock.acquire()
        try:
            self._device._check()
        except BaseException:
            self.release()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        try:
            if error is not None and isinstance(error, DeviceLost):
                self._device._lose(error)
        finally:
            self.lock.release()
            if interrupts.pending.handler is not None:
                interrupts.deliver()

    def release(self) -> None:
        """Release the lock, and raise what came meanwhile."""
        self.lock.release()
        interrupts.deliver()


class PendingReadback:
    """A `Readback`: a readback until the bytes are there, then the bytes."""

    __slots__ = ("_data", "_device", "_readback")

    def __init__(self, device: StreamedDevice, readback: StagedReadback) -> None:
        self._device = device
        self._readback: StagedReadback | None = readback
        self._data = b""

    def take(self) -> bytes | None:
        """See `Readback.take`. While another thread is inside of the device, which may take long, the answer is None too."""
        if self._readback is not None:
            turn = self._device._turn
            if not turn.lock.acquire(blocking=False):
                return None
            try:
                self._poll()
            finally:
                turn.release()
        return self._data if self._readback is None else None

    def wait(self) -> bytes:
        """See `Readback.wait`."""
        device = self._device
        device._count_wait()
        if self._readback is not None:
            with device._turn:
                if self._readback is not None:
                    self._readback.wait()
                    device._check()
                    self._poll()
        return self._data

    def _poll(self) -> None:
        """Keep the bytes if they are there. The caller holds the lock."""
        if self._readback is not None:
            with self._device._turn:
                data = self._readback.poll()
                if data is not None:
                    self._data, self._readback = data, None


class StreamedDevice(ABC):
    """Implements `Device`, but for `load` and `launch`. What the public methods do is described there.

    Methods that begin with an underscore are called in the device's turn, and may raise DeviceLost. ``api`` is the name for messages.
    ``turn_type``: a subclass of Turn, where the driver wants something set for the thread that is in the device.
    The constructor of a subclass calls this one, opens the device, sets the attributes below, and adds itself to ``open_devices``.
    """

    api: str
    open_devices: ClassVar[OpenDevices]
    turn_type: ClassVar[type[Turn]] = Turn
    info: DeviceInfo
    caps: Capabilities
    _device: Any = None  # the driver's device, None before and after
    _transfers: DeviceTransfers

    def __init__(self) -> None:
        self.waits = 0
        self._turn = self.turn_type(self)
        self._trouble = ""  # why the device cannot be used any more
        self._deletions = DeletionQueue(self._delete)

    # --- memory ---

    def allocate(self, nbytes: int, zeroed: bool = True) -> Buffer:
        with self._turn:
            self._collect()
            try:
                return self._allocate(nbytes, zeroed)
            except OutOfDeviceMemory:
                self._reclaim()
                return self._allocate(nbytes, zeroed)

    @abstractmethod
    def _allocate(self, nbytes: int, zeroed: bool) -> Buffer: ...

    def free(self, buffer: Buffer) -> None:
        """May be called from finalizers, also while this device is at work."""
        self._deletions.put(buffer.handle)

    @abstractmethod
    def _delete(self, thing: Any) -> None:
        """Delete what was put into `_deletions`: the handle of a buffer, or what the subclass puts there."""

    def upload(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        if len(data):
            with self._turn:
                self._transfers.upload(buffer.handle, offset, data)
                self._after_work()

    def download(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        with self._turn:
            self.waits += 1
            self._transfers.download(buffer.handle, offset, out)
            self._check()

    def read_async(self, buffer: Buffer, offset: int, nbytes: int) -> Readback:
        check_range(buffer, offset, nbytes)
        with self._turn:
            found = self._transfers.read_async(buffer.handle, offset, nbytes)
        return CompletedReadback(found, self._count_wait) if isinstance(found, bytes) else PendingReadback(self, found)

    def fill(self, buffer: Buffer, offset: int, nbytes: int, word: int) -> None:
        if nbytes:
            with self._turn:
                self._transfers.fill(buffer.handle, offset, nbytes, word)
                self._after_work()

    def copy(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        """Raises ValueError if both ranges overlap."""
        if target.handle is source.handle and abs(target_offset - source_offset) < nbytes:
            raise ValueError("a copy within one buffer must not overlap itself")
        if nbytes:
            with self._turn:
                self._transfers.copy(target.handle, target_offset, source.handle, source_offset, nbytes)
                self._after_work()

    def host_view(self, buffer: Buffer) -> memoryview | None:
        """None, unless the device maps its memory."""
        return None

    def wrap(self, address: int, nbytes: int) -> Buffer | None:
        """None, unless the device reads memory of the host in place."""
        return None

    def _after_work(self) -> None:  # noqa: B027
        """Called after uploads, fills and copies, in the same turn; a subclass whose launches need it, too, calls it there. Here it does
        nothing."""

    # --- waits ---

    def synchronize(self) -> None:
        with self._turn:
            self.waits += 1
            self._finish()
            self._collect()
            self._check()

    @abstractmethod
    def _finish(self) -> None:
        """Submit what is recorded, and wait until all work is done."""

    def _collect(self) -> None:
        """Delete what was released and is no longer in use; by default the driver keeps alive what pending work uses."""
        self._deletions.collect()

    def _reclaim(self) -> None:
        """An allocation failed: wait for the work whose memory was freed, and take that memory back."""
        self._finish()
        self._collect()

    def _count_wait(self) -> None:
        """Of devices that were closed, too."""
        self._turn.lock.acquire()
        self.waits += 1
        self._turn.release()

    # --- failures, the end ---

    def _check(self) -> None:
        """Raise SpirogradRuntimeError if the device cannot be used. A subclass adds what its driver reports without being asked."""
        if self._trouble:
            raise SpirogradRuntimeError(self._trouble)

    def _lose(self, error: DeviceLost) -> NoReturn:
        """Remember that the device is lost, and raise that."""
        self._trouble = f"the {self.api} device {error.outcome}. The driver says: {error}"
        raise SpirogradRuntimeError(self._trouble) from error

    def close(self) -> None:
        """Wait for the work under way and release everything. Raises what the driver reports even then."""
        self._turn.lock.acquire()
        try:
            if self._device is not None:
                self.open_devices.discard(self)
                self._delete_all()
        finally:
            self._device = None
            self._trouble = self._trouble or f"this {self.api} device was closed"
            validity.renew()
            self._turn.release()

    @abstractmethod
    def _delete_all(self) -> None:
        """Wait for the work under way, if the device is not lost, and delete everything, ``_device`` last. Called with the lock held."""

    def _abandon(self) -> None:
        """In a forked child: the driver's threads do not exist here, nothing may be called any more, not even to clean up."""
        self._device = None
        self._turn = self.turn_type(self)  # the owner of the lock may not exist in this process
        self._trouble = f"{self.api} does not survive a fork; call init in the child process, or start it with the 'spawn' method"

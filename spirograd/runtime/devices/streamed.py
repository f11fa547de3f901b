"""The base of asynchronous devices, which run work in the order of the calls: locking, failures, deferred deletion, closing, forks.

A device defines how memory is allocated, how bytes move (`DeviceTransfers`), and how kernels are loaded and launched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Protocol, TypeVar

from spirograd.base import validity
from spirograd.base.caps import Capabilities
from spirograd.base.device import Buffer, DeviceInfo, Readback
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.runtime.devices import interrupts
from spirograd.runtime.devices.completed_readback import CompletedReadback, check_range
from spirograd.runtime.devices.deletion import DeletionQueue
from spirograd.runtime.devices.open_devices import OpenDevices


class DeviceLost(SpirogradRuntimeError):
    """The error that the driver reports the loss of the device. ``outcome``: the consequence, and what the user can do."""

    outcome = (
        "was lost (the driver reset it, often because a kernel ran too long or wrote outside of its arrays); its memory is gone: "
        "call init again"
    )


class WorkLost(DeviceLost):
    """The error that the driver lost recorded work, which cannot be recorded again: arrays lack its results."""

    outcome = (
        "cannot be used any more: its driver found no memory for work that kernels were launched with, so that arrays lack their results. "
        "Have less memory in use, by this and other processes, and call init again"
    )


M = TypeVar("M", contravariant=True)


class StagedReadback(Protocol):
    """A recorded copy to staging memory, which is reused when the readback is dropped. Both methods are called in the device's turn."""

    def poll(self) -> bytes | None:
        """Return the bytes if they have arrived. Never waits, never submits work."""

    def wait(self) -> None:
        """Submit recorded work up to the copy, and wait until `poll` returns the bytes."""


class DeviceTransfers(Protocol[M]):
    """Transfers between host and device, in order with launches. ``memory`` is the handle of a buffer. Called in the device's turn."""

    def upload(self, memory: M, offset: int, data: memoryview) -> None: ...

    def download(self, memory: M, offset: int, out: memoryview) -> None: ...

    def read_async(self, memory: M, offset: int, nbytes: int) -> StagedReadback | bytes:
        """Record a readback; or return the bytes, where the host can read them without a wait."""

    def fill(self, memory: M, offset: int, nbytes: int, word: int) -> None: ...

    def copy(self, target: M, target_offset: int, source: M, source_offset: int, nbytes: int) -> None: ...


class Turn:
    """The lock of a usable device: ``with turn:`` holds it, and raises if the device cannot be used.

    A DeviceLost raised inside is recorded. ``lock`` alone, released by `release`, is for the remaining work of a lost or closed device; a
    thread that holds it may take a turn.
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
        """Release the lock, and raise deferred signals."""
        self.lock.release()
        interrupts.deliver()


class PendingReadback:
    """A `Readback`: a readback until the bytes have arrived, then the bytes."""

    __slots__ = ("_data", "_device", "_readback")

    def __init__(self, device: StreamedDevice, readback: StagedReadback) -> None:
        self._device = device
        self._readback: StagedReadback | None = readback
        self._data = b""

    def take(self) -> bytes | None:
        """Return the bytes or None, see `Readback.take`.

        While another thread is inside of the device, which may take long, the result is also None.
        """
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
        """Store the bytes if they have arrived. The caller holds the lock."""
        if self._readback is not None:
            with self._device._turn:
                data = self._readback.poll()
                if data is not None:
                    self._data, self._readback = data, None


class StreamedDevice(ABC):
    """An asynchronous `Device`, without `load` and `launch`. `Device` describes the public methods.

    Methods that begin with an underscore are called in the device's turn, and may raise DeviceLost. ``api`` is the name for messages.
    ``turn_type``: a subclass of Turn, where the driver needs state in the thread that is in the device.

    The constructor of a subclass calls this one, opens the device, sets the attributes below, and adds itself to ``open_devices``.
    """

    api: str
    open_devices: ClassVar[OpenDevices]
    turn_type: ClassVar[type[Turn]] = Turn
    info: DeviceInfo
    caps: Capabilities
    _device: Any = None  # The driver's device, None before it is opened and after it is closed.
    _transfers: DeviceTransfers[Any]

    def __init__(self) -> None:
        self.waits = 0
        self._turn = self.turn_type(self)
        self._trouble = ""  # The reason why the device cannot be used, if any.
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
        """Free memory. Finalizers may call this, also while the device is in use."""
        self._deletions.put(buffer.handle)

    @abstractmethod
    def _delete(self, thing: Any) -> None:
        """Delete an entry of `_deletions`: the handle of a buffer, or an object of the subclass."""

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
            copied = self._transfers.read_async(buffer.handle, offset, nbytes)
        return CompletedReadback(copied, self._count_wait) if isinstance(copied, bytes) else PendingReadback(self, copied)

    def fill(self, buffer: Buffer, offset: int, nbytes: int, word: int) -> None:
        if nbytes:
            with self._turn:
                self._transfers.fill(buffer.handle, offset, nbytes, word)
                self._after_work()

    def copy(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        """Copy bytes between buffers. Raises ValueError if both ranges overlap."""
        if target.handle is source.handle and abs(target_offset - source_offset) < nbytes:
            raise ValueError("a copy within one buffer must not overlap itself")
        if nbytes:
            with self._turn:
                self._transfers.copy(target.handle, target_offset, source.handle, source_offset, nbytes)
                self._after_work()

    def host_view(self, buffer: Buffer) -> memoryview | None:
        """Return None, unless the device maps its memory."""
        return None

    def wrap(self, address: int, nbytes: int) -> Buffer | None:
        """Return None, unless the device reads memory of the host in place."""
        return None

    def _after_work(self) -> None:  # noqa: B027
        """Do nothing; subclasses may override it.

        It is called after uploads, fills and copies, in the same turn; a subclass whose launches need it calls it after launches, too.
        """

    def _is_timed(self) -> bool:
        """Return whether timestamps can be written where work goes now."""
        return True

    # --- waits ---

    def synchronize(self) -> None:
        with self._turn:
            self.waits += 1
            self._finish()
            self._collect()
            self._check()

    @abstractmethod
    def _finish(self) -> None:
        """Submit recorded work, and wait until all work is complete."""

    def _collect(self) -> None:
        """Delete released resources that are no longer in use; by default the driver keeps alive the resources of pending work."""
        self._deletions.collect()

    def _reclaim(self) -> None:
        """Wait for the work whose memory was freed, and free that memory, because an allocation failed."""
        self._finish()
        self._collect()

    def _count_wait(self) -> None:
        """Count a wait, also of closed devices."""
        self._turn.lock.acquire()
        self.waits += 1
        self._turn.release()

    # --- failures, the end ---

    def _check(self) -> None:
        """Raise SpirogradRuntimeError if the device cannot be used. Subclasses add the driver's asynchronous reports."""
        if self._trouble:
            raise SpirogradRuntimeError(self._trouble)

    def _lose(self, error: DeviceLost) -> NoReturn:
        """Record that the device is lost, and raise an error."""
        validity.renew()
        self._trouble = f"the {self.api} device {error.outcome}. The driver says: {error}"
        raise SpirogradRuntimeError(self._trouble) from error

    def close(self) -> None:
        """Wait for pending work and release all resources. Raises errors that the driver reports even then."""
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
        """Wait for pending work, if the device is not lost, and delete all resources, ``_device`` last. Called with the lock held."""

    def _abandon(self) -> None:
        """Abandon the device in a forked child: the driver's threads do not exist, so nothing may be called, not even to clean
        up."""
        self._device = None
        self._turn = self.turn_type(self)  # The owner of the lock may not exist in this process.
        self._trouble = f"{self.api} does not survive a fork; call init in the child process, or start it with the 'spawn' method"

"""The interpreter as a device: byte arrays with invented addresses, and artifacts that carry a callable.

All work is synchronous: a launch is complete when it returns. Addresses of different buffers never touch, so an index that leaves its
buffer cannot reach another one.
"""

from __future__ import annotations

import platform
import threading
import time
from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import Any

import numpy as np

from spirograd.base.arrays import Array
from spirograd.base.artifact import CompiledKernel
from spirograd.base.caps import COMBINATIONS, COMMON
from spirograd.base.device import Buffer, Device, DeviceInfo, TaskTime
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.base.matrix_shapes import SHAPES
from spirograd.base.records import replace
from spirograd.base.wording import over_limit
from spirograd.runtime.devices.completed_readback import CompletedReadback, check_range

_ALIGNMENT = 256
_FIRST_ADDRESS = 1 << 32

CAPS = replace(
    COMMON,
    target_name="interpreter",
    atomic_f32_minmax=True,
    subgroup_size=1,
    subgroup_reductions=COMBINATIONS,
    subgroup_scans=COMBINATIONS,
    matrix_shapes=tuple(SHAPES),
    max_group_size=1,
    max_groups=1,
)


class InterpreterDevice:
    """A `Device` over NumPy memory. ``limit``: the most bytes allocated at a time, None if unlimited."""

    def __init__(self, limit: int | None = None) -> None:
        self.info = DeviceInfo("interpreter", "reference interpreter", f"NumPy {np.__version__}", (("python", platform.python_version()),))
        self.caps = CAPS
        self._limit = limit
        self._used = 0
        self._next = _FIRST_ADDRESS
        self._starts: list[int] = []
        self._arrays: dict[int, Array] = {}
        self._lock = threading.RLock()
        self.waits = 0

    # Memory

    def allocate(self, nbytes: int, zeroed: bool = True) -> Buffer:
        size = max(16, -(-nbytes // 16) * 16)
        with self._lock:
            if self._limit is not None and self._used + size > self._limit:
                raise OutOfDeviceMemory(over_limit(nbytes, self._used, self._limit))
            try:
                array = np.zeros(size, np.uint8)
            except (MemoryError, ValueError) as error:  # ValueError: beyond what NumPy can address
                raise OutOfDeviceMemory(f"the host cannot allocate {size} bytes for the interpreter; use smaller shapes") from error
            address = self._next
            # A gap after each buffer, so that its end is not the start of another.
            self._next += (size // _ALIGNMENT + 2) * _ALIGNMENT
            self._arrays[address] = array
            insort(self._starts, address)
            self._used += size
        return Buffer(size, address, array)

    def free(self, buffer: Buffer) -> None:
        with self._lock:
            if self._arrays.pop(buffer.address, None) is not None:
                self._starts.remove(buffer.address)
                self._used -= buffer.nbytes

    def resolve(self, address: int) -> Array:
        """Return the writable bytes from ``address`` to the end of its buffer; raise LookupError outside of every buffer."""
        k = bisect_right(self._starts, address) - 1
        if k >= 0:
            start = self._starts[k]
            array = self._arrays[start]
            if address - start < len(array):
                return array[address - start :]
        raise LookupError(f"address {address:#x} lies in no buffer")

    def upload(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        content = np.frombuffer(data, np.uint8)
        with self._lock:
            self._range(buffer, offset, len(content))[:] = content

    def download(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        target = np.frombuffer(out, np.uint8)
        with self._lock:
            self.waits += 1
            target[:] = self._range(buffer, offset, len(target))

    def read_async(self, buffer: Buffer, offset: int, nbytes: int) -> CompletedReadback:
        check_range(buffer, offset, nbytes)
        with self._lock:
            return CompletedReadback(self._range(buffer, offset, nbytes).tobytes(), self.synchronize)

    def fill(self, buffer: Buffer, offset: int, nbytes: int, word: int) -> None:
        with self._lock:
            self._range(buffer, offset, nbytes).view(np.uint32)[:] = word & 0xFFFFFFFF

    def copy(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        with self._lock:
            self._range(target, target_offset, nbytes)[:] = self._range(source, source_offset, nbytes).copy()

    def host_view(self, buffer: Buffer) -> memoryview | None:
        return self._range(buffer, 0, buffer.nbytes).data

    def wrap(self, address: int, nbytes: int) -> Buffer | None:
        """Return None: host memory is copied, so that kernels can only reach memory that the device has checked."""
        return None

    def _range(self, buffer: Buffer, offset: int, nbytes: int) -> Array:
        array = self._arrays.get(buffer.address)
        if array is None:
            raise SpirogradRuntimeError("the buffer was freed")
        if offset < 0 or offset + nbytes > len(array):
            raise SpirogradRuntimeError(f"bytes {offset} to {offset + nbytes} are outside of a buffer of {len(array)} bytes")
        return array[offset : offset + nbytes]

    # Work

    def load(self, kernel: CompiledKernel) -> object:
        if kernel.run is None:
            raise SpirogradRuntimeError(f"{kernel.name} was compiled for {kernel.target_name}, not for the interpreter")
        return kernel.run

    def launch(self, executable: Any, block: bytes | bytearray, counts: Sequence[int | None]) -> None:
        """Run the kernel. ``counts`` is ignored: the interpreter computes the bounds from the code."""
        with self._lock:
            executable(bytes(block), self)

    def task_timer(self) -> InterpreterTimer:
        return InterpreterTimer(self)

    def synchronize(self) -> None:
        """Wait for a launch in another thread, if any."""
        with self._lock:
            self.waits += 1

    def close(self) -> None:
        with self._lock:
            self._arrays.clear()
            self._starts.clear()
            self._used = 0


class InterpreterTimer:
    """A `TaskTimer` of the interpreter: a launch is one task, and complete when it returns."""

    def __init__(self, device: InterpreterDevice) -> None:
        self._device = device
        self._times: list[TaskTime] = []

    def launch(self, kernel: CompiledKernel, executable: Any, block: bytes | bytearray, counts: Sequence[int | None], number: int) -> None:
        """See `TaskTimer`."""
        cpu, begin = time.thread_time_ns(), time.perf_counter_ns()
        InterpreterDevice.launch(self._device, executable, block, counts)
        end = time.perf_counter_ns()
        self._times.append(TaskTime(number, 0, begin, end, time.thread_time_ns() - cpu))

    def collect(self) -> list[TaskTime]:
        """See `TaskTimer`."""
        times, self._times = self._times, []
        return times

    def close(self) -> None:
        """See `TaskTimer`."""


def open(*, debug: bool = False, max_threads: int = 0, device_memory_bytes: int | None = None) -> Device:
    """Open the interpreter. ``debug`` and ``max_threads`` have no effect: it always checks, and has one thread."""
    return InterpreterDevice(device_memory_bytes)

"""The CPU device: host memory, native code, launches that are done when they return."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spirograd.base import knobs, validity
from spirograd.base.artifact import CompiledKernel
from spirograd.base.caps import Capabilities
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.base.records import dataclass, replace
from spirograd.base.wording import over_limit
from spirograd.llvmgen import abi
from spirograd.llvmgen.toolchain import Library, host_caps, link, version
from spirograd.runtime.device import Buffer, CodeCache, DeviceInfo, NativeEntry
from spirograd.runtime.devices import cpu_pool
from spirograd.runtime.devices.artifacts import check_target
from spirograd.runtime.devices.completed_readback import CompletedReadback, check_range
from spirograd.runtime.devices.cpu_timer import CpuTimer
from spirograd.runtime.native import launch_function

_ALIGNMENT = 256
# From this size on memory comes in pages of its own, zeroed as it is touched and given back when freed.
_MAP_BYTES = 1 << 18
# From this size on memory is mapped in huge pages: page faults of a gigabyte in small pages take half a second.
_HUGE_BYTES = 1 << 22
# Zeros before and behind each allocation. Without bounds checks, a program that reads and writes somewhat out of range goes on, instead of
# ending the process or changing memory of Python. In mapped memory they are addresses only, until something touches them.
_GUARD_BYTES = 1 << 12
_MAP_GUARD_BYTES = 1 << 21  # a huge page, so that the memory between is aligned to these
_MAX_THREADS = 1024
# How memory is mapped that may be more than there is. Python 3.13 has a name for Linux's MAP_NORESERVE.
_UNBACKED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0x4000 if sys.platform == "linux" else 0) if os.name == "posix" else None


@dataclass(slots=True, eq=False)
class Executable:
    """A linked kernel: ``run(block, pool)`` runs all its tasks."""

    name: str
    run: Callable[[bytes, int], None]
    library: Library


def _choose_threads(max_threads: int) -> int:
    """Threads to use: the option, else SG_NUM_THREADS, else all that the process may use. Raises SpirogradRuntimeError for nonsense."""
    text = knobs.get("SG_NUM_THREADS")
    source, value = "max_threads", max_threads
    if not max_threads and text:
        source = "SG_NUM_THREADS"
        try:
            value = int(text)
        except ValueError:
            raise SpirogradRuntimeError(f"SG_NUM_THREADS must be a number of threads, not {text!r}") from None
    if not 0 <= value <= _MAX_THREADS:
        raise SpirogradRuntimeError(f"{source} must lie in 0 (all) .. {_MAX_THREADS}, not {value}")
    return value or cpu_pool.usable_threads()


def open(*, debug: bool = False, max_threads: int = 0, device_memory_bytes: int | None = None) -> CpuDevice:
    """The CPU as a device.

    ``max_threads``: 0 for SG_NUM_THREADS, or all. ``device_memory_bytes``: a cap on what is allocated at a time. ``debug`` changes
    nothing here: checks are compiled into kernels. Raises SpirogradRuntimeError for values out of range.
    """
    if device_memory_bytes is not None and device_memory_bytes <= 0:
        raise SpirogradRuntimeError(f"device_memory_bytes must be positive, not {device_memory_bytes}")
    return CpuDevice(_choose_threads(max_threads), device_memory_bytes)


def available() -> str | None:
    """None: wherever this module imports, the CPU can be used."""
    return None


class CpuDevice:
    """Implements the Device protocol. Addresses are host pointers, so host arrays need no copies."""

    on_host = True

    def __init__(self, threads: int, memory_limit: int | None) -> None:
        caps = host_caps()
        self.caps: Capabilities = caps if memory_limit is None else replace(caps, max_allocation=min(caps.max_allocation, memory_limit))
        detail = (("threads", str(threads)), ("features", caps.cpu_features), ("vector library", caps.vector_library or "none"))
        self.info = DeviceInfo("cpu", f"{caps.cpu_name} ({platform.machine()})", version(), detail)
        self.threads = threads
        self._limit = memory_limit if memory_limit is not None else caps.max_allocation
        self._pool: Any = None  # made when the first kernel is loaded
        self._cache: CodeCache | None = None
        self._lock = threading.Lock()
        self._allocated = 0
        self._reserved: set[int] = set()  # addresses of memory that does not count
        self._closed = False
        self.waits = 0

    # --- memory ---

    def allocate(self, nbytes: int, zeroed: bool = True) -> Buffer:
        """Zeroed memory. Raises OutOfDeviceMemory beyond the cap (or the machine's memory), or if the system refuses."""
        if nbytes < 0:
            raise ValueError(f"cannot allocate {nbytes} bytes")
        size = max((nbytes + 15) & ~15, 16)
        with self._lock:
            if size + self._allocated > self._limit:
                raise OutOfDeviceMemory(over_limit(nbytes, self._allocated, self._limit))
            self._allocated += size
        try:
            view = _map(size) if size >= _MAP_BYTES else _small(size)
        except (MemoryError, OSError, ValueError) as error:
            with self._lock:
                self._allocated -= size
            raise OutOfDeviceMemory(f"cannot allocate {nbytes} bytes on the CPU: {error}; use smaller shapes") from error
        address = int(np.frombuffer(view, np.uint8).ctypes.data)
        return Buffer(size, address, view)

    def reserve(self, nbytes: int) -> Buffer | None:
        size = max((nbytes + 15) & ~15, 16)
        if _UNBACKED is None:
            return None
        try:
            view = _map(size, flags=_UNBACKED)
        except (MemoryError, OSError, ValueError):
            return None
        buffer = Buffer(size, int(np.frombuffer(view, np.uint8).ctypes.data), view)
        self._reserved.add(buffer.address)
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Drop the memory; the system has it back once no view of it is left. Wrapped host memory stays with its owner."""
        if buffer.handle is None:
            return
        buffer.handle = None
        with self._lock:
            if buffer.address in self._reserved:
                self._reserved.remove(buffer.address)
            else:
                self._allocated -= buffer.nbytes

    def upload(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        source = data.cast("B")
        self._view(buffer, offset, source.nbytes)[:] = source

    def download(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        self._count_wait()
        target = out.cast("B")
        target[:] = self._view(buffer, offset, target.nbytes)

    def read_async(self, buffer: Buffer, offset: int, nbytes: int) -> CompletedReadback:
        check_range(buffer, offset, nbytes)
        return CompletedReadback(bytes(self._view(buffer, offset, nbytes)), self._count_wait)

    def fill(self, buffer: Buffer, offset: int, nbytes: int, word: int) -> None:
        view = self._view(buffer, offset, nbytes)
        if word == 0:  # a tenth of the time for the gradients of single numbers
            ctypes.memset(buffer.address + offset, 0, nbytes)
        else:
            np.frombuffer(view, np.uint32)[:] = word

    def copy(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        self._view(target, target_offset, nbytes)[:] = self._view(source, source_offset, nbytes)

    def host_view(self, buffer: Buffer) -> memoryview:
        return self._view(buffer, 0, buffer.nbytes)

    def wrap(self, address: int, nbytes: int) -> Buffer:
        return Buffer(nbytes, address)

    def _view(self, buffer: Buffer, offset: int, nbytes: int) -> memoryview:
        """Writable bytes of a buffer. Raises SpirogradRuntimeError for a range outside of it."""
        if offset < 0 or nbytes < 0 or offset + nbytes > buffer.nbytes:
            raise SpirogradRuntimeError(f"{nbytes} bytes at {offset} are outside of a buffer of {buffer.nbytes} bytes")
        if buffer.handle is not None:
            view: memoryview = buffer.handle[offset : offset + nbytes]
            return view
        return memoryview((ctypes.c_ubyte * nbytes).from_address(buffer.address + offset)).cast("B")

    # --- code ---

    def keep_code(self, cache: CodeCache | None) -> None:
        self._cache = cache
        cpu_pool.prepare(cache)

    def load(self, kernel: CompiledKernel) -> Executable:
        """Link a kernel compiled with target "cpu". Raises SpirogradRuntimeError for another target or a missing symbol."""
        check_target(kernel, "cpu", "the CPU")
        code = cpu_pool.code(self._cache)
        if self._pool is None:
            self._pool = cpu_pool.shared(self.threads)
        library = link(kernel.binaries, (abi.DRIVER,), code.entries)
        return Executable(kernel.name, code.launch.caller(library.addresses[abi.DRIVER]), library)

    def launch(self, executable: Executable, block: bytes | bytearray, counts: Sequence[int | None]) -> None:
        """Run all tasks; they are done on return. The kernel finds its bounds itself, so ``counts`` is not looked at."""
        if self._closed:
            raise SpirogradRuntimeError(f"cannot launch {executable.name}: the device is closed")
        pool = self._pool
        # The kernel reads the bytes where they are: CPython aligns their contents to 16 bytes.
        executable.run(block if type(block) is bytes else bytes(block), pool.state if pool.ready else pool.enter())

    def task_timer(self) -> CpuTimer:
        if self._pool is None:
            self._pool = cpu_pool.shared(self.threads)
        return CpuTimer(self._pool)

    def native_code(self) -> launch_function.Code | None:
        return launch_function.code(self._cache)

    def entry(self, executable: Executable, counts: Sequence[int | None]) -> NativeEntry:
        return NativeEntry(executable.library.addresses[abi.DRIVER], self._pool.enter())

    def synchronize(self) -> None:
        """Nothing to wait for."""
        self._count_wait()

    def _count_wait(self) -> None:
        with self._lock:
            self.waits += 1

    def close(self) -> None:
        """No more launches; memory goes with its buffers, and the worker threads are shared with later devices."""
        self._closed = True
        validity.renew()


def _small(size: int) -> memoryview:
    memory = np.zeros(size + _ALIGNMENT + 2 * _GUARD_BYTES, np.uint8)
    start = _GUARD_BYTES + -(memory.ctypes.data + _GUARD_BYTES) % _ALIGNMENT
    return memory[start : start + size].data


def _map(size: int, **options: int) -> memoryview:
    start = _MAP_GUARD_BYTES
    pages = mmap.mmap(-1, size + 2 * start, **options)
    if size >= _HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # kernels built without huge pages refuse the advice; the memory is good
            pages.madvise(mmap.MADV_HUGEPAGE, start, size)
    return memoryview(pages)[start : start + size]

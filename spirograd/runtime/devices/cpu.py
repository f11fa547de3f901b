"""The CPU device: host memory, native code, and launches that are complete when they return."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import platform
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spirograd.base import knobs, validity
from spirograd.base.artifact import CompiledKernel
from spirograd.base.caps import Capabilities
from spirograd.base.device import Buffer, CodeCache, DeviceInfo, NativeEntry
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass, replace
from spirograd.base.wording import over_limit
from spirograd.llvmgen import abi
from spirograd.llvmgen.object_file import code_ranges, exported_functions
from spirograd.llvmgen.toolchain import Library, host_caps, link, version
from spirograd.runtime.devices import cpu_pool, memory_faults
from spirograd.runtime.devices.artifacts import check_target
from spirograd.runtime.devices.completed_readback import CompletedReadback, check_range

if TYPE_CHECKING:
    from spirograd.runtime.devices.cpu_timer import CpuTimer
    from spirograd.runtime.native import launch_function

_ALIGNMENT = abi.ALIGNMENT
# Allocations of this size or more have pages of their own, zeroed on first access and returned to the system when freed.
_MAP_BYTES = 1 << 18
# Allocations of this size or more use huge pages: page faults of a gigabyte in small pages take half a second.
_HUGE_BYTES = 1 << 22
# Zeros before and after each allocation. Without bounds checks, a program that accesses memory slightly out of range continues, instead of
# ending the process or changing memory of Python. In mapped memory they are only addresses until they are accessed.
_GUARD_BYTES = abi.GUARD_BYTES
_MAP_GUARD_BYTES = 1 << 21  # A huge page, so that the memory in between is aligned to huge pages.
# Beyond these zeros, mapped memory has addresses where an access is a fault (see `memory_faults`): the range that an index of 32 bits
# reaches in an array of 8-byte elements. Nothing else can lie there, so faulty kernels do not change memory of Python. Half of the
# addresses that Linux offers stay free.
_CLOSED_BYTES, _MOST_CLOSED = 1 << 34, 2048
_closed: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_MAX_THREADS = 1024
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # Python 3.13 has a name for it.
# Flags for mappings that may exceed the memory of the machine.
_UNBACKED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE if os.name == "posix" else None


@dataclass(slots=True, eq=False)
class Executable:
    """A linked kernel: ``run(block, pool)`` runs all its tasks."""

    name: str
    run: Callable[[bytes, int], None]
    library: Library
    watched: memory_faults.WatchedCode


def _choose_threads(max_threads: int) -> int:
    """Return the number of threads: the option, else SG_NUM_THREADS, else all that the process may use.

    Raises SpirogradRuntimeError for invalid values.
    """
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
    """Open the CPU as a device.

    ``max_threads``: 0 for SG_NUM_THREADS, or all. ``device_memory_bytes``: the most bytes allocated at a time. ``debug`` has no effect
    here, because checks are compiled into kernels. Raises SpirogradRuntimeError for values out of range.
    """
    if device_memory_bytes is not None and device_memory_bytes <= 0:
        raise SpirogradRuntimeError(f"device_memory_bytes must be positive, not {device_memory_bytes}")
    return CpuDevice(_choose_threads(max_threads), device_memory_bytes)


def available() -> str | None:
    """Return None: the CPU can be used wherever this module imports."""
    return None


class CpuDevice:
    """The CPU as a `Device`. Addresses are host pointers, so host arrays need no copies."""

    on_host = True

    def __init__(self, threads: int, memory_limit: int | None) -> None:
        caps = host_caps()
        self.caps: Capabilities = caps if memory_limit is None else replace(caps, max_allocation=min(caps.max_allocation, memory_limit))
        detail = (("threads", str(threads)), ("features", caps.cpu_features), ("vector library", caps.vector_library or "none"))
        self.info = DeviceInfo("cpu", f"{caps.cpu_name} ({platform.machine()})", version(), detail)
        self.threads = threads
        self._limit = memory_limit if memory_limit is not None else caps.max_allocation
        self._pool: Any = None  # Created when the first kernel is loaded.
        self._cache: CodeCache | None = None
        self._lock = threading.Lock()
        self._allocated = 0
        self._reserved: set[int] = set()  # Addresses of memory that does not count towards the limit.
        self._closed = False
        self.waits = 0

    # --- memory ---

    def allocate(self, nbytes: int, zeroed: bool = True) -> Buffer:
        """Allocate zeroed memory.

        Raises OutOfDeviceMemory beyond the cap (or the machine's memory), or if the system refuses.
        """
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
        """Free the memory; the system gets it back once no view of it is left. Wrapped host memory stays with its owner."""
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
        if word != 0 and nbytes != 4:
            np.frombuffer(self._view(buffer, offset, nbytes), np.uint32)[:] = word
            return
        _check_range(buffer, offset, nbytes)  # What follows takes a tenth of the time for single numbers, such as the gradient of a loss.
        if word != 0:
            ctypes.c_uint32.from_address(buffer.address + offset).value = word
        else:
            ctypes.memset(buffer.address + offset, 0, nbytes)

    def copy(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        self._view(target, target_offset, nbytes)[:] = self._view(source, source_offset, nbytes)

    def host_view(self, buffer: Buffer) -> memoryview:
        return self._view(buffer, 0, buffer.nbytes)

    def wrap(self, address: int, nbytes: int) -> Buffer:
        return Buffer(nbytes, address)

    def _view(self, buffer: Buffer, offset: int, nbytes: int) -> memoryview:
        """Return the writable bytes of a buffer. Raises SpirogradRuntimeError for a range outside of it."""
        _check_range(buffer, offset, nbytes)
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
        files = {abi.DRIVER, *[name for file in kernel.binaries for name in exported_functions(file)[:1]]}
        library = link(kernel.binaries, sorted(files), code.entries)
        ranges = [r for file in kernel.binaries for r in code_ranges(file, library.addresses)]
        watched = memory_faults.WatchedCode(library.tracker, kernel.name, ranges, [task.entry for task in kernel.tasks])
        return Executable(kernel.name, code.launch.caller(library.addresses[abi.DRIVER]), library, watched)

    def locate(self, executable: Executable, locations: Sequence[Loc | None]) -> None:
        """See `ReportsFaults`."""
        executable.watched.locate(locations)

    def launch(self, executable: Executable, block: bytes | bytearray, counts: Sequence[int | None]) -> None:
        """Run all tasks; they are complete on return. The kernel computes its bounds itself, so ``counts`` is ignored."""
        if self._closed:
            raise SpirogradRuntimeError(f"cannot launch {executable.name}: the device is closed")
        pool = self._pool
        # The kernel reads the bytes where they are: CPython aligns their contents to 16 bytes.
        executable.run(block if type(block) is bytes else bytes(block), pool.state if pool.ready else pool.enter())

    def task_timer(self) -> CpuTimer:
        from spirograd.runtime.devices.cpu_timer import CpuTimer

        if self._pool is None:
            self._pool = cpu_pool.shared(self.threads)
        return CpuTimer(self._pool)

    def native_code(self) -> launch_function.Code | None:
        """See `CallsNatively`."""
        from spirograd.runtime.native import launch_function  # Many processes record no launch.

        return launch_function.code(self._cache)

    def entry(self, executable: Executable, counts: Sequence[int | None]) -> NativeEntry:
        return NativeEntry(executable.library.addresses[abi.DRIVER], self._pool.enter())

    def synchronize(self) -> None:
        """Return at once: launches are complete when they return."""
        self._count_wait()

    def _count_wait(self) -> None:
        with self._lock:
            self.waits += 1

    def close(self) -> None:
        """Refuse later launches. Buffers own their memory, and later devices share the worker threads."""
        self._closed = True
        validity.renew()


def _check_range(buffer: Buffer, offset: int, nbytes: int) -> None:
    """Raise SpirogradRuntimeError for a range outside of a buffer."""
    if offset < 0 or nbytes < 0 or offset + nbytes > buffer.nbytes:
        raise SpirogradRuntimeError(f"{nbytes} bytes at {offset} are outside of a buffer of {buffer.nbytes} bytes")


def _between_closed_pages(size: int, flags: int = mmap.MAP_SHARED if os.name == "posix" else 0) -> tuple[mmap.mmap, int] | None:
    """Map ``size`` bytes between two ranges of _CLOSED_BYTES that cannot be accessed.

    Returns the mapping and the offset of the bytes, or None if the system does not offer enough addresses.
    """
    if sys.platform != "linux" or len(_closed) >= _MOST_CLOSED:
        return None
    try:
        pages = mmap.mmap(-1, size + 2 * (_MAP_GUARD_BYTES + _CLOSED_BYTES), flags=flags | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except (OSError, ValueError):
        return None
    first = int(np.frombuffer(pages, np.uint8).ctypes.data)
    behind = _CLOSED_BYTES + -(-(size + 2 * _MAP_GUARD_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
    protect = _protect()
    if any(protect(ctypes.c_void_p(at), ctypes.c_size_t(_CLOSED_BYTES - mmap.PAGESIZE), 0) for at in (first, first + behind)):
        return None
    _closed.add(pages)
    return pages, _CLOSED_BYTES + _MAP_GUARD_BYTES


@functools.cache
def _protect() -> Callable[..., int]:
    return ctypes.CDLL(None).mprotect


def _small(size: int) -> memoryview:
    memory = np.zeros(size + _ALIGNMENT + 2 * _GUARD_BYTES, np.uint8)
    start = _GUARD_BYTES + -(memory.ctypes.data + _GUARD_BYTES) % _ALIGNMENT
    return memory[start : start + size].data


def _map(size: int, **options: int) -> memoryview:
    pages, start = _between_closed_pages(size, **options) or (mmap.mmap(-1, size + 2 * _MAP_GUARD_BYTES, **options), _MAP_GUARD_BYTES)
    if size >= _HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # Kernels of Linux built without huge pages reject the advice; the memory is usable.
            pages.madvise(mmap.MADV_HUGEPAGE, start, size)
    return memoryview(pages)[start : start + size]

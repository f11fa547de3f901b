"""Worker threads of the CPU device: Python threads that stay inside one call of compiled code, with the GIL released.

The code of the pool and of the entry of launches is compiled once for each machine, if there is an offline cache, and linked once for each
process. Compilation begins when the device is opened, in parallel with the process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import platform
import sys
import threading
import weakref
from collections.abc import Callable

from spirograd.base import validity
from spirograd.base.device import CodeCache
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.once import once_in_process
from spirograd.base.options import CompileOptions
from spirograd.base.records import dataclass
from spirograd.llvmgen import abi, fault_handler
from spirograd.llvmgen.pool import pool_module, sleeping
from spirograd.llvmgen.stack_limit import stack_limit_module
from spirograd.llvmgen.toolchain import Library, compile_module, host_caps, link
from spirograd.runtime.devices import cpu_call, memory_faults

if sys.platform == "linux":
    import resource

# Pauses before an idle worker sleeps: about 0.1 ms, since waking it costs several microseconds.
_WORKER_SPINS = 2000
_JOIN_SECONDS = 1.0
# The most bytes used of a stack without a limit. Linux leaves as many free below the stack.
_LARGEST_STACK, _STACK_GAP = 1 << 26, 1 << 20
_code_lock = threading.Lock()
_code: list[PoolCode] = []
_preparing: list[threading.Thread] = []


@dataclass(slots=True, eq=False)
class PoolCode:
    """The functions of the pool in this process.

    ``kind``: how threads sleep (see `sleeping`). ``entries``: addresses of functions that kernels call. ``launch``: the entry through which
    Python launches kernels.
    """

    kind: str
    entries: dict[str, int]
    launch: cpu_call.Entry
    worker_main: Callable[[int], object]
    stop: Callable[[int], object]
    library: Library


def build(kind: str, cache: CodeCache | None = None) -> PoolCode:
    """Compile the pool, or take its code from ``cache``. Raises SpirogradRuntimeError if it cannot be linked."""
    # LLVM's simplest code generator takes a third of the time of the others, 10 ms of a first launch, and launches are as fast.
    caps, options = host_caps(), CompileOptions(opt_level=0)
    system, machine = platform.system(), platform.machine()
    text = pool_module(machine, kind) + stack_limit_module(system) + fault_handler.fault_handler_module(system, machine) + cpu_call.TEXT

    def compiled() -> bytes:
        return compile_module(text, caps, options, need=0).binary  # The text is written as LLVM's passes would leave it.

    code = compiled() if cache is None else cache.code("\0".join((text, repr(caps), repr(options))), compiled)
    imports = cpu_call.imports() | (_windows_imports() if kind == "windows" else {})
    called = (abi.POOL_RUN, abi.POOL_UPDATE, abi.STACK_LIMIT)
    watched = (fault_handler.HANDLER, fault_handler.TABLE) if fault_handler.supported(system, machine) else ()
    library = link(code, (*called, abi.WORKER_MAIN, abi.POOL_STOP, abi.MAIN_STACK, cpu_call.ENTRY, *watched), imports)
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    addresses = library.addresses
    entries = {name: addresses[name] for name in called}
    if sys.platform == "linux":
        (ctypes.c_uint64 * 2).from_address(addresses[abi.MAIN_STACK])[:] = [*_main_stack()]
    if watched:
        memory_faults.install(*[addresses[name] for name in watched])
    launch = cpu_call.Entry(addresses[cpu_call.ENTRY])
    return PoolCode(kind, entries, launch, prototype(addresses[abi.WORKER_MAIN]), prototype(addresses[abi.POOL_STOP]), library)


def _main_stack() -> tuple[int, int]:
    """Return the lowest address that the stack of the main thread may reach, and where it begins, on Linux.

    Returns (0, 0) if that cannot be read.
    """
    below = 0
    with contextlib.suppress(OSError, ValueError), open("/proc/self/maps") as mappings:
        for line in mappings:
            last = int(line.split()[0].split("-")[1], 16)
            if line.endswith("[stack]\n"):
                limit, _ = resource.getrlimit(resource.RLIMIT_STACK)
                size = _LARGEST_STACK if limit == resource.RLIM_INFINITY else min(limit, _LARGEST_STACK)
                return max(last - size, below + _STACK_GAP), last
            below = last
    return 0, 0


def _windows_imports() -> dict[str, int]:
    library: object = ctypes.CDLL("api-ms-win-core-synch-l1-2-0.dll")
    kernel: object = ctypes.CDLL("kernel32.dll")
    places = {"WaitOnAddress": library, "WakeByAddressAll": library, "GetCurrentThreadStackLimits": kernel}
    return {name: ctypes.cast(getattr(place, name), ctypes.c_void_p).value or 0 for name, place in places.items()}


def code(cache: CodeCache | None = None) -> PoolCode:
    """Return the pool's code, linked once per process."""
    with _code_lock:
        if not _code:
            _install_hooks()
            _code.append(build(sleeping(platform.system(), platform.machine()), cache))
        return _code[0]


def prepare(cache: CodeCache | None) -> None:
    """Begin to compile or load the pool's code on another core, while the process imports the compiler. `code` waits for it."""
    if _code or usable_threads() == 1:
        return
    _install_hooks()
    # Not a daemon: Python would unload LLVM while the thread uses it.
    thread = threading.Thread(target=_prepare, args=(cache,), name="spirograd-prepare")
    with contextlib.suppress(RuntimeError):  # Where no thread can be started, the first launch does the work.
        thread.start()
        _preparing.append(thread)


def _prepare(cache: CodeCache | None) -> None:
    with contextlib.suppress(SpirogradRuntimeError):  # The first launch raises the error.
        code(cache)


def _end_preparing() -> None:
    """Wait for threads that prepare, so that no child is forked while one of them holds a lock of LLVM."""
    while _preparing:
        _preparing.pop().join()


class WorkerPool:
    """A pool of ``threads`` threads, including the caller's.

    ``state`` is the address that compiled kernels take as their pool; where ``ready`` is False, `enter` starts the workers first.
    """

    def __init__(self, threads: int, functions: PoolCode) -> None:
        self.threads = threads
        self._functions = functions
        self._lock = threading.Lock()
        self._closed = False
        self.forget()
        _pools.add(self)

    def forget(self) -> None:
        """Start again without workers: in a forked child only the calling thread exists, in whatever state the others were."""
        self._lock = threading.Lock()
        self._workers: list[threading.Thread] = []
        self._memory = ctypes.create_string_buffer(abi.POOL_BYTES + 64)
        self.state = (ctypes.addressof(self._memory) + 63) & ~63
        ctypes.c_int32.from_address(self.state + abi.POOL_SPINS).value = _WORKER_SPINS
        if self._functions.kind == "pthread":
            process = ctypes.CDLL(None)
            process.pthread_mutex_init(ctypes.c_void_p(self.state + abi.POOL_MUTEX), None)
            process.pthread_cond_init(ctypes.c_void_p(self.state + abi.POOL_CONDITION), None)
        self.ready = self.threads == 1

    def enter(self) -> int:
        """Return the address of the pool's state, with its workers running."""
        if not self.ready:
            self._start()
        return self.state

    def _start(self) -> None:
        with self._lock:
            if self.ready or self._closed:
                return
            while len(self._workers) < self.threads - 1:
                name = f"spirograd-worker-{len(self._workers) + 1}"
                worker = threading.Thread(target=self._functions.worker_main, args=(self.state,), name=name, daemon=True)
                worker.start()
                self._workers.append(worker)
            ctypes.c_int32.from_address(self.state + abi.POOL_WORKERS).value = len(self._workers)
            self.ready = True

    def close(self) -> None:
        """Let the workers return, and wait for them. Later launches run on the caller alone."""
        with self._lock:
            if self._closed:
                return
            self._closed = self.ready = True
            ctypes.c_int32.from_address(self.state + abi.POOL_WORKERS).value = 0
            self._functions.stop(self.state)
            for worker in self._workers:
                worker.join(_JOIN_SECONDS)
            if not any(worker.is_alive() for worker in self._workers):
                self._workers.clear()
                return
        _stuck.append(self)  # A worker still runs a chunk: its pool must outlive it.


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
_stuck: list[WorkerPool] = []


def _forget_all() -> None:
    validity.renew()
    for pool in list(_pools):
        pool.forget()


def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


@functools.cache
def _install_hooks() -> None:
    atexit.register(_close_all)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_end_preparing, after_in_child=_forget_all)


@once_in_process
def shared(threads: int) -> WorkerPool:
    """Return the pool of ``threads`` threads that all devices of the process share."""
    return WorkerPool(threads, code())


def usable_threads() -> int:
    """Return the number of CPUs that this process may run on."""
    if sys.platform.startswith("linux"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

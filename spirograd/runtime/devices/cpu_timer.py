"""Times of the tasks of kernels on the CPU: the same object code, linked with functions that read the clock before and after the pool's.

A kernel passes the address that its launch got as the pool to the pool's functions, and reads nothing at it. A timed launch passes the
address of the context of `timer_code` instead. The serial tasks of a kernel are the work before, between and after its parallel tasks.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import time
from collections.abc import Callable, Sequence
from time import perf_counter_ns

from spirograd.base import spans
from spirograd.base.artifact import CompiledKernel
from spirograd.base.device import ChunkTime, TaskTime
from spirograd.base.options import CompileOptions
from spirograd.llvmgen import abi
from spirograd.llvmgen.toolchain import Library, compile_module, host_caps, link
from spirograd.llvmgen.word_functions import functions_of, translate
from spirograd.runtime.devices import cpu_pool, posix_clock, timer_code, windows_clock

_EXPORTS = {name: f"sg_{name}" for name in functions_of(timer_code)}
# Words of 64 bits: of a context before its entries, and of an entry; where chunks are recorded, before the entries and in one.
_HEADER, _ENTRY, _CHUNKS_HEADER, _CHUNK = (
    nbytes // 8 for nbytes in (timer_code.HEADER, timer_code.ENTRY, timer_code.CHUNKS_HEADER, timer_code.CHUNK)
)
_CHUNKS = 1 << 14  # The most recorded chunks of a launch.


@functools.cache
def _library() -> Library:
    """Return the timed functions, linked with the pool's, once per process."""
    clock = windows_clock if platform.system() == "Windows" else posix_clock
    code = compile_module(translate((clock, timer_code), _EXPORTS), host_caps(), CompileOptions(opt_level=0), need=0).binary
    return link(code, tuple(_EXPORTS.values()), cpu_pool.code().entries)


class CpuTimer:
    """A `TaskTimer` of the CPU. ``pool``: the device's pool. One thread at a time launches: the caller holds the lock of its profile."""

    def __init__(self, pool: cpu_pool.WorkerPool) -> None:
        self._pool = pool
        addresses = _library().addresses
        self._imports = {**cpu_pool.code().entries, abi.POOL_RUN: addresses["sg_timed_run"], abi.POOL_UPDATE: addresses["sg_timed_update"]}
        # By the `id` of the kernel, which is kept alive.
        self._linked: dict[int, tuple[Callable[[bytes, int], None], Library, CompiledKernel]] = {}
        self._times: list[TaskTime] = []
        self._chunks: ctypes.Array[ctypes.c_int64] | None = None  # Where chunks of a launch are recorded.

    def launch(
        self, kernel: CompiledKernel, executable: object, block: bytes | bytearray, counts: Sequence[int | None], number: int
    ) -> None:
        """See `TaskTimer`."""
        linked = self._linked.get(id(kernel))
        if linked is None:
            library = link(kernel.binaries, (abi.DRIVER,), self._imports)
            linked = self._linked[id(kernel)] = (cpu_pool.code().launch.caller(library.addresses[abi.DRIVER]), library, kernel)
        parallel = sum([task.kind != "serial" for task in kernel.tasks])
        traced = bool(spans.sinks)
        context = (ctypes.c_int64 * (_HEADER + _ENTRY * parallel))(self._pool.enter(), 0, self._records_address() if traced else 0)
        data = block if type(block) is bytes else bytes(block)
        cpu = time.thread_time_ns()
        begin = perf_counter_ns()
        linked[0](data, ctypes.addressof(context))
        end = perf_counter_ns()
        total = (begin, end, cpu, time.thread_time_ns())
        self._split(kernel, counts, number, list(context), total, self._recorded() if traced else {})

    def _records_address(self) -> int:
        """Return the address of empty memory for the chunks of a launch."""
        if self._chunks is None:
            self._chunks = (ctypes.c_int64 * (_CHUNKS_HEADER + _CHUNK * _CHUNKS))(_CHUNKS)
        self._chunks[1] = 0
        return ctypes.addressof(self._chunks)

    def _recorded(self) -> dict[int, list[ChunkTime]]:
        """Return the chunks of the launch, by number of the parallel task."""
        assert self._chunks is not None
        words = self._chunks[_CHUNKS_HEADER : _CHUNKS_HEADER + _CHUNK * min(self._chunks[1], _CHUNKS)]
        chunks: dict[int, list[ChunkTime]] = {}
        for k in range(0, len(words), _CHUNK):
            chunks.setdefault(words[k], []).append(ChunkTime(*words[k + 1 : k + _CHUNK]))
        return chunks

    def _split(
        self,
        kernel: CompiledKernel,
        counts: Sequence[int | None],
        number: int,
        words: list[int],
        total: tuple[int, int, int, int],
        chunks: dict[int, list[ChunkTime]],
    ) -> None:
        """Compute the times of tasks from the entries of a launch, and from its begin, end and processor times.

        Consecutive serial tasks are timed as one, which counts for the first of them.
        """
        at, after, cpu, cpu_after = total
        entry, after_serial = _HEADER, False
        for k, task in enumerate(kernel.tasks):
            more = entry < len(words)
            if task.kind == "serial":
                end, cpu_end = (words[entry], words[entry + 3]) if more else (after, cpu_after)
                self._times.append(TaskTime(number, k, at, at if after_serial else end, 0 if after_serial else cpu_end - cpu))
                after_serial = True
                continue
            begin, at, used, _, cpu = words[entry : entry + _ENTRY]
            if counts[k] != 0:
                mine = chunks.get((entry - _HEADER) // _ENTRY, ())
                self._times.append(TaskTime(number, k, begin, at, used, tuple(sorted(mine, key=lambda chunk: chunk.begin))))
            entry, after_serial = entry + _ENTRY, False

    def collect(self) -> list[TaskTime]:
        """Return the times, see `TaskTimer`. Launches are complete when they return."""
        times, self._times = self._times, []
        return times

    def close(self) -> None:
        """See `TaskTimer`."""
        self._linked.clear()

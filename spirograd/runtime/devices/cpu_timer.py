"""Times of the tasks of kernels on the CPU: the same object code, linked with functions that read the clock before and after the pool's.

A kernel passes the address that its launch got as the pool to the pool's functions, and reads nothing at it. A timed launch passes the
address of a *context* instead: the pool, the number of parallel tasks so far, where chunks are recorded, or 0, and an entry for each task.
The serial tasks of a kernel are the work before, between and after its parallel tasks.
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
from spirograd.runtime.devices import cpu_pool

_RUN, _UPDATE = "sg_timed_run", "sg_timed_update"
# Words of 64 bits: of a context before its entries, and of an entry (begin, end, processor time of all threads, then processor time of the
# caller at the begin and at the end).
_HEADER, _ENTRY = 3, 5
# Words where chunks are recorded: before its entries, the capacity and the count; in an entry, task, thread, range and times.
_CHUNKS_HEADER, _CHUNK = 2, 6
_CHUNKS = 1 << 14  # The most recorded chunks of a launch.
# Numbers of clocks, by system: the one of `time.perf_counter_ns`, and the processor time of the thread.
_CLOCKS = {"Linux": (1, 3), "Darwin": (8, 16)}

_POSIX_CLOCK = """declare i32 @clock_gettime(i32, ptr)
define internal i64 @sg_clock(i32 %which) nounwind {
  %time = alloca [2 x i64]
  call i32 @clock_gettime(i32 %which, ptr %time)
  %fraction.at = getelementptr i64, ptr %time, i64 1
  %seconds = load i64, ptr %time
  %fraction = load i64, ptr %fraction.at
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %fraction
  ret i64 %sum
}
define internal i64 @sg_now() nounwind {
  %t = call i64 @sg_clock(i32 WALL)
  ret i64 %t
}
define internal i64 @sg_cpu() nounwind {
  %t = call i64 @sg_clock(i32 THREAD)
  ret i64 %t
}
declare i64 @pthread_self()
define internal i64 @sg_thread() nounwind {
  %t = call i64 @pthread_self()
  ret i64 %t
}
"""
# Python's clock is the performance counter, of 10 MHz; threads have no clock that is fine enough.
_WINDOWS_CLOCK = """declare i32 @QueryPerformanceCounter(ptr)
define internal i64 @sg_now() nounwind {
  %time = alloca i64
  call i32 @QueryPerformanceCounter(ptr %time)
  %ticks = load i64, ptr %time
  %t = mul i64 %ticks, 100
  ret i64 %t
}
define internal i64 @sg_cpu() nounwind {
  ret i64 0
}
declare i32 @GetCurrentThreadId()
define internal i64 @sg_thread() nounwind {
  %id = call i32 @GetCurrentThreadId()
  %t = zext i32 %id to i64
  ret i64 %t
}
"""
_CHOOSE_VARIANT = """  %none = icmp eq ptr %uncontended, null
  %variant = select i1 %none, ptr null, ptr @sg_uncontended_chunk
"""


def _chunk(name: str, word: int) -> str:
    """Return a task that runs the task whose address is in ``word`` of its block, with the block in word 2.

    It adds the processor time to word 3. It records its range and times, with the number of the task in word 5, in the memory whose address
    is in word 4.
    """
    words = ("i64 %number", "i64 %thread", "i64 %lo", "i64 %hi", "i64 %begin", "i64 %end")
    stores = "".join(f"  %e{k} = getelementptr i64, ptr %records, i64 %p{k}\n  store {word}, ptr %e{k}\n" for k, word in enumerate(words))
    places = "".join(f"  %p{k} = add i64 %offset, {_CHUNKS_HEADER + k}\n" for k in range(len(words)))
    return f"""define internal void @{name}(ptr %wrapped, i64 %lo, i64 %hi, i32 %slot, i32 %lanes) nounwind {{
  %task.at = getelementptr i64, ptr %wrapped, i64 {word}
  %block.at = getelementptr i64, ptr %wrapped, i64 2
  %sum.at = getelementptr i64, ptr %wrapped, i64 3
  %task = load ptr, ptr %task.at
  %block = load ptr, ptr %block.at
  %before = call i64 @sg_cpu()
  %begin = call i64 @sg_now()
  call void %task(ptr %block, i64 %lo, i64 %hi, i32 %slot, i32 %lanes)
  %end = call i64 @sg_now()
  %after = call i64 @sg_cpu()
  %took = sub i64 %after, %before
  %old = atomicrmw add ptr %sum.at, i64 %took monotonic
  %records.at = getelementptr i64, ptr %wrapped, i64 4
  %records = load ptr, ptr %records.at
  %off = icmp eq ptr %records, null
  br i1 %off, label %done, label %record
record:
  %count.at = getelementptr i64, ptr %records, i64 1
  %place = atomicrmw add ptr %count.at, i64 1 monotonic
  %capacity = load i64, ptr %records
  %fits = icmp ult i64 %place, %capacity
  br i1 %fits, label %keep, label %done
keep:
  %number.at = getelementptr i64, ptr %wrapped, i64 5
  %number = load i64, ptr %number.at
  %thread = call i64 @sg_thread()
  %offset = mul i64 %place, {_CHUNK}
{places}{stores}  br label %done
done:
  ret void
}}
"""


def _timed(name: str, called: str, update: bool) -> str:
    """Return ``called`` with the clock read before and after. ``update``: whether it takes an uncontended variant of the task, or null."""
    variant, costs = (", ptr %uncontended", ", i64 %cost, i64 %uncontended_cost") if update else ("", ", i64 %cost")
    wrapped_variant = ", ptr %variant" if update else ""
    choose, store = (_CHOOSE_VARIANT, "  store ptr %uncontended, ptr %w1\n") if update else ("", "")
    return f"""define void @{name}(
    ptr %context, ptr %task{variant}, ptr %block, i64 %begin, i64 %end{costs}, i64 %slots, i64 %lanes) nounwind {{
  %wrapped = alloca [6 x i64], align 8
  %w1 = getelementptr i64, ptr %wrapped, i64 1
  %w2 = getelementptr i64, ptr %wrapped, i64 2
  %w3 = getelementptr i64, ptr %wrapped, i64 3
  %w4 = getelementptr i64, ptr %wrapped, i64 4
  %w5 = getelementptr i64, ptr %wrapped, i64 5
  store ptr %task, ptr %wrapped
{store}  store ptr %block, ptr %w2
  store i64 0, ptr %w3
  %number.at = getelementptr i64, ptr %context, i64 1
  %number = load i64, ptr %number.at
  store i64 %number, ptr %w5
  %records.at = getelementptr i64, ptr %context, i64 2
  %records = load i64, ptr %records.at
  store i64 %records, ptr %w4
  %next = add i64 %number, 1
  store i64 %next, ptr %number.at
  %offset = mul i64 %number, {_ENTRY}
  %place = add i64 %offset, {_HEADER}
  %e0 = getelementptr i64, ptr %context, i64 %place
  %e1 = getelementptr i64, ptr %e0, i64 1
  %e2 = getelementptr i64, ptr %e0, i64 2
  %e3 = getelementptr i64, ptr %e0, i64 3
  %e4 = getelementptr i64, ptr %e0, i64 4
{choose}  %pool = load ptr, ptr %context
  %cpu.begin = call i64 @sg_cpu()
  store i64 %cpu.begin, ptr %e3
  %time.begin = call i64 @sg_now()
  store i64 %time.begin, ptr %e0
  call void @{called}(ptr %pool, ptr @sg_timed_chunk{wrapped_variant}, ptr %wrapped, i64 %begin, i64 %end{costs}, i64 %slots, i64 %lanes)
  %time.end = call i64 @sg_now()
  store i64 %time.end, ptr %e1
  %cpu.end = call i64 @sg_cpu()
  store i64 %cpu.end, ptr %e4
  %sum = load atomic i64, ptr %w3 seq_cst, align 8
  store i64 %sum, ptr %e2
  ret void
}}
"""


def _text(system: str) -> str:
    clocks = _CLOCKS.get(system)
    clock = _WINDOWS_CLOCK if clocks is None else _POSIX_CLOCK.replace("WALL", str(clocks[0])).replace("THREAD", str(clocks[1]))
    called = f"""declare void @{abi.POOL_RUN}(ptr, ptr, ptr, i64, i64, i64, i64, i64)
declare void @{abi.POOL_UPDATE}(ptr, ptr, ptr, ptr, i64, i64, i64, i64, i64, i64)
"""
    chunks = _chunk("sg_timed_chunk", 0) + _chunk("sg_uncontended_chunk", 1)
    return clock + called + chunks + _timed(_RUN, abi.POOL_RUN, False) + _timed(_UPDATE, abi.POOL_UPDATE, True)


@functools.cache
def _library() -> Library:
    """Return the timed functions, linked with the pool's, once per process."""
    code = compile_module(_text(platform.system()), host_caps(), CompileOptions(opt_level=0), need=0).binary
    return link(code, (_RUN, _UPDATE), cpu_pool.code().entries)


class CpuTimer:
    """A `TaskTimer` of the CPU. ``pool``: the device's pool. One thread at a time launches: the caller holds the lock of its profile."""

    def __init__(self, pool: cpu_pool.WorkerPool) -> None:
        self._pool = pool
        addresses = _library().addresses
        self._imports = {**cpu_pool.code().entries, abi.POOL_RUN: addresses[_RUN], abi.POOL_UPDATE: addresses[_UPDATE]}
        self._linked: dict[
            int, tuple[Callable[[bytes, int], None], Library, CompiledKernel]
        ] = {}  # By the `id` of the kernel, which is kept alive.
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

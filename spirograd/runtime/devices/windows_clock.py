"""The functions of `posix_clock` for Windows, whose threads have no clock that is fine enough."""

from __future__ import annotations

from spirograd.llvmgen.word_functions import Functions, i64, stack

system = Functions(QueryPerformanceCounter="i32 (ptr)", GetCurrentThreadId="i32 ()")


def now() -> int:
    """Return the time in nanoseconds, by the performance counter of 10 MHz, which is Python's clock, too."""
    ticks = stack(8)
    system.QueryPerformanceCounter(ticks)
    return 100 * i64[ticks]


def processor_time() -> int:
    """Return 0."""
    return 0


def thread() -> int:
    """Return the number of the thread."""
    return system.GetCurrentThreadId() & 0xFFFFFFFF

"""The clocks of POSIX systems and the number of the thread, as `word_functions`: see `timer_code`."""

from __future__ import annotations

import platform

from spirograd.llvmgen.word_functions import Functions, i64, stack

# Numbers of clocks: the one of `time.perf_counter_ns`, and the processor time of the thread.
WALL, PROCESSOR = (8, 16) if platform.system() == "Darwin" else (1, 3)

system = Functions(clock_gettime="i32 (i32, ptr)", pthread_self="i64 ()")


def now() -> int:
    """Return the time in nanoseconds."""
    return _read(WALL)


def processor_time() -> int:
    """Return the processor time of the thread in nanoseconds."""
    return _read(PROCESSOR)


def thread() -> int:
    """Return a number of the thread."""
    return system.pthread_self()


def _read(clock: int) -> int:
    time = stack(16)
    system.clock_gettime(clock, time)
    return i64[time] * 1000000000 + i64[time + 8]

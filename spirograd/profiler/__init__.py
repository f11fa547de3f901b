"""`sg.profiler`: the times of the tasks of kernels, by the clock of the device.

`init(kernel_profiler=True)` measures all launches of the session, `trace` those of a block. A kernel has one task for each of its parallel
loops, and one for the code between two of them. ``spirograd profile program.py`` measures programs without changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from spirograd.base import spans as _spans
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.later import LATER_PROFILER as _LATER
from spirograd.base.later import attributes as _attributes
from spirograd.lang import context
from spirograd.profiler import field_memory as _memory
from spirograd.profiler import tables as _tables
from spirograd.profiler.bandwidth import copy_bandwidth
from spirograd.profiler.totals import KernelInfo, of_kernel
from spirograd.profiler.tracing import trace
from spirograd.runtime.profiling import Profile
from spirograd.session import running

_logger = logging.getLogger("spirograd")


def _profile() -> Profile | None:
    """Return the profile of the session, with all launches so far; None, with a warning, if it has none."""
    session = running()
    if not session.cfg.kernel_profiler:
        _logger.warning("the profiler is off: `init(kernel_profiler=True)` turns it on")
        return None
    profile: Profile = session.profile()
    profile.collect()
    return profile


def print_kernel_profiler_info(mode: str = "count", sort: str = "time", limits: bool = False) -> None:
    """Print the times of the tasks of all kernels since `init` or the last `clear_kernel_profiler_info`.

    ``mode``: "count" for a line for each task; "trace" for a line for each run. ``sort``: "time", "count", "avg", "max", "bytes" or
    "operations". ``limits``: measure the copy bandwidth of the device, if it was not measured yet, and show the share of it that each task
    reaches. Lines below the table say which code kernels have chosen by its time. Waits for the device. Raises SpirogradRuntimeError for
    another mode or order.
    """
    if mode not in ("count", "trace"):
        raise SpirogradRuntimeError(f"`mode` is 'count' or 'trace', not {mode!r}")
    if sort not in _tables.SORTS:
        raise SpirogradRuntimeError(f"`sort` is one of {', '.join(map(repr, _tables.SORTS))}, not {sort!r}")
    profile = _profile()
    if profile is None:
        return
    device = context.session().device.info
    print(f"Kernel profiler, {mode} on {device.arch}: {device.name}")
    if mode == "trace":
        print(_tables.runs(profile.records, profile.dropped))
        return
    copy = copy_bandwidth() if limits else 0.0
    if copy:
        print(f"copies reach {copy / 1e9:.1f} GB/s")
    print(_tables.counts(profile.records, sort, copy))
    for choice in running().measured_choices():
        print(choice)


def query_kernel_profiler_info(name: str) -> KernelInfo:
    """Return the number of measured launches of the kernel ``name``, and the shortest, longest and average one in milliseconds:
    ``counter``, ``min``, ``max``, ``avg``. Waits for the device. Gradients are called ``name_grad``."""
    profile = _profile()
    return of_kernel([] if profile is None else profile.records, name)


def clear_kernel_profiler_info() -> None:
    """Delete all measurements so far."""
    profile = _profile()
    if profile is not None:
        profile.clear()


def get_kernel_profiler_total_time() -> float:
    """Return the total time of all measured tasks in seconds. Waits for the device."""
    profile = _profile()
    return 0.0 if profile is None else sum(record.duration for record in profile.records) / 1e9


def set_kernel_profiler_toolkit(toolkit_name: str = "default") -> bool:
    """Return whether tasks are measured by the toolkit ``toolkit_name``. Only "default" exists, because hardware counters are not read."""
    if toolkit_name != "default":
        _logger.warning('there is no profiler toolkit `%s`: tasks are timed by the device\'s own clock; use "default"', toolkit_name)
    return toolkit_name == "default"


def set_kernel_profiler_metrics(metric_list: Sequence[object] = ()) -> None:
    """Do nothing, and warn if ``metric_list`` has metrics: hardware counters are not read."""
    if metric_list:
        _logger.warning("metrics of the profiler are not collected: hardware counters are not read")


@contextmanager
def collect_kernel_profiler_metrics(metric_list: Sequence[object] = ()) -> Iterator[None]:
    """Call `set_kernel_profiler_metrics` with ``metric_list`` for a block."""
    set_kernel_profiler_metrics(metric_list)
    yield


def scope(name: str) -> AbstractContextManager[None]:
    """Name a part of the program for traces and `print_scoped_profiler_info`: ``with sg.profiler.scope("solve"): ...``. Times are host
    times. Without a profiler or a trace, a scope is not recorded."""
    return _spans.span(name, "scope")


def print_scoped_profiler_info() -> None:
    """Print the host time of compilation, of its passes, and of each `scope`. Needs ``kernel_profiler=True``."""
    profile = _profile()
    if profile is not None:
        print(_tables.scopes(profile.spans))


def clear_scoped_profiler_info() -> None:
    """Delete the recorded scopes."""
    profile = _profile()
    if profile is not None:
        profile.spans.clear()


def print_memory_profiler_info() -> None:
    """Print the nodes of the field trees of the session, and how many bytes they take."""
    print(_memory.fields())


__all__ = [
    "KernelInfo",
    "clear_kernel_profiler_info",
    "clear_scoped_profiler_info",
    "collect_kernel_profiler_metrics",
    "copy_bandwidth",
    "get_kernel_profiler_total_time",
    "print_kernel_profiler_info",
    "print_memory_profiler_info",
    "print_scoped_profiler_info",
    "query_kernel_profiler_info",
    "scope",
    "set_kernel_profiler_metrics",
    "set_kernel_profiler_toolkit",
    "trace",
]

__getattr__ = _attributes("spirograd.profiler", __all__, _LATER)

"""Times of kernels that the profiler of the session has measured."""

from __future__ import annotations

from spirograd.session import running


def average_times() -> dict[str, float]:
    """Return the average time of a launch in milliseconds, by the name of the kernel; gradients are called ``name_grad``. Empty unless the
    session has ``kernel_profiler=True``. Waits for the device."""
    session = running()
    if not session.cfg.kernel_profiler:
        return {}
    profile = session.profile()
    profile.collect()
    times: dict[str, dict[int, int]] = {}  # by kernel and launch, in nanoseconds
    for record in profile.records:
        launches = times.setdefault(record.key.kernel, {})
        launches[record.launch] = launches.get(record.launch, 0) + record.duration
    return {kernel: sum(launches.values()) / len(launches) / 1e6 for kernel, launches in times.items()}

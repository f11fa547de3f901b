"""The copy bandwidth of a device, with which tasks that move bytes are compared."""

from __future__ import annotations

from collections.abc import Callable

from spirograd.base.dtypes import f32
from spirograd.lang.annotations import VectorType
from spirograd.lang.data.ndarray import ndarray
from spirograd.lang.frontend.decorators import kernel
from spirograd.runtime.profiling import Profile
from spirograd.session import Session, running
from spirograd.types import ndarray as array

# Bytes of an array: on graphics cards, on the CPU, and with GPU drivers that run on the CPU, which are slow.
_GPU_BYTES, _CPU_BYTES, _DRIVER_BYTES = 1 << 29, 1 << 26, 1 << 22
_COPIES = 8  # copies by each of the kernels; the fastest one counts
_FOUR = VectorType(4, f32)


@kernel
def _copy(target: array(dtype=f32, ndim=1), source: array(dtype=f32, ndim=1)):  # type: ignore[no-untyped-def, valid-type]
    for i in range(target.shape[0]):
        target[i] = source[i]


@kernel
def _copy_four(target: array(dtype=_FOUR, ndim=1), source: array(dtype=_FOUR, ndim=1)):  # type: ignore[no-untyped-def, valid-type]
    for i in range(target.shape[0]):
        target[i] = source[i]


def copy_bandwidth() -> float:
    """Return the bytes per second that the device of the session reads and writes while it copies, by its own clock. It is measured at the
    first call, with up to 1 GiB of memory; 0 on the interpreter, which has no such limit."""
    session = running()
    if session.caps.target.interpreted:
        return 0.0
    if session.bandwidth is None:
        with session.profile().paused():
            session.bandwidth = max(_measured(session, f32, 4, _copy), _measured(session, _FOUR, 16, _copy_four))
    return float(session.bandwidth)


def _measured(session: Session, element: object, size: int, copy: Callable[[object, object], object]) -> float:
    """Return the bytes per second of the fastest of several copies of elements of ``size`` bytes. Drivers compile both kernels
    differently."""
    device = session.device
    caps = device.caps
    nbytes = _DRIVER_BYTES if caps.cpu_driver else _GPU_BYTES if caps.target.asynchronous else _CPU_BYTES
    count: int = min(nbytes, caps.max_allocation) // size
    target, source = (ndarray(element, shape=count) for _ in range(2))
    copy(target, source)  # compile it, and allocate memory
    device.synchronize()
    profile = Profile(session.launcher, session.arch, tells=False)
    profile.start()
    try:
        for _ in range(_COPIES):
            copy(target, source)
    finally:
        profile.stop()
    return 2 * count * size / (min(record.duration for record in profile.records) * 1e-9)

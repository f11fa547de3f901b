"""How fast a device copies memory: the limit that tasks which move bytes are compared with."""

from __future__ import annotations

from time import perf_counter

from spirograd.base.dtypes import f32
from spirograd.lang import context
from spirograd.lang.data.ndarray import ndarray
from spirograd.lang.frontend.decorators import kernel
from spirograd.types import ndarray as array

_BYTES = {True: 1 << 28, False: 1 << 26}  # of an array, by whether the device has memory of its own
_COPIES, _TIMES = 4, 5


@kernel
def _copy(target: array(dtype=f32, ndim=1), source: array(dtype=f32, ndim=1)):  # type: ignore[no-untyped-def, valid-type]
    for i in range(target.shape[0]):
        target[i] = source[i]


def copy_bandwidth() -> float:
    """Bytes a second that the device of the session reads and writes while it copies, measured at the first call, with up to 512 MiB of its
    memory; 0 on the interpreter, which has no such limit."""
    session = context.session()
    if session.arch == "interpreter":
        return 0.0
    if session.bandwidth is None:
        with session.profile().paused():
            session.bandwidth = _measured(session)
    return float(session.bandwidth)


def _measured(session: object) -> float:
    device = session.device  # type: ignore[attr-defined]
    gpu = device.caps.target.asynchronous and not device.caps.cpu_driver
    nbytes = min(_BYTES[gpu], device.caps.max_allocation)
    target, source = (ndarray(f32, shape=nbytes // 4) for _ in range(2))
    took = []
    for _ in range(_TIMES):
        begin = perf_counter()
        for _ in range(_COPIES):
            _copy(target, source)
        device.synchronize()
        took.append(perf_counter() - begin)
    return float(2 * nbytes * _COPIES / min(took))

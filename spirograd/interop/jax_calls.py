"""What XLA runs for kernels in programs of JAX: launches, gradients, tangents and Hessian-vector products, on XLA's own buffers."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

from spirograd.ad.thread_tapes import is_any_open
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.once import once_in_process
from spirograd.interop import xla_frames
from spirograd.interop.jax_kernels import JaxCall
from spirograd.interop.xla_frames import Buffer
from spirograd.lang import context

if TYPE_CHECKING:
    from _ctypes import CFuncPtr

TARGET = "spirograd_kernel"


# What a call does, and with respect to which arguments: (kind, JaxCall, names of the arguments, names of the directions).
Work = tuple[str, JaxCall, tuple[str, ...], tuple[str, ...]]
_numbers: dict[Work, int] = {}
_works: dict[int, Work] = {}
_lock = threading.Lock()


def number_of(work: Work) -> int:
    """Return the number by which XLA calls ``work``. It is kept for ever: compiled programs of JAX have it.

    It depends on what the kernel computes, so that a program which JAX has serialized, and another process loads, finds the same kernel
    there or none; and so that programs are found again in JAX's cache on disk.
    """
    kind, call, wanted, along = work
    with _lock:
        if work not in _numbers:
            text = repr((kind, call.function.digest(call), call.fixed, call.names, call.shapes, call.dtypes, wanted, along))
            number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
            while number in _works and not call.function.replaces(_works[number][1].function):
                number += 1
            _numbers[work] = number
            _works.setdefault(number, work)
        return _numbers[work]


def run(number: int, given: list[Buffer], results: list[Buffer]) -> None:
    """Do the work with this number. Called by XLA, on any thread."""
    if number not in _works:
        problem = "a compiled program of JAX calls a kernel that this process has not called: another process compiled it"
        raise SpirogradRuntimeError(f"{problem}. Call the function of the kernel with the same types here before, or compile it here")
    kind, call, wanted, along = _works[number]
    if context.recorder() is not None or is_any_open():
        problem = f"`{call.function.label}` has its gradient from JAX, and ran while a tape or `FwdMode` was open"
        raise SpirogradRuntimeError(f"{problem}: call it outside, and end with `jax.block_until_ready`")
    call.function.work(kind, call, wanted, along, given, results)


@once_in_process
def register() -> list[CFuncPtr]:
    """Register the handlers with XLA, once; keep them alive."""
    import jax

    handlers = []
    for platform, on_device in (("cpu", False), ("CUDA", True)):
        handler = xla_frames.handler(run, on_device)
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(xla_frames.address_of(handler)), platform=platform)
        handlers.append(handler)
    return handlers

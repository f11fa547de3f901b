"""What XLA runs for kernels in programs of JAX: launches, gradients, tangents and Hessian-vector products, on XLA's own buffers."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spirograd.ad.thread_tapes import is_any_open
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.once import once_in_process
from spirograd.interop import xla_frames
from spirograd.interop.jax_kernels import JaxCall
from spirograd.interop.linearization import Linearization
from spirograd.interop.xla_frames import Buffer
from spirograd.lang import context
from spirograd.lang.data.foreign_buffers import DeviceBuffer

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
    _WORKS[kind](call, wanted, along, given, results)


def _same(given: Sequence[Buffer], results: Sequence[Buffer]) -> None:
    """Raise unless XLA gave results the memory of the arguments that they alias."""
    for one, other in zip(given, results):
        if one.shape != other.shape or (0 not in one.shape and _address(one) != _address(other)):
            raise SpirogradRuntimeError("XLA did not give a result the memory that it was asked to: use another version of JAX")


def _address(buffer: Buffer) -> int:
    if isinstance(buffer, DeviceBuffer):
        return buffer.__cuda_array_interface__["data"][0]
    address: int = buffer.__array_interface__["data"][0]
    return address


def _launch(call: JaxCall, wanted: Sequence[str], along: Sequence[str], given: list[Buffer], results: list[Buffer]) -> None:
    """Launch the kernel. Arguments: `JaxCall.names`, then zeros, which are the results."""
    passed, zeros = call.split(given)
    _same(zeros, results)
    returned = call.function.launch(call.values(passed, zeros))
    if not call.function.outputs:
        results[0].set_number(returned)


def _gradient(call: JaxCall, wanted: Sequence[str], along: Sequence[str], given: list[Buffer], results: list[Buffer]) -> None:
    """Run the gradient. Arguments: `JaxCall.names`, the outputs, the adjoints of active ones, zeros. Results: the adjoints, which the
    kernel uses up, and the gradients, in place of the zeros. The adjoint of a returned number is 1."""
    passed, outputs, adjoints, zeros = call.split(given, len(call.active_outputs), len(wanted))
    _same([*adjoints, *zeros], results)
    values = call.values(passed, outputs)
    for name, gradient in zip((*call.active_outputs, *wanted), (*adjoints, *zeros)):
        values[name].requires_grad, values[name].grad = True, gradient
    call.function.gradient(values, 1.0)


def _linearized(call: JaxCall, wanted: Sequence[str], along: Sequence[str], parts: Sequence[list[Buffer]]) -> Linearization:
    """Return a run on copies. ``parts``: `JaxCall.names`, the outputs, others, the directions ``along``."""
    values = call.values(*parts[:2])
    return Linearization(
        call.function, values, {*wanted, *along, *call.active_outputs}, dict(zip(along, parts[-1])), [*call.function.outputs]
    )


def _tangent(call: JaxCall, wanted: Sequence[str], along: Sequence[str], given: list[Buffer], results: list[Buffer]) -> None:
    """Compute tangents. Arguments: `JaxCall.names`, the outputs, the directions ``along``. Results: the tangents of outputs with
    gradients."""
    run = _linearized(call, wanted, along, call.split(given, len(along)))
    run.tangent()
    for name, result in zip(call.active_outputs, results):
        result.copy_from(run.copies[name].dual)


def _hessian(call: JaxCall, wanted: Sequence[str], along: Sequence[str], given: list[Buffer], results: list[Buffer]) -> None:
    """Compute Hessian-vector products. Arguments: `JaxCall.names`, the outputs, their adjoints, directions. Results: the derivatives of the
    gradients ``wanted``."""
    parts = call.split(given, len(call.active_outputs), len(along))
    run = _linearized(call, wanted, along, parts)
    run.second(dict(zip(call.active_outputs, parts[2])))
    for name, result in zip(wanted, results):
        result.copy_from(run.copies[name].grad.dual)


_WORKS: dict[str, Callable[[JaxCall, Sequence[str], Sequence[str], list[Buffer], list[Buffer]], None]] = {
    "launch": _launch,
    "gradient": _gradient,
    "tangent": _tangent,
    "hessian": _hessian,
}


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

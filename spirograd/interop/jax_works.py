"""What XLA runs for kernels: launches, gradients, tangents and Hessian-vector products, on XLA's own buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.interop.linearization import Linearization
from spirograd.interop.xla_frames import Buffer
from spirograd.lang.data.foreign_buffers import DeviceBuffer

if TYPE_CHECKING:
    from spirograd.interop.jax_kernels import JaxCall, JaxKernel


def check_aliases(given: Sequence[Buffer], results: Sequence[Buffer]) -> None:
    """Raise unless XLA gave results the memory of the arguments that they alias."""
    for one, other in zip(given, results):
        if one.shape != other.shape or (0 not in one.shape and _address(one) != _address(other)):
            raise SpirogradRuntimeError("XLA did not give a result the memory that it was asked to: use another version of JAX")


def _address(buffer: Buffer) -> int:
    if isinstance(buffer, DeviceBuffer):
        return buffer.__cuda_array_interface__["data"][0]
    address: int = buffer.__array_interface__["data"][0]
    return address


def _launch(
    kernel: JaxKernel, call: JaxCall, wanted: Sequence[str], along: Sequence[str], given: list[Buffer], results: list[Buffer]
) -> None:
    """Launch the kernel. Arguments: `JaxCall.names`, then zeros, which are the results."""
    passed, zeros = call.split(given)
    check_aliases(zeros, results)
    returned = kernel.launch(kernel.values(call, passed, zeros))
    if not kernel.outputs:
        results[0].set_number(returned)


def _gradient(
    kernel: JaxKernel, call: JaxCall, wanted: Sequence[str], along: Sequence[str], given: list[Buffer], results: list[Buffer]
) -> None:
    """Run the gradient. Arguments: `JaxCall.names`, the outputs, the adjoints of active ones, zeros. Results: the adjoints, which the
    kernel uses up, and the gradients, in place of the zeros. The adjoint of a returned number is 1."""
    passed, outputs, adjoints, zeros = call.split(given, len(call.active_outputs), len(wanted))
    check_aliases([*adjoints, *zeros], results)
    values = kernel.values(call, passed, outputs)
    for name, gradient in zip((*call.active_outputs, *wanted), (*adjoints, *zeros)):
        values[name].requires_grad, values[name].grad = True, gradient
    kernel.gradient(values, 1.0)


def _linearized(
    kernel: JaxKernel, call: JaxCall, wanted: Sequence[str], along: Sequence[str], parts: Sequence[list[Buffer]]
) -> Linearization:
    """Return a run on copies. ``parts``: `JaxCall.names`, the outputs, others, the directions ``along``."""
    values = kernel.values(call, *parts[:2])
    return Linearization(kernel, values, {*wanted, *along, *call.active_outputs}, dict(zip(along, parts[-1])), [*kernel.outputs])


def _tangent(
    kernel: JaxKernel, call: JaxCall, wanted: Sequence[str], along: Sequence[str], given: list[Buffer], results: list[Buffer]
) -> None:
    """Compute tangents. Arguments: `JaxCall.names`, the outputs, the directions ``along``. Results: the tangents of outputs with
    gradients."""
    run = _linearized(kernel, call, wanted, along, call.split(given, len(along)))
    run.tangent()
    for name, result in zip(call.active_outputs, results):
        result.copy_from(run.copies[name].dual)


def _hessian(
    kernel: JaxKernel, call: JaxCall, wanted: Sequence[str], along: Sequence[str], given: list[Buffer], results: list[Buffer]
) -> None:
    """Compute Hessian-vector products. Arguments: `JaxCall.names`, the outputs, their adjoints, directions. Results: the derivatives of the
    gradients ``wanted``."""
    parts = call.split(given, len(call.active_outputs), len(along))
    run = _linearized(kernel, call, wanted, along, parts)
    run.second(dict(zip(call.active_outputs, parts[2])))
    for name, result in zip(wanted, results):
        result.copy_from(run.copies[name].grad.dual)


WORKS: dict[str, Callable[[JaxKernel, JaxCall, Sequence[str], Sequence[str], list[Buffer], list[Buffer]], None]] = {
    "launch": _launch,
    "gradient": _gradient,
    "tangent": _tangent,
    "hessian": _hessian,
}

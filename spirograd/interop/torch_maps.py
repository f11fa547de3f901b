"""Derivatives of kernels on torch tensors, for `torch_function` and `torch_op`: what they share."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from spirograd.ad.versions import Saved
from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.interop.kernel_function import Arguments, KernelFunction
from spirograd.interop.linearization import Linearization

if TYPE_CHECKING:
    from torch import Tensor

Context = Any  # the object in which a function of torch saves values


def leaf(tensor: Tensor, active: bool) -> Tensor:
    """Return a tensor over the same memory, with a gradient of its own if it is active and holds floats."""
    detached = tensor.detach()
    return detached.requires_grad_() if active and detached.is_floating_point() else detached


def contiguous(tensor: Tensor) -> Tensor:
    """Return a row-major copy."""
    import torch

    return tensor.detach().clone(memory_format=torch.contiguous_format)


def refuse_number(label: str, name: str, problem: str) -> NoReturn:
    """Raise for a tensor in place of a number, with respect to which derivatives would be zero, with no error."""
    hint = f"declare `{name}: sg.types.ndarray()`, and pass a tensor of one element; or `{name}.detach()`"
    text = f"{label}: `{name}` is a tensor that {problem}, but not an array there"
    raise SpirogradRuntimeError(render(text, None, hint))


def second(
    function: KernelFunction,
    values: Arguments,
    active: Collection[str],
    directions: Mapping[str, Tensor],
    adjoints: Sequence[Tensor],
    wanted: Collection[str],
    zeros: Collection[str],
    number: int | None = None,
    saved: Sequence[Saved] = (),
) -> tuple[list[Tensor | None], dict[str, Tensor]]:
    """Return the derivatives of a gradient along ``directions``: with respect to the adjoints of the outputs (None for inactive ones), or
    of the returned number, and to the inputs that are ``wanted``. Arguments as of `Linearization`."""
    run = Linearization(function, values, active, directions, zeros, number, saved)
    outputs = [name for name in values if name in function.outputs]
    run.second({name: adjoint for name, adjoint in zip(outputs, adjoints) if name in active})
    by_values = {name: run.copies[name].grad.dual.to_torch(values[name].device) for name in wanted}
    if outputs:
        by_adjoints = [run.copies[n].dual.to_torch(a.device) if n in active else None for n, a in zip(outputs, adjoints)]
        return by_adjoints, by_values
    slopes = [(run.copies[name].grad.to_torch(u.device) * u).sum() for name, u in directions.items()]
    return [functools.reduce(operator.add, slopes)], {name: h * adjoints[0] for name, h in by_values.items()}

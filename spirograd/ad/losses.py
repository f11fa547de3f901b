"""The loss of a tape: a field, an ndarray or a torch tensor of one float."""

from __future__ import annotations

import math
from typing import Any

from spirograd.ad.versions import memory_identity
from spirograd.base.errors import SpirogradRuntimeError, SpirogradTypeError, render
from spirograd.base.wording import counted
from spirograd.lang.data.device_arrays import is_torch
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.scalar import describe


class FieldLoss:
    """A field or ndarray. ``key``: what tells its memory apart from others, as in `Launch.memory`."""

    def __init__(self, whole: Any) -> None:
        self.whole = whole
        self.key: Any = memory_identity(whole)[0]

    def clear(self) -> None:
        """Set the loss to zero."""
        self.whole.fill(0.0)

    def seed(self) -> None:
        """Set the gradient of the loss to 1."""
        self.whole.grad.fill(1.0)


class TensorLoss(FieldLoss):
    """A torch tensor. Its gradient is allocated if it has none yet."""

    def __init__(self, tensor: Any) -> None:
        self.whole = tensor
        self.key = ("host", tensor.data_ptr())

    def clear(self) -> None:
        """Set the loss to zero."""
        self.whole.detach().zero_()

    def seed(self) -> None:
        """Set the gradient of the loss to 1."""
        if self.whole.grad is None:
            self.whole.grad = self.whole.detach().new_zeros(self.whole.shape)
        self.whole.grad.detach().fill_(1.0)


def loss_of(value: Any) -> FieldLoss:
    """``value`` as a loss. Raises unless it is one float with a gradient."""
    if is_torch(value):
        _check(value, value.numel(), value.requires_grad, value.is_floating_point(), "make it with `requires_grad=True`")
        return TensorLoss(value)
    if not isinstance(value, (ScalarField, Ndarray)):
        raise SpirogradTypeError(f"the loss of a tape is a field, an array or a torch tensor of one float, got {describe(value)}")
    count = math.prod((*value.shape, *value.element_shape))
    _check(value, count, value.has_grad(), value.dtype.is_float, "declare it with `needs_grad=True`")
    return FieldLoss(value)


def _check(value: Any, count: int, has_gradient: bool, is_float: bool, hint: str) -> None:
    what = f"a torch tensor of shape {tuple(value.shape)}" if is_torch(value) else describe(value)
    if count != 1:
        instead = "add up what is to be differentiated in a kernel; or `with Tape() as tape:`, set gradients, and call `tape.grad()`"
        raise SpirogradRuntimeError(render(f"the loss of a tape is one float, {what} has {counted(count, 'element')}", None, instead))
    if not has_gradient:
        hint = hint if is_float else "only floats have gradients"
        raise SpirogradRuntimeError(render(f"the loss of a tape, {what}, has no gradient", None, hint))

"""Clipping of gradients, as in `torch.nn.utils`: one launch for all parameters, and no wait for the device."""

# mypy: disable-error-code="no-untyped-def, valid-type"
from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradValueError
from spirograd.lang import arithmetic, forms
from spirograd.lang.data.ndarray import Ndarray, ndarray
from spirograd.lang.frontend.decorators import kernel
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Value
from spirograd.optim.parameters import Memory, check_host_scope, checked_parameters, working_type
from spirograd.types import template

# What torch adds to a norm before it divides by it.
_NORM_EPS = 1e-6


def clip_grad_norm_(parameters: object, max_norm: float, norm_type: float = 2.0) -> Ndarray:
    """Scale the gradients of ``parameters`` down together if their norm is above ``max_norm``; return an ndarray of shape () with the
    norm before.

    ``norm_type``: 2 for the root of the sum of squares, `math.inf` for the largest absolute value. Raises SpirogradValueError for others.
    """
    check_host_scope("clip_grad_norm_")
    if norm_type not in (2, math.inf):
        raise SpirogradValueError(f"`norm_type` is 2 or infinity, got {norm_type}")
    memories = checked_parameters(parameters, "parameters")
    dtype = working_type(memories)
    norm = ndarray(dtype, ())
    _clip_norm(dtype, norm_type == 2)(tuple(p.grad for p in memories), norm, max_norm)
    return norm


def clip_grad_value_(parameters: object, clip_value: float) -> None:
    """Limit each number of the gradients of ``parameters`` to the range from ``-clip_value`` to ``clip_value``."""
    check_host_scope("clip_grad_value_")
    memories = checked_parameters(parameters, "parameters")
    _clip_value(working_type(memories))(tuple(p.grad for p in memories), clip_value)


@arithmetic.traceable
def _size(gradient: Matrix | Value, square: bool, dtype) -> object:
    """Return the sum of squares or the largest absolute value of an element."""
    x = arithmetic.cast(gradient, dtype)
    x = x * x if square else abs(x)
    if not isinstance(x, Matrix):
        return x
    return x.sum() if square else x.max()


@arithmetic.traceable
def _scaled(gradient: Matrix | Value, factor: Value, dtype) -> object:
    return arithmetic.cast(arithmetic.cast(gradient, factor.dtype) * factor, dtype)


@arithmetic.traceable
def _limited(gradient: Matrix | Value, limit: Value, dtype) -> object:
    bound = arithmetic.cast(limit, dtype)
    return arithmetic.max(arithmetic.min(gradient, bound), -bound)


@cache
def _clip_norm(dtype: DType, square: bool) -> Callable[[tuple[Memory, ...], Ndarray, float], None]:
    """Return the kernel that computes a norm in ``dtype``: of the squares, or the largest absolute value."""

    @kernel
    def clip_norm(gradients: template(), norm: template(), max_norm: dtype):
        size = arithmetic.cast(0, dtype)
        for gradient in forms.static(gradients):
            for at in forms.grouped(gradient):
                if forms.static(square):
                    size += _size(gradient[at], True, dtype)
                else:
                    forms.atomic_max(size, _size(gradient[at], False, dtype))
        if forms.static(square):
            size = arithmetic.sqrt(size)
        norm[None] = size
        factor = arithmetic.min(max_norm / (size + _NORM_EPS), arithmetic.cast(1, dtype))
        for gradient in forms.static(gradients):
            for at in forms.grouped(gradient):
                gradient[at] = _scaled(gradient[at], factor, gradient.dtype)

    return clip_norm


@cache
def _clip_value(dtype: DType) -> Callable[[tuple[Memory, ...], float], None]:
    """Return the kernel that limits gradients to a number of ``dtype``."""

    @kernel
    def clip_value(gradients: template(), limit: dtype):
        for gradient in forms.static(gradients):
            for at in forms.grouped(gradient):
                gradient[at] = _limited(gradient[at], limit, gradient.dtype)

    return clip_value

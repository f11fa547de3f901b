"""Warns of launches by which gradients of torch are lost: outside of tapes and functions of torch, torch does not know of a kernel.

Launches whose outputs have gradients, too, are left alone: `kernel.grad` on the same tensors hands these on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING

from spirograd.base.artifact import Effects
from spirograd.base.dtypes import DType
from spirograd.base.errors import render
from spirograd.base.tracebacks import user_location
from spirograd.lang.frontend.specialization import Specialization
from spirograd.lang.leaves import leaf_dtypes

if TYPE_CHECKING:
    from spirograd.base.protocols import Tensor

logger = logging.getLogger("spirograd")
_HINT = (
    "call `sg.ad.torch_function(kernel, outputs)(...)` instead, record the call by `sg.ad.Tape`, pass `t.detach()`, or call the kernel "
    "under `torch.no_grad()`"
)


def warn_of_lost_gradients(
    function: Callable[..., object], specialization: Specialization, tensors: Mapping[int, tuple[str, Tensor]], warned: set[Hashable]
) -> None:
    """Warn, once for each kernel and parameter, of tensors that require a gradient and that the launch reads.

    ``function``: that of the kernel. ``tensors``: those that torch records at present, by flat argument, with what messages call them.
    ``warned``: the warnings that the user has seen.
    """
    effects = specialization.plan.compiled.effects
    read = {index for kind, index, _ in effects.all_read() if kind == "array"} & set(tensors)
    if not any(_requires(tensors[index][1]) for index in read) or _continues(specialization, effects, tensors, read):
        return
    for index in sorted(read):
        label, tensor = tensors[index]
        about = ("lost gradient", function, label)
        if _requires(tensor) and about not in warned:
            warned.add(about)
            problem = f"{label}: this tensor requires a gradient, and torch does not record the call: `backward()` passes the kernel over"
            logger.warning(render(problem, user_location(), _HINT))


def _requires(tensor: Tensor) -> bool:
    return bool(tensor.requires_grad)


def _continues(specialization: Specialization, effects: Effects, tensors: Mapping[int, tuple[str, Tensor]], read: Iterable[int]) -> bool:
    """Return whether all that the launch gives has a gradient, so that `kernel.grad` can continue it."""
    if any(_requires(t) and not (t.is_leaf or t.retains_grad) for _, t in (tensors[index] for index in read)):
        return False
    if any(t.is_float for t in _returned(specialization)):
        return False
    given = [tensors[index][1] for kind, index in effects.writes if kind == "array" and index in tensors]
    floats = [tensor for tensor in given if tensor.is_floating_point()]
    return all(map(_requires, floats)) if floats else any(field.has_grad() for field in specialization.fields.values())


def _returned(specialization: Specialization) -> Iterable[DType]:
    return () if specialization.returns is None else leaf_dtypes(specialization.returns)

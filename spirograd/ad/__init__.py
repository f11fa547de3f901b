"""What users see as ``sg.ad``: automatic differentiation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spirograd.ad.custom import checkpoint, clear_all_gradients, grad_for, grad_replaced, no_grad
from spirograd.ad.forward_mode import FwdMode
from spirograd.ad.gradcheck import gradcheck
from spirograd.ad.second_order import hvp
from spirograd.ad.sizings import Sizings, sizings
from spirograd.ad.tape import Tape
from spirograd.base import later as _later
from spirograd.interop.jax_functions import jax_function
from spirograd.interop.torch_functions import torch_function
from spirograd.interop.torch_operator import torch_op

__all__ = [
    "FwdMode",
    "Sizings",
    "Tape",
    "checkpoint",
    "clear_all_gradients",
    "grad_for",
    "grad_replaced",
    "gradcheck",
    "hvp",
    "jax_function",
    "no_grad",
    "sizings",
    "torch_function",
    "torch_op",
]

if not TYPE_CHECKING:
    __getattr__ = _later.attributes("spirograd.ad", __all__)

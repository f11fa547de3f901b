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

if TYPE_CHECKING:
    from spirograd.interop.jax_functions import jax_function
    from spirograd.interop.programs import program
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
    "program",
    "sizings",
    "torch_function",
    "torch_op",
]

# Imported at the first use: `interop` builds on this package.
_INTEROP = {
    "jax_function": "spirograd.interop.jax_functions",
    "program": "spirograd.interop.programs",
    "torch_function": "spirograd.interop.torch_functions",
    "torch_op": "spirograd.interop.torch_operator",
}

if not TYPE_CHECKING:
    __getattr__ = _later.attributes("spirograd.ad", __all__, elsewhere=_INTEROP)


def __dir__() -> list[str]:
    return sorted({*globals(), *_INTEROP})

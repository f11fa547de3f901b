"""Optimisers of fields and ndarrays, on the device: names, arguments and formulas as in `torch.optim`.

`SGD`, `Adam`, `AdamW` and `RMSprop` change all parameters in one launch. `LBFGS` searches along directions from past gradients.
`GaussNewton` and `LevenbergMarquardt` minimise the squared outputs of a program by its derivatives.
"""

from spirograd.optim import lr_scheduler
from spirograd.optim.clipping import clip_grad_norm_, clip_grad_value_
from spirograd.optim.first_order import SGD, Adam, AdamW, RMSprop
from spirograd.optim.lbfgs import LBFGS
from spirograd.optim.least_squares import GaussNewton, LevenbergMarquardt
from spirograd.optim.optimizer import Optimizer

__all__ = [
    "LBFGS", "SGD", "Adam", "AdamW", "GaussNewton", "LevenbergMarquardt", "Optimizer", "RMSprop", "clip_grad_norm_",
    "clip_grad_value_", "lr_scheduler",
]  # fmt: skip

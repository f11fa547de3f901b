"""Optimisers by the gradient of the last evaluation: formulas of `torch.optim`, on single elements.

D. P. Kingma and J. Ba, Adam: A Method for Stochastic Optimization, 2015. I. Loshchilov and F. Hutter, Decoupled Weight Decay
Regularization, 2019. S. J. Reddi et al., On the Convergence of Adam and Beyond, 2018 (AMSGrad).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spirograd.base.errors import SpirogradValueError
from spirograd.lang import arithmetic
from spirograd.optim.optimizer import Group, Optimizer, flag, number, pair

if TYPE_CHECKING:
    from spirograd.lang.scalar import Value
    from spirograd.optim.updates import Numbers, Options, States, Update


def _begin(p: Value, g: Value, h: Numbers, options: Options) -> Value:
    """Return the gradient that a rule uses: with the sign of the direction of the search, and the weight decay."""
    if options["maximize"]:
        g = -g
    return g + h["weight_decay"] * p if options["weight_decay"] else g


class SGD(Optimizer):
    """Stochastic gradient descent, as `torch.optim.SGD`.

    ``params``: fields and ndarrays, in lists, dicts and fields of structs, or a list of groups: dicts with ``params`` and arguments of
    their own. ``lr``: the learning rate. ``momentum``, ``dampening``: of the moving sum of gradients. ``weight_decay``: the factor of an L2
    penalty. ``nesterov``: whether the momentum is Nesterov's. ``maximize``: whether to climb. Raises SpirogradValueError for arguments
    out of range.
    """

    names = ("lr", "momentum", "dampening", "weight_decay")
    switches = ("momentum", "weight_decay", "nesterov", "maximize")

    def __init__(
        self,
        params: object,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        defaults: Group = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "nesterov": nesterov, "maximize": maximize})

    def check(self, group: Group) -> None:
        """Raise SpirogradValueError for arguments out of range in ``group``."""
        super().check(group)
        if flag(group, "nesterov") and (number(group, "momentum") <= 0 or number(group, "dampening") != 0):
            raise SpirogradValueError("`nesterov` needs `momentum` above 0 and `dampening` of 0")

    def state_names(self, group: Group) -> Sequence[str]:
        """Return the names of the state of each parameter of ``group``."""
        return ("momentum_buffer",) if number(group, "momentum") else ()

    def numbers(self, group: Group, step: int) -> list[float]:
        """Return the numbers of ``group`` for the ``step``-th step. The first gradient is the first moving sum, without dampening."""
        fresh = 1.0 if step == 1 else 1.0 - number(group, "dampening")
        return [number(group, "lr"), number(group, "momentum"), fresh, number(group, "weight_decay")]

    @staticmethod
    def rule(p: Value, g: Value, state: States, h: Numbers, options: Options) -> Update:
        """Return the new ``p`` and state by its gradient ``g``, the numbers ``h`` and ``options``."""
        g = _begin(p, g, h, options)
        new: States = {}
        if options["momentum"]:
            new["momentum_buffer"] = moving = h["momentum"] * state["momentum_buffer"] + h["dampening"] * g
            g = g + h["momentum"] * moving if options["nesterov"] else moving
        return p - h["lr"] * g, new


class Adam(Optimizer):
    """Adam, as `torch.optim.Adam`.

    ``params``: as of `SGD`. ``lr``: the learning rate. ``betas``: the decay of the moving means of gradients and of their squares.
    ``eps``: added to the root of the second. ``weight_decay``: the factor of an L2 penalty. ``amsgrad``: whether to divide by the
    largest second moment so far. ``maximize``: whether to climb. Raises SpirogradValueError for arguments out of range.
    """

    names = ("step_size", "beta1", "beta2", "left1", "left2", "correction", "eps", "weight_decay", "shrink")
    switches = ("weight_decay", "amsgrad", "maximize", "decoupled_weight_decay")
    decoupled = False  # whether the weight decay is no part of the gradient

    def __init__(
        self,
        params: object,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        defaults: Group = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(params, {**defaults, "maximize": maximize, "decoupled_weight_decay": self.decoupled})

    def check(self, group: Group) -> None:
        """Raise SpirogradValueError for arguments out of range in ``group``."""
        super().check(group)
        if not all(0 <= beta < 1 for beta in pair(group, "betas")):
            raise SpirogradValueError(f"`betas` lie in [0, 1), got {group['betas']}")

    def state_names(self, group: Group) -> Sequence[str]:
        """Return the names of the state of each parameter of ``group``."""
        return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if flag(group, "amsgrad") else ()))

    def numbers(self, group: Group, step: int) -> list[float]:
        """Return the numbers of ``group`` for the ``step``-th step."""
        (beta1, beta2), lr, decay = pair(group, "betas"), number(group, "lr"), number(group, "weight_decay")
        step_size, correction = lr / (1 - beta1**step), (1 - beta2**step) ** 0.5
        return [step_size, beta1, beta2, 1 - beta1, 1 - beta2, correction, number(group, "eps"), decay, 1 - lr * decay]

    @staticmethod
    def rule(p: Value, g: Value, state: States, h: Numbers, options: Options) -> Update:
        """Return the new ``p`` and state by its gradient ``g``, the numbers ``h`` and ``options``."""
        if options["decoupled_weight_decay"]:
            p = p * h["shrink"]
            g = -g if options["maximize"] else g
        else:
            g = _begin(p, g, h, options)
        mean = state["exp_avg"] + h["left1"] * (g - state["exp_avg"])
        square = h["beta2"] * state["exp_avg_sq"] + h["left2"] * g * g
        new: States = {"exp_avg": mean, "exp_avg_sq": square}
        if options["amsgrad"]:
            new["max_exp_avg_sq"] = square = arithmetic.max(state["max_exp_avg_sq"], square)
        return p - h["step_size"] * mean / (arithmetic.sqrt(square) / h["correction"] + h["eps"]), new


class AdamW(Adam):
    """Adam with decoupled weight decay, as `torch.optim.AdamW`.

    ``weight_decay``: parameters shrink by ``lr * weight_decay`` of themselves at each step. ``params``, ``lr``, ``betas``, ``eps``,
    ``amsgrad``, ``maximize``: as of `Adam`. Raises SpirogradValueError for arguments out of range.
    """

    decoupled = True

    def __init__(
        self,
        params: object,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


class RMSprop(Optimizer):
    """RMSprop, as `torch.optim.RMSprop`.

    ``params``: as of `SGD`. ``lr``: the learning rate. ``alpha``: the decay of the moving mean of squared gradients. ``eps``: added to
    its root. ``weight_decay``: the factor of an L2 penalty. ``momentum``: of the moving sum of steps. ``centered``: whether to subtract
    the squared moving mean of gradients. ``maximize``: whether to climb. Raises SpirogradValueError for arguments out of range.
    """

    names = ("lr", "alpha", "left", "eps", "momentum", "weight_decay")
    switches = ("momentum", "weight_decay", "centered", "maximize")

    def __init__(
        self,
        params: object,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        defaults: Group = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(params, {**defaults, "centered": centered, "maximize": maximize})

    def state_names(self, group: Group) -> Sequence[str]:
        """Return the names of the state of each parameter of ``group``."""
        names = {"momentum_buffer": number(group, "momentum"), "grad_avg": flag(group, "centered")}
        return ("square_avg", *(name for name, needed in names.items() if needed))

    def numbers(self, group: Group, step: int) -> list[float]:
        """Return the numbers of ``group``, the same for each ``step``."""
        alpha = number(group, "alpha")
        return [number(group, "lr"), alpha, 1 - alpha, *(number(group, name) for name in ("eps", "momentum", "weight_decay"))]

    @staticmethod
    def rule(p: Value, g: Value, state: States, h: Numbers, options: Options) -> Update:
        """Return the new ``p`` and state by its gradient ``g``, the numbers ``h`` and ``options``."""
        g = _begin(p, g, h, options)
        square = h["alpha"] * state["square_avg"] + h["left"] * g * g
        new: States = {"square_avg": square}
        if options["centered"]:
            new["grad_avg"] = mean = state["grad_avg"] + h["left"] * (g - state["grad_avg"])
            square = square - mean * mean
        change = g / (arithmetic.sqrt(square) + h["eps"])
        if options["momentum"]:
            new["momentum_buffer"] = change = h["momentum"] * state["momentum_buffer"] + change
        return p - h["lr"] * change, new

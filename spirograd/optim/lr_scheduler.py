"""Schedules of learning rates: objects with `step`, as in `torch.optim.lr_scheduler`.

Each computes the rate from the number of steps, in closed form, as a factor of the rate that a group had at first.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

from spirograd.base.errors import SpirogradValueError
from spirograd.base.near_names import NearNames
from spirograd.optim.optimizer import Optimizer, number

__all__ = ["ConstantLR", "CosineAnnealingLR", "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR", "SequentialLR", "StepLR"]


class LRScheduler(NearNames):
    """The base of schedules of an ``optimizer``. ``last_epoch``: the number of calls of `step`, or where to go on."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer, self.last_epoch = optimizer, last_epoch + 1
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs = [number(group, "initial_lr") for group in optimizer.param_groups]
        self._apply()

    def rate(self, base: float, epoch: int) -> float:
        """Return the rate in an ``epoch`` of a group that begins with ``base``."""
        raise NotImplementedError

    def step(self) -> None:
        """Set the rates of the next step: call it after `Optimizer.step`."""
        self.last_epoch += 1
        self._apply()

    def get_last_lr(self) -> list[float]:
        """Return the rates of all groups."""
        return [number(group, "lr") for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, object]:
        """Return the number of steps and the first rates."""
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Set the number of steps and the first rates to those of ``state_dict``."""
        last, base = state_dict["last_epoch"], state_dict["base_lrs"]
        assert isinstance(last, int)
        assert isinstance(base, Sequence)
        self.last_epoch, self.base_lrs = last, [float(rate) for rate in base]
        self._apply()

    def _apply(self) -> None:
        for group, base in zip(self.optimizer.param_groups, self.base_lrs):
            group["lr"] = self.rate(base, self.last_epoch)


class LambdaLR(LRScheduler):
    """Rates by a function of the step. ``lr_lambda``: returns the factor of the first rate for a number of steps. ``optimizer``,
    ``last_epoch``: as of `LRScheduler`."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float], last_epoch: int = -1) -> None:
        self._factor = lr_lambda
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, epoch: int) -> float:
        """Return the rate in an ``epoch`` of a group that begins with ``base``."""
        return base * self._factor(epoch)


class ConstantLR(LRScheduler):
    """Rates that are ``factor`` of the first ones for ``total_iters`` steps. ``optimizer``, ``last_epoch``: as of `LRScheduler`."""

    def __init__(self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5, last_epoch: int = -1) -> None:
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, epoch: int) -> float:
        """Return the rate in an ``epoch`` of a group that begins with ``base``."""
        return base * self.factor if epoch < self.total_iters else base


class StepLR(LRScheduler):
    """Rates that are multiplied by ``gamma`` after each ``step_size`` steps. ``optimizer``, ``last_epoch``: as of `LRScheduler`."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, epoch: int) -> float:
        """Return the rate in an ``epoch`` of a group that begins with ``base``."""
        return base * float(self.gamma ** (epoch // self.step_size))


class ExponentialLR(LRScheduler):
    """Rates that are multiplied by ``gamma`` after each step. ``optimizer``, ``last_epoch``: as of `LRScheduler`."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, epoch: int) -> float:
        """Return the rate in an ``epoch`` of a group that begins with ``base``."""
        return base * float(self.gamma**epoch)


class CosineAnnealingLR(LRScheduler):
    """Rates that fall to ``eta_min`` as half a wave of a cosine, in ``T_max`` steps, and rise again after that. ``optimizer``,
    ``last_epoch``: as of `LRScheduler`."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, epoch: int) -> float:
        """Return the rate in an ``epoch`` of a group that begins with ``base``."""
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * epoch / self.T_max)) / 2


class LinearLR(LRScheduler):
    """Rates between ``start_factor`` and ``end_factor`` of the first ones, on a line of ``total_iters`` steps: a warm-up. ``optimizer``,
    ``last_epoch``: as of `LRScheduler`."""

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, epoch: int) -> float:
        """Return the rate in an ``epoch`` of a group that begins with ``base``."""
        passed = min(epoch, self.total_iters) / self.total_iters
        return base * (self.start_factor + (self.end_factor - self.start_factor) * passed)


class SequentialLR(LRScheduler):
    """Schedules one after the other. ``schedulers``: of the same ``optimizer``; ``milestones``: the steps at which the next one begins
    to count from 0. ``last_epoch``: as of `LRScheduler`. Raises SpirogradValueError if their numbers do not fit."""

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int], last_epoch: int = -1) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise SpirogradValueError(f"{len(schedulers)} schedulers need {len(schedulers) - 1} milestones, got {len(milestones)}")
        self._schedulers, self._milestones = list(schedulers), list(milestones)
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, epoch: int) -> float:
        """Return the rate in an ``epoch`` of a group that begins with ``base``."""
        k = bisect_right(self._milestones, epoch)
        return self._schedulers[k].rate(base, epoch - (self._milestones[k - 1] if k else 0))

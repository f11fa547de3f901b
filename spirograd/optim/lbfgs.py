"""L-BFGS: steps along directions from the last gradients (J. Nocedal and S. Wright, Numerical Optimization, 2nd edition, 7.2).

Parameters, gradients and the history are vectors on the device, and so is the recursion for a direction. The host reads a loss and a few
inner products for each evaluation, because it chooses the step.
"""

# mypy: disable-error-code="no-untyped-def, valid-type"
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from spirograd.base.arrays import Array
from spirograd.base.dtypes import DType, i32
from spirograd.base.errors import SpirogradTypeError, SpirogradValueError
from spirograd.lang import arithmetic
from spirograd.lang.data.ndarray import Ndarray, ndarray
from spirograd.lang.frontend.decorators import kernel
from spirograd.optim.flat_vectors import FlatVectors
from spirograd.optim.line_search import Point, strong_wolfe
from spirograd.optim.optimizer import Group, Optimizer, State, StateDict, members, number
from spirograd.optim.parameters import Memory, check_host_scope
from spirograd.types import NDArray

Closure = Callable[[], object]
# The least product of a step and the change of the gradient along it with which the history grows.
_LEAST_CURVATURE = 1e-10
# The largest number of evaluations of one line search.
_LONGEST_SEARCH = 25


class LBFGS(Optimizer):
    """L-BFGS, as `torch.optim.LBFGS`, for one group of parameters.

    ``params``: as of `SGD`. ``lr``: the first step along a direction, a part of the step of Newton's method. ``max_iter``: iterations of
    a step. ``max_eval``: evaluations of a step, 1.25 * ``max_iter`` by default. ``tolerance_grad``: the largest component of the gradient
    at which a step ends; ``tolerance_change``: the change of the loss and of parameters. ``history_size``: gradients that are kept.
    ``line_search_fn``: "strong_wolfe", or None for steps of ``lr``. Raises SpirogradValueError for arguments out of range.
    """

    def __init__(
        self,
        params: object,
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = "strong_wolfe",
    ) -> None:
        limits: Group = {"lr": lr, "max_iter": max_iter, "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval}
        tolerances: Group = {"tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change}
        super().__init__(params, {**limits, **tolerances, "history_size": history_size, "line_search_fn": line_search_fn})
        self._search = _Search(members(self.param_groups[0]))

    def check(self, group: Group) -> None:
        """Raise SpirogradValueError for arguments out of range in ``group``, and for a second one."""
        super().check(group)
        if self.param_groups:
            raise SpirogradValueError("LBFGS takes one group of parameters")
        if group["line_search_fn"] not in (None, "strong_wolfe"):
            raise SpirogradValueError(f'`line_search_fn` is "strong_wolfe" or None, got {group["line_search_fn"]!r}')

    def step(self, closure: Closure | None = None) -> float:  # type: ignore[override]
        """Change the parameters in at most ``max_iter`` iterations. Returns the loss before.

        ``closure``: computes the gradients and returns the loss, a number. Raises SpirogradTypeError without it, SpirogradRuntimeError in
        a tape and where a graph is recorded.
        """
        check_host_scope("LBFGS.step")
        if closure is None:
            raise SpirogradTypeError("`LBFGS.step` takes a function that computes the gradients and returns the loss")
        self._steps[0] += 1
        return self._search.run(closure, self.param_groups[0])

    def state_dict(self) -> State:
        """Return the history as arrays of NumPy, and the arguments of the group."""
        state = {0: {"step": self._steps[0], **self._search.state()}} if self._steps[0] else {}
        return {"state": state, "param_groups": super().state_dict()["param_groups"]}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Set arguments and history to those of ``state_dict``, which `state_dict` returned. Raises SpirogradValueError if it is for other
        parameters."""
        state = state_dict["state"]
        assert isinstance(state, Mapping)
        values = state.get(0, {})
        if values:
            self._search.load(values)
        else:
            self._search = _Search(members(self.param_groups[0]))
        super().load_state_dict({**state_dict, "state": {}})
        self._steps[0] = int(values.get("step", 0))


class _Search:
    """The search for a minimum, from step to step. ``iterations``: so far; ``step``: the length of the last one along ``direction``."""

    def __init__(self, parameters: Sequence[Memory]) -> None:
        self.parameters, self.gradients = parameters, [p.grad for p in parameters]
        self.vectors = FlatVectors(parameters)
        self.start, self.point, self.gradient, self.previous, self.direction = (self.vectors.zeros() for _ in range(5))
        self.history: deque[_Pair] = deque()
        self.scale, self.step, self.iterations = 1.0, 0.0, 0
        self._alphas = self.vectors.zeros()  # of the pairs of the history; replaced when it grows

    def run(self, closure: Closure, group: Group) -> float:
        """Run iterations until a limit of ``group`` is reached; return the loss before."""
        change, most = number(group, "tolerance_change"), int(number(group, "max_eval"))
        first = loss = self._evaluate(closure)
        evaluations, last = 1, int(number(group, "max_iter"))
        for iteration in range(1, last + 1):
            if self.vectors.largest(self.gradient) <= number(group, "tolerance_grad"):
                break
            self._set_direction(int(number(group, "history_size")))
            self.vectors.combine(self.previous, 1.0, self.gradient, 0.0, self.gradient)
            slope, before = self.vectors.dot(self.gradient, self.direction), loss
            if not slope <= -change:
                break
            step = number(group, "lr") * (min(1.0, 1.0 / self.vectors.norm1(self.gradient)) if self.iterations == 1 else 1.0)
            self.vectors.read(self.parameters, self.start)
            if group["line_search_fn"] is None:
                self._move(step)
                loss = self._evaluate(closure) if iteration < last else loss
                evaluations += 1
            else:
                loss, count = self._search_line(closure, Point(0.0, loss, slope), step, change)
                evaluations += count
            if evaluations >= most or self.step * self.vectors.largest(self.direction) <= change or abs(loss - before) < change:
                break
        return first

    def _evaluate(self, closure: Closure) -> float:
        """Return the loss, with its gradient in ``gradient``."""
        loss = float(closure())  # type: ignore[arg-type]
        self.vectors.read(self.gradients, self.gradient)
        return loss

    def _move(self, step: float) -> None:
        """Set the parameters to those at a step along the direction."""
        self.step = step
        self.vectors.combine(self.point, 1.0, self.start, step, self.direction)
        self.vectors.write(self.parameters, self.point)

    def _search_line(self, closure: Closure, start: Point, step: float, smallest: float) -> tuple[float, int]:
        """Move to the point that a line search finds; return the loss there and the number of evaluations."""
        count = 0

        def evaluate(length: float) -> Point:
            nonlocal count
            count += 1
            self._move(length)
            loss = self._evaluate(closure)
            return Point(length, loss, self.vectors.dot(self.gradient, self.direction))

        point = strong_wolfe(evaluate, start, step, _LONGEST_SEARCH, smallest)
        if self.step != point.step:
            evaluate(point.step)
        return point.loss, count

    # --- directions --------------------------------------------------------------------------------------------------------

    def _set_direction(self, size: int) -> None:
        """Set the direction, after the last step has become part of the history of ``size`` steps."""
        if self.iterations:
            self._remember(size)
        self.iterations += 1
        kernels, d = _recursion(self.vectors.dtype), self.direction
        self.vectors.combine(d, -1.0, self.gradient, 0.0, self.gradient)
        if self._alphas.shape[0] < len(self.history):
            self._alphas = ndarray(self.vectors.dtype, 2 * len(self.history))
        for k, pair in reversed(list(enumerate(self.history))):
            kernels.project(d, pair.step, pair.change, pair.rho, self._alphas, k)
        if self.history:
            self.vectors.combine(d, self.scale, d, 0.0, d)
        for k, pair in enumerate(self.history):
            kernels.correct(d, pair.step, pair.change, pair.rho, self._alphas, k)

    def _remember(self, size: int) -> None:
        """Add the last step and the change of the gradient to the history, if the loss is convex there."""
        step, change = (self.vectors.zeros() for _ in range(2))
        self.vectors.combine(step, self.step, self.direction, 0.0, self.direction)
        self.vectors.combine(change, 1.0, self.gradient, -1.0, self.previous)
        curvature = self.vectors.dot(step, change)
        if curvature > _LEAST_CURVATURE:
            self.history.append(_Pair(step, change, 1.0 / curvature))
            self.scale = curvature / self.vectors.dot(change, change)
            while len(self.history) > size:
                self.history.popleft()

    # --- state -------------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, object]:
        """Return the history, the last gradient and the last step."""
        size = self.vectors.size
        steps, changes = ([getattr(pair, name).to_numpy() for pair in self.history] for name in ("step", "change"))
        arrays = {"steps": np.reshape(steps, (-1, size)), "changes": np.reshape(changes, (-1, size)), "rho": [p.rho for p in self.history]}
        last = {"direction": self.direction.to_numpy(), "gradient": self.previous.to_numpy()}
        return {**arrays, **last, "scale": self.scale, "step_size": self.step, "iterations": self.iterations}

    def load(self, state: Mapping[str, object]) -> None:
        """Set the history to that of `state`. Raises SpirogradValueError if it is for another number of parameters."""
        arrays = {name: np.asarray(value) for name, value in state.items()}
        if arrays["direction"].shape != (self.vectors.size,):
            raise SpirogradValueError(f"the state is for {arrays['direction'].size} numbers, the parameters have {self.vectors.size}")
        self.history.clear()
        for step, change, rho in zip(arrays["steps"], arrays["changes"], arrays["rho"]):
            self.history.append(_Pair(self._vector(step), self._vector(change), float(rho)))
        self.direction.from_numpy(arrays["direction"].astype(self.vectors.dtype.np))
        self.previous.from_numpy(arrays["gradient"].astype(self.vectors.dtype.np))
        self.scale, self.step, self.iterations = float(arrays["scale"]), float(arrays["step_size"]), int(arrays["iterations"])

    def _vector(self, values: Array) -> Ndarray:
        vector = self.vectors.zeros()
        vector.from_numpy(np.ascontiguousarray(values, self.vectors.dtype.np))
        return vector


class _Pair(NamedTuple):
    """A step and the change of the gradient by it. ``rho``: one over their product."""

    step: Ndarray
    change: Ndarray
    rho: float


@cache
def _recursion(dtype: DType) -> SimpleNamespace:
    """Return the kernels of the two loops over the history, for vectors of ``dtype``."""

    @kernel
    def project(d: NDArray, step: NDArray, change: NDArray, rho: dtype, alphas: NDArray, k: i32):
        product = arithmetic.cast(0, dtype)
        for i in d:
            product += step[i] * d[i]
        alphas[k] = rho * product
        for i in d:
            d[i] -= rho * product * change[i]

    @kernel
    def correct(d: NDArray, step: NDArray, change: NDArray, rho: dtype, alphas: NDArray, k: i32):
        product = arithmetic.cast(0, dtype)
        for i in d:
            product += change[i] * d[i]
        for i in d:
            d[i] += (alphas[k] - rho * product) * step[i]

    return SimpleNamespace(project=project, correct=correct)

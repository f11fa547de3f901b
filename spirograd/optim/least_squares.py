"""Minimisation of the sum of squares of the outputs of a program: the methods of Gauss and Newton and of Levenberg and Marquardt.

A step solves the linearised problem by conjugate gradients, whose products with the Jacobian are derivatives of the program along a
direction, and whose products with its transpose are gradients: no matrix is stored. Sources: J. Nocedal and S. Wright, Numerical
Optimization, 2nd edition, 10.3, and 5.1 for conjugate gradients; H. B. Nielsen, Damping Parameter in Marquardt's Method, 1999.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from spirograd.ad.memory_keys import FieldOrArray
from spirograd.base.errors import SpirogradTypeError, SpirogradValueError
from spirograd.base.near_names import NearNames
from spirograd.interop.programs import Program
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.scalar import describe
from spirograd.optim.flat_vectors import FlatVectors
from spirograd.optim.parameters import check_host_scope, checked_parameters

# The least relative residual of conjugate gradients, and the largest number of halvings of a step.
_CG_TOLERANCE = 1e-10
_MOST_HALVINGS = 20


class _LeastSquares(NearNames):
    """The base of both methods. ``loss``: half of the sum of squares at the parameters as they are, after the first step."""

    def __init__(
        self, program: Program, params: object, max_iter: int, max_cg_iter: int | None, tolerance_grad: float, tolerance_change: float
    ) -> None:
        if not isinstance(program, Program):
            hint = "make one: `sg.ad.program(simulate, inputs=parameters, outputs=residuals)`"
            raise SpirogradTypeError(f"`program`: expected a program, got {describe(program)}", None, hint)
        for name, value in (("max_iter", max_iter), ("tolerance_grad", tolerance_grad), ("tolerance_change", tolerance_change)):
            if value < 0:
                raise SpirogradValueError(f"`{name}` is at least 0, got {value}")
        inputs = program.runs.inputs.leaves
        self._problem = _Problem(program, inputs if params is None else checked_parameters(params))
        self.max_iter, self.max_cg_iter = max_iter, max_cg_iter
        self.tolerance_grad, self.tolerance_change = tolerance_grad, tolerance_change
        self.loss = math.nan

    def step(self, **static: object) -> float:
        """Change the parameters in at most ``max_iter`` iterations. Returns half of the sum of squares before. ``static``: other
        arguments of the program. Raises SpirogradRuntimeError in a tape and where a graph is recorded."""
        check_host_scope(f"{type(self).__name__}.step")
        problem = self._problem
        with problem.program.runs.exclusive():
            problem.begin(static)
            first = self.loss = problem.evaluate(problem.x)
            for _ in range(self.max_iter):
                gradient = problem.gradient()
                if problem.parameters.largest(gradient) <= self.tolerance_grad:
                    break
                before = self.loss
                self.loss = self._iterate(gradient, before)
                if not abs(before - self.loss) > self.tolerance_change * before:
                    break
            problem.finish()
        return first

    def _iterate(self, gradient: Ndarray, loss: float) -> float:
        """Change the parameters; return the loss after that."""
        raise NotImplementedError


class GaussNewton(_LeastSquares):
    """The method of Gauss and Newton, which halves steps until the sum of squares falls.

    ``program``: made by `sg.ad.program`; its outputs are what is squared and added up. ``params``: the inputs that are changed, all by
    default. ``max_iter``: iterations of a step. ``max_cg_iter``: iterations of conjugate gradients for each, by default twice the number of
    parameters. ``tolerance_grad``: the largest component of the gradient at which a step ends; ``tolerance_change``: the relative
    change of the sum. Raises SpirogradTypeError for what is no program, SpirogradValueError for arguments out of range.
    """

    def __init__(
        self,
        program: Program,
        params: object = None,
        max_iter: int = 20,
        max_cg_iter: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
    ) -> None:
        super().__init__(program, params, max_iter, max_cg_iter, tolerance_grad, tolerance_change)

    def _iterate(self, gradient: Ndarray, loss: float) -> float:
        step = self._problem.solve(gradient, 0.0, self.max_cg_iter)
        length = 1.0
        for _ in range(_MOST_HALVINGS):
            new = self._problem.evaluate(self._problem.moved(length, step))
            if new < loss:
                self._problem.accept()
                return new
            length /= 2
        return loss


class LevenbergMarquardt(_LeastSquares):
    """The method of Levenberg and Marquardt, whose steps are shorter the worse the last ones were.

    ``damping``: the first weight of the length of a step, relative to the curvature along the gradient. ``program``, ``params``,
    ``max_iter``, ``max_cg_iter``, ``tolerance_grad``, ``tolerance_change``: as of `GaussNewton`. Raises SpirogradTypeError for what is no
    program, SpirogradValueError for arguments out of range.
    """

    def __init__(
        self,
        program: Program,
        params: object = None,
        damping: float = 1e-3,
        max_iter: int = 20,
        max_cg_iter: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
    ) -> None:
        super().__init__(program, params, max_iter, max_cg_iter, tolerance_grad, tolerance_change)
        if damping <= 0:
            raise SpirogradValueError(f"`damping` is above 0, got {damping}")
        self._first, self._damping, self._growth = damping, 0.0, 2.0

    def _iterate(self, gradient: Ndarray, loss: float) -> float:
        problem, vectors = self._problem, self._problem.parameters
        if self._damping == 0:
            square = vectors.dot(gradient, gradient)
            self._damping = self._first * vectors.dot(gradient, problem.product(gradient)) / square
        for _ in range(_MOST_HALVINGS):
            step = problem.solve(gradient, self._damping, self.max_cg_iter)
            predicted = (self._damping * vectors.dot(step, step) - vectors.dot(step, gradient)) / 2
            new = problem.evaluate(problem.moved(1.0, step))
            if new < loss:
                quality = (loss - new) / predicted if predicted > 0 else 1.0
                self._damping *= max(1 / 3, 1 - (2 * quality - 1) ** 3)
                self._growth = 2.0
                problem.accept()
                return new
            self._damping *= self._growth
            self._growth *= 2
        return loss


class _Problem:
    """A program with its Jacobian, on vectors. ``x``: the parameters; ``parameters``, ``residuals``: the vectors of both."""

    def __init__(self, program: Program, changed: Sequence[FieldOrArray]) -> None:
        runs, self.program = program.runs, program
        self._changed = [_index(runs.inputs.leaves, memory) for memory in changed]
        self._inputs, self._outputs = runs.inputs.leaves, runs.outputs.leaves
        self.parameters = FlatVectors([self._inputs[k] for k in self._changed])
        self.residuals = FlatVectors(self._outputs)
        self._all = FlatVectors(self._inputs)
        self._constant = self._all.zeros()
        zeros = self.parameters.zeros
        self.x, self._moved, self._gradient, self._product = zeros(), zeros(), zeros(), zeros()
        self._step, self._residual, self._direction, self._zero = zeros(), zeros(), zeros(), zeros()
        self._values, self._tangent = self.residuals.zeros(), self.residuals.zeros()
        self._static: dict[str, object] = {}

    def begin(self, static: dict[str, object]) -> None:
        """Take the contents of the inputs as the first parameters, and as the others, which stay."""
        self._static = static
        self._all.read(self._inputs, self._constant)
        self.parameters.read([self._inputs[k] for k in self._changed], self.x)

    def finish(self) -> None:
        """Set the inputs to the parameters."""
        self._all.write(self._inputs, self._constant)
        self.parameters.write([self._inputs[k] for k in self._changed], self.x)

    def evaluate(self, x: Ndarray) -> float:
        """Return half of the sum of squares at ``x``."""
        self.program.runs.run(self._arguments(x), _load, self._static)
        self.residuals.read(self._outputs, self._tangent)
        return self.residuals.dot(self._tangent, self._tangent) / 2

    def moved(self, length: float, step: Ndarray) -> Ndarray:
        """Return the parameters after a part of a step."""
        self.parameters.combine(self._moved, 1.0, self.x, length, step)
        return self._moved

    def accept(self) -> None:
        """Make what `moved` returned the parameters."""
        self.x, self._moved = self._moved, self.x

    def gradient(self) -> Ndarray:
        """Return the gradient at the parameters, and keep the residuals there."""
        self.program.runs.run(self._arguments(self.x), _load, self._static)
        self.residuals.read(self._outputs, self._values)
        return self._transposed(self._values, self._gradient)

    def product(self, v: Ndarray) -> Ndarray:
        """Return the product of ``v`` with the Jacobian and its transpose."""
        runs = self.program.runs
        directions = self._arguments(v, others=False)
        with runs.tangent(self._arguments(self.x), directions, _load, self._static):
            self.residuals.read([leaf.dual for leaf in self._outputs], self._tangent)
        return self._transposed(self._tangent, self._product)

    def _transposed(self, adjoints: Ndarray, result: Ndarray) -> Ndarray:
        """Set ``result`` to the product of the transposed Jacobian."""
        runs = self.program.runs
        run = runs.record(self._arguments(self.x), _load, self._static)
        runs.gradient(run, [_Part(self.residuals, k, adjoints) for k in range(len(self._outputs))], _load)
        self.parameters.read([self._inputs[k].grad for k in self._changed], result)
        return result

    def solve(self, gradient: Ndarray, damping: float, most: int | None) -> Ndarray:
        """Return the step that solves ``(J^T J + damping) step = -gradient``, by conjugate gradients."""
        vectors, step, residual, direction = self.parameters, self._step, self._residual, self._direction
        step.fill(0)
        vectors.combine(residual, -1.0, gradient, 0.0, gradient)
        vectors.combine(direction, -1.0, gradient, 0.0, gradient)
        square = first = vectors.dot(residual, residual)
        for _ in range(2 * vectors.size if most is None else most):
            product = self.product(direction)
            curvature = vectors.dot(direction, product) + damping * vectors.dot(direction, direction)
            if not curvature > 0:
                break
            alpha = square / curvature
            vectors.combine(step, 1.0, step, alpha, direction)
            vectors.combine(residual, 1.0, residual, -alpha, product)
            vectors.combine(residual, 1.0, residual, -alpha * damping, direction)
            new = vectors.dot(residual, residual)
            if not new > _CG_TOLERANCE**2 * first:
                break
            vectors.combine(direction, 1.0, residual, new / square, direction)
            square = new
        return step

    def _arguments(self, x: Ndarray, others: bool = True) -> list[object]:
        """Return the values of all inputs: ``x``, and the others as they were, or zero."""
        values: list[object] = [_Part(self._all, k, self._constant) if others else None for k in range(len(self._inputs))]
        for place, k in enumerate(self._changed):
            values[k] = _Part(self.parameters, place, x)
        return values


class _Part:
    """The numbers of a vector that belong to the memory of number ``index``."""

    def __init__(self, vectors: FlatVectors, index: int, vector: Ndarray) -> None:
        self.vectors, self.index, self.vector = vectors, index, vector


def _load(memory: FieldOrArray, part: object) -> None:
    """Set ``memory`` to a part of a vector, or to zero."""
    if isinstance(part, _Part):
        part.vectors.write_one(part.index, memory, part.vector)
    else:
        memory.fill(0)


def _index(inputs: Sequence[FieldOrArray], memory: FieldOrArray) -> int:
    for k, leaf in enumerate(inputs):
        if leaf is memory:
            return k
    raise SpirogradValueError(f"{describe(memory)} is no input of the program: name it in `inputs` of `sg.ad.program`")

"""Conjugate gradients and BiCGSTAB for linear operators that are kernels.

All numbers of an iteration stay on the device, which also decides whether it was the last one; later iterations change nothing. On GPUs,
Python therefore reads the state only after several iterations, with the same result. Algorithms: Y. Saad, Iterative Methods for Sparse
Linear Systems, 2nd edition, 6.18 (conjugate gradients) and 7.7 (BiCGSTAB).
"""

# mypy: disable-error-code="no-untyped-def, valid-type"
from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from spirograd.algorithms.checks_and_scratch import Array, has_groups
from spirograd.algorithms.recorded import need_gradient, tape_of
from spirograd.base.dtypes import f32, f64, i32
from spirograd.base.errors import SpirogradRuntimeError, SpirogradTypeError, SpirogradValueError, render
from spirograd.base.near_names import NearNames
from spirograd.lang import arithmetic, forms
from spirograd.lang.annotations import element_type
from spirograd.lang.context import session
from spirograd.lang.data.field import field
from spirograd.lang.data.ndarray import Ndarray, ScalarNdarray, ndarray
from spirograd.lang.data.scalar_field import ScalarField
from spirograd.lang.frontend.decorators import kernel
from spirograd.lang.frontend.func import func
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Value, describe
from spirograd.types import template

if TYPE_CHECKING:
    from spirograd.lang.context import ProgramRecorder

# Indices of numbers: the tolerance, the squared residual, and rho, alpha and omega of BiCGSTAB.
TOLERANCE, SQUARE, RHO, ALPHA, OMEGA = range(5)
# Indices of counters: the state of the iteration, and the number of iterations.
STATE, COUNT = range(2)
GOING, CONVERGED, BROKEN = range(3)
# On GPUs, Python reads the state after 1, 2, 4 ... iterations, and at least once in this number of iterations.
_LONGEST_WAIT = 32


class LinearOperator(NearNames):
    """A square matrix, given by its product with vectors: ``matvec_kernel(x, Ax)`` sets ``Ax`` to the product with ``x``."""

    def __init__(self, matvec_kernel: Callable[[Array, Array], object]) -> None:
        self._kernel = matvec_kernel
        self._vectors: dict[object, tuple[object, list[Array]]] = {}

    def matvec(self, x: Array, Ax: Array) -> None:
        """Set ``Ax`` to the product with ``x``. Raises SpirogradRuntimeError if their shapes differ."""
        if x.shape != Ax.shape:
            raise SpirogradRuntimeError(f"`matvec` takes vectors of one shape, got {x.shape} and {Ax.shape}")
        self._kernel(x, Ax)

    def vectors(self, like: Array, count: int, needs_grad: bool = False) -> list[Array]:
        """Return ``count`` fields or ndarrays like ``like``, with gradients if ``needs_grad``. They are kept for the next call, because
        kernels are compiled for each field."""
        key = (needs_grad, isinstance(like, Ndarray), like.dtype, like.shape, like.element_shape, _origin(like))
        owner, vectors = self._vectors.get(key, (None, []))
        if owner is not session():
            vectors = []
        vectors += [_like(like, needs_grad) for _ in range(count - len(vectors))]
        self._vectors[key] = session(), vectors
        return vectors[:count]


def _origin(x: Array) -> tuple[int, ...]:
    return () if isinstance(x, Ndarray) else x.origin


def _like(x: Array, needs_grad: bool = False) -> Array:
    shape = x.element_shape
    dtype = element_type(shape, x.dtype) if shape else x.dtype
    if isinstance(x, Ndarray):
        return ndarray(dtype, x.shape, needs_grad)
    vector = field(dtype, x.shape, offset=_origin(x) or None, needs_grad=needs_grad)
    assert isinstance(vector, ScalarField)  # of numbers, vectors or matrices
    return vector


# --- kernels -----------------------------------------------------------------------------------------------------------------


@arithmetic.traceable
def _inner(a: Matrix | Value, b: Matrix | Value) -> object:
    """Return the inner product of two elements."""
    product = a * b
    return product.sum() if isinstance(product, Matrix) else product


@func
def _judge(square, broken, numbers, counters):
    """Store the squared residual after an iteration, and whether it was the last one."""
    numbers[SQUARE] = square
    counters[COUNT] = counters[COUNT] + 1
    if arithmetic.sqrt(square) < numbers[TOLERANCE]:
        counters[STATE] = CONVERGED
    elif broken or not (square < math.inf):
        counters[STATE] = BROKEN


@kernel
def _begin(b: template(), r: template(), p: template(), ax: template(), numbers: template(), counters: template()):
    square = arithmetic.cast(0, r.dtype)
    for at in forms.grouped(r):
        value = b[at] - ax[at]
        r[at] = value
        p[at] = value
        square += _inner(value, value)
    counters[COUNT] = -1
    counters[STATE] = GOING
    _judge(square, False, numbers, counters)


@kernel
def _cg_iteration(x: template(), r: template(), p: template(), ap: template(), numbers: template(), counters: template()):
    curvature = arithmetic.cast(0, r.dtype)
    for at in forms.grouped(r):
        curvature += _inner(p[at], ap[at])
    going = counters[STATE] == GOING
    before = numbers[SQUARE]
    alpha = arithmetic.cast(0, r.dtype)
    if going and curvature != 0:
        alpha = before / curvature
    square = arithmetic.cast(0, r.dtype)
    for at in forms.grouped(r):
        x[at] = x[at] + alpha * p[at]
        value = r[at] - alpha * ap[at]
        r[at] = value
        square += _inner(value, value)
    beta = arithmetic.cast(0, r.dtype)
    if going:
        beta = square / before
    for at in forms.grouped(r):
        p[at] = r[at] + beta * p[at]
    if going:
        _judge(square, curvature == 0, numbers, counters)


@kernel
def _bicgstab_begin(r: template(), r0: template(), p: template(), ap: template(), numbers: template()):
    for at in forms.grouped(r):
        r0[at] = r[at]
        p[at] = 0.0 * r[at]
        ap[at] = 0.0 * r[at]
    for k in range(RHO, OMEGA + 1):
        numbers[k] = 1.0


@kernel
def _bicgstab_direction(r: template(), r0: template(), p: template(), ap: template(), numbers: template(), counters: template()):
    rho = arithmetic.cast(0, r.dtype)
    for at in forms.grouped(r):
        rho += _inner(r0[at], r[at])
    going = counters[STATE] == GOING
    beta = arithmetic.cast(0, r.dtype)
    divisor = numbers[RHO] * numbers[OMEGA]
    if going and divisor != 0:
        beta = rho / numbers[RHO] * (numbers[ALPHA] / numbers[OMEGA])
    omega = numbers[OMEGA]
    for at in forms.grouped(r):
        p[at] = r[at] + beta * (p[at] - omega * ap[at])
    if going:
        numbers[RHO] = rho
        if divisor == 0:
            counters[STATE] = BROKEN


@kernel
def _bicgstab_half_step(r: template(), r0: template(), ap: template(), s: template(), numbers: template(), counters: template()):
    projection = arithmetic.cast(0, r.dtype)
    for at in forms.grouped(r):
        projection += _inner(r0[at], ap[at])
    going = counters[STATE] == GOING
    alpha = arithmetic.cast(0, r.dtype)
    if going and projection != 0:
        alpha = numbers[RHO] / projection
    for at in forms.grouped(r):
        s[at] = r[at] - alpha * ap[at]
    if going:
        numbers[ALPHA] = alpha
        if projection == 0:
            counters[STATE] = BROKEN


@kernel
def _bicgstab_step(
    x: template(), r: template(), p: template(), s: template(), t: template(), numbers: template(), counters: template()
):  # fmt: skip
    across, along = arithmetic.cast(0, r.dtype), arithmetic.cast(0, r.dtype)
    for at in forms.grouped(r):
        across += _inner(t[at], s[at])
        along += _inner(t[at], t[at])
    going = counters[STATE] == GOING
    alpha, omega = arithmetic.cast(0, r.dtype), arithmetic.cast(0, r.dtype)
    if going:
        alpha = numbers[ALPHA]
        if along > 0:  # else s is zero, and alpha * p is the full step
            omega = across / along
    square = arithmetic.cast(0, r.dtype)
    for at in forms.grouped(r):
        x[at] = x[at] + alpha * p[at] + omega * s[at]
        value = r[at]
        if going:
            value = s[at] - omega * t[at]
        r[at] = value
        square += _inner(value, value)
    if going:
        numbers[OMEGA] = omega
        _judge(square, omega == 0, numbers, counters)


# --- solvers -----------------------------------------------------------------------------------------------------------------


def _checked(A: object, b: Array, x: Array, what: str) -> None:
    if not isinstance(A, LinearOperator):
        raise SpirogradTypeError(f"`{what}` takes a LinearOperator, not {describe(A)}", None, "make one: `LinearOperator(kernel)`")
    for name, vector in (("b", b), ("x", x)):
        if not isinstance(vector, (ScalarField, Ndarray)) or vector.dtype not in (f32, f64):
            raise SpirogradTypeError(f"`{what}`: `{name}` is a field or ndarray of f32 or f64, not {describe(vector)}")
        if isinstance(vector, ScalarField) and vector.sparse_path is not None:
            raise SpirogradTypeError(f"`{what}`: `{name}` is {describe(vector)}, which is sparse", None, "use a dense field")
    if b.dtype is not x.dtype or b.element_shape != x.element_shape:
        raise SpirogradTypeError(
            f"`{what}`: `b` and `x` have elements of different types: {b.dtype} {b.element_shape}, {x.dtype} {x.element_shape}"
        )
    if b.shape != x.shape or _origin(b) != _origin(x):
        raise SpirogradValueError(f"`{what}`: `b` has shape {b.shape}, `x` has shape {x.shape}; they must have the same shape and offset")
    if b is x:
        raise SpirogradValueError(f"`{what}`: `b` and `x` are the same memory: pass another field or ndarray for the solution")


class _Progress:
    """The state of one solve, in memory of the device, and its messages."""

    def __init__(self, dtype: object, tolerance: float, quiet: bool, name: str) -> None:
        self.numbers, self.counters = ScalarNdarray(dtype, OMEGA + 1), ScalarNdarray(i32, 2)
        self.numbers[TOLERANCE] = tolerance
        self.quiet, self.name = quiet, name

    @property
    def state(self) -> int:
        return int(self.counters[STATE])

    def report(self) -> None:
        """Print the residual."""
        if not self.quiet:
            print(f"{self.name}: iteration {int(self.counters[COUNT])}, residual {math.sqrt(max(self.numbers[SQUARE], 0)):.6e}")

    def iterate(self, iteration: Callable[[], None], most: int) -> bool:
        """Run iterations until the device reports the last one; return whether the residual became small enough."""
        self.report()
        done, stride = 0, 1
        while done < most and self.state == GOING:
            stride = min(stride, most - done)
            for _ in range(stride):
                iteration()
            done += stride
            self.report()
            if has_groups() and self.quiet:
                stride = min(2 * stride, _LONGEST_WAIT)
        if not self.quiet:
            verb = {CONVERGED: "converged", BROKEN: "broke down"}.get(self.state, "did not converge")
            print(f"{self.name} {verb} after {int(self.counters[COUNT])} iterations")
        return self.state == CONVERGED


def conjugate_gradients(
    A: LinearOperator, b: Array, x: Array, tol: float, maxiter: int, quiet: bool = True
) -> tuple[bool, int]:  # fmt: skip
    """Solve as `MatrixFreeCG`; also return the number of iterations."""
    r, p, ap = A.vectors(x, 3)
    progress = _Progress(x.dtype, tol, quiet, "MatrixFreeCG")
    numbers, counters = progress.numbers, progress.counters
    A.matvec(x, ap)
    _begin(b, r, p, ap, numbers, counters)

    def iteration() -> None:
        A.matvec(p, ap)
        _cg_iteration(x, r, p, ap, numbers, counters)

    return progress.iterate(iteration, maxiter), int(counters[COUNT])


def MatrixFreeCG(A: LinearOperator, b: Array, x: Array, tol: float = 1e-6, maxiter: int = 5000, quiet: bool = True) -> bool:
    """Solve ``A @ x = b`` by conjugate gradients; returns whether the norm of the residual became smaller than ``tol``.

    ``A``: symmetric and positive definite. ``b`` and ``x``, which holds the first guess: fields or ndarrays of one type and shape, whose
    elements may be vectors. ``maxiter``: the largest number of iterations. ``quiet=False`` prints the residual of each. Raises
    SpirogradTypeError and SpirogradValueError for other arguments.

    A tape does not record the iterations: in the reverse pass, the gradient of ``x`` is solved for with the same matrix and the same
    relative residual, and goes to ``b`` and to the memory that the operator reads. Raises SpirogradRuntimeError if that fails.
    """
    return _solved(A, b, x, tol, maxiter, quiet, "MatrixFreeCG")


@kernel
def _begin_adjoint(flow: template(), taken: template(), solution: template()):
    for at in forms.grouped(flow):
        taken[at] = flow[at]
        flow[at] = 0.0 * flow[at]
        solution[at] = 0.0 * solution[at]


@kernel
def _copy_to(source: template(), target: template(), factor: template()):
    for at in forms.grouped(source):
        target[at] = factor * source[at]


@kernel
def _add_to(source: template(), target: template()):
    for at in forms.grouped(source):
        target[at] = target[at] + source[at]


def _norm(x: Array) -> float:
    return float(np.linalg.norm(x.to_numpy().astype(np.float64)))


class _Transposed(LinearOperator):
    """The transposed operator: the reverse mode of the product. It is evaluated at zero, where the product has no derivative with respect
    to the memory that the operator reads."""

    def __init__(self, A: LinearOperator, x: Array, tape: ProgramRecorder) -> None:
        super().__init__(A._kernel)
        self._vectors = A._vectors
        self._at, self._product = A.vectors(x, 2, needs_grad=True)
        self._at.fill(0)
        with tape.nested() as self._recorded:
            A.matvec(self._at, self._product)

    def matvec(self, x: Array, Ax: Array) -> None:
        self._at.grad.fill(0)
        _copy_to(x, self._product.grad, 1.0)
        self._recorded.grad()
        _copy_to(self._at.grad, Ax, 1.0)


def _adjoint(tape: ProgramRecorder, A: LinearOperator, b: Array, x: Array, tol: float, maxiter: int, name: str) -> None:
    """Propagate the adjoint of a solution x of A x = b: with A^T w = dL/dx, dL/db is w, and the memory that A reads gets the derivative of
    -w^T A x."""
    solve, symmetric = _SOLVERS[name]
    flow, w = A.vectors(x, 8)[6:]
    _begin_adjoint(x.grad, flow, w)
    size = _norm(flow)
    if size == 0:
        return
    norm = _norm(b)
    operator = A if symmetric else _Transposed(A, x, tape)
    converged, count = solve(operator, flow, w, tol * size / norm if norm > 0 else tol, maxiter)
    if not converged:
        problem = f"the gradient of `x` of {name} was not solved for: its residual is above the tolerance after {count} iterations"
        hint = "raise `tol` or `maxiter`" + ("; the matrix must be symmetric and positive definite" if symmetric else "")
        raise SpirogradRuntimeError(render(problem, None, hint))
    if b.has_grad():
        _add_to(w, b.grad)
    at, product = A.vectors(x, 2, needs_grad=True)
    _copy_to(x, at, 1.0)
    with tape.nested() as inner:
        A.matvec(at, product)
    at.grad.fill(0)
    _copy_to(w, product.grad, -1.0)
    inner.grad()


def MatrixFreeBICGSTAB(A: LinearOperator, b: Array, x: Array, tol: float = 1e-6, maxiter: int = 5000, quiet: bool = True) -> bool:
    """Solve ``A @ x = b`` by BiCGSTAB, for operators that are not symmetric; otherwise as `MatrixFreeCG`. A tape multiplies with the
    transposed matrix by the derivative of the operator's kernel."""
    return _solved(A, b, x, tol, maxiter, quiet, "MatrixFreeBICGSTAB")


def _bicgstab(A: LinearOperator, b: Array, x: Array, tol: float, maxiter: int, quiet: bool = True) -> tuple[bool, int]:
    """Solve as `MatrixFreeBICGSTAB`; also return the number of iterations."""
    r, p, ap, r0, s, t = A.vectors(x, 6)
    progress = _Progress(x.dtype, tol, quiet, "MatrixFreeBICGSTAB")
    numbers, counters = progress.numbers, progress.counters
    A.matvec(x, ap)
    _begin(b, r, p, ap, numbers, counters)
    _bicgstab_begin(r, r0, p, ap, numbers)

    def iteration() -> None:
        _bicgstab_direction(r, r0, p, ap, numbers, counters)
        A.matvec(p, ap)
        _bicgstab_half_step(r, r0, ap, s, numbers, counters)
        A.matvec(s, t)
        _bicgstab_step(x, r, p, s, t, numbers, counters)

    return progress.iterate(iteration, maxiter), int(counters[COUNT])


# The function of each solver, and whether its matrices are symmetric.
_SOLVERS = {"MatrixFreeCG": (conjugate_gradients, True), "MatrixFreeBICGSTAB": (_bicgstab, False)}


def _solved(A: LinearOperator, b: Array, x: Array, tol: float, maxiter: int, quiet: bool, name: str) -> bool:
    _checked(A, b, x, name)
    solve = _SOLVERS[name][0]
    tape = tape_of(b, x)
    if tape is None:
        return solve(A, b, x, tol, maxiter, quiet)[0]
    need_gradient(x, "x", name)
    return tape.with_reverse(
        lambda: solve(A, b, x, tol, maxiter, quiet)[0], lambda: _adjoint(tape, A, b, x, tol, maxiter, name), (b,), saves=True
    )

"""Reverse mode of scans and reductions. There is an instance for each call: `before` and `after` run around the call and save what the
reverse needs; `send` takes the gradients of the first ``n`` results and adds to those of the elements.

With results y, elements x and the adjoints f of y:

- The adjoint of prefix sums is the suffix sum of the adjoints. - For "min" and "max", an adjoint goes to the element that gave the result,
the first of equal ones. - Products: the adjoint of x[j] is the product of the elements before it times r[j] = f[j] + x[j + 1] r[j + 1].
There are no divisions, so zeros are no special case.
"""

# mypy: disable-error-code="no-untyped-def, valid-type"
from __future__ import annotations

import math

from spirograd.algorithms.checks_and_scratch import Array, copy, scratch
from spirograd.algorithms.scan_passes import add, max_of, mul, scan
from spirograd.base.dtypes import i32
from spirograd.lang import arithmetic, forms
from spirograd.lang.data.ndarray import ndarray
from spirograd.lang.frontend.decorators import kernel
from spirograd.lang.frontend.func import func
from spirograd.types import template

# The least number of elements that one thread combines.
_SHORTEST = 64


@kernel
def clear(x: template(), n: int):
    for k in range(n):
        x[k] = 0.0


@func
def _only(x):
    """Return the element of memory that has one."""
    if forms.static(len(x.shape) == 0):
        return x[None]
    else:
        return x[0]


def _chunks(n: int) -> tuple[int, int]:
    """Return the number of consecutive elements of a thread, and the number of threads, which is about the same."""
    length = max(_SHORTEST, math.isqrt(n))
    return length, -(-n // length)


class Adjoint:
    """The reverse of a call with ``n`` elements of ``x``. ``exclusive``: whether each result excludes its own element."""

    def __init__(self, x: Array, n: int, exclusive: bool) -> None:
        self.n, self.exclusive, self.dtype = n, exclusive, x.dtype

    def before(self, x: Array) -> None:
        """Save what the reverse needs before the scan runs."""

    def after(self, out: Array) -> None:
        """Save what the reverse needs after the scan has run."""

    def send(self, flow: Array, grad: Array) -> None:
        raise NotImplementedError


# --- sums --------------------------------------------------------------------------------------------------------------------


@kernel
def _take_reversed(grad: template(), flow: template(), n: int):
    for k in range(n):
        flow[n - 1 - k] = grad[k]
        grad[k] = 0.0


@kernel
def _add_reversed(flow: template(), grad: template(), n: int):
    for k in range(n):
        grad[k] = grad[k] + flow[n - 1 - k]


@kernel
def _add_to_all(flow: template(), grad: template(), n: int):
    for k in range(n):
        grad[k] = grad[k] + _only(flow)


class _Sums(Adjoint):
    def send(self, flow: Array, grad: Array) -> None:
        taken = scratch("reverse", self.dtype, self.n)
        _take_reversed(flow, taken, self.n)
        scan(taken, taken, self.n, add, 0.0 if self.exclusive else None)
        _add_reversed(taken, grad, self.n)


class _Sum(Adjoint):
    def send(self, flow: Array, grad: Array) -> None:
        _add_to_all(flow, grad, self.n)


# --- least and greatest elements ---------------------------------------------------------------------------------------------


@kernel
def _mark_changes(out: template(), places: template(), n: int, shift: int):
    """Mark changes of the result: at each change the number of the element that is the result from there on, otherwise 0."""
    for k in range(n):
        places[k] = 0
        if k > shift and out[k] != out[k - 1]:
            places[k] = k - shift


@kernel
def _take(grad: template(), flow: template(), n: int):
    for k in range(n):
        flow[k] = grad[k]
        grad[k] = 0.0


@kernel
def _add_at(flow: template(), places: template(), grad: template(), n: int, shift: int, length: int, chunks: int):
    """Add at places that never decrease: a thread adds once for each distinct place."""
    for c in range(chunks):
        first = c * length + shift
        if first < n:
            at, total = places[first], flow[first]
            for k in range(first + 1, arithmetic.min(first + length, n)):
                if places[k] != at:
                    forms.atomic_add(grad[at], total)
                    at = places[k]
                    total = 0.0
                total += flow[k]
            forms.atomic_add(grad[at], total)


class _Extremes(Adjoint):
    def __init__(self, x: Array, n: int, exclusive: bool) -> None:
        super().__init__(x, n, exclusive)
        self._places, self._shift = ndarray(i32, max(n, 1)), int(exclusive)

    def after(self, out: Array) -> None:
        _mark_changes(out, self._places, self.n, self._shift)
        scan(self._places, self._places, self.n, max_of, None)

    def send(self, flow: Array, grad: Array) -> None:
        taken = scratch("reverse", self.dtype, self.n)
        _take(flow, taken, self.n)
        length, chunks = _chunks(self.n)
        _add_at(taken, self._places, grad, self.n, self._shift, length, chunks)


@kernel
def _find_first(x: template(), extremum: template(), place: template(), n: int):
    place[0] = n
    for k in range(n):
        if x[k] == _only(extremum) or (x[k] != x[k] and _only(extremum) != _only(extremum)):
            forms.atomic_min(place[0], k)


@kernel
def _add_to_one(flow: template(), place: template(), grad: template(), n: int):
    if place[0] < n:
        grad[place[0]] = grad[place[0]] + _only(flow)


class _Extreme(Adjoint):
    def __init__(self, x: Array, n: int, exclusive: bool) -> None:
        super().__init__(x, n, exclusive)
        self._x, self._place = x, ndarray(i32, 1)

    def after(self, out: Array) -> None:
        _find_first(self._x, out, self._place, self.n)

    def send(self, flow: Array, grad: Array) -> None:
        _add_to_one(flow, self._place, grad, self.n)


# --- products ----------------------------------------------------------------------------------------------------------------


@kernel
def _take_shifted(grad: template(), flow: template(), n: int, shift: int):
    for k in range(n):
        flow[k] = 0.0
        if k + shift < n:
            flow[k] = grad[k + shift]
    for k in range(n):
        grad[k] = 0.0


@kernel
def _take_last(grad: template(), flow: template(), n: int):
    for k in range(n):
        flow[k] = 0.0
        if k == n - 1:
            flow[k] = _only(grad)


@func
def _element_after(x, k, n):
    """Return the element after ``k``; 0 if ``k`` is the last of ``n``."""
    element = arithmetic.cast(0, x.dtype)
    if k + 1 < n:
        element = x[k + 1]
    return element


@kernel
def _combine_chunks(x: template(), flow: template(), factors: template(), sums: template(), n: int, length: int, chunks: int):
    """Express r at the first element of each chunk as a sum plus a factor times r of the next chunk."""
    for c in range(chunks):
        last = arithmetic.min((c + 1) * length, n) - 1
        factor, total = arithmetic.cast(1, x.dtype), arithmetic.cast(0, x.dtype)
        for j in range(last - c * length + 1):
            k = last - j
            after = _element_after(x, k, n)
            total = flow[k] + after * total
            factor = after * factor
        factors[c] = factor
        sums[c] = total


@kernel
def _join_chunks(factors: template(), sums: template(), chunks: int):
    forms.loop_config(serialize=True)
    for j in range(1, chunks):
        c = chunks - 1 - j
        sums[c] = sums[c] + factors[c] * sums[c + 1]


@kernel
def _add_products(
    x: template(), flow: template(), before: template(), sums: template(), grad: template(), n: int, length: int, chunks: int
):  # fmt: skip
    for c in range(chunks):
        last = arithmetic.min((c + 1) * length, n) - 1
        r = arithmetic.cast(0, x.dtype)
        if c + 1 < chunks:
            r = sums[c + 1]
        for j in range(last - c * length + 1):
            k = last - j
            after = _element_after(x, k, n)
            r = flow[k] + after * r
            grad[k] = grad[k] + before[k] * r


class _Products(Adjoint):
    def __init__(self, x: Array, n: int, exclusive: bool) -> None:
        super().__init__(x, n, exclusive)
        self._kept = ndarray(x.dtype, max(n, 1))

    def before(self, x: Array) -> None:
        copy(x, self._kept, self.n)

    def take(self, flow: Array, taken: Array) -> None:
        """Take the adjoints, each at the last element of its product."""
        _take_shifted(flow, taken, self.n, int(self.exclusive))

    def send(self, flow: Array, grad: Array) -> None:
        n, x = self.n, self._kept
        taken, before = scratch("reverse", self.dtype, n), scratch("products", self.dtype, n)
        self.take(flow, taken)
        length, chunks = _chunks(n)
        factors, sums = scratch("factors", self.dtype, chunks), scratch("sums", self.dtype, chunks)
        _combine_chunks(x, taken, factors, sums, n, length, chunks)
        _join_chunks(factors, sums, chunks)
        scan(x, before, n, mul, 1.0)
        _add_products(x, taken, before, sums, grad, n, length, chunks)


class _Product(_Products):
    def take(self, flow: Array, taken: Array) -> None:
        _take_last(flow, taken, self.n)


SCANS: dict[str, type[Adjoint]] = {"add": _Sums, "mul": _Products, "min": _Extremes, "max": _Extremes}
REDUCTIONS: dict[str, type[Adjoint]] = {"add": _Sum, "mul": _Product, "min": _Extreme, "max": _Extreme}

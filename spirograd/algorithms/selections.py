"""Selections from an array: elements with a flag, runs of equal elements, and counts of each number."""

# mypy: disable-error-code="no-untyped-def, valid-type"
from __future__ import annotations

from collections.abc import Callable

from spirograd.algorithms.checks_and_scratch import Array, check_apart, checked, scratch
from spirograd.algorithms.recorded import nothing, tape
from spirograd.algorithms.scan_passes import add, scan
from spirograd.base.dtypes import i32
from spirograd.base.errors import SpirogradTypeError
from spirograd.lang import arithmetic, forms
from spirograd.lang.frontend.decorators import kernel
from spirograd.types import template


@kernel
def _as_counts(flags: template(), places: template(), n: int):
    for k in range(n):
        places[k] = arithmetic.select(flags[k] != 0, 1, 0)


@kernel
def _starts_of_runs(x: template(), places: template(), n: int):
    for k in range(n):
        starts = 1
        if k > 0 and x[k] == x[arithmetic.max(k - 1, 0)]:
            starts = 0
        places[k] = starts


@kernel
def _take(x: template(), places: template(), out: template(), n: int):
    """Copy the elements whose place changes; ``places``: the inclusive scan of the marks."""
    for k in range(n):
        before = 0
        if k > 0:
            before = places[k - 1]
        if places[k] > before:
            out[before] = x[k]


@kernel
def _note_starts(places: template(), starts: template(), n: int):
    for k in range(n):
        before = 0
        if k > 0:
            before = places[k - 1]
        if places[k] > before:
            starts[before] = k


@kernel
def _lengths(starts: template(), counts: template(), n: int, runs: int):
    for k in range(runs):
        end = n
        if k + 1 < runs:
            end = starts[k + 1]
        counts[k] = end - starts[k]


@kernel
def _histogram(x: template(), counts: template(), n: int, bins: int):
    for k in range(bins):
        counts[k] = 0
    for k in range(n):
        at = arithmetic.cast(x[k], i32)
        if at >= 0 and at < bins:
            forms.atomic_add(counts[at], 1)


def _scanned(places: Array, n: int) -> int:
    scan(places, places, n, add, None)
    return int(places[n - 1])


def _compact(x: Array, out: Array, n: int, mark: Callable[[Array], object]) -> int:
    """Copy the elements of ``x`` that ``mark`` marks by 1, not 0, to ``out``, and return their number."""
    if n == 0:
        return 0
    places = scratch("places", i32, n)

    def places_of_taken() -> int:
        mark(places)
        return _scanned(places, n)

    recording = tape()
    count: int = places_of_taken() if recording is None else recording.with_reverse(places_of_taken, nothing, ())
    _take(x, places, out, n)
    return count


def select(arr: Array, flags: Array, out: Array) -> int:
    """Copy the elements of ``arr`` whose entry of ``flags`` is nonzero to ``out``, in order, and return their number. Waits for the device.

    One-dimensional fields, ndarrays or views; ``out`` must have room for all elements, in memory of its own. Raises SpirogradTypeError and
    SpirogradValueError for arrays that do not fit.
    """
    n = checked(arr, "arr")
    checked(flags, "flags", n)
    checked(out, "out", n, arr.dtype)
    check_apart(n, arr=arr, out=out)
    check_apart(n, flags=flags, out=out)
    return _compact(arr, out, n, lambda places: _as_counts(flags, places, n))


def unique(x: Array, out: Array) -> int:
    """Copy the first element of each run of equal neighbours of ``x`` to ``out``, and return their number. If ``x`` is sorted, each number
    occurs once. Arrays and errors are those of `select`."""
    n = checked(x, "x")
    checked(out, "out", n, x.dtype)
    check_apart(n, x=x, out=out)
    return _compact(x, out, n, lambda places: _starts_of_runs(x, places, n))


def run_length_encode(x: Array, out: Array, counts: Array) -> int:
    """Copy elements as `unique`, and set ``counts`` (of i32, as long as ``x``) to the lengths of the runs."""
    n = checked(x, "x")
    checked(counts, "counts", n, i32)
    check_apart(n, x=x, out=out, counts=counts)
    runs = unique(x, out)
    if runs:
        starts = scratch("starts", i32, runs)
        _note_starts(scratch("places", i32, n), starts, n)
        _lengths(starts, counts, n, runs)
    return runs


def histogram(x: Array, counts: Array) -> None:
    """Set ``counts[b]`` (of i32) to the number of elements of ``x`` that equal ``b``; other elements are not counted.

    Raises SpirogradTypeError for floats, and for ``counts`` of another type; SpirogradValueError if the two overlap.
    """
    n, bins = checked(x, "x"), checked(counts, "counts", None, i32)
    if x.dtype.is_float:
        raise SpirogradTypeError(f"`x`: a histogram counts integers, got {x.dtype}", None, "compute the bin of each element first")
    check_apart(max(n, bins), x=x, counts=counts)
    _histogram(x, counts, n, bins)

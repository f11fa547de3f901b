"""Reductions, scans, selections and sorts that kernels call at their top level, with the signatures of Quadrants.

Each is a sequence of parallel loops over tiles of 256 elements; a thread works on a tile from its first element to its last. Counts may be
known at run time only: as many levels are traced as ``log256_max_n`` says, and a level that a count does not need runs no iteration.
Scratch memory holds the bits of numbers, as u32 or u64.
"""

# mypy: disable-error-code="no-untyped-def, valid-type"
from __future__ import annotations

import math

from spirograd.algorithms import selections
from spirograd.base.dtypes import DType, i32, u32, u64
from spirograd.lang import arithmetic, forms
from spirograd.lang.frontend.func import Func, func, pyfunc
from spirograd.lang.scalar import type_error
from spirograd.types import template

_TILE = 256
_DIGITS = 256  # of a pass of the sort
_MAX_LEVELS = 4  # of counts up to 2^32


def _identity(dtype: DType, kind: str) -> float:
    """Return the number that changes no other one in an operation."""
    if kind == "add":
        return 0
    if dtype.is_float:
        return math.inf if kind == "min" else -math.inf
    return int(dtype.max if kind == "min" else dtype.min)


def _bits_type(dtype: DType) -> DType:
    if dtype.bits not in (32, 64):
        raise type_error(f"algorithms in kernels take numbers of 32 and 64 bits, not {dtype}", "use `sg.algorithms` from Python")
    return u64 if dtype.bits == 64 else u32


@func
def _combine(kind: template(), a, b):
    result = a + b
    if forms.static(kind == "min"):
        result = arithmetic.min(a, b)
    if forms.static(kind == "max"):
        result = arithmetic.max(a, b)
    return result


@func
def _total(kind: template(), dtype: template(), x: template(), at, count):
    """Return ``count`` numbers of ``x``, from element ``at``, combined."""
    total = arithmetic.cast(_identity(dtype, kind), dtype)
    for k in range(count):
        total = _combine(kind, total, arithmetic.bit_cast(x[at + k], dtype))
    return total


@func
def _in_tile(tile, count):
    """Return the number of elements of a tile."""
    return arithmetic.min(count - tile * _TILE, _TILE)


@func
def _tiles(count):
    return (count + (_TILE - 1)) // _TILE


# --- reductions --------------------------------------------------------------------------------------------------------------


@func
def _reduce(kind: template(), arr: template(), out: template(), scratch: template(), n, dtype: template(), log256_max_n: template()):
    bits = forms.static(_bits_type(dtype))
    count = arithmetic.cast(n, i32)
    at = 0
    for level in forms.static(range(log256_max_n - 1)):
        groups = _tiles(count)
        below = at
        if forms.static(level > 0):
            below = at - count
        for t in range(groups):
            if forms.static(level == 0):
                scratch[t] = arithmetic.bit_cast(_total(kind, dtype, arr, t * _TILE, _in_tile(t, count)), bits)
            else:
                scratch[at + t] = arithmetic.bit_cast(_total(kind, dtype, scratch, below + t * _TILE, _in_tile(t, count)), bits)
        at += groups
        count = groups
    for _ in range(1):
        if forms.static(log256_max_n == 1):
            out[0] = _total(kind, dtype, arr, 0, count)
        else:
            out[0] = _total(kind, dtype, scratch, at - count, count)


@func
def reduce_add(arr: template(), out: template(), scratch: template(), n, dtype: template(), log256_max_n: template()):
    """Set ``out[0]`` to the sum of ``arr[0]`` to ``arr[n - 1]``, numbers of ``dtype``. ``n`` is at most 256 ** ``log256_max_n``."""
    _reduce("add", arr, out, scratch, n, dtype, log256_max_n)


@func
def reduce_min(arr: template(), out: template(), scratch: template(), n, dtype: template(), log256_max_n: template()):
    """Set ``out[0]`` to the smallest element. Otherwise as `reduce_add`."""
    _reduce("min", arr, out, scratch, n, dtype, log256_max_n)


@func
def reduce_max(arr: template(), out: template(), scratch: template(), n, dtype: template(), log256_max_n: template()):
    """Set ``out[0]`` to the largest element. Otherwise as `reduce_add`."""
    _reduce("max", arr, out, scratch, n, dtype, log256_max_n)


# --- scans -------------------------------------------------------------------------------------------------------------------


@func
def _scan_tile(kind: template(), dtype: template(), x: template(), at, count, start):
    """Replace ``count`` numbers in scratch memory, from element ``at``, by their exclusive scan from ``start``."""
    running = start
    for k in range(count):
        number = arithmetic.bit_cast(x[at + k], dtype)
        x[at + k] = arithmetic.bit_cast(running, _bits_type(dtype))
        running = _combine(kind, running, number)


@func
def _scan_in_place(kind: template(), dtype: template(), x: template(), at, count, levels: template()):
    """Replace ``count`` numbers in scratch memory by their exclusive scan. The totals of tiles are behind them, if there are several."""
    zero = forms.static(_identity(dtype, kind))
    if forms.static(levels == 1):
        for _ in range(1):
            _scan_tile(kind, dtype, x, at, count, arithmetic.cast(zero, dtype))
    else:
        groups = _tiles(count)
        totals = arithmetic.select(count > _TILE, groups, 0)
        for t in range(totals):
            x[at + count + t] = arithmetic.bit_cast(_total(kind, dtype, x, at + t * _TILE, _in_tile(t, count)), _bits_type(dtype))
        _scan_in_place(kind, dtype, x, at + count, totals, levels - 1)
        for t in range(groups):
            start = arithmetic.cast(zero, dtype)
            if totals > 0:
                start = arithmetic.bit_cast(x[at + count + t], dtype)
            _scan_tile(kind, dtype, x, at + t * _TILE, _in_tile(t, count), start)


@func
def _scan(kind: template(), arr: template(), out: template(), scratch: template(), n, dtype: template(), log256_max_n: template()):
    bits, zero = forms.static(_bits_type(dtype), _identity(dtype, kind))
    count = arithmetic.cast(n, i32)
    groups = _tiles(count)
    if forms.static(log256_max_n > 1):
        for t in range(groups):
            scratch[t] = arithmetic.bit_cast(_total(kind, dtype, arr, t * _TILE, _in_tile(t, count)), bits)
        _scan_in_place(kind, dtype, scratch, 0, groups, log256_max_n - 1)
    for t in range(groups):
        running = arithmetic.cast(zero, dtype)
        if forms.static(log256_max_n > 1):
            running = arithmetic.bit_cast(scratch[t], dtype)
        for k in range(_in_tile(t, count)):
            out[t * _TILE + k] = running
            running = _combine(kind, running, arr[t * _TILE + k])


@func
def exclusive_scan_add(arr: template(), out: template(), scratch: template(), n, dtype: template(), log256_max_n: template()):
    """Set ``out[i]`` to the sum of ``arr[0]`` to ``arr[i - 1]``, for each i below ``n``. ``out`` is another array."""
    _scan("add", arr, out, scratch, n, dtype, log256_max_n)


@func
def exclusive_scan_min(arr: template(), out: template(), scratch: template(), n, dtype: template(), log256_max_n: template()):
    """Set ``out[i]`` to the smallest of ``arr[0]`` to ``arr[i - 1]``. Otherwise as `exclusive_scan_add`."""
    _scan("min", arr, out, scratch, n, dtype, log256_max_n)


@func
def exclusive_scan_max(arr: template(), out: template(), scratch: template(), n, dtype: template(), log256_max_n: template()):
    """Set ``out[i]`` to the largest of ``arr[0]`` to ``arr[i - 1]``. Otherwise as `exclusive_scan_add`."""
    _scan("max", arr, out, scratch, n, dtype, log256_max_n)


# --- selections --------------------------------------------------------------------------------------------------------------


@func
def _select(arr: template(), flags: template(), out: template(), num_out: template(), scratch: template(), n, log256_max_n: template()):
    count = arithmetic.cast(n, i32)
    for i in range(count):
        scratch[i] = arithmetic.cast(flags[i] != 0, u32)
    _scan_in_place("add", u32, scratch, 0, count, log256_max_n)
    for i in range(count):
        if flags[i] != 0:
            out[arithmetic.cast(scratch[i], i32)] = arr[i]
    for _ in range(1):
        selected = 0
        if count > 0:
            selected = arithmetic.cast(scratch[count - 1], i32) + arithmetic.cast(flags[count - 1] != 0, i32)
        num_out[0] = selected


class _SelectInKernels(Func):
    """The function `select` in kernels; called in Python, `spirograd.algorithms.select`."""

    def __call__(self, *args: object, **kwargs: object) -> int:
        return selections.select(*args, **kwargs)  # type: ignore[arg-type]


select = _SelectInKernels(_select.function)


@func
def reduce_by_key_add(
    keys_in: template(),
    values_in: template(),
    keys_out: template(),
    values_out: template(),
    num_runs: template(),
    scratch: template(),
    n,
    value_dtype: template(),
    log256_max_n: template(),
):
    """Set ``keys_out`` to the keys of runs of equal keys, ``values_out`` to the sums of the values of each run, and ``num_runs[0]`` to the
    number of runs."""
    count = arithmetic.cast(n, i32)
    for i in range(count):
        scratch[i] = arithmetic.cast(i == 0 or keys_in[i] != keys_in[arithmetic.max(i - 1, 0)], u32)
    _scan_in_place("add", u32, scratch, 0, count, log256_max_n)
    for i in range(count):
        values_out[i] = arithmetic.cast(0, value_dtype)
    for i in range(count):
        starts = i == 0 or keys_in[i] != keys_in[arithmetic.max(i - 1, 0)]
        run = arithmetic.cast(scratch[i], i32) - arithmetic.select(starts, 0, 1)
        if starts:
            keys_out[run] = keys_in[i]
        forms.atomic_add(values_out[run], values_in[i])
    for _ in range(1):
        runs = 0
        if count > 0:
            last = count - 1
            starts = last == 0 or keys_in[last] != keys_in[arithmetic.max(last - 1, 0)]
            runs = arithmetic.cast(scratch[last], i32) + arithmetic.cast(starts, i32)
        num_runs[0] = runs


# --- sorting -----------------------------------------------------------------------------------------------------------------


@func
def _digit(key, dtype: template(), shift: template()):
    """Return 8 bits of a key: of unsigned integers in the order of the keys."""
    unsigned = forms.static(_bits_type(dtype))
    top = forms.static(1 << (dtype.bits - 1))
    bits = arithmetic.bit_cast(key, unsigned)
    if forms.static(dtype.is_float):
        if bits >= arithmetic.cast(top, unsigned):
            bits = ~bits
        else:
            bits ^= arithmetic.cast(top, unsigned)
    if forms.static(not dtype.is_float and dtype.is_signed):
        bits ^= arithmetic.cast(top, unsigned)
    return arithmetic.cast((bits >> arithmetic.cast(shift, unsigned)) & arithmetic.cast(_DIGITS - 1, unsigned), i32)


@func
def _pass(
    keys: template(),
    to_keys: template(),
    values: template(),
    to_values: template(),
    scratch: template(),
    count,
    dtype: template(),
    has_values: template(),
    shift: template(),
    levels: template(),
):
    """Sort by one digit. Equal digits keep their order: tiles follow each other in the counts of each digit."""
    groups = _tiles(count)
    for k in range(groups * _DIGITS):
        scratch[k] = arithmetic.cast(0, u32)
    for t in range(groups):
        for k in range(_in_tile(t, count)):
            scratch[_digit(keys[t * _TILE + k], dtype, shift) * groups + t] += arithmetic.cast(1, u32)
    _scan_in_place("add", u32, scratch, 0, groups * _DIGITS, levels)
    for t in range(groups):
        for k in range(_in_tile(t, count)):
            key = keys[t * _TILE + k]
            slot = _digit(key, dtype, shift) * groups + t
            place = arithmetic.cast(scratch[slot], i32)
            scratch[slot] += arithmetic.cast(1, u32)
            to_keys[place] = key
            if forms.static(has_values):
                to_values[place] = values[t * _TILE + k]


@func
def sort(
    keys: template(),
    tmp_keys: template(),
    values: template(),
    tmp_values: template(),
    scratch: template(),
    n: template(),
    key_dtype: template(),
    has_values: template(),
    end_bit: template(),
    log256_max_n: template(),
):
    """Sort ``keys`` by their lowest ``end_bit`` bits, a multiple of 16, and ``values`` with them if ``has_values``: a stable radix sort.
    ``n[()]`` is the number of keys."""
    count = arithmetic.cast(n[()], i32)
    for k in forms.static(range(end_bit // 16)):
        _pass(keys, tmp_keys, values, tmp_values, scratch, count, key_dtype, has_values, 16 * k, log256_max_n + 1)
        _pass(tmp_keys, keys, tmp_values, values, scratch, count, key_dtype, has_values, 16 * k + 8, log256_max_n + 1)


# --- sizes of scratch memory -------------------------------------------------------------------------------------------------


def _levels_of(n: int) -> int:
    """Return the number of levels that ``n`` elements need."""
    return next(level for level in range(1, _MAX_LEVELS + 1) if n <= _TILE**level)


@pyfunc
def _partials(n, levels: template()):
    """Return the number of totals of tiles on all levels below the last."""
    total = 0
    count = n
    for _ in forms.static(range(levels - 1)):
        count = (count + (_TILE - 1)) // _TILE
        total += count
    return total


@pyfunc
def reduce_scratch_slots(n, log256_max_n: template() = None):
    """Return the number of slots that reductions of ``n`` elements need. Without ``log256_max_n``, in Python only."""
    levels = forms.static(_levels_of(n) if log256_max_n is None else log256_max_n)
    return arithmetic.max(_partials(n, levels), 1)


exclusive_scan_scratch_slots = reduce_scratch_slots


@pyfunc
def select_scratch_slots(n):
    """Return the number of slots that `select` needs for ``n`` elements."""
    return arithmetic.max(n + _partials(n, _MAX_LEVELS), 1)


reduce_by_key_scratch_slots = select_scratch_slots


@pyfunc
def sort_scratch_slots(n, log256_max_n: template() = None):
    """Return the number of slots that `sort` needs for ``n`` keys. Without ``log256_max_n``, in Python only."""
    levels = forms.static(_levels_of(n) if log256_max_n is None else log256_max_n)
    counts = arithmetic.max((n + (_TILE - 1)) // _TILE * _DIGITS, 1)
    return counts + _partials(counts, levels + 1)


NAMES = (
    "exclusive_scan_add exclusive_scan_max exclusive_scan_min exclusive_scan_scratch_slots reduce_add reduce_by_key_add "
    "reduce_by_key_scratch_slots reduce_max reduce_min reduce_scratch_slots select select_scratch_slots sort sort_scratch_slots"
)

"""Stable sorting by radix: keys, keys with values, and indices.

Keys are sorted by one digit after the other, the lowest first. Each chunk counts its digits, a scan over all counts (digit by digit, chunk
by chunk) gives the place of each chunk's keys of each digit, and the chunk stores them there in order (N. Satish, M. Harris, M. Garland:
Designing Efficient Sorting Algorithms for Manycore GPUs, 2009). `one_sweep` is for devices on which tiles may wait for each other. Floats
are sorted by a bit pattern in which NaN comes last.
"""

# mypy: disable-error-code="no-untyped-def, valid-type"
from __future__ import annotations

from typing import TYPE_CHECKING

from spirograd.algorithms.checks_and_scratch import (
    Array,
    check_apart,
    checked,
    chunks_of,
    copy,
    has_groups,
    runs_side_by_side,
    scratch,
    shared_memory,
)
from spirograd.algorithms.group_scans import padded, padded_length, scan_of_block
from spirograd.algorithms.one_sweep import MOST_KEYS, places_in_one_sweep, sort_in_one_sweep
from spirograd.algorithms.radix_digits import digit_of
from spirograd.algorithms.recorded import nothing, tape, tape_of
from spirograd.algorithms.scan_passes import add, scan
from spirograd.base.dtypes import f16, f32, i32, u1
from spirograd.lang import arithmetic, forms
from spirograd.lang.data.ndarray import ndarray
from spirograd.lang.frontend.decorators import kernel
from spirograd.simt import block
from spirograd.types import template

if TYPE_CHECKING:
    from spirograd.lang.context import ProgramRecorder

# Keys of a thread. Counters, keys and their places of a tile then fit into 24 KiB of shared memory, and with half the keys into 16 KiB.
_THREADS, _EACH, _BITS = 128, 8, 4
_DIGITS = 1 << _BITS
_LARGE_TILES = 24 << 10
_CPU_BITS = 8
_CPU_DIGITS = 1 << _CPU_BITS
# Types of keys that are sorted as another type, which has all of their values in the same order.
_WIDER = {f16: f32, u1: i32}


# --- a few threads -----------------------------------------------------------------------------------------------------------


@kernel
def _count_chunks(keys: template(), counts: template(), n: int, length: int, chunks: int, shift: int):
    for c in range(chunks):
        for d in range(_CPU_DIGITS):
            counts[d * chunks + c] = 0
        for k in range(c * length, arithmetic.min((c + 1) * length, n)):
            at = digit_of(keys[k], shift, _CPU_DIGITS) * chunks + c
            counts[at] = counts[at] + 1


@kernel
def _place_chunks(
    keys: template(), out: template(), values: template(), values_out: template(), counts: template(), n: int, length: int, chunks: int,
    shift: int, valued: template(),
):  # fmt: skip
    for c in range(chunks):
        for k in range(c * length, arithmetic.min((c + 1) * length, n)):
            place = digit_of(keys[k], shift, _CPU_DIGITS) * chunks + c
            at = counts[place]
            counts[place] = at + 1
            out[at] = keys[k]
            if forms.static(valued):
                values_out[at] = values[k]


# --- groups of threads -------------------------------------------------------------------------------------------------------


@kernel
def _count_tiles(keys: template(), counts: template(), n: int, tiles: int, shift: int, each: template()):
    forms.loop_config(block_dim=_THREADS)
    for i in range(tiles * _THREADS):
        bins = block.SharedArray(_DIGITS, i32)
        t, tile = block.thread_idx(), i // _THREADS
        if t < _DIGITS:
            bins[t] = 0
        block.sync()
        for e in range(each):
            k = (tile * each + e) * _THREADS + t
            if k < n:
                forms.atomic_add(bins[digit_of(keys[k], shift, _DIGITS)], 1)
        block.sync()
        if t < _DIGITS:
            counts[t * tiles + tile] = bins[t]


@kernel
def _place_tiles(
    keys: template(), out: template(), values: template(), values_out: template(), counts: template(), n: int, tiles: int, shift: int,
    valued: template(), each: template(),
):  # fmt: skip
    forms.loop_config(block_dim=_THREADS)
    for i in range(tiles * _THREADS):
        # The number of keys of digit d of thread t, at d * _THREADS + t; then their place in the sorted tile.
        mine = block.SharedArray(forms.static(padded_length(_DIGITS * _THREADS)), i32)
        sorted_keys = block.SharedArray(forms.static(_THREADS * each), keys.dtype)
        sums = block.SharedArray(_THREADS, i32)
        sources = block.SharedArray(forms.static(_THREADS * each if valued else 1), i32)
        t, tile = block.thread_idx(), i // _THREADS
        for d in range(_DIGITS):
            mine[padded(d * _THREADS + t)] = 0
        first, last = i * each, arithmetic.min((i + 1) * each, n)
        for k in range(first, last):
            at = padded(digit_of(keys[k], shift, _DIGITS) * _THREADS + t)
            mine[at] = mine[at] + 1
        block.sync()
        total = 0
        for d in range(_DIGITS):
            total += mine[padded(t * _DIGITS + d)]
        before = scan_of_block(total, sums, add) - total
        for d in range(_DIGITS):
            count = mine[padded(t * _DIGITS + d)]
            mine[padded(t * _DIGITS + d)] = before
            before += count
        block.sync()
        starts = block.SharedArray(_DIGITS, i32)
        if t < _DIGITS:
            starts[t] = counts[t * tiles + tile] - mine[padded(t * _THREADS)]
        block.sync()
        for k in range(first, last):
            at = padded(digit_of(keys[k], shift, _DIGITS) * _THREADS + t)
            place = mine[at]
            mine[at] = place + 1
            sorted_keys[place] = keys[k]
            if forms.static(valued):
                sources[place] = k
        block.sync()
        # Keys of a digit are adjacent now, and neighbouring threads store neighbouring keys.
        for e in range(each):
            place = e * _THREADS + t
            if tile * each * _THREADS + place < n:
                at = starts[digit_of(sorted_keys[place], shift, _DIGITS)] + place
                out[at] = sorted_keys[place]
                if forms.static(valued):
                    values_out[at] = values[sources[place]]


# --- for users ---------------------------------------------------------------------------------------------------------------


def _sort(keys: Array, values: Array | None, n: int) -> None:
    wide = _WIDER.get(keys.dtype)
    if wide is not None:
        held = scratch("wide keys", wide, n)
        copy(keys, held, n)
        _sort(held, values, n)
        copy(held, keys, n)
        return
    if _in_one_sweep(n):
        ordered, with_them = sort_in_one_sweep(keys, values, n)
    else:
        ordered, with_them = _sort_in_two_sweeps(keys, values, n)
    if ordered is not keys:
        copy(ordered, keys, n)
        if values is not None:
            copy(with_them, values, n)


def _in_one_sweep(n: int) -> bool:
    return has_groups() and runs_side_by_side() and n <= MOST_KEYS


def _sort_in_two_sweeps(keys: Array, values: Array | None, n: int) -> tuple[Array, Array | None]:
    """Sort as `sort_in_one_sweep`, on devices on which tiles may not wait for each other."""
    groups, valued = has_groups(), values is not None
    source, spare = keys, scratch("keys", keys.dtype, n)
    own, other = (keys, spare) if values is None else (values, scratch("values", values.dtype, n))
    each = _EACH if shared_memory() >= _LARGE_TILES else _EACH // 2
    length, chunks = (_THREADS * each, -(-n // (_THREADS * each))) if groups else chunks_of(n)
    counts = scratch("counts", i32, chunks * (_DIGITS if groups else _CPU_DIGITS))
    for shift in range(0, keys.dtype.bits, _BITS if groups else _CPU_BITS):
        if groups:
            _count_tiles(source, counts, n, chunks, shift, each)
            _from_counts(counts, chunks * _DIGITS)
            _place_tiles(source, spare, own, other, counts, n, chunks, shift, valued, each)
        else:
            _count_chunks(source, counts, n, length, chunks, shift)
            _from_counts(counts, chunks * _CPU_DIGITS)
            _place_chunks(source, spare, own, other, counts, n, length, chunks, shift, valued)
        source, spare, own, other = spare, source, other, own
    return source, own if valued else None


def _from_counts(counts: Array, n: int) -> None:
    scan(counts, counts, n, add, 0)


def parallel_sort(keys: Array, values: Array | None = None) -> None:
    """Sort ``keys`` in place, ascending, and ``values`` in the same order; equal keys keep their order. NaN comes last, zeros of both signs
    are equal.

    One-dimensional fields, ndarrays or views; keys are integers or floats. Tapes differentiate it. Raises SpirogradTypeError and
    SpirogradValueError for other arguments.
    """
    n = checked(keys, "keys")
    if values is not None:
        checked(values, "values", n)
        check_apart(n, keys=keys, values=values)
    if n < 2:
        return
    recording = tape()
    if recording is None:
        _sort(keys, values, n)
    elif tape_of(keys, values) is not None:
        _sort_on_tape(recording, keys, values, n)
    else:
        recording.with_reverse(lambda: _sort(keys, values, n), nothing, [m for m in (keys, values) if m is not None])


@kernel
def _gather(source: template(), places: template(), out: template(), n: int):
    for k in range(n):
        out[k] = source[places[k]]


@kernel
def _scatter(flow: template(), places: template(), grad: template(), n: int):
    for k in range(n):
        grad[places[k]] = flow[k]


def _sort_on_tape(recording: ProgramRecorder, keys: Array, values: Array | None, n: int) -> None:
    """Sort, and record the inverse permutation for the gradient."""
    places = ndarray(i32, n)

    def forward() -> None:
        _number(places, n)
        _sort(keys, places, n)
        if values is not None:
            copied = scratch("values", values.dtype, n)
            copy(values, copied, n)
            _gather(copied, places, values, n)

    def reverse() -> None:
        for memory in (keys, values):
            if memory is not None and memory.has_grad():
                flow = scratch("reverse", memory.dtype, n)
                copy(memory.grad, flow, n)
                _scatter(flow, places, memory.grad, n)

    recording.with_reverse(forward, reverse, [m for m in (keys, values) if m is not None])


@kernel
def _number(x: template(), n: int):
    for k in range(n):
        x[k] = k


def argsort(keys: Array, out: Array) -> None:
    """Set ``out`` (of i32) to the indices that sort ``keys``, which are not changed; equal keys keep their order. Otherwise as
    `parallel_sort`."""
    n = checked(keys, "keys")
    checked(out, "out", n, i32)
    check_apart(n, keys=keys, out=out)
    if n:
        recording = tape()
        if recording is None:
            _argsort(keys, out, n)
        else:
            recording.with_reverse(lambda: _argsort(keys, out, n), nothing, ())


def _argsort(keys: Array, out: Array, n: int) -> None:
    if _in_one_sweep(n) and keys.dtype not in _WIDER:
        places_in_one_sweep(keys, out, n)
        return
    copied = scratch("argsort", keys.dtype, n)
    copy(keys, copied, n)
    _number(out, n)
    _sort(copied, out, n)

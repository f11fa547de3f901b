"""Sorting by radix with one pass over the keys for each digit of 8 bits.

One kernel counts all digits of all keys, and another computes where the keys of each digit begin. In a pass, each tile ranks its keys by
their digit, publishes its counts, sums those of earlier tiles by looking back, and stores its keys. A single tile is sorted by one group.
The device must guarantee progress of tiles that have begun, as for `look_back_scan` (A. Adinets, D. Merrill: Onesweep: A Faster Least
Significant Digit Radix Sort for GPUs, 2022).
"""

# mypy: disable-error-code="no-untyped-def, valid-type"
from __future__ import annotations

from spirograd.algorithms.checks_and_scratch import Array, scratch, zeros
from spirograd.algorithms.group_scans import THREADS, scan_of_block
from spirograd.algorithms.radix_digits import digit_of
from spirograd.algorithms.scan_passes import add
from spirograd.base.dtypes import DType, i32, u32
from spirograd.lang import arithmetic, forms
from spirograd.lang.frontend.decorators import kernel
from spirograd.lang.frontend.func import func
from spirograd.lang.matrix import Vector
from spirograd.simt import block, subgroup
from spirograd.types import template

_BITS = 8
_DIGITS = THREADS  # one digit for each thread
# Bytes of keys and values of a thread, in registers and in shared memory of the group.
_BYTES = 128
_MOST = 12  # keys of a thread: 2^24 i32 on an H200 take 650 us with 12, 710 with 10
_MOST_ALONE = 32  # the same for a group that sorts alone, which is slower than several groups but needs only one launch
_COUNTED = 8  # keys that a thread loads at once for counting
_COUNTING_GROUPS = 1024
_AHEAD = 4  # tiles whose counts a thread loads at once

# A tile publishes one word for each digit: a count, with the state in the bits above. Passes use one half of the words in turn, and clear
# the other half.
_STATE_BITS = 30
_NOTHING, _TOTAL, _WHOLE = range(3)
# What moves with keys: nothing, values, or in the first pass their indices.
_NO_VALUES, _VALUES, _NUMBERS = range(3)
_MOST_PASSES = 64 // _BITS
MOST_KEYS = (1 << _STATE_BITS) - 1


def keys_of_thread(keys: DType, values: DType | None, most: int) -> int:
    """Return the number of keys of a thread, up to ``most``."""
    return min(most, _BYTES // (max(keys.size, 4) + (0 if values is None else max(values.size, 4))))


# --- where digits begin ------------------------------------------------------------------------------------------------------


@kernel
def _count_digits(
    keys: template(), bins: template(), states: template(), tickets: template(), n: int, groups: int, tiles: int, passes: template(),
):  # fmt: skip
    """Add to ``bins``, and clear the memory of the passes."""
    forms.loop_config(block_dim=THREADS)
    for i in range(groups * THREADS):
        if i < passes:
            tickets[i] = 0
        for k in range(-(-(tiles * _DIGITS - i) // (groups * THREADS))):
            states[i + k * groups * THREADS] = _NOTHING
        counts = block.SharedArray(forms.static(passes * _DIGITS), i32)
        t, stride = block.thread_idx(), groups * THREADS
        for p in forms.static(range(passes)):
            counts[p * _DIGITS + t] = 0
        block.sync()
        k = i
        while k + (_COUNTED - 1) * stride < n:
            some = Vector([keys[k + e * stride] for e in forms.static(range(_COUNTED))])
            for e in forms.static(range(_COUNTED)):
                for p in forms.static(range(passes)):
                    forms.atomic_add(counts[p * _DIGITS + digit_of(some[e], p * _BITS, _DIGITS)], 1)
            k += _COUNTED * stride
        while k < n:
            for p in forms.static(range(passes)):
                forms.atomic_add(counts[p * _DIGITS + digit_of(keys[k], p * _BITS, _DIGITS)], 1)
            k += stride
        block.sync()
        for p in forms.static(range(passes)):
            count = counts[p * _DIGITS + t]
            if count > 0:
                forms.atomic_add(bins[p * _DIGITS + t], count)


@kernel
def _begin_digits(bins: template(), begins: template(), passes: int):
    """Compute where the keys of each digit begin in each pass, and reset ``bins`` to zeros."""
    forms.loop_config(block_dim=_DIGITS)
    for i in range(passes * _DIGITS):
        shared = block.SharedArray(THREADS, i32)
        count = bins[i]
        bins[i] = 0  # for the next sort
        begins[i] = scan_of_block(count, shared, add) - count


# --- the keys of a tile ------------------------------------------------------------------------------------------------------


@func
def _first_of_thread(t, each: template()):
    """Return the first key of a thread in its tile. The others follow at the distance of a subgroup, whose keys are adjacent."""
    lanes = forms.static(subgroup.group_size())
    return t // lanes * (lanes * each) + t % lanes


@func
def _peers(digit):
    """Return the lanes of the subgroup with the same digit, as bits."""
    lanes = forms.static(subgroup.group_size())
    same = arithmetic.cast(forms.static((1 << lanes) - 1), u32)
    for b in forms.static(range(_BITS)):
        bit = (digit >> b) & 1
        same &= subgroup.ballot_first_n(bit, lanes) ^ arithmetic.cast(bit - 1, u32)
    return same


@func
def _ranks(mine, have, t, shift, counters, each: template()):
    """Return, for each key of a thread, the number of keys of the same digit before it in the subgroup, and count the keys of each digit of
    each subgroup in ``counters``. Places of the tile from ``have`` on have no keys: they count for the last digit, after all keys."""
    lanes = forms.static(subgroup.group_size())
    lane, own = t % lanes, t // lanes * _DIGITS
    for w in forms.static(range(THREADS // lanes)):
        counters[w * _DIGITS + t] = 0
    block.sync()
    ranks = Vector([0 for _ in forms.static(range(each))])
    for e in forms.static(range(each)):
        digit = digit_of(mine[e], shift, _DIGITS)
        if _first_of_thread(t, each) + e * lanes >= have:
            digit = _DIGITS - 1
        same = _peers(digit)
        leader = arithmetic.ffs(same) - 1
        before = 0
        if lane == leader:
            before = forms.atomic_add(counters[own + digit], arithmetic.popcnt(same))
        below = same & ((arithmetic.cast(1, u32) << arithmetic.cast(lane, u32)) - 1)
        ranks[e] = subgroup.shuffle(before, leader) + arithmetic.popcnt(below)
    block.sync()
    return ranks


@func
def _total_of_digit(t, counters):
    """Return how many keys the tile has of digit ``t``, and replace ``counters`` by the numbers of earlier subgroups."""
    total = 0
    for w in forms.static(range(THREADS // subgroup.group_size())):
        count = counters[w * _DIGITS + t]
        counters[w * _DIGITS + t] = total
        total += count
    return total


@func
def _begin_in_tile(t, total, counters, shared):
    """Add the place where the keys of digit ``t`` begin in the sorted tile to ``counters``."""
    begin = scan_of_block(total, shared, add) - total
    for w in forms.static(range(THREADS // subgroup.group_size())):
        counters[w * _DIGITS + t] += begin
    block.sync()
    return begin


@func
def _place(key, rank, place, have, t, shift, counters):
    """Return the place of a key in the sorted tile; ``place``: its place before."""
    digit = digit_of(key, shift, _DIGITS)
    if place >= have:
        digit = _DIGITS - 1
    return counters[t // forms.static(subgroup.group_size()) * _DIGITS + digit] + rank


# --- a pass over all tiles ---------------------------------------------------------------------------------------------------


@func
def _word_of(count, state: template()):
    return arithmetic.cast(count, u32) | arithmetic.cast(forms.static(state << _STATE_BITS), u32)


@func
def _of_tiles_before(states, first, tile, t):
    """Return how many keys precede those of digit ``t`` of a tile (not the first): those of smaller digits, and those of the digit in
    earlier tiles. ``first``: the first word of the pass."""
    at, going, count = tile - 1, True, 0
    while going:
        words = Vector([forms.volatile_load(states[first + arithmetic.max(at - e, 0) * _DIGITS + t]) for e in forms.static(range(_AHEAD))])
        known, some = True, 0
        for e in forms.static(range(_AHEAD)):
            state = words[e] >> _STATE_BITS
            known = known and state != _NOTHING
            if known:
                count += arithmetic.cast(words[e] & MOST_KEYS, i32)
                some += 1
                if state == _WHOLE:
                    going, known = False, False
        at -= some
    return count


@kernel
def _place_tiles(
    keys: template(), out: template(), values: template(), values_out: template(), begins: template(), states: template(),
    tickets: template(), n: int, tiles: int, number: int, each: template(), source: template(),
):  # fmt: skip
    forms.loop_config(block_dim=THREADS)
    for _ in range(tiles * THREADS):
        lanes = forms.static(subgroup.group_size())
        size = forms.static(THREADS * each)
        counters = block.SharedArray(forms.static(THREADS // lanes * _DIGITS), i32)
        staged = block.SharedArray(size, keys.dtype)
        staged_values = block.SharedArray(forms.static(size if source != _NO_VALUES else 1), values_out.dtype)
        shared, starts, ticket = block.SharedArray(THREADS, i32), block.SharedArray(_DIGITS, i32), block.SharedArray(1, i32)
        t, shift = block.thread_idx(), number * _BITS
        if t == 0:
            ticket[0] = forms.atomic_add(tickets[number], 1)
        block.sync()
        tile = ticket[0]
        have = arithmetic.min(size, n - tile * size)
        first = _first_of_thread(t, each)
        mine = Vector([keys[tile * size + arithmetic.min(first + e * lanes, have - 1)] for e in forms.static(range(each))])
        ranks = _ranks(mine, have, t, shift, counters, each)
        total = _total_of_digit(t, counters)
        words, cleared = number % 2 * tiles * _DIGITS, (1 - number % 2) * tiles * _DIGITS
        states[cleared + tile * _DIGITS + t] = _NOTHING
        begin_of_digit = begins[number * _DIGITS + t]
        if tile == 0:
            forms.atomic_max(states[words + t], _word_of(begin_of_digit + total, _WHOLE))
        else:
            forms.atomic_max(states[words + tile * _DIGITS + t], _word_of(total, _TOTAL))
        begin = _begin_in_tile(t, total, counters, shared)
        for e in forms.static(range(each)):
            place = _place(mine[e], ranks[e], first + e * lanes, have, t, shift, counters)
            staged[place] = mine[e]
            if forms.static(source == _VALUES):
                staged_values[place] = values[tile * size + arithmetic.min(first + e * lanes, have - 1)]
            elif forms.static(source == _NUMBERS):
                staged_values[place] = tile * size + first + e * lanes
        before = begin_of_digit
        if tile > 0:
            before = _of_tiles_before(states, words, tile, t)
            forms.atomic_max(states[words + tile * _DIGITS + t], _word_of(before + total, _WHOLE))
        starts[t] = before - begin
        block.sync()
        # Keys of a digit are adjacent now, and neighbouring threads store neighbouring keys.
        for e in forms.static(range(each)):
            place = e * THREADS + t
            if place < have:
                key = staged[place]
                at = starts[digit_of(key, shift, _DIGITS)] + place
                out[at] = key
                if forms.static(source != _NO_VALUES):
                    values_out[at] = staged_values[place]


# --- one tile ----------------------------------------------------------------------------------------------------------------


@kernel
def _sort_tile(keys: template(), values: template(), n: int, passes: template(), each: template(), source: template()):
    """Sort the keys of one tile in place, with values; or leave them, and set ``values`` to their indices in order."""
    forms.loop_config(block_dim=THREADS)
    for t in range(THREADS):
        lanes = forms.static(subgroup.group_size())
        size = forms.static(THREADS * each)
        counters = block.SharedArray(forms.static(THREADS // lanes * _DIGITS), i32)
        staged = block.SharedArray(size, keys.dtype)
        staged_values = block.SharedArray(forms.static(size if source != _NO_VALUES else 1), values.dtype)
        shared = block.SharedArray(THREADS, i32)
        first = _first_of_thread(t, each)
        mine = Vector([keys[arithmetic.min(first + e * lanes, n - 1)] for e in forms.static(range(each))])
        theirs = Vector([arithmetic.cast(first + e * lanes, values.dtype) for e in forms.static(range(each))])
        if forms.static(source == _VALUES):
            for e in forms.static(range(each)):
                theirs[e] = values[arithmetic.min(first + e * lanes, n - 1)]
        for number in range(passes):
            ranks = _ranks(mine, n, t, number * _BITS, counters, each)
            _begin_in_tile(t, _total_of_digit(t, counters), counters, shared)
            for e in forms.static(range(each)):
                place = _place(mine[e], ranks[e], first + e * lanes, n, t, number * _BITS, counters)
                staged[place] = mine[e]
                if forms.static(source != _NO_VALUES):
                    staged_values[place] = theirs[e]
            block.sync()
            for e in forms.static(range(each)):
                mine[e] = staged[first + e * lanes]
                if forms.static(source != _NO_VALUES):
                    theirs[e] = staged_values[first + e * lanes]
            block.sync()
        for e in forms.static(range(each)):
            if first + e * lanes < n:
                if forms.static(source != _NUMBERS):
                    keys[first + e * lanes] = mine[e]
                if forms.static(source != _NO_VALUES):
                    values[first + e * lanes] = theirs[e]


def sort_in_one_sweep(keys: Array, values: Array | None, n: int) -> tuple[Array, Array | None]:
    """Sort ``n`` keys, at most `MOST_KEYS`, with values, and return the arrays that hold them."""
    source, targets = _VALUES, [keys, scratch("keys", keys.dtype, n)]
    if values is None:
        source, with_them = _NO_VALUES, targets
    else:
        with_them = [values, scratch("values", values.dtype, n)]
    return _sort_between(keys, targets[::-1], values, with_them[::-1], n, source)


def places_in_one_sweep(keys: Array, out: Array, n: int) -> None:
    """Set ``out`` to the indices of ``n`` keys, at most `MOST_KEYS`, in the order of the keys, which are not changed."""
    targets, numbers = [scratch(use, keys.dtype, n) for use in ("keys", "argsort")], [out, scratch("values", out.dtype, n)]
    if _passes(keys) % 2 == 0:
        numbers.reverse()
    _sort_between(keys, targets, out, numbers, n, _NUMBERS)


def _passes(keys: Array) -> int:
    bits: int = keys.dtype.bits
    return -(-bits // _BITS)


def _sort_between(
    keys: Array, targets: list[Array], values: Array | None, with_them: list[Array], n: int, source: int
) -> tuple[Array, Array | None]:
    """Run the passes, which store keys and values alternately to two arrays."""
    passes, types = _passes(keys), (keys.dtype, None if values is None else values.dtype)
    each, alone = keys_of_thread(*types, _MOST), keys_of_thread(*types, _MOST_ALONE)
    tiles = -(-n // (THREADS * each))
    if n <= THREADS * alone:
        _sort_tile(keys, keys if values is None else values, n, passes, each if tiles == 1 else alone, source)
        return keys, values
    states, tickets = scratch("states of digits", u32, 2 * tiles * _DIGITS), scratch("tickets", i32, _MOST_PASSES)
    groups = min(_COUNTING_GROUPS, -(-n // (THREADS * _COUNTED)))
    own, begins = keys if values is None else values, scratch("begins of digits", i32, _MOST_PASSES * _DIGITS)
    with zeros("bins", i32, _MOST_PASSES * _DIGITS) as bins:
        _count_digits(keys, bins, states, tickets, n, groups, tiles, passes)
        _begin_digits(bins, begins, passes)
        for number in range(passes):
            place = number % 2
            _place_tiles(keys, targets[place], own, with_them[place], begins, states, tickets, n, tiles, number, each, source)
            keys, own = targets[place], with_them[place]
            source = min(source, _VALUES)
    return keys, None if values is None else own

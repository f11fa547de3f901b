"""Scans in one pass: each tile adds to its elements what the tiles before it have, as soon as those know it.

A tile is read once, and written once. It publishes the total of its own elements (`_TOTAL`), then finds what comes before: it looks back
over the tiles, adds the totals of those that know only these, and stops at the first that knows the total of all up to it (`_WHOLE`).
Tiles are given out in the order in which workgroups ask, so those before a tile are done, or run; the device must let these go on while
others wait for them, which CUDA does (D. Merrill, M. Garland: Single-pass Parallel Prefix Scan with Decoupled Look-back, 2016).
"""

# mypy: disable-error-code="no-untyped-def, valid-type"
from __future__ import annotations

from spirograd.algorithms.checks_and_scratch import Array, reads_subgroups, scratch
from spirograd.algorithms.group_scans import THREADS, padded, padded_length, scan_elements, scan_of_block
from spirograd.base.dtypes import i32, u32, u64
from spirograd.lang import arithmetic, forms
from spirograd.lang.context import session
from spirograd.lang.frontend.decorators import kernel
from spirograd.lang.frontend.func import func
from spirograd.simt import block, grid, subgroup
from spirograd.types import template

_NOTHING, _TOTAL, _WHOLE = range(3)
# Bytes of elements that a thread takes: so many loads are under way, and so much shared memory is taken. 2^28 numbers on an H200: 75 % of a
# copy's speed with 64, 81 with 96, 82 with 112; 2^24 numbers: 51, 52, 47.
_BYTES = 96


@kernel
def _forget(states: template(), ticket: template(), n: int):
    for k in range(n):
        states[k] = _NOTHING
        if k == 0:
            ticket[0] = 0


# What tiles publish lies in ``states``: the state and the value in one word if that holds both, or else the state, and the value in one of
# the arrays ``values``, by state.


@func
def _publish(states, values: template(), tile, value, state: template()):
    if forms.static(states.dtype is u64):
        word = arithmetic.cast(arithmetic.bit_cast(value, u32), u64)
        forms.atomic_exchange(states[tile], word | forms.static(state << 32))
    else:
        values[state][tile] = value
        grid.mem_fence()
        forms.atomic_max(states[tile], state)


@func
def _state_of(word):
    if forms.static(word.dtype is u64):
        return arithmetic.cast(word >> 32, i32)
    else:
        return word


@func
def _published(word, values: template(), tile, model):
    """The value behind a word that says that there is one; of the type of ``model``."""
    value = model
    if forms.static(word.dtype is u64):
        value = arithmetic.bit_cast(arithmetic.cast(word & 0xFFFFFFFF, u32), model.dtype)
    elif word == _WHOLE:
        value = forms.volatile_load(values[_WHOLE][tile])
    else:
        value = forms.volatile_load(values[_TOTAL][tile])
    return value


@func
def _of_tiles_before_by_lanes(tile, states, values: template(), model, op: template()):
    """In the first thread of a subgroup, all of which come here: what the elements of the tiles before a tile (not the first) make.
    Its threads look at as many tiles at a time."""
    lanes = forms.static(subgroup.group_size())
    lane = subgroup.invocation_id()
    last, some, going = tile - 1, False, True
    found = model
    while going:
        at = last - lane
        word = arithmetic.cast(0, states.dtype)
        if at >= 0:
            word = forms.volatile_load(states[at])
        state = _state_of(word)
        if subgroup.any_true(at >= 0 and state == _NOTHING) == 0:
            if forms.static(states.dtype is not u64):
                grid.mem_fence()
            votes = subgroup.ballot_first_n(at >= 0 and state == _WHOLE, forms.static(min(lanes, 32)))
            nearest = lanes - 1  # of those that know all up to them; a tile before the first is never reached
            if votes != 0:
                nearest = arithmetic.ffs(votes) - 1
            value = model
            if at >= 0 and lane <= nearest:
                value = _published(word, values, at, model)
            for step in forms.static(range(lanes.bit_length() - 1)):
                partner = lane + (1 << step)
                other = subgroup.shuffle(value, arithmetic.min(partner, lanes - 1))
                if partner <= nearest:
                    value = op(other, value)
            if some:
                value = op(value, found)
            found = value
            some = True
            last -= lanes
            if votes != 0:
                going = False
    return found


@func
def _of_tiles_before(tile, states, values: template(), model, op: template()):
    """What the elements of the tiles before a tile (not the first) make, by one thread."""
    at, some, going = tile - 1, False, True
    found = model
    while going:
        word = forms.volatile_load(states[at])
        state = _state_of(word)
        if state != _NOTHING:
            if forms.static(states.dtype is not u64):
                grid.mem_fence()
            value = _published(word, values, at, model)
            if some:
                value = op(value, found)
            found = value
            some = True
            at -= 1
            going = state != _WHOLE
    return found


@func
def _load_tile(x, staged, begin, have, t, each: template()):
    if have == forms.static(THREADS * each):
        for k in forms.static(range(each)):  # all loads are under way at once
            staged[padded(k * THREADS + t)] = x[begin + k * THREADS + t]
    else:
        for k in range(each):
            if k * THREADS + t < have:
                staged[padded(k * THREADS + t)] = x[begin + k * THREADS + t]


@func
def _store_tile(staged, out, begin, have, t, each: template()):
    if have == forms.static(THREADS * each):
        for k in forms.static(range(each)):
            out[begin + k * THREADS + t] = staged[padded(k * THREADS + t)]
    else:
        for k in range(each):
            if k * THREADS + t < have:
                out[begin + k * THREADS + t] = staged[padded(k * THREADS + t)]


@func
def _look_back(t, tile, whole, states, values: template(), before_tile, op: template()):
    """Publish what a tile has, and put what comes before into ``before_tile``. The first threads of the group come here."""
    if t == 0 and tile == 0:
        _publish(states, values, tile, whole, _WHOLE)
    elif t == 0:
        _publish(states, values, tile, whole, _TOTAL)
    if tile > 0:
        found = whole
        if forms.static(reads_subgroups()):
            found = _of_tiles_before_by_lanes(tile, states, values, whole, op)
        else:
            found = _of_tiles_before(tile, states, values, whole, op)
        if t == 0:
            before_tile[0] = found
            _publish(states, values, tile, op(found, whole), _WHOLE)


@kernel
def _scan_tiles(
    x: template(), out: template(), states: template(), tickets: template(), totals: template(), wholes: template(), n: int, tiles: int,
    each: template(), op: template(), start: template(),
):  # fmt: skip
    forms.loop_config(block_dim=THREADS)
    for _ in range(tiles * THREADS):
        size = forms.static(THREADS * each)
        shared = block.SharedArray(THREADS, x.dtype)
        staged = block.SharedArray(forms.static(padded_length(size)), x.dtype)
        ticket, before_tile = block.SharedArray(1, i32), block.SharedArray(1, x.dtype)
        t = block.thread_idx()
        if t == 0:
            ticket[0] = forms.atomic_add(tickets[0], 1)
        block.sync()
        tile = ticket[0]
        begin = tile * size
        have = arithmetic.min(size, n - begin)
        _load_tile(x, staged, begin, have, t, each)
        block.sync()
        first, end = t * each, arithmetic.min((t + 1) * each, have)
        total = staged[padded(arithmetic.min(first, have - 1))]
        for k in range(first + 1, end):
            total = op(total, staged[padded(k)])
        scan_of_block(total, shared, op)
        if t < forms.static(subgroup.group_size() if reads_subgroups() else 1):
            values = forms.static({_TOTAL: totals, _WHOLE: wholes})
            _look_back(t, tile, shared[(have - 1) // each], states, values, before_tile, op)
        block.sync()
        before = total
        if t > 0:
            before = shared[t - 1]
            if tile > 0:
                before = op(before_tile[0], before)
        elif tile > 0:
            before = before_tile[0]
        scan_elements(staged, first, end, before, tile > 0 or t > 0, op, start)
        block.sync()
        _store_tile(staged, out, begin, have, t, each)
        block.sync()  # before the next tile takes the shared memory


def scan_in_one_pass(x: Array, out: Array, n: int, op: object, start: object) -> None:
    """As `scan_passes.scan`."""
    each = _BYTES // max(x.dtype.size, 4)
    tiles = -(-n // (THREADS * each))
    packed = x.dtype.bits == 32 and session().device.caps.atomic_int64
    states, ticket = scratch("states", u64 if packed else i32, tiles), scratch("ticket", i32, 1)
    _forget(states, ticket, tiles)
    totals, wholes = (scratch(use, x.dtype, 1 if packed else tiles) for use in ("totals of tiles", "wholes"))
    _scan_tiles(x, out, states, ticket, totals, wholes, n, tiles, each, op, start)

"""Scans in one pass: each tile adds the total of the tiles before it to its elements as soon as they have published it.

A tile is read once and written once. It publishes the total of its own elements (`_TOTAL`), then looks back over earlier tiles: it adds
their totals, and stops at the first tile that has published the total of all elements up to its end (`_WHOLE`). Workgroups take tiles in
order, so all tiles before a tile are done or running; the device must guarantee their progress while others wait, as CUDA does (D. Merrill,
M. Garland: Single-pass Parallel Prefix Scan with Decoupled Look-back, 2016).
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
# Bytes of elements of a thread, which determine the loads in flight and the shared memory. 2^28 numbers on an H200: 75 % of a copy's speed
# with 64, 81 with 96, 82 with 112; 2^24 numbers: 51, 52, 47.
_BYTES = 96


@kernel
def _forget(states: template(), ticket: template(), n: int):
    for k in range(n):
        states[k] = _NOTHING
        if k == 0:
            ticket[0] = 0


# Tiles publish in ``states``: the state and the value in one word if it holds both, or else the state, and the value in one of the arrays
# ``values``, by state.


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
    """Return the published value of a word, of the type of ``model``."""
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
    """Return, in the first thread of a subgroup, the total of the tiles before a tile (not the first). All threads of the subgroup call
    this, and each inspects a tile at a time."""
    lanes = forms.static(subgroup.group_size())
    lane = subgroup.invocation_id()
    last, some, going = tile - 1, False, True
    before = model
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
            nearest = lanes - 1  # tiles that know the total up to their end; a tile before the first is never reached
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
                value = op(value, before)
            before = value
            some = True
            last -= lanes
            if votes != 0:
                going = False
    return before


@func
def _of_tiles_before(tile, states, values: template(), model, op: template()):
    """Return the total of the tiles before a tile (not the first), by one thread."""
    at, some, going = tile - 1, False, True
    before = model
    while going:
        word = forms.volatile_load(states[at])
        state = _state_of(word)
        if state != _NOTHING:
            if forms.static(states.dtype is not u64):
                grid.mem_fence()
            value = _published(word, values, at, model)
            if some:
                value = op(value, before)
            before = value
            some = True
            at -= 1
            going = state != _WHOLE
    return before


@func
def _load_tile(x, staged, begin, have, t, each: template()):
    if have == forms.static(THREADS * each):
        for k in forms.static(range(each)):  # all loads are in flight at once
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
def _look_back(t, tile, own, states, values: template(), before_tile, op: template()):
    """Publish the total of a tile, and store the total of the tiles before it in ``before_tile``. The first threads of the group call
    this."""
    if t == 0 and tile == 0:
        _publish(states, values, tile, own, _WHOLE)
    elif t == 0:
        _publish(states, values, tile, own, _TOTAL)
    if tile > 0:
        before = own
        if forms.static(reads_subgroups()):
            before = _of_tiles_before_by_lanes(tile, states, values, own, op)
        else:
            before = _of_tiles_before(tile, states, values, own, op)
        if t == 0:
            before_tile[0] = before
            _publish(states, values, tile, op(before, own), _WHOLE)


@kernel
def _scan_tiles(
    x: template(), out: template(), states: template(), tickets: template(), totals: template(), prefixes: template(), n: int, tiles: int,
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
            values = forms.static({_TOTAL: totals, _WHOLE: prefixes})
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
        block.sync()  # before the next tile uses the shared memory


def scan_in_one_pass(x: Array, out: Array, n: int, op: object, start: object) -> None:
    """Scan as `scan_passes.scan`, in one pass."""
    each = _BYTES // max(x.dtype.size, 4)
    tiles = -(-n // (THREADS * each))
    packed = x.dtype.bits == 32 and session().device.caps.atomic_int64
    states, ticket = scratch("states", u64 if packed else i32, tiles), scratch("ticket", i32, 1)
    _forget(states, ticket, tiles)
    totals, prefixes = (scratch(use, x.dtype, 1 if packed else tiles) for use in ("totals of tiles", "prefixes"))
    _scan_tiles(x, out, states, ticket, totals, prefixes, n, tiles, each, op, start)

"""Scans over the elements of a thread and over the threads of a group."""

# mypy: disable-error-code="no-untyped-def, valid-type"
from __future__ import annotations

from spirograd.algorithms.checks_and_scratch import reads_subgroups
from spirograd.lang import arithmetic, forms
from spirograd.lang.frontend.func import func
from spirograd.simt import block, subgroup
from spirograd.types import template

THREADS = 256
BANKS = 32  # banks of shared memory


def padded_length(n: int) -> int:
    """Return the length of a shared array for ``n`` elements with `padded` places."""
    return n + n // BANKS


@func
def padded(k):
    """Return the place of element ``k`` of a tile, which avoids bank conflicts of threads that each read consecutive elements."""
    return k + k // BANKS


@func
def scan_elements(staged, first, end, before, some, op: template(), start: template()):
    """Scan the elements of one thread in place, beginning from ``before``, the total of earlier elements, if there are ``some``. ``start``:
    as for `scan`."""
    for k in range(first, end):
        value = staged[padded(k)]
        if some:
            value = op(before, value)
        if forms.static(start is None):
            staged[padded(k)] = value
        elif some:
            staged[padded(k)] = before
        else:
            staged[padded(k)] = arithmetic.cast(start, value.dtype)
        before = value
        some = True


@func
def scan_of_block(value, shared, op: template()):
    """Return the inclusive scan over a block of at most `THREADS` threads. It is also in ``shared``, an array with an element for each."""
    t = block.thread_idx()
    if forms.static(reads_subgroups()):
        value = _scan_by_subgroups(value, shared, t, op)
    else:
        shared[t] = value
        block.sync()
        for step in forms.static(range(THREADS.bit_length() - 1)):
            other = shared[arithmetic.max(t - (1 << step), 0)]
            if t >= 1 << step:
                value = op(other, value)
            block.sync()
            shared[t] = value
            block.sync()
    return value


@func
def _scan_by_subgroups(value, shared, t, op: template()):
    lanes = forms.static(subgroup.group_size())
    lane = t % lanes
    for step in forms.static(range(lanes.bit_length() - 1)):
        other = subgroup.shuffle(value, arithmetic.max(lane - (1 << step), 0))
        if lane >= 1 << step:
            value = op(other, value)
    shared[t] = value
    block.sync()
    if t >= lanes:
        before = shared[lanes - 1]
        for number in range(1, t // lanes):
            before = op(before, shared[number * lanes + lanes - 1])
        value = op(before, value)
    block.sync()
    shared[t] = value
    block.sync()
    return value

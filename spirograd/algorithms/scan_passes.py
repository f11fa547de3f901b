"""The kernels of scans and reductions, and the order in which they run.

Elements are divided into chunks (tiles of a workgroup on GPUs, long ranges on CPUs): each is reduced, the results are scanned, and each
chunk is scanned from there (G. Blelloch: Prefix Sums and Their Applications, 1990). `look_back_scan` is for devices on which workgroups may
wait for each other.
"""

from __future__ import annotations

from spirograd.algorithms.checks_and_scratch import Array, chunks_of, group_threads, has_groups, runs_side_by_side, scratch
from spirograd.algorithms.group_scans import THREADS, padded, padded_length, scan_elements, scan_of_block
from spirograd.algorithms.look_back_scan import scan_in_one_pass
from spirograd.base.errors import SpirogradValueError
from spirograd.base.protocols import Scalar
from spirograd.ir.ops import identity
from spirograd.lang import arithmetic, forms
from spirograd.lang.frontend.decorators import kernel
from spirograd.lang.frontend.func import func
from spirograd.simt import block
from spirograd.types import template

_EACH = 8


def _threads() -> int:
    """Return the number of threads of a workgroup, each of which scans `_EACH` elements."""
    return group_threads(THREADS)


@func
def add(a, b):
    return a + b


@func
def mul(a, b):
    return a * b


@func
def min_of(a, b):
    return arithmetic.min(a, b)


@func
def max_of(a, b):
    return arithmetic.max(a, b)


NAMED = {"add": add, "mul": mul, "min": min_of, "max": max_of}

# mypy: disable-error-code="no-untyped-def, valid-type"


@kernel
def _reduce_chunks(x: template(), totals: template(), n: int, length: int, count: int, op: template()):
    for c in range(count):
        total = x[c * length]
        for k in range(c * length + 1, arithmetic.min((c + 1) * length, n)):
            total = op(total, x[k])
        totals[c] = total


@kernel
def _scan_few(x: template(), n: int, op: template()):
    forms.loop_config(serialize=True)
    for k in range(1, n):
        x[k] = op(x[k - 1], x[k])


@kernel
def _scan_chunks(x: template(), out: template(), totals: template(), n: int, length: int, count: int, op: template(), start: template()):
    for c in range(count):
        k = c * length
        total = x[k]
        if c > 0:
            total = op(totals[c - 1], total)
        if forms.static(start is None):
            out[k] = total
        else:
            out[k] = arithmetic.cast(start, out.dtype)
            if c > 0:
                out[k] = totals[c - 1]
        for j in range(k + 1, arithmetic.min(k + length, n)):
            before = total
            total = op(total, x[j])
            if forms.static(start is None):
                out[j] = total
            else:
                out[j] = before


@kernel
def _reduce_tiles(x: template(), totals: template(), n: int, threads: int, op: template()):
    size = forms.static(_threads())
    forms.loop_config(block_dim=size)
    for i in range(threads):
        shared = block.SharedArray(size, x.dtype)
        first = i * _EACH
        total = x[first]
        for k in range(first + 1, arithmetic.min(first + _EACH, n)):
            total = op(total, x[k])
        total = scan_of_block(total, shared, op)
        if block.thread_idx() == size - 1 or i == threads - 1:
            totals[i // size] = total


@kernel
def _scan_tiles(x: template(), out: template(), totals: template(), n: int, threads: int, op: template(), start: template()):
    size = forms.static(_threads())
    length = forms.static(_threads() * _EACH)
    forms.loop_config(block_dim=size)
    for i in range(threads):
        shared = block.SharedArray(size, x.dtype)
        staged = block.SharedArray(forms.static(padded_length(_threads() * _EACH)), x.dtype)
        t, tile = block.thread_idx(), i // size
        live = arithmetic.min(size, threads - tile * size)
        have = arithmetic.min(length, n - tile * length)
        for k in range(-(-(have - t) // live)):  # neighbouring threads load and store neighbouring elements
            staged[padded(k * live + t)] = x[tile * length + k * live + t]
        block.sync()
        first, last = t * _EACH, arithmetic.min((t + 1) * _EACH, have)
        total = staged[padded(first)]
        for k in range(first + 1, last):
            total = op(total, staged[padded(k)])
        scan_of_block(total, shared, op)
        before = total  # the total before the elements of this thread
        if t > 0:
            before = shared[t - 1]
            if tile > 0:
                before = op(totals[tile - 1], before)
        elif tile > 0:
            before = totals[tile - 1]
        scan_elements(staged, first, last, before, tile > 0 or t > 0, op, start)
        block.sync()
        for k in range(-(-(have - t) // live)):
            out[tile * length + k * live + t] = staged[padded(k * live + t)]


def scan(x: Array, out: Array, n: int, op: object, start: object, level: int = 0) -> None:
    """Set the first ``n`` elements of ``out`` to a scan of those of ``x``: an inclusive one if ``start`` is None, else an exclusive one
    that begins with it."""
    if n == 0:
        return
    if not has_groups():
        length, count = chunks_of(n)
        totals = scratch(f"totals{level}", x.dtype, count)
        _reduce_chunks(x, totals, n, length, count, op)
        _scan_few(totals, count, op)
        _scan_chunks(x, out, totals, n, length, count, op, start)
        return
    threads, tiles = -(-n // _EACH), -(-n // (_threads() * _EACH))
    if tiles > 1 and x.dtype.bits >= 32 and runs_side_by_side():
        scan_in_one_pass(x, out, n, op, start)
        return
    totals = scratch(f"totals{level}", x.dtype, tiles)
    if tiles > 1:
        _reduce_tiles(x, totals, n, threads, op)
        scan(totals, totals, tiles, op, None, level + 1)
    _scan_tiles(x, out, totals, n, threads, op, start)


@kernel
def _store_first(x: template(), out: template()):
    if forms.static(len(out.shape) == 0):
        out[None] = x[0]
    else:
        out[0] = x[0]


def reduced(x: Array, n: int, op: object, combine: object, out: Array | None) -> Scalar | None:
    """Combine the first ``n`` elements of ``x``; return a number, or None if it is written to ``out``. ``op``: the name of ``combine``, or
    the function."""
    if n == 0:
        if not isinstance(op, str):
            raise SpirogradValueError("`x` has no elements, and the identity of a function is unknown: check the length first")
        if out is None:
            return identity(op, x.dtype)
        out.fill(identity(op, x.dtype))
        return None
    level = 0
    while n > 1:
        if has_groups():
            count = -(-n // (_threads() * _EACH))
            totals = scratch(f"totals{level}", x.dtype, count)
            _reduce_tiles(x, totals, n, -(-n // _EACH), combine)
        else:
            length, count = chunks_of(n)
            if count == 1:
                length = n
            totals = scratch(f"totals{level}", x.dtype, count)
            _reduce_chunks(x, totals, n, length, count, combine)
        x, n, level = totals, count, level + 1
    if out is None:
        number: Scalar = x[0]
        return number
    _store_first(x, out)
    return None

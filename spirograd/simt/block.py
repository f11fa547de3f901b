"""Blocks: groups of threads with barriers and shared arrays.

All threads of a block, or none, must reach `sync` and the functions that contain it (`reduce_add`, `sync_any_nonzero` and others): a
condition around it must have the same value in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from spirograd.base.dtypes import VOID, i32
from spirograd.ir import ops as ir
from spirograd.lang import arithmetic, groups, scalar
from spirograd.lang.forms import static
from spirograd.lang.frontend.func import func
from spirograd.lang.groups import SharedArray, global_thread_idx
from spirograd.lang.scalar import Value, as_value
from spirograd.simt import grid
from spirograd.simt.combining import Combine, identity, named
from spirograd.types import template


def sync() -> None:
    """Wait for all threads of the block; their writes to shared and global memory are visible afterwards."""
    groups.current("block.sync")
    scalar.builder().emit(ir.workgroup_barrier, type=VOID)


def mem_fence() -> None:
    """Order the memory accesses of this thread for the other threads of its block, without waiting for them."""
    grid.mem_fence()


mem_sync = mem_fence


def thread_idx() -> Value:
    """Return the number of this thread in its block, an i32."""
    return groups.thread_number(groups.current("block.thread_idx"))


# --- what is built on them ---------------------------------------------------------------------------------------------------


def _load(array: SharedArray, index: Value) -> Value:
    return Value(scalar.builder().load(array.ref, index.op))


def _store(array: SharedArray, index: Value, value: Value) -> None:
    scalar.builder().store(array.ref, index.op, value.op)


def _spread(value: object, dtype: object, combine: Combine) -> tuple[Value, Value, Value]:
    """Return the inclusive scan of ``value`` over the block, that of the previous thread, and the number of the thread: log2(n) steps in
    shared memory (Hillis and Steele, 1986)."""
    scope = groups.current("a scan of the block")
    mine = scalar.cast(value, arithmetic.as_dtype(dtype)) if dtype is not None else as_value(value)
    array = SharedArray(scope.size, mine.dtype)
    me = groups.thread_number(scope)
    zero = scalar.constant(0, i32)
    _store(array, me, mine)
    sync()
    for step in range(math.ceil(math.log2(scope.size))):
        offset = scalar.constant(1 << step, i32)
        source = arithmetic.max(me - offset, zero)
        before = _load(array, source)
        mine = arithmetic.select(me >= offset, combine(before, mine), mine)
        sync()
        _store(array, me, mine)
        sync()
    before = _load(array, arithmetic.max(me - 1, zero))
    sync()
    return mine, before, me


def _total(value: object, dtype: object, combine: Combine) -> Value:
    """Combine all values of the block, by a tree in shared memory; return the result in every thread."""
    scope = groups.current("a reduction of the block")
    mine = scalar.cast(value, arithmetic.as_dtype(dtype)) if dtype is not None else as_value(value)
    array = SharedArray(scope.size, mine.dtype)
    me, live = groups.thread_number(scope), groups.threads(scope)
    _store(array, me, mine)
    sync()
    half = 1 << max(math.ceil(math.log2(scope.size)) - 1, 0)
    while half and scope.size > 1:
        offset = scalar.constant(half, i32)
        partner = me + offset
        takes = arithmetic.logical_and(me < offset, partner < live)
        other = _load(array, arithmetic.select(takes, partner, me))
        mine = arithmetic.select(takes, combine(mine, other), mine)
        sync()
        _store(array, me, mine)
        sync()
        half //= 2
    total = _load(array, scalar.constant(0, i32))
    sync()
    return total


def _predicate(predicate: object) -> Value:
    return scalar.cast(as_value(predicate) != 0, i32)


def sync_all_nonzero(predicate: object) -> Value:
    """Wait for the block; return 1 if ``predicate`` is nonzero in all of its threads, else 0."""
    return _total(_predicate(predicate), i32, named("and"))


def sync_any_nonzero(predicate: object) -> Value:
    """Wait for the block; return 1 if ``predicate`` is nonzero in any of its threads, else 0."""
    return _total(_predicate(predicate), i32, named("or"))


def sync_count_nonzero(predicate: object) -> Value:
    """Wait for the block; return the number of its threads in which ``predicate`` is nonzero."""
    return _total(_predicate(predicate), i32, named("add"))


# Arguments of the functions below.
_OPTIONS = "``dtype``: convert ``value`` to this type first. ``block_dim`` is accepted and ignored: the loop determines it."


def _reduction(kind: str) -> Callable[..., Value]:
    def reduce(value: object, block_dim: object = None, dtype: object = None) -> Value:
        return _total(value, dtype, named(kind))

    reduce.__doc__ = f"Combine the ``value`` of all threads of the block by `{kind}`; return the result in every thread. {_OPTIONS}"
    reduce.__name__ = f"reduce_{kind}"
    return reduce


def _inclusive(kind: str) -> Callable[..., Value]:
    def scan(value: object, block_dim: object = None, dtype: object = None) -> Value:
        return _spread(value, dtype, named(kind))[0]

    scan.__doc__ = f"Combine the ``value`` of this thread of the block and of the threads before it by `{kind}`. {_OPTIONS}"
    scan.__name__ = f"inclusive_{kind}"
    return scan


def _exclusive(kind: str) -> Callable[..., Value]:
    def scan(value: object, block_dim: object = None, dtype: object = None) -> Value:
        mine, before, me = _spread(value, dtype, named(kind))
        return as_value(arithmetic.select(me > 0, before, identity(kind, mine.dtype)))

    doc = f"Combine the ``value`` of the threads of the block before this one by `{kind}`; in the first, return the identity."
    scan.__doc__ = f"{doc} {_OPTIONS}"
    scan.__name__ = f"exclusive_{kind}"
    return scan


# --- of any associative operation --------------------------------------------------------------------------------------------


def _steps(block_dim: int) -> list[int]:
    return [1 << k for k in range(math.ceil(math.log2(block_dim)))]


def _threads() -> Value:
    return groups.threads(groups.current("a reduction of the block"))


@func
def reduce_all(value, block_dim: template(), op: template(), dtype: template()):  # type: ignore[no-untyped-def, valid-type]
    """Combine the ``value`` of all threads of the block by ``op``, an associative `sg.func` of two values; return the result in every
    thread.

    ``dtype``: the type of the values. ``block_dim``: the size of a block, as in the loop.
    """
    array = SharedArray(block_dim, dtype)
    me, live = thread_idx(), _threads()
    array[me] = value
    sync()
    for step in static(_steps(block_dim)):
        if me % (2 * step) == 0 and me + step < live:
            array[me] = op(array[me], array[me + step])
        sync()
    total = array[0]
    sync()
    return total


@func
def inclusive_scan(value, block_dim: template(), op: template(), dtype: template()):  # type: ignore[no-untyped-def, valid-type]
    """Combine the ``value`` of this thread of the block and of the threads before it by ``op``; arguments as for `reduce_all`."""
    array = SharedArray(block_dim, dtype)
    me = thread_idx()
    mine = value
    array[me] = mine
    sync()
    for step in static(_steps(block_dim)):
        before = array[arithmetic.max(me - step, 0)]
        if me >= step:
            mine = op(before, mine)
        sync()
        array[me] = mine
        sync()
    return mine


@func
def exclusive_scan(value, block_dim: template(), op: template(), identity, dtype: template()):  # type: ignore[no-untyped-def, valid-type]
    """Combine the ``value`` of the threads of the block before this one by ``op``; return ``identity`` in the first thread. Other arguments
    as for `reduce_all`.
    """
    array = SharedArray(block_dim, dtype)
    me = thread_idx()
    inclusive = inclusive_scan(value, block_dim, op, dtype)
    array[me] = inclusive
    sync()
    before = array[arithmetic.max(me - 1, 0)]
    sync()
    if me == 0:
        before = identity
    return before


reduce = reduce_all
reduce_add, reduce_min, reduce_max = _reduction("add"), _reduction("min"), _reduction("max")
reduce_all_add, reduce_all_min, reduce_all_max = reduce_add, reduce_min, reduce_max
inclusive_add, inclusive_min, inclusive_max = _inclusive("add"), _inclusive("min"), _inclusive("max")
exclusive_add, exclusive_min, exclusive_max = _exclusive("add"), _exclusive("min"), _exclusive("max")

__all__ = [
    "SharedArray", "exclusive_add", "exclusive_max", "exclusive_min", "exclusive_scan", "global_thread_idx", "inclusive_add",
    "inclusive_max", "inclusive_min", "inclusive_scan", "mem_fence", "mem_sync", "reduce", "reduce_add", "reduce_all", "reduce_all_add",
    "reduce_all_max", "reduce_all_min", "reduce_max", "reduce_min", "sync", "sync_all_nonzero", "sync_any_nonzero",
    "sync_count_nonzero", "thread_idx",
]  # fmt: skip

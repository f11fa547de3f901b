"""Subgroups: consecutive threads of a block that read values of each other.

A subgroup has `group_size()` threads, a compile-time constant; the last one of a block may have fewer. As in the Taichi family, all threads
of a subgroup must reach an operation together. Reductions and scans combine the values of the threads that exist.
"""

from __future__ import annotations

from collections.abc import Callable

from spirograd.base.dtypes import VOID, DType, i32, u1, u32, u64
from spirograd.ir import ops as ir
from spirograd.lang import arithmetic, groups, scalar
from spirograd.lang.context import language_options
from spirograd.lang.scalar import Value, as_value, describe, type_error
from spirograd.simt import grid
from spirograd.simt.combining import identity, named


def group_size() -> int:
    """Return the number of threads of a subgroup: a Python number, in kernels and outside."""
    return language_options().subgroup_size


def log2_group_size() -> int:
    """Return the logarithm of `group_size`."""
    return group_size().bit_length() - 1


def invocation_id() -> Value:
    """Return the number of this thread in its subgroup, an i32."""
    number = groups.thread_number(groups.current("subgroup.invocation_id"))
    return scalar.emit(ir.irem, number, scalar.constant(group_size(), i32))


def _live() -> Value:
    """Return the number of threads of this subgroup."""
    scope = groups.current("a subgroup")
    threads, number, size = groups.threads(scope), groups.thread_number(scope), group_size()
    if threads.op.code is ir.const and threads.op.attr % size == 0:
        return scalar.constant(size, i32)
    first = number - scalar.emit(ir.irem, number, scalar.constant(size, i32))
    return as_value(arithmetic.min(threads - first, scalar.constant(size, i32)))


def elect() -> Value:
    """Return 1 in the first thread of each subgroup, 0 in the others."""
    return scalar.cast(invocation_id() == 0, i32)


def sync() -> None:
    """Wait for the threads of the subgroup; their writes to shared and global memory are visible to them afterwards."""
    wait(None)


def wait(mask: Value | None) -> None:
    """Synchronise the threads in the bits of ``mask``; None: all threads."""
    groups.current("subgroup.sync")
    named = () if mask is None else (mask.op,)
    scalar.builder().emit(ir.subgroup_barrier, *named, type=VOID)


def mem_fence() -> None:
    """Order the memory accesses of this thread for the other threads of its subgroup, without waiting for them."""
    grid.mem_fence()


barrier = sync
memory_barrier = mem_fence


# --- values of other lanes ---------------------------------------------------------------------------------------------------


def shuffle(value: object, index: object) -> Value:
    """Return the ``value`` of the thread of the subgroup with number ``index``."""
    groups.current("subgroup.shuffle")
    operand, lane = as_value(value), scalar.cast(index, i32)
    if operand.dtype is u1:
        return scalar.cast(shuffle(scalar.cast(operand, i32), lane), u1)
    return Value(scalar.builder().emit(ir.subgroup_read, operand.op, lane.op, type=operand.dtype))


def broadcast(value: object, index: object) -> Value:
    """Return the ``value`` of the thread with number ``index``, which is the same in all threads."""
    return shuffle(value, index)


def broadcast_first(value: object) -> Value:
    """Return the ``value`` of the first thread."""
    return shuffle(value, 0)


def names(mask: Value, lane: Value) -> Value:
    """Return whether a thread is in the bits of ``mask``."""
    place = scalar.cast(scalar.emit(ir.and_, lane, scalar.constant(31, i32)), u32)
    bit = scalar.emit(ir.and_, scalar.emit(ir.shr, mask, place), scalar.constant(1, u32))
    return as_value(arithmetic.logical_and(lane < 32, bit != 0))


def read_within(value: object, lane: Value, inside: Value, mask: Value | None) -> Value:
    """Return the value of ``lane`` if it is ``inside`` and in the bits of ``mask``; else the thread's own value."""
    own = as_value(value)
    if mask is not None:
        inside = as_value(arithmetic.logical_and(inside, names(mask, lane)))
    return as_value(arithmetic.select(inside, shuffle(own, arithmetic.select(inside, lane, invocation_id())), own))


def read_up(value: object, offset: object, mask: Value | None) -> Value:
    """Do `shuffle_up` in the threads in the bits of ``mask``; None: in all."""
    lane = invocation_id() - scalar.cast(offset, i32)
    return read_within(value, lane, lane >= 0, mask)


def read_down(value: object, offset: object, mask: Value | None) -> Value:
    """Do `shuffle_down` in the threads in the bits of ``mask``; None: in all."""
    lane = invocation_id() + scalar.cast(offset, i32)
    return read_within(value, lane, lane < _live(), mask)


def read_xor(value: object, bits: object, mask: Value | None) -> Value:
    """Do `shuffle_xor` in the threads in the bits of ``mask``; None: in all."""
    lane = scalar.emit(ir.xor, invocation_id(), scalar.cast(bits, i32))
    return read_within(value, lane, lane < _live(), mask)


def shuffle_up(value: object, offset: object) -> Value:
    """Return the ``value`` of the thread whose number is ``offset`` less, or the thread's own value if there is none."""
    return read_up(value, offset, None)


def shuffle_down(value: object, offset: object) -> Value:
    """Return the ``value`` of the thread whose number is ``offset`` more, or the thread's own value if there is none."""
    return read_down(value, offset, None)


def shuffle_xor(value: object, mask: object) -> Value:
    """Return the ``value`` of the thread whose number differs in the bits of ``mask``, or the thread's own value if there is none."""
    return read_xor(value, mask, None)


# --- reductions and scans ----------------------------------------------------------------------------------------------------


def _steps(log2_size: object) -> int:
    steps = scalar.known(log2_size)
    if not isinstance(steps, int) or not 0 <= steps <= log2_group_size():
        problem = f"`log2_size` is a compile-time integer from 0 to {log2_group_size()}, got {describe(steps)}"
        raise type_error(problem, "pass a literal, or an argument annotated `sg.template()`")
    return steps


def _by_instruction(value: Value, steps: int) -> bool:
    """Return whether an instruction of the device may combine ``value``: integers, for which the order does not matter, of full subgroups
    (some drivers miscount others)."""
    full = groups.current("a subgroup").size % group_size() == 0
    return value.dtype in (i32, u32) and steps == log2_group_size() and full


def _total(kind: str, value: object, steps: int) -> Value:
    """Combine the values of 2 ** ``steps`` threads by a butterfly of exchanges; return the result in each of them."""
    combine, mine, lane, live = named(kind), as_value(value), invocation_id(), _live()
    if kind in language_options().subgroup_reductions and _by_instruction(mine, steps):
        return scalar.emit(ir.subgroup_reduce, mine, attr=kind, t=mine.dtype)
    if live.op.code is ir.const:
        for step in range(steps):
            partner = scalar.emit(ir.xor, lane, scalar.constant(1 << step, i32))
            mine = combine(mine, shuffle(mine, partner))
        return mine
    # Some threads may be missing: combine downwards, and read the result of the first.
    within = scalar.emit(ir.and_, lane, scalar.constant((1 << steps) - 1, i32))
    for step in reversed(range(steps)):
        partner = lane + (1 << step)
        takes = arithmetic.logical_and(within < (1 << step), partner < live)
        mine = arithmetic.select(takes, combine(mine, shuffle(mine, arithmetic.select(takes, partner, lane))), mine)
    return shuffle(mine, lane - within)


def _scan(kind: str, value: object, steps: int) -> Value:
    combine, mine, lane = named(kind), as_value(value), invocation_id()
    if kind in language_options().subgroup_scans and _by_instruction(mine, steps):
        return scalar.emit(ir.subgroup_scan, mine, attr=kind, t=mine.dtype)
    within = scalar.emit(ir.and_, lane, scalar.constant((1 << steps) - 1, i32))
    for step in range(steps):
        takes = within >= (1 << step)
        other = shuffle(mine, arithmetic.select(takes, lane - (1 << step), lane))
        mine = arithmetic.select(takes, combine(other, mine), mine)
    return mine


def _shifted(kind: str, value: object, steps: int) -> Value:
    inclusive, lane = _scan(kind, value, steps), invocation_id()
    first = scalar.emit(ir.and_, lane, scalar.constant((1 << steps) - 1, i32)) == 0
    before = shuffle(inclusive, arithmetic.select(first, lane, lane - 1))
    return as_value(arithmetic.select(first, identity(kind, inclusive.dtype), before))


_FORMS: dict[str, tuple[Callable[[str, object, int], Value], str]] = {
    "reduce": (_total, "The ``value`` of all threads combined by `{}`, in each of them."),
    "reduce_all": (_total, "The ``value`` of all threads combined by `{}`, in each of them."),
    "inclusive": (_scan, "The ``value`` of this thread and of those before it combined by `{}`."),
    "exclusive": (_shifted, "The ``value`` of the threads before this one combined by `{}`; the identity in the first one."),
}


def _function(form: str, kind: str, tiled: bool) -> Callable[..., Value]:
    apply, doc = _FORMS[form]

    def over_subgroup(value: object) -> Value:
        groups.current(f"subgroup.{form}_{kind}")
        return apply(kind, value, log2_group_size())

    def over_tile(value: object, log2_size: object) -> Value:
        groups.current(f"subgroup.{form}_{kind}_tiled")
        return apply(kind, value, _steps(log2_size))

    function: Callable[..., Value] = over_tile if tiled else over_subgroup
    function.__name__ = f"{form}_{kind}{'_tiled' if tiled else ''}"
    function.__doc__ = doc.format(kind) + (" In tiles of 2 ** ``log2_size`` threads." if tiled else "")
    return function


_NAMES = {f"{form}_{kind}{'_tiled' * tiled}": (form, kind, tiled) for form in _FORMS for kind in ir.COMBINE for tiled in (False, True)}
globals().update({name: _function(*parts) for name, parts in _NAMES.items()})


def _head(flag: object, steps: int) -> Value:
    """Return the number of the thread with which the segment of this thread begins: the last one up to this thread whose ``flag`` is
    nonzero, or the first one of the tile of 2 ** ``steps`` threads."""
    lane = invocation_id()
    begins, first = as_value(as_value(flag) != 0), scalar.emit(ir.and_, lane, scalar.constant(-(1 << steps), i32))
    if not language_options().has_ballots or group_size() > 32:
        return _scan("max", arithmetic.select(begins, lane, first), steps)
    so_far = scalar.emit(ir.shr, scalar.constant(0xFFFFFFFF, u32), scalar.cast(31 - lane, u32))
    heads = scalar.emit(ir.and_, _votes(begins), so_far)
    return as_value(arithmetic.max(31 - arithmetic.clz(heads), first))


def _segmented(kind: str, value: object, flag: object, steps: int) -> Value:
    combine, mine, lane = named(kind), as_value(value), invocation_id()
    before = lane - _head(flag, steps)  # threads of the segment before this one
    for step in range(steps):
        takes = before >= (1 << step)
        other = shuffle(mine, arithmetic.select(takes, lane - (1 << step), lane))
        mine = arithmetic.select(takes, combine(other, mine), mine)
    return mine


def _segmented_function(kind: str, tiled: bool) -> Callable[..., Value]:
    name = f"segmented_reduce_{kind}{'_tiled' * tiled}"

    def over_subgroup(value: object, head_flag: object) -> Value:
        groups.current(f"subgroup.{name}")
        return _segmented(kind, value, head_flag, log2_group_size())

    def over_tile(value: object, head_flag: object, log2_size: object) -> Value:
        groups.current(f"subgroup.{name}")
        return _segmented(kind, value, head_flag, _steps(log2_size))

    function: Callable[..., Value] = over_tile if tiled else over_subgroup
    function.__name__ = name
    function.__doc__ = (
        f"The ``value`` of this thread and of those before it in its segment combined by `{kind}`: the last thread of a segment has the "
        "result of all. A segment begins at each thread whose ``head_flag`` is nonzero, and with each "
        + ("tile of 2 ** ``log2_size`` threads." if tiled else "subgroup.")
    )
    return function


_SEGMENTED = [_segmented_function(kind, tiled) for kind in ("add", "max", "min") for tiled in (False, True)]
globals().update({function.__name__: function for function in _SEGMENTED})


# --- votes -------------------------------------------------------------------------------------------------------------------


def existing() -> Value:
    """Return a u32 with a bit for each of the first 32 threads that exist."""
    lanes, live = min(group_size(), 32), _live()
    missing = scalar.constant(lanes, i32) - arithmetic.max(arithmetic.min(live, lanes), 1)
    return scalar.emit(ir.shr, scalar.constant((1 << lanes) - 1, u32), scalar.cast(missing, u32))


def _votes(holds: Value, mask: Value | None = None) -> Value:
    """Return an integer with a bit for each thread of the subgroup, by the device's instruction; 0 for threads that do not exist, do not
    reach the vote, or are not in ``mask``."""
    groups.current("a vote of a subgroup")
    t = u32 if group_size() <= 32 else u64
    votes = Value(scalar.builder().emit(ir.subgroup_ballot, holds.op, type=t))
    return votes if mask is None else scalar.emit(ir.and_, votes, mask)


def _vote(kind: str, predicate: object, steps: int, mask: Value | None = None) -> Value:
    holds = as_value(as_value(predicate) != 0)
    if not language_options().has_ballots:
        if mask is not None:
            mine = names(mask, invocation_id())
            holds = as_value(
                arithmetic.logical_or(holds, arithmetic.logical_not(mine)) if kind == "and" else arithmetic.logical_and(holds, mine)
            )
        return _total(kind, scalar.cast(holds, i32), steps)
    votes = _votes(as_value(arithmetic.logical_not(holds)) if kind == "and" else holds, mask)
    if steps < log2_group_size():
        lane, size = invocation_id(), 1 << steps
        first = scalar.cast(scalar.emit(ir.and_, lane, scalar.constant(-size, i32)), votes.dtype)
        votes = scalar.emit(ir.and_, scalar.emit(ir.shr, votes, first), scalar.constant((1 << size) - 1, votes.dtype))
    return scalar.cast(votes == 0 if kind == "and" else votes != 0, i32)


def vote_of(kind: str, predicate: object, mask: Value | None) -> Value:
    """Return whether ``predicate`` is nonzero in all ("and") or any ("or") of the threads in the bits of ``mask``; None: of all threads."""
    return _vote(kind, predicate, log2_group_size(), mask)


def all_true(predicate: object) -> Value:
    """Return 1 if ``predicate`` is nonzero in all threads, else 0."""
    return _vote("and", predicate, log2_group_size())


def any_true(predicate: object) -> Value:
    """Return 1 if ``predicate`` is nonzero in any thread, else 0."""
    return _vote("or", predicate, log2_group_size())


def all_equal(value: object) -> Value:
    """Return 1 if all threads have the same ``value``, else 0."""
    return all_true(as_value(value) == shuffle(value, 0))


def all_equal_tiled(value: object, log2_size: object) -> Value:
    """Return `all_equal` in tiles of 2 ** ``log2_size`` threads."""
    steps = _steps(log2_size)
    first = scalar.emit(ir.and_, invocation_id(), scalar.constant(-(1 << steps), i32))
    return _vote("and", as_value(value) == shuffle(value, first), steps)


def all_true_tiled(predicate: object, log2_size: object) -> Value:
    """Return `all_true` in tiles of 2 ** ``log2_size`` threads."""
    return _vote("and", predicate, _steps(log2_size))


def any_true_tiled(predicate: object, log2_size: object) -> Value:
    """Return `any_true` in tiles of 2 ** ``log2_size`` threads."""
    return _vote("or", predicate, _steps(log2_size))


def first_ballots(predicate: object, mask: Value | None) -> Value:
    """Return `ballot_first_n` of 32 threads, of those in the bits of ``mask``; None: of all."""
    return _ballot(predicate, u32, min(32, group_size()), mask)


def _ballot(predicate: object, dtype: DType, count: int, mask: Value | None = None) -> Value:
    lane = invocation_id()
    if language_options().has_ballots:
        votes = scalar.cast(_votes(as_value(as_value(predicate) != 0), mask), dtype)
        known = (1 << count) - 1
        return votes if count == dtype.bits else scalar.emit(ir.and_, votes, scalar.constant(known, dtype))
    holds = as_value(arithmetic.logical_and(as_value(predicate) != 0, lane < count))
    if mask is not None:
        holds = as_value(arithmetic.logical_and(holds, names(mask, lane)))
    bit = scalar.emit(ir.shl, scalar.constant(1, dtype), scalar.cast(lane, dtype))
    return _total("or", arithmetic.select(holds, bit, scalar.constant(0, dtype)), log2_group_size())


def ballot(predicate: object) -> Value:
    """Return a u64 with a bit for each thread, set where ``predicate`` is nonzero."""
    if group_size() <= 32:
        return scalar.cast(_ballot(predicate, u32, group_size()), u64)
    return _ballot(predicate, u64, group_size())


ballot_full_subgroup = ballot


def ballot_first_n(predicate: object, n: object) -> Value:
    """Return a u32 with a bit for each of the first ``n`` threads (at most 32), set where ``predicate`` is nonzero."""
    count = scalar.known(n)
    if not isinstance(count, int) or not 1 <= count <= 32:
        problem = f"`n` is a compile-time integer from 1 to 32, got {describe(count)}"
        raise type_error(problem, "pass a literal, or an argument annotated `sg.template()`")
    return _ballot(predicate, u32, min(count, group_size()))


def _mask(how: str, compare: Callable[[Value, Value], Value]) -> Callable[[object], Value]:
    def lanes(lane_id: object) -> Value:
        bit = scalar.emit(ir.shl, scalar.constant(1, u32), scalar.cast(lane_id, u32))
        return compare(bit, bit - 1)

    lanes.__doc__ = f"A u32 with a bit for each of the first 32 threads: set where the number of the thread {how} ``lane_id``."
    return lanes


lanemask_eq = _mask("is", lambda bit, below: bit)
lanemask_lt = _mask("is less than", lambda bit, below: below)
lanemask_le = _mask("is at most", lambda bit, below: below | bit)
lanemask_gt = _mask("is greater than", lambda bit, below: ~(below | bit))
lanemask_ge = _mask("is at least", lambda bit, below: ~below)

__all__ = [
    "all_equal", "all_equal_tiled", "all_true", "all_true_tiled", "any_true", "any_true_tiled", "ballot", "ballot_first_n",
    "ballot_full_subgroup", "barrier", "broadcast", "broadcast_first", "elect", "group_size", "invocation_id", "lanemask_eq",
    "lanemask_ge", "lanemask_gt", "lanemask_le", "lanemask_lt", "log2_group_size", "mem_fence", "memory_barrier", "shuffle",
    "shuffle_down", "shuffle_up", "shuffle_xor", "sync",
    *_NAMES, *(function.__name__ for function in _SEGMENTED),
]  # fmt: skip

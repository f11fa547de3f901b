"""The operations of `subgroup` under CUDA's names.

Each ``mask`` has a bit for each lane that takes part: `sg.u32(0xFFFFFFFF)`, another literal, or a number that is the same in these lanes,
such as `active_mask()`. All these lanes must reach the operation together. Other lanes have no vote, and a lane that reads one of them gets
its own value.
"""

from __future__ import annotations

from collections.abc import Callable

from spirograd.base.dtypes import DType, i32, u32
from spirograd.ir import ops as ir
from spirograd.lang import arithmetic, scalar
from spirograd.lang.context import language_options
from spirograd.lang.scalar import Value, as_value, describe, type_error
from spirograd.simt import subgroup

_ALL = 0xFFFFFFFF


def _named(mask: object) -> Value | None:
    """Return the lanes of ``mask`` that exist; None for all lanes."""
    known = scalar.known(mask)
    if isinstance(known, int) and known & _ALL == _ALL:
        return None
    value = scalar.constant(known & _ALL, u32) if isinstance(known, int) else as_value(mask)
    if not isinstance(value.dtype, DType) or not value.dtype.is_int:
        raise type_error(f"the mask of a warp operation is an integer, got {describe(mask)}", "pass `sg.u32(0xFFFFFFFF)` for all lanes")
    if isinstance(known, int) and known == 0:
        raise type_error("the mask of a warp operation names no lane", "pass `sg.u32(0xFFFFFFFF)` for all lanes")
    options = language_options()
    if subgroup.group_size() > 32:
        problem = f"masks name 32 lanes, and subgroups of this device have {subgroup.group_size()}"
        raise type_error(problem, "pass `sg.u32(0xFFFFFFFF)`, and call it in all threads")
    if options.reads_subgroups and not options.has_ballots:
        raise type_error("this target has no warp operations of some lanes", "pass `sg.u32(0xFFFFFFFF)`, and call it in all threads")
    return scalar.emit(ir.and_, scalar.cast(value, u32), subgroup.existing())


def _masked(function: Callable[[object, object, Value | None], Value], name: str, whose: str) -> Callable[[object, object, object], Value]:
    def shuffle(mask: object, val: object, offset: object) -> Value:
        return function(val, offset, _named(mask))

    shuffle.__name__ = name
    shuffle.__doc__ = f"The ``val`` of the lane {whose}; the own one where ``mask`` names no such lane."
    return shuffle


def _of_lane(value: object, lane: object, mask: Value | None) -> Value:
    if mask is None:
        return subgroup.shuffle(value, lane)
    number = scalar.cast(lane, i32)
    return subgroup.read_within(value, number, as_value(arithmetic.logical_and(number >= 0, number < subgroup.group_size())), mask)


shfl_sync_i32 = shfl_sync_f32 = _masked(_of_lane, "shfl_sync", "with number ``offset``")
shfl_up_i32 = shfl_up_f32 = _masked(subgroup.read_up, "shfl_up", "whose number is ``offset`` less")
shfl_down_i32 = shfl_down_f32 = _masked(subgroup.read_down, "shfl_down", "whose number is ``offset`` more")
shfl_xor_i32 = shfl_xor_f32 = _masked(subgroup.read_xor, "shfl_xor", "whose number differs in the bits of ``offset``")


def all_nonzero(mask: object, predicate: object) -> Value:
    """Return 1 if ``predicate`` is nonzero in all lanes of ``mask``, else 0."""
    return subgroup.vote_of("and", predicate, _named(mask))


def any_nonzero(mask: object, predicate: object) -> Value:
    """Return 1 if ``predicate`` is nonzero in any lane of ``mask``, else 0."""
    return subgroup.vote_of("or", predicate, _named(mask))


def unique(mask: object, predicate: object) -> Value:
    """Return 1 if ``predicate`` is nonzero in all lanes of ``mask``, or in none, else 0."""
    named = _named(mask)
    holds = scalar.cast(as_value(predicate) != 0, i32)
    if named is None:
        return subgroup.all_equal(holds)
    return scalar.emit(ir.or_, subgroup.vote_of("and", holds, named), subgroup.vote_of("and", 1 - holds, named))


def ballot(predicate: object) -> Value:
    """Return a u32 with a bit for each of the first 32 lanes, set where ``predicate`` is nonzero."""
    return subgroup.first_ballots(predicate, None)


def active_mask() -> Value:
    """Return the lanes that reach this call together, as a u32: in a branch, those that take it."""
    return subgroup.first_ballots(1, None)


def sync(mask: object) -> None:
    """Wait for the lanes of ``mask``; their writes to shared and global memory are visible to them afterwards."""
    subgroup.wait(_named(mask))


def match_all(mask: object, val: object) -> Value:
    """Return 1 if all lanes of ``mask`` have the same ``val``, else 0."""
    named = _named(mask)
    if named is None:
        return subgroup.all_equal(val)
    first = scalar.cast(scalar.emit(ir.ctz, named), i32)
    return subgroup.vote_of("and", scalar.cast(as_value(val) == subgroup.shuffle(val, first), i32), named)


def match_any(mask: object, value: object) -> Value:
    """Return the lanes of ``mask``, as a u32, whose ``value`` is that of this one."""
    lanes = scalar.constant(0, u32)
    for lane in range(min(subgroup.group_size(), 32)):
        same = scalar.cast(as_value(value) == subgroup.shuffle(value, lane), u32)
        lanes = lanes | same << lane
    return lanes & subgroup.first_ballots(1, _named(mask))


__all__ = [
    "active_mask", "all_nonzero", "any_nonzero", "ballot", "match_all", "match_any", "shfl_down_f32", "shfl_down_i32", "shfl_sync_f32",
    "shfl_sync_i32", "shfl_up_f32", "shfl_up_i32", "shfl_xor_f32", "shfl_xor_i32", "sync", "unique",
]  # fmt: skip

"""CUDA's names for what `subgroup` does. Each ``mask`` of lanes has to name all lanes of the subgroup: others are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spirograd.base.dtypes import i32, u32
from spirograd.lang import arithmetic, scalar
from spirograd.lang.scalar import Value, type_error
from spirograd.simt import subgroup

_ALL = 0xFFFFFFFF


def _check(mask: Any) -> None:
    known = scalar.known(mask)
    if not isinstance(known, int) or known & _ALL != _ALL:
        raise type_error("the mask of a warp operation has to name all lanes", "pass `sg.u32(0xFFFFFFFF)`, and call it in all threads")


def _masked(function: Callable[[Any, Any], Value], name: str) -> Callable[[Any, Any, Any], Value]:
    def shuffle(mask: Any, val: Any, offset: Any) -> Value:
        _check(mask)
        return function(val, offset)

    shuffle.__name__ = name
    shuffle.__doc__ = f"`subgroup.{function.__name__}` of ``val`` and ``offset``; ``mask``: all lanes."
    return shuffle


shfl_sync_i32 = shfl_sync_f32 = _masked(subgroup.shuffle, "shfl_sync")
shfl_up_i32 = shfl_up_f32 = _masked(subgroup.shuffle_up, "shfl_up")
shfl_down_i32 = shfl_down_f32 = _masked(subgroup.shuffle_down, "shfl_down")
shfl_xor_i32 = shfl_xor_f32 = _masked(subgroup.shuffle_xor, "shfl_xor")


def all_nonzero(mask: Any, predicate: Any) -> Value:
    """1 if ``predicate`` is nonzero in all lanes, else 0. ``mask``: all lanes."""
    _check(mask)
    return subgroup.all_true(predicate)


def any_nonzero(mask: Any, predicate: Any) -> Value:
    """1 if ``predicate`` is nonzero in any lane, else 0. ``mask``: all lanes."""
    _check(mask)
    return subgroup.any_true(predicate)


def unique(mask: Any, predicate: Any) -> Value:
    """1 if ``predicate`` is nonzero in all lanes, or in none, else 0. ``mask``: all lanes."""
    _check(mask)
    return subgroup.all_equal(scalar.cast(scalar.as_value(predicate) != 0, i32))


def ballot(predicate: Any) -> Value:
    """A u32 with a bit for each of the first 32 lanes: set where ``predicate`` is nonzero."""
    return subgroup.ballot_first_n(predicate, 32)


def active_mask() -> Value:
    """The lanes that exist, as a u32."""
    return ballot(1)


def sync(mask: Any) -> None:
    """Wait for the lanes of the warp. ``mask``: all lanes."""
    _check(mask)
    subgroup.sync()


def match_all(mask: Any, val: Any) -> Value:
    """1 if all lanes have the same ``val``, else 0. ``mask``: all lanes."""
    _check(mask)
    return subgroup.all_equal(val)


def match_any(mask: Any, value: Any) -> Value:
    """The lanes, as a u32, whose ``value`` is that of this one. ``mask``: all lanes."""
    _check(mask)
    found = scalar.constant(0, u32)
    for lane in range(min(subgroup.group_size(), 32)):
        theirs = ballot(scalar.as_value(value) == subgroup.shuffle(value, lane))
        found = arithmetic.select(subgroup.invocation_id() == lane, theirs, found)
    return found


__all__ = [
    "active_mask", "all_nonzero", "any_nonzero", "ballot", "match_all", "match_any", "shfl_down_f32", "shfl_down_i32", "shfl_sync_f32",
    "shfl_sync_i32", "shfl_up_f32", "shfl_up_i32", "shfl_xor_f32", "shfl_xor_i32", "sync", "unique",
]  # fmt: skip

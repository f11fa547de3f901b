"""The last uses of values on every path: code generators may overwrite the memory of a value that is dead.

A backward liveness analysis over structured control flow. The live-ins of a loop are live in all its iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Union

from spirograd.base.dtypes import Type
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Region

# A value: the operation, or (operation, number) for results of control operations, since several `result` operations may name one result.
_Key = Union[Op, tuple[Op, int]]


class LastUses:
    """The last uses, in the regions given to `scan`, of values whose type is ``tracked``."""

    def __init__(self, tracked: Callable[[Type], bool]) -> None:
        self._tracked = tracked
        self._last: set[tuple[Op, _Key]] = set()
        self._free: dict[Region, set[_Key]] = {}

    def is_last(self, user: Op, value: Op) -> bool:
        """Return whether ``value`` is dead once ``user`` has run. ``user`` is an operation that takes it, an `if` or `outlined` whose
        regions take it, or a `yield` (then: once the operation that owns its region has run)."""
        return (user, _key_of(value)) in self._last

    def scan(self, region: Region) -> None:
        """Find the last uses in ``region``, after which no value is live."""
        if any(map(self._tracked, {a.type for op in region.walk() for a in op.args})):
            self._scan(region, set())

    def _keys(self, args: Iterable[Op]) -> list[_Key]:
        return [_key_of(a) for a in args if self._tracked(a.type)]

    def _scan(self, region: Region, live: set[_Key]) -> None:
        """Find the last uses in ``region``, after which the values in ``live`` are."""
        live = set(live)
        for op in reversed(region.ops):
            if op.regions:
                self._control(op, live)
            keys = self._keys(op.args)
            self._last.update((op, key) for key in keys if key not in live and keys.count(key) == 1)
            live.update(keys)

    def _control(self, op: Op, live: set[_Key]) -> None:
        free = set().union(*[self._live_ins(region) for region in op.regions])
        # The live-ins of a loop are used again in its next iteration.
        within = live | free
        if op.code in (ops.if_, ops.outlined):
            within = live
            self._last.update((op, key) for key in free - live)
        for number, region in enumerate(op.regions):
            # The condition of a `while` must leave the loop-carried values as they are, for the body.
            keep = set(region.params) if op.code is ops.while_ and number == 0 else set()
            self._scan(region, within | keep)
        live |= free

    def _live_ins(self, region: Region) -> set[_Key]:
        """Return the values that ``region`` uses and does not define. `Region.live_ins` does not know that several operations name the same
        result."""
        if region not in self._free:
            used: set[_Key] = set()
            for op in region.ops:
                used.update(self._keys(op.args))
                for inner in op.regions:
                    used |= self._live_ins(inner)
            defined = {*region.params, *region.ops}
            self._free[region] = {key for key in used if (key[0] if isinstance(key, tuple) else key) not in defined}
        return self._free[region]


def _key_of(op: Op) -> _Key:
    return (op.args[0], op.attr) if op.code is ops.result else op

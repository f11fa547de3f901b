"""Large vectors as arrays on the stack: where they live, and which updates may happen in place.

A vector of more than `LARGEST_REGISTER` elements is a pointer to stack memory. No two values that are live at the same time share
memory, so `insert` is a store if its operand is not used afterwards, else a copy and a store; a carried vector keeps one place for all
iterations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spirograd.base.dtypes import Type, Vec
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Region
from spirograd.llvmgen.module import Lanes

# Longer ones are five times as fast on the stack: LLVM spills a whole register for every run-time index. Where indices turn out
# constant, it takes arrays apart into scalars again.
LARGEST_REGISTER = 2
# A value: the operation, or for results of control operations (operation, number), since several `result` operations may name one result.
Key = Any


def is_array(t: Type) -> bool:
    """Whether values of this type live in stack memory."""
    return isinstance(t, Vec) and t.n > LARGEST_REGISTER and not isinstance(t, Lanes)


def key_of(op: Op) -> Key:
    return (op.args[0], op.attr) if op.code is ops.result else op


def _keys(args: Iterable[Op]) -> list[Key]:
    return [key_of(a) for a in args if is_array(a.type)]


def _free(region: Region) -> set[Key]:
    """The arrays that ``region`` uses and does not define."""
    defined = set(region.params)
    used: set[Key] = set()
    for op in region.walk():
        defined.add(op)
        for inner in op.regions:
            defined.update(inner.params)
        used.update(_keys(op.args))
    return {key for key in used if (key[0] if isinstance(key, tuple) else key) not in defined}


class LastUses:
    """Which uses of arrays are the last ones, on every path, in the regions given to `scan`."""

    def __init__(self) -> None:
        self._last: set[tuple[Op, Key]] = set()

    def is_last(self, user: Op, value: Op) -> bool:
        """Whether ``value`` is dead once ``user`` has run (a `yield`: once the operation that owns its region has)."""
        return (user, key_of(value)) in self._last

    def scan(self, region: Region) -> None:
        """Note the last uses in ``region``."""
        if any(is_array(a.type) for op in region.walk() for a in op.args):
            self._scan(region, set())

    def _scan(self, region: Region, live: set[Key]) -> None:
        """The same, if ``live`` is still needed afterwards."""
        live = set(live)
        for op in reversed(region.ops):
            if op.regions:
                self._control(op, live)
            keys = _keys(op.args)
            self._last.update((op, key) for key in keys if key not in live and keys.count(key) == 1)
            live.update(keys)

    def _control(self, op: Op, live: set[Key]) -> None:
        free = set().union(*(_free(region) for region in op.regions))
        # What a loop takes from outside is needed again in its next iteration.
        within = live if op.code is ops.if_ else live | free
        for number, region in enumerate(op.regions):
            # The condition of a `while` must leave the carried values as they are, for the body.
            keep = set(region.params) if op.code is ops.while_ and number == 0 else set()
            self._scan(region, within | keep)
        live |= free

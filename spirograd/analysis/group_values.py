"""Grouped tasks: the operations at which threads of a group meet, and the values that are the same in all of them.

The operations of the body, and of the control operations in which threads meet, stand at *group level*: generated code runs these control
operations once for the group, so their conditions must be values of the group.
"""

from __future__ import annotations

from collections.abc import Iterator

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Region

_OF_AN_INVOCATION = frozenset((ops.builtin, ops.thread_slot))
_HARMLESS = frozenset(("pure", "read", "control", "structure"))
# Operands of loops before the loop-carried values.
_FIXED = {ops.for_: 2, ops.while_: 0}


def meets(op: Op) -> bool:
    """Return whether threads meet at ``op`` or inside of it."""
    return op.code in ops.MEETING or any(not ops.MEETING.isdisjoint(region.codes) for region in op.regions)


def _has_barrier(op: Op) -> bool:
    return any(ops.workgroup_barrier in region.codes for region in op.regions)


class GroupValues:
    """The values of a group of threads. ``shared``: the values that are computed once for the group. ``divergent``: the control operations
    at group level that contain operations of subgroups but no barrier of the group, and whose condition may differ between threads.
    ``users``: for each value, the operations at group level that use it, themselves or inside.

    ``native``: divergent operations need no code of their own, and do not stand at group level. ``from_zero``: whether the first iteration
    has index 0.
    """

    def __init__(self, body: Region, size: int, from_zero: bool, native: bool) -> None:
        self.index, self._size, self._from_zero, self._native = body.params[0], size, from_zero, native
        self._varying: set[Op] = set()  # loop-carried values that differ between threads
        count = -1
        while count < len(self._varying):
            count = len(self._varying)
            self.uniform: set[Op] = set()
            self.divergent: set[Op] = set()
            self._region(body)
        self.users: dict[Op, list[Op]] = {}
        self.results: dict[Op, list[Op]] = {}
        self._needed: set[Op] = set()
        self._origin: dict[Op, tuple[Op, int]] = {}  # loop-carried value -> its loop, and the number of its result
        self._use(body)
        for value in self._conditions(body):
            self._need(value)
        self.shared: set[Op] = set(self._needed)
        for op in self._at_group_level(body):
            if op.code.effect == "pure" and op in self.uniform and op.code is not ops.result and self.shared.issuperset(op.args):
                self.shared.add(op)

    def at_group_level(self, op: Op) -> bool:
        """Return whether the group runs ``op`` together."""
        return meets(op) and not (self._native and op in self.divergent)

    # --- which values are the same -------------------------------------------------------------------------------------------

    def _region(self, region: Region) -> None:
        for op in region.ops[:-1]:
            if op.regions and meets(op):
                self._control(op)
            elif self._is_uniform(op):
                self.uniform.add(op)

    def _is_uniform(self, op: Op) -> bool:
        if op.code in _OF_AN_INVOCATION or op.code in ops.MEETING:
            return False
        if op.code is ops.result and op.args[0].regions and meets(op.args[0]):
            return op in self.uniform or self._result_is_uniform(op.args[0], op.attr)
        if op.regions:
            codes = frozenset().union(*[region.codes for region in op.regions])
            outside = {value for region in op.regions for value in region.live_ins}.union(op.args)
            return all(code.effect in _HARMLESS for code in codes) and _OF_AN_INVOCATION.isdisjoint(codes) and outside <= self.uniform
        if op.code.effect not in ("pure", "read"):
            return False
        return self.uniform.issuperset(op.args) or self.numbers_groups(op)

    def numbers_groups(self, op: Op) -> bool:
        """Return whether ``op`` is the index, from 0, divided by a multiple of the size of a group."""
        if not self._from_zero or op.code not in (ops.idiv, ops.floordiv, ops.shr) or op.args[0] is not self.index:
            return False
        by = op.args[1]
        assert isinstance(op.type, DType)
        if by.code is not ops.const or by.attr <= 0 or (op.code is ops.shr and by.attr >= op.type.bits):
            return False  # Devices differ in shifts beyond the width.
        return bool((1 << by.attr if op.code is ops.shr else by.attr) % self._size == 0)

    def numbers_threads(self, op: Op) -> bool:
        """Return whether ``op`` is the number of the thread in its group: the index, from 0, modulo the size of a group."""
        if not self._from_zero or op.code not in (ops.irem, ops.floormod, ops.and_) or op.args[0] is not self.index:
            return False
        by = op.args[1]
        is_power = not self._size & (self._size - 1)
        return by.code is ops.const and bool(by.attr == self._size if op.code is not ops.and_ else is_power and by.attr == self._size - 1)

    def _control(self, op: Op) -> None:
        conditions = op.args[: _FIXED.get(op.code, 1)]
        if op.code is ops.while_:
            self._loop(op)
            conditions = op.regions[0].results
            if not _has_barrier(op) and not self.uniform.issuperset(conditions):
                self.divergent.add(op)
                self._varying.update([param for k in range(len(op.args)) for param in self._params(op, k)])
            return
        if not _has_barrier(op) and not self.uniform.issuperset(conditions):
            self.divergent.add(op)
        if op.code is ops.for_:
            if op not in self.divergent:
                self.uniform.add(op.regions[0].params[0])
            self._loop(op)
            return
        for region in op.regions:
            self._region(region)

    def _loop(self, op: Op) -> None:
        fixed = _FIXED[op.code]
        for region in op.regions:
            skip = len(region.params) - (len(op.args) - fixed)
            for initial, param in zip(op.args[fixed:], region.params[skip:]):
                if initial in self.uniform and param not in self._varying and op not in self.divergent:
                    self.uniform.add(param)
        for region in op.regions:
            self._region(region)
        for k, value in enumerate(op.regions[-1].results):
            if value not in self.uniform or op in self.divergent:
                self._varying.update(self._params(op, k))

    def _params(self, op: Op, k: int) -> list[Op]:
        """Return the parameters of the regions of a loop that stand for its loop-carried value ``k``."""
        count = len(op.args) - _FIXED[op.code]
        return [region.params[len(region.params) - count + k] for region in op.regions]

    def _result_is_uniform(self, op: Op, k: int) -> bool:
        if op in self.divergent:
            return False
        if op.code is ops.if_:
            return all(region.results[k] in self.uniform for region in op.regions)
        return all(param in self.uniform for param in self._params(op, k)) and op.regions[-1].results[k] in self.uniform

    # --- which are computed for the group ------------------------------------------------------------------------------------

    def _at_group_level(self, region: Region) -> Iterator[Op]:
        for op in region.ops[:-1]:
            yield op
            if op.regions and self.at_group_level(op):
                for inner in op.regions:
                    yield from self._at_group_level(inner)

    def _conditions(self, body: Region) -> Iterator[Op]:
        for op in self._at_group_level(body):
            if op.regions and self.at_group_level(op):
                values = op.regions[0].results if op.code is ops.while_ else op.args[: _FIXED.get(op.code, 1)]
                yield from (value for value in values if value in self.uniform)
                if op.code is ops.for_ and op not in self.divergent:
                    yield op.regions[0].params[0]

    def _need(self, value: Op) -> None:
        work = [value]
        while work:
            op = work.pop()
            if op in self._needed:
                continue
            self._needed.add(op)
            if op in self._origin:
                loop, k = self._origin[op]
                work += [*self._params(loop, k), loop.args[_FIXED[loop.code] + k], loop.regions[-1].results[k]]
            elif op.code is ops.result and self.at_group_level(op.args[0]):
                owner = op.args[0]
                if owner.code is ops.if_:
                    work += [region.results[op.attr] for region in owner.regions]
                else:
                    work += self._params(owner, op.attr)
            else:
                work += op.args[1:] if self.numbers_groups(op) else op.args  # the index itself differs, but the index of any thread serves
                if op.regions:
                    work += [v for region in op.regions for v in region.live_ins]
                if op.code is ops.result:
                    continue

    def _use(self, region: Region) -> None:
        for op in region.ops:
            for a in op.args:
                self.users.setdefault(a, []).append(op)
            if op.code is ops.result:
                self.results.setdefault(op.args[0], []).append(op)
            if op.regions and self.at_group_level(op):
                if op.code in _FIXED:
                    for k in range(len(op.args) - _FIXED[op.code]):
                        self._origin.update(dict.fromkeys(self._params(op, k), (op, k)))
                for inner in op.regions:
                    self._use(inner)
            else:
                for nested in op.regions:
                    for value in nested.live_ins:
                        self.users.setdefault(value, []).append(op)

"""Values that groups of lanes share, computed as scalars, once for each group; see `analysis.lane_groups`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spirograd.analysis.lane_groups import LaneGroups, Pattern
from spirograd.base.dtypes import DType, i64, u1
from spirograd.ir import ops
from spirograd.ir.nodes import Op
from spirograd.transforms.loops.lane_memory import load_lanes
from spirograd.transforms.loops.lane_values import LaneValues


class GroupedValues:
    """A builder of the values whose patterns are ``known``, for the loop that ``v`` builds."""

    def __init__(self, v: LaneValues, known: LaneGroups) -> None:
        self.v, self.known = v, known
        self._values: dict[Op, list[Op]] = {}  # for each group, without the offsets of lanes

    def begin(self, index: Op, first: Op) -> None:
        """Begin a vector at ``first``, the index of its first lane."""
        self._values[index] = [first]

    def emit(self, op: Op) -> None:
        v = self.v
        if op in self.known.strides:
            self._strided_load(op)
            return
        pattern = self.known.patterns[op]
        lanes = [pattern.groups.index(g) for g in range(pattern.count)]
        folding = op in self.known.folding
        if pattern.zero:
            assert isinstance(op.type, DType)
            values = [v.number(0, op.type)] * len(lanes)
        elif op.code is ops.load:
            index = op.args[0]
            indices = self._live_values([self._value(index, lane) for lane in lanes], pattern.groups)
            values = [self._with(op, {index: value}) for value in indices]
        else:
            own = [a for a in op.args if a in self.known.patterns]
            values = [self._with(op, {a: self._value(a, lane, folding) for a in own}, folding) for lane in lanes]
        self._values[op] = values
        if op in self.known.vectors:
            v.env[op] = self._vector(op, pattern)
            v.firsts[op] = self._value(op, 0)

    def _with(self, op: Op, values: Mapping[Op, Op], constants: bool = True) -> Op:
        """Build ``op`` on these values of its operands. ``constants``: whether constants are operands; otherwise they are part of
        offsets."""
        v = self.v
        dropped = not constants and op.code in (ops.add, ops.sub)

        def operand(a: Op) -> Op:
            if a in values:
                return values[a]
            if dropped and a.code is ops.const:
                assert isinstance(a.type, DType)
                return v.number(0, a.type)
            return v.scalar(a)

        return v.copy(op, [operand(a) for a in op.args])

    def _value(self, op: Op, lane: int, offset: bool = True) -> Op:
        """Return the value of ``op`` in a lane, with or without the offset of the lane."""
        pattern, t = self.known.patterns[op], op.type
        assert isinstance(t, DType)
        value, distance = self._values[op][pattern.groups[lane]], pattern.offsets[lane] if offset else 0
        if pattern.zero:
            return self.v.number(distance, t)
        return self.v.emit(ops.add, value, self.v.number(distance, t)) if distance else value

    def _live_values(self, values: list[Op], groups: Sequence[int]) -> list[Op]:
        """Return ``values`` by group. A group without a live lane gets the value of a group that has one."""
        v = self.v
        if v.live is None or len(values) == 1:
            return values
        masks = [sum(1 << k for k, group in enumerate(groups) if group == g) for g in range(len(values))]
        bits, zero = v.live.bits, v.number(0)
        live = [v.emit(ops.ne, v.emit(ops.and_, bits, v.number(mask)), zero) for mask in masks]
        other = values[-1]
        for value, some in zip(values[-2::-1], live[-2::-1]):
            other = v.choose(some, value, other)
        return [v.choose(some, value, other) for value, some in zip(values, live)]

    def _vector(self, op: Op, pattern: Pattern) -> Op:
        """Build the vector of the values in all lanes."""
        v, t = self.v, op.type
        assert isinstance(t, DType)
        if t is u1:
            return self._condition(self._values[op], pattern.groups)
        offsets = v.numbers(pattern.offsets, t)
        if pattern.zero:
            return offsets
        vector = v.splat(self._values[op][0])
        for g, value in enumerate(self._values[op][1:], 1):
            vector = v.choose(self._members(pattern.groups, g), v.splat(value), vector)
        return v.emit(ops.add, vector, offsets) if any(pattern.offsets) else vector

    def _condition(self, values: Sequence[Op], groups: Sequence[int]) -> Op:
        """Build a vector of u1 from the bits of an integer."""
        v, bits = self.v, self.v.number(0)
        for g, value in enumerate(values):
            members = sum(1 << k for k, group in enumerate(groups) if group == g)
            bits = v.emit(ops.or_, bits, v.choose(value, v.number(members), v.number(0)))
        return v.emit(ops.lanes_of_bits, bits, type=v.lanes_of(u1))

    def _members(self, groups: Sequence[int], g: int) -> Op:
        """Build the mask of the lanes of a group."""
        return self.v.numbers([group == g for group in groups], u1)

    def _strided_load(self, op: Op) -> None:
        """Load elements at regular distances for each group, under a mask of its lanes, as if all lanes belonged to it."""
        v, index, stride = self.v, op.args[0], self.known.strides[op]
        pattern, effective = self.known.patterns[index], self.v.effective()
        firsts, masks = [], []
        for g in range(pattern.count):
            lane = pattern.groups.index(g)
            first = v.b.cast(self._value(index, lane, offset=False), i64)
            firsts.append(v.emit(ops.add, first, v.number(pattern.offsets[lane] - stride * lane)))
            members = self._members(pattern.groups, g)
            masks.append(members if effective is None else v.emit(ops.and_, members, effective))
        v.env[op] = load_lanes(v, op, stride, firsts, masks)

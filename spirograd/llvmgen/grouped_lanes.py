"""Emits values that groups of lanes share: once for each group, as scalars; see `lane_groups`."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.analysis.lane_groups import LaneGroups, Pattern
from spirograd.base.dtypes import DType, Type, u1
from spirograd.ir import ops
from spirograd.ir.nodes import Op
from spirograd.llvmgen.function import FunctionEmitter
from spirograd.llvmgen.interleaved_loads import interleaved_load
from spirograd.llvmgen.module import literal, type_name
from spirograd.llvmgen.vector_emitter import VectorEmitter


class GroupedLanes:
    """Emits for ``emitter`` what ``known`` has patterns of."""

    def __init__(self, emitter: VectorEmitter, known: LaneGroups) -> None:
        self.e = emitter
        self.known = known
        self._values: dict[Op, list[str]] = {}  # of each group, without the offsets of lanes

    def begin(self, index: Op, first: str) -> None:
        """A vector begins at ``first``, the index of its first lane."""
        self._values[index] = [first]

    def emit(self, op: Op) -> None:
        if op in self.known.strides:
            self._strided_load(op)
            return
        pattern = self.known.patterns[op]
        lanes = [pattern.groups.index(g) for g in range(pattern.count)]
        folding = op in self.known.folding
        if pattern.zero:
            values = ["0"] * len(lanes)
        elif op.code is ops.load:
            indices = [self._value(op.args[0], lane) for lane in lanes]
            values = [self._with(op, {op.args[0]: index}) for index in self.e.harmless_groups(indices, pattern.groups, op.args[0].type)]
        else:
            own = [a for a in op.args if a in self.known.patterns]
            values = [self._with(op, {a: self._value(a, lane, folding) for a in own}, folding) for lane in lanes]
        self._values[op] = values
        if op in self.known.vectors:
            self.e.env[op] = self._vector(op, pattern)
            self.e.note_first(op, self._value(op, 0))

    def _with(self, op: Op, values: dict[Op, str], constants: bool = True) -> str:
        """``op`` on these values of its operands. ``constants``: whether those count; if not they are in offsets."""
        kept = {a: self.e.env[a] for a in op.args if a in self.e.env}
        self.e.env.update(values)
        if not constants and op.code in (ops.add, ops.sub):
            self.e.env.update({a: "0" for a in op.args if a.code is ops.const})
        self.e.handlers[op.code](self.e, op)
        self.e.env.update(kept)
        return str(self.e.env[op])

    def _value(self, op: Op, lane: int, offset: bool = True) -> str:
        """The value of ``op`` in a lane, or without the offset of the lane."""
        pattern = self.known.patterns[op]
        value, distance = self._values[op][pattern.groups[lane]], pattern.offsets[lane] if offset else 0
        if pattern.zero:
            return literal(distance, op.type)  # type: ignore[arg-type]
        return self.e.value(f"add {type_name(op.type)} {value}, {distance}") if distance else value

    def _vector(self, op: Op, pattern: Pattern) -> str:
        """The values of all lanes."""
        if op.type is u1:
            return self._condition(self._values[op], pattern.groups)
        t = self.e.vector_type(op.type)
        offsets = f"<{', '.join(f'{type_name(op.type)} {literal(o, op.type)}' for o in pattern.offsets)}>"  # type: ignore[arg-type]
        if pattern.zero:
            return self.e.value(f"add {t} {offsets}, zeroinitializer")
        vector = self.e.spread(self._values[op][0], op.type)
        for g, value in enumerate(self._values[op][1:], 1):
            vector = self.e.value(f"select {self._members(pattern.groups, g)}, {t} {self.e.spread(value, op.type)}, {t} {vector}")
        return self.e.value(f"add {t} {vector}, {offsets}") if any(pattern.offsets) else vector

    def _condition(self, values: Sequence[str], groups: Sequence[int]) -> str:
        """A vector of u1, by way of the bits of an integer."""
        t = f"i{len(groups)}"
        bits = "0"
        for g, value in enumerate(values):
            mine = sum(1 << k for k, group in enumerate(groups) if group == g)
            bits = self.e.value(f"or {t} {bits}, {self.e.value(f'select i1 {value}, {t} {mine}, {t} 0')}")
        return self.e.value(f"bitcast {t} {bits} to {self.e.vector_type(u1)}")

    def _members(self, groups: Sequence[int], g: int) -> str:
        """The lanes of a group, as a constant mask with its type."""
        return f"{self.e.vector_type(u1)} <{', '.join('i1 true' if group == g else 'i1 false' for group in groups)}>"

    def _strided_load(self, op: Op) -> None:
        """Elements at regular distances in each group: as if all lanes were of that group, under a mask of its lanes."""
        index, stride = op.args[0], self.known.strides[op]
        pattern, t = self.known.patterns[index], op.attr.dtype
        ways = []
        for g in range(pattern.count):
            lane = pattern.groups.index(g)
            kept = self.e.env.get(index)
            self.e.env[index] = self._value(index, lane, offset=False)
            pointer = self.e.address(op.attr, index)
            self.e.env[index] = kept
            start = pattern.offsets[lane] - stride * lane
            if start:
                pointer = f"ptr {self.e.value(f'getelementptr {type_name(t)}, {pointer}, i64 {start}')}"
            mask = self.e.effective()
            if pattern.count > 1:
                members = self._members(pattern.groups, g)
                mask = self.e.value(f"and {members}, {mask}")
            ways.append((pointer, mask))
        if stride == 1:
            self._neighbours(op, ways)
        else:
            self.e.env[op] = interleaved_load(self.e, t, stride, ways)

    def _neighbours(self, op: Op, ways: Sequence[tuple[str, str]]) -> None:
        t, masks = op.attr.dtype, self.e.vector_type(u1)
        vector, suffix = self.e.vector_type(t), f"v{self.e.lanes}{FunctionEmitter.overload(self.e, t)}.p0"
        callee = self.e.module.declare(f"llvm.masked.load.{suffix}", vector, f"ptr, i32, {masks}, {vector}")
        values = "zeroinitializer"
        for pointer, mask in ways:
            values = self.e.value(f"call {vector} {callee}({pointer}, i32 {t.size}, {masks} {mask}, {vector} {values})")
        self.e.env[op] = values


def select_live(e: FunctionEmitter, bits: str, values: Sequence[str], groups: Sequence[int], t: Type) -> list[str]:
    """``values`` of groups; where none of the lanes of a group is in ``bits``, that of a group that has one. ``bits``: not 0, an i64."""
    assert isinstance(t, DType)
    if len(values) == 1:
        return list(values)
    masks = [sum(1 << k for k, group in enumerate(groups) if group == g) for g in range(len(values))]
    live = [e.value(f"icmp ne i64 {e.value(f'and i64 {bits}, {mask}')}, 0") for mask in masks]
    other = values[-1]
    for value, some in zip(values[-2::-1], live[-2::-1]):
        other = e.value(f"select i1 {some}, {type_name(t)} {value}, {type_name(t)} {other}")
    return [e.value(f"select i1 {some}, {type_name(t)} {value}, {type_name(t)} {other}") for value, some in zip(values, live)]

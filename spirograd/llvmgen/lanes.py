"""A parallel loop whose iterations run in lockstep, several at once, as lanes of vectors; the rest of them one by one.

Values that are the same in all lanes stay scalars. What has no vector form (atomics, libm, accesses that are not contiguous) is done lane
by lane.
"""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, Type, u1
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Reduction, Region
from spirograd.llvmgen.function import HANDLERS, FunctionEmitter
from spirograd.llvmgen.module import Lanes, ModuleText, literal, type_name
from spirograd.llvmgen.op_map import OP_MAP, Math
from spirograd.llvmgen.uniform import Uniformity, is_tape

_LANE_BY_LANE = frozenset((ops.atomic, ops.load, ops.store))


def lane_count(caps: Capabilities) -> int:
    """Iterations at once: two vectors of f32, so that one computes while the other waits."""
    return 16 if "+avx2" in caps.cpu_features else 8


class LaneEmitter(FunctionEmitter):
    """Emits the parallel loop that ``found`` describes for several iterations at once. ``reductions``: of that loop."""

    def __init__(self, module: ModuleText, found: Uniformity, reductions: Sequence[Reduction]) -> None:
        super().__init__(module)
        self.found = found
        self.reductions = reductions
        self.lanes = lane_count(module.caps)
        self._lockstep = False  # whether operations are emitted for all lanes
        self._vector = False  # whether the one being emitted differs between them

    def iterations(
        self, index: Type, begin: str, end: str, types: Sequence[Type], initial: Sequence[str], body: Region, suffix: str
    ) -> list[str]:
        it = type_name(index)
        some = self.value(f"icmp slt {it} {begin}, {end}")
        left = self.value(f"sub {it} {end}, {begin}")
        blocks = self.value(f"and {it} {left}, {-self.lanes}")
        steps = self.value(f"select i1 {some}, {it} {blocks}, {it} 0")
        middle = self.value(f"add {it} {begin}, {steps}")
        wide = [Lanes(self.lanes, r.dtype) for r in self.reductions]
        neutral = [f"splat ({type_name(r.dtype)} {literal(ops.identity(r.kind, r.dtype), r.dtype)})" for r in self.reductions]
        self._lockstep = True
        values = self.counted_loop(index, begin, middle, wide, neutral, body, stride=self.lanes)
        self._lockstep = False
        totals = [self._combined(r.dtype, r.kind, v, first) for r, v, first in zip(self.reductions, values, initial)]
        return self.counted_loop(index, middle, end, types, totals, body)

    def _combined(self, t: DType, kind: str, vector: str, total: str) -> str:
        args = Op(ops.param, t), Op(ops.param, t)
        combine = Op(ops.COMBINE[kind], t, args)
        for k in range(self.lanes):
            self.bind(args, (total, self._lane(vector, t, k)))
            HANDLERS[combine.code](self, combine)
            total = self.env[combine]
        return total

    # --- how operations are written ---

    def _vector_type(self, t: Type) -> str:
        assert isinstance(t, DType)
        return type_name(Lanes(self.lanes, t))

    def type_text(self, t: Type) -> str:
        return self._vector_type(t) if self._vector else type_name(t)

    def overload(self, t: DType) -> str:
        return f"v{self.lanes}{super().overload(t)}" if self._vector else super().overload(t)

    def literal(self, value: float, t: DType) -> str:
        return f"splat ({type_name(t)} {literal(value, t)})" if self._vector else literal(value, t)

    def operand(self, op: Op) -> str:
        text: str = self.env[op]
        if not self._vector or self.found.varies(op):
            return text
        return self._spread(text, op.type) if text.startswith("%") else f"splat ({type_name(op.type)} {text})"

    def result_types(self, op: Op) -> Sequence[Type]:
        types = super().result_types(op)
        if not self._lockstep:
            return types
        return [Lanes(self.lanes, t) if mixed and isinstance(t, DType) else t for t, mixed in zip(types, self.found.mixed[op])]

    def initial(self, op: Op, args: Sequence[Op]) -> list[str]:
        if not self._lockstep:
            return super().initial(op, args)
        return [self._as_vector(a) if mixed else self.env[a] for a, mixed in zip(args, self.found.mixed[op])]

    def _spread(self, text: str, t: Type) -> str:
        """A vector with ``text`` in all lanes."""
        vector = self._vector_type(t)
        first = self.value(f"insertelement {vector} poison, {type_name(t)} {text}, i32 0")
        return self.value(f"shufflevector {vector} {first}, {vector} poison, <{self.lanes} x i32> zeroinitializer")

    def _lane(self, vector: str, t: Type, k: int) -> str:
        return self.value(f"extractelement {self._vector_type(t)} {vector}, i32 {k}")

    # --- regions ---

    def region(self, region: Region) -> list[str]:
        if not self._lockstep:
            return super().region(region)
        if self.found.index in region.params:
            self._number_lanes()
        for op in region.ops[:-1]:
            self.at(op.loc)
            self._emit(op)
        return [self._as_vector(v) if mixed else self.env[v] for v, mixed in zip(region.results, self.found.yields[region])]

    def _number_lanes(self) -> None:
        """The indices of the lanes, from that of the first."""
        index = self.found.index
        vector, it = self._vector_type(index.type), type_name(index.type)
        first = self._spread(self.env[index], index.type)
        self.env[index] = self.value(f"add nsw {vector} {first}, <{', '.join(f'{it} {k}' for k in range(self.lanes))}>")

    def _as_vector(self, op: Op) -> str:
        self._vector = True
        text = self.operand(op)
        self._vector = False
        return text

    def _emit(self, op: Op) -> None:
        if op.code is ops.if_ and self.found.varies(op.args[0]):
            self._both_arms(op)
        elif op.regions or op.code is ops.result or not self.found.varies(op):
            HANDLERS[op.code](self, op)
        elif is_tape(op) or (op.code in (ops.load, ops.store) and self.found.contiguous(op.args[0]) and op.attr.dtype is not u1):
            self._access(op)
        elif op.code in _LANE_BY_LANE or isinstance(OP_MAP[op.code], Math):
            self._lane_by_lane(op)
        else:
            self._vector = True
            HANDLERS[op.code](self, op)
            self._vector = False

    def _both_arms(self, op: Op) -> None:
        """Both branches, one after the other: they have no effects."""
        condition = f"{self._vector_type(u1)} {self.env[op.args[0]]}"
        arms = [self.region(region) for region in op.regions]
        types = [type_name(t) for t in self.result_types(op)]
        self.env[op] = [self.value(f"select {condition}, {t} {a}, {t} {b}") for t, a, b in zip(types, *arms)]

    def _access(self, op: Op) -> None:
        """Neighbouring elements: the address of that of the first lane."""
        index = op.args[0]
        indices = self.env[index]
        if self.found.varies(index):
            self.env[index] = self._lane(indices, index.type, 0)
        pointer = self.address(op.attr, index)
        self.env[index] = indices
        vector, align = self._vector_type(op.attr.dtype), op.attr.dtype.size
        if op.code is ops.load:
            self.set(op, f"load {vector}, {pointer}, align {align}")
        else:
            self.line(f"store {vector} {self._as_vector(op.args[1])}, {pointer}, align {align}")

    def _lane_by_lane(self, op: Op) -> None:
        varying = {a: self.env[a] for a in op.args if self.found.varies(a)}
        result = "poison"
        for k in range(self.lanes):
            for a, vector in varying.items():
                self.env[a] = self._lane(vector, a.type, k)
            HANDLERS[op.code](self, op)
            if isinstance(op.type, DType):
                result = self.value(f"insertelement {self._vector_type(op.type)} {result}, {self.typed(op)}, i32 {k}")
        self.env.update(varying)
        self.env[op] = result

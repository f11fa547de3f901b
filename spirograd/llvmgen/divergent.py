"""Divergent control flow in lockstep: branches and loops run while any lane needs them, under a mask of the lanes that do.

A mask is a vector of i32, all ones in the live lanes: i1 would be widened and narrowed again at each border of a block. Lanes that are not
live hold unspecified values. Where these could do harm, such lanes do what the first live lane does (addresses of loads), or nothing
(stores, atomics). Lanes without an iteration are live where the first lane is, since they repeat what that one computes, but have no
effects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spirograd.analysis.uniformity import Uniformity, is_adstack, is_report
from spirograd.base.dtypes import DType, Type, i32, u1
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Reduction, Region
from spirograd.ir.ops import OpCode
from spirograd.llvmgen.function import FunctionEmitter, Handler, Phis
from spirograd.llvmgen.grouped_lanes import select_live
from spirograd.llvmgen.lanes import LaneEmitter
from spirograd.llvmgen.module import ModuleText, type_name


class DivergentEmitter(LaneEmitter):
    """Emits a parallel loop in lockstep whose lanes may go different ways."""

    def __init__(self, module: ModuleText, handlers: Mapping[OpCode, Handler], found: Uniformity, reductions: Sequence[Reduction]) -> None:
        super().__init__(module, handlers, found, reductions)
        assert self._has_masks
        self._live = ""  # the mask; empty if all are live
        self._live_bits = ""  # the same as an i64, a bit for each lane
        self._first_live = ""  # the number of the first live lane, an i64
        self._counters: dict[Op, str] = {}  # loop -> how many iterations lie before the current one, or after it
        self._results = {(op.args[0], op.attr) for op in found.body.walk() if op.code is ops.result}
        self._i32s = f"<{self.lanes} x i32>"

    def emit(self, op: Op) -> None:
        if not self._lockstep or self.found.grouped(op):
            super().emit(op)
        elif op in self.found.counts:
            self.env[op] = self._counters[self.found.counts[op]]
        elif op in self.found.divergent:
            _DIVERGENT[op.code](self, op)
        elif self._live and op.code in _MASKED and (self.found.varies(op) or op.code is ops.store):
            _MASKED[op.code](self, op)
        else:
            super().emit(op)

    # --- masks ---

    def _wide(self, condition: str) -> str:
        """A vector of u1 as a mask."""
        return self.value(f"sext {self._mask_type} {condition} to {self._i32s}")

    def _narrow(self, mask: str) -> str:
        """A mask as a vector of u1."""
        return self.value(f"icmp slt {self._i32s} {mask}, zeroinitializer")

    def _both(self, mask: str, other: str) -> str:
        return self.value(f"and {self._i32s} {mask}, {other}") if mask else other

    def _restricted(self, mask: str, condition: Op) -> str:
        """The lanes of a mask in which a condition holds: term by term, since a conjunction of u1 would be packed into bytes. That of
        groups of lanes is a constant mask for each group."""
        if condition.code is ops.and_ and self.found.varies(condition) and not self.found.grouped(condition):
            for term in condition.args:
                mask = self._restricted(mask, term)
            return mask
        return self._both(mask, self._wide(self._as_vector(condition)))

    def _any(self, mask: str) -> str:
        """Whether any lane is in the mask."""
        half = self.lanes // 2
        low, high = (
            self.value(f"shufflevector {self._i32s} {mask}, {self._i32s} poison, <{half} x i32> <{', '.join(f'i32 {k}' for k in part)}>")
            for part in (range(half), range(half, self.lanes))
        )
        either = self.value(f"or <{half} x i32> {low}, {high}")
        signs = self.value(f"icmp slt <{half} x i32> {either}, zeroinitializer")
        bits = self.value(f"bitcast <{half} x i1> {signs} to i{half}")
        return self.value(f"icmp ne i{half} {bits}, 0")

    def effective(self) -> str:
        if not self._live:
            return self._mask
        live = self._narrow(self._live)
        return self.value(f"and {self._mask_type} {live}, {self._mask}")

    def _with_live(self, mask: str, region: Region) -> list[str]:
        """Emit ``region`` for the lanes of ``mask``, of which there is one."""
        outer = self._live, self._live_bits, self._first_live
        self._live, self._live_bits = mask, self.bits(self._narrow(mask))
        self._first_live = self.lowest(self._live_bits)
        values = self.region(region)
        self._live, self._live_bits, self._first_live = outer
        return values

    def _harmless(self, op: Op) -> str:
        """The value of ``op``; that of a live lane in those that are not."""
        t = op.type
        vector = f"{self.vector_type(t)} {self.env[op]}"
        one = self.value(f"extractelement {vector}, i64 {self._first_live}")
        return self._chosen(self._narrow(self._live), self.env[op], self.spread(one, t), t)

    def harmless_groups(self, values: Sequence[str], groups: Sequence[int], t: Type) -> list[str]:
        return select_live(self, self._live_bits, values, groups, t) if self._live else list(values)

    # --- what crosses blocks ---

    def _carried_type(self, t: Type) -> str:
        return self._i32s if t is u1 else self.vector_type(t)

    def _packed(self, vector: str, t: Type) -> str:
        return self._wide(vector) if t is u1 else vector

    def _unpacked(self, vector: str, t: Type) -> str:
        return self._narrow(vector) if t is u1 else vector

    def _phis(self, types: Sequence[Type]) -> Phis:
        return Phis(self, [self._carried_type(t) for t in types])

    # --- control flow ---

    def _masked_if(self, op: Op) -> None:
        assert isinstance(op.type, tuple)
        then = self._restricted(self._live, op.args[0])
        orelse = self._both(self._live, self.value(f"xor {self._i32s} {then}, splat (i32 -1)"))
        arms = [self._arm(region, live, op.type) for region, live in zip(op.regions, (then, orelse))]
        taken = self._narrow(then) if op.type else ""
        self.env[op] = [self._chosen(taken, a, b, t) for t, a, b in zip(op.type, *arms)]

    def _arm(self, region: Region, live: str, types: Sequence[Type]) -> list[str]:
        """The results of one branch, which is skipped if no lane takes it."""
        if len(region.ops) == 1:
            return self.region(region)
        arm, done = self.new_labels("arm", "arm.end")
        before = self.label
        self.line(f"br i1 {self._any(live)}, label %{arm}, label %{done}")
        self.start(arm)
        values = [self._packed(v, t) for v, t in zip(self._with_live(live, region), types)]
        after = self.label
        self.goto(done)
        self.start(done)
        results = self._phis(types)
        results.fill((["zeroinitializer"] * len(types), before), (values, after))
        return [self._unpacked(name, t) for name, t in zip(results.names, types)]

    def _divergent_while(self, op: Op) -> None:
        assert isinstance(op.type, tuple)
        condition, body = op.regions
        head, inside, done = self.new_labels("while", "do", "done")
        types = [i32, *op.type]
        initial = [self._live or "splat (i32 -1)", *[self._packed(self._as_vector(a), t) for a, t in zip(op.args, op.type)]]
        before = self.label
        self.goto(head)
        self.start(head)
        phis = self._phis(types)
        live, *packed = phis.names
        carried = [self._unpacked(name, t) for name, t in zip(packed, op.type)]
        self.bind(condition.params, carried)
        self._with_live(live, condition)
        going = self._restricted(live, condition.results[0])
        self.line(f"br i1 {self._any(going)}, label %{inside}, label %{done}")
        self.start(inside)
        self.bind(body.params, carried)
        values = self._next(op, going, carried, self._with_live(going, body))
        phis.fill((initial, before), ([going, *values], self.label))
        self.goto(head)
        self.start(done)
        self.env[op] = carried

    def _next(self, op: Op, live: str, old: Sequence[str], new: Sequence[str], always: bool = False) -> list[str]:
        """What a loop carries on: new values in live lanes, old ones in those that have ended, where they are used after the loop."""
        assert isinstance(op.type, tuple)
        kept = [always or (op, k) in self._results for k in range(len(op.type))]
        mask = self._narrow(live) if any(kept) else ""
        chosen = [self._chosen(mask, b, a, t) if keep else b for keep, a, b, t in zip(kept, old, new, op.type)]
        return [self._packed(v, t) for v, t in zip(chosen, op.type)]

    def _divergent_for(self, op: Op) -> None:
        assert isinstance(op.type, tuple)
        (body,) = op.regions
        t = body.params[0].type
        assert isinstance(t, DType)
        it, vector = type_name(t), self.vector_type(t)
        trips, most = self._trips(op, t)
        loop, done = self.new_labels("for", "for.end")
        initial = [self._packed(self._as_vector(a), r) for a, r in zip(op.args[2:], op.type)]
        before = self.label
        self.line(f"br i1 {self.value(f'icmp ne {it} {most}, 0')}, label %{loop}, label %{done}")
        self.start(loop)
        phis = Phis(self, [it, *[self._carried_type(r) for r in op.type]])
        counter, *packed = phis.names
        backwards = op in self.found.backwards
        following = self.value(f"add nuw {it} {counter}, 1")
        count = self.value(f"sub {it} {most}, {following}") if backwards else counter
        counts = self.spread(count, t)
        live = self._wide(self.value(f"icmp ult {vector} {counts}, {trips}"))
        carried = [self._unpacked(name, r) for name, r in zip(packed, op.type)]
        self._counters[op] = count
        self.bind(body.params, [self._index(op, trips, count, counts), *carried])
        values = self._next(op, live, carried, self._with_live(live, body), always=backwards)
        back = self.label
        phis.fill((["0", *initial], before), ([following, *values], back))
        self.line(f"br i1 {self.value(f'icmp ult {it} {following}, {most}')}, label %{loop}, label %{done}")
        self.start(done)
        results = self._phis(op.type)
        results.fill((initial, before), (values, back))
        self.env[op] = [self._unpacked(name, r) for name, r in zip(results.names, op.type)]

    def _trips(self, op: Op, t: DType) -> tuple[str, str]:
        """How many iterations each lane has, none if it is not live; and the most of any."""
        vector = self.vector_type(t)
        begin, end = (self._as_vector(a) for a in op.args[:2])
        some = self.value(f"icmp {'slt' if t.is_signed else 'ult'} {vector} {begin}, {end}")
        trips = self.value(f"sub {vector} {end}, {begin}")
        if self._live:
            some = self.value(f"and {self._mask_type} {some}, {self._narrow(self._live)}")
        trips = self._chosen(some, trips, "zeroinitializer", t)
        callee = self.module.declare(f"llvm.vector.reduce.umax.v{self.lanes}{type_name(t)}", type_name(t), vector)
        return trips, self.value(f"call {type_name(t)} {callee}({vector} {trips})")

    def _index(self, op: Op, trips: str, count: str, counts: str) -> str:
        """The index of each lane, or that of all."""
        begin, t = op.args[0], op.regions[0].params[0].type
        vector = self.vector_type(t)
        if op in self.found.backwards:
            last = self.value(f"add {vector} {trips}, splat ({type_name(t)} -1)")
            return self.value(f"sub {vector} {last}, {counts}")
        if self.found.varies(begin):
            return self.value(f"add {vector} {self.env[begin]}, {counts}")
        return self.value(f"add {type_name(t)} {self.env[begin]}, {count}")

    # --- effects ---

    def _masked_load(self, op: Op) -> None:
        index = op.args[0]
        if is_adstack(op):
            self._load(op)
        elif op.attr.dtype is u1:
            self._lane_by_lane(op)
        elif self.found.contiguous(index):
            self._contiguous_load(op)
        elif self.found.interleaved(op):
            self._interleaved_load(op)
        elif self.found.lane_stride(index):
            self.spaced_access(op, self._harmless_gather)
        else:
            self._harmless_gather(op)

    def _harmless_gather(self, op: Op) -> None:
        index = op.args[0]
        plain = self.env[index]
        self.env[index] = self._harmless(index)
        self._gather(op)
        self.env[index] = plain

    def _contiguous_load(self, op: Op) -> None:
        t = op.type
        vector, suffix = self.vector_type(t), f"v{self.lanes}{FunctionEmitter.overload(self, op.attr.dtype)}.p0"
        pointer = self._first_address(op)
        callee = self.module.declare(f"llvm.masked.load.{suffix}", vector, f"ptr, i32, {self._mask_type}, {vector}")
        mask = f"{self._mask_type} {self.effective()}"
        values = self.value(f"call {vector} {callee}({pointer}, i32 {op.attr.dtype.size}, {mask}, {vector} zeroinitializer)")
        self.env[op] = self._where_active(values, self.spread(self._lane(values, t, 0), t), t)

    def _masked_store(self, op: Op) -> None:
        value = op.args[1]
        if is_report(op):
            self._report(op)
        elif is_adstack(op) and self._live:
            self._adstack_store(op)
        elif self.found.varies(value) or self.found.varies(op.args[0]):
            self._store(op)
        else:
            self.handlers[op.code](self, op)

    def _report(self, op: Op) -> None:
        """Of the lanes that fail, the first one tells."""
        varying = {a: self.env[a] for a in op.args if self.found.varies(a)}
        for a, vector in varying.items():
            self.env[a] = self.value(f"extractelement {self.vector_type(a.type)} {vector}, i64 {self._first_live}")
        self.handlers[op.code](self, op)
        self.env.update(varying)

    def _adstack_store(self, op: Op) -> None:
        """Live lanes only: another branch may have stored there for the others."""
        pointer = self.address(op.attr, op.args[0])
        self._adstack_access(op, pointer)

    def _whole_access(self, op: Op, pointer: str) -> None:
        if op.code is ops.load or not self._live:
            super()._whole_access(op, pointer)
            return
        t = op.attr.dtype
        vector = self.vector_type(t)
        old = self.value(f"load {vector}, {pointer}, align {t.size}")
        value = self._chosen(self._narrow(self._live), self._as_vector(op.args[1]), old, t)
        self.line(f"store {vector} {value}, {pointer}, align {t.size}")

    def _for_lanes(self, one: Callable[[str], None]) -> None:
        if not self._live:
            super()._for_lanes(one)
            return
        bits = self.bits(self.effective())
        loop, done = self.new_labels("lane", "lane.end")
        before = self.label
        self.line(f"br i1 {self.value(f'icmp ne i64 {bits}, 0')}, label %{loop}, label %{done}")
        self.start(loop)
        phis = Phis(self, ["i64"])
        (left,) = phis.names
        one(self.lowest(left))
        less = self.value(f"add i64 {left}, -1")
        following = self.value(f"and i64 {left}, {less}")
        phis.fill(([bits], before), ([following], self.label))
        again = self.value(f"icmp ne i64 {following}, 0")
        self.line(f"br i1 {again}, label %{loop}, label %{done}{self._loop_metadata()}")
        self.start(done)


_DIVERGENT: dict[OpCode, Callable[[DivergentEmitter, Op], None]] = {
    ops.if_: DivergentEmitter._masked_if,
    ops.for_: DivergentEmitter._divergent_for,
    ops.while_: DivergentEmitter._divergent_while,
}
# Under a mask.
_MASKED: dict[OpCode, Callable[[DivergentEmitter, Op], None]] = {
    ops.load: DivergentEmitter._masked_load,
    ops.store: DivergentEmitter._masked_store,
}

"""A parallel loop whose iterations run in lockstep, several at once, as lanes of vectors.

Values that are the same in all lanes stay scalars. What has no vector form (atomics, libm, stores at no regular distance) is done lane by
lane. The last block of iterations may have lanes to spare: those repeat what its first lane computes, and have no effects. So one copy of
the body does, which halves the time that LLVM takes. CPUs without masked loads and stores run the last iterations one by one.

Each lane has its own thread slot. Where there are fewer, fewer lanes take part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spirograd.analysis.loop_costs import has_masks, lane_count
from spirograd.analysis.uniformity import Uniformity, is_adstack
from spirograd.base.dtypes import DType, Type, i8, i32, i64, u1, u64
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Reduction, Region
from spirograd.ir.ops import OpCode
from spirograd.llvmgen.emit_control import branches, counted_loop, emit_result
from spirograd.llvmgen.function import FunctionEmitter, Handler, Phis
from spirograd.llvmgen.grouped_lanes import GroupedLanes
from spirograd.llvmgen.instructions import Math
from spirograd.llvmgen.interleaved_loads import interleaved_load
from spirograd.llvmgen.local_arrays import element
from spirograd.llvmgen.module import Lanes, ModuleText, literal, type_name
from spirograd.llvmgen.op_map import OP_MAP
from spirograd.llvmgen.vector_emitter import VectorEmitter

# Iterations that are tested before those that pass run: so many that the last vector, which is not full, matters little.
_STRIP = 4096
_ALL = "splat (i1 true)"  # mask of all lanes
_NOT_UNROLLED = '!{!"llvm.loop.unroll.disable"}'


class LaneEmitter(VectorEmitter):
    """Emits the parallel loop that ``found`` describes for several iterations at once. ``reductions``: of that loop."""

    def __init__(self, module: ModuleText, handlers: Mapping[OpCode, Handler], found: Uniformity, reductions: Sequence[Reduction]) -> None:
        super().__init__(module, handlers, lane_count(module.caps))
        self.found = found
        self.reductions = reductions
        self._has_masks = has_masks(module.caps)
        self._end = ""  # of the iterations, as i64
        self._mask = ""  # of the lanes that have an iteration; empty if all have
        self._active = str(self.lanes)  # how many those are, an i64
        self._stride, self._all = str(self.lanes), ""  # how many lanes take part, an i64; whether all do, if they may not
        if any(map(is_adstack, found.body.walk())):
            self._stride, self._all = "%taking", "%all"
            self.entry += ["  %taking = zext i32 %lanes to i64", f"  %all = icmp eq i32 %lanes, {self.lanes}"]
        self._first: dict[Op, str] = {}  # contiguous indices in the first lane
        self._list, self._listed = "", False  # iterations that run, in stack memory; whether those are running
        self._lane_loop = ""  # metadata of a loop over the lanes
        self._grouped = None if found.groups is None else GroupedLanes(self, found.groups)
        self._lockstep = False  # whether operations are emitted for all lanes
        self._vector = False  # whether the one being emitted differs between them

    def iterations(
        self, index: Type, begin: str, end: str, types: Sequence[Type], initial: Sequence[str], body: Region, suffix: str
    ) -> list[str]:
        it = type_name(index)
        wide = [Lanes(self.lanes, r.dtype) for r in self.reductions]
        neutral = [f"splat ({type_name(r.dtype)} {literal(r.start, r.dtype)})" for r in self.reductions]
        if self._has_masks:
            assert index is i32
            # In 64 bits, where counting in blocks cannot overflow.
            first, self._end = (self.resize(bound, i32, i64) for bound in (begin, end))
            self._lockstep = True
            if self.found.guard is None:
                values = counted_loop(self, i64, first, self._end, wide, neutral, body, stride=self._stride)
            else:
                values = self._strips(self.found.guard, first, self._end, wide, neutral)
            self._lockstep = False
            return self._totals(values, initial)
        some = self.value(f"icmp slt {it} {begin}, {end}")
        if self._all:
            some = self.value(f"and i1 {some}, {self._all}")
        left = self.value(f"sub {it} {end}, {begin}")
        blocks = self.value(f"and {it} {left}, {-self.lanes}")
        steps = self.value(f"select i1 {some}, {it} {blocks}, {it} 0")
        middle = self.value(f"add {it} {begin}, {steps}")
        self._lockstep = True
        values = counted_loop(self, index, begin, middle, wide, neutral, body, stride=str(self.lanes))
        self._lockstep = False
        return counted_loop(self, index, middle, end, types, self._totals(values, initial), body)

    def _strips(self, guard: Uniformity, begin: str, end: str, types: Sequence[Type], initial: Sequence[str]) -> list[str]:
        """The iterations that pass ``guard``, strip by strip: listed, then run."""
        self._list = self.name()
        self.entry.append(f"  {self._list} = alloca [{_STRIP + self.lanes} x i32], align 64")
        strip, done = self.new_labels("strip", "strip.end")
        before = self.label
        self.line(f"br i1 {self.value(f'icmp slt i64 {begin}, {end}')}, label %{strip}, label %{done}")
        self.start(strip)
        phis = Phis(self, [type_name(t) for t in (i64, *types)])
        start, *carried = phis.names
        stop = self.call_intrinsic("umin", u64, [self.value(f"add i64 {start}, {_STRIP}"), end])
        self._end = self._passing(guard, start, stop)
        self._listed = True
        values = counted_loop(self, i64, "0", self._end, types, carried, self.found.body, stride=self._stride)
        self._listed = False
        back = self.label
        phis.fill(([begin, *initial], before), ([stop, *values], back))
        self.line(f"br i1 {self.value(f'icmp slt i64 {stop}, {end}')}, label %{strip}, label %{done}")
        self.start(done)
        ways = zip(types, initial, values)
        return [self.value(f"phi {type_name(t)} [ {a}, %{before} ], [ {b}, %{back} ]") for t, a, b in ways]

    def _passing(self, guard: Uniformity, begin: str, end: str) -> str:
        """List those iterations of [begin, end), of which there are some, that pass ``guard``; returns how many."""
        found, stride = self.found, self._stride
        self.found, self._stride, self._end = guard, str(self.lanes), end
        test, listing, done = self.new_labels("test", "list", "test.end")
        before = self.label
        self.goto(test)
        self.start(test)
        phis = Phis(self, ["i64", "i64"])
        first, count = phis.names
        self.bind(guard.body.params, [first])
        (passes,) = self.region(guard.body)
        bits = self.bits(self.value(f"and {self._mask_type} {passes}, {self._mask}"))
        self.found, self._stride = found, stride
        after = self.label
        self.line(f"br i1 {self.value(f'icmp ne i64 {bits}, 0')}, label %{listing}, label %{done}")
        self.start(listing)
        left, place = self.name(), self.name()
        self.lines += [f"  {left} = phi i64 [ {bits}, %{after} ], [ {left}.next, %{listing} ]"]
        self.lines += [f"  {place} = phi i64 [ {count}, %{after} ], [ {place}.next, %{listing} ]"]
        number = self.resize(self.value(f"add i64 {first}, {self.lowest(left)}"), i64, i32)
        self.line(f"store i32 {number}, ptr {self._listing(place)}, align 4")
        self.line(f"{left}.next = and i64 {left}, {self.value(f'add i64 {left}, -1')}")
        self.line(f"{place}.next = add i64 {place}, 1")
        self.line(f"br i1 {self.value(f'icmp ne i64 {left}.next, 0')}, label %{listing}, label %{done}{self._loop_metadata()}")
        self.start(done)
        so_far = self.value(f"phi i64 [ {count}, %{after} ], [ {place}.next, %{listing} ]")
        following = self.value(f"add i64 {first}, {self.lanes}")
        phis.fill(([begin, "0"], before), ([following, so_far], done))
        out = self.new_labels("listed")[0]
        self.line(f"br i1 {self.value(f'icmp slt i64 {following}, {end}')}, label %{test}, label %{out}")
        self.start(out)
        return so_far

    def _listing(self, place: str) -> str:
        return self.value(f"getelementptr inbounds i32, ptr {self._list}, i64 {place}")

    def _totals(self, vectors: Sequence[str], initial: Sequence[str]) -> list[str]:
        return [self._combined(r.dtype, r.kind, v, first) for r, v, first in zip(self.reductions, vectors, initial)]

    def _combined(self, t: DType, kind: str, vector: str, total: str) -> str:
        args = Op(ops.param, t), Op(ops.param, t)
        combine = Op(ops.COMBINE[kind], t, args)
        for k in range(self.lanes):
            self.bind(args, (total, self._lane(vector, t, k)))
            self.emit(combine)
            total = self.env[combine]
        return total

    # --- how operations are written ---

    @property
    def width(self) -> int:
        return self.lanes if self._vector else 1

    def type_text(self, t: Type) -> str:
        return self.vector_type(t) if self._vector else type_name(t)

    def overload(self, t: DType) -> str:
        return f"v{self.lanes}{super().overload(t)}" if self._vector else super().overload(t)

    def literal(self, value: float, t: DType) -> str:
        return f"splat ({type_name(t)} {literal(value, t)})" if self._vector else literal(value, t)

    def operand(self, op: Op) -> str:
        text: str = self.env[op]
        if not self._vector or self.found.varies(op):
            return text
        return self.spread(text, op.type)

    def _lane(self, vector: str, t: Type, k: int) -> str:
        return self.value(f"extractelement {self.vector_type(t)} {vector}, i32 {k}")

    # --- regions ---

    def region(self, region: Region) -> list[str]:
        if not self._lockstep:
            return super().region(region)
        if self.found.index in region.params:
            self._number_lanes()
        for op in region.ops[:-1]:
            self.at(op.loc)
            self.emit(op)
        values = [self._as_vector(v) if mixed else self.env[v] for v, mixed in zip(region.results, self.found.yields[region])]
        if len(region.params) > 1 and self.found.index in region.params and self._mask:
            return [self._where_active(v, self.env[p], p.type) for v, p in zip(values, region.params[1:])]
        return values

    def _number_lanes(self) -> None:
        """The indices of the lanes, from that of the first; which lanes are active."""
        index = self.found.index
        vector, first = self.vector_type(index.type), self.env[index]
        numbers = f"<{', '.join(f'{type_name(index.type)} {k}' for k in range(self.lanes))}>"
        if self._grouped is not None:
            self._active, self._mask, first = str(self.lanes), _ALL, self.resize(first, i64, i32)
            self._grouped.begin(index, first)
        elif self._has_masks:
            left = self.value(f"sub i64 {self._end}, {first}")
            self._active = self.call_intrinsic("umin", u64, [left, self._stride])
            active = self.spread(self.resize(self._active, i64, i32), i32)
            self._mask = self.value(f"icmp ult {vector} {numbers}, {active}")
            if self._listed:
                listed = self.value(f"load {vector}, ptr {self._listing(first)}, align 4")
                self.env[index] = self._where_active(listed, self.spread(self._lane(listed, i32, 0), i32), i32)
                return
            numbers = self.value(f"select {self._mask_type} {self._mask}, {vector} {numbers}, {vector} zeroinitializer")
            first = self.resize(first, i64, i32)
        self._first = {index: first}
        self.env[index] = self.value(f"add nsw {vector} {self.spread(first, index.type)}, {numbers}")

    @property
    def _mask_type(self) -> str:
        return self.vector_type(u1)

    def _where_active(self, vector: str, other: str, t: Type) -> str:
        """``vector`` in the lanes that have an iteration, ``other`` in the rest."""
        return vector if self._mask == _ALL else self._chosen(self._mask, vector, other, t)

    def _chosen(self, mask: str, vector: str, other: str, t: Type) -> str:
        """``vector`` in the lanes of ``mask``, ``other`` in the rest."""
        vt = self.vector_type(t)
        return self.value(f"select {self._mask_type} {mask}, {vt} {vector}, {vt} {other}")

    def bits(self, condition: str) -> str:
        """A bit for each lane, as an i64."""
        bits = self.value(f"bitcast {self._mask_type} {condition} to i{self.lanes}")
        return self.value(f"zext i{self.lanes} {bits} to i64")

    def lowest(self, bits: str) -> str:
        """The number of the lowest bit that is set in an i64."""
        callee = self.module.declare("llvm.cttz.i64", "i64", "i64, i1")
        return self.value(f"call i64 {callee}(i64 {bits}, i1 true)")

    def effective(self) -> str:
        return self._mask

    def _as_vector(self, op: Op) -> str:
        self._vector = True
        text = self.operand(op)
        self._vector = False
        return text

    def emit(self, op: Op) -> None:
        if not self._lockstep:
            super().emit(op)
        elif self._grouped is not None and self.found.grouped(op):
            self._grouped.emit(op)
        elif op.code in _CONTROL:
            _CONTROL[op.code](self, op)
        elif self.found.varies(op):
            _VARYING.get(op.code, LaneEmitter._on_vectors)(self, op)
        else:
            super().emit(op)

    def note_first(self, op: Op, text: str) -> None:
        if self.found.lane_stride(op):
            self._first[op] = text

    def lane_types(self, op: Op) -> list[Type]:
        """Types of the results of a control operation in lockstep."""
        assert isinstance(op.type, tuple)
        return [Lanes(self.lanes, t) if mixed and isinstance(t, DType) else t for t, mixed in zip(op.type, self.found.mixed[op])]

    def _for(self, op: Op) -> None:
        begin, end = (self.env[a] for a in op.args[:2])
        initial = [self._as_vector(a) if mixed else self.env[a] for a, mixed in zip(op.args[2:], self.found.mixed[op])]
        self.env[op] = counted_loop(self, op.args[0].type, begin, end, self.lane_types(op), initial, op.regions[0])

    def _if(self, op: Op) -> None:
        if self.found.varies(op.args[0]):
            self._both_arms(op)
        else:
            self.env[op] = branches(self, op, self.lane_types(op))

    def _load(self, op: Op) -> None:
        if is_adstack(op) or (self.found.contiguous(op.args[0]) and op.attr.dtype is not u1):
            self._access(op)
        elif self._has_masks and self.found.interleaved(op):
            self._interleaved_load(op)
        elif op.attr.dtype is u1:
            self._lane_by_lane(op)
        elif self._has_masks and self.found.lane_stride(op.args[0]):
            self.spaced_access(op, self._gather)
        else:
            self._gather(op)

    def _store(self, op: Op) -> None:
        if is_adstack(op) or (self.found.contiguous(op.args[0]) and op.attr.dtype is not u1):
            self._access(op)
        elif self.found.lane_stride(op.args[0]) and op.attr.dtype is not u1:
            self.spaced_access(op, self._lane_by_lane)
        else:
            self._lane_by_lane(op)

    def spaced_access(self, op: Op, otherwise: Callable[[Op], None]) -> None:
        """Elements at regular distances: an access for each lane and nothing else if all of them take part."""
        mask = self.effective()
        if mask in ("", _ALL):
            self._access_each(op)
            return
        each, some, done = self.new_labels("each", "some", "accessed")
        self.line(f"br i1 {self.value(f'icmp eq i64 {self.bits(mask)}, {(1 << self.lanes) - 1}')}, label %{each}, label %{some}")
        values = []
        for label, access in ((each, self._access_each), (some, otherwise)):
            self.start(label)
            access(op)
            values.append(f"[ {self.env.get(op)}, %{self.label} ]")
            self.goto(done)
        self.start(done)
        if op.code is ops.load:
            self.set(op, f"phi {self.vector_type(op.type)} {', '.join(values)}")

    def _access_each(self, op: Op) -> None:
        t, stride = op.attr.dtype, self.found.lane_stride(op.args[0])
        pointer, vector = self._first_address(op), "poison" if op.code is ops.load else self._as_vector(op.args[1])
        for k in range(self.lanes):
            place = f"ptr {self.value(f'getelementptr {type_name(t)}, {pointer}, i64 {k * stride}')}"
            if op.code is ops.store:
                self.line(f"store {type_name(t)} {self._lane(vector, t, k)}, {place}, align {t.size}")
                continue
            element = self.value(f"load {type_name(t)}, {place}, align {t.size}")
            vector = self.value(f"insertelement {self.vector_type(t)} {vector}, {type_name(t)} {element}, i32 {k}")
        self.env[op] = vector

    def _atomic(self, op: Op) -> None:
        if self.found.adds_together(op):
            self._add_once(op)
        else:
            self._lane_by_lane(op)

    def _call(self, op: Op) -> None:
        if op.attr in self.module.plain:
            self._on_vectors(op)
        else:
            self._lane_by_lane(op)

    def _integer(self, op: Op) -> None:
        self._on_vectors(op)
        if self.found.lane_stride(op):
            self._count_apart(op)

    def _on_vectors(self, op: Op) -> None:
        """Emit ``op`` as it is emitted elsewhere, on vectors."""
        self._vector = True
        super().emit(op)
        self._vector = False

    def _count_apart(self, op: Op) -> None:
        """Compute an index that grows evenly apart in the first lane, for addresses: taken out of the vector, it would wait for all."""
        vectors = {a: self.env[a] for a in (*op.args, op)}
        self.env.update({a: self._first[a] for a in op.args if a in self._first})
        super().emit(op)
        self._first[op] = self.env[op]
        self.env.update(vectors)

    def _both_arms(self, op: Op) -> None:
        """Both branches, one after the other: they have no effects."""
        condition = f"{self.vector_type(u1)} {self.env[op.args[0]]}"
        arms = [self.region(region) for region in op.regions]
        types = [type_name(t) for t in self.lane_types(op)]
        self.env[op] = [self.value(f"select {condition}, {t} {a}, {t} {b}") for t, a, b in zip(types, *arms)]

    def _access(self, op: Op) -> None:
        """Neighbouring elements: the address of that of the first lane."""
        pointer = self._first_address(op)
        if self._mask and is_adstack(op):
            self._adstack_access(op, pointer)
        elif self._mask:
            self._masked_access(op, pointer)
        else:
            self._whole_access(op, pointer)

    def _first_address(self, op: Op) -> str:
        """The address of the element of the first lane."""
        index = op.args[0]
        indices = self.env[index]
        self.env[index] = self._first.get(index, indices)
        pointer = self.address(op.attr, index)
        self.env[index] = indices
        return pointer

    def _whole_access(self, op: Op, pointer: str) -> None:
        vector, align = self.vector_type(op.attr.dtype), op.attr.dtype.size
        if op.code is ops.load:
            self.set(op, f"load {vector}, {pointer}, align {align}")
        else:
            self.line(f"store {vector} {self._as_vector(op.args[1])}, {pointer}, align {align}")

    def _adstack_access(self, op: Op, pointer: str) -> None:
        """As a whole if all lanes have thread slots, spare ones included: some CPUs take long for masked stores."""
        whole, part, done = self.new_labels("whole", "part", "access")
        self.line(f"br i1 {self._all}, label %{whole}, label %{part}")
        values = []
        for label, access in ((whole, self._whole_access), (part, self._masked_access)):
            self.start(label)
            access(op, pointer)
            values.append(f"[ {self.env.get(op)}, %{label} ]")
            self.goto(done)
        self.start(done)
        if op.code is ops.load:
            self.set(op, f"phi {self.vector_type(op.type)} {', '.join(values)}")

    def adstack_index(self, index: str, t: DType) -> tuple[str, DType]:
        return (self.value(f"mul nsw i64 {self.resize(index, t, i64)}, {self._stride}"), i64)

    def _masked_access(self, op: Op, pointer: str) -> None:
        """Neighbouring elements, of the lanes that have an iteration: no memory may follow the last one's."""
        t = op.attr.dtype
        vector, suffix = self.vector_type(t), f"v{self.lanes}{FunctionEmitter.overload(self, t)}.p0"
        mask = f"{self._mask_type} {self.effective()}"
        if op.code is ops.store:
            callee = self.module.declare(f"llvm.masked.store.{suffix}", "void", f"{vector}, ptr, i32, {self._mask_type}")
            self.line(f"call void {callee}({vector} {self._as_vector(op.args[1])}, {pointer}, i32 {t.size}, {mask})")
            return
        others = self.spread(self.value(f"load {type_name(t)}, {pointer}, align {t.size}"), t)
        callee = self.module.declare(f"llvm.masked.load.{suffix}", vector, f"ptr, i32, {self._mask_type}, {vector}")
        self.set(op, f"call {vector} {callee}({pointer}, i32 {t.size}, {mask}, {vector} {others})")

    def _gather(self, op: Op) -> None:
        """Elements anywhere, one for each lane. Those of lanes without an iteration are where that of the first is: no mask is needed."""
        t = op.attr.dtype
        self._vector = True
        pointers = self.pointer(op.attr, op.args[0])
        self._vector = False
        vector, addresses = self.vector_type(t), f"<{self.lanes} x ptr>"
        name = f"llvm.masked.gather.v{self.lanes}{FunctionEmitter.overload(self, t)}.v{self.lanes}p0"
        callee = self.module.declare(name, vector, f"{addresses}, i32, {self._mask_type}, {vector}")
        self.set(op, f"call {vector} {callee}({addresses} {pointers}, i32 {t.size}, {self._mask_type} splat (i1 true), {vector} poison)")

    def _interleaved_load(self, op: Op) -> None:
        """Every n-th element."""
        stride = self.found.lane_stride(op.args[0])
        values = interleaved_load(self, op.attr.dtype, stride, [(self._first_address(op), self.effective())])
        self.env[op] = self._where_active(values, self.spread(self._lane(values, op.type, 0), op.type), op.type)

    def _add_once(self, op: Op) -> None:
        """All lanes add to one element: their sum."""
        index, value = op.args
        t, kind = op.attr[1].dtype, "fadd" if op.attr[1].dtype.is_float else "add"
        zero = literal(-0.0 if t.is_float else 0, t)  # 0.0 makes 0.0 of -0.0
        vector, vt = self._as_vector(value), self.vector_type(t)
        if self._mask:
            vector = self._chosen(self.effective(), vector, f"splat ({type_name(t)} {zero})", t)
        start, params, flags = (f"{type_name(t)} {zero}, ", f"{type_name(t)}, {vt}", "reassoc ") if t.is_float else ("", vt, "")
        name = f"llvm.vector.reduce.{kind}.v{self.lanes}{FunctionEmitter.overload(self, t)}"
        total = self.value(f"call {flags}{type_name(t)} {self.module.declare(name, type_name(t), params)}({start}{vt} {vector})")
        self.line(f"atomicrmw {kind} {self.address(op.attr[1], index)}, {type_name(t)} {total} monotonic, align {t.size}")

    # --- lane by lane ---

    def _lane_by_lane(self, op: Op) -> None:
        """``op`` in a loop over the lanes that have an iteration, whose operands and results pass through memory."""
        varying = {a: self.env[a] for a in op.args if self.found.varies(a)}
        arrays = {a: self._in_memory(a.type, vector) for a, vector in varying.items()}
        result = self._in_memory(op.type) if op in self.found.used else ""

        def one(lane: str) -> None:
            for a, array in arrays.items():
                self.env[a] = self._element(array, a.type, lane)
            self.handlers[op.code](self, op)
            if result:
                self._set_element(result, op, lane)

        self._for_lanes(one)
        self.env.update(varying)
        if result:
            self.env[op] = self._from_memory(result, op.type)

    def _for_lanes(self, one: Callable[[str], None]) -> None:
        """A loop over the lanes that have an iteration; ``one`` appends its body, given the number of the lane, an i64."""
        loop, done = self.new_labels("lane", "lane.end")
        before = self.label
        self.goto(loop)
        self.start(loop)
        phis = Phis(self, ["i64"])
        (lane,) = phis.names
        one(lane)
        following = self.value(f"add nuw i64 {lane}, 1")
        again = self.value(f"icmp ult i64 {following}, {self._active}")
        self.line(f"br i1 {again}, label %{loop}, label %{done}{self._loop_metadata()}")
        phis.fill((["0"], before), ([following], self.label))
        self.start(done)

    def _loop_metadata(self) -> str:
        if not self._lane_loop:
            self._lane_loop = f", !llvm.loop {self.module.node(f'distinct !{{{{self}}, {self.module.node(_NOT_UNROLLED)}}}')}"
        return self._lane_loop

    def _in_memory(self, t: Type, vector: str = "") -> str:
        """Stack memory for a value of each lane, with ``vector`` in it. A byte for each u1."""
        name, stored = self.name(), i8 if t is u1 else t
        self.entry.append(f"  {name} = alloca {self.vector_type(stored)}, align 64")
        if vector:
            if t is u1:
                vector = self.value(f"zext {self._mask_type} {vector} to {self.vector_type(i8)}")
            self.line(f"store {self.vector_type(stored)} {vector}, ptr {name}")
        return name

    def _element(self, array: str, t: Type, lane: str) -> str:
        """The value of one lane."""
        if t is u1:
            return self.value(f"trunc i8 {self._element(array, i8, lane)} to i1")
        return self.value(f"load {type_name(t)}, ptr {self._place(array, t, lane)}")

    def _set_element(self, array: str, op: Op, lane: str) -> None:
        t, text = op.type, self.typed(op)
        if t is u1:
            t, text = i8, f"i8 {self.value(f'zext {text} to i8')}"
        self.line(f"store {text}, ptr {self._place(array, t, lane)}")

    def _place(self, array: str, t: Type, lane: str) -> str:
        assert isinstance(t, DType)
        return element(self, array, Lanes(self.lanes, t), f"i64 {lane}")

    def _from_memory(self, array: str, t: Type) -> str:
        """The values of the lanes; lanes without an iteration get that of the first."""
        vector = self.value(f"load {self.vector_type(i8 if t is u1 else t)}, ptr {array}")
        if t is u1:
            vector = self.value(f"trunc {self.vector_type(i8)} {vector} to {self._mask_type}")
        return self._where_active(vector, self.spread(self._lane(vector, t, 0), t), t) if self._mask else vector


_LaneHandler = Callable[[LaneEmitter, Op], None]
# In lockstep: control flow; and what differs between the lanes, where it is not merely emitted on vectors.
_CONTROL: dict[OpCode, _LaneHandler] = {ops.for_: LaneEmitter._for, ops.if_: LaneEmitter._if, ops.result: emit_result}
_VARYING: dict[OpCode, _LaneHandler] = {
    **{code: LaneEmitter._lane_by_lane for code, handler in OP_MAP.items() if isinstance(handler, Math)},
    ops.load: LaneEmitter._load,
    ops.store: LaneEmitter._store,
    ops.atomic: LaneEmitter._atomic,
    ops.call: LaneEmitter._call,
    **dict.fromkeys((ops.add, ops.sub, ops.mul, ops.cast), LaneEmitter._integer),
}

"""Control flow of vectorised iterations. Control flow that is uniform across lanes stays unchanged. Where lanes diverge, a branch or a loop
runs as long as any lane needs it, under a mask of these lanes (Karrenberg and Hack, "Whole-function vectorization").

Masks that are SSA values are wide (i32 with all bits set, or none), and so are truth values that cross the boundary of a block, because
CPUs without mask registers would convert vectors of u1 at each boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spirograd.base.dtypes import DType, Lanes, Type, i32, scalar_of, u1, unsigned
from spirograd.ir import ops
from spirograd.ir.chunk_loops import note_ranges
from spirograd.ir.nodes import Op, Region
from spirograd.transforms.loops.lane_values import LaneValues, Live

# A function that builds the operations of a region of the loop, and returns its results.
Build = Callable[[Region], Sequence[Op]]


class LaneControl:
    """A builder of control operations for ``v``. ``build`` builds their regions."""

    def __init__(self, v: LaneValues, build: Build) -> None:
        self.v, self.build = v, build
        self.counters: dict[Op, Op] = {}  # divergent loop -> the iterations before the current one (backwards: after it)

    def emit(self, op: Op) -> None:
        divergent = op in self.v.plan.divergent
        if op.code is ops.for_:
            note_ranges(self.v.ranges, op)
            self.v.results[op] = self._divergent_for(op) if divergent else self._for(op)
        elif op.code is ops.while_:
            self.v.results[op] = self._while(op)
        elif divergent:
            self.v.results[op] = self._masked_if(op)
        elif self.v.plan.varies(op.args[0]):
            self.v.results[op] = self._both_arms(op)
        else:
            arms = [self.v.block((), lambda region=region: self.build(region)) for region in op.regions]
            self.v.results[op] = self.v.b.if_(self.v.scalar(op.args[0]), *arms)

    def _for(self, op: Op) -> Sequence[Op]:
        v, (body,) = self.v, op.regions
        begin, end = (v.scalar(a) for a in op.args[:2])
        initial = [v.vector(a) if mixed else v.scalar(a) for a, mixed in zip(op.args[2:], v.plan.mixed[op])]

        def once(*params: Op) -> Sequence[Op]:
            v.bind(body.params, params)
            return self.build(body)

        return v.b.for_(begin, end, initial, v.block([begin.type, *[a.type for a in initial]], once), op.attr)

    def _both_arms(self, op: Op) -> Sequence[Op]:
        """Build both branches, one after the other, because they have no effects."""
        condition = self.v.vector(op.args[0])
        arms = [self.build(region) for region in op.regions]
        return [self.v.choose(condition, a, b) for a, b in zip(*arms)]

    # --- under masks ---

    def _both(self, mask: Op) -> Op:
        """Return the live lanes of a mask."""
        return mask if self.v.live is None else self.v.emit(ops.and_, self.v.live.mask, mask)

    def _terms(self, condition: Op) -> list[Op]:
        """Return the terms of a conjunction that varies. A condition of groups of lanes is one term, a constant mask for each group."""
        if condition.code is ops.and_ and self.v.plan.varies(condition) and not self.v.plan.grouped(condition):
            return [term for a in condition.args for term in self._terms(a)]
        return [condition]

    def _restricted(self, mask: Op | None, *conditions: Op) -> Op | None:
        """Return the lanes of a mask (None: all lanes) in which the conditions hold. They restrict it one after the other, because vectors
        of u1 would be packed into bytes."""
        v = self.v
        for condition in conditions:
            wide = v.wide(v.vector(condition))
            mask = wide if mask is None else v.emit(ops.and_, mask, wide)
        return mask

    def _with_live(self, mask: Op, region: Region) -> Sequence[Op]:
        """Build ``region`` for the lanes of ``mask``, which has at least one."""
        v, outer = self.v, self.v.live
        bits = v.bits(v.narrow(mask))
        v.live = Live(mask, bits, v.emit(ops.ctz, bits))
        values = self.build(region)
        v.live = outer
        return values

    def _packed(self, value: Op) -> Op:
        return self.v.wide(value) if _is_truth(value.type) else value

    def _unpacked(self, value: Op, t: Type) -> Op:
        return self.v.narrow(value) if t is u1 else value

    def _carried_type(self, t: Type) -> Type:
        return Lanes(self.v.lanes, i32) if t is u1 else self.v.lanes_of(t)

    def _masked_if(self, op: Op) -> Sequence[Op]:
        assert isinstance(op.type, tuple)
        v = self.v
        then = self._restricted(None if v.live is None else v.live.mask, *self._terms(op.args[0]))
        assert then is not None
        orelse = self._both(v.emit(ops.not_, then))
        arms = [self._arm(region, live, op.type) for region, live in zip(op.regions, (then, orelse))]
        if not op.type:
            return ()
        taken = v.narrow(then)
        return [v.choose(taken, a, b) for a, b in zip(*arms)]

    def _arm(self, region: Region, live: Op, types: Sequence[Type]) -> Sequence[Op]:
        """Build a branch that is skipped if no lane takes it. Return its results."""
        v = self.v
        if len(region.ops) == 1:
            return self.build(region)
        taken = v.block((), lambda: [self._packed(value) for value in self._with_live(live, region)])
        skipped = v.block(
            (), lambda: [v.emit(ops.splat, v.number(0, i32 if t is u1 else scalar_of(t)), type=self._carried_type(t)) for t in types]
        )
        results = v.b.if_(v.any_lane(live), taken, skipped)
        return [self._unpacked(value, t) for value, t in zip(results, types)]

    def _while(self, op: Op) -> Sequence[Op]:
        assert isinstance(op.type, tuple)
        v, (condition, body), types, varying = self.v, op.regions, op.type, self.v.plan.mixed[op]
        live = v.live.mask if v.live is not None else v.splat(v.number(-1, i32))
        initial = [live, *[self._packed(v.vector(a)) if varies else v.scalar(a) for a, varies in zip(op.args, varying)]]
        carried_types = [a.type for a in initial]

        def unpacked(values: Sequence[Op]) -> list[Op]:
            return [self._unpacked(value, t) if varies else value for value, t, varies in zip(values, types, varying)]

        def test(live: Op, *packed: Op) -> Sequence[Op]:
            """Return whether the loop continues, and the lanes that continue."""
            v.bind(condition.params, unpacked(packed))
            self._with_live(live, condition)
            terms = self._terms(condition.results[0])
            going = self._restricted(live, *[term for term in terms if v.plan.varies(term)])
            assert going is not None
            proceeds = v.any_lane(going)
            for term in terms:
                if not v.plan.varies(term):  # If it is false, no lane continues.
                    proceeds = v.emit(ops.and_, proceeds, v.scalar(term))
            return [proceeds, going]

        def once(live: Op, *rest: Op) -> Sequence[Op]:
            *packed, going = rest
            carried = unpacked(packed)
            v.bind(body.params, carried)
            return [going, *self._next(op, going, carried, self._with_live(going, body))]

        regions = v.block(carried_types, test), v.block([*carried_types, live.type], once)
        loop = v.b.emit(ops.while_, *initial, type=tuple(carried_types), regions=regions)
        _, *packed = v.b.results(loop)
        return unpacked(packed)

    def _next(self, op: Op, live: Op, old: Sequence[Op], new: Sequence[Op], always: bool = False) -> list[Op]:
        """Return the loop-carried values: the new ones in live lanes, and the old ones in lanes that have ended, if these are used after
        the loop."""
        kept = [always or (op, k) in self.v.plan.results for k in range(len(old))]
        mask = self.v.narrow(live) if any(kept) else None
        return [self._packed(b if mask is None or not keep else self.v.choose(mask, b, a)) for keep, a, b in zip(kept, old, new)]

    def _divergent_for(self, op: Op) -> Sequence[Op]:
        """Build a loop in which lanes count together, from 0 to the largest trip count."""
        assert isinstance(op.type, tuple)
        v, (body,), types = self.v, op.regions, op.type
        t = body.params[0].type
        assert isinstance(t, DType)
        backwards, trips = op in v.plan.backwards, self._trips(op, t)
        most = v.emit(ops.reduce_lanes, trips, attr="max", type=unsigned(t))
        initial = [self._packed(v.vector(a)) for a in op.args[2:]]

        def once(counter: Op, *packed: Op) -> Sequence[Op]:
            count = counter
            if backwards:
                count = v.emit(ops.sub, most, v.emit(ops.add, counter, v.number(1, unsigned(t)), attr="nsw"))
            counts = v.splat(count)
            live = v.wide(v.emit(ops.lt, counts, trips, type=Lanes(v.lanes, u1)))
            carried = [self._unpacked(value, r) for value, r in zip(packed, types)]
            self.counters[op] = self._cast(count, t)
            v.bind(body.params, [self._index(op, trips, counts, t), *carried])
            return self._next(op, live, carried, self._with_live(live, body), always=backwards)

        region = v.block([unsigned(t), *[a.type for a in initial]], once)
        results = v.b.for_(v.number(0, unsigned(t)), most, initial, region, op.attr)
        return [self._unpacked(value, r) for value, r in zip(results, types)]

    def _cast(self, value: Op, t: DType) -> Op:
        """Return the bits of ``value`` as a ``t``."""
        target = _like(value.type, t)
        return value if value.type == target else self.v.emit(ops.bitcast, value, type=target)

    def _trips(self, op: Op, t: DType) -> Op:
        """Return the trip count of each lane: 0 if it is not live."""
        v = self.v
        begin, end = (v.vector(a) for a in op.args[:2])
        some = v.emit(ops.lt, begin, end, type=Lanes(v.lanes, u1))
        if v.live is not None:
            some = v.emit(ops.and_, some, v.narrow(v.live.mask))
        trips = v.choose(some, v.emit(ops.sub, end, begin), v.splat(v.number(0, t)))
        return self._cast(trips, unsigned(t))

    def _index(self, op: Op, trips: Op, counts: Op, t: DType) -> Op:
        """Return the index of each lane, or the index that all lanes share."""
        v, begin = self.v, op.args[0]
        if op in v.plan.backwards:
            last = v.emit(ops.sub, self._cast(trips, t), v.splat(v.number(1, t)))
            return v.emit(ops.sub, last, self._cast(counts, t))
        if v.plan.varies(begin):
            return v.emit(ops.add, v.env[begin], self._cast(counts, t))
        return v.emit(ops.add, v.scalar(begin), self.counters[op])


def _like(t: Type, elem: DType) -> Type:
    """Return a type with as many values as ``t``, of type ``elem``."""
    return Lanes(t.n, elem) if isinstance(t, Lanes) else elem


def _is_truth(t: Type) -> bool:
    return isinstance(t, Lanes) and t.elem is u1

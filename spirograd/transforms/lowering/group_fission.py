"""Fission of grouped tasks on CPUs: an iteration of the task is a group, whose threads are iterations of loops between the points at which
they synchronise.

A value that is used beyond such a point is kept in an array with an element for each thread, unless it is cheap to recompute. Loops and
branches in which all threads synchronise run once for the group; a condition that is not known to be uniform is taken from the first
thread. In branches and loops in which only subgroups synchronise, a mask says which threads take part: a branch runs if any thread takes
it, and iteration k of a loop runs for all threads that have one, so that threads synchronise as in the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from spirograd.analysis.group_values import GroupValues, meets
from spirograd.base.artifact import FaultSite
from spirograd.base.dtypes import VOID, DType, Type, Vec, i32, u1, u8, u32
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Kernel, Op, Region, SharedRef
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.lowering.group_bodies import GroupBody, lane_of_group
from spirograd.transforms.pass_context import PassContext

# The number of operations that cost as much as a load and a store of a value.
_CHEAP = 6


def fission_groups(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Turn grouped tasks into tasks over groups, on targets without invocations."""
    return kernel if ctx.caps.target.invocations else _FissionGroups(ctx).kernel(kernel)


def divergence_sites(kernel: Kernel, ctx: PassContext) -> tuple[FaultSite, ...]:
    """Return the fault sites of the checks for divergence that `fission_groups` emits where indices are checked."""
    if ctx.caps.target.invocations or not ctx.options.check_bounds:
        return ()
    tasks = [op for op in kernel.body.ops if op.code is ops.task and op.attr.grouped]
    return tuple([_divergence(op) for task in tasks for op in task.regions[1].walk() if op.regions and meets(op)])


def _divergence(op: Op) -> FaultSite:
    message = "threads of a group diverge at this branch or loop, in which they synchronise: all of them must take the same path"
    return FaultSite("barrier", message, (), op.loc)


class _FissionGroups(Rewriter):
    def __init__(self, ctx: PassContext) -> None:
        super().__init__()
        self.caps, self.checks = ctx.caps, ctx.options.check_bounds
        self.handlers = {ops.task: self._task}

    def _task(self, op: Op) -> Op:
        if not op.attr.grouped:
            return self.b.append(op)
        b, size = self.b, op.attr.group_size
        bounds, body, finish = op.regions
        b.begin()
        begin, end, *slots = self.inline(bounds, (), clone=True)
        t = begin.type
        assert isinstance(t, DType)
        one, last = b.const(1, t), b.emit(ops.sub, end, begin)
        full_groups = b.emit(ops.add, b.emit(ops.idiv, b.emit(ops.sub, last, one), b.const(size, t)), one)
        groups = b.emit(ops.select, b.emit(ops.lt, begin, end), full_groups, b.const(0, t))
        new_bounds = b.end([b.const(0, t), groups, *slots])
        (number,) = b.begin(t)
        self.env = {}
        begin, end, *_ = self.inline(bounds, (), clone=True)
        from_zero = bounds.results[0].code is ops.const and bounds.results[0].attr == 0
        values = GroupValues(body, size, from_zero, native=False)
        first = b.emit(ops.add, begin, b.emit(ops.mul, number, b.const(size, t), attr="nsw"))
        count = b.cast(b.emit(ops.min_, b.const(size, t), b.emit(ops.sub, end, first)), i32)
        FissionedBody(b, values, self.caps.group_lanes, size, first, count, self.checks).statements(body)
        new_body = Region((number,), b.end().ops)
        return b.append(Op(ops.task, VOID, (), op.attr, (new_bounds, new_body, finish), op.loc))


class FissionedBody(GroupBody):
    """The body of a group. ``first``: the index of its first thread; ``count``: the number of its threads."""

    def __init__(self, b: Builder, values: GroupValues, lanes: int, size: int, first: Op, count: Op, checks: bool) -> None:
        super().__init__(b, values)
        self.checks = checks
        self.handlers |= {ops.subgroup_read: self._read, ops.subgroup_ballot: self._ballot, ops.atomic: self._atomic}
        self.handlers[ops.builtin] = lambda op: self.thread_number()  # the only one that precedes this pass
        self.lanes, self.size, self.first, self.count = lanes, size, first, count
        self.env[values.index] = first  # stands for the index of each thread where values of the group are computed from it
        self.kept: dict[Op, tuple[SharedRef, ...]] = {}  # values of each thread, in memory
        self.read: dict[Op, tuple[SharedRef, ...]] = {}  # by operation: arrays that subgroups read; for votes, a word for each subgroup
        self.arrays = 0
        self.mask: SharedRef | None = None  # the mask of threads that take part; None: all
        self.thread: Op | None = None  # the number of the thread, inside of a loop over threads

    # --- loops over threads --------------------------------------------------------------------------------------------------

    def _each_thread(self, masked: bool = True) -> Iterator[None]:
        """Emit a loop over the threads that take part; operations emitted meanwhile are its body."""
        b, outer = self.b, self.env
        zero = b.const(0)
        (self.thread,) = b.begin(i32)
        mask = self.mask if masked else None
        if mask is not None:
            takes = b.emit(ops.ne, b.load(mask, self.thread), b.const(0, u8))
            b.begin()
        index = self.values.index
        assert isinstance(index.type, DType)
        self.env = {**outer, index: b.emit(ops.add, self.first, b.cast(self.thread, index.type), attr="nsw")}
        yield
        if mask is not None:
            then = b.end()
            b.begin()
            b.if_(takes, then, b.end())
        b.for_(zero, self.count, (), b.end())
        self.env, self.thread = outer, None

    def flush(self) -> None:
        done, self.pending = self.pending, []
        if not done:
            return
        out = [op for op in self.left(done) if not self._is_cheap(op)]
        for op in out:
            self.kept.setdefault(op, self._new_arrays(op.type))
        if all(op.code.effect == "pure" for op in done) and not out:
            return
        for _ in self._each_thread():
            for op in done:
                self._fetch_operands(op)
                self.visit(op)
                self.env.setdefault(op, op)  # without operands, the operation is its own replacement
                if op in self.kept:
                    self._keep(self.kept[op], self.value(op))

    def _fetch_operands(self, op: Op) -> None:
        for value in (*op.args, *[v for region in op.regions for v in region.uses_from_outside()]):
            self._fetch(value)

    def _fetch(self, value: Op) -> Op:
        """Return a value in the thread whose iteration is being emitted."""
        if value in self.env:
            return self.env[value]
        if value in self.kept:
            self.env[value] = self._held(self.kept[value], value.type, self.thread_number())
        else:
            assert value.code.effect == "pure", value
            for a in value.args:
                self._fetch(a)
            self.cloning += 1
            self.visit(value)
            self.cloning -= 1
        return self.env[value]

    def thread_number(self) -> Op:
        assert self.thread is not None
        return self.thread

    def _is_cheap(self, value: Op, budget: int = _CHEAP) -> bool:
        """Return whether a value should be recomputed from the index and values of the group."""
        return self._cost(value) <= budget

    def _cost(self, value: Op) -> int:
        if value is self.values.index or value in self.values.shared:
            return 0
        if value.code.effect != "pure" or value.regions or value.code in (ops.result, ops.call, ops.param) or value in self.kept:
            return _CHEAP + 1
        total = 1
        for a in value.args:
            total += self._cost(a)
            if total > _CHEAP:
                break
        return total

    # --- values of threads in memory -----------------------------------------------------------------------------------------

    def _new_arrays(self, t: Type) -> tuple[SharedRef, ...]:
        elem, n = (t.elem, t.n) if isinstance(t, Vec) else (t, 1)
        assert isinstance(elem, DType)
        self.arrays += n
        held = u8 if elem is u1 else elem
        return tuple([SharedRef(f"kept{self.arrays - k}", held, self.size) for k in range(n)])

    def _keep(self, arrays: Sequence[SharedRef], value: Op) -> None:
        b, thread = self.b, self.thread_number()
        if isinstance(value.type, Vec):
            for k, array in enumerate(arrays):
                b.store(array, thread, b.emit(ops.extract, value, b.const(k)))
        else:
            b.store(arrays[0], thread, b.cast(value, u8) if value.type is u1 else value)

    def _held(self, arrays: Sequence[SharedRef], t: Type, thread: Op) -> Op:
        b = self.b
        if isinstance(t, Vec):
            return b.emit(ops.vec, *[b.load(array, thread) for array in arrays])
        value = b.load(arrays[0], thread)
        return b.emit(ops.ne, value, b.const(0, u8)) if t is u1 else value

    def _arrays(self, value: Op) -> tuple[SharedRef, ...]:
        """Return the arrays of a value. A value without arrays gets new ones, which hold it here, but not necessarily on other paths
        through the body."""
        if value in self.kept:
            return self.kept[value]
        arrays = self._new_arrays(value.type)
        for _ in self._each_thread():
            self._keep(arrays, self._fetch(value))
        return arrays

    def _move(self, pairs: Sequence[tuple[tuple[SharedRef, ...], Op]]) -> None:
        """Set arrays to values, all of which are read before any array is set."""
        if pairs:
            for _ in self._each_thread():
                values = [self._fetch(value) for _, value in pairs]
                for (arrays, _), value in zip(pairs, values):
                    self._keep(arrays, value)

    # --- where threads meet --------------------------------------------------------------------------------------------------

    def meet(self, op: Op) -> None:
        if op.code in (ops.workgroup_barrier, ops.subgroup_barrier):
            return
        if op.code is ops.subgroup_ballot:
            self.read[op] = (self._votes(op.args[0]),)
            self.pending.append(op)
        elif op.code is ops.subgroup_read:
            if op.args[0] not in self.values.shared:
                self.read[op] = self._arrays(op.args[0])
            self.pending.append(op)
        elif op.code is ops.if_:
            (self._divergent_if if op in self.values.divergent else self._if)(op)
        elif op.code is ops.for_:
            (self._divergent_for if op in self.values.divergent else self._for)(op)
        else:
            (self._divergent_while if op in self.values.divergent else self._while)(op)

    def _read(self, op: Op) -> Op:
        value, lane = op.args
        if value in self.values.shared:
            return self.value(value)
        source = lane_of_group(self.b, self.thread_number(), self._fetch(lane), self.lanes, self.count)
        return self._held(self.read[op], value.type, source)

    def _votes(self, holds: Op) -> SharedRef:
        """Return an array with a word for each subgroup, in which the bits of threads that take part and for which ``holds`` is true are
        set."""
        b = self.b
        self.arrays += 1
        words = SharedRef(f"votes{self.arrays}", u32, -(-self.size // self.lanes))
        zero, count, none = b.const(0), b.const(words.length), b.const(0, u32)
        (k,) = b.begin(i32)
        b.store(words, k, none)
        b.for_(zero, count, (), b.end())
        for _ in self._each_thread():
            bit = b.emit(ops.shl, b.const(1, u32), b.cast(b.emit(ops.and_, self.thread_number(), b.const(self.lanes - 1)), u32))
            vote = b.emit(ops.select, self._fetch(holds), bit, b.const(0, u32))
            place = self._subgroup()
            b.store(words, place, b.emit(ops.or_, b.load(words, place), vote))
        return words

    def _subgroup(self) -> Op:
        return self.b.emit(ops.shr, self.thread_number(), self.b.const(self.lanes.bit_length() - 1))

    def _ballot(self, op: Op) -> Op:
        return self.b.load(self.read[op][0], self._subgroup())

    def _atomic(self, op: Op) -> Op:
        """Return the result of an atomic. The threads of a group run one after the other, so shared memory needs no atomics."""
        kind, ref = op.attr
        if not isinstance(ref, SharedRef):
            return self.copy(op)
        return self.b.update(kind, ref, *self.args(op))

    def _of_group(self, value: Op, op: Op) -> Op:
        """Return the value in the first thread of ``value``, on which the control operation ``op`` depends."""
        if value in self.values.shared:
            return self.value(value)
        if self.checks:
            b, arrays = self.b, self._arrays(value)
            for _ in self._each_thread():
                mine, zero = self._held(arrays, value.type, self.thread_number()), b.const(0)
                same = b.emit(ops.eq, mine, self._held(arrays, value.type, zero))
                b.emit(ops.check, same, attr=_divergence(op), type=VOID)
        return self._held(self._arrays(value), value.type, self.b.const(0))

    def _results(self, op: Op) -> tuple[list[Op], dict[int, tuple[SharedRef, ...]]]:
        """Return the results of a control operation that are values of the group, and arrays for its other results, by number."""
        results = self.values.results.get(op, [])
        own = {r.attr: self._new_arrays(r.type) for r in results if r not in self.values.shared}
        self.kept.update({r: own[r.attr] for r in results if r.attr in own})
        return [r for r in results if r in self.values.shared], own

    def _branch(self, region: Region, own: dict[int, tuple[SharedRef, ...]]) -> None:
        self.statements(region)
        self._move([(arrays, region.results[k]) for k, arrays in own.items()])

    def _if(self, op: Op) -> None:
        b, condition = self.b, self._of_group(op.args[0], op)
        common, own = self._results(op)
        regions = []
        for region in op.regions:
            b.begin()
            self._branch(region, own)
            regions.append(b.end([self.value(region.results[r.attr]) for r in common]))
        self.env.update(zip(common, b.if_(condition, *regions)))

    def _divergent_if(self, op: Op) -> None:
        """Emit both branches, each with a mask."""
        _, own = self._results(op)
        b, outer = self.b, self.mask
        conditions = (lambda: self._fetch(op.args[0]), lambda: b.emit(ops.not_, self._fetch(op.args[0])))
        for takes, region in zip(conditions, op.regions):
            if len(region.ops) == 1 and not own:
                continue  # the branch is empty
            mask = self._taking_part(takes)
            some = self._any(mask)
            b.begin()
            self.mask = mask
            self._branch(region, own)
            self.mask = outer
            then = b.end()
            b.begin()
            b.if_(some, then, b.end())

    def _taking_part(self, holds: Callable[[], Op]) -> SharedRef:
        """Return a mask of the threads that take part and for which ``holds``, which is emitted in a loop over these threads, is true."""
        b, (mask,) = self.b, self._new_arrays(u1)
        if self.mask is not None:
            for _ in self._each_thread(masked=False):
                b.store(mask, self.thread_number(), b.const(0, u8))
        for _ in self._each_thread():
            self._keep((mask,), holds())
        return mask

    def _any(self, mask: SharedRef) -> Op:
        """Return whether a mask contains a thread."""
        b = self.b
        zero, none = b.const(0), b.const(0, u8)
        thread, any_bit = b.begin(i32, u8)
        (total,) = b.for_(zero, self.count, (none,), b.end([b.emit(ops.or_, any_bit, b.load(mask, thread))]))
        return b.emit(ops.ne, total, none)

    def _carried(self, op: Op, fixed: int) -> tuple[list[int], dict[int, tuple[SharedRef, ...]]]:
        """Return the loop-carried values of the group, by number, and arrays for the others; both hold the initial values."""
        initial = op.args[fixed:]
        count = len(initial)
        params = [region.params[len(region.params) - count :] for region in op.regions]
        common = [k for k in range(count) if params[0][k] in self.values.shared]
        own = {k: self._new_arrays(value.type) for k, value in enumerate(initial) if k not in common}
        self._move([(arrays, initial[k]) for k, arrays in own.items()])
        for names in params:
            self.kept.update({names[k]: arrays for k, arrays in own.items()})
        for r in self.values.results.get(op, ()):
            if r.attr in own:
                self.kept[r] = own[r.attr]
        return common, own

    def _enter(self, region: Region, common: Sequence[int], count: int) -> None:
        """Open a region whose parameters are the values of the group."""
        fixed = len(region.params) - count
        kept = [*region.params[:fixed], *[region.params[fixed + k] for k in common]]
        self.env.update(zip(kept, self.b.begin(*[p.type for p in kept], names=[p.attr for p in kept])))

    def _finished(self, op: Op, common: Sequence[int], values: Sequence[Op]) -> None:
        for r in self.values.results.get(op, ()):
            if r.attr in common:
                self.env[r] = values[common.index(r.attr)]

    def _for(self, op: Op) -> None:
        begin, end = [self._of_group(v, op) for v in op.args[:2]]
        common, own = self._carried(op, 2)
        (region,) = op.regions
        initial = [self.value(op.args[2 + k]) for k in common]
        self._enter(region, common, len(op.args) - 2)
        self._branch(region, own)
        body = self.b.end([self.value(region.results[k]) for k in common])
        self._finished(op, common, self.b.for_(begin, end, initial, body, replace(op.attr)))

    def _while(self, op: Op) -> None:
        common, own = self._carried(op, 0)
        initial = [self.value(op.args[k]) for k in common]
        condition, body = op.regions
        self._enter(condition, common, len(op.args))
        self.statements(condition)
        tested = self.b.end([self._of_group(condition.results[0], op)])
        self._enter(body, common, len(op.args))
        self._branch(body, own)
        repeated = self.b.end([self.value(body.results[k]) for k in common])
        self._finished(op, common, self.b.while_(initial, tested, repeated))

    def _divergent_for(self, op: Op) -> None:
        """Emit a loop that runs iteration k of each thread that has one, for k from 0 on. Each thread has an index and a mask."""
        b, outer, (region,) = self.b, self.mask, op.regions
        _, own = self._carried(op, 2)
        t = region.params[0].type
        assert isinstance(t, DType)
        number = self.kept[region.params[0]] = self._new_arrays(t)
        last = self._new_arrays(t)

        def enters() -> Op:
            begin, end = [self._fetch(v) for v in op.args[:2]]
            self._keep(number, begin)
            self._keep(last, end)
            return b.emit(ops.lt, begin, end)

        mask = self._taking_part(enters)
        b.begin()
        tested = b.end([self._any(mask)])
        b.begin()
        self.mask = mask
        self._branch(region, own)
        for _ in self._each_thread():
            held, end = [self._held(arrays, t, self.thread_number()) for arrays in (number, last)]
            following = b.emit(ops.add, held, b.const(1, t), attr="nsw")
            self._keep(number, following)
            self._keep((mask,), b.emit(ops.lt, following, end))
        self.mask = outer
        b.while_((), tested, b.end())

    def _divergent_while(self, op: Op) -> None:
        """Emit the condition and the body for the threads that have not left the loop."""
        b, outer, (condition, body) = self.b, self.mask, op.regions
        _, own = self._carried(op, 0)
        mask = self._taking_part(lambda: b.const(True, u1))
        b.begin()
        self.mask = mask
        self.statements(condition)
        for _ in self._each_thread():
            self._keep((mask,), self._fetch(condition.results[0]))
        tested = b.end([self._any(mask)])
        b.begin()
        self._branch(body, own)
        self.mask = outer
        b.while_((), tested, b.end())

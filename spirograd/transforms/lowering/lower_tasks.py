"""Lowering of tasks to the code of each invocation of a GPU: a grid-stride loop, then the reduction within its workgroup."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from spirograd.analysis.exchangeable import is_exact
from spirograd.analysis.group_values import GroupValues
from spirograd.analysis.workgroups import (
    RowBlocks,
    coarsening_factor,
    group_size,
    groups_together,
    is_short,
    row_blocks,
    strided_factor,
)
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import VOID, DType, i32, u1, unsigned
from spirograd.base.options import SINGLY
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BuiltIn, Kernel, LoopAttr, Op, PrivateCopy, Reduction, Region, SharedRef, TaskAttr
from spirograd.ir.rewrite import Rewriter
from spirograd.ir.whole_groups import are_whole
from spirograd.transforms.lowering.assumed_guards import AssumedGuards, Evaluation, assume_guards
from spirograd.transforms.lowering.group_bodies import MaskedBody, check_divergence
from spirograd.transforms.pass_context import PassContext


def lower_tasks(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Turn every task into one of kind "invocations", on targets that have invocations. The result is correct for any number of workgroups.

    A serial task runs in invocation 0. In a range task each invocation evaluates the bounds, then runs every n-th iteration, where n is the
    number of invocations; or every n-th block of iterations (thread coarsening), and one iteration of the remainder. The iterations of a
    block are consecutive, or a workgroup size apart. Accumulators are combined in each workgroup, whose first invocation then runs
    ``finish``.
    """
    return _LowerTasks(ctx).kernel(kernel) if ctx.caps.target.invocations else kernel


# Loads behind guards, from which on a version of the body without branches pays, although one iteration runs at a time.
_GUARDED_LOADS = 2
# A function that emits the body of a loop. Given the number of the iteration and the accumulators so far, it returns the next accumulators.
_Body = Callable[[Op, Sequence[Op]], Sequence[Op]]


@dataclass(frozen=True, slots=True)
class _Share:
    """The iterations of one invocation: every ``stride``-th of ``count`` from number ``first`` on. ``low``: the index of number 0.

    Numbers are of the unsigned type ``wide``: there may be more iterations than the ``type`` of the index has positive numbers."""

    type: DType
    wide: DType
    low: Op
    count: Op
    first: Op
    stride: Op

    def index(self, b: Builder, number: Op) -> Op:
        return _as(b, b.emit(ops.add, self.low, number), self.type)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The iterations that an invocation runs at a time: ``factor``, which are ``apart`` from each other, or ``along`` rows. ``guarded``:
    the body for those in which all guards hold, if only these run at a time."""

    factor: int
    apart: int
    along: RowBlocks | None
    guarded: AssumedGuards | None


class _LowerTasks(Rewriter):
    def __init__(self, ctx: PassContext) -> None:
        super().__init__()
        self.ctx = ctx
        self.handlers = {ops.task: self._task}

    def _task(self, op: Op) -> Op:
        size = group_size(op, self.ctx.caps, self.ctx.options)
        self.b.begin()
        coarsening, alternatives = 1, op.attr.alternatives
        if op.attr.kind == "serial":
            self._serial(op)
        elif op.attr.grouped:
            together = groups_together(op, size, self.ctx.caps)
            self._groups(op, size, together)
            size *= together
        else:
            blocks = self._blocks(op, size)
            if alternatives and blocks.factor > 1 and is_exact(op.regions[1]):
                alternatives = (*alternatives, SINGLY)
                if self.ctx.options.alternative == SINGLY:
                    blocks = _Blocks(1, 1, None, None)
            self._range(op, size, blocks)
            coarsening = blocks.factor
        old = op.attr
        attr = TaskAttr(
            "invocations", old.name, size, places=old.places, coarsening=coarsening, grouped=old.grouped, alternatives=alternatives
        )
        return self.b.append(Op(ops.task, VOID, (), attr, (self.b.end(),), op.loc))

    def _blocks(self, task: Op, size: int) -> _Blocks:
        """Return which iterations of a range task an invocation runs at a time."""
        caps, guarded = self.ctx.caps, None
        body = task.regions[1]
        if not is_short(body) and not caps.cpu_driver:
            guarded = assume_guards(body)
            if guarded is not None and not is_short(guarded.body):
                guarded = None
        if guarded is not None:
            task = Op(task.code, task.type, task.args, task.attr, (task.regions[0], guarded.body, *task.regions[2:]), task.loc)
        factor, apart, along = coarsening_factor(task, size, caps), 1, None
        if factor == 1:
            factor, apart = strided_factor(task, size, caps), size
        if factor == 1 or guarded is not None:  # Guards are about columns.
            along = row_blocks(task, size, caps)
        factor, apart = (factor, apart) if along is None else (along.factor, 1)
        if guarded is not None and (factor == 1 or not guarded.hold_in_blocks(task.regions[0], factor, apart)):
            return _Blocks(1, 1, None, guarded if guarded.guarded_loads >= _GUARDED_LOADS else None)
        return _Blocks(factor, apart, along, guarded)

    def _serial(self, op: Op) -> None:
        b = self.b
        first = b.emit(ops.eq, b.emit(ops.thread_slot, type=i32), b.const(0))
        b.begin()
        self.inline(op.regions[0], ())
        _when(b, first, b.end())

    def _groups(self, op: Op, size: int, together: int) -> None:
        """Lower a grouped task: a workgroup runs every n-th group of iterations, with all of its invocations. If several run ``together``
        in a workgroup, each of its subgroups does so."""
        b = self.b
        bounds, body, _ = op.regions
        begin, end, *slots = self.inline(bounds, ())
        b.at(op)
        share = self._share(begin, end, [self._whole_groups(slot, size * together) for slot in slots], size * together)
        number = b.emit(ops.builtin, attr=BuiltIn.LOCAL if together == 1 else BuiltIn.LANE, type=i32)
        full = are_whole(bounds.results[0], bounds.results[1], size)
        native = self.ctx.caps.subgroup_read
        from_zero = bounds.results[0].code is ops.const and bounds.results[0].attr == 0
        values = GroupValues(body, size, from_zero, native)
        if not native:
            check_divergence(values)

        def group(first: Op, _: Sequence[Op]) -> Sequence[Op]:
            k = b.emit(ops.add, first, local)
            active = None if full else b.emit(ops.lt, k, share.count)
            masked = MaskedBody(b, values, self.ctx.caps, size, share.index(b, first), active, number)
            masked.env[body.params[0]] = share.index(b, k)
            masked.statements(body)
            masked.release()
            b.at(op)
            if together == 1:
                b.emit(ops.workgroup_barrier, type=VOID)  # before the next group uses the same memory
            return []

        one = b.const(1, share.wide)
        groups = b.emit(ops.add, b.emit(ops.idiv, b.emit(ops.sub, share.count, one), b.const(size, share.wide)), one)
        some = b.emit(ops.lt, b.const(0, share.wide), share.count)
        padded = b.emit(ops.select, some, b.emit(ops.mul, groups, b.const(size, share.wide)), b.const(0, share.wide))
        # The loop counter is uniform in a workgroup or subgroup, so that assemblers of GPUs know that its invocations take branches of the
        # loop together. (For a branch that they may not take together, ptxas emits each exchange of values twice.)
        local = b.cast(_bits(b, number), share.wide)
        if together == 1:
            first = b.emit(ops.sub, share.first, local)
        else:
            workgroup = b.emit(ops.sub, b.emit(ops.thread_slot, type=i32), b.emit(ops.builtin, attr=BuiltIn.LOCAL, type=i32))
            subgroup = b.emit(ops.subgroup_read, b.emit(ops.builtin, attr=BuiltIn.SUBGROUP, type=i32), b.const(0), type=i32)
            first = b.cast(_bits(b, b.emit(ops.add, workgroup, b.emit(ops.mul, subgroup, b.const(size)))), share.wide)
        self._strided(first, share.stride, padded, [], group, ops.UNIFORM)

    def _whole_groups(self, slots: Op, size: int) -> Op:
        """Return the number of thread slots of the whole groups of ``size`` among ``slots``."""
        return self.b.emit(ops.sub, slots, self.b.emit(ops.irem, slots, self.b.const(size)))

    def _range(self, op: Op, size: int, blocks: _Blocks) -> None:
        """Lower a range task: bounds (in every invocation), the loop, then reductions."""
        b = self.b
        bounds, body, finish, *flushes = op.regions
        begin, end, *slots = self.inline(bounds, ())
        b.at(op)
        share = self._share(begin, end, slots, size, op.attr.shares)
        self._clear(op.attr.copies, size)
        reductions: tuple[Reduction, ...] = op.attr.reductions
        totals: Sequence[Op] = [b.const(r.start, r.dtype) for r in reductions]

        def iteration(k: Op, accumulators: Sequence[Op]) -> Sequence[Op]:
            """Emit iteration ``k``, counted from 0."""
            index = share.index(b, k)
            if blocks.factor == 1 and blocks.guarded is not None:
                condition = self._hold(blocks, [{blocks.guarded.body.params[0]: index}])
                together = functools.partial(self._inlined, blocks.guarded.body, index, accumulators)
                return self._either(condition, together, functools.partial(self._inlined, body, index, accumulators))
            yielded = self.inline(body, (index, *accumulators), clone=blocks.factor > 1)
            b.at(op)
            return yielded

        some = b.emit(ops.lt, share.first, share.count)
        if blocks.along is not None:
            along = blocks.along
            number = b.const(op.regions[0].results[1].attr // along.width * along.per_row, share.wide)
            in_row = functools.partial(self._row_block, body, along, blocks, iteration, reductions)
            totals = self._strided(share.first, share.stride, number, totals, in_row)
            some = b.emit(ops.lt, share.first, number)
        elif blocks.factor == 1:
            totals = self._strided(share.first, share.stride, share.count, totals, iteration)
        else:
            totals = self._coarsened(body, share, blocks, totals, reductions, iteration)
        self._flush(op.attr.copies, flushes, size)
        if reductions:
            self._combine(reductions, totals, some, size, finish)

    def _share(self, begin: Op, end: Op, slots: Sequence[Op], size: int, shares: int = 1) -> _Share:
        """Return the iterations of this invocation. No more invocations take part than there are thread slots. ``shares``: see
        `TaskAttr`."""
        b, t = self.b, begin.type
        assert isinstance(t, DType)
        wide = unsigned(t)
        low = _bits(b, begin)
        count = b.emit(ops.select, b.emit(ops.lt, begin, end), b.emit(ops.sub, _bits(b, end), low), b.const(0, wide))
        first = b.cast(_bits(b, b.emit(ops.thread_slot, type=i32)), wide)
        workgroups = b.cast(_bits(b, b.emit(ops.builtin, attr=BuiltIn.WORKGROUPS, type=i32)), wide)
        if shares > 1:
            parts, group_size = b.const(shares, wide), b.const(size, wide)
            workgroup, local = b.emit(ops.idiv, first, group_size), b.emit(ops.irem, first, group_size)
            part = b.emit(ops.irem, workgroup, parts)
            first = b.emit(ops.add, b.emit(ops.mul, b.emit(ops.idiv, workgroup, parts), group_size), local)
            rounded = b.emit(ops.sub, b.emit(ops.add, workgroups, b.const(shares - 1, wide)), part)
            workgroups = b.emit(ops.idiv, rounded, parts)
        stride = b.emit(ops.mul, workgroups, b.const(size, wide))
        if slots:
            stride = b.emit(ops.min_, b.cast(_bits(b, slots[0]), wide), stride)
            count = b.emit(ops.select, b.emit(ops.lt, first, stride), count, b.const(0, wide))
        return _Share(t, wide, low, count, first, stride)

    def _coarsened(
        self, body: Region, share: _Share, blocks: _Blocks, totals: Sequence[Op], reductions: Sequence[Reduction], iteration: _Body
    ) -> Sequence[Op]:
        """Emit blocks of iterations, then the remainder as single iterations, by ``iteration``."""
        b, wide, factor, apart = self.b, share.wide, blocks.factor, blocks.apart
        at_a_time = body if blocks.guarded is None else blocks.guarded.body

        def block(k: Op, accumulators: Sequence[Op]) -> Sequence[Op]:
            """Emit block number ``k``."""
            start = b.emit(ops.shl, k, shift)
            if apart > 1:  # the blocks of a workgroup are interleaved
                within = b.emit(ops.and_, k, b.const(apart - 1, wide))
                start = b.emit(ops.or_, b.emit(ops.shl, b.emit(ops.sub, k, within), shift), within)
            base = b.emit(ops.add, share.low, start)
            indices = [_as(b, b.emit(ops.add, base, b.const(n * apart, wide)) if n else base, share.type) for n in range(factor)]
            known = [{at_a_time.params[0]: index} for index in indices]
            together = functools.partial(self._interleaved, at_a_time, known, accumulators, reductions)
            if blocks.guarded is None:
                return together()
            one_by_one = functools.partial(self._one_by_one, start, b.const(factor, wide), apart, accumulators, iteration)
            return self._either(self._hold(blocks, known), together, one_by_one)

        def rest(k: Op, accumulators: Sequence[Op]) -> Sequence[Op]:
            return iteration(b.emit(ops.add, done, k), accumulators)

        shift = b.const(factor.bit_length() - 1, wide)
        left = b.emit(ops.and_, share.count, b.const(factor * apart - 1, wide))
        done = b.emit(ops.sub, share.count, left)
        totals = self._strided(share.first, share.stride, b.emit(ops.shr, done, shift), totals, block)
        if apart > 1:
            return self._strided(share.first, share.stride, left, totals, rest)
        takes = b.emit(ops.lt, share.first, left)  # the first invocations take one each
        b.begin()
        last = b.end(rest(share.first, totals))
        b.begin()
        return b.if_(takes, last, b.end(totals))

    def _one_by_one(self, start: Op, count: Op, apart: int, accumulators: Sequence[Op], iteration: _Body) -> Sequence[Op]:
        """Emit a loop over the few iterations ``start``, ``start + apart``, ..."""
        b, wide = self.b, start.type
        assert isinstance(wide, DType)
        zero = b.const(0, wide)
        number, *others = b.begin(wide, *[value.type for value in accumulators])
        k = b.emit(ops.add, start, number if apart == 1 else b.emit(ops.mul, number, b.const(apart, wide)))
        yielded = iteration(k, others)
        return b.for_(zero, count, accumulators, b.end(yielded), LoopAttr(vectorise="rest"))

    def _inlined(self, body: Region, index: Op, accumulators: Sequence[Op]) -> Sequence[Op]:
        return self.inline(body, (index, *accumulators), clone=True)

    def _either(self, condition: Op, then: Callable[[], Sequence[Op]], otherwise: Callable[[], Sequence[Op]]) -> Sequence[Op]:
        b = self.b
        b.begin()
        first = b.end(then())
        b.begin()
        return b.if_(condition, first, b.end(otherwise()))

    def _hold(self, blocks: _Blocks, known: Sequence[Mapping[Op, Op]]) -> Op:
        """Emit whether all guards hold in all iterations of a block. ``known``: values of each."""
        b, guarded = self.b, blocks.guarded
        assert guarded is not None
        evaluations = [Evaluation(b, env) for env in known]
        holds = b.const(True, u1)
        for guard, value in guarded.guards.items():
            for n in range(len(known)) if blocks.along is None else blocks.along.deciding(guard):
                found = evaluations[n].of(guard)
                holds = b.emit(ops.and_, holds, found if value else b.emit(ops.not_, found))
        return holds

    def _combine(self, reductions: Sequence[Reduction], totals: Sequence[Op], some: Op, size: int, finish: Region) -> None:
        """Combine the ``totals`` of a workgroup, if they fit into shared memory, and run ``finish`` in invocations that have ``some``
        iterations."""
        b = self.b
        if size > 1 and size * sum(r.dtype.size for r in reductions) <= self.ctx.caps.shared_memory:
            local = b.emit(ops.builtin, attr=BuiltIn.LOCAL, type=i32)
            totals = _Combination(b, self.ctx.caps, local, size).run(reductions, totals)
            # The first invocation of a workgroup runs the workgroup's first iteration.
            some = b.emit(ops.and_, b.emit(ops.eq, local, b.const(0)), some)
        b.begin()
        self.inline(finish, tuple(totals))
        _when(b, some, b.end())

    def _clear(self, copies: Sequence[PrivateCopy], size: int) -> None:
        """Initialise private copies with the identity."""
        b = self.b
        for copy in copies:
            nothing = b.const(_nothing(copy), copy.shared.dtype)
            _each_element(b, copy.shared.length, size, functools.partial(b.store, copy.shared), nothing)
        if copies:
            b.emit(ops.workgroup_barrier, type=VOID)

    def _flush(self, copies: Sequence[PrivateCopy], flushes: Sequence[Region], size: int) -> None:
        """Update memory with the elements of private copies that have changed."""
        b = self.b
        if copies:
            b.emit(ops.workgroup_barrier, type=VOID)
        for copy, flush in zip(copies, flushes):
            _each_element(b, copy.shared.length - 1, size, functools.partial(self._flush_element, copy), flush)

    def _flush_element(self, copy: PrivateCopy, number: Op, flush: Region) -> None:
        b, t = self.b, copy.shared.dtype
        value = b.load(copy.shared, number)
        word = unsigned(t) if t.is_float else t  # compared by bits: 0.0 is not -0.0
        bits = b.emit(ops.bitcast, value, type=word) if t.is_float else value
        changed = b.emit(ops.ne, bits, b.const(int(t.np.type(_nothing(copy)).view(word.np)), word))
        b.begin()
        self.inline(flush, (number, value), clone=True)  # there may be several
        _when(b, changed, b.end())

    def _row_block(
        self,
        body: Region,
        along: RowBlocks,
        blocks: _Blocks,
        iteration: _Body,
        reductions: Sequence[Reduction],
        k: Op,
        accumulators: Sequence[Op],
    ) -> Sequence[Op]:
        """Emit block number ``k``: all of its iterations at once, or, at the ends of a row and where guards do not hold, the existing ones
        one by one."""
        b, wide = self.b, k.type
        body = body if blocks.guarded is None else blocks.guarded.body
        index = body.params[0]
        t = index.type
        assert isinstance(wide, DType) and isinstance(t, DType)
        per_row = b.const(along.per_row, wide)
        row = b.emit(ops.idiv, k, per_row)
        start = b.emit(ops.shl, b.emit(ops.irem, k, per_row), b.const(along.factor.bit_length() - 1, wide))

        signed_row, known = _as(b, row, t), []
        rows = {op: b.emit(ops.idiv, signed_row, b.const(by, t)) if by > 1 else signed_row for op, by in along.rows.items()}
        left = b.emit(ops.sub, _as(b, start, t), b.const(along.shift, t), attr="nsw") if along.shift else _as(b, start, t)
        for n in range(along.factor):
            column = _plus(b, left, n)
            place = b.emit(ops.add, b.emit(ops.mul, signed_row, b.const(along.width, t), attr="nsw"), column, attr="nsw")
            known.append({index: place, **dict.fromkeys(along.columns, column), **rows})
        together = functools.partial(self._interleaved, body, known, accumulators, reductions, along.addresses)
        if along.always_full:
            if blocks.guarded is None:
                return together()
            first = b.emit(ops.add, b.emit(ops.mul, row, b.const(along.width, wide)), start)
            every = b.const(along.factor, wide)
            one_by_one = functools.partial(self._one_by_one, first, every, 1, accumulators, iteration)
            return self._either(self._hold(blocks, known), together, one_by_one)
        shift, after = b.const(along.shift, wide), b.const(along.width + along.shift, wide)
        stop = b.emit(ops.add, start, b.const(along.factor, wide))
        full = b.emit(ops.and_, b.emit(ops.ge, start, shift), b.emit(ops.le, stop, after))
        if blocks.guarded is not None:
            full = b.emit(ops.and_, full, self._hold(blocks, known))

        def existing() -> Sequence[Op]:
            begin, end = b.emit(ops.max_, start, shift), b.emit(ops.min_, stop, after)
            before = b.emit(ops.sub, b.emit(ops.mul, row, b.const(along.width, wide)), shift)
            return self._one_by_one(b.emit(ops.add, before, begin), b.emit(ops.sub, end, begin), 1, accumulators, iteration)

        return self._either(full, together, existing)

    def _interleaved(
        self,
        body: Region,
        known: Sequence[dict[Op, Op]],
        accumulators: Sequence[Op],
        reductions: Sequence[Reduction],
        addresses: Mapping[Op, tuple[Op, int]] = MappingProxyType({}),
    ) -> list[Op]:
        """Emit several iterations of straight-line ``body``, operation by operation, because they may run in any order: their loads become
        adjacent, and are not separated by stores. ``known``: the index of each iteration, and other operations that have been computed.
        ``addresses``: see `RowBlocks`. They grow by one from iteration to iteration; in this form, accesses can be merged."""
        b = self.b
        starts: list[Sequence[Op]] = [accumulators]
        starts += [[b.const(r.start, r.dtype) for r in reductions] for _ in known[1:]]
        envs = [{**places, **dict(zip(body.params[1:], start))} for places, start in zip(known, starts)]
        for op in [op for op in body.ops[:-1] if op not in known[0]]:
            for n, env in enumerate(envs):
                leader, distance = addresses.get(op, (op, 0))
                if op in addresses and (n or leader is not op):
                    env[op] = _plus(b, envs[0][leader], distance + n)
                    continue
                if op.regions:
                    env[op] = self._cloned(op, env)
                    continue
                args = tuple([env.get(a) or self.value(a) for a in op.args])
                env[op] = b.append(Op(op.code, op.type, args, op.attr, (), op.loc, op.primal))
        merged, *others = [[env.get(v) or self.value(v) for v in body.results] for env in envs]
        for other in others:
            merged = [b.emit(ops.COMBINE[r.kind], x, y, attr="reassoc") for r, x, y in zip(reductions, merged, other)]
        return merged

    def _cloned(self, op: Op, env: Mapping[Op, Op]) -> Op:
        """Return a copy of ``op`` and its regions, with the values of ``env`` as operands."""
        outer = self.env
        self.env = {**outer, **env}
        self.cloning += 1
        new = self.copy(op)
        self.cloning -= 1
        self.env = outer
        return new

    def _strided(self, first: Op, stride: Op, count: Op, initial: Sequence[Op], each: _Body, attr: str | None = None) -> list[Op]:
        """Emit a loop over every ``stride``-th number from ``first`` on, below ``count``. ``attr``: of `while`."""
        b, wide = self.b, first.type
        assert isinstance(wide, DType)
        types = [value.type for value in initial]
        k, *_ = b.begin(wide, *types)
        condition = b.end([b.emit(ops.lt, k, count)])
        k, *accumulators = b.begin(wide, *types, names=("iteration", *[f"accumulator_{n}" for n in range(len(initial))]))
        yielded = each(k, accumulators)
        following = b.emit(ops.add, k, stride)
        # Near the largest number the sum wraps. Then no iteration is left.
        wrapped = b.emit(ops.lt, following, k)
        following = b.emit(ops.select, wrapped, b.const(int(wide.max), wide), following)
        _, *totals = b.while_([first, *initial], condition, b.end([following, *yielded]), attr=attr)
        return totals


def _bits(b: Builder, value: Op) -> Op:
    """Return an integer as an unsigned one."""
    assert isinstance(value.type, DType)
    return _as(b, value, unsigned(value.type))


def _as(b: Builder, value: Op, t: DType) -> Op:
    return value if value.type is t else b.emit(ops.bitcast, value, type=t)


def _plus(b: Builder, value: Op, offset: int) -> Op:
    """Return an index with ``offset`` added, which does not wrap."""
    assert isinstance(value.type, DType)
    return b.emit(ops.add, value, b.const(offset, value.type), attr="nsw") if offset else value


def _when(b: Builder, condition: Op, then: Region) -> None:
    b.begin()
    b.if_(condition, then, b.end())


def _nothing(copy: PrivateCopy) -> int | float:
    """Return the identity of ``copy``, which changes no element."""
    return Reduction(copy.kind, copy.shared.dtype).start


def _each_element(b: Builder, length: int, size: int, do: Callable[..., object], *more: object) -> None:
    """Apply ``do`` to each number below ``length``, and to ``more``, distributed among the invocations of a workgroup."""
    local = b.emit(ops.builtin, attr=BuiltIn.LOCAL, type=i32)
    full_rounds, rest = divmod(length, size)
    if full_rounds:
        zero, rounds = b.const(0), b.const(full_rounds)
        (j,) = b.begin(i32)
        do(b.emit(ops.add, b.emit(ops.mul, j, b.const(size)), local), *more)
        b.for_(zero, rounds, (), b.end())
    if rest:
        left = b.emit(ops.lt, local, b.const(rest))
        b.begin()
        do(b.emit(ops.add, local, b.const(full_rounds * size)), *more)
        _when(b, left, b.end())


class _Combination:
    """A combination of values over a workgroup. Its first invocation has the results."""

    def __init__(self, b: Builder, caps: Capabilities, local: Op, size: int) -> None:
        self.b = b
        self.caps = caps
        self.local = local
        self.size = size

    def run(self, reductions: Sequence[Reduction], values: Sequence[Op]) -> list[Op]:
        out = dict(enumerate(values))
        by_subgroup = [k for k, r in enumerate(reductions) if self._has_subgroups(r)]
        by_tree = [k for k, r in enumerate(reductions) if not self._has_subgroups(r)]
        for numbers, method in ((by_subgroup, self._subgroups), (by_tree, self._tree)):
            if numbers:
                out.update(zip(numbers, method([reductions[k] for k in numbers], [values[k] for k in numbers])))
        return [out[k] for k in range(len(values))]

    def _has_subgroups(self, reduction: Reduction) -> bool:
        """Return whether subgroups can combine the values, which requires that all are full, because some drivers miscount others."""
        caps, t = self.caps, reduction.dtype
        if caps.subgroup_size == 0 or self.size % caps.subgroup_size:
            return False
        # Every device with subgroup arithmetic has instructions for 32-bit types. Minima of floats are not used, because they may return a
        # NaN operand.
        plain = t.bits == 32 and not (t.is_float and reduction.kind in ("min", "max"))
        return caps.subgroup_shuffle or (caps.subgroup_arithmetic and plain)

    def _combine(self, reductions: Sequence[Reduction], values: Sequence[Op], others: Sequence[Op]) -> list[Op]:
        return [self.b.emit(ops.COMBINE[r.kind], a, c) for r, a, c in zip(reductions, values, others)]

    def _shared(self, reductions: Sequence[Reduction]) -> list[SharedRef]:
        """Return a shared array for each reduction, with an element for each invocation."""
        return [SharedRef(f"shared_{k}_{r.kind}_{r.dtype.name}", r.dtype, self.size) for k, r in enumerate(reductions)]

    def _store_each(self, arrays: Sequence[SharedRef], index: Op, values: Sequence[Op]) -> None:
        for array, value in zip(arrays, values):
            self.b.store(array, index, value)

    def _load_each(self, arrays: Sequence[SharedRef], index: Op) -> list[Op]:
        return [self.b.load(array, index) for array in arrays]

    def _barrier(self) -> None:
        self.b.emit(ops.workgroup_barrier, type=VOID)

    def _over_subgroup(self, reductions: Sequence[Reduction], values: Sequence[Op]) -> list[Op]:
        b = self.b
        if not self.caps.subgroup_shuffle:
            return [b.emit(ops.subgroup_reduce, v, attr=r.kind, type=r.dtype) for r, v in zip(reductions, values)]
        mask = self.caps.subgroup_size // 2
        partial = list(values)
        while mask:
            others = [b.emit(ops.subgroup_shuffle, v, attr=mask, type=v.type) for v in partial]
            partial = self._combine(reductions, partial, others)
            mask //= 2
        return partial

    def _subgroups(self, reductions: Sequence[Reduction], values: Sequence[Op]) -> list[Op]:
        """Reduce in each subgroup. One invocation combines the results of the subgroups in shared memory."""
        b = self.b
        arrays = self._shared(reductions)
        partial = self._over_subgroup(reductions, values)
        zero = b.const(0)
        lane = b.emit(ops.builtin, attr=BuiltIn.LANE, type=i32)
        leads = b.emit(ops.eq, lane, zero)
        b.begin()
        self._store_each(arrays, b.emit(ops.builtin, attr=BuiltIn.SUBGROUP, type=i32), partial)
        _when(b, leads, b.end())
        self._barrier()
        # Only the first invocation iterates.
        one = b.const(1)
        count = b.emit(ops.builtin, attr=BuiltIn.SUBGROUPS, type=i32)
        stop = b.emit(ops.select, b.emit(ops.eq, self.local, zero), count, one)
        initial = self._load_each(arrays, zero)
        number, *accumulators = b.begin(i32, *[r.dtype for r in reductions])
        merged = self._combine(reductions, accumulators, self._load_each(arrays, number))
        return list(b.for_(one, stop, initial, b.end(merged)))

    def _tree(self, reductions: Sequence[Reduction], values: Sequence[Op]) -> list[Op]:
        """Reduce by halving: in each step the lower half of the invocations combines its values with those of the upper half."""
        b = self.b
        arrays = self._shared(reductions)
        self._store_each(arrays, self.local, values)
        live = self.size
        while live > 1:
            half = (live + 1) // 2
            self._barrier()
            lower = b.emit(ops.lt, self.local, b.const(live - half))
            b.begin()
            theirs = self._load_each(arrays, b.emit(ops.add, self.local, b.const(half)))
            self._store_each(arrays, self.local, self._combine(reductions, self._load_each(arrays, self.local), theirs))
            _when(b, lower, b.end())
            live = half
        return self._load_each(arrays, self.local)

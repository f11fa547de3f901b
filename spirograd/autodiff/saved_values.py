"""Saved-value buffers: values that the gradient reads and that memory does not keep. The primal saves them as it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field

from spirograd.analysis.sizes import size_of
from spirograd.autodiff.activity import OWN, is_float
from spirograd.autodiff.prepare.induction import induction
from spirograd.autodiff.residuals import residuals
from spirograd.autodiff.sweep import IN_I32, Counter, as_entries, counter_for, from_saved, saved_type, to_saved, trip_count
from spirograd.base.dtypes import DType, i32
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.records import dataclass
from spirograd.base.sizes.size_nodes import Add, Max, Mul, Size, Sub
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayArg, ArrayRef, Kernel, Op, Region, TempRef, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.ir.temp_kinds import TempKind
from spirograd.ir.threaded import LOOPS, Cell, Threaded
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.dce import dce


@dataclass(frozen=True, slots=True)
class SaveBuffer:
    """A saved-value buffer: an array argument in which a kernel saves the values of ``loads``, in the order of execution.

    It has a row for each iteration of the parallel ``loop``, counted from its first one, or a single row for all serial code (``loop`` is
    None). ``rows`` and ``capacity`` (entries of a row) are size expressions, or None if only the device can know them:
    `SavingKernels.counting` computes them.
    """

    ref: ArrayRef
    loop: Op | None
    loads: tuple[Op, ...]
    rows: Size | None
    capacity: Size | None


@dataclass(frozen=True, slots=True, eq=False)
class SavingKernels:
    """Three kernels with the arguments of the primal.

    ``saving`` does what the primal does, and fills the buffers, which are arguments after those of the primal. ``replaying``, the kernel to
    differentiate, has the same arguments. It computes what the primal computed from the buffers, whatever memory now holds at the saved
    loads: ``recall(entry, load)`` replaces such a load, so that derivatives flow to the memory of the load.

    ``counting`` returns, for each buffer, its rows and its capacity (i32; 2^31 - 1 if it is that or more). It runs while memory is in the
    state before the primal. If the capacities depend on memory that the primal writes (``counting_writes``), it writes the same, and the
    memory must then be restored; otherwise it has no effects on memory. None if the capacities depend on old values of atomics.
    """

    saving: Kernel
    replaying: Kernel
    counting: Kernel | None
    buffers: tuple[SaveBuffer, ...]
    counting_writes: bool


def save_loads(primal: Kernel, loads: Iterable[Op], ctx: PassContext) -> SavingKernels:
    """Make ``primal`` (kernel IR) save the values of ``loads``: loads of its own, or atomics whose old values are needed.

    Raises SpirogradUnsupportedError, with the line, for a load in a loop in the condition of a `while`.
    """
    wanted = set(loads)
    plans = _plan(primal, wanted)
    args = (*primal.args, *[ArrayArg(p.buffer.ref.name, p.buffer.ref.dtype, 2) for p in plans])
    bodies = [kind(plans).region(primal.body) for kind in (_Saving, _Replaying)]
    saving, replaying = [Kernel(primal.name, args, body, primal.returns, primal.loc) for body in bodies]
    # If the entries of an iteration follow from its number, the reverse need not save the counter in an adstack.
    counting = _counting(primal, plans, ctx)
    writes = counting is not None and not _is_exact(primal, counting)
    if writes:
        counting = _counting(primal, plans, ctx, writes=True)
    return SavingKernels(saving, induction(replaying, ctx), counting, tuple([p.buffer for p in plans]), writes)


# --- which buffer is for what ----------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Plan:
    """A buffer, and the number of its loads in each condition of a `while`."""

    buffer: SaveBuffer
    sites: set[Op]
    in_condition: dict[Op, int] = field(default_factory=dict)


_Key = tuple["Op | None", DType]


class _Sites:
    """The operations whose values are saved, by buffer, each with the control operations around it."""

    def __init__(self, primal: Kernel, wanted: set[Op]) -> None:
        self.wanted = wanted
        self.operations: dict[_Key, list[tuple[Op, tuple[Op, ...]]]] = {}
        self.conditions: dict[_Key, dict[Op, int]] = {}
        self._walk(primal.body, (), None)

    def _walk(self, region: Region, around: tuple[Op, ...], condition: Op | None) -> None:
        """Collect the operations of a region. ``condition``: the `while` whose condition contains the region."""
        for op in region.ops:
            if op in self.wanted:
                self._add(op, around, condition)
            for n, inner in enumerate(op.regions):
                inside = op if op.code is ops.while_ and n == 0 and condition is None else condition
                self._walk(inner, (*around, op), inside)

    def _add(self, op: Op, around: tuple[Op, ...], condition: Op | None) -> None:
        assert isinstance(op.type, DType)
        key = (around[0] if around and _is_parallel(around[0]) else None, saved_type(op.type))
        self.operations.setdefault(key, []).append((op, around))
        if condition is None:
            return
        if any(inner.code in LOOPS for inner in around[around.index(condition) + 1 :]):
            raise SpirogradUnsupportedError(
                "the gradient needs the value that is read here, which is overwritten later, and cannot be saved in a loop inside of the "
                "condition of a `while`",
                op.loc,
                "compute the condition at the end of the body, and store it in a variable",
            )
        counts = self.conditions.setdefault(key, {})
        counts[condition] = counts.get(condition, 0) + 1


def _is_parallel(op: Op) -> bool:
    return op.code is ops.for_ and bool(op.attr.parallel)


def _plan(primal: Kernel, wanted: set[Op]) -> list[_Plan]:
    """Return the buffers: one for each type of entry in each parallel loop and in serial code."""
    sites = _Sites(primal, wanted)
    plans: list[_Plan] = []
    for (loop, dtype), saved in sites.operations.items():
        ref = ArrayRef(f"saved{len(plans)}", len(primal.args) + len(plans), dtype, 2)
        rows = 1 if loop is None else _trips(loop)
        buffer = SaveBuffer(ref, loop, tuple([op for op, _ in saved]), rows, _capacity(saved))
        plans.append(_Plan(buffer, set(buffer.loads), sites.conditions.get((loop, dtype), {})))
    return plans


def _trips(loop: Op) -> Size | None:
    """Return the trip count of a `for`, or None."""
    if loop.code is not ops.for_:
        return None
    begin, end = size_of(loop.args[0]), size_of(loop.args[1])
    return None if begin is None or end is None else Max(0, Sub(end, begin))


def _capacity(sites: Sequence[tuple[Op, tuple[Op, ...]]]) -> Size | None:
    """Return the largest number of entries of a row, or None if it is unknown."""
    total: Size = 0
    for _, around in sites:
        count: Size = 1
        for loop in around:
            if loop.code in LOOPS and not (loop is around[0] and _is_parallel(loop)):
                trips = _trips(loop)
                if trips is None:
                    return None
                count = Mul(count, trips)
        total = Add(total, count)
    return total


# --- the kernels ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Entries(Cell):
    """The number of the next entry of a row: a value plus the constant ``ahead``."""

    plan: _Plan = field(kw_only=True)
    ahead: int = 0


class _SiteCounter(Threaded):
    """A counter of saved values. It calls ``site`` for each operation whose value is saved."""

    def __init__(self, plans: Sequence[_Plan], count: Counter = IN_I32) -> None:
        super().__init__()
        self.plans = plans
        self.count = count
        self.handlers |= {ops.load: self._visit_site, ops.atomic: self._visit_site, ops.cas: self._visit_site}
        self.handlers[ops.for_] = self._for
        self.loop: Op | None = None
        self.depth = 0

    def site(self, op: Op, counter: _Entries) -> Op:
        raise NotImplementedError

    def finish(self, counters: Sequence[_Entries]) -> None:
        """Handle the end of a row. Subclasses override this."""

    # --- rows ------------------------------------------------------------------------------------------------------------

    def _open(self, loop: Op | None) -> None:
        """Begin to count the entries of rows of ``loop``."""
        for plan in self.plans:
            if plan.buffer.loop is loop:
                self.cells.append(_Entries(values=[self.b.const(0, self.count.dtype)], sites=plan.sites, plan=plan))

    def _region(self, region: Region, params: tuple[Op, ...], yields: Sequence[Cell]) -> Region:
        self.depth += 1
        new = super()._region(region, params, yields)
        self.depth -= 1
        return new

    def visit(self, op: Op) -> None:
        if self.depth == 1 and not self.b.ops:
            self._open(None)
        super().visit(op)

    def terminator(self, op: Op) -> None:
        super().terminator(op)
        if self.depth == (1 if self.loop is None else 2):
            counters = [c for c in self.cells if isinstance(c, _Entries) and c.plan.buffer.loop is self.loop]
            self.settle(counters)
            self.finish(counters)

    def _for(self, op: Op) -> Op:
        if self.depth != 1 or not _is_parallel(op):
            return self.threaded(op)
        outer, self.cells, self.loop = self.cells, [], op
        self._open(op)
        new = self.copy(op)
        self.cells, self.loop = outer, None
        return new

    # --- counting --------------------------------------------------------------------------------------------------------

    def settle(self, cells: Sequence[Cell]) -> None:
        for cell in cells:
            if isinstance(cell, _Entries) and cell.ahead:
                cell.values = [self._ahead(cell)]
                cell.ahead = 0

    def _ahead(self, counter: _Entries) -> Op:
        """Return the number of the next entry."""
        b, t, most = self.b, self.count.dtype, self.count.most
        before = counter.values[0]
        if not counter.ahead:
            return before
        if most is not None:
            before = b.emit(ops.min_, before, b.const(most + 1 - counter.ahead, t))
        return b.emit(ops.add, before, b.const(counter.ahead, t), attr="nsw")

    def entered(self, op: Op, number: int, cells: Sequence[Cell]) -> None:
        # A condition cannot yield its count, but the body and the code after it know the number of entries that it saves.
        for cell in cells:
            assert isinstance(cell, _Entries)
            cell.ahead = cell.plan.in_condition.get(op, 0) if op.code is ops.while_ and number != 0 else 0

    def _visit_site(self, op: Op) -> Op:
        for cell in self.cells:
            if op in cell.sites:
                assert isinstance(cell, _Entries)
                new = self.site(op, cell)
                cell.ahead += 1
                return new
        return self.copy(op)

    def place(self, counter: _Entries) -> tuple[Op, Op]:
        """Return the row and the number of the next entry."""
        b, loop = self.b, self.loop
        at = self._ahead(counter)
        if loop is None:
            return b.const(0), at
        return b.cast(b.emit(ops.sub, loop.regions[0].params[0], self.value(loop.args[0]), attr="nsw"), i32), at


class _Saving(_SiteCounter):
    def site(self, op: Op, counter: _Entries) -> Op:
        new = self.copy(op)
        self.b.store(counter.plan.buffer.ref, *self.place(counter), to_saved(self.b, new))
        return new


class _Replaying(_SiteCounter):
    def site(self, op: Op, counter: _Entries) -> Op:
        assert isinstance(op.type, DType)
        entry = from_saved(self.b, self.b.load(counter.plan.buffer.ref, *self.place(counter)), op.type)
        if op.code is ops.load and not is_float(op.type):
            return entry
        new = self.copy(op)
        return self.b.emit(ops.recall, entry, new) if is_float(op.type) else entry


_OLD = TempRef("old", i32, kind=TempKind.OLD_VALUE)


class _Counting(_SiteCounter):
    """The counting kernel. It stores rows and capacities to ``totals``. ``writes``: it does what the primal does; otherwise it has effects
    on temporaries only."""

    def __init__(self, plans: Sequence[_Plan], totals: Sequence[tuple[TempRef, TempRef]], count: Counter, writes: bool) -> None:
        super().__init__(plans, count)
        self.writes = writes
        self.totals = dict(zip(plans, totals))
        nothing: Callable[[Op], Op | None] = lambda op: None  # noqa: E731
        self.handlers |= {ops.store: self._store, ops.check: nothing, ops.print_: nothing}

    def _store(self, op: Op) -> Op | None:
        return self.copy(op) if self.writes or isinstance(op.attr, OWN) else None

    def _visit_site(self, op: Op) -> Op:
        new = super()._visit_site(op)
        if op.code is ops.load:
            # The copy names the operation that it repeats as its primal: see `_is_exact`.
            self.b.ops.pop()
            return self.b.append(Op(op.code, op.type, self.args(op), op.attr, (), op.loc, op))
        if self.writes or isinstance(ref_of(op), OWN):
            return new
        # The atomic is removed. A load marks the use of its old value: see `_counting`.
        self.b.ops.pop()
        assert isinstance(op.type, DType)
        return self.b.cast(self.b.load(_OLD), op.type)

    def site(self, op: Op, counter: _Entries) -> Op:
        return self.copy(op)

    def _open(self, loop: Op | None) -> None:
        b = self.b
        for plan, (rows, capacity) in self.totals.items():
            if loop is None:
                b.store(rows, b.const(1 if plan.buffer.loop is None else 0))
                b.store(capacity, b.const(0))
            elif plan.buffer.loop is loop:
                begin, end = self.args(loop)
                b.store(rows, as_entries(b, trip_count(b, begin, end)))
        super()._open(loop)

    def finish(self, counters: Sequence[_Entries]) -> None:
        for counter in counters:
            self.b.atomic("max", self.totals[counter.plan][1], as_entries(self.b, counter.values[0]))


def _is_exact(primal: Kernel, counting: Kernel) -> bool:
    """Return whether memory has, before the primal, all values that ``counting``, which has no effects on memory, reads."""
    loads = [op.primal for op in counting.walk() if op.code is ops.load and op.primal is not None]
    served, conflicts = residuals(primal, loads)
    return not conflicts and all(residual.when == "before" for residual in served)


def _counting(primal: Kernel, plans: Sequence[_Plan], ctx: PassContext, writes: bool = False) -> Kernel | None:
    totals = [(TempRef(f"{p.buffer.ref.name}.rows", i32), TempRef(f"{p.buffer.ref.name}.capacity", i32)) for p in plans]
    body = _Counting(plans, totals, counter_for(ctx.caps), writes).region(primal.body)
    returns = tuple([ref for pair in totals for ref in pair])
    kernel = _read_only(dce(Kernel(f"{primal.name}_counts", primal.args, body, returns, primal.loc), ctx), ctx)
    return None if any(op.attr == _OLD for op in kernel.walk()) else kernel


def _read_only(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Return ``kernel`` without the temporaries that are written and never read."""
    while True:
        used = {a for op in kernel.walk() for a in op.args}
        read = {ref_of(op) for op in kernel.walk() if op.code is ops.load or op in used}
        dead = {op for op in kernel.walk() if op.code.effect in ("write", "atomic") and ref_of(op) not in read | set(kernel.returns)}
        if not dead:
            return kernel
        kernel = dce(_Drop(dead).kernel(kernel), ctx)


class _Drop(Rewriter):
    def __init__(self, dead: set[Op]) -> None:
        super().__init__()
        self.dead = dead

    def visit(self, op: Op) -> None:
        if op not in self.dead:
            super().visit(op)

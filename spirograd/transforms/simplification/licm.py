"""Loop-invariant code motion: hoists operations whose operands do not change in a loop."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from spirograd.analysis.effects import orders, region_of, regions_overlap, writes
from spirograd.analysis.existence import exists, has_trips
from spirograd.ir import ops
from spirograd.ir.integer_ranges import Range
from spirograd.ir.nodes import Kernel, Op, Region
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

_LOOPS = frozenset((ops.for_, ops.while_))


def licm(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Hoist pure operations directly in the body of a serial loop, as far out as their operands allow (no operation traps).

    A load moves only out of a `for` that has no barrier and no write that may alias the load. The loop must run at least once, by its
    constant bounds, unless the load is of an element of a field or temporary that is known to exist. Nothing moves out of the loops around
    bodies of tasks that `lower_tasks` emits, whose trip count is small.
    """
    around = {op for task in kernel.body.ops if _is_lowered(task) for op in task.regions[0].ops if op.code in _LOOPS}
    loops = sum(op.code in _LOOPS for op in kernel.walk()) if around else not _LOOPS.isdisjoint(kernel.codes)
    return _Licm(kernel.looping(), around).kernel(kernel) if loops > len(around) else kernel


def _is_lowered(op: Op) -> bool:
    """Return whether ``op`` is a task of kind "invocations"."""
    return op.code is ops.task and bool(op.attr.kind == "invocations")


class _Licm(Rewriter):
    def __init__(self, staying: set[str], around: set[Op]) -> None:
        super().__init__()
        self.level: dict[Op, int] = {}  # value -> depth of the region that defines it
        self.floor: list[int] = []  # per open region: the outermost region to which its operations may move
        self.written: list[set[tuple[str, Hashable]] | None] = []  # per open region: memory that its loop writes; None if loads must stay
        self.runs: list[bool] = []  # per open region: whether its loop is known to have an iteration
        self.ranges: dict[Op, Range] = {}  # of integers, see `range_of`
        self.lists: list[list[Op]] = []  # per open region: its operations so far
        self.owner: Op | None = None
        self.around = around  # loops that operations do not leave
        self.staying = staying  # functions that are called in loops that run, and only there

    def region(self, region: Region) -> Region:
        owner = self.owner
        depth = len(self.floor)
        # Values hoisted out of a parallel loop would pass from one task to another, which costs more than recomputing them.
        parallel = owner is not None and owner.code is ops.for_ and owner.attr.parallel
        loop = owner is not None and owner.code in _LOOPS and not parallel and owner not in self.around
        if not loop and _LOOPS.isdisjoint(region.codes) and self.env.keys().isdisjoint(region.live_ins):
            return region
        self.floor.append(self.floor[-1] if loop else depth)
        fixed = loop and owner is not None and owner.code is ops.for_ and not orders(owner)
        self.written.append({region_of(ref) for ref in writes(owner)} if fixed and owner is not None else None)
        self.runs.append(fixed and owner is not None and has_trips(owner))
        self.level.update((p, depth) for p in region.params)
        new = super().region(region)
        self.floor.pop()
        self.written.pop()
        self.runs.pop()
        del self.lists[depth:]
        return new

    def visit_all(self, body: Sequence[Op]) -> None:
        """Visit each operation of a region. Outside of loops no operation moves, so most operations need no call."""
        env, level, done, depth = self.env, self.level, self.b.ops, len(self.floor) - 1
        self.lists.append(done)
        in_loop = self.floor[-1] < depth
        is_unchanged = env.keys().isdisjoint
        for op in body:
            if in_loop or op.regions:
                self.visit(op)
                continue
            new = op
            if not is_unchanged(op.args):
                new = env[op] = Op(op.code, op.type, self.args(op), op.attr, (), op.loc, op.primal)
            done.append(new)
            level[new] = depth

    def visit(self, op: Op) -> None:
        depth = target = len(self.floor) - 1
        if self.floor[-1] == depth:  # outside of loops no operation moves
            pass
        elif op.code.effect == "pure" and op.code is not ops.result and not (op.code is ops.call and op.attr in self.staying):
            target = self._target(op)
        elif op.code.effect == "read" and self.written[-1] is not None:
            target = self._load_target(op)
        if target == depth:
            outer, self.owner = self.owner, op
            super().visit(op)
            self.owner = outer
            self.level[self.value(op)] = depth
            return
        args = self.args(op)
        new = op if args == op.args else Op(op.code, op.type, args, op.attr, (), op.loc, op.primal)
        self.lists[target].append(new)
        self.level[new] = target
        if new is not op:
            self.env[op] = new

    def _target(self, op: Op) -> int:
        inner = [self.level.get(a, 0) for a in self.args(op)]
        return max([self.floor[-1], *inner])

    def _load_target(self, op: Op) -> int:
        """Return the depth to which a load moves. It moves out of a loop that does not write the memory, and that is known to run unless
        the element is known to exist."""
        target = len(self.floor) - 1
        lowest = self._target(op)
        memory = region_of(op.attr)
        while target > lowest:
            written = self.written[target]
            if written is None or any(regions_overlap(memory, other) for other in written):
                break
            if not self.runs[target] and not exists(op.attr, op.args, self.ranges):
                break
            target -= 1
        return target

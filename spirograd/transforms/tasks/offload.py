"""Splitting of a kernel into tasks: each outermost parallel loop is a task, and so is the code between two of them."""

from __future__ import annotations

from dataclasses import field

from spirograd.analysis.effects import may_alias, writes
from spirograd.base.dtypes import VOID, DType, Vec
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, LoopAttr, Op, Ref, Region, TaskAttr, TempRef
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext

# The largest number of operations for which an iteration rematerialises a value instead of loading it.
_MAX_COST = 12
# The same for the bounds of a loop, which are computed once, and which the host needs to size the dispatch.
_MAX_BOUND_COST = 200
_MAX_LOADS = 4
_LEAVES = frozenset((ops.const, ops.arg, ops.shape, ops.address, ops.seed, ops.adstack_word))


@dataclass(slots=True)
class _Segment:
    """A segment of the kernel's body: serial code, or a single parallel loop. ``writes``: memory that it may write, in order. ``checks``:
    checks of the bounds of the loop."""

    number: int
    loop: Op | None = None
    ops: list[Op] = field(default_factory=list)
    stored: list[Op] = field(default_factory=list)
    writes: list[Ref] = field(default_factory=list)
    checks: list[Op] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Rematerialisation:
    """A rematerialisation of a value: ``cost`` operations, and ``loads`` of memory (load, segment, number of writes of the segment before
    the load)."""

    cost: int
    loads: tuple[tuple[Op, int, int], ...] = ()


def offload(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Split the kernel into a list of tasks, in order.

    A live-in of a later task is rematerialised there if that is cheap and depends only on constants, arguments, and memory not written
    since; otherwise the task that computes it stores it to a temporary. Parallel loops inside other control flow become serial.
    """
    return _Offload(kernel).run()


class _Offload(Rewriter):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.old = kernel
        self.handlers[ops.for_] = self._for
        self.segment_of: dict[Op, _Segment] = {}
        self.segments: list[_Segment] = []
        self.rematerialisations: dict[Op, _Rematerialisation | None] = {}
        self.temps: dict[Op, TempRef] = {}
        self.names: set[str] = set()

    def run(self) -> Kernel:
        self._split()
        self._take_checks()
        for segment in self.segments:
            self._find_live_ins(segment)
        self.b.begin()
        for segment in self.segments:
            if segment.loop is None:
                self._serial(segment)
            else:
                self._range(segment, segment.loop)
        self.release()
        return self.old.with_body(self.b.end())

    # --- which operation belongs to which task ---------------------------------------------------------------------------

    def _split(self) -> None:
        segments = self.segments
        segments.append(_Segment(0))
        for op in self.old.body.ops[:-1]:
            if op.code is ops.for_ and op.attr.parallel:
                segments += [_Segment(len(segments), op, writes=list(writes(op))), _Segment(len(segments) + 1)]
                continue
            # The operations `result` of a control operation stay in its segment, because only single values can be live-ins of another
            # task.
            origin = self.segment_of[op.args[0]] if op.code is ops.result else segments[-1]
            origin.ops.append(op)
            self.segment_of[op] = origin
            self.rematerialisations[op] = self._rematerialisation(op, origin)
            if op.code.effect not in ("pure", "read"):
                origin.writes += writes(op)

    def _take_checks(self) -> None:
        """Move the checks of the bounds of each parallel loop into its segment, because a check before the loop would be a task of its
        own."""
        for before, segment in zip(self.segments, self.segments[1:]):
            if segment.loop is None:
                continue
            for op in reversed(before.ops):
                if op.code.effect not in ("pure", "read", "check"):
                    break
                is_bound = op.code is ops.check and op.attr.code == "space"
                if is_bound and all(self._can_rematerialise(a, segment, _MAX_BOUND_COST) for a in op.args):
                    before.ops.remove(op)
                    segment.checks.insert(0, op)

    def _find_live_ins(self, segment: _Segment) -> None:
        """Assign a temporary to each live-in of ``segment`` that it cannot rematerialise."""
        if segment.loop is None:
            used = [a for op in segment.ops for a in _operands(op)]
            bounds: list[Op] = []
        else:
            used = [a for region in segment.loop.regions for op in region.walk() for a in op.args]
            bounds = list(segment.loop.args)
        for value in dict.fromkeys(used):
            origin = self.segment_of.get(value)
            if origin is not None and origin is not segment and not self._can_rematerialise(value, segment):
                self._make_temp(value, origin)
        for value in bounds:
            if not self._can_rematerialise(value, segment, _MAX_BOUND_COST):
                self._make_temp(value, self.segment_of[value])

    def _make_temp(self, value: Op, origin: _Segment) -> None:
        if value in self.temps:
            return
        name = f"live_in{len(self.temps)}"
        t = value.type
        self.temps[value] = TempRef(name, t.elem, (t.n,)) if isinstance(t, Vec) else TempRef(name, _scalar(t))
        origin.stored.append(value)

    def _rematerialisation(self, value: Op, origin: _Segment) -> _Rematerialisation | None:
        """Return the rematerialisation of ``value`` from constants, arguments and memory, or None if these do not suffice."""
        if value.code in _LEAVES:
            return _Rematerialisation(0)
        load = value.code is ops.load
        if not load and (value.code.effect != "pure" or value.code in (ops.result, ops.call)):
            return None
        cost, loads = 1, [(value, origin.number, len(origin.writes))] if load else []
        for a in value.args:
            part = self.rematerialisations[a]
            if part is None:
                return None
            cost += part.cost
            loads += part.loads
        return _Rematerialisation(cost, tuple(loads)) if len(loads) <= _MAX_LOADS else None

    def _can_rematerialise(self, value: Op, user: _Segment, limit: int = _MAX_COST) -> bool:
        """Return whether ``user`` should rematerialise ``value``, because it is cheap, and the memory that it reads is not written before
        the end of ``user``."""
        recomputation = self.rematerialisations[value]
        if recomputation is None or recomputation.cost > limit:
            return False
        for load, origin, count in recomputation.loads:
            later = [*self.segments[origin].writes[count:]]
            for segment in self.segments[origin + 1 : user.number + 1]:
                later += segment.writes
            if any(may_alias(load.attr, ref) for ref in later):
                return False
        return True

    # --- building the tasks ----------------------------------------------------------------------------------------------

    def _serial(self, segment: _Segment) -> None:
        if not segment.stored and all(op.code.effect in ("pure", "read") for op in segment.ops):
            return
        self._enter()
        own = set(segment.ops)
        self._bring_in([a for op in segment.ops for a in _operands(op) if a not in own], segment)
        for op in segment.ops:
            self.visit(op)
        for value in segment.stored:
            self._store(value)
        attr = TaskAttr("serial", self._name(""))
        region = self.b.end()
        self.b.loc = segment.ops[0].loc
        self._task(attr, (region,))

    def _range(self, segment: _Segment, loop: Op) -> None:
        self._enter(loop)
        self._bring_in([a for op in (loop, *segment.checks) for a in op.args], segment, _MAX_BOUND_COST)
        for op in segment.checks:
            self.visit(op)
        bounds = self.b.end(self.args(loop))
        self._enter(loop)
        body = loop.regions[0]
        inner = [a for op in body.walk() for a in op.args]
        self._bring_in(inner, segment)
        for op in body.ops[:-1]:
            self.visit(op)
        new_body = Region(body.params, self.b.end().ops)
        self.b.begin()
        finish = self.b.end()
        attr: LoopAttr = loop.attr
        self.b.loc = loop.loc
        self._task(TaskAttr("range_for", self._name(attr.name), attr.group_size, grouped=attr.grouped), (bounds, new_body, finish))

    def _name(self, wanted: str) -> str:
        """Return a name for the next task, different from earlier ones."""
        count = len(self.names)
        name = wanted or f"{self.old.name}_{count}"
        while name in self.names:
            name = f"{name}_{count}"
        self.names.add(name)
        return name

    def _enter(self, loop: Op | None = None) -> None:
        """Begin a region that takes no values from outside."""
        self.env = {}
        self.b.loc = loop.loc if loop is not None else None
        self.b.begin()

    def _task(self, attr: TaskAttr, regions: tuple[Region, ...]) -> None:
        self.b.emit(ops.task, attr=attr, type=VOID, regions=regions)

    def _bring_in(self, values: list[Op], user: _Segment, limit: int = _MAX_COST) -> None:
        """Rematerialise or load the ``values`` that belong to other tasks."""
        for value in values:
            if value in self.segment_of and value not in self.env:
                cheap = self._can_rematerialise(value, user, limit)
                self.env[value] = self._rematerialise(value) if cheap else self._load(self.temps[value])

    def _rematerialise(self, value: Op) -> Op:
        self.b.loc = value.loc
        args = []
        for a in value.args:
            if a not in self.env:
                self.env[a] = self._rematerialise(a)
            args.append(self.env[a])
        return self.b.append(Op(value.code, value.type, tuple(args), value.attr, (), value.loc))

    def _load(self, ref: TempRef) -> Op:
        if not ref.shape:
            return self.b.load(ref)
        parts = [self.b.load(ref, self.b.const(k)) for k in range(ref.shape[0])]
        return self.b.emit(ops.vec, *parts)

    def _store(self, value: Op) -> None:
        ref = self.temps[value]
        new = self.value(value)
        if not ref.shape:
            self.b.store(ref, new)
            return
        for k in range(ref.shape[0]):
            at = self.b.const(k)
            self.b.store(ref, at, self.b.emit(ops.extract, new, at))

    def _for(self, op: Op) -> Op:
        """Rewrite a loop inside of a task as a serial one."""
        if not op.attr.parallel:
            return self.copy(op)
        args = self.args(op)
        attr = LoopAttr(False, op.attr.name, 0)
        return self.b.append(Op(op.code, op.type, args, attr, (self.region(op.regions[0]),), op.loc))


def _operands(op: Op) -> list[Op]:
    """Return the operands of ``op`` and of everything in its regions."""
    return [*op.args, *(a for region in op.regions for inner in region.walk() for a in inner.args)]


def _scalar(t: object) -> DType:
    assert isinstance(t, DType), t
    return t

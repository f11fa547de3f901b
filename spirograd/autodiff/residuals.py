"""Residuals in memory: whether a gradient kernel reads memory in the state before its primal, or after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field

from spirograd.analysis.dependence import Access, Alias, Dependence, Iterations, accesses_in, are_exclusive, iterations_of
from spirograd.autodiff.derivative import Outer, Residual
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import VARIABLES, ArrayRef, FieldRef, Kernel, Op, Ref, ref_of

_BOTH = frozenset(("before", "after"))


@dataclass(frozen=True, slots=True)
class Conflict:
    """A load whose value is lost: because of a write, memory has it neither before nor after the kernel.

    ``load`` may also be an atomic whose old value is needed, which memory never keeps. ``savable``: the primal can save the value as it
    runs.
    """

    ref: Ref
    load: Op
    load_loc: Loc | None
    write_loc: Loc | None
    savable: bool = True


def residuals(primal: Kernel, loads: Iterable[Op], finals: Iterable[Op] = ()) -> tuple[tuple[Residual, ...], tuple[Conflict, ...]]:
    """Return the states of memory in which ``loads`` of ``primal`` (kernel IR) give the same values again, as one `Residual` for each
    memory in order of the loads, and the loads whose values are lost.

    ``finals``: atomics of ``primal`` that are recognised by the values that they leave, which memory has after the kernel.

    The residuals are those of the loads without conflicts. If some loads need a memory in the state before the kernel, and others in the
    state after it, the former are conflicts.

    Two array arguments are assumed not to alias, nor an array and a field. Iterations of a parallel loop are assumed not to alias,
    except by atomics, and in loops with groups of threads: otherwise the primal has no defined result. Loads of temporaries, and of
    gradients, are omitted.
    """
    order = _Order(primal)
    demands: dict[tuple[str, int], tuple[Outer, list[_Demand]]] = {}
    conflicts = []
    left = frozenset(finals)
    for load in sorted(dict.fromkeys((*loads, *left)), key=order.position.__getitem__):
        ref = ref_of(load)
        if not isinstance(ref, (FieldRef, ArrayRef)) or ref.role != "primal":
            continue
        if load in left:
            demands.setdefault(outer_key(ref), (ref, []))[1].append(_Demand(load, ref, earlier=[load]))
            continue
        if load.code is not ops.load:
            conflicts.append(Conflict(ref, load, load.loc, load.loc))
            continue
        demand = order.demand(load)
        if demand.allowed:
            demands.setdefault(outer_key(ref), (ref, []))[1].append(demand)
        else:
            conflicts.append(demand.conflict())
    serving = []
    for outer, group in demands.values():
        residual, refused = _settled(outer, group)
        serving.append(residual)
        conflicts += [d.conflict() for d in refused]
    return tuple(serving), tuple(conflicts)


def states(primal: Kernel) -> dict[Op, str]:
    """Return, for each load of primal memory or a temporary, the state that has its value: "before" or "after" the kernel, "" if both do,
    and a unique name if neither does. Loads of one element in one state give the same value."""
    order = _Order(primal)
    served: dict[Op, str] = {}
    for load, access in order.accesses.items():
        if access.writes or (isinstance(access.ref, (FieldRef, ArrayRef)) and access.ref.role != "primal"):
            continue
        allowed = order.demand(load).allowed
        served[load] = "" if allowed == _BOTH else next(iter(allowed)) if allowed else f"lost{len(served)}"
    return served


def too_late(primal: Kernel, loads: Iterable[Op]) -> tuple[Conflict, ...]:
    """Return the ``loads`` of ``primal`` from temporaries that would give another value at its end."""
    order = _Order(primal)
    conflicts = []
    for load in loads:
        demand = order.demand(load)
        if "after" not in demand.allowed:
            conflicts.append(demand.conflict())
    return tuple(conflicts)


def not_final(primal: Kernel, extrema: Iterable[Op]) -> tuple[Conflict, ...]:
    """Return the ``extrema``, atomic minima or maxima of ``primal``, whose winner does not follow from the contents of memory after the
    kernel.

    Other writes may change the winning value, or more extrema may follow a read of an intermediate winner.
    """
    order = _Order(primal)
    used = {a for op in primal.walk() for a in op.args}
    reads = [access for op, access in order.accesses.items() if op.code is ops.load or op in used]
    return tuple([Conflict(ref, op, op.loc, write.loc, False) for op in extrema for ref, write in order.overtaken(op, reads)])


@dataclass(slots=True)
class _Demand:
    """The writes that may change what ``load`` reads: ``earlier`` before it, ``later`` after it."""

    load: Op
    ref: Ref
    earlier: list[Op] = field(default_factory=list)
    later: list[Op] = field(default_factory=list)

    @property
    def allowed(self) -> frozenset[str]:
        return _BOTH - ({"before"} if self.earlier else set()) - ({"after"} if self.later else set())

    def conflict(self) -> Conflict:
        return Conflict(self.ref, self.load, self.load.loc, (self.later or self.earlier)[0].loc)


def outer_key(ref: Outer) -> tuple[str, int]:
    """Return a key that is equal for references to one field or argument."""
    return ("field", ref.key) if isinstance(ref, FieldRef) else ("array", ref.arg)


def _settled(ref: Outer, group: Sequence[_Demand]) -> tuple[Residual, list[_Demand]]:
    """Return one residual for the loads of one memory, and the loads whose values it does not give."""
    after = [d for d in group if "before" not in d.allowed]
    before = [d for d in group if "after" not in d.allowed]
    if after:
        return Residual(ref, "after", after[0].load.loc), before
    if before:
        return Residual(ref, "before", before[0].load.loc, before[0].later[0].loc), []
    return Residual(ref, "before", group[0].load.loc), []


class _Order:
    """The order of accesses of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.query = Dependence(separate_arrays=True)
        self.accesses = {access.op: access for access in accesses_in([kernel.body], VARIABLES)}
        self.position = {op: number for number, op in enumerate(self.accesses)}
        self.writes = [access for access in self.accesses.values() if access.writes]
        self.iterations: dict[Op, Iterations] = {}

    def demand(self, load: Op) -> _Demand:
        """Return the writes of the kernel that may change what ``load`` reads."""
        access = self.accesses[load]
        out = _Demand(load, access.ref)
        for write in self.writes:
            earlier, later = self._relation(access, write)
            if earlier:
                out.earlier.append(write.op)
            if later:
                out.later.append(write.op)
        return out

    def overtaken(self, extremum: Op, reads: Sequence[Access]) -> Iterator[tuple[Ref, Op]]:
        """Yield the writes that may hide the winner of ``extremum``; see `not_final`. ``reads``: the reads of all memory."""
        kind, ref = extremum.attr
        access = self.accesses[extremum]
        between = [read for read in reads if self._relation(read, access)[0]]
        for write in self.writes:
            if not self.query.may_alias(ref, write.ref):
                continue
            if write.op.code is ops.atomic and write.op.attr[0] == kind:
                hides = any(self._relation(read, write)[1] for read in between)
            else:
                hides = self._relation(access, write)[1]
            if hides:
                yield ref, write.op

    def _relation(self, load: Access, write: Access) -> tuple[bool, bool]:
        """Return whether ``write`` may change what ``load`` reads, before it and after it."""
        if not self.query.may_alias(load.ref, write.ref):
            return False, False
        loops: list[Op] = []
        for mine, other in zip(load.around, write.around):
            loops += [mine[0]] if mine[0] is other[0] and mine[0].code is not ops.if_ else []
            if mine != other:
                break
        first = self.position[write.op] < self.position[load.op]
        if loops and loops[0].code is ops.for_ and loops[0].attr.grouped and self.query.carried(load, write, self._iterations(loops[0])):
            # Another thread of the group may write the element. Barriers then separate the two accesses.
            return (first, not first) if len(loops) == 1 else (True, True)
        if self.query.alias(load, write, self._iterations(loops[0]).invariant if loops else None) is Alias.NO:
            return False, False
        if any(self.query.carried(load, write, self._iterations(loop)) for loop in loops if not _is_outermost_parallel(loop, load)):
            return True, True
        if are_exclusive(load, write):
            return False, False
        return first, not first

    def _iterations(self, loop: Op) -> Iterations:
        if loop not in self.iterations:
            self.iterations[loop] = iterations_of(loop)
        return self.iterations[loop]


def _is_outermost_parallel(loop: Op, access: Access) -> bool:
    return loop is access.around[0][0] and loop.code is ops.for_ and bool(loop.attr.parallel)

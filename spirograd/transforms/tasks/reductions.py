"""Reductions: atomics of a parallel loop on a loop-invariant element become an accumulator, and one atomic after the loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field

from spirograd.analysis.dependence import Access, Alias, Around, Dependence, accesses_in
from spirograd.analysis.existence import exists, has_trips
from spirograd.analysis.loop_invariants import Invariants, contents
from spirograd.analysis.value_numbers import ValueNumbers
from spirograd.base.dtypes import VOID, DType, f32, f64, i32
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Reduction, Ref, Region, TaskAttr, TempRef
from spirograd.ir.rewrite import Rewriter
from spirograd.ir.threaded import Cell, Threaded
from spirograd.transforms.pass_context import PassContext

_KINDS = ("add", "min", "max", "and", "or", "xor")
# Each accumulator takes a register, and shared memory on GPUs.
_MAX_REDUCTIONS = 8


def reductions(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Turn such atomics into accumulators of the task (`TaskAttr.reductions`).

    Conditions: the result is unused, the indices are loop-invariant, and the loop has no other access that may touch the same element.
    Array arguments are assumed not to overlap, because a loop that accumulates into an element and reads it through another argument has no
    defined result. Sums of f32 are accumulated in f64 on CPUs, where a chunk may be long.

    The task accesses an element only if some iteration did, because otherwise the element may not exist, for example where a guard tests
    its index. If this is not known, another accumulator records whether there was an update.
    """
    return _Reductions(ctx).kernel(kernel)


@dataclass(slots=True, eq=False)
class _Target:
    """An element that a task accumulates into."""

    kind: str
    ref: Ref
    indices: tuple[Op, ...]
    dtype: DType
    atomics: list[Access] = field(default_factory=list)
    flag: int | None = None  # the accumulator that records whether there was an update; None if the element may be updated in any case


class _Reductions(Rewriter):
    def __init__(self, ctx: PassContext) -> None:
        super().__init__()
        self.wide_sums = ctx.caps.target.wide_sums
        # Chunks of the CPU then take sums in an order that the IR states: one by one, or in lanes.
        self.order = None if ctx.options.deterministic and not ctx.caps.target.invocations else "reassoc"
        self.handlers[ops.task] = self._task

    def _task(self, op: Op) -> Op:
        if op.attr.kind != "range_for" or op.attr.grouped:
            return self.b.append(op)
        targets = _find(op.regions[1], self.wide_sums)
        if not targets:
            return self.b.append(op)
        bounds, body, finish = op.regions
        accumulators = [Reduction(t.kind, t.dtype) for t in targets] + [Reduction("or", i32)] * _add_flags(targets)
        new_body = _Accumulate(targets, accumulators, self.order).body(body)
        attr: TaskAttr = op.attr
        new_attr = TaskAttr(attr.kind, attr.name, attr.group_size, (*attr.reductions, *accumulators))
        new_finish = _Finish().region_for(finish, targets, accumulators)
        return self.b.append(Op(ops.task, VOID, (), new_attr, (bounds, new_body, new_finish), op.loc))


# --- finding them --------------------------------------------------------------------------------------------------------


def _find(body: Region, wide_sums: bool) -> list[_Target]:
    """Return the elements that ``body`` may accumulate into."""
    if ops.atomic not in body.codes:
        return []
    accesses = list(accesses_in([body]))
    candidates = [access for access in accesses if access.op.code is ops.atomic and access.op.attr[0] in _KINDS]
    if not candidates:
        return []
    used = {a for op in body.walk() for a in op.args}
    excluded = set(_in_conditions(body))
    temps = [access for access in accesses if isinstance(access.ref, TempRef)]
    steady = {access.ref for access in temps} - {access.ref for access in temps if access.writes}  # values from before the loop
    query = Dependence(ValueNumbers(steady=steady), separate_arrays=True)
    invariant = Invariants(contents(body), steady)
    targets: dict[object, _Target] = {}
    for access in candidates:
        op, (kind, ref), indices = access.op, access.op.attr, access.indices or ()
        if op in used or op in excluded or ref.dtype.bits < 32 or not all(i in invariant for i in indices):
            continue
        dtype = f64 if wide_sums and ref.dtype is f32 and kind == "add" else ref.dtype
        target = targets.setdefault((kind, ref, query.numbers.all(indices)), _Target(kind, ref, indices, dtype))
        target.atomics.append(access)
    accumulated: list[_Target] = []
    for target in targets.values():
        if len(accumulated) == _MAX_REDUCTIONS:
            break
        first, own = target.atomics[0], {access.op for access in target.atomics}
        if all(other.op in own or query.alias(first, other, invariant) is Alias.NO for other in accesses):
            accumulated.append(target)
    return accumulated


def _in_conditions(body: Region) -> Iterator[Op]:
    """Yield the operations in conditions of `while`, which cannot yield accumulators."""
    for op in body.walk():
        if op.code is ops.while_:
            yield from op.regions[0].walk()


# --- whether there was an update ------------------------------------------------------------------------------------------


def _add_flags(targets: list[_Target]) -> int:
    """Number the flags that ``targets`` need, after the targets. Return the number of flags. Targets that are updated in the same regions,
    such as the components of a vector, share a flag."""
    numbers: dict[frozenset[Around], int] = {}
    for target in targets:
        surely = any(all(op.code is ops.for_ and has_trips(op) for op, _ in access.around) for access in target.atomics)
        if not surely and not _tolerates(target):
            regions = frozenset([access.around[-1:] for access in target.atomics])
            target.flag = numbers.setdefault(regions, len(targets) + len(numbers))
    return len(numbers)


def _tolerates(target: _Target) -> bool:
    """Return whether an update by the identity changes nothing, because the element is known to exist, and is an integer. Minima and maxima
    of floats replace a NaN, and drivers compute 0.0 as the sum of two -0.0."""
    return not target.dtype.is_float and exists(target.ref, target.indices, {})


# --- rewriting -----------------------------------------------------------------------------------------------------------


class _Accumulate(Threaded):
    """A rewriter that replaces atomics by operations on accumulators, with ``attr``."""

    def __init__(self, targets: list[_Target], accumulators: Sequence[Reduction], attr: str | None) -> None:
        super().__init__()
        self.attr = attr
        self.cells = [Cell([Op(ops.param, r.dtype)]) for r in accumulators]
        self.targets = {access.op: (target, self.cells[k]) for k, target in enumerate(targets) for access in target.atomics}
        for op, (target, cell) in self.targets.items():
            cell.sites.add(op)
            if target.flag is not None:
                self.cells[target.flag].sites.add(op)
        self.handlers[ops.atomic] = self._atomic

    def body(self, region: Region) -> Region:
        new = self._region(region, tuple([cell.values[0] for cell in self.cells]), self.cells)
        self.release()
        return new

    def _atomic(self, op: Op) -> Op | None:
        if op not in self.targets:
            return self.copy(op)
        target, cell = self.targets[op]
        value = self.b.cast(self.args(op)[-1], target.dtype)
        cell.values = [self.b.emit(ops.COMBINE[target.kind], cell.values[0], value, attr=self.attr)]
        if target.flag is not None:
            flag = self.cells[target.flag]
            flag.values = [self.b.emit(ops.or_, flag.values[0], self.b.const(1))]
        return None


class _Finish(Rewriter):
    """A rewriter of the region that adds accumulators to memory."""

    def region_for(self, finish: Region, targets: list[_Target], accumulators: Sequence[Reduction]) -> Region:
        params = tuple([Op(ops.param, r.dtype) for r in accumulators])
        self.b.begin()
        for op in finish.ops[:-1]:
            self.visit(op)
        groups: dict[int | None, list[tuple[_Target, Op]]] = {}
        for target, total in zip(targets, params):
            groups.setdefault(target.flag, []).append((target, total))
        for flag, group in groups.items():
            self.b.loc = group[0][0].atomics[0].op.loc
            if flag is None:
                self._update(group)
                continue
            condition, outside = self.b.emit(ops.ne, params[flag], self.b.const(0)), dict(self.env)
            self.b.begin()
            self._update(group)
            then = self.b.end()
            self.env = outside
            self.b.begin()
            self.b.if_(condition, then, self.b.end())
        return Region((*finish.params, *params), self.b.end().ops)

    def _update(self, group: Iterable[tuple[_Target, Op]]) -> None:
        for target, total in group:
            self.b.loc = target.atomics[0].op.loc
            indices = [self._clone(i) for i in target.indices]
            self.b.atomic(target.kind, target.ref, *indices, self.b.cast(total, target.ref.dtype))

    def _clone(self, value: Op) -> Op:
        """Recompute a value of the body here."""
        if value not in self.env:
            args = tuple([self._clone(a) for a in value.args])
            self.env[value] = self.b.append(Op(value.code, value.type, args, value.attr, (), value.loc))
        return self.env[value]

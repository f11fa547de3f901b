"""Fission of an iteration: an *independent* part, which reads memory and computes, and an *ordered* part: what depends on loop-carried
values or changes memory. The independent parts of all iterations may run before the ordered ones, if they read nothing that these change;
the ordered parts run one after the other, and take values from the independent ones.

A branch may have operations of both parts. Then each part has the branch, and values that the ordered part takes from it are results of the
independent one; where that did not take the branch, they are 0 and not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spirograd.analysis.effects import may_alias
from spirograd.analysis.guarded_loops import needed_operations
from spirograd.base.dtypes import DType, i32, u1
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import BufferRef, Op, Ref, Region, accesses_of
from spirograd.ir.rewrite import Rewriter

HARMLESS = frozenset(("pure", "read", "structure", "control"))
_EFFECTS = frozenset((ops.store, ops.atomic))


@dataclass(frozen=True, slots=True, eq=False)
class Fission:
    """The parts of the iteration ``body``. ``independent``: a region of the index and of values ``known`` before that yields the values
    ``passed`` to the ordered part, truth values as i32. ``ordered``: the operations of that part; ``mixed``: the branches of both parts.
    ``carried``: the loop-carried values; ``results``: what the iteration yields for them. ``written``: the memory that it changes."""

    body: Region
    carried: tuple[Op, ...]
    results: tuple[Op, ...]
    independent: Region
    known: tuple[Op, ...]
    passed: tuple[Op, ...]
    ordered: frozenset[Op]
    mixed: frozenset[Op]
    written: frozenset[Ref]

    @property
    def index(self) -> Op:
        return self.independent.params[0]


def are_apart(a: Ref, b: Ref) -> bool:
    """Return whether two references never access the same bytes. Fields of a tree are apart, unless words hold several elements."""
    if not may_alias(a, b):
        return True
    fields = all(isinstance(ref, BufferRef) and ref.slot.kind == "tree" and ref.dtype.bits >= 32 for ref in (a, b))
    return fields and a.name != b.name


def used_by(op: Op) -> tuple[Op, ...]:
    """Return the values that ``op`` uses, in its regions too."""
    return (*op.args, *[value for region in op.regions for value in region.live_ins])


def find_fission(
    index: Op, before: Sequence[Op], known: tuple[Op, ...], body: Region, carried: tuple[Op, ...], results: tuple[Op, ...]
) -> Fission | None:
    """Divide an iteration: ``body``, and the independent operations ``before`` it, of which the values ``known`` are not computed again.
    Return None if it has effects other than stores and atomics."""
    marks = _Marks(body, carried)
    passed = marks.passed(body, results, {*before, *body.walk()})
    if marks.refused or not all(isinstance(value.type, DType) for value in passed):
        return None
    independent = _IndependentPart(marks, passed).of(index, before, known, body)
    ordered, mixed = frozenset(marks.ordered), frozenset(marks.mixed)
    return Fission(body, carried, results, independent, known, passed, ordered, mixed, frozenset(marks.written))


class _Marks:
    """The ordered operations of ``body``. ``refused``: whether there is an effect that has no place in either part."""

    def __init__(self, body: Region, carried: Sequence[Op]) -> None:
        effects = [op for op in body.walk() if op.code.effect not in HARMLESS]
        self.ordered = set(carried)
        self.mixed: set[Op] = set()
        self.written = {ref for op in effects for _, ref in accesses_of(op)}
        self.refused = any(op.code not in _EFFECTS for op in effects)
        self.mark(body)

    def mark(self, region: Region) -> bool:
        """Mark the ordered operations of ``region``. Return whether there are any, or an ordered result."""
        for op in region.ops[:-1]:
            if self._is_ordered(op):
                self.ordered.add(op)
        return not self.ordered.isdisjoint((*region.ops[:-1], *region.results))

    def _is_ordered(self, op: Op) -> bool:
        if op.code is ops.result:
            source = op.args[0]
            return self.yields(source, op.attr) if source in self.mixed else source in self.ordered
        if op.code is ops.if_ and op.args[0] not in self.ordered:
            marked = [self.mark(region) for region in op.regions]
            if any(marked):
                self.mixed.add(op)
            return op in self.mixed
        inside = (op, *[inner for region in op.regions for inner in region.walk()])
        if self.ordered.isdisjoint(used_by(op)) and not any(map(self._sees_changes, inside)):
            return False
        self.ordered.update(inside)
        return True

    def _sees_changes(self, op: Op) -> bool:
        """Return whether ``op`` accesses memory that the body changes."""
        return any(not are_apart(ref, changed) for _, ref in accesses_of(op) for changed in self.written)

    def yields(self, branch: Op, k: int) -> bool:
        """Return whether result ``k`` of a mixed branch is ordered."""
        return any(region.results[k] in self.ordered for region in branch.regions)

    def passed(self, body: Region, results: Iterable[Op], inside: set[Op]) -> tuple[Op, ...]:
        """Return the independent values among ``inside`` that the ordered part uses. It has constants of its own."""
        used = dict.fromkeys((*self._used(body), *results))
        return tuple([v for v in used if v in inside and v not in self.ordered and v.code is not ops.const])

    def _used(self, region: Region) -> list[Op]:
        used: list[Op] = []
        for op in region.ops[:-1]:
            if op in self.mixed:
                used.append(op.args[0])
                for inner in op.regions:
                    used += [*self._used(inner), *[r for k, r in enumerate(inner.results) if self.yields(op, k)]]
            elif op in self.ordered and not (op.code is ops.result and op.args[0] in self.mixed):
                used += used_by(op)
        return used


class _IndependentPart(Rewriter):
    """A builder of the independent part, which yields the values ``passed``."""

    def __init__(self, marks: _Marks, passed: Sequence[Op]) -> None:
        super().__init__()
        self.marks, self.passed = marks, passed
        self.handlers = {ops.result: self._result}
        self.results: dict[Op, dict[int, Op]] = {}

    def of(self, index: Op, before: Sequence[Op], known: Sequence[Op], body: Region) -> Region:
        b = self.b
        params = b.begin(*[value.type for value in known])
        self.env.update(zip(known, params))
        self.visit_all([op for op in before if op not in known])
        self._operations(body)
        self.release()
        values = [self.value(value) for value in self.passed]
        truths = [v for v in values if v.type is u1]
        numbers = {v: b.emit(ops.select, v, b.const(1, i32), b.const(0, i32)) for v in truths}
        region = Region((index, *params), b.end([numbers.get(v, v) for v in values]).ops)
        return Region(region.params, (*needed_operations(region, set(region.results)), region.ops[-1]))

    def _operations(self, region: Region) -> None:
        for op in region.ops[:-1]:
            if op in self.marks.mixed:
                self._mixed(op)
            elif op not in self.marks.ordered:
                self.visit(op)

    def _mixed(self, op: Op) -> None:
        b, regions = self.b, list[Region]()
        assert isinstance(op.type, tuple)
        independent = [k for k in range(len(op.type)) if not self.marks.yields(op, k)]
        passed = [self._passed_from(region) for region in op.regions]
        for region in op.regions:
            b.begin()
            self._operations(region)
            values = [self.value(region.results[k]) for k in independent]
            for arm, taken in zip(op.regions, passed):
                values += [self.value(v) if arm is region else b.const(0, v.type) for v in taken]  # type: ignore[arg-type]
            regions.append(b.end(values))
        if not regions[0].results:
            return
        results = b.if_(self.value(op.args[0]), *regions)
        self.results[op] = dict(zip(independent, results))
        self.env.update(zip((*passed[0], *passed[1]), results[len(independent) :]))

    def _passed_from(self, region: Region) -> list[Op]:
        """Return the values passed that ``region`` computes, mixed branches in it included."""
        found: list[Op] = []
        for op in region.ops[:-1]:
            if op in self.marks.mixed:
                found += [v for inner in op.regions for v in self._passed_from(inner)]
            elif op in self.passed:
                found.append(op)
        return found

    def _result(self, op: Op) -> Op:
        results = self.results.get(op.args[0])
        return self.copy(op) if results is None else results[op.attr]

"""The body of a task for iterations in which all of its guards hold: straight-line code, where the whole body has branches.

A guard is a condition of an `if` that follows from the index alone, such as those of stencils at the borders of an array. Almost all
iterations are between the borders. Their loads need not wait for branches, and several iterations may run at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spirograd.base.dtypes import DType
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef, Op, Region, ref_of
from spirograd.ir.rewrite import Rewriter

_COMPARISONS = frozenset((ops.lt, ops.le, ops.gt, ops.ge))
_SUMS = frozenset((ops.param, ops.const, ops.slot, ops.add, ops.sub, ops.bitcast, ops.cast))
# A sample of blocks, of which _MOST should have no border. Multiples of the golden ratio are spread over all rows and columns.
_SAMPLES, _MOST, _GOLDEN = 16, 0.75, 0.6180339887498949
_INVERTED_BY_DEFAULT = frozenset((ops.eq,))  # Few iterations are at one place.
_NO_WRAP = "nsw"


@dataclass(frozen=True, slots=True, eq=False)
class AssumedGuards:
    """``body``: for iterations in which each of the ``guards`` has its value. These are pure functions of the first parameter of ``body``,
    and of values from outside."""

    body: Region
    guards: Mapping[Op, bool]

    def hold_in_blocks(self, bounds: Region, factor: int, apart: int) -> bool:
        """Return whether the guards hold in most blocks of ``factor`` iterations between ``bounds``, each ``apart`` from the next: in a
        sample, or by their form if the bounds are not constant. Otherwise blocks cost more than they save: iterations of a block that run
        one by one access memory apart from those of neighbouring invocations."""
        begin, end = bounds.results[:2]
        if begin.code is not ops.const or end.code is not ops.const:
            return all(guard.code in _COMPARISONS and self._is_sum(guard.args) for guard in self.guards)
        others = int(end.attr) - int(begin.attr) - factor * apart
        if others < 0:
            return False
        starts = [int(begin.attr) + int(others * (_GOLDEN * k % 1.0)) for k in range(_SAMPLES)]
        held = sum(all(self._hold_at(start + apart * n) for n in range(factor)) for start in starts)
        return held >= _MOST * _SAMPLES

    def _is_sum(self, values: Sequence[Op]) -> bool:
        return all(value.code in _SUMS and self._is_sum(value.args) for value in values)

    def _hold_at(self, place: int) -> bool:
        index = self.body.params[0]
        assert isinstance(index.type, DType)
        values: dict[Op, object] = {index: index.type.np.type(place)}
        return all(_evaluated(guard, values) == holds for guard, holds in self.guards.items())

    @property
    def guarded_loads(self) -> int:
        return sum(op.code is ops.load and isinstance(ref_of(op), BufferRef) for op in self.body.ops)


def _evaluated(op: Op, values: dict[Op, object]) -> object:
    """Return the value of an operation on ``values``; None if it is not known."""
    if op not in values:
        assert isinstance(op.type, DType)
        args = [_evaluated(a, values) for a in op.args]
        if op.code is ops.const:
            values[op] = op.type.np.type(op.attr)
        elif op.code.evaluate is None or any(a is None for a in args):
            values[op] = None
        else:
            values[op] = ops.evaluate(op.code, op.type, tuple(args))
    return values[op]


def assume_guards(body: Region) -> AssumedGuards | None:
    """Return ``body`` with its guards assumed, or None if it has none."""
    if ops.if_ not in body.codes:
        return None
    assuming = _Assuming()
    b = assuming.b
    params = b.begin(*[p.type for p in body.params])
    assuming.pure.add(params[0])
    straight = b.end(assuming.inline(body, params, clone=True))
    assuming.release()
    if not assuming.guards:
        return None
    return AssumedGuards(Region(straight.params, _live(straight)), assuming.guards)


def _live(region: Region) -> tuple[Op, ...]:
    """Return the operations of a region without those whose results are not used. Coordinates of the index stay, which guards are about."""
    live: set[Op] = set()
    kept = []
    for op in reversed(region.ops):
        is_coordinate = op.code in (ops.idiv, ops.irem) and op.args[0] is region.params[0]
        if is_coordinate or op in live or op.code.effect not in ("pure", "read"):
            kept.append(op)
            live.update(op.args)
            for inner in op.regions:
                live |= inner.live_ins
    return tuple(reversed(kept))


class _Assuming(Rewriter):
    """A rewriter that replaces each `if` whose condition is a guard by one of its regions."""

    def __init__(self) -> None:
        super().__init__()
        self.guards: dict[Op, bool] = {}
        self.pure: set[Op] = set()  # Values that follow from the index alone.
        self._results: dict[Op, Sequence[Op]] = {}  # Of the conditions that were replaced.
        self.handlers = {ops.if_: self._if, ops.result: self._result}

    def visit(self, op: Op) -> None:
        super().visit(op)
        new = self.value(op)
        if new.code.effect == "pure" and not new.regions and new.code is not ops.result and self.pure.issuperset(new.args):
            self.pure.add(new)

    def _if(self, op: Op) -> Op | None:
        condition = self.value(op.args[0])
        if condition.code is ops.const:
            taken = bool(condition.attr)
        elif condition in self.pure:
            known = self._known(condition)
            taken = self._usual(op, condition) if known is None else known
            if known is None:
                self._assume(condition, taken)
        else:
            return self.copy(op)
        self._results[op] = self.inline(op.regions[0 if taken else 1], ())
        return None

    def _result(self, op: Op) -> Op:
        results = self._results.get(op.args[0])
        return self.copy(op) if results is None else results[op.attr]

    def _usual(self, op: Op, condition: Op) -> bool:
        """Return the value of a condition in most iterations: by what depends on it, or by its form."""
        then, orelse = (sum(isinstance(ref_of(inner), BufferRef) for inner in region.walk()) for region in op.regions)
        return then > orelse if then != orelse else condition.code not in _INVERTED_BY_DEFAULT

    def _assume(self, condition: Op, value: bool) -> None:
        for guard, holds in _parts(condition, value):
            if guard.code is not ops.const:
                self.guards.setdefault(guard, holds)

    def _known(self, condition: Op) -> bool | None:
        """Return the value of a condition under the guards so far, or None."""
        for value in (True, False):
            if all(self.guards.get(guard) is holds for guard, holds in _parts(condition, value)):
                return value
        return None


def _parts(condition: Op, value: bool) -> list[tuple[Op, bool]]:
    """Return conditions with values that together are equivalent to ``condition`` having ``value``."""
    if condition.code is ops.not_:
        return _parts(condition.args[0], not value)
    if condition.code is (ops.and_ if value else ops.or_):
        return [part for arg in condition.args for part in _parts(arg, value)]
    return [(condition, value)]


class Evaluation:
    """The values of guards for one iteration. ``known``: values that are known there, at least the index."""

    def __init__(self, b: Builder, known: Mapping[Op, Op]) -> None:
        self._b = b
        self._known = dict(known)

    def of(self, value: Op) -> Op:
        """Emit the operations of a guard. They also run for iterations whose guards do not hold, so their sums may wrap around."""
        if value not in self._known:
            args = tuple([self.of(a) for a in value.args])
            attr = None if value.attr == _NO_WRAP else value.attr
            self._known[value] = self._b.append(Op(value.code, value.type, args, attr, (), value.loc))
        return self._known[value]

"""Loop-invariant values, and the places where the values of a kernel are defined."""

from __future__ import annotations

from collections.abc import Container

from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Ref, Region

# Operations without operands that are the same in every iteration, on every thread.
_LEAVES = frozenset((ops.const, ops.arg, ops.shape, ops.seed))


def contents(*regions: Region) -> set[Op]:
    """Return all values that ``regions`` define: operations and parameters, nested ones included."""
    inside = {p for region in regions for p in region.params}
    for region in regions:
        for op in region.walk():
            inside.add(op)
            for nested in op.regions:
                inside.update(nested.params)
    return inside


class Invariants:
    """The values that are the same in every iteration of a loop: those from outside of it, and those computed from these alone.

    ``inside``: the values that the loop defines. ``steady``: memory that does not change while it runs."""

    def __init__(self, inside: Container[Op], steady: Container[Ref] = ()) -> None:
        self._inside = inside
        self._steady = steady
        self._known: dict[Op, bool] = {}

    def __contains__(self, value: object) -> bool:
        assert isinstance(value, Op)
        if value not in self._inside:
            return True
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = value.code in _LEAVES or (self._is_computed(value) and all(a in self for a in value.args))
        return known

    def _is_computed(self, value: Op) -> bool:
        if value.code is ops.load:
            return value.attr in self._steady
        return value.code.effect == "pure" and value.code is not ops.result and bool(value.args)


class Spans:
    """The definitions of a kernel: `contents` of all its operations, in time and memory that grow with its size alone."""

    def __init__(self, kernel: Kernel) -> None:
        self._spans: dict[Op, tuple[int, int]] = {}
        self._visit(kernel.body)

    def _visit(self, region: Region) -> None:
        for op in (*region.params, *region.ops):
            number = len(self._spans)
            self._spans[op] = (number, number)
            for inner in op.regions:
                self._visit(inner)
            self._spans[op] = (number, len(self._spans) - 1)

    def number(self, value: Op) -> int:
        """Return the number of a value in the order of the kernel."""
        return self._spans[value][0]

    def inside(self, op: Op) -> Container[Op]:
        """Return all values that the regions of ``op`` define."""
        return _Inside(self._spans, *self._spans[op])


@dataclass(frozen=True, slots=True)
class _Inside:
    spans: dict[Op, tuple[int, int]]
    start: int
    end: int

    def __contains__(self, value: object) -> bool:
        return isinstance(value, Op) and self.start < self.spans.get(value, (-1, -1))[0] <= self.end

"""Nests of branches: results of inner branches that the forward sweep keeps, so that the reverse sweep need not recompute them at each
level.

The reverse of a branch runs the branch forwards, then backwards. Operations after an inner `if` may need its results, and therefore
everything inside of it. If each level recomputed these results, the innermost code would run once for each level of the nest. Where this
costs much, the forward sweep of the outermost `if` also yields the results of the inner ones, as elements of vectors, one vector for each
type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from spirograd.autodiff.sweep import Nest, saved_type
from spirograd.base.dtypes import DType, Vec
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region

# The number of recomputations in a nest above which its results are kept.
_MOST = 2


@dataclass(slots=True)
class _Work:
    """The work of a branch: the number of operations in it, and the number of operations that its reverse recomputes because of inner
    branches."""

    size: int
    again: int


class Nests:
    """The results of branches of ``kernel`` that are kept. ``relevant``: the control operations that are reversed. ``acting``: those that
    no sweep may omit, because they contain barriers or change shared memory."""

    def __init__(self, kernel: Kernel, relevant: Collection[Op], acting: Collection[Op] = ()) -> None:
        self._relevant = relevant
        self._acting = acting
        self._users: dict[Op, set[Op]] = {}  # result of an `if` -> its users
        self._results: dict[Op, list[Op]] = {}  # `if` -> the operations `result` that name its results
        self._ends: dict[Op, Op] = {}  # `if` -> the terminator of the enclosing region
        self._works: dict[Op, _Work] = {}
        self._look(kernel.body)

    def _look(self, region: Region) -> int:
        """Collect the branches in ``region``. Return the number of operations in it."""
        size = len(region.ops)
        for op in region.ops:
            inside = sum([self._look(inner) for inner in op.regions])
            size += inside
            if op.code is ops.if_:
                self._ends[op] = region.ops[-1]
                branches = list(self._inner(op))
                again = sum([self._works[inner].again + (0 if self.is_passed(inner) else self._works[inner].size) for inner in branches])
                self._works[op] = _Work(inside, again)
            if op.code is ops.result and op.args[0].code is ops.if_:
                self._results.setdefault(op.args[0], []).append(op)
            for value in op.args:
                if value.code is ops.result and value.args[0].code is ops.if_:
                    self._users.setdefault(value, set()).add(op)
        return size

    def _inner(self, op: Op) -> Iterator[Op]:
        """Yield the branches directly inside the branches of ``op``."""
        return (inner for region in op.regions for inner in region.ops if inner.code is ops.if_)

    def _needed(self, op: Op) -> list[Op]:
        """Return the results of an `if` that operations after it take, other than the terminator of its region."""
        return [result for result in self._results.get(op, ()) if not self._users.get(result, set()) <= {self._ends[op]}]

    def is_passed(self, op: Op) -> bool:
        """Return whether only the terminator of its region takes results of ``op``, a branch that is reversed. Then the forward sweep of
        that region, just before the reverse, omits the branch."""
        return op.code is ops.if_ and op in self._relevant and op not in self._acting and not self._needed(op)

    def nest(self, op: Op) -> Nest | None:
        """Return the results to keep for the nest whose outermost branch is ``op``, or None if recomputing them is as fast."""
        work = self._works[op]
        if op not in self._relevant or op in self._acting or work.again <= _MOST * work.size:
            return None
        inside, places, lengths = set(), {}, dict[DType, int]()
        left = list(self._inner(op))
        while left:
            inner = left.pop()
            if inner in self._relevant:
                left += self._inner(inner)
            if not self.is_passed(inner):
                inside.add(inner)
                for result in self._needed(inner):
                    t = saved_type(result.type)
                    places[result] = (t, lengths.get(t, 0))
                    lengths[t] = lengths.get(t, 0) + (result.type.n if isinstance(result.type, Vec) else 1)
        return Nest(frozenset(inside), places, lengths)


def relevant_operations(kernel: Kernel, matters: Callable[[Op], bool]) -> set[Op]:
    """Return the control operations that contain an operation which the reverse sweep must handle."""
    relevant: set[Op] = set()
    _find_relevant(kernel.body, matters, relevant)
    return relevant


def _find_relevant(region: Region, matters: Callable[[Op], bool], relevant: set[Op]) -> bool:
    """Return whether the reverse sweep must handle an operation in ``region``. Collect the control operations around these in
    ``relevant``."""
    any_here = False
    for op in region.ops[:-1]:
        here = [_find_relevant(inner, matters, relevant) for inner in op.regions]
        if any(here) or (not op.regions and op.code is not ops.result and matters(op)):
            any_here = True
            if op.regions:
                relevant.add(op)
    return any_here

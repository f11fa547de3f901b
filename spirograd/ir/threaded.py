"""State that changes as a kernel runs, passed through its branches and loops as results and loop-carried values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Region
from spirograd.ir.rewrite import Rewriter

LOOPS = frozenset((ops.for_, ops.while_))


@dataclass(slots=True, eq=False)
class Cell:
    """A variable of a rewriter. ``values``: its current values; ``sites``: the operations of the old kernel that change it."""

    values: list[Op] = field(default_factory=list)
    sites: set[Op] = field(default_factory=set)


class Threaded(Rewriter):
    """A rewriter whose handlers may change the values of ``cells``: loops carry the cells, and branches yield them, if a site is inside.

    The condition of a `while` yields its verdict alone: changes of a cell there are lost.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[Cell] = []
        self.yields: list[Sequence[Cell]] = []  # for each open region, the cells that it yields
        self.handlers = {ops.if_: self.threaded, ops.for_: self.threaded, ops.while_: self.threaded}

    def settle(self, cells: Sequence[Cell]) -> None:
        """Emit deferred operations before the values of ``cells`` are passed on. Subclasses override this."""

    def entered(self, op: Op, number: int, cells: Sequence[Cell]) -> None:
        """Handle the beginning of region ``number`` of ``op``; the number is -1 after ``op``. Subclasses override this."""

    def region(self, region: Region) -> Region:
        return self._region(region, (), ())

    def _region(self, region: Region, params: tuple[Op, ...], yields: Sequence[Cell]) -> Region:
        self.yields.append(yields)
        new = super().region(region)
        self.yields.pop()
        return Region((*region.params, *params), new.ops) if params else new

    def terminator(self, op: Op) -> None:
        self.settle(self.yields[-1])

    def yielded(self, op: Op) -> tuple[Op, ...]:
        return (*self.args(op), *[v for cell in self.yields[-1] for v in cell.values])

    def threaded(self, op: Op) -> Op:
        """Rewrite a control operation, which passes on the cells that it changes."""
        inside = {x for region in op.regions for x in region.walk()} if self.cells else set()
        changed = [cell for cell in self.cells if not inside.isdisjoint(cell.sites)]
        if not changed:
            return self.copy(op)
        self.settle(changed)
        args, before = self.args(op), [v for cell in changed for v in cell.values]
        types = tuple([v.type for v in before])
        loop = op.code in LOOPS
        regions = []
        for n, region in enumerate(op.regions):
            params = tuple([Op(ops.param, t, loc=op.loc) for t in types]) if loop else ()
            restore(changed, params or before)
            self.entered(op, n, changed)
            condition = op.code is ops.while_ and n == 0
            regions.append(self._region(region, params, () if condition else changed))
        assert isinstance(op.type, tuple)
        first = len(op.type)
        self.b.loc = op.loc
        new = self.b.append(Op(op.code, (*op.type, *types), (*args, *before) if loop else args, op.attr, tuple(regions), op.loc))
        restore(changed, [self.b.emit(ops.result, new, attr=first + k, type=t) for k, t in enumerate(types)])
        self.entered(op, -1, changed)
        return new


def restore(cells: Sequence[Cell], values: Sequence[Op]) -> None:
    """Set the values of all ``cells``."""
    left = list(values)
    for cell in cells:
        count = len(cell.values)
        cell.values, left = left[:count], left[count:]

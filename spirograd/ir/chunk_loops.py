"""Loops that run the iterations of a task of kind "chunks", and the loops over rows around them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.integer_ranges import Range, range_of, type_range
from spirograd.ir.nodes import Op, Region


class ChunkLoop(NamedTuple):
    """A loop over iterations of ``task``. ``around``: the enclosing loop over rows, or None."""

    task: Op
    loop: Op
    around: Op | None

    @property
    def body(self) -> Region:
        return self.loop.regions[0]

    @property
    def columns(self) -> int | None:
        """Return the number of columns of a row: 0 if it is not a constant, None if there are no rows."""
        return None if self.around is None else max(self.around.attr.row, 0)

    @property
    def first(self) -> Op | None:
        """Return the index of the first column of a row, or None if there are no rows."""
        return None if self.around is None else first_column(self.around)


def first_column(rows: Op) -> Op | None:
    """Return the index of the first column, in a loop over rows: the product of the row and the number of columns. Return None if nothing
    uses it."""
    body = rows.regions[0]
    start = body.params[-1]
    row = next((op for op in body.ops if op.code is ops.idiv and op.args[0] is start), None)
    return next((op for op in body.ops if op.code is ops.mul and op.args[0] is row), None)


def loops_of(task: Op, body: Region, around: Op | None = None) -> Iterator[ChunkLoop]:
    """Yield the loops over iterations of ``task`` in one of its bodies."""
    for op in body.ops:
        if op.code is ops.for_ and op.attr.over_chunk:
            yield ChunkLoop(task, op, around)
        else:
            for region in op.regions:
                yield from loops_of(task, region, op if op.code is ops.for_ else around)


def bound_range(task: Op) -> Range:
    """Return the range of the bounds of a chunk of ``task``: numbers of the type of its index that are not below the range of the task."""
    begin = task.regions[0].results[0]
    assert isinstance(begin.type, DType)
    limits, unit = type_range(begin.type), task.attr.chunks.unit
    return Range(min(int(begin.attr), 0) if begin.code is ops.const else limits.low, limits.high // unit)


def index_ranges(loop: ChunkLoop) -> dict[Op, Range]:
    """Return the ranges of the bounds and indices that ``loop`` uses: see `bound_range`, `note_ranges`."""
    known = dict.fromkeys(loop.task.regions[1].params, bound_range(loop.task))
    for op in (loop.around, loop.loop):
        if op is not None:
            note_ranges(known, op)
    return known


def note_ranges(known: dict[Op, Range], loop: Op) -> None:
    """Add to ``known`` the range of the index of a loop and, if the loop runs over rows, of columns."""
    body, low = loop.regions[0], range_of(loop.args[0], known).low
    index = body.params[0]
    assert isinstance(index.type, DType)
    known[index] = natural = type_range(index.type)._replace(low=low)
    if loop.attr.row and low >= 0:
        known[body.params[-1]] = natural
    first = first_column(loop) if loop.attr.row > 0 and low >= 0 else None
    if first is not None:
        known[first], within = natural, Range(0, loop.attr.row - 1)
        for inner in [op for op in body.walk() if op.code is ops.for_ and op.attr.over_chunk]:
            number = inner.regions[0].params[0]
            columns = [x for x in inner.regions[0].walk() if x.code is ops.sub and x.args[0] is number and x.args[1] is first]
            known.update(dict.fromkeys(columns, within))

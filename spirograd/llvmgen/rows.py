"""Loops over several axes, row by row: within a row the outer indices stay the same, and the last one counts.

A loop over an index space runs over one flat index, from which each iteration computes its indices by division. LLVM neither vectorises
a division nor sees that neighbouring iterations access neighbouring elements. So the range is cut at the multiples of the last extent.

If all that iterations do is under a condition that is the same in a row, as whether the cell of a sparse field is active, it is tested once
for each row.
"""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base.dtypes import DType
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.integer_ranges import Range, type_range
from spirograd.ir.nodes import BufferRef, Op, Region, accesses_of
from spirograd.ir.rewrite import Rewriter
from spirograd.llvmgen.edges import Edges, split_loop
from spirograd.llvmgen.function import Phis
from spirograd.llvmgen.iterations import TaskEmitter
from spirograd.llvmgen.module import type_name

# Shorter rows are not worth a loop of their own.
_SHORTEST = 16


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A loop over ``extent`` columns in each row. ``setup``: operations that compute ``extent``, the same for all iterations. In ``body``,
    ``row`` stands for index / extent and ``first`` for row * extent: parameters, that are bound for each row. ``guard``: None, or the
    condition under which a row runs, made by the operations ``of_row``, which ``body`` uses, too."""

    setup: tuple[Op, ...]
    extent: Op
    row: Op
    first: Op
    body: Region
    guard: Op | None = None
    of_row: tuple[Op, ...] = ()


def find_rows(bounds: Region, body: Region) -> Rows | None:
    """How to run the loop over ``body`` row by row; None if it does not divide its index by one invariant, or may start below 0."""
    begin = bounds.results[0]
    if begin.code is not ops.const or begin.attr < 0:
        return None
    index = body.params[0]
    invariant: dict[Op, None] = {}
    extent: Op | None = None
    for op in body.ops:
        if op.code in (ops.const, ops.slot) or (op.code.effect == "pure" and op.args and all(a in invariant for a in op.args)):
            invariant[op] = None
        elif op.code in (ops.idiv, ops.irem) and op.args[0] is index and op.args[1] in invariant:
            extent = op.args[1]
            break
    if extent is None or (extent.code is ops.const and extent.attr < _SHORTEST):
        return None
    row, first = (Op(ops.param, index.type) for _ in range(2))
    setup = _needed(extent, invariant)
    by_row = _ByRow(index, extent, row, first).region(body)
    return _guarded(setup, extent, row, first, by_row) or Rows(setup, extent, row, first, by_row)


def _guarded(setup: tuple[Op, ...], extent: Op, row: Op, first: Op, body: Region) -> Rows | None:
    """The rows of ``body`` if it does nothing but under one condition that is the same in a row; else None."""
    own = [op for op in body.ops[:-1] if op.code is not ops.result]
    if not own or own[-1].code is not ops.if_ or any(op.code is ops.if_ for op in own[:-1]):
        return None
    branch = own[-1]
    then, otherwise = branch.regions
    written = {accessed for op in body.walk() for effect, accessed in accesses_of(op) if effect != "read"}
    same: dict[Op, None] = dict.fromkeys((extent, row, first))
    for op in own[:-1]:
        reads = op.code is ops.load and isinstance(op.attr, BufferRef) and not any(_may_be(op.attr, ref) for ref in written)
        if (op.code.effect == "pure" or reads) and all(a in same for a in op.args):
            same[op] = None
        elif op.code.effect != "pure":
            return None
    of_row = tuple(op for op in own[:-1] if op in same)
    unchanged = dict(zip(otherwise.results, then.results))
    results = [then.results[r.attr] if r.code is ops.result and r.args[0] is branch else None for r in body.results]
    carried = [otherwise.results[r.attr] if r.code is ops.result and r.args[0] is branch else None for r in body.results]
    if branch.args[0] not in same or len(otherwise.ops) > 1 or carried != list(body.params[1:]) or not unchanged.keys() <= set(body.params):
        return None
    end = Op(body.ops[-1].code, body.ops[-1].type, tuple(r for r in results if r is not None), body.ops[-1].attr, (), body.ops[-1].loc)
    inside = tuple(op for op in own[:-1] if op not in same)
    return Rows(setup, extent, row, first, Region(body.params, (*inside, *then.ops[:-1], end)), branch.args[0], of_row)


def _may_be(a: BufferRef, b: object) -> bool:
    """Whether two accesses of independent iterations may be to the same memory."""
    return not isinstance(b, BufferRef) or a.slot == b.slot


def _needed(value: Op, known: dict[Op, None]) -> tuple[Op, ...]:
    """``value`` and what it is made of, in order."""
    needed = {value}
    for op in reversed(known):
        if op in needed:
            needed.update(op.args)
    return tuple(op for op in known if op in needed)


class _ByRow(Rewriter):
    """Puts the row for index / extent, and index - first for the remainder."""

    def __init__(self, index: Op, extent: Op, row: Op, first: Op) -> None:
        super().__init__()
        self.index, self.extent, self.row, self.first = index, extent, row, first
        self.handlers = {ops.idiv: self._idiv, ops.irem: self._irem}

    def _is_split(self, op: Op) -> bool:
        return op.args[0] is self.index and op.args[1] is self.extent

    def _idiv(self, op: Op) -> Op:
        return self.row if self._is_split(op) else self.copy(op)

    def _irem(self, op: Op) -> Op:
        return self.b.emit(ops.sub, self.index, self.first, attr="nsw") if self._is_split(op) else self.copy(op)


def index_ranges(bounds: Region, body: Region, rows: Rows | None) -> dict[Op, Range]:
    """What is known of the index of a loop over ``body``, and of its ``rows``, if it begins at a constant from 0 on."""
    begin, index = bounds.results[0], body.params[0]
    if begin.code is not ops.const or begin.attr < 0:
        return {}
    assert isinstance(index.type, DType)
    natural = type_range(index.type)._replace(low=0)
    known = {index: natural}
    if rows is not None and rows.extent.code is ops.const and rows.extent.attr > 0:
        known.update({rows.row: natural, rows.first: natural})
        columns = (op for op in body.walk() if op.code is ops.sub and op.args == (index, rows.first))
        known.update(dict.fromkeys(columns, Range(0, rows.extent.attr - 1)))
    return known


def _begin_guarded(emitter: TaskEmitter, rows: Rows) -> tuple[str, str]:
    """Go on only if the guard of ``rows`` holds, if there is one. The labels of the block before, and of the one where both ways meet."""
    around = emitter.label
    if rows.guard is None:
        return around, ""
    for op in rows.of_row:
        emitter.emit(op)
    active, skipped = emitter.new_labels("active", "skipped")
    around = emitter.label
    emitter.line(f"br i1 {emitter.env[rows.guard]}, label %{active}, label %{skipped}")
    emitter.start(active)
    return around, skipped


def row_loop(
    emitter: TaskEmitter,
    rows: Rows,
    edges: Edges | None,
    begin: str,
    end: str,
    types: Sequence[DType],
    initial: Sequence[str],
    suffix: str,
) -> list[str]:
    """The loop over [begin, end) as a loop over rows, around one over what is left of each (split at its ``edges``); else as
    `TaskEmitter.iterations`.

    Right for any begin from 0 on, wherever in a row it and end lie, and for negative extents.
    """
    index = rows.body.params[0].type
    assert isinstance(index, DType)
    it, divide = type_name(index), "sdiv" if index.is_signed else "udiv"
    less = "slt" if index.is_signed else "ult"
    for op in rows.setup:
        emitter.emit(op)
    extent = emitter.env[rows.extent]
    length = emitter.call_intrinsic("abs", index, [extent], tail=", i1 false") if index.is_signed else extent
    some = emitter.value(f"icmp {less} {it} {begin}, {end}")
    head, done = emitter.new_labels("row", "row.end")
    before = emitter.label
    emitter.line(f"br i1 {some}, label %{head}, label %{done}")
    emitter.start(head)
    phis = Phis(emitter, [type_name(t) for t in (index, *types)])
    start, *carried = phis.names
    row = emitter.value(f"{divide} {it} {start}, {extent}")
    first = emitter.value(f"mul {it} {row}, {extent}")
    column = emitter.value(f"sub {it} {start}, {first}")
    left = emitter.value(f"sub {it} {length}, {column}")
    room = emitter.value(f"sub {it} {end}, {start}")
    steps = emitter.call_intrinsic("umin", index, [left, room])
    stop = emitter.value(f"add {it} {start}, {steps}")
    emitter.bind([rows.row, rows.first], [row, first])
    values = list(carried)
    around, skipped = _begin_guarded(emitter, rows)
    if edges is None:
        values = emitter.iterations(index, start, stop, types, carried, rows.body, suffix)
    else:
        split_loop(emitter, edges, start, stop, column, rows.body, suffix)
    if rows.guard is not None:
        inside = emitter.label
        emitter.goto(skipped)
        emitter.start(skipped)
        ways = zip(types, values, carried)
        values = [emitter.value(f"phi {type_name(t)} [ {new}, %{inside} ], [ {old}, %{around} ]") for t, new, old in ways]
    again = emitter.value(f"icmp {less} {it} {stop}, {end}")
    back = emitter.label
    emitter.line(f"br i1 {again}, label %{head}, label %{done}")
    phis.fill(([begin, *initial], before), ([stop, *values], back))
    emitter.start(done)
    return [emitter.value(f"phi {type_name(t)} [ {a}, %{before} ], [ {b}, %{back} ]") for t, a, b in zip(types, initial, values)]

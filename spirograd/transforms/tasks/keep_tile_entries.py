"""Removal of conversions of tiles: tiles stay in the form of matrix instructions from product to product.

Each product converts rows to the entries of its total (`ops.tile_entries`), and the entries of the result to rows (`ops.tile_rows`); both
conversions use shared memory. Rows that came from entries need no conversion back, and loops carry entries in place of rows that nothing
else in them uses.
"""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base.dtypes import DType, Vec
from spirograd.base.matrix_shapes import TOTAL, held_entries
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.dce import dce


def keep_tile_entries(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Remove conversions between rows and entries."""
    if ops.tile_entries not in kernel.codes or not ctx.options.optimize:
        return kernel
    while True:  # one round for each loop around a product
        rewriter = _Keep()
        new = rewriter.kernel(kernel)
        if not rewriter.changed:
            return kernel
        kernel = dce(new, ctx)  # rows that are loop-carried but unused would count as used


# The parameters that are the rows of a loop-carried tile.
_Tile = tuple[Op, ...]


class _Keep(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.handlers = {ops.for_: self._for, ops.result: self._result, ops.tile_entries: self._entries}
        self.changed = False
        self.carried: dict[_Tile, Sequence[Op]] = {}  # the parameters that hold the entries
        self.rows: dict[Op, dict[int, Op]] = {}  # loop -> rows made of entries, by the number of the result

    def _entries(self, op: Op) -> Op:
        if op.attr != TOTAL:
            return self.copy(op)
        entries = self.carried.get(op.args) or _known_entries(self.args(op))
        if not entries:
            return self.copy(op)
        self.changed = True
        return self.b.emit(ops.vec, *entries)

    def _made(self, rows: Sequence[Op]) -> Sequence[Op]:
        t = rows[0].type
        assert isinstance(t, DType)
        return _known_entries(rows) or _parts(self, ops.tile_entries, rows, Vec(held_entries(len(rows)), t), TOTAL)

    def _for(self, op: Op) -> Op:
        (region,) = op.regions
        tiles = _carried_tiles(region)
        if not tiles:
            return self.copy(op)
        self.changed = True
        b, (begin, end, *initial) = self.b, self.args(op)
        fresh: list[Op] = []
        starts = list(initial)
        for params in tiles:
            entries = self._made([initial[region.params.index(p) - 1] for p in params])
            self.carried[params] = own = [Op(ops.param, e.type, loc=op.loc) for e in entries]
            fresh += own
            starts += entries
        b.begin()
        self.visit_all(region.ops[:-1])
        results = list(self.args(region.ops[-1]))
        b.at(region.ops[-1])
        for params in tiles:
            results += self._made([results[region.params.index(p) - 1] for p in params])
        body = Region((*region.params, *fresh), b.end(results).ops)
        b.at(op)
        left = list(b.for_(begin, end, starts, body, op.attr))
        new, entries = left[0].args[0], left[len(initial) :]
        rows = self.rows[op] = {}
        for params in tiles:
            t = params[0].type
            assert isinstance(t, DType)
            held = held_entries(len(params))
            new_rows = _parts(self, ops.tile_rows, entries[:held], Vec(len(params), t))
            rows |= {region.params.index(p) - 1: row for p, row in zip(params, new_rows)}
            entries = entries[held:]
        return new

    def _result(self, op: Op) -> Op:
        return self.rows.get(op.args[0], {}).get(op.attr) or self.copy(op)


def _parts(rewriter: Rewriter, code: ops.OpCode, operands: Sequence[Op], t: Vec, attr: str | None = None) -> list[Op]:
    b = rewriter.b
    vector = b.emit(code, *operands, attr=attr, type=t)
    return [b.emit(ops.extract, vector, b.const(k)) for k in range(t.n)]


def _known_entries(rows: Sequence[Op]) -> Sequence[Op]:
    """Return the entries from which ``rows`` were made: zeros if the rows are zeros, () if they are unknown."""
    source = rows[0].args[0] if rows[0].code is ops.extract else None
    if (
        source is not None
        and source.code is ops.tile_rows
        and all(r.code is ops.extract and r.args[0] is source and _is_const(r.args[1], k) for k, r in enumerate(rows))
        and source.type == Vec(len(rows), source.args[0].type)  # type: ignore[arg-type]
    ):
        return source.args
    if all(_is_const(r, 0) and str(r.attr)[0] != "-" for r in rows):
        return [rows[0]] * held_entries(len(rows))
    return ()


def _is_const(op: Op, value: int) -> bool:
    return op.code is ops.const and bool(op.attr == value)


def _carried_tiles(region: Region) -> list[_Tile]:
    """Return the tiles whose rows are loop-carried, and only used as the total of products."""
    carried = frozenset(region.params[1:])
    users: dict[Op, set[_Tile | None]] = {}
    for op in region.walk():
        use = op.args if op.code is ops.tile_entries and op.attr == TOTAL else None
        for arg in carried.intersection(op.args):
            users.setdefault(arg, set()).add(use)
    tiles = dict.fromkeys(use for uses in users.values() for use in uses if use is not None)
    return [use for use in tiles if all(users.get(p) == {use} for p in use) and len(set(use)) == len(use)]

"""Grouped loops in the interpreter: the invocations of a workgroup run in lockstep.

Each invocation is a generator with values of its own. It runs until it waits: at a barrier of the workgroup, or at an operation of its
subgroup (a read, a vote, a reduction, a scan, an operation on a tile, a barrier). When all of a subgroup wait or have ended, those that are
at the earliest point of the program run its operation together, so that invocations that took a branch, or are an iteration behind, catch
up with the others. When all of the workgroup wait, they have to do so at the same barrier, and go on together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from spirograd.base.artifact import FaultSite
from spirograd.base.dtypes import DType, Vec, i32
from spirograd.base.matrix_shapes import TRANSPOSED
from spirograd.ir import ops
from spirograd.ir.interp_loops import LOOPS
from spirograd.ir.interp_races import Iteration, wait_together
from spirograd.ir.interp_reports import record_fault
from spirograd.ir.interp_state import FAULT, ITERATION, LAUNCH, LOOPS_ENTERED, Compiler, Env, Step
from spirograd.ir.nodes import AdstackRef, Op, Region

# The operation at which an invocation waits, and its operands: the value and the lane number of a read; the value and 0 of a ballot; the
# operands and 0 of an operation on a tile; the value and 0 of a reduction or a scan; None and the mask of its lanes of a barrier of a
# subgroup.
Wait = tuple[Op, Any, int]
Run = Generator[Wait, object, None]
# A step that may wait, or one that does not.
_GroupStep = tuple[Step | None, Callable[[Env], Run] | None]
_COMBINING = frozenset((ops.subgroup_reduce, ops.subgroup_scan))
# Operations that all threads of a group reach together, or none does.
_OF_ALL = ops.TILES | {ops.workgroup_barrier}


def waits(op: Op) -> bool:
    """Return whether an invocation may wait in ``op``."""
    return op.code in ops.MEETING or any(not ops.MEETING.isdisjoint(region.codes) for region in op.regions)


def grouped_loop(c: Compiler, op: Op) -> Step:
    """Return the step of a grouped loop."""
    begin, end = c.args(op)
    order = c.order = {inner: number for number, inner in enumerate(op.regions[0].walk())}
    (index,), body, _ = _region(c, op.regions[0])
    t = op.args[0].type
    assert isinstance(t, DType)
    convert, size = t.np.type, op.attr.group_size
    adstacks = [c.adstack(ref) for ref in dict.fromkeys(i.attr for i in op.regions[0].walk() if isinstance(i.attr, AdstackRef))]
    sites = {inner: c.fault(_divergence(inner)) for inner in op.regions[0].walk() if inner.code in _OF_ALL}

    def step(env: Env) -> None:
        low, high = int(env[begin]), int(env[end])
        if c.races is not None:
            c.races.elements.clear()
        for first in range(low, high, size):
            group = _Group(sites, order, c.lanes)
            for number, i in enumerate(range(first, min(first + size, high))):
                own = list(env)
                own[index] = convert(i)
                own[ITERATION] = Iteration(first, (i,), number, *divmod(number, c.lanes))
                own[LOOPS_ENTERED] = []
                for adstack in adstacks:
                    own[adstack] = {}
                group.add(own, _run(body, own))
            group.run(env)

    return step


def _divergence(op: Op) -> FaultSite:
    what = "barrier" if op.code is ops.workgroup_barrier else "operation on a tile"
    message = f"this {what} was reached by {{0}} threads of a group of {{1}}: all have to reach it together, or none"
    return FaultSite("barrier", message, (i32, i32), op.loc)


# --- steps -------------------------------------------------------------------------------------------------------------------


def _region(c: Compiler, region: Region) -> tuple[list[int], list[_GroupStep], list[int]]:
    params = [c.entry(p) for p in region.params]
    steps: list[_GroupStep] = []
    for op in region.ops[:-1]:
        if waits(op):
            steps.append((None, _MAKERS[op.code](c, op)))
        else:
            plain = c.step(op)
            if plain is not None:
                steps.append((plain, None))
    return params, steps, [c.entry(r) for r in region.results]


def _run(steps: Sequence[_GroupStep], env: Env) -> Run:
    for plain, waiting in steps:
        if plain is not None:
            plain(env)
        else:
            assert waiting is not None
            yield from waiting(env)


def _if(c: Compiler, op: Op) -> Callable[[Env], Run]:
    out, condition = c.entry(op), c.entry(op.args[0])
    branches = [_region(c, region) for region in op.regions]

    def run(env: Env) -> Run:
        _, steps, results = branches[0 if env[condition] else 1]
        yield from _run(steps, env)
        env[out] = tuple([env[r] for r in results])

    return run


def _loop(c: Compiler, op: Op) -> Callable[[Env], Run]:
    loop = LOOPS[op.code](c, op, lambda region: _region(c, region))

    number = c.order[op]

    def run(env: Env) -> Run:
        entered = env[LOOPS_ENTERED]
        entered += (number, 0)
        for steps in loop(env):
            yield from _run(steps, env)
            entered[-1] += 1
        del entered[-2:]

    return run


def _barrier(c: Compiler, op: Op) -> Callable[[Env], Run]:
    masks = c.args(op)

    def run(env: Env) -> Run:
        yield (op, None, int(env[masks[0]]) if masks else 0)

    return run


def _read(c: Compiler, op: Op) -> Callable[[Env], Run]:
    out, (value, lane) = c.entry(op), c.args(op)

    def run(env: Env) -> Run:
        got = yield (op, env[value], int(env[lane]))
        env[out] = got

    return run


def _ballot(c: Compiler, op: Op) -> Callable[[Env], Run]:
    out, (value,) = c.entry(op), c.args(op)
    assert isinstance(op.type, DType)
    convert = op.type.np.type

    def run(env: Env) -> Run:
        got = yield (op, bool(env[value]), 0)
        env[out] = convert(got)

    return run


def _combination(c: Compiler, op: Op) -> Callable[[Env], Run]:
    out, (value,) = c.entry(op), c.args(op)

    def run(env: Env) -> Run:
        got = yield (op, env[value], 0)
        env[out] = got

    return run


def _tile(c: Compiler, op: Op) -> Callable[[Env], Run]:
    out, operands = c.entry(op), c.args(op)

    def run(env: Env) -> Run:
        got = yield (op, [env[operand] for operand in operands], 0)
        env[out] = got

    return run


_MAKERS: dict[ops.OpCode, Callable[[Compiler, Op], Callable[[Env], Run]]] = {
    ops.if_: _if,
    **dict.fromkeys(LOOPS, _loop),
    **dict.fromkeys((ops.workgroup_barrier, ops.subgroup_barrier), _barrier),
    ops.subgroup_read: _read,
    ops.subgroup_ballot: _ballot,
    **dict.fromkeys(ops.TILES, _tile),
    **dict.fromkeys(_COMBINING, _combination),
}


# --- lockstep ----------------------------------------------------------------------------------------------------------------


class _Group:
    """A workgroup and its invocations. ``order``: the numbers of operations in the order of the program."""

    def __init__(self, sites: dict[Op, int], order: dict[Op, int], lanes: int) -> None:
        self.sites = sites
        self.order = order
        self.lanes = lanes
        self.runs: list[Run] = []
        self.envs: list[Env] = []
        self.waiting: list[Wait | None] = []

    def add(self, env: Env, run: Run) -> None:
        self.envs.append(env)
        self.runs.append(run)
        self.waiting.append(None)

    def run(self, outer: Env) -> None:
        """Run all invocations to their ends. A barrier or an operation on a tile that only some reach is a fault, and ends the group."""
        count = len(self.runs)
        for k in range(count):
            self._resume(k, None)
        while True:
            for first in range(0, count, self.lanes):
                alone = self._exchange(range(first, min(first + self.lanes, count)))
                if alone is not None:
                    self._fail(outer, *alone)
                    return
            held = [wait for wait in self.waiting if wait is not None]
            if not held:
                return
            op = held[0][0]
            same = sum(wait[0] is op for wait in held)
            if same < count:
                self._fail(outer, op, same)
                return
            for k in range(count):
                self.envs[k][ITERATION].barriers += 1
                self._resume(k, None)

    def _fail(self, outer: Env, op: Op, reached: int) -> None:
        record_fault(outer[FAULT], outer[LAUNCH], self.sites[op], _divergence(op), [np.int32(reached), np.int32(len(self.runs))])

    def _resume(self, k: int, value: object) -> None:
        try:
            self.waiting[k] = self.runs[k].send(value)
        except StopIteration:
            self.waiting[k] = None

    def _exchange(self, lanes: range) -> tuple[Op, int] | None:
        """Run the operations at which a subgroup waits, until it waits for none. Return an operation on a tile that only some lanes of a
        group reach, and the number of these lanes."""
        while True:
            points = {
                k - lanes.start: (*self.envs[k][LOOPS_ENTERED], self.order[wait[0]])
                for k in lanes
                if (wait := self.waiting[k]) is not None and wait[0].code in ops.MEETING_IN_SUBGROUPS
            }
            if not points:
                return None
            earliest = min(points.values())
            together = [lane for lane, point in points.items() if point == earliest]
            waits = {lane: wait for lane in together if (wait := self.waiting[lanes.start + lane]) is not None}
            op = waits[together[0]][0]
            if op.code in ops.TILES and len(together) < len(self.runs):
                return op, len(together)
            if op.code is ops.subgroup_barrier:
                self._order(lanes.start, waits)
            for lane, result in zip(together, _RESULTS[op.code](op, waits)):
                self._resume(lanes.start + lane, result)

    def _order(self, first: int, waits: Mapping[int, Wait]) -> None:
        """Order the accesses of the threads of one mask by a barrier of a subgroup."""
        for mask in {wait[2] for wait in waits.values()}:
            named = [lane for lane, wait in waits.items() if wait[2] == mask and (mask == 0 or mask >> lane & 1)]
            wait_together([self.envs[first + lane][ITERATION] for lane in named], self.lanes)


# --- results, in the order of the lanes --------------------------------------------------------------------------------------


def _nothing(op: Op, waits: Mapping[int, Wait]) -> list[object]:
    return [None] * len(waits)


def _lanes_read(op: Op, waits: Mapping[int, Wait]) -> list[object]:
    """Return the value that each lane reads. A lane that reads from a missing lane keeps its own value."""
    return [waits.get(wait[2], wait)[1] for wait in waits.values()]


def _votes(op: Op, waits: Mapping[int, Wait]) -> list[object]:
    return [sum(1 << lane for lane, wait in waits.items() if wait[1])] * len(waits)


def _tile_rows(op: Op, waits: Mapping[int, Wait]) -> list[object]:
    """Return the rows of tiles. The entries of a lane are consecutive here, in the order of rows."""
    assert isinstance(op.type, Vec)
    n = op.type.n
    tile = np.array([wait[1] for wait in waits.values()]).reshape(n, n)
    return [tuple(tile[k]) if k < n else (tile.dtype.type(0),) * n for k in waits]


def _tile_entries(op: Op, waits: Mapping[int, Wait]) -> list[object]:
    rows = [wait[1] for wait in waits.values()]
    tile = np.array(rows[: len(rows[0])])
    entries = (tile.T if op.attr == TRANSPOSED else tile).reshape(-1)
    assert isinstance(op.type, Vec)
    return [tuple(held) for held in np.resize(entries, (len(waits), op.type.n))]


def _tile_product(op: Op, waits: Mapping[int, Wait]) -> list[object]:
    """Return the entries of products, with sums in the order of the inner index."""
    assert isinstance(op.type, Vec)
    n, held, total = math.isqrt(op.type.n * len(waits)), op.type.n, op.type.elem.np
    factor = (len(op.args) - held) // 2
    ends = ((0, factor), (factor, 2 * factor), (2 * factor, len(op.args)))
    a, b, c = (np.resize([wait[1][k:end] for wait in waits.values()], (n, n)).astype(total) for k, end in ends)
    with np.errstate(all="ignore"):
        for k in range(n):
            c = c + a[:, k : k + 1] * b[k : k + 1]
    return [tuple(entries) for entries in c.reshape(len(waits), -1)]


def _combined(op: Op, waits: Mapping[int, Wait]) -> list[object]:
    code, t = ops.COMBINE[op.attr], op.type
    totals = list(accumulate([wait[1] for wait in waits.values()], lambda a, b: ops.evaluate(code, t, (a, b))))
    return totals if op.code is ops.subgroup_scan else [totals[-1]] * len(totals)


_RESULTS: dict[ops.OpCode, Callable[[Op, Mapping[int, Wait]], list[object]]] = {
    ops.subgroup_barrier: _nothing,
    ops.subgroup_read: _lanes_read,
    ops.subgroup_ballot: _votes,
    ops.tile_entries: _tile_entries,
    ops.tile_rows: _tile_rows,
    ops.tile_product: _tile_product,
    **dict.fromkeys(_COMBINING, _combined),
}

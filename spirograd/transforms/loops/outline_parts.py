"""Outlining of large code: serial tasks, and large operations of loops over chunks, become several functions.

`distribute` cuts the body of a loop over a chunk, whose iterations still run as vectors. Code that is cut here is no longer vectorised
across iterations, so only larger code is cut. Parts are runs of operations of a region. They use values from outside, and yield the values
that are used after them.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import accumulate, pairwise

from spirograd.analysis import loop_costs
from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.chunk_loops import loops_of
from spirograd.ir.nodes import Kernel, Op, Region
from spirograd.ir.rewrite import Rewriter, copied
from spirograd.transforms.loops.distribute import RECOMPUTED
from spirograd.transforms.pass_context import PassContext


def outline_parts(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Put parts of large regions into operations `outlined`.

    A group of threads stays in one function, whose stack holds its shared memory.
    """
    return _OutlineParts().kernel(kernel)


class _OutlineParts(Rewriter):
    """A rewriter that outlines ``parts``: for each region that is cut, the bounds of its parts, as numbers of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[Region, tuple[int, ...]] = {}
        self.handlers = {ops.task: self._task, **dict.fromkeys((ops.if_, ops.for_, ops.while_, ops.outlined), self.copy)}

    def _task(self, op: Op) -> Op:
        self.parts = {}
        if op.attr.kind == "serial":
            if loop_costs.is_large(op.regions[0]):
                _find(op.regions[0], self.parts)
        elif not op.attr.grouped:
            for body in op.regions[1:]:
                for loop in loops_of(op, body):
                    _find_in_iteration(loop.loop, self.parts)
        return self.copy(op) if self.parts else self.b.append(op)

    def region(self, region: Region) -> Region:
        bounds = self.parts.get(region)
        if bounds is None:
            return super().region(region)
        b, last = self.b, _last_uses(region)
        b.begin()
        for start, end in pairwise(bounds):
            part = region.ops[start:end]
            self._part(part, [op for op in part if last.get(op, -1) >= end])
        return Region(region.params, b.end(self.args(region.ops[-1])).ops)

    def _part(self, part: tuple[Op, ...], later: list[Op]) -> None:
        """Outline a part, unless it would take or return a value that functions cannot. ``later``: operations whose results are used after
        it."""
        results = [op for op in later if op.code not in RECOMPUTED]
        inside = set(part)
        taken = {v for op in part for v in _used(op) if v not in inside}
        if not all(map(_returnable, results)) or any(isinstance(v.type, tuple) for v in taken):
            self.visit_all(part)
            return
        b = self.b
        b.begin()
        self.visit_all(part)
        region = b.end([self.value(op) for op in results])
        outlined = b.emit(ops.outlined, attr="part", type=tuple([op.type for op in results]), regions=(region,))
        self.env.update(zip(results, b.results(outlined)))
        self.env.update(copied(b, [op for op in later if op.code in RECOMPUTED]))


def _find_in_iteration(loop: Op, cuts_of: dict[Region, tuple[int, ...]]) -> None:
    """Cut the regions of the large operations of a loop."""
    for op in loop.regions[0].ops:
        if op.regions and loop_costs.is_large_operation(op):
            for region in op.regions:
                _find(region, cuts_of)


def _find(region: Region, cuts_of: dict[Region, tuple[int, ...]]) -> int:
    """Cut ``region`` and the regions in it. Return the number of operations that are left in its function."""
    sizes = [1 + sum([_find(inner, cuts_of) for inner in op.regions]) for op in region.ops]
    if sum(sizes) <= loop_costs.LARGEST_PARTITION:
        return sum(sizes)
    last = len(region.ops) - 1
    cuts_of[region] = (0, *loop_costs.cuts(sizes[:last], _crossing(region)), last)
    return len(cuts_of[region])


def _used(op: Op) -> Collection[Op]:
    return set(op.args).union(*[inner.live_ins for inner in op.regions]) if op.regions else op.args


def _last_uses(region: Region) -> dict[Op, int]:
    """Return, for each value, the number of the last operation of ``region`` that uses it."""
    return {value: k for k, op in enumerate(region.ops) for value in _used(op)}


def _crossing(region: Region) -> list[int | None]:
    """Return, for each cut before an operation, the number of values that are live there, or None if a function cannot return one of
    them."""
    count = len(region.ops)
    values, refused = [0] * (count + 1), [0] * (count + 1)
    last = _last_uses(region)
    for k, op in enumerate(region.ops):
        if op in last and op.code not in RECOMPUTED:
            for counts in (values, *([] if _returnable(op) else [refused])):
                counts[k + 1] += 1
                counts[last[op] + 1] -= 1
    return [None if bad else crossing for crossing, bad in zip(accumulate(values), accumulate(refused))][:count]


def _returnable(op: Op) -> bool:
    """Return whether a function can return the value of ``op``. Vectors may lie in memory."""
    return isinstance(op.type, DType)

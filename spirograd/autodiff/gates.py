"""Tasks in which only some iterations have tapes: where the conditions that tell have been passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spirograd.analysis.sizes import size_of
from spirograd.base.dtypes import i32, u32
from spirograd.base.loc import Loc
from spirograd.base.sizes import Size
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region, TapeRef, TempKind, TempRef
from spirograd.ir.rewrite import Rewriter

# Bytes of tapes for which counting is not worth it: the heap has as many in any case.
_SMALL = 1 << 20


@dataclass(frozen=True, slots=True)
class Gate:
    """``region``: what an iteration of a parallel loop enters to use ``tapes``, of which there are none elsewhere in the loop. ``loc``: of
    the first loop in there that has one."""

    region: Region
    tapes: frozenset[TapeRef]
    loc: Loc | None


def gates(kernel: Kernel, sizes: Sequence[Size | None]) -> tuple[Gate, ...]:
    """The gates of the parallel loops of ``kernel``, a gradient kernel; ``sizes``: what is known of capacities, by number.

    All gates, whatever the conditions: how often they are passed depends on the data. Counting takes little where it is worth something,
    and is not repeated while the memory that it reads stays as it is. Only where the compiler can tell that rows for all iterations are
    small do these have them.
    """
    found = []
    for loop in kernel.body.ops:
        # Of 64 bits there may be more iterations than can be counted.
        if loop.code is ops.for_ and loop.attr.parallel and loop.args[0].type in (i32, u32):
            gate = _gate(loop.regions[0])
            if gate is not None and not _is_small(loop, gate, sizes):
                found.append(gate)
    return tuple(found)


def _gate(body: Region) -> Gate | None:
    """The innermost region below branches only that has all tapes of ``body``; None if that is ``body`` itself."""
    region = body
    while True:
        using = [op for op in region.ops if _tapes(op)]
        if len(using) != 1 or using[0].code is not ops.if_:
            break
        branches = [branch for branch in using[0].regions if any(_tapes(op) for op in branch.ops)]
        if len(branches) != 1:
            break
        region = branches[0]
    if region is body or not using:
        return None
    return Gate(region, frozenset().union(*[_tapes(op) for op in using]), using[0].loc)


def _tapes(op: Op) -> frozenset[TapeRef]:
    """Those that are used in ``op``."""
    inside = (inner for region in op.regions for inner in region.walk())
    return frozenset([x.attr for x in (op, *inside) if isinstance(x.attr, TapeRef)])


def _is_small(loop: Op, gate: Gate, sizes: Sequence[Size | None]) -> bool:
    begin, end = size_of(loop.args[0]), size_of(loop.args[1])
    row = 0
    for tape in gate.tapes:
        entries = sizes[tape.capacity]
        if not isinstance(entries, int):
            return False
        row += tape.dtype.size * tape.width * max(entries, 1)
    return isinstance(begin, int) and isinstance(end, int) and (end - begin) * row <= _SMALL


def passing_count(number: int) -> TempRef:
    """Where the iterations that pass the gate with size ``number`` are counted."""
    return TempRef(f"passing{number}", i32, kind=TempKind.PASSING, number=number)


def noting(kernel: Kernel, numbers: Mapping[int, Gate]) -> Kernel:
    """``kernel`` with a note at the begin of each gate, an atomic addition to `passing_count`."""
    return _Notes(numbers).kernel(kernel)


class _Notes(Rewriter):
    def __init__(self, numbers: Mapping[int, Gate]) -> None:
        super().__init__()
        self.gates = {id(gate.region): (k, gate) for k, gate in numbers.items()}
        self.handlers = {ops.if_: self.copy}

    def region(self, region: Region) -> Region:
        if id(region) not in self.gates:
            return super().region(region)
        number, gate = self.gates[id(region)]
        b = self.b
        b.begin()
        b.loc = gate.loc
        b.atomic("add", passing_count(number), b.const(1))
        first = b.end().ops[:-1]
        return Region(region.params, (*first, *super().region(region).ops))

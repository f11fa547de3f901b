"""Which values are the same in all iterations of a parallel loop, and whether several iterations can run in lockstep, as lanes of vectors.

LLVM vectorises innermost loops only. A parallel loop around a serial one whose iterations depend on each other (a simulation, a solver,
their gradients) would run one operation at a time, waiting for its result. If all lanes take the same branches and run the same number
of iterations, they need one control flow between them.
"""

from __future__ import annotations

from spirograd.base.dtypes import DType, Vec, f16, i32
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.nodes import BufferRef, Op, Region, ref_of
from spirograd.llvmgen.cost import trips

# An access that is not contiguous costs about as much as vectorising this many arithmetic operations gains.
_OPERATIONS_PER_ACCESS = 8
# Loops of fewer turns in all are unrolled by LLVM, which then vectorises what is around them.
_SHORTEST = 12
_REFUSED = frozenset((ops.while_, ops.cas, ops.barrier, ops.call_memory, ops.vec, ops.extract, ops.insert))
_FREE = frozenset((ops.const, ops.result, ops.slot, ops.thread_slot, ops.bitcast, ops.cast))


class _Diverges(Exception):
    """The iterations cannot run in lockstep."""


class Uniformity:
    """What differs between the iterations of ``body``, whose index is its first parameter. Raises _Diverges."""

    def __init__(self, body: Region) -> None:
        self.body = body
        self.index = body.params[0]
        self.varying: set[Op] = set(body.params)
        self.used: set[Op] = set()
        self.mixed: dict[Op, list[bool]] = {}  # control operation -> which results vary
        self.yields: dict[Region, list[bool]] = {body: [True] * len(body.results)}  # the same, by its regions
        self._region(body)

    def varies(self, op: Op) -> bool:
        return op in self.varying

    def _region(self, region: Region) -> list[bool]:
        self.used.update(*[op.args for op in region.ops])
        for op in region.ops[:-1]:
            several = op.code is ops.call and isinstance(op.type, tuple)
            if op.code in _REFUSED or several or isinstance(op.type, Vec) or op.type is f16:
                raise _Diverges
            if op.code is ops.for_:
                self._for(op)
            elif op.code is ops.if_:
                self._if(op)
            elif self._differs(op):
                self.varying.add(op)
        return [v in self.varying for v in region.results]

    def _differs(self, op: Op) -> bool:
        if op.code is ops.result:
            return self.mixed[op.args[0]][int(op.attr)]
        if is_tape(op):
            if op.args[0] in self.varying:
                raise _Diverges
            return True
        return (op.code is ops.atomic and not is_report(op)) or any(a in self.varying for a in op.args)

    def _for(self, op: Op) -> None:
        if any(a in self.varying for a in op.args[:2]):
            raise _Diverges
        (body,) = op.regions
        # In a nest this loop is visited again and again: begin with what is known, or the number of visits doubles with each level.
        carried = [a in self.varying or p in self.varying for a, p in zip(op.args[2:], body.params[1:])]
        while True:
            self.varying.update(p for p, differs in zip(body.params[1:], carried) if differs)
            after = [a or b for a, b in zip(carried, self._region(body))]
            if after == carried:
                break
            carried = after
        self.mixed[op] = self.yields[body] = carried

    def _if(self, op: Op) -> None:
        arms = [self._region(r) for r in op.regions]
        differs = op.args[0] in self.varying
        if differs and not all(_speculable(o) for r in op.regions for o in r.ops[:-1]):
            raise _Diverges
        self.mixed[op] = [differs or a or b for a, b in zip(*arms)]
        self.yields.update(dict.fromkeys(op.regions, self.mixed[op]))

    def adds_together(self, op: Op) -> bool:
        """Whether ``op`` adds to one and the same element in all iterations, and nobody asks what was there."""
        return op.code is ops.atomic and op.attr[0] == "add" and op not in self.used and op.args[0] not in self.varying

    def contiguous(self, op: Op) -> bool:
        """Whether the integer ``op`` grows by one from lane to lane."""
        if op is self.index:
            return True
        if op.code is ops.cast:
            (source,) = op.args
            assert isinstance(source.type, DType) and isinstance(op.type, DType)
            exact = source is self.index or source.attr == "nsw"
            return exact and op.type.is_signed and op.type.bits >= source.type.bits and self.contiguous(source)
        if op.code is ops.add:
            a, b = op.args
            return (self.contiguous(a) and b not in self.varying) or (self.contiguous(b) and a not in self.varying)
        return op.code is ops.sub and self.contiguous(op.args[0]) and op.args[1] not in self.varying


def is_tape(op: Op) -> bool:
    """Whether ``op`` accesses a tape, of which each lane has its own."""
    ref = op.attr
    return op.code in (ops.load, ops.store) and isinstance(ref, BufferRef) and ref.slot.kind == "tapes"


def is_report(op: Op) -> bool:
    """Whether ``op`` accesses the fault record: where all lanes fail together, one of them tells."""
    ref = ref_of(op)
    return isinstance(ref, BufferRef) and ref.slot.kind == "fault"


def _speculable(op: Op) -> bool:
    """Whether ``op`` may run though its branch is not taken."""
    return op.code.effect == "pure" and not op.regions and op.code not in (ops.idiv, ops.irem)


def lockstep(body: Region, options: CompileOptions) -> Uniformity | None:
    """How the iterations of ``body`` can run in lockstep; None if they cannot, or LLVM does better on its own."""
    if not options.optimize or options.opt_level < 2 or body.params[0].type is not i32:
        return None
    if ops.for_ not in body.codes:
        return None
    try:
        found = Uniformity(body)
    except _Diverges:
        return None
    work = _Work(found)
    work.add(body, 1)
    return found if work.chain and work.scattered * _OPERATIONS_PER_ACCESS <= work.arithmetic else None


class _Work:
    """Counts operations per iteration, by how much vectors help."""

    def __init__(self, found: Uniformity) -> None:
        self.found = found
        self.chain = False
        self.arithmetic = self.scattered = 0

    def add(self, region: Region, times: int) -> None:
        for op in region.ops[:-1]:
            trip_count = times * trips(op) if op.code is ops.for_ else times
            for inner in op.regions:
                self.add(inner, trip_count)
            if op.code is ops.for_:
                self.chain |= trip_count >= _SHORTEST and self._is_chain(op.regions[0])
            elif is_report(op):
                continue
            elif op.code is ops.atomic or (op.code in (ops.load, ops.store) and not is_tape(op)):
                alone = op.code is not ops.load or op in self.found.varying
                apart = not self.found.adds_together(op) if op.code is ops.atomic else not self.found.contiguous(op.args[0])
                self.scattered += times * (alone and apart)
            elif op.code not in _FREE and op in self.found.varying:
                self.arithmetic += times

    def _is_chain(self, body: Region) -> bool:
        """Whether iterations depend on each other in more than sums, which LLVM splits."""
        pairs = zip(body.params[1:], body.results)
        return any(p in self.found.varying and not (v.attr == "reassoc" and p in v.args) for p, v in pairs)

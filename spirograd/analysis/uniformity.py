"""Uniformity: the values that are the same in all iterations of a parallel loop, and whether several iterations can be vectorised, one in
each lane.

LLVM vectorises innermost loops only. A parallel loop around a serial one whose iterations depend on each other (a simulation, a solver,
their gradients) would run one operation at a time, waiting for its result. If all lanes take the same branches and run the same number of
iterations, one control flow serves all of them. Otherwise control flow diverges: a branch or a loop runs as long as any lane needs it,
under a mask of the lanes that do (Karrenberg and Hack, "Whole-function vectorization"; Pharr and Mark, "ispc"). A value is then uniform if
it is the same in all active lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spirograd.analysis.lane_groups import LaneGroups, WholeVectors
from spirograd.base.dtypes import DType, Vec, f16
from spirograd.ir import ops
from spirograd.ir.nodes import BufferRef, Op, Region, ref_of

# Loads of every n-th element become loads of whole vectors, from which lanes take their elements.
INTERLEAVED = (2, 3, 4)
_REFUSED = frozenset((ops.cas, ops.barrier, ops.clock, ops.call_memory, ops.vec, ops.extract, ops.insert))


class Diverges(Exception):
    """A divergence that prevents vectorisation."""


class Uniformity:
    """The values of ``body`` that differ between iterations. The index is the first parameter of ``body``. Raises Diverges.

    ``guard``: the uniformity of the guard, if the loop is guarded. Then iterations that run together are not adjacent.
    """

    def __init__(self, body: Region, guard: Uniformity | None = None) -> None:
        self.body = body
        self.guard = guard
        self.index = body.params[0]
        self.varying: set[Op] = set(body.params)
        self.used: set[Op] = {a for op in body.walk() for a in op.args}
        # The results of control operations with a use.
        self.results = {(op.args[0], op.attr) for op in body.walk() if op.code is ops.result and op in self.used}
        self.mixed: dict[Op, list[bool]] = {}  # control operation -> for each result, whether it varies
        self.yields: dict[Region, list[bool]] = {body: [True] * len(body.results)}  # the same for its regions
        self.divergent: set[Op] = set()  # control operations in which lanes diverge
        self.backwards: set[Op] = set()  # divergent counted loops whose lanes end together, instead of beginning together
        self.counted: set[Op] = set()  # values that depend on the index of such a loop
        self.counts: dict[Op, Op] = {}  # operation that counts the iterations of such a loop, before or after it -> the loop
        self.groups: LaneGroups | None = None  # set if each vector begins at a multiple of its lanes, and loads gain from it
        self._masked = self._waiting = 0  # the number of divergent operations around the current one, and of `while` among them
        self._region(body)

    def varies(self, op: Op) -> bool:
        return op in self.varying

    def _region(self, region: Region) -> list[bool]:
        for op in region.ops[:-1]:
            if not self.counted.isdisjoint(op.args):
                self.counted.add(op)
            several = op.code is ops.call and isinstance(op.type, tuple)
            if several or op.code in _REFUSED or isinstance(op.type, Vec) or op.type is f16 or self._is_ordered(op):
                raise Diverges
            if op.code is ops.for_:
                self._for(op)
            elif op.code is ops.while_:
                self._while(op)
            elif op.code is ops.if_:
                self._if(op)
            elif self._differs(op):
                self.varying.add(op)
        return [v in self.varying for v in region.results]

    def _is_ordered(self, op: Op) -> bool:
        """Return whether the order in which iterations reach ``op`` matters, or one may wait for another there. In a branch that lanes take
        for themselves, each prints when it gets there."""
        ref = ref_of(op)
        if is_print(op):
            return not self._masked
        if isinstance(ref, BufferRef) and ref.slot.kind == "locks":
            return True
        if op.code is not ops.atomic or is_report(op) or not self._masked:
            return False
        if self._waiting or op in self.used or op.attr[0] == "exchange":
            return True
        # Sums of floats keep their order where iterations of an inner loop add to one element: it decides how they round.
        return op.attr[1].dtype.is_float and op.args[0] not in self.counted

    def _under_mask(self, region: Region) -> None:
        self._masked += 1
        self._region(region)
        self._masked -= 1

    def _differs(self, op: Op) -> bool:
        if op in self.counts:
            return False
        if op.code is ops.result:
            return self.mixed[op.args[0]][int(op.attr)]
        if is_adstack(op):
            if op.args[0] in self.varying:
                raise Diverges
            return True
        return (op.code is ops.atomic and not is_report(op)) or any(a in self.varying for a in op.args)

    def _for(self, op: Op) -> None:
        if any(a in self.varying for a in op.args[:2]):
            self._divergent_for(op)
            return
        (body,) = op.regions
        initial = [a in self.varying for a in op.args[2:]]
        self.mixed[op] = self.yields[body] = self._carried([body.params[1:]], initial, lambda: self._region(body))

    def _carried(self, params: Sequence[Sequence[Op]], initial: list[bool], visit: Callable[[], list[bool]]) -> list[bool]:
        """Return which loop-carried values vary: those that do ``initial``ly, or after a ``visit`` of the body. ``params``: for each region
        of the loop, its parameters for these values."""
        # An outer loop visits this loop again and again. Starting from the known state keeps the number of visits from doubling with each
        # level.
        carried = [any(varies) for varies in zip(initial, *([p in self.varying for p in region] for region in params))]
        while True:
            self.varying.update(p for region in params for p, differs in zip(region, carried) if differs)
            after = [a or b for a, b in zip(carried, visit())]
            if after == carried:
                return carried
            carried = after

    def _divergent_for(self, op: Op) -> None:
        """Handle a counted loop in which lanes diverge. Lanes count together from their first iterations, or to their last ones if the body
        counts backwards, as reverse sweeps do."""
        begin, end, *_ = op.args
        (body,) = op.regions
        index = body.params[0]
        assert isinstance(index.type, DType)
        if index.type.bits < 32:
            raise Diverges
        self.divergent.add(op)
        self.counted.add(index)
        after = [o for o in body.walk() if _counts_down(o, begin, end, index)]
        if after:
            self.backwards.add(op)
        if after or begin in self.varying:
            self.varying.add(index)
        self.counts.update(dict.fromkeys(after or [o for o in body.walk() if o.code is ops.sub and o.args == (index, begin)], op))
        self.varying.update(body.params[1:])
        self._under_mask(body)
        self.mixed[op] = self.yields[body] = [True] * len(body.results)

    def _while(self, op: Op) -> None:
        """Handle a loop that each lane leaves after an iteration of its own. All live lanes are in the same iteration, so its counter and
        what depends on nothing else are uniform in the loop. They vary after it, so a value with a use there counts as varying."""
        condition, body = op.regions
        self.divergent.add(op)
        initial = [a in self.varying or (op, k) in self.results for k, a in enumerate(op.args)]

        def visit() -> list[bool]:
            self._waiting += 1
            self._under_mask(condition)
            self._under_mask(body)
            self._waiting -= 1
            return [v in self.varying for v in body.results]

        self.mixed[op] = self.yields[body] = self._carried([condition.params, body.params], initial, visit)
        self.yields[condition] = [True] * len(condition.results)

    def _if(self, op: Op) -> None:
        differs = op.args[0] in self.varying
        masked = differs and not all(_speculable(o) for r in op.regions for o in r.ops[:-1])
        if masked:
            self.divergent.add(op)
        self._masked += masked
        arms = [self._region(r) for r in op.regions]
        self._masked -= masked
        self.mixed[op] = [differs or a or b for a, b in zip(*arms)]
        self.yields.update(dict.fromkeys(op.regions, self.mixed[op]))

    def reads_elements(self) -> bool:
        """Return whether a result depends on loads of each iteration. Conditions on indices hold for most iterations, or for neighbours."""
        seen = list(self.body.results)
        for op in seen:
            seen += [a for a in op.args if self.varies(a)]
        return any(op.code is ops.load and self.varies(op) for op in seen)

    def adds_together(self, op: Op) -> bool:
        """Return whether ``op`` adds to one element in all iterations, and its result is not used."""
        return op.code is ops.atomic and op.attr[0] == "add" and op not in self.used and op.args[0] not in self.varying

    def contiguous(self, op: Op) -> bool:
        """Return whether the integer ``op`` grows by one from lane to lane."""
        if self.guard is not None:
            return False
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

    def lane_stride(self, op: Op) -> int:
        """Return the growth of the index ``op`` of an element from lane to lane, or 0 if it is not known."""
        if self.contiguous(op):
            return 1
        if op.attr != "nsw" or op.code not in (ops.add, ops.sub, ops.mul):
            return 0
        a, b = op.args
        if op.code is ops.mul:
            return self.lane_stride(a) * int(b.attr) if b.code is ops.const else 0
        if b not in self.varying:
            return self.lane_stride(a)
        return self.lane_stride(b) if op.code is ops.add and a not in self.varying else 0

    def find_groups(self, vectors: WholeVectors) -> None:
        """Find values that groups of lanes share, if loads gain from it."""
        if self.guard is not None or self.counts or any(map(is_adstack, self.body.walk())):
            return
        loads = [op for op in self.body.walk() if op.code is ops.load and self.varies(op)]
        regular = {op for op in loads if self.contiguous(op.args[0]) or self.interleaved(op)}
        groups = LaneGroups(self.body, vectors, self.varying, regular)
        if groups.gains:
            self.groups = groups

    def grouped(self, op: Op) -> bool:
        """Return whether groups of lanes share ``op``, or it loads elements at regular distances for each of them."""
        return self.groups is not None and self.groups.knows(op)

    def interleaved(self, op: Op) -> bool:
        """Return whether the load ``op`` is of every second, third or fourth element of 32 bits, as of one entry of small vectors."""
        return op.attr.dtype.bits == 32 and self.lane_stride(op.args[0]) in INTERLEAVED


def is_adstack(op: Op) -> bool:
    """Return whether ``op`` accesses an adstack. Each lane has its own."""
    ref = op.attr
    return op.code in (ops.load, ops.store) and isinstance(ref, BufferRef) and ref.slot.kind == "adstacks"


def is_report(op: Op) -> bool:
    """Return whether ``op`` accesses the fault record. If all lanes fail together, one of them reports."""
    ref = ref_of(op)
    return isinstance(ref, BufferRef) and ref.slot.kind == "fault"


def is_print(op: Op) -> bool:
    """Return whether ``op`` accesses the memory that prints write to."""
    ref = ref_of(op)
    return isinstance(ref, BufferRef) and ref.slot.kind == "print"


def _counts_down(op: Op, begin: Op, end: Op, index: Op) -> bool:
    """Return whether ``op`` is end - 1 - index, in a loop that begins at 0."""
    if op.code is not ops.sub or op.args[1] is not index or begin.code is not ops.const or begin.attr != 0:
        return False
    last = op.args[0]
    return last.code is ops.sub and last.args[0] is end and last.args[1].code is ops.const and last.args[1].attr == 1


def _speculable(op: Op) -> bool:
    """Return whether ``op`` may run if its branch is not taken. A function may contain a loop that never ends there."""
    return op.code.effect == "pure" and not op.regions and op.code not in (ops.idiv, ops.irem, ops.call)

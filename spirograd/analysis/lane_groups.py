"""Groups of lanes: values that differ between the lanes of a vector in a way that is known at compile time, such as indices of cells in
small blocks.

A loop over blocks of 4 x 4 x 4 cells, as below a node of a sparse field, computes the coordinates of a cell in its block by division of the
loop index. If each vector begins at a multiple of its lanes, quotients and remainders are known lane by lane: with 16 lanes, the first axis
is the same in all lanes, the second is 0 in the first four, and so on. Then a neighbour lies in the same block for some lanes and in the
next one for others. Its block is looked up once for each of these groups of lanes, not once for each lane, and the elements of each group
lie at regular distances.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from spirograd.base.dtypes import DType, u1
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.chunk_loops import ChunkLoop
from spirograd.ir.nodes import BufferRef, Op, Region

STRIDES = (1, 2, 3, 4)
_LINEAR = (ops.add, ops.sub)
_DIVISIONS = (ops.idiv, ops.irem)


@dataclass(frozen=True, slots=True)
class WholeVectors:
    """A loop whose vectors each begin at a multiple of ``lanes``, the last one at ``last`` or before. ``multiples``: values that are the
    same in all lanes -> a number; each value is the greatest multiple of that number which is not greater than the index. ``groups``:
    values are computed by groups of lanes if there are no more than this."""

    lanes: int
    last: int
    multiples: Mapping[Op, int]
    groups: int


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of lanes: the value of a lane is the value of its group plus its offset, where sums wrap around. ``groups``: the number of
    the group of each lane. ``zero``: whether the values of groups are 0. ``factor``: a number that divides the value of the only group,
    which is from 0 to ``most``, and no lane's value has wrapped around; 0 if no such number is known."""

    groups: tuple[int, ...]
    offsets: tuple[int, ...]
    zero: bool = False
    factor: int = 0
    most: int = 0

    @property
    def count(self) -> int:
        return max(self.groups) + 1

    def folded(self) -> tuple[int, ...]:
        """Return groups of lanes that surely have the same value."""
        return numbered(zip(self.groups, self.offsets))


def numbered(keys: Iterable[object]) -> tuple[int, ...]:
    """Return ``keys`` as numbers in order of first appearance."""
    known: dict[object, int] = {}
    return tuple([known.setdefault(key, len(known)) for key in keys])


class LaneGroups:
    """The patterns of values in ``body``, a loop that runs as ``vectors`` says. ``varying``: values that may differ between lanes.
    ``regular``: loads that need no pattern."""

    def __init__(self, body: Region, vectors: WholeVectors, varying: set[Op], regular: set[Op]) -> None:
        index, lanes = body.params[0], vectors.lanes
        self.lanes, self._most = lanes, vectors.groups
        self.patterns = {index: Pattern((0,) * lanes, tuple(range(lanes)), factor=lanes, most=vectors.last)}
        self.folding: set[Op] = set()  # operations whose operands include their offsets
        self.strides: dict[Op, int] = {}  # loads -> the distance of their elements from lane to lane, in each group
        self.gains = False
        self._index, self._varying, self._multiples, self._regular = index, varying, vectors.multiples, regular
        self._region(body)
        takes = self.patterns.keys() | self.strides.keys()
        self.vectors = {a for op in body.walk() if op not in takes for a in op.args if a in self.patterns}

    def knows(self, op: Op) -> bool:
        """Return whether ``op`` is computed, or loaded, by groups."""
        return op in self.patterns or op in self.strides

    def _region(self, region: Region) -> None:
        for op in region.ops[:-1]:
            for inner in op.regions:
                self._region(inner)
            if op not in self._varying or op.regions or not isinstance(op.type, DType):
                continue
            if op.code is ops.load:
                self._load(op)
            elif not op.type.is_float and op.code.effect == "pure" and op.code not in (ops.call, ops.result, ops.bitcast):
                pattern = self._pattern(op)
                if pattern is not None:
                    self.patterns[op] = pattern

    def _load(self, op: Op) -> None:
        pattern = self.patterns.get(op.args[0])
        if pattern is None or op in self._regular or not isinstance(op.attr, BufferRef) or op.attr.slot.kind == "adstacks":
            return
        groups = pattern.folded()
        if max(groups) < self._most:
            self.patterns[op] = Pattern(groups, (0,) * self.lanes)
            self.folding.add(op)
            self.gains = True
            return
        stride = self._stride(pattern)
        if stride and (op.attr.dtype.bits == 32 or (stride == 1 and op.attr.dtype is not u1)):
            self.strides[op] = stride
            self.gains = True

    def _stride(self, pattern: Pattern) -> int:
        """Return the distance between the elements of neighbouring lanes of one group, or 0 if that is not one number."""
        for stride in STRIDES:
            starts = {(g, o - stride * k) for k, (g, o) in enumerate(zip(pattern.groups, pattern.offsets))}
            if len(starts) == pattern.count:
                return stride
        return 0

    def _pattern(self, op: Op) -> Pattern | None:
        if any(a in self._varying and a not in self.patterns for a in op.args):
            return None
        if op.code in _LINEAR:
            pattern = self._sum(op)
        elif op.code is ops.mul:
            pattern = self._product(op)
        elif op.code in _DIVISIONS:
            pattern = self._division(op)
        else:
            pattern = None
        return pattern or self._folded(op)

    def _folded(self, op: Op) -> Pattern | None:
        if any(isinstance(a.type, DType) and a.type.is_float for a in op.args):
            return None
        groups = numbered(zip(*[self.patterns[a].folded() for a in op.args if a in self.patterns]))
        if max(groups) >= self._most:
            return None
        self.folding.add(op)
        return Pattern(groups, (0,) * self.lanes)

    def _of(self, op: Op) -> Pattern:
        """Return the pattern of ``op``. The offsets of a constant contain its value."""
        alike = (0,) * self.lanes
        if op in self.patterns:
            return self.patterns[op]
        return Pattern(alike, (int(op.attr),) * self.lanes, zero=True) if op.code is ops.const else Pattern(alike, alike)

    def _sum(self, op: Op) -> Pattern | None:
        a, b = (self._of(arg) for arg in op.args)
        sign = 1 if op.code is ops.add else -1
        groups = numbered(zip(a.groups, b.groups))
        if max(groups) >= self._most:
            return None
        known = a if b.zero else b if a.zero and sign == 1 else None
        factor, most = (known.factor, known.most) if known is not None else (0, 0)
        if op.code is ops.sub and op.args[0] is self._index and op.args[1] in self._multiples:
            number = self._multiples[op.args[1]]
            factor, most = math.gcd(a.factor, number), min(a.most, number - self.lanes)
        return _made(op, groups, [x + sign * y for x, y in zip(a.offsets, b.offsets)], a.zero and b.zero, factor, most)

    def _product(self, op: Op) -> Pattern | None:
        a, b = op.args
        value, times = (a, b) if b.code is ops.const else (b, a)
        if times.code is not ops.const:
            return None
        p, k = self.patterns[value], int(times.attr)
        return _made(op, p.groups, [o * k for o in p.offsets], p.zero, p.factor * max(k, 0), p.most * k)

    def _division(self, op: Op) -> Pattern | None:
        value, by = op.args
        if by.code is not ops.const or by.attr < 1 or value not in self.patterns:
            return None
        p, d, quotient = self.patterns[value], int(by.attr), op.code is ops.idiv
        if p.zero:
            return Pattern(p.groups, tuple([_divided(o, d, quotient) for o in p.offsets]), True)
        if not p.factor or min(p.offsets) < 0:
            return None
        if p.factor % d == 0:
            offsets = tuple([o // d if quotient else o % d for o in p.offsets])
            return Pattern(p.groups, offsets, not quotient, p.factor // d if quotient else 0, p.most // d)
        if d % p.factor == 0 and max(p.offsets) < p.factor:
            if quotient:
                return Pattern(p.groups, (0,) * self.lanes, factor=1, most=p.most // d)
            return Pattern(p.groups, p.offsets, factor=p.factor, most=min(p.most, d - p.factor))
        return None


def _made(op: Op, groups: tuple[int, ...], offsets: Sequence[int], zero: bool, factor: int, most: int) -> Pattern:
    """Return the pattern of a sum, difference or product. Its ``factor`` is dropped if a lane may wrap around."""
    assert isinstance(op.type, DType)
    low, high = int(op.type.min), int(op.type.max)
    wrapped = tuple([(o - low) % (high - low + 1) + low for o in offsets])
    highest = high - max(0, *wrapped)
    if op.attr == "nsw":
        most = min(most, highest)
    return Pattern(groups, wrapped, zero, factor if most <= highest else 0, most)


def _divided(number: int, by: int, quotient: bool) -> int:
    """Return the quotient or remainder, rounded towards 0."""
    truncated = abs(number) // by * (-1 if number < 0 else 1)
    return truncated if quotient else number - truncated * by


def whole_vectors(loop: ChunkLoop, lanes: int, groups: int) -> WholeVectors | None:
    """Return the vectors of a loop with a multiple of ``lanes`` iterations that begins at a multiple, as does each of its rows, if there
    are any; else None."""
    begin, end = loop.task.regions[0].results[:2]
    columns = loop.columns
    starts = begin.code is ops.const and begin.attr >= 0 and begin.attr % lanes == 0
    rows = columns is None or (columns > 0 and columns % lanes == 0)
    if not (starts and rows and _factor(end) % lanes == 0):
        return None
    assert isinstance(end.type, DType)
    beyond = int(end.attr if end.code is ops.const else end.type.max)
    multiples = {} if loop.first is None or columns is None else {loop.first: columns}
    return WholeVectors(lanes, max(beyond // lanes - 1, 0) * lanes, multiples, groups)


def _factor(op: Op) -> int:
    """Return a number that divides ``op``."""
    if op.code is ops.const:
        return abs(int(op.attr))
    return _factor(op.args[0]) * _factor(op.args[1]) if op.code is ops.mul else 1

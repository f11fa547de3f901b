"""How iterations of a task are mapped to invocations: the size of a workgroup, and the iterations of one invocation (coarsening)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from spirograd.analysis.effects import WRITING
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import i32, i64, u32, u64
from spirograd.base.options import FEW_GROUPS, GROUP_SIZES, CompileOptions
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import BufferRef, Op, Region, SharedRef, ref_of

# One H100, 1 GiB saxpy: 1,265 GB/s in groups of 64, 2,049 of 128, 2,730 of 256, 2,581 of 1,024 (a copy: 3,000).
_DEFAULT = 256
# Invocations of a workgroup whose subgroups run groups of their own.
TOGETHER = 128
# A multiprocessor of NVIDIA's GPUs holds 32 workgroups and 2,048 invocations, so smaller workgroups leave part of it empty.
_HALF_FULL = 64
_IN_GROUPS = ops.TILES | {ops.workgroup_barrier}
# Operations of a body of which an invocation runs several iterations at a time. Longer bodies would take too many registers. H200, 128M
# f32: a sine, an exponential and a logarithm (70 operations) take 0.60 ms one by one, 0.38 ms four at a time.
_LONGEST = 96
# Where accesses are not merged, several should be in flight: the number of iterations, by the number of operations of the body.
_STRIDED, _LONGEST_STRIDED = 4, 48
# The most iterations of an invocation at a time.
MOST_AT_A_TIME = 8
# Comparisons that change at most once along a row.
_COMPARISONS = frozenset((ops.lt, ops.le, ops.gt, ops.ge))
_DIVISIONS = frozenset((ops.idiv, ops.irem))
_SMALL = 1 << 30
# Few workgroups run at least this number of iterations each, one after the other, or are no alternative.
_MANY_TIMES = 4
# Blocks in a row. Those at its ends may not be full, and run their iterations one by one.
_WIDE = 16

# Operations of an invocation whose start is worth sharing. H200, 128M f32, sine, exponential and logarithm (630 operations, with those of
# the remainder): 0.367 ms in 131,072 groups, 0.319 ms in 64 groups per multiprocessor. A copy is 3 % slower in so few groups.
_LONG_START = 320


def group_size(task: Op, caps: Capabilities, options: CompileOptions) -> int:
    """Return the workgroup size of a task: the size of its loop, else of ``options``, else the default; at most the limit of the device.
    Serial tasks have 1."""
    if task.attr.kind == "serial":
        return 1
    return max(1, min(task.attr.group_size or options.group_size or _DEFAULT, caps.max_group_size))


def is_half_full(size: int, caps: Capabilities) -> bool:
    """Return whether workgroups of the ``size`` that a program gives a loop (0: it gives none) are too small to fill a GPU."""
    return 0 < size < _HALF_FULL and not caps.cpu_driver


def groups_together(task: Op, size: int, caps: Capabilities) -> int:
    """Return how many groups of ``size`` of a grouped task share a workgroup: several if each group is one subgroup and uses neither shared
    memory nor barriers of the group. In workgroups of 32, groups would fill half of a multiprocessor, see `_HALF_FULL`."""
    alone = not caps.target.subgroups_in_order or not caps.subgroup_read or size != caps.subgroup_size
    if alone or any(op.code in _IN_GROUPS or isinstance(ref_of(op), SharedRef) for op in task.regions[1].walk()):
        return 1
    return max(1, min(TOGETHER, caps.max_group_size) // size)


def group_alternatives(task: Op, caps: Capabilities, few: int) -> tuple[str, ...]:
    """Return the alternatives to workgroups of the default size for a range task: sizes that its iterations fill, and ``few`` workgroups
    that stride, where there would be many times as many."""
    begin, end = task.regions[0].results[:2]
    known = begin.code is ops.const and end.code is ops.const
    count = end.attr - begin.attr if known else math.inf
    default = min(_DEFAULT, caps.max_group_size)
    names = [name for name, size in GROUP_SIZES.items() if size <= caps.max_group_size and size != default and size < count]
    strides = not caps.cpu_driver and not task.attr.reductions and count >= _MANY_TIMES * few * default
    return (*names, FEW_GROUPS) if strides else tuple(names)


def strides(entry: Region, grouped: bool) -> bool:
    """Return whether few invocations of a task without loops, which stride over its iterations, are better than one for each iteration:
    starting an invocation then takes as long as an iteration, because the code is long, what it writes is behind a condition, or the
    iteration's number is divided, which needs the reciprocal of an extent. H200, 22.5M iterations on two axes: 55 us one by one, 32 us in
    few invocations, if a condition ends them all; 86 and 70 us if none.

    ``grouped``: an iteration is a group, which may have loops. Few groups are better if what they write is behind a condition: a line
    search of Genesis in 30,000 groups that have nothing to do takes 20 us one by one, 12 us in 16,896.
    """
    length, writes, unconditional, divides = 0, False, False, False
    conditional: set[Op] = set()
    for op in entry.walk():
        length += 1
        if op.code is ops.if_ or op in conditional:
            conditional.update(inner for region in op.regions for inner in region.ops)
        if op.code.effect in WRITING:
            writes = True
            unconditional |= op not in conditional
        divides |= op.code in _DIVISIONS and op not in conditional and op.args[1].code is not ops.const
    guarded = writes and not unconditional
    return guarded or (not grouped and (divides or length >= _LONG_START))


def coarsening_factor(task: Op, size: int, caps: Capabilities) -> int:
    """Return the thread coarsening of a range task (lowering IR) in workgroups of ``size``: how many consecutive iterations an invocation
    runs at a time. A power of two, more than 1 where short straight-line code accesses the elements of the index: then the device merges
    accesses of several iterations."""
    bounds, body, *_ = task.regions
    # The first invocations take one iteration each of those that fill no block, so a workgroup must have enough invocations.
    if size < MOST_AT_A_TIME or not caps.target.access_bytes or len(bounds.results) > 2 or not is_short(body):
        return 1
    accesses = [op for op in body.ops if isinstance(ref_of(op), BufferRef)]
    along = [(op, place) for op in accesses if (place := _offset(op.args[0], body.params[0])) is not None]
    if not along or bounds.results[0].code is not ops.const:
        return 1
    factor = max(1, min(caps.target.access_bytes // max(op.attr.dtype.size for op, _ in along), MOST_AT_A_TIME))
    # Stores then begin at a multiple of their size, or neighbouring invocations should store.
    decides = next((place for op, place in along if op.code is ops.store), along[0][1])
    return 1 if (bounds.results[0].attr + decides) % factor else factor


def strided_factor(task: Op, size: int, caps: Capabilities) -> int:
    """Return how many iterations of a range task (lowering IR) an invocation runs at a time, one workgroup size apart: more than 1 for
    short straight-line code that accesses memory, on devices that do not merge accesses."""
    bounds, body, *_ = task.regions
    if caps.target.access_bytes or caps.cpu_driver or size & (size - 1) or len(bounds.results) > 2 or not is_short(body, _LONGEST_STRIDED):
        return 1
    return _STRIDED if any(isinstance(ref_of(op), BufferRef) for op in body.ops) else 1


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """Thread coarsening along the rows of an index space of several axes: ``factor`` columns at a time (a power of two), of ``width``.

    A block covers the columns from ``factor * k - shift`` on, as far as they exist, so that its stores begin at a multiple of their size.
    ``columns``, ``rows``: the operations of the body that compute the column of an index, and its row, or the row divided by the number
    beside. ``addresses``: operations that grow with the column, each with an earlier operation and the difference between both. ``places``:
    what is known of other values.
    """

    width: int
    factor: int
    shift: int
    columns: tuple[Op, ...]
    rows: Mapping[Op, int]
    addresses: Mapping[Op, tuple[Op, int]]
    places: _Places

    def deciding(self, condition: Op) -> tuple[int, ...]:
        """Return the numbers of the iterations of a block in which a condition holds if it holds in all of the block."""
        columns = [self.places.of(a) for a in condition.args]
        if condition.code in _COMPARISONS and all(place is not None and place.is_plain for place in columns):
            return (0, self.factor - 1)
        place = self.places.of(condition)
        return (0,) if place is not None and not place.columns else tuple(range(self.factor))

    @property
    def per_row(self) -> int:
        """Return the number of blocks that cover a row."""
        return -(-(self.width + self.shift) // self.factor)

    @property
    def always_full(self) -> bool:
        return self.per_row * self.factor == self.width


def row_blocks(task: Op, size: int, caps: Capabilities) -> RowBlocks | None:
    """Return the coarsening of a range task (lowering IR) along rows, where `coarsening_factor` is 1: for short straight-line code with
    constant extents, all of whose accesses are to one element or to neighbours in the row, at constant distances."""
    bounds, body, *_ = task.regions
    begin, end, *limit = bounds.results
    if size < MOST_AT_A_TIME or not caps.target.access_bytes or limit or not is_short(body):
        return None
    if begin.code is not ops.const or end.code is not ops.const or begin.attr != 0:
        return None
    index = body.params[0]
    quotients = [op for op in body.ops if op.code in (ops.idiv, ops.irem) and op.args[0] is index and op.args[1].code is ops.const]
    remainders = [op for op in quotients if op.code is ops.irem]
    width = min([int(op.args[1].attr) for op in remainders], default=0)
    if width < 2 or end.attr % width or any(op.args[1].attr % width for op in quotients):
        return None
    columns = tuple([op for op in remainders if op.args[1].attr == width])
    rows = {op: op.args[1].attr // width for op in quotients if op.code is ops.idiv}
    places = _Places(index, width, remainders, rows)
    accesses = [(op, places.of(op.args[0])) for op in body.ops if isinstance(ref_of(op), BufferRef)]
    along = [(op, place) for op, place in accesses if place is None or place.columns]
    if not along or any(place is None or place.columns != 1 for _, place in along):
        return None
    factor = max(1, min(caps.target.access_bytes // max(op.attr.dtype.size for op, _ in along), MOST_AT_A_TIME))
    # Stores decide where blocks begin.
    decides = next((place for op, place in along if op.code is ops.store), along[0][1])
    if decides is None or decides.unit % factor or factor == 1:
        return None
    blocks = RowBlocks(width, factor, decides.offset % factor, columns, rows, _distances(body, along), places)
    return blocks if blocks.always_full or width >= _WIDE * factor else None


def _distances(body: Region, along: Sequence[tuple[Op, _Place | None]]) -> dict[Op, tuple[Op, int]]:
    """Return `RowBlocks.addresses`."""
    places = {op.args[0]: place for op, place in along}
    first: dict[object, tuple[Op, int]] = {}
    distances: dict[Op, tuple[Op, int]] = {}
    for op in body.ops:
        place = places.get(op)
        if place is not None:
            leader, offset = first.setdefault((op.type, frozenset(place.terms.items())), (op, place.offset))
            distances[op] = (leader, place.offset - offset)
    return distances


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """An index in elements: ``columns`` times the column, plus ``offset``, plus a sum of multiples of values that are constant in a row."""

    columns: int
    offset: int
    terms: Mapping[Op, int]

    def plus(self, other: _Place, times: int = 1) -> _Place:
        values = {**self.terms, **other.terms}
        terms = {value: self.terms.get(value, 0) + times * other.terms.get(value, 0) for value in values}
        return _Place(self.columns + times * other.columns, self.offset + times * other.offset, terms)

    @property
    def is_plain(self) -> bool:
        """Return whether the index is a number, or the column, plus a small number, which does not wrap around."""
        return not self.terms and self.columns in (0, 1) and abs(self.offset) < _SMALL

    @property
    def unit(self) -> int:
        """Return a number that divides the sum."""
        return math.gcd(*self.terms.values())


class _Places:
    """The places of values. ``remainders``: of ``index`` by multiples of ``width``; ``rows``: see `RowBlocks`."""

    def __init__(self, index: Op, width: int, remainders: Sequence[Op], rows: Mapping[Op, int]) -> None:
        self._known: dict[Op, _Place | None] = {}
        for op in remainders:  # A remainder of several rows is the column, plus the width for each row beyond a multiple of these rows.
            self._known[op] = _Place(1, 0, {} if op.args[1].attr == width else {op: width})
        first: dict[int, Op] = {}
        for op, divisor in rows.items():
            self._known[op] = _Place(0, 0, {first.setdefault(divisor, op): 1})
        self._known[index] = _Place(1, 0, {first[1]: width}) if 1 in first else None

    def of(self, value: Op) -> _Place | None:
        """Return ``value`` as such an index, or None if it depends on the column in another way."""
        if value not in self._known:
            self._known[value] = self._find(value)
        return self._known[value]

    def _find(self, value: Op) -> _Place | None:
        nothing, opaque = _Place(0, 0, {}), _Place(0, 0, {value: 1})
        if value.code is ops.const:
            return _Place(0, value.attr, {}) if isinstance(value.attr, int) else opaque
        places = [self.of(a) for a in value.args]
        known = [place for place in places if place is not None]
        if len(known) < len(places):
            return None
        if value.code in (ops.add, ops.sub):
            return known[0].plus(known[1], 1 if value.code is ops.add else -1)
        if value.code in (ops.mul, ops.shl) and value.args[1].code is ops.const:
            return nothing.plus(known[0], value.args[1].attr if value.code is ops.mul else 1 << value.args[1].attr)
        if value.code in (ops.cast, ops.bitcast) and value.type in (i32, i64, u32, u64):
            return known[0]
        return None if any(place.columns for place in known) else opaque


def is_short(body: Region, longest: int = _LONGEST) -> bool:
    """Return whether a body is short straight-line code, of which an invocation may run several iterations at a time."""
    effects = {"shared" if isinstance(ref_of(op), SharedRef) else op.code.effect for op in body.ops[:-1] if not _is_choice(op)}
    return effects <= {"pure", "read", "write", "shared"} and sum(op.code not in (ops.const, ops.slot) for op in body.ops) <= longest


def _is_choice(op: Op) -> bool:
    """Return whether ``op`` is an `if` that only computes values, such as the variants of an elementary function for some arguments, or
    that updates shared memory."""
    return op.code is ops.if_ and all(
        inner.code.effect == "pure" or inner.code is ops.yield_ or isinstance(ref_of(inner), SharedRef)
        for region in op.regions
        for inner in region.ops
    )


def _offset(address: Op, index: Op) -> int | None:
    """Return the difference of ``address`` and the index if it is constant, else None."""
    if address is index:
        return 0
    if address.code in (ops.add, ops.sub) and address.args[0] is index and address.args[1].code is ops.const:
        return int(address.args[1].attr) * (1 if address.code is ops.add else -1)
    swapped = address.code is ops.add and address.args[1] is index and address.args[0].code is ops.const
    return int(address.args[0].attr) if swapped else None

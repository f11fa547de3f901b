"""The values of a vectorised loop: scalars where all lanes agree, vectors with a value for each lane elsewhere.

A `LaneValues` builds the operations of such a loop. Lanes without an iteration repeat the computation of the first lane; lanes that are not
live hold unspecified values. If an index grows by a constant from lane to lane, its value in the first lane is also computed as a scalar,
because addresses need only this value. Dead code elimination removes unused values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from spirograd.analysis.uniformity import Uniformity
from spirograd.base.dtypes import DType, Lanes, Type, i32, i64, u1, unsigned
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.integer_ranges import Range, range_of
from spirograd.ir.nodes import Op, Region


@dataclass(frozen=True, slots=True, eq=False)
class Live:
    """The lanes that run the current region, as a wide ``mask`` and as the ``bits`` of an i64, and the number of the ``first`` of them, an
    i64."""

    mask: Op
    bits: Op
    first: Op


class LaneValues:
    """A builder of ``lanes`` iterations of a loop at once. It appends to ``b``.

    ``plan``: the values that vary between iterations. ``masked``: whether the CPU has masked loads and stores. ``ranges``: ranges of
    integers. ``slots``: the number of lanes that take part, an i64, or None if all do; ``full``: whether all lanes take part, a u1.
    """

    def __init__(self, b: Builder, plan: Uniformity, lanes: int, masked: bool, ranges: dict[Op, Range]) -> None:
        self.b, self.plan, self.lanes, self.masked, self.ranges = b, plan, lanes, masked, ranges
        self.env: dict[Op, Op] = {}
        self.results: dict[Op, Sequence[Op]] = {}  # of control operations
        self.firsts: dict[Op, Op] = {}  # operation -> its value in the first lane
        self.mask: Op | None = None  # the lanes that have an iteration; None: all
        self.live: Live | None = None  # None: all lanes
        self.slots: Op | None = None
        self.full: Op | None = None
        self._splats: dict[Op, Op] = {}

    # --- values ---

    def scalar(self, op: Op) -> Op:
        """Return the scalar value of ``op``, which does not vary."""
        return self.env.get(op, op)

    def vector(self, op: Op) -> Op:
        """Return the values of ``op`` in all lanes."""
        value = self.scalar(op)
        return value if isinstance(value.type, Lanes) else self.splat(value)

    def first(self, op: Op) -> Op:
        """Return the value in the first lane of ``op``, which grows by a constant from lane to lane."""
        return self.firsts.get(op) or self.scalar(op)

    def lanes_of(self, t: Type) -> Lanes:
        assert isinstance(t, DType), t
        return Lanes(self.lanes, t)

    def emit(self, code: ops.OpCode, *args: Op, attr: object = None, type: Type | None = None) -> Op:
        return self.b.emit(code, *args, attr=attr, type=type)

    def number(self, value: int, t: DType = i64) -> Op:
        return self.b.const(value, t)

    def splat(self, value: Op) -> Op:
        """Broadcast ``value`` to all lanes."""
        if value not in self._splats:
            self._splats[value] = self.emit(ops.splat, value, type=self.lanes_of(value.type))
        return self._splats[value]

    def numbers(self, values: Iterable[int | bool], t: DType) -> Op:
        """Build a vector of constants."""
        return self.emit(ops.lane_const, attr=tuple(values), type=Lanes(self.lanes, t))

    def lane(self, vector: Op, number: Op) -> Op:
        """Extract the value of one lane."""
        return self.emit(ops.extract, vector, number)

    def like_first_lane(self, vector: Op) -> Op:
        """Return ``vector`` with its value in the first lane also in lanes without an iteration."""
        if self.mask is None:
            return vector
        return self.emit(ops.select, self.mask, vector, self.splat(self.lane(vector, self.number(0))))

    # --- masks ---

    def wide(self, condition: Op) -> Op:
        return self.emit(ops.widen_mask, condition, type=Lanes(self.lanes, i32))

    def narrow(self, mask: Op) -> Op:
        return self.emit(ops.narrow_mask, mask, type=Lanes(self.lanes, u1))

    def bits(self, condition: Op) -> Op:
        return self.emit(ops.ballot_lanes, condition, type=i64)

    def any_lane(self, mask: Op) -> Op:
        return self.emit(ops.any_lane, mask, type=u1)

    def effective(self) -> Op | None:
        """Return the mask of the lanes in which effects take place; None: all."""
        if self.live is None:
            return self.mask
        live = self.narrow(self.live.mask)
        return live if self.mask is None else self.emit(ops.and_, live, self.mask)

    def choose(self, condition: Op, a: Op, b: Op) -> Op:
        return self.emit(ops.select, condition, a, b)

    # --- regions ---

    def block(self, types: Sequence[Type], body: Callable[..., Sequence[Op]]) -> Region:
        """Build a region with parameters of these types: ``body`` takes the parameters, builds the operations, and returns the results."""
        kept = dict(self._splats)
        results = body(*self.b.begin(*types))
        self._splats = kept
        return self.b.end(results)

    def bind(self, params: Sequence[Op], values: Sequence[Op]) -> None:
        self.env.update(zip(params, values))

    # --- operations ---

    def copy(self, op: Op, args: Sequence[Op] | None = None) -> Op:
        """Build a copy of ``op`` on ``args``, by default on the scalar values of its operands."""
        args = [self.scalar(a) for a in op.args] if args is None else args
        if op.code in (ops.idiv, ops.irem) and op.attr is None and self._is_unsigned(op):
            return self._unsigned(op, args)
        return self.b.emit(op.code, *args, attr=op.attr, type=self._type(op, args))

    def elementwise(self, op: Op) -> Op:
        """Build ``op`` on vectors."""
        return self.copy(op, [self.vector(a) for a in op.args])

    def _type(self, op: Op, args: Sequence[Op]) -> Type:
        return self.lanes_of(op.type) if any(isinstance(a.type, Lanes) for a in args) else op.type

    def _is_unsigned(self, op: Op) -> bool:
        """Return whether both operands of a division are known not to be negative. Unsigned division takes far fewer instructions."""
        assert isinstance(op.type, DType)
        return op.type.is_signed and range_of(op.args[1], self.ranges).low > 0 and range_of(op.args[0], self.ranges).low >= 0

    def _unsigned(self, op: Op, args: Sequence[Op]) -> Op:
        assert isinstance(op.type, DType)
        t = unsigned(op.type)
        operands = [self.b.emit(ops.bitcast, a, type=Lanes(self.lanes, t) if isinstance(a.type, Lanes) else t) for a in args]
        return self.b.emit(ops.bitcast, self.b.emit(op.code, *operands), type=self._type(op, args))

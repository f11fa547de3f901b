"""Rules of operations on lanes, which only IR of the level "loops" has."""

from __future__ import annotations

from collections.abc import Callable

from spirograd.base.dtypes import VOID, DType, Lanes, i32, i64, like, u1
from spirograd.ir import ops
from spirograd.ir.group_rules import Verifier, letter
from spirograd.ir.nodes import BufferRef, Op, SharedRef
from spirograd.ir.ops import OpCode


def lanes_of(v: Verifier, op: Op, value: Op) -> Lanes:
    """Return the type of an operand that is lanes."""
    if not isinstance(value.type, Lanes):
        v.fail(op, f"takes lanes, not {value.type}")
    return value.type


def _splat(v: Verifier, op: Op) -> None:
    v.need(isinstance(op.type, Lanes) and op.type.elem is op.args[0].type and op.attr is None, op, "is lanes of its operand")


def _const(v: Verifier, op: Op) -> None:
    t = op.type
    if not isinstance(t, Lanes):
        v.fail(op, "is lanes")
    v.need(isinstance(op.attr, tuple) and len(op.attr) == t.n, op, f"has a constant for each of {t.n} lanes")
    kind = bool if t.elem is u1 else int
    fit = all(type(x) is kind and t.elem.min <= x <= t.elem.max for x in op.attr)
    v.need(fit and not t.elem.is_float, op, f"its constants are {t.elem}")


def _mask(v: Verifier, op: Op, value: Op, n: int) -> None:
    v.need(value.type == Lanes(n, u1), op, f"a mask is {Lanes(n, u1)}, not {value.type}")


def _strided(v: Verifier, op: Op) -> DType:
    """Check the attribute of an access at regular distances, and return the type of the elements."""
    v.need(isinstance(op.attr, tuple) and len(op.attr) == 2 and isinstance(op.attr[0], int), op, "takes (stride, reference)")
    return _memory(v, op, op.attr[1])


def _memory(v: Verifier, op: Op, ref: object) -> DType:
    if not isinstance(ref, (BufferRef, SharedRef)):
        v.fail(op, "accesses a buffer or local memory")
    v.need(ref.dtype is not u1, op, "memory holds no u1 in device IR")
    return ref.dtype


def _index(v: Verifier, op: Op, value: Op) -> None:
    v.need(value.type in (i32, i64), op, f"an index is i32 or i64, not {value.type}")


def _load(v: Verifier, op: Op) -> None:
    t, count = op.type, max(len(op.args) // 2, 1)
    v.need(isinstance(t, Lanes) and t.elem is _strided(v, op), op, "is lanes of the elements of the memory")
    v.need(bool(op.args), op, "takes one index, or as many indices as masks")
    assert isinstance(t, Lanes)
    for first in op.args[:count]:
        _index(v, op, first)
    for mask in op.args[count : 2 * count]:
        _mask(v, op, mask, t.n)
    v.need(all(others.type == t for others in op.args[2 * count :]), op, f"the others are {t}")


def _store(v: Verifier, op: Op) -> None:
    elem = _memory(v, op, op.attr) if op.code is ops.store_compressed else _strided(v, op)
    v.need(len(op.args) in (2, 3) and op.type is VOID, op, "takes an index, values, and perhaps a mask, and is void")
    _index(v, op, op.args[0])
    t = lanes_of(v, op, op.args[1])
    v.need(t.elem is elem, op, f"the memory holds {elem}")
    if len(op.args) == 3:
        _mask(v, op, op.args[2], t.n)


def _each_lane(v: Verifier, op: Op) -> None:
    v.need(bool(op.args) and len(op.regions) == 1 and isinstance(op.type, tuple), op, "takes a mask and a region, and has results")
    n = lanes_of(v, op, op.args[0]).n
    _mask(v, op, op.args[0], n)
    (region,) = op.regions
    taken = tuple([Lanes(n, p.type) if isinstance(p.type, DType) else p.type for p in region.params])
    v.need(taken == tuple([a.type for a in op.args[1:]]), op, "its region takes one lane of each operand")
    given = tuple([Lanes(n, r.type) if isinstance(r.type, DType) else r.type for r in region.results])
    v.need(given == op.type, op, f"its results are {given}")


def _reduce(v: Verifier, op: Op) -> None:
    elem = lanes_of(v, op, op.args[0]).elem
    v.need(op.attr in ops.COMBINE and letter(elem) in ops.COMBINE[op.attr].domain, op, f"{op.attr} does not take {elem}")
    v.need(op.type is elem, op, f"its result is {elem}")


def _from_to(source: DType, target: DType, lanes: bool) -> Callable[[Verifier, Op], None]:
    """Return the rule of an operation from lanes of ``source`` to ``target``, or to lanes of it."""

    def rule(v: Verifier, op: Op) -> None:
        taken = lanes_of(v, op, op.args[0])
        v.need(taken.elem is source, op, f"takes lanes of {source}")
        v.need(op.type == (like(taken, target) if lanes else target) and op.attr is None, op, f"gives {target}")

    return rule


def _of_bits(v: Verifier, op: Op) -> None:
    v.need(op.args[0].type is i64 and isinstance(op.type, Lanes) and op.type.elem is u1, op, "takes an i64, and is u1 lanes")


LANE_RULES: dict[OpCode, Callable[[Verifier, Op], None]] = {
    ops.splat: _splat, ops.lane_const: _const, ops.load_lanes: _load, ops.store_lanes: _store, ops.store_compressed: _store,
    ops.each_lane: _each_lane, ops.reduce_lanes: _reduce, ops.lanes_of_bits: _of_bits,
    ops.ballot_lanes: _from_to(u1, i64, False), ops.any_lane: _from_to(i32, u1, False),
    ops.widen_mask: _from_to(u1, i32, True), ops.narrow_mask: _from_to(i32, u1, True),
}  # fmt: skip

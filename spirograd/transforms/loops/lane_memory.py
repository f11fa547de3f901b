"""Memory accesses of vectorised iterations: contiguous elements, elements at regular distances, gathers, adstacks, and accesses lane by
lane.

No lane accesses memory that no iteration accesses: inactive lanes load the element of another lane, and store nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spirograd.analysis.uniformity import is_adstack, is_report
from spirograd.base.dtypes import VOID, DType, Type, i64, u1
from spirograd.ir import ops
from spirograd.ir.nodes import Op
from spirograd.transforms.loops.lane_values import LaneValues


def load(v: LaneValues, op: Op) -> None:
    """Build a load whose index varies, or a load from an adstack."""
    index = op.args[0]
    if is_adstack(op):
        v.env[op] = _adstack_load(v, op)
    elif v.plan.contiguous(index):
        v.env[op] = _neighbours(v, op, v.first(index), v.effective())
    elif v.masked and v.plan.interleaved(op):
        mask = v.effective() or v.numbers([True] * v.lanes, u1)
        v.env[op] = v.like_first_lane(load_lanes(v, op, v.plan.lane_stride(index), [v.first(index)], [mask]))
    elif v.masked and v.plan.lane_stride(index):
        _spaced(v, op, _load_each, _gather)
    else:
        v.env[op] = _gather(v, op)


def load_lanes(v: LaneValues, op: Op, stride: int, firsts: Sequence[Op], masks: Sequence[Op]) -> Op:
    """Build a `load_lanes` of the memory that ``op`` loads from."""
    return v.emit(ops.load_lanes, *firsts, *masks, attr=(stride, op.attr), type=v.lanes_of(op.type))


def _neighbours(v: LaneValues, op: Op, first: Op, mask: Op | None) -> Op:
    if mask is None or v.live is not None:
        return v.like_first_lane(load_lanes(v, op, 1, [first], [] if mask is None else [mask]))
    # The first lane always has an iteration. Loading its element again is faster than extracting it from the vector.
    others = v.splat(v.emit(ops.load, first, attr=op.attr, type=op.type))
    return v.emit(ops.load_lanes, first, mask, others, attr=(1, op.attr), type=others.type)


def _gather(v: LaneValues, op: Op) -> Op:
    """Load elements at arbitrary indices. Lanes without an iteration use the index of the first lane; masked lanes use the index of a live
    lane."""
    index = v.vector(op.args[0])
    if v.live is not None:
        index = v.choose(v.narrow(v.live.mask), index, v.splat(v.lane(index, v.live.first)))
    return v.emit(ops.load, index, attr=op.attr, type=v.lanes_of(op.type))


def _load_each(v: LaneValues, op: Op) -> Op:
    return load_lanes(v, op, v.plan.lane_stride(op.args[0]), [v.first(op.args[0])], [])


def _spaced(v: LaneValues, op: Op, each: Callable[[LaneValues, Op], Op], otherwise: Callable[[LaneValues, Op], Op]) -> None:
    """Access elements at regular distances: by ``each`` if all lanes take part, else by ``otherwise``."""
    mask = v.effective()
    if mask is None:
        v.env[op] = each(v, op)
        return
    full = v.emit(ops.eq, v.bits(mask), v.number((1 << v.lanes) - 1))
    loads = op.code is ops.load
    regions = [v.block((), lambda access=access: [access(v, op)] if loads else _none(access(v, op))) for access in (each, otherwise)]
    results = v.b.if_(full, *regions)
    if loads:
        (v.env[op],) = results


def _none(_: Op) -> Sequence[Op]:
    return ()


# --- stores ---


def store(v: LaneValues, op: Op) -> None:
    """Build a store. A store that is uniform across lanes is built once."""
    if is_adstack(op):
        _adstack_store(v, op)
    elif not v.plan.varies(op):
        v.copy(op)
    elif v.live is not None and is_report(op):  # the first lane that fails is reported
        v.copy(op, [v.lane(v.env[a], v.live.first) if v.plan.varies(a) else v.scalar(a) for a in op.args])
    elif v.plan.contiguous(op.args[0]):
        _store_lanes(v, op, 1, v.first(op.args[0]), v.vector(op.args[1]), v.effective())
    elif v.plan.lane_stride(op.args[0]):
        _spaced(v, op, _store_each, lane_by_lane)
    else:
        lane_by_lane(v, op)


def _store_lanes(v: LaneValues, op: Op, stride: int, first: Op, value: Op, mask: Op | None) -> Op:
    return v.emit(ops.store_lanes, first, value, *([] if mask is None else [mask]), attr=(stride, op.attr), type=VOID)


def _store_each(v: LaneValues, op: Op) -> Op:
    index, value = op.args
    return _store_lanes(v, op, v.plan.lane_stride(index), v.first(index), v.vector(value), None)


# --- adstacks ---


def _adstack_index(v: LaneValues, op: Op) -> Op:
    """Return the index of an element in the thread slot of the first lane. The elements of the lanes are interleaved."""
    assert v.slots is not None
    return v.emit(ops.mul, v.b.cast(v.scalar(op.args[0]), i64), v.slots, attr="nsw")


def _adstack_load(v: LaneValues, op: Op) -> Op:
    """Load without a mask if all lanes, spare ones included, have thread slots, because masked accesses are slow on some CPUs."""
    first = _adstack_index(v, op)
    if v.mask is None:
        return load_lanes(v, op, 1, [first], [])
    every = v.block((), lambda: [load_lanes(v, op, 1, [first], [])])
    some = v.block((), lambda: [_neighbours(v, op, first, v.effective())])
    assert v.full is not None
    (result,) = v.b.if_(v.full, every, some)
    return result


def _adstack_store(v: LaneValues, op: Op) -> None:
    first = _adstack_index(v, op)
    value = v.vector(op.args[1])

    def every() -> Sequence[Op]:
        """Store to all lanes. Lanes that are not live keep values that another branch may have stored."""
        kept = value
        if v.live is not None:
            kept = v.choose(v.narrow(v.live.mask), value, v.emit(ops.load_lanes, first, attr=(1, op.attr), type=value.type))
        _store_lanes(v, op, 1, first, kept, None)
        return ()

    def some() -> Sequence[Op]:
        _store_lanes(v, op, 1, first, value, v.effective())
        return ()

    if v.mask is None:
        every()
        return
    assert v.full is not None
    v.b.if_(v.full, v.block((), every), v.block((), some))


# --- atomics, and what has no vector form ---


def atomic(v: LaneValues, op: Op) -> None:
    """Build an atomic. If all lanes add to one element, their sum is added."""
    if not v.plan.varies(op):
        v.env[op] = v.copy(op)
    elif v.plan.adds_together(op):
        _add_once(v, op)
    else:
        lane_by_lane(v, op)


def _add_once(v: LaneValues, op: Op) -> None:
    index, value = op.args
    t = value.type
    assert isinstance(t, DType)
    vector, mask = v.vector(value), v.effective()
    if mask is not None:
        vector = v.choose(mask, vector, v.splat(v.b.const(-0.0 if t.is_float else 0, t)))  # 0.0 would turn -0.0 into 0.0
    total = v.emit(ops.reduce_lanes, vector, attr="add", type=t)
    v.emit(ops.atomic, v.scalar(index), total, attr=op.attr, type=t)


def lane_by_lane(v: LaneValues, op: Op) -> Op:
    """Build ``op`` for each active lane in turn."""
    varying = [a for a in dict.fromkeys(op.args) if v.plan.varies(a)]
    used = op in v.plan.used

    def one(*values: Op) -> Sequence[Op]:
        of_lane = dict(zip(varying, values))
        result = v.copy(op, [of_lane.get(a) or v.scalar(a) for a in op.args])
        return [result] if used else []

    mask = v.effective() or v.numbers([True] * v.lanes, u1)
    types: tuple[Type, ...] = (v.lanes_of(op.type),) if used else ()
    region = v.block([a.type for a in varying], one)
    loop = v.b.emit(ops.each_lane, mask, *[v.vector(a) for a in varying], type=types, regions=(region,))
    if used:
        (result,) = v.b.results(loop)
        v.env[op] = v.like_first_lane(result)
    return loop

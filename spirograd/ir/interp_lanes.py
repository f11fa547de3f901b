"""The steps of operations on lanes, whose values are NumPy arrays with an element for each lane."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from spirograd.base.dtypes import Lanes, Type
from spirograd.ir import ops
from spirograd.ir.interp_state import Compiler, Env, Maker, Step
from spirograd.ir.nodes import Op, Ref, ref_of
from spirograd.ir.ops import OpCode


def has_lanes(op: Op) -> bool:
    """Return whether ``op`` works on lanes."""
    return isinstance(op.type, Lanes) or any(isinstance(a.type, Lanes) for a in op.args)


def over_lanes(c: Compiler, op: Op, function: Callable[..., object]) -> Step:
    """Apply ``function`` to the scalars of each lane."""
    t, out, args = op.type, c.entry(op), c.args(op)
    assert isinstance(t, Lanes)
    numpy = t.elem.np

    def step(env: Env) -> None:
        env[out] = np.array([function(*values) for values in zip(*[env[a] for a in args])], numpy)

    return step


def _value(function: Callable[[Type, object], Callable[..., object]]) -> Callable[[Compiler, Op], Step]:
    """Make steps of operations that are functions of their operands. ``function`` returns that function, given type and attribute."""

    def maker(c: Compiler, op: Op) -> Step:
        out, args = c.entry(op), c.args(op)
        compute = function(op.type, op.attr)

        def step(env: Env) -> None:
            env[out] = compute(*[env[a] for a in args])

        return step

    return maker


def _splat(t: Type, attr: object) -> Callable[..., object]:
    assert isinstance(t, Lanes)
    return lambda value: np.full(t.n, value, t.elem.np)


def _const(t: Type, attr: object) -> Callable[..., object]:
    assert isinstance(t, Lanes)
    values = np.array(attr, t.elem.np)
    return lambda: values


def _reduce(t: Type, kind: object) -> Callable[..., object]:
    combine = ops.COMBINE[str(kind)].evaluate
    assert combine is not None
    return lambda values: functools.reduce(functools.partial(combine, t), values)


def _ballot(t: Type, attr: object) -> Callable[..., object]:
    return lambda mask: np.int64(sum(1 << k for k, holds in enumerate(mask) if holds))


def _of_bits(t: Type, attr: object) -> Callable[..., object]:
    assert isinstance(t, Lanes)
    return lambda bits: np.array([bool(int(bits) >> k & 1) for k in range(t.n)])


def _extract(t: Type, attr: object) -> Callable[..., object]:
    return lambda values, lane: values[int(lane)]


# --- memory ---


class _Accesses:
    """Checked accesses of ``op`` to elements of memory."""

    def __init__(self, c: Compiler, op: Op) -> None:
        ref: Ref | None = ref_of(op)
        assert ref is not None
        self.dtype = ref.dtype
        self._index, self._view = c.new(), c.view(ref)[0]
        self._locate = c.locate(op, ref, [self._index])

    def load(self, env: Env, index: int) -> object:
        env[self._index] = index
        n = self._locate(env)
        return env[self._view][n] if n >= 0 else self.dtype.np.type(0)

    def store(self, env: Env, index: int, value: object) -> None:
        env[self._index] = index
        n = self._locate(env)
        if n >= 0:
            env[self._view][n] = value


def gather(c: Compiler, op: Op) -> Step:
    """Make the step of a `load` with an index for each lane."""
    memory, out, (index,) = _Accesses(c, op), c.entry(op), c.args(op)

    def step(env: Env) -> None:
        env[out] = np.array([memory.load(env, int(i)) for i in env[index]], memory.dtype.np)

    return step


def _load_lanes(c: Compiler, op: Op) -> Step:
    memory, out, args, stride = _Accesses(c, op), c.entry(op), c.args(op), op.attr[0]
    assert isinstance(op.type, Lanes)
    n, pairs = op.type.n, len(args) // 2

    def step(env: Env) -> None:
        values = np.array(env[args[-1]]) if pairs and len(args) % 2 else np.zeros(n, memory.dtype.np)
        masks = [env[mask] for mask in args[pairs : 2 * pairs]] if pairs else [np.ones(n, bool)]
        for first, mask in zip(args, masks):
            for k in np.flatnonzero(mask):
                values[k] = memory.load(env, int(env[first]) + stride * int(k))
        env[out] = values

    return step


def _store_lanes(c: Compiler, op: Op) -> Step:
    memory, (first, values, *masks), stride = _Accesses(c, op), c.args(op), op.attr[0]

    def step(env: Env) -> None:
        for k in range(len(env[values])):
            if all(env[mask][k] for mask in masks):
                memory.store(env, int(env[first]) + stride * k, env[values][k])

    return step


def _store_compressed(c: Compiler, op: Op) -> Step:
    memory, (first, values, mask) = _Accesses(c, op), c.args(op)

    def step(env: Env) -> None:
        chosen = env[mask]
        for place, value in enumerate((*env[values][chosen], *env[values][~chosen]), int(env[first])):
            memory.store(env, place, value)

    return step


# --- control ---


def _each_lane(c: Compiler, op: Op) -> Step:
    mask, *values = c.args(op)
    params, steps, results = c.region(op.regions[0])
    out = c.entry(op)
    assert isinstance(op.type, tuple)
    types = [t for t in op.type if isinstance(t, Lanes)]

    def step(env: Env) -> None:
        lanes = [np.zeros(t.n, t.elem.np) for t in types]
        for k in np.flatnonzero(env[mask]):
            for param, value in zip(params, values):
                env[param] = env[value][k]
            for run in steps:
                run(env)
            for array, result in zip(lanes, results):
                array[k] = env[result]
        env[out] = tuple(lanes)

    return step


def call(c: Compiler, op: Op, function: tuple[Sequence[int], Sequence[Step], Sequence[int]]) -> Step:
    """Make the step of a call of a function that only computes, for each lane."""
    params, steps, (result,) = function

    def one(env: Env, values: Sequence[object]) -> object:
        for param, value in zip(params, values):
            env[param] = value
        for run in steps:
            run(env)
        return env[result]

    out, args, t = c.entry(op), c.args(op), op.type
    assert isinstance(t, Lanes)
    numpy = t.elem.np

    def step(env: Env) -> None:
        env[out] = np.array([one(env, values) for values in zip(*[env[a] for a in args])], numpy)

    return step


def _lane_slots(c: Compiler, op: Op) -> Step:
    """Return the slots of the one thread that runs here: one for each lane of its task."""
    out, slots = c.entry(op), np.int32(c.lane_slots)

    def step(env: Env) -> None:
        env[out] = slots

    return step


MAKERS: dict[OpCode, Maker] = {
    ops.splat: _value(_splat),
    ops.lane_const: _value(_const),
    ops.reduce_lanes: _value(_reduce),
    ops.ballot_lanes: _value(_ballot),
    ops.lanes_of_bits: _value(_of_bits),
    ops.widen_mask: _value(lambda t, attr: lambda mask: -mask.astype(np.int32)),
    ops.narrow_mask: _value(lambda t, attr: lambda mask: mask < 0),
    ops.any_lane: _value(lambda t, attr: lambda mask: np.bool_((mask < 0).any())),
    ops.lane_slots: _lane_slots,
    ops.load_lanes: _load_lanes,
    ops.store_lanes: _store_lanes,
    ops.store_compressed: _store_compressed,
    ops.each_lane: _each_lane,
}
extract_lane = _value(_extract)

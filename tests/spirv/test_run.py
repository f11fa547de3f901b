"""What emitted modules compute on the Vulkan device, against NumPy and plain Python."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from spirograd.base.dtypes import DType, Vec, f16, f32, f64, i8, i32, i64, u1, u8, u16, u32, u64
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op, Reduction

from . import kit

RNG = np.random.default_rng(7)


def counting(args: kit.Args, begin: int, end: int, index: DType) -> kit.Kernel:
    """Adds 1 at every index (less ``begin``), and records the index."""

    def body(b: Builder, i: Op) -> tuple[Op, ...]:
        at = b.emit(ops.sub, i, b.const(begin, index))
        b.atomic("add", args.refs[0], at, b.const(1, u32))
        b.store(args.refs[1], at, i)
        return ()

    return kit.range_for(lambda b: (b.const(begin, index), b.const(end, index)), body, index=index)


@pytest.mark.parametrize(
    "begin, end, index",
    [
        (0, 1000, i32),
        (-37, 500, i32),
        (2**31 - 300, 2**31 - 1, i32),
        (-(2**31), -(2**31) + 77, i32),
        (2**40, 2**40 + 333, i64),
        (2**63 - 200, 2**63 - 1, i64),
        (10, 10, i32),
        (10, -5, i32),
        (0, 0, i64),
    ],
)
@pytest.mark.parametrize("count", [1, 100, 700])
def test_every_index_once(device: Any, begin: int, end: int, index: DType, count: int) -> None:
    """Whatever the number of workgroups: ``count`` is what the launcher believes."""
    args = kit.Args([u32, index])
    n = max(end - begin, 0)
    arrays = [np.zeros(max(n, 1), np.uint32), np.zeros(max(n, 1), index.np)]
    hits, indices = kit.run(device, counting(args, begin, end, index), args, arrays, count=count, group_size=32)
    assert hits[:n].tolist() == [1] * n
    assert indices[:n].tolist() == list(range(begin, end))


def test_serial_runs_once(device: Any) -> None:
    args = kit.Args([i32])
    task = kit.serial(lambda b: b.atomic("add", args.refs[0], b.const(0), b.const(1)) and None)
    assert kit.run(device, task, args, [np.zeros(4, np.int32)], count=500, group_size=64)[0].tolist() == [1, 0, 0, 0]


def test_bounds_from_memory(device: Any) -> None:
    args = kit.Args([i32, i32])

    def body(b: Builder, i: Op) -> tuple[Op, ...]:
        b.store(args.refs[1], i, i)
        return ()

    def bounds(b: Builder) -> tuple[Op, Op]:
        return b.load(args.refs[0], b.const(0)), b.load(args.refs[0], b.const(1))

    arrays = [np.array([3, 90], np.int32), np.full(100, -1, np.int32)]
    out = kit.run(device, kit.range_for(bounds, body), args, arrays, count=None, group_size=16)[1]
    want = np.full(100, -1)
    want[3:90] = np.arange(3, 90)
    assert out.tolist() == want.tolist()


SCALARS = [f64, i64, u64, f32, i32, u32, i8, u8, u16, f16, u1]
VALUES = [0.1, -(2**40), 2**63, 1.5, -5, 2**32 - 1, -7, 250, 65535, 0.25, True]


@pytest.mark.parametrize("padding", [0, 200])
def test_scalar_arguments(device: Any, padding: int) -> None:
    """In push constants, and through memory where they do not fit."""
    order = sorted(range(len(SCALARS)), key=lambda k: -SCALARS[k].size)
    args = kit.Args([f64], [SCALARS[k] for k in order], padding=padding)

    def build(b: Builder) -> None:
        for k in range(len(order)):
            b.store(args.refs[0], b.const(k), b.cast(args.scalar(b, k), f64))

    values = [VALUES[k] for k in order]
    out = kit.run(device, kit.serial(build), args, [np.zeros(len(order))], values)[0]
    assert out.tolist() == [float(v) for v in values]


def reference_collatz(n: int) -> tuple[int, int]:
    steps, peak = 0, n
    while n != 1 and steps < 200:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        peak = max(peak, n)
        steps += 1
    return steps, peak


def test_while_and_if(device: Any) -> None:
    args = kit.Args([i32, i32])

    def body(b: Builder, i: Op) -> tuple[Op, ...]:
        start = b.emit(ops.add, i, b.const(1))
        one, zero = b.const(1), b.const(0)
        n, steps, peak = b.begin(i32, i32, i32)
        going = b.emit(ops.and_, b.emit(ops.ne, n, one), b.emit(ops.lt, steps, b.const(200)))
        condition = b.end([going])
        n, steps, peak = b.begin(i32, i32, i32)
        even = b.emit(ops.eq, b.emit(ops.and_, n, one), zero)
        b.begin()
        then = b.end([b.emit(ops.shr, n, one)])
        b.begin()
        orelse = b.end([b.emit(ops.add, b.emit(ops.mul, n, b.const(3)), one)])
        (n2,) = b.if_(even, then, orelse)
        loop = b.end([n2, b.emit(ops.add, steps, one), b.emit(ops.max_, peak, n2)])
        n, steps, peak = b.while_([start, zero, start], condition, loop)
        b.store(args.refs[0], i, steps)
        b.store(args.refs[1], i, peak)
        return ()

    k = kit.range_for(lambda b: (b.const(0), b.const(300)), body)
    steps, peak = kit.run(device, k, args, [np.zeros(300, np.int32), np.zeros(300, np.int32)], count=300, group_size=64)
    want = [reference_collatz(n + 1) for n in range(300)]
    assert list(zip(steps.tolist(), peak.tolist())) == want


def test_carried_values_swap(device: Any) -> None:
    """Parallel assignment: (a, b) = (b, a + b)."""
    args = kit.Args([u64])

    def build(b: Builder) -> None:
        _, a, c = b.begin(i32, u64, u64)
        body = b.end([c, b.emit(ops.add, a, c)])
        a, c = b.for_(b.const(0), b.const(80), [b.const(0, u64), b.const(1, u64)], body)
        b.store(args.refs[0], b.const(0), a)

    assert kit.run(device, kit.serial(build), args, [np.zeros(1, np.uint64)])[0].tolist() == [23416728348467685]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16])
@pytest.mark.parametrize("t", [f32, i64, u1], ids=repr)
def test_vectors(device: Any, n: int, t: DType) -> None:
    """Rotating a vector by a dynamic amount, with copies that stay alive, and indices out of range."""
    stored = u8 if t is u1 else t
    args = kit.Args([stored, i32])
    values = (np.arange(n) % 2 if t is u1 else np.arange(n) * 3 + 1).astype(stored.np)
    shifts = np.array([0, 1, n - 1, n + 5], np.int32)

    def read(b: Builder, k: Op) -> Op:
        value = b.load(args.refs[0], k)
        return b.emit(ops.ne, value, b.const(0, u8)) if t is u1 else value

    def write(b: Builder, k: Op, value: Op) -> None:
        if t is u1:
            value = b.emit(ops.select, value, b.const(1, u8), b.const(0, u8))
        b.store(args.refs[0], k, value)

    def body(b: Builder, i: Op) -> tuple[Op, ...]:
        start = b.emit(ops.vec, *[read(b, b.const(k)) for k in range(n)])
        shift = b.load(args.refs[1], i)
        size = b.const(n)
        j, v = b.begin(i32, Vec(n, t))
        target = b.emit(ops.irem, b.emit(ops.add, j, shift), size)
        moved = b.emit(ops.insert, v, target, b.emit(ops.extract, start, j))
        loop = b.end([moved])
        (turned,) = b.for_(b.const(0), size, [start], loop)
        # A copy is changed, out of range too; the original must not be.
        b.emit(ops.insert, turned, b.const(0), b.emit(ops.extract, turned, b.const(-3)))
        b.emit(ops.insert, turned, b.emit(ops.mul, shift, b.const(1000)), b.emit(ops.extract, start, shift))
        chosen = b.emit(ops.select, b.emit(ops.gt, shift, b.const(0)), turned, start)
        base = b.emit(ops.mul, b.emit(ops.add, i, b.const(1)), size)
        zero = b.const(0)
        (j,) = b.begin(i32)
        write(b, b.emit(ops.add, base, j), b.emit(ops.extract, chosen, j))
        b.for_(zero, size, [], b.end())
        return ()

    k = kit.range_for(lambda b: (b.const(0), b.const(len(shifts))), body)
    data = np.concatenate([values, np.zeros(n * len(shifts), stored.np)])
    out = kit.run(device, k, args, [data, shifts], count=4, group_size=2)[0]
    for row, shift in zip(out[n:].reshape(-1, n), shifts):
        assert row.tolist() == np.roll(values, shift % n).tolist()


REDUCTIONS = [
    ("add", f32),
    ("add", i32),
    ("add", u64),
    ("add", f64),
    ("min", f32),
    ("max", f32),
    ("min", i32),
    ("max", u32),
    ("max", f64),
    ("and", u32),
    ("or", i32),
    ("xor", u64),
    ("mul", i32),
]


def data_for(kind: str, t: DType, n: int) -> np.ndarray:
    if t.is_float:
        # Whole numbers: sums are exact in any order.
        return RNG.integers(-50, 50, n).astype(t.np)
    return RNG.integers(int(t.min), int(t.max), n, dtype=t.np, endpoint=True)


def reduced(kind: str, t: DType, values: np.ndarray) -> Any:
    total = t.np.type(ops.identity(kind, t))
    for value in values:
        total = ops.evaluate(ops.COMBINE[kind], t, (total, value))
    return total


@pytest.mark.parametrize("subgroups", [True, False])
@pytest.mark.parametrize("group_size", [1, 20, 128])
def test_reductions(device: Any, subgroups: bool, group_size: int) -> None:
    """All kinds and types in one task, as a list of partial results that the host combines."""
    n = 3000
    args = kit.Args([t for _, t in REDUCTIONS] * 2 + [u32])
    count = len(REDUCTIONS)

    def body(b: Builder, i: Op, *acc: Op) -> list[Op]:
        loaded = [b.load(ref, i) for ref in args.refs[:count]]
        return [b.emit(ops.COMBINE[kind], a, x, attr="reassoc") for (kind, _), a, x in zip(REDUCTIONS, acc, loaded)]

    def finish(b: Builder, *acc: Op) -> None:
        at = b.cast(b.atomic("add", args.refs[-1], b.const(0), b.const(1, u32)), i32)
        for ref, value in zip(args.refs[count:], acc):
            b.store(ref, at, value)

    k = kit.range_for(lambda b: (b.const(0), b.const(n)), body, [Reduction(*r) for r in REDUCTIONS], finish)
    inputs = [data_for(kind, t, n) for kind, t in REDUCTIONS]
    inputs[4][100:110] = np.nan
    outputs = [np.zeros(n, t.np) for _, t in REDUCTIONS]
    caps = replace(device.caps, subgroup_arithmetic=subgroups and device.caps.subgroup_arithmetic)
    arrays = kit.run(device, k, args, [*inputs, *outputs, np.zeros(1, np.uint32)], count=n, group_size=group_size, caps=caps)
    runs = int(arrays[-1][0])
    assert 1 <= runs <= (n if group_size == 1 else -(-n // group_size))
    for (kind, t), values, partial in zip(REDUCTIONS, inputs, arrays[count:]):
        assert reduced(kind, t, partial[:runs]) == reduced(kind, t, values), (kind, t)


def test_idle_workgroups_do_not_finish(device: Any) -> None:
    args = kit.Args([u32])

    def finish(b: Builder, acc: Op) -> None:
        b.atomic("add", args.refs[0], b.const(0), b.const(1, u32))
        b.atomic("add", args.refs[0], b.const(1), acc)

    def body(b: Builder, i: Op, acc: Op) -> tuple[Op, ...]:
        return (b.emit(ops.add, acc, b.cast(i, u32)),)

    for end, runs in ((0, 0), (40, 2), (32, 1)):
        k = kit.range_for(lambda b, end=end: (b.const(0), b.const(end)), body, [Reduction("add", u32)], finish)
        out = kit.run(device, k, args, [np.zeros(2, np.uint32)], count=200, group_size=32)[0]
        assert out.tolist() == [runs, sum(range(end))]


INTEGER_ATOMICS = [(k, t) for k in ("add", "min", "max", "and", "or", "xor", "exchange") for t in (i32, u32, i64, u64)]


@pytest.mark.parametrize("kind, t", [*INTEGER_ATOMICS, ("exchange", f32), ("exchange", f64)])
def test_atomics(device: Any, kind: str, t: DType) -> None:
    args = kit.Args([t, t])
    n = 500
    values = data_for(kind, t, n)

    def body(b: Builder, i: Op) -> tuple[Op, ...]:
        old = b.atomic(kind, args.refs[0], b.const(1), b.load(args.refs[1], i))
        b.store(args.refs[1], i, old)
        return ()

    start = data_for(kind, t, 3)
    k = kit.range_for(lambda b: (b.const(0), b.const(n)), body)
    target, olds = kit.run(device, k, args, [start, values], count=n, group_size=32)
    assert target[0] == start[0] and target[2] == start[2]
    if kind == "exchange":
        assert sorted([*olds, target[1]]) == sorted([*values, start[1]])
        return
    want = start[1]
    for value in values:
        want = ops.evaluate(ops.COMBINE[kind], t, (want, value))
    assert target[1] == want


def test_float_atomics(device: Any) -> None:
    args = kit.Args([f32, f32])
    n = 700
    values = RNG.integers(-100, 100, n).astype(np.float32)
    kinds = [("add", device.caps.atomic_f32_add), ("min", device.caps.atomic_f32_minmax), ("max", device.caps.atomic_f32_minmax)]
    kinds = [kind for kind, there in kinds if there]
    if not kinds:
        pytest.skip("the device has no float atomics")

    def body(b: Builder, i: Op) -> tuple[Op, ...]:
        for k, kind in enumerate(kinds):
            b.atomic(kind, args.refs[0], b.const(k), b.load(args.refs[1], i))
        return ()

    task = kit.range_for(lambda b: (b.const(0), b.const(n)), body)
    out = kit.run(device, task, args, [np.zeros(3, np.float32), values], count=n, group_size=64)[0]
    want = {"add": values.sum(), "min": min(values.min(), 0), "max": max(values.max(), 0)}
    assert out[: len(kinds)].tolist() == [want[kind] for kind in kinds]


@pytest.mark.parametrize("t", [u32, u64, i32], ids=repr)
def test_cas_loop(device: Any, t: DType) -> None:
    """x = x * 3 + 1, n times, under contention."""
    args = kit.Args([t])
    n = 200

    def body(b: Builder, i: Op) -> tuple[Op, ...]:
        zero = b.const(0)
        first = b.load(args.refs[0], zero)
        expected, going = b.begin(t, u1)
        condition = b.end([going])
        expected, going = b.begin(t, u1)
        desired = b.emit(ops.add, b.emit(ops.mul, expected, b.const(3, t)), b.const(1, t))
        old = b.emit(ops.cas, zero, expected, desired, attr=args.refs[0], type=t)
        loop = b.end([old, b.emit(ops.ne, old, expected)])
        b.while_([first, b.const(True, u1)], condition, loop)
        return ()

    want = 5
    for _ in range(n):
        want = int(ops.evaluate(ops.add, t, (ops.evaluate(ops.mul, t, (t.np.type(want), t.np.type(3))), t.np.type(1))))
    out = kit.run(device, kit.range_for(lambda b: (b.const(0), b.const(n)), body), args, [np.array([5], t.np)], count=n, group_size=16)[0]
    assert int(out[0]) == want


def test_exact_arithmetic_is_not_simplified(device: Any) -> None:
    args = kit.Args([f32])

    def build(b: Builder) -> None:
        x, y = b.load(args.refs[0], b.const(0)), b.load(args.refs[0], b.const(1))
        b.store(args.refs[0], b.const(2), b.emit(ops.sub, b.emit(ops.add, x, y, attr="exact"), y, attr="exact"))

    data = np.array([1e-3, 1e5, 0], np.float32)
    want = (data[0] + data[1]) - data[1]
    assert kit.run(device, kit.serial(build), args, [data])[0][2] == want
    options = CompileOptions(fast_math=False)
    assert kit.run(device, kit.serial(build), args, [data], options=options)[0][2] == want

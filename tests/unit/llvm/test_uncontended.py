"""Tasks whose atomics dominate: run by one thread without atomics, or by all with them; launches of several host threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from unit.llvm.llvm_programs import Program

from spirograd.base.dtypes import DType, f32, f64, i32, i64, u32, u64
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef, Op
from spirograd.runtime.devices import cpu

pytestmark = pytest.mark.optimized

_UFUNCS = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_BINS = 64
Body = Callable[[Builder, Op, BufferRef, Op], Any]


def _scatter(kind: str, t: DType, n: int, body: Body | None = None) -> Program:
    """Each of n iterations updates the bin where[i] with x[i]; `body` may do something else."""
    p = Program("scatter")
    where, x, bins = p.buffer(i32), p.buffer(t), p.buffer(t)

    def update(b: Builder, i: Op) -> None:
        at, value = b.load(where, i), b.load(x, i)
        if body is None:
            b.atomic(kind, bins, at, value)
        else:
            body(b, at, bins, value)

    p.range_for(0, n, update)
    p.compile(CompileOptions())
    return p


def _data(t: DType, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices, and numbers whose sums are exact in any order."""
    rng = np.random.default_rng(n)
    low = -50 if t.is_signed else 0
    return rng.integers(0, _BINS, n).astype(np.int32), rng.integers(low, 50, n).astype(t.np)


@pytest.mark.parametrize("n", [0, 1, 7, 1000, 50_000])
def test_every_kind(n: int) -> None:
    """Few and many threads, small and large loops. With 20 threads the larger ones keep their atomics."""
    devices = {threads: cpu.open(max_threads=threads) for threads in (1, 2, 20)}
    for t in (f32, f64, i32, i64, u32, u64) if n == 1000 else (f32, i64):  # how threads share iterations is the same for all types
        where, x = _data(t, n)
        for kind, ufunc in _UFUNCS.items():
            if t.is_float and kind in ("and", "or", "xor"):
                continue
            p = _scatter(kind, t, n)
            assert "@scatter.loop.uncontended(" in p.text
            want = np.full(_BINS, 3, t.np)
            ufunc.at(want, where, x)
            for threads, device in devices.items():
                got = np.full(_BINS, 3, t.np)
                p.run(device, where, x, got)
                assert np.array_equal(got, want), (kind, t, threads)


def test_one_thread_adds_in_order() -> None:
    """Then the rounding is that of a loop in NumPy, infinite and undefined numbers included."""
    n = 20_000
    rng = np.random.default_rng(1)
    where, x = rng.integers(0, _BINS, n).astype(np.int32), rng.standard_normal(n).astype(np.float32)
    x[where == 5] *= np.float32(1e38)
    x[np.flatnonzero(where == 6)[3]] = np.nan
    x[np.flatnonzero(where == 7)[:2]] = np.inf, -np.inf
    want, got = np.zeros(_BINS, np.float32), np.zeros(_BINS, np.float32)
    with np.errstate(all="ignore"):
        np.add.at(want, where, x)
    _scatter("add", f32, n).run(cpu.open(max_threads=1), where, x, got)
    assert np.isnan(want[6:8]).all() and not np.isfinite(want[5])
    assert np.array_equal(got, want, equal_nan=True)


def test_what_an_update_finds_is_current() -> None:
    """Loads of the same memory in the same iteration, before and after: one thread sees all of its own updates."""
    n = 3000

    def body(b: Builder, at: Op, bins: BufferRef, value: Op) -> None:
        before = b.load(bins, at)
        b.atomic("add", bins, at, value)
        b.atomic("add", bins, b.const(0), b.emit(ops.sub, b.load(bins, at), before))

    where, x = _data(i32, n)
    where = where % (_BINS - 1) + 1
    got, want = np.zeros(_BINS, np.int32), np.zeros(_BINS, np.int32)
    np.add.at(want, where, x)
    want[0] = x.sum()
    p = _scatter("add", i32, n, body)
    assert ".uncontended(" in p.text
    p.run(cpu.open(max_threads=1), where, x, got)
    assert np.array_equal(got, want)


@pytest.mark.parametrize(
    "body",
    [
        lambda b, at, bins, value: _after_waiting(b, at, bins, b.atomic("add", bins, at, value)),
        lambda b, at, bins, value: b.emit(ops.cas, at, value, value, attr=bins, type=i32),
        lambda b, at, bins, value: b.atomic("add", bins, at, _long(b, value)),
    ],
    ids=["a value that may be waited for", "compare-and-swap", "little of the work"],
)
def test_only_updates_that_dominate(body: Body) -> None:
    """An iteration may wait for another one by what an atomic returns, in a `while`, and a large loop gains nothing by its one atomic."""
    p = _scatter("add", i32, 100, body)
    assert ".uncontended(" not in p.text and "@sg_pool_update(ptr %pool, ptr @scatter.loop, ptr null" in p.text


def _after_waiting(b: Builder, at: Op, bins: BufferRef, old: Op) -> None:
    """Adds to a bin after a `while` that runs once, whatever ``old`` is."""
    one = b.const(1, old.type)
    first = b.emit(ops.add, old, one)
    (k,) = b.begin(old.type)
    condition = b.end([b.emit(ops.ne, k, old)])
    b.begin(old.type)
    (last,) = b.while_([first], condition, b.end([old]))
    b.atomic("add", bins, at, b.emit(ops.add, b.emit(ops.sub, last, old), one))


@pytest.mark.parametrize("threads", [1, 2])
def test_values_that_are_returned(threads: int) -> None:
    """Each iteration takes a slot of its bin; what an update returns is what was there."""
    n, room = 20_000, 1000
    p = Program("slots")
    where, count, slots = p.buffer(i32), p.buffer(i32), p.buffer(i32)

    def take(b: Builder, i: Op) -> None:
        at = b.load(where, i)
        slot = b.atomic("add", count, at, b.const(1))
        b.atomic("add", slots, b.emit(ops.add, b.emit(ops.mul, at, b.const(room)), slot), b.emit(ops.add, i, b.const(1)))

    p.range_for(0, n, take)
    p.compile(CompileOptions())
    assert ".uncontended(" in p.text
    bins = np.random.default_rng(3).integers(0, _BINS, n).astype(np.int32)
    filled, found = np.zeros(_BINS, np.int32), np.zeros(_BINS * room, np.int32)
    p.run(cpu.open(max_threads=threads), bins, filled, found)
    assert np.array_equal(filled, np.bincount(bins, minlength=_BINS))
    for k, taken in enumerate(found.reshape(_BINS, room)):
        mine = taken[: filled[k]] - 1
        assert np.array_equal(mine if threads == 1 else np.sort(mine), np.flatnonzero(bins == k)) and not taken[filled[k] :].any()


def _long(b: Builder, value: Op) -> Op:
    for _ in range(200):
        value = b.emit(ops.mul, value, value)
    return value


def test_tasks_without_atomics() -> None:
    p = _scatter("add", i32, 100, lambda b, at, bins, value: b.store(bins, at, value))
    assert ".uncontended(" not in p.text and "call void @sg_pool_run(" in p.text


def test_exchange_keeps_one_of_the_values() -> None:
    n = 30_000
    where = np.zeros(n, np.int32)
    for threads in (1, 2):
        got = np.zeros(_BINS, np.int32)
        _scatter("exchange", i32, n).run(cpu.open(max_threads=threads), where, np.arange(1, n + 1, dtype=np.int32), got)
        assert got[0] == n if threads == 1 else 1 <= got[0] <= n
        assert not got[1:].any()


@pytest.mark.parametrize("padding", range(96, 102))
def test_large_bodies_lose_no_value(padding: int) -> None:
    """The cheapest cut of this body into partitions would separate the load of a swap from its store. No value is lost: values that were
    put into a bin come out of it again, or stay there."""
    n, swaps = 200, 30
    p = Program("swap")
    where, bins, found = p.buffer(i32), p.buffer(i32), p.buffer(i32)

    def swap(b: Builder, i: Op) -> None:
        at, own = b.load(where, i), b.emit(ops.mul, i, b.const(swaps))
        numbers = [b.emit(ops.add, own, b.const(k)) for k in range(swaps)]
        for number in numbers[:-1]:
            b.store(found, number, b.atomic("exchange", bins, at, number))
        mixed = at
        for _ in range(padding):
            mixed = b.emit(ops.xor, mixed, i)
        old = b.atomic("exchange", bins, at, i)
        later = [mixed]
        for _ in range(120):
            later.append(b.emit(ops.add, later[-1], at))
        for value in (*later, *later[::-1]):
            mixed = b.emit(ops.xor, mixed, value)
        b.store(found, numbers[-1], b.emit(ops.add, old, b.emit(ops.and_, mixed, b.const(0))))

    p.range_for(0, n, swap)
    p.compile(CompileOptions())
    assert ".uncontended.partition(" in p.text
    bin_of = np.random.default_rng(padding).integers(0, _BINS, n).astype(np.int32)
    held, got = -np.arange(1, _BINS + 1, dtype=np.int32), np.zeros(n * swaps, np.int32)
    p.run(cpu.open(max_threads=1), bin_of, held, got)
    put = np.concatenate([-np.arange(1, _BINS + 1), np.arange(n), np.arange(n * swaps).reshape(n, swaps)[:, :-1].ravel()])
    assert np.array_equal(np.sort(np.concatenate([held, got])), np.sort(put))


@pytest.mark.parametrize("threads", [1, 3])
def test_launches_at_once(threads: int) -> None:
    """Host threads update the same bins, some with atomics and some without: nothing is lost, and no thread waits for ever."""
    device = cpu.open(max_threads=threads)
    n, launches = 100_000, 40
    where = np.zeros(n, np.int32)
    ones, got = np.ones(n, np.int64), np.zeros(_BINS, np.int64)
    alone, small = _scatter("add", i64, n), _scatter("add", i64, 100)

    def twice(b: Builder, at: Op, bins: BufferRef, value: Op) -> None:
        _after_waiting(b, at, bins, b.atomic("add", bins, at, value))

    shared = _scatter("add", i64, n, twice)
    assert ".uncontended(" not in shared.text

    def work(p: Program) -> None:
        for _ in range(launches):
            p.run(device, where, ones, got)

    workers = [threading.Thread(target=work, args=(p,)) for p in (alone, alone, shared, small)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert got[0] == launches * (4 * n + 100) and not got[1:].any()

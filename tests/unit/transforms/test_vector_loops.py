"""Vector loops do what the loop does, on CPUs with masked loads and stores and without: interpreted, and as machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from unit.llvm.llvm_programs import Program, planned

from spirograd.analysis.trial import HostMemory
from spirograd.base.artifact import ArgBlock, Slot
from spirograd.base.dtypes import DType, f32, f64, i32, i64, u1
from spirograd.base.options import CompileOptions
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.interp import compile_for_run
from spirograd.ir.nodes import BufferRef, Kernel, Op, Reduction
from spirograd.llvmgen.instructions import Math
from spirograd.llvmgen.op_map import OP_MAP
from spirograd.llvmgen.toolchain import host_caps
from spirograd.runtime.devices import cpu

FEATURES = {"masks": "+sse2,+avx2", "AVX-512": "+sse2,+avx2,+avx512f,+avx512vl,+avx512bw,+avx512dq", "no masks": "+sse2"}
SIZES = (0, 1, 15, 16, 33, 100)
# Builds an iteration on the index and accumulators; takes buffers of f32 and of i32.
Body = Callable[..., Any]


def chain(b: Builder, x: Op, steps: int = 20) -> Op:
    """What makes a loop worth vectors: iterations that depend on each other."""
    k, y = b.begin(i32, f32)
    step = b.end([b.emit(ops.add, b.emit(ops.mul, y, b.const(0.5, f32)), b.cast(k, f32))])
    return b.for_(b.const(0), b.const(steps), [x], step)[0]


def neighbours(b: Builder, floats: BufferRef, ints: BufferRef, i: Op) -> None:
    b.store(floats, i, chain(b, b.load(floats, i)))


def apart(b: Builder, floats: BufferRef, ints: BufferRef, i: Op) -> None:
    """Every third element is loaded, every fifth one stored, and one is looked up."""
    third, fifth = (b.emit(ops.mul, i, b.const(n), attr="nsw") for n in (3, 5))
    found = b.load(floats, b.load(ints, i))
    b.store(floats, b.emit(ops.add, fifth, b.const(1000), attr="nsw"), chain(b, b.emit(ops.add, b.load(floats, third), found)))


def sums(b: Builder, floats: BufferRef, ints: BufferRef, i: Op, total: Op) -> list[Op]:
    return [b.emit(ops.add, total, b.cast(chain(b, b.load(floats, i)), f64))]


def counts(b: Builder, floats: BufferRef, ints: BufferRef, i: Op) -> None:
    """Atomics to elements of lanes, and to one element."""
    value = b.cast(chain(b, b.load(floats, i)), i32)
    b.atomic("max", ints, b.emit(ops.add, b.emit(ops.irem, i, b.const(7)), b.const(900)), value)
    b.atomic("add", ints, b.const(999), value)


def library(b: Builder, floats: BufferRef, ints: BufferRef, i: Op) -> None:
    y = b.emit(ops.exp, b.cast(chain(b, b.load(floats, i)), f64))
    b.store(floats, i, b.cast(b.emit(ops.log, y), f32))


def halving(b: Builder, floats: BufferRef, ints: BufferRef, i: Op) -> None:
    """A `while` in which lanes diverge, and a branch with a store in it."""
    (y,) = b.begin(f32)
    condition = b.end([b.emit(ops.gt, y, b.const(3.0, f32))])
    (y,) = b.begin(f32)
    odd = b.emit(ops.eq, b.emit(ops.irem, b.load(ints, i), b.const(2)), b.const(1))
    b.begin()
    b.store(ints, b.emit(ops.add, i, b.const(500)), b.cast(y, i32))
    then = b.end([b.emit(ops.mul, y, b.const(0.25, f32))])
    b.begin()
    (less,) = b.if_(odd, then, b.end([b.emit(ops.mul, y, b.const(0.5, f32))]))
    body = b.end([less])
    b.store(floats, i, b.while_([b.emit(ops.mul, b.load(floats, i), b.const(8.0, f32))], condition, body)[0])


def triangle(b: Builder, floats: BufferRef, ints: BufferRef, i: Op) -> None:
    """A loop whose bounds differ between lanes, and truth values that it carries."""
    k, y, seen = b.begin(i32, f32, u1)
    hit = b.emit(ops.eq, k, b.const(5))
    step = b.end([b.emit(ops.add, y, b.emit(ops.mul, b.cast(k, f32), b.const(0.5, f32))), b.emit(ops.or_, seen, hit)])
    y, seen = b.for_(b.emit(ops.irem, i, b.const(3)), b.load(ints, i), [b.load(floats, i), b.const(False, u1)], step)
    b.store(floats, i, b.emit(ops.select, seen, y, b.emit(ops.neg, y)))


def together(b: Builder, floats: BufferRef, ints: BufferRef, i: Op) -> None:
    """A `while` that each lane leaves in an iteration of its own, with a counter that is used in it only, and one that is used after it."""
    counter, count, y = b.begin(i32, i32, f32)
    small = b.emit(ops.lt, y, b.const(4.0, f32))
    condition = b.end([b.emit(ops.and_, b.emit(ops.lt, counter, b.const(12)), small)])
    counter, count, y = b.begin(i32, i32, f32)
    one = b.const(1)
    element = b.load(floats, counter)
    odd = b.emit(ops.eq, b.emit(ops.and_, counter, one), one)
    b.begin()
    b.store(ints, b.emit(ops.add, i, b.const(500)), counter)
    then = b.end([b.emit(ops.add, element, b.const(0.25, f32))])
    b.begin()
    (more,) = b.if_(odd, then, b.end([element]))
    body = b.end([b.emit(ops.add, counter, one), b.emit(ops.add, count, one), b.emit(ops.add, y, more)])
    _, count, y = b.while_([b.const(0), b.const(0), b.load(floats, b.emit(ops.add, i, b.const(100)))], condition, body)
    b.store(floats, b.emit(ops.add, i, b.const(200)), b.emit(ops.add, y, b.cast(count, f32)))


def unrolled(b: Builder, floats: BufferRef, ints: BufferRef, i: Op) -> None:
    """A loop of few iterations, which LLVM unrolls, around much arithmetic in a branch with a load."""
    k, y = b.begin(i32, f32)
    large = b.emit(ops.gt, y, b.const(0.5, f32))
    b.begin()
    x = b.load(floats, b.emit(ops.add, k, b.const(700)))
    for _ in range(60):
        x = b.emit(ops.add, b.emit(ops.mul, x, y), b.const(0.25, f32))
    then = b.end([x])
    b.begin()
    (x,) = b.if_(large, then, b.end([y]))
    step = b.end([b.emit(ops.mul, x, b.const(0.5, f32))])
    b.store(floats, i, b.for_(b.const(0), b.const(4), [b.load(floats, i)], step)[0])


def saved(b: Builder, floats: BufferRef, ints: BufferRef, i: Op) -> None:
    """What a loop saves in an adstack is read in reverse; a branch saves something else for some."""
    first = b.emit(ops.mul, b.emit(ops.thread_slot, type=i32), b.const(24))
    k, y = b.begin(i32, f32)
    b.store(ADSTACK, b.emit(ops.add, first, k), y)
    small = b.emit(ops.lt, y, b.const(0.75, f32))
    b.begin()
    b.store(ADSTACK, b.emit(ops.add, first, k), b.emit(ops.neg, y))
    then = b.end([])
    b.begin()
    b.if_(small, then, b.end([]))
    step = b.end([b.emit(ops.add, b.emit(ops.mul, y, b.const(0.5, f32)), b.const(0.25, f32))])
    (y,) = b.for_(b.const(0), b.const(20), [b.load(floats, i)], step)
    k, total = b.begin(i32, f32)
    value = b.load(ADSTACK, b.emit(ops.add, first, b.emit(ops.sub, b.const(19), k)))
    back = b.end([b.emit(ops.add, b.emit(ops.mul, total, b.const(0.5, f32)), value)])
    b.store(floats, i, b.for_(b.const(0), b.const(20), [y], back)[0])


ADSTACK = BufferRef("s", Slot("adstacks", 4, offset=32), f32)
BODIES: dict[str, tuple[Body, bool]] = {  # and whether CPUs without masks vectorise it
    "neighbours": (neighbours, True),
    "apart": (apart, True),
    "sums": (sums, True),
    "counts": (counts, True),
    "library": (library, True),
    "halving": (halving, False),
    "triangle": (triangle, False),
    "together": (together, False),
    "unrolled": (unrolled, False),
    "saved": (saved, False),
}


def program(name: str) -> tuple[Program, Kernel]:
    body, _ = BODIES[name]
    p = Program(name)
    floats, ints, total, end = p.buffer(f32), p.buffer(i32), p.buffer(f64), p.scalar(i32)

    def finish(b: Builder, value: Op) -> None:
        b.atomic("add", total, b.const(0), value)

    p.slots.append(ADSTACK.slot)
    p.offset += 8
    reductions = (Reduction("add", f64),) if name == "sums" else ()
    p.range_for(0, lambda b: p.slot(end), lambda b, i, *rest: body(b, floats, ints, i, *rest), reductions, finish if reductions else None)
    return p, p.kernel()


def data() -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    return [rng.random(2000).astype(np.float32), rng.integers(0, 20, 1000).astype(np.int32), np.zeros(1)]


def saves() -> np.ndarray[Any, Any]:
    """The memory of the adstack of two threads, which may have 16 lanes."""
    return np.zeros(2 * 16 * 24, np.float32)


def interpreted(p: Program, kernel: Kernel, n: int, chunks: int = 1) -> list[np.ndarray[Any, Any]]:
    arrays, memory = data(), HostMemory()
    block = ArgBlock(tuple(p.slots), "<" + "Q" * len(p.slots), p.offset)
    run = compile_for_run(kernel, block, {}, chunks=chunks)
    *buffers, adstack = [memory.add(a).to_bytes(8, "little") for a in (*arrays, saves())]
    run.run(b"".join([*buffers, n.to_bytes(8, "little"), adstack]), memory)
    return arrays


def is_vector(t: Any) -> bool:
    return not isinstance(t, (DType, tuple)) and repr(t).startswith("lanes<")


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("name", BODIES)
def test_vectors_are_interpreted(name: str, features: str) -> None:
    p, kernel = program(name)
    caps = replace(host_caps(), cpu_features=FEATURES[features])
    vectors = planned(kernel, caps, CompileOptions())
    assert any(is_vector(op.type) for op in vectors.walk()) is (features != "no masks" or BODIES[name][1])
    for n in SIZES:
        want = interpreted(p, kernel, n)
        for chunks in (1, 3):
            for ours, theirs in zip(interpreted(p, vectors, n, chunks), want):
                np.testing.assert_allclose(ours, theirs, rtol=1e-12 if name == "sums" else 0)


@pytest.mark.optimized
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("name", BODIES)
def test_vectors_as_machine_code(name: str, features: str) -> None:
    caps = host_caps()
    if FEATURES[features] and not set(FEATURES[features].split(",")) <= set(caps.cpu_features.split(",")):
        pytest.skip("a CPU with masked loads and stores is needed")
    p, kernel = program(name)
    p.compile(caps=replace(caps, cpu_name="x86-64", cpu_features=FEATURES[features], vector_library=""))
    device = cpu.open(max_threads=2)
    for n in SIZES:
        arrays = data()
        p.run(device, *arrays, n, saves())
        for ours, theirs in zip(arrays, interpreted(p, kernel, n)):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_counters_of_lanes_that_are_together_stay_scalar() -> None:
    """An element that depends on the counter alone is loaded once for all lanes."""
    _, kernel = program("together")
    vectors = planned(kernel, replace(host_caps(), cpu_features=FEATURES["AVX-512"]), CompileOptions())
    (loop,) = [op for op in vectors.walk() if op.code is ops.while_]
    counter = loop.regions[1].params[1]
    loads = [op for op in loop.regions[1].walk() if op.code is ops.load]
    assert counter.type is i32 and [op.args[0] for op in loads] == [counter] and loads[0].type is f32


def test_functions_of_libraries_run_lane_by_lane() -> None:
    assert {code for code, emit in OP_MAP.items() if isinstance(emit, Math)} == {code for code in ops.ALL if code.elementary}


def test_wide_index_stays_scalar() -> None:
    p = Program("wide")
    x = p.buffer(f32)
    p.range_for(0, 100, lambda b, i: b.store(x, i, chain(b, b.load(x, i))), index=i64)
    assert not any(is_vector(op.type) for op in planned(p.kernel(), host_caps(), CompileOptions()).walk())

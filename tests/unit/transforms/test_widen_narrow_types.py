"""`widen_narrow_types`: what it leaves, and the bits of 16-bit floats without 16-bit integers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from unit.transforms.random_kernels import random_kernel

from spirograd.analysis import trial
from spirograd.base.artifact import ArgBlock, Slot
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import VOID, DType, Type, Vec, f16, f32, i8, i16, i32, u8, u16, u32
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.interp import compile_for_run
from spirograd.ir.nodes import BufferRef, Kernel, LoopAttr, Op, Reduction, Region, TaskAttr, ref_of
from spirograd.ir.spec import verify
from spirograd.transforms.lowering.layout import arg_block, layout
from spirograd.transforms.lowering.legalize import legalize
from spirograd.transforms.lowering.lower_atomics import lower_atomics
from spirograd.transforms.lowering.lower_diagnostics import diagnostics
from spirograd.transforms.lowering.lower_tasks import lower_tasks
from spirograd.transforms.lowering.packed_subwords import f32_from_half_bits, half_bits_from_f32
from spirograd.transforms.lowering.widen_narrow_types import widen_narrow_types
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.tasks.offload import offload

POOR = Capabilities("vulkan", int64=True, float64=True, atomic_int64=True, float16=True)
TEMPS = Slot("temps")
BLOCK = ArgBlock((TEMPS,), "<Q", 8)
HALVES = np.arange(65536, dtype=np.uint32)  # the bits of every f16


def context(caps: Capabilities) -> PassContext:
    return PassContext(caps, CompileOptions())


def run_device_ir(kernel: Kernel, memory: np.ndarray[Any, Any]) -> None:
    """Run device IR whose only buffer is ``memory``, in the place of temporaries."""
    verify(kernel, "device")
    host = trial.HostMemory()
    address = np.array([host.add(memory)], np.uint64).tobytes()
    compile_for_run(kernel, BLOCK, {}, (), ()).run(address, host)


def loop_kernel(n: int, body: Any) -> Kernel:
    """A kernel that calls ``body(builder, index)`` for each of n indices."""
    b = Builder()
    b.begin()
    zero, end = b.const(0), b.const(n)
    (index,) = b.begin(i32)
    body(b, index)
    b.for_(zero, end, (), b.end(), LoopAttr())
    task = Op(ops.task, VOID, (), TaskAttr("serial", "t"), (b.end(),))
    return Kernel("k", (), Region((), (task, Op(ops.yield_, VOID))))


def same_halves(found: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> None:
    """Bit patterns of f16 agree, but for the payload of NaN."""
    a, b = found.astype(np.uint16).view(np.float16), want.astype(np.uint16).view(np.float16)
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
    fine = ~np.isnan(a)
    np.testing.assert_array_equal(found[fine], want[fine])
    np.testing.assert_array_equal(np.signbit(a), np.signbit(b))


def test_f32_from_half_bits() -> None:
    words = np.concatenate([HALVES, np.zeros(65536, np.uint32)])
    read, write = BufferRef("bits", TEMPS, u32), BufferRef("floats", TEMPS, f32)

    def body(b: Builder, i: Op) -> None:
        b.store(write, b.emit(ops.add, i, b.const(65536)), f32_from_half_bits(b, b.load(read, i)))

    run_device_ir(loop_kernel(65536, body), words)
    found, want = words[65536:].view(np.float32), HALVES.astype(np.uint16).view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(want))


def test_half_bits_from_f32() -> None:
    floats = HALVES.astype(np.uint16).view(np.float16).astype(np.float32)
    words = np.concatenate([floats.view(np.uint32), [0x7F800001, 0xFF802000], np.zeros(65538)]).astype(np.uint32)
    read, write = BufferRef("floats", TEMPS, f32), BufferRef("bits", TEMPS, u32)

    def body(b: Builder, i: Op) -> None:
        b.store(write, b.emit(ops.add, i, b.const(65538)), half_bits_from_f32(b, b.load(read, i)))

    run_device_ir(loop_kernel(65538, body), words)
    same_halves(words[65538:-2], HALVES)
    assert np.isnan(words[-2:].astype(np.uint16).view(np.float16)).all()


@pytest.mark.parametrize("floats", (True, False))
@pytest.mark.parametrize("step", (13, pytest.param(1, marks=pytest.mark.long)))
@pytest.mark.parametrize("t", (u16, i16), ids=str)
def test_bitcasts_and_memory_of_half_floats(t: DType, step: int, floats: bool) -> None:
    """Load a half, reinterpret it there and back, store it: the same bits, with no other 16-bit type left."""
    halves = HALVES[::step].astype(np.uint16)
    n = len(halves)
    ref, out = BufferRef("x", TEMPS, f16), BufferRef("y", TEMPS, t)

    def body(b: Builder, i: Op) -> None:
        value = b.load(ref, i)
        bits = b.emit(ops.bitcast, value, type=t)
        b.store(out, b.emit(ops.add, i, b.const(n)), bits)
        b.store(ref, i, b.emit(ops.bitcast, bits, type=f16))

    caps = replace(POOR, float16=floats)
    kernel = widen_narrow_types(loop_kernel(n, body), context(caps))
    assert_wide(kernel, caps)
    memory = np.concatenate([halves, halves * 0])
    run_device_ir(kernel, memory)
    same_halves(memory[:n], halves)
    same_halves(memory[n:], halves)


def scalars(t: Type) -> list[DType]:
    if isinstance(t, tuple):
        return [s for part in t for s in scalars(part)]
    return [t.elem] if isinstance(t, Vec) else [t] if isinstance(t, DType) else []


def assert_wide(kernel: Kernel, caps: Capabilities) -> None:
    """Nothing is left that ``caps`` lacks."""
    gone = {t for t in (i8, u8, i16, u16) if not (caps.int8 if t.bits == 8 else caps.int16)} | ({f16} if not caps.float16 else set())
    for op in kernel.walk():
        types = [*scalars(op.type), *[s for r in op.regions for p in r.params for s in scalars(p.type)]]
        if op.code is ops.task:
            types += [r.dtype for r in op.attr.reductions]
        assert not gone & set(types), op
        ref = ref_of(op)
        assert ref is None or caps.stores(ref.dtype), op


@pytest.mark.parametrize("halves", (True, False))
@pytest.mark.parametrize("flags", ((), ("int8",), ("int16", "storage16"), ("int8", "int16"), ("storage8", "storage16")), ids=str)
def test_nothing_is_left_that_the_device_lacks(flags: tuple[str, ...], halves: bool) -> None:
    caps = replace(POOR, float16=halves, **dict.fromkeys(flags, True))
    ctx = context(caps)
    for seed in range(30):
        tasks = offload(random_kernel(seed), ctx)
        ctx = replace(ctx, block=arg_block(tasks, ctx))
        kernel = lower_atomics(legalize(lower_tasks(diagnostics(layout(tasks, ctx), ctx), ctx), ctx), ctx)
        assert_wide(widen_narrow_types(kernel, ctx), caps)


def test_a_device_with_everything_keeps_the_kernel() -> None:
    ctx = context(replace(POOR, int8=True, int16=True, storage8=True, storage16=True))
    kernel = loop_kernel(1, lambda b, i: b.cast(i, i8))
    assert widen_narrow_types(kernel, ctx) is kernel
    assert widen_narrow_types(kernel, context(POOR)) is not kernel


REDUCED = [(kind, t) for t in (i8, u8, i16, u16) for kind in ("add", "mul", "min", "max", "and", "or", "xor")]


@pytest.mark.parametrize(("kind", "t"), REDUCED, ids=lambda x: str(x))
@pytest.mark.parametrize("n", (0, 1, 37))
def test_accumulators(kind: str, t: DType, n: int) -> None:
    """Reductions of narrow types; without iterations there is nothing to finish."""
    values = np.random.default_rng(n).integers(t.min, t.max + 1, 40).astype(t.np)
    ref = BufferRef("x", TEMPS, t)
    b = Builder()
    b.begin()
    bounds = b.end((b.const(0), b.const(n)))
    index, total = b.begin(i32, t)
    body = b.end((b.emit(ops.COMBINE[kind], total, b.load(ref, index)),))
    (total,) = b.begin(t)
    b.store(ref, b.const(40), total)
    finish = b.end()
    attr = TaskAttr("range_for", "t", reductions=(Reduction(kind, t),))
    task = Op(ops.task, VOID, (), attr, (bounds, body, finish))
    ctx = replace(context(POOR), options=CompileOptions(group_size=1))
    kernel = widen_narrow_types(lower_tasks(Kernel("k", (), Region((), (task, Op(ops.yield_, VOID)))), ctx), ctx)
    assert_wide(kernel, POOR)
    want = t.np.type(ops.identity(kind, t))
    memory = np.concatenate([values, np.full(8, want)])
    run_device_ir(kernel, memory)
    for value in values[:n]:
        want = ops.evaluate(ops.COMBINE[kind], t, (want, value))
    assert memory[40] == want
    np.testing.assert_array_equal(memory[:40], values)

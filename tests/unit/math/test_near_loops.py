"""Loops with sines on targets with fused multiply-add: a version for near arguments, and one for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import needs
import numpy as np
import pytest

import spirograd as sg
from spirograd import dumps
from spirograd.base.artifact import Slot
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import VOID, f32, i32
from spirograd.base.options import CompileOptions
from spirograd.base.targets import TARGETS
from spirograd.compiler import compile_kernel
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef, Kernel, Op, TaskAttr
from spirograd.ir.spec import verify
from spirograd.llvmgen import ptx
from spirograd.transforms.math.expand_math import expand_math
from spirograd.transforms.pass_context import PassContext
from validation.case import Case, Results
from validation.collecting import kernels_of

# Near ones are small: lavapipe rounds `fma` twice.
X = np.array([0.0, -0.0, 0.3, -2.0, 29.5, 2.5e5, -123_456.0, 4e7, np.inf, np.nan], np.float32)


@pytest.fixture()
def fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Vulkan with the expansions of CUDA."""
    needs.need("vulkan")
    monkeypatch.setitem(TARGETS, "vulkan", replace(TARGETS["vulkan"], fused_multiply_add=True))
    sg.init(arch=sg.vulkan, offline_cache=False)
    yield
    sg.reset()


def iterated(x: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """v = x, then v = 1.5 sin(v) + cos(0.5 v) where v > 0, else v - 1; and its derivative."""
    v, d = x.astype(np.float64), np.ones(len(x))
    with np.errstate(invalid="ignore"):
        for _ in range(steps):
            positive = v > 0
            d = np.where(positive, d * (1.5 * np.cos(v) - 0.5 * np.sin(0.5 * v)), d)
            v = np.where(positive, 1.5 * np.sin(v) + np.cos(0.5 * v), v - 1)
    return v, d


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_values_and_gradients(steps: int) -> None:
    x, y = (sg.field(sg.f32, len(X), needs_grad=True) for _ in range(2))
    count = sg.field(sg.i32, ())

    @sg.kernel
    def chain():
        for i in x:
            v = x[i]
            for _ in range(count[None]):
                if v > 0.0:
                    v = 1.5 * sg.sin(v) + sg.cos(0.5 * v)
                else:
                    v -= 1.0
            y[i] = v

    x.from_numpy(X)
    count[None] = steps
    chain()
    value, derivative = iterated(X, steps)
    np.testing.assert_allclose(y.to_numpy(), value, rtol=2e-4, atol=2e-4)
    for _ in range(2):
        y.grad.fill(1.0)
        x.grad.fill(0.0)
        chain.grad()
        finite = np.isfinite(value) & (X != 0)
        np.testing.assert_allclose(x.grad.to_numpy()[finite], derivative[finite], rtol=2e-3, atol=2e-3)


@pytest.mark.usefixtures("fused")
def test_gradients_of_nests_with_large_arguments() -> None:
    """The gradient calls functions, and its innermost loops have versions without calls for near arguments."""
    x, y = (sg.field(sg.f32, len(X), needs_grad=True) for _ in range(2))
    counts = sg.field(sg.i32, 2)

    @sg.kernel
    def nest():
        for i in x:
            a, b = x[i], 0.5 * x[i]
            for _j in range(counts[0]):
                for _k in range(counts[1]):
                    a, b = a + 0.1 * sg.sin(b), b - 0.1 * sg.cos(a)
            y[i] = a + b

    a, b, da, db = X, np.float32(0.5) * X, np.ones(len(X)), np.full(len(X), 0.5)  # a and b are rounded, as on the device
    with np.errstate(invalid="ignore"):
        for _ in range(2 * 11):
            da, db = da + 0.1 * np.cos(b.astype(np.float64)) * db, db + 0.1 * np.sin(a.astype(np.float64)) * da
            a, b = (a + 0.1 * np.sin(b.astype(np.float64))).astype(np.float32), (b - 0.1 * np.cos(a.astype(np.float64))).astype(np.float32)
    x.from_numpy(X)
    y.grad.fill(1.0)
    counts.from_numpy(np.array([2, 11], np.int32))
    nest.grad()
    for values, rtol in ((np.abs(X) < 1e5, 1e-4), (np.abs(X) >= 1e5, 0.1)):  # large ones may be rounded otherwise
        np.testing.assert_allclose(x.grad.to_numpy()[values], (da + db)[values], rtol=rtol, atol=1e-5)


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("trips", [15, 40])
def test_runs_of_a_short_loop(trips: int) -> None:
    """The gradient of a loop that is one segment has its sines in a row: 15 of them as they are, 40 in two versions."""
    x, y = (sg.field(sg.f32, len(X), needs_grad=True) for _ in range(2))

    @sg.kernel
    def chain():
        for i in x:
            v = x[i]
            for _ in range(trips):
                v = sg.sin(v) * 0.9 + 0.1
            y[i] = v

    v, d = X.astype(np.float64), np.ones(len(X))
    with np.errstate(invalid="ignore"):
        for _ in range(trips):
            v, d = np.sin(v) * 0.9 + 0.1, d * 0.9 * np.cos(v)
    x.from_numpy(X)
    y.grad.fill(1.0)
    chain.grad()
    np.testing.assert_allclose(x.grad.to_numpy(), d, rtol=2e-3, atol=1e-7)


def sines_in_a_loop(sines: int, write: Slot | None) -> Kernel:
    """A task that calls functions: a loop with many sines, each of the one before, and a store if ``write`` is given."""
    b = Builder()
    b.begin()
    b.begin()
    bounds = b.end([b.const(0), b.const(1)])
    b.begin(i32)
    i, v = b.begin(i32, f32)
    if write is not None:
        b.store(BufferRef("w", write, f32), i, v)
    for _ in range(sines):
        v = b.emit(ops.sin, v)
    inside = b.end([v])
    (total,) = b.for_(b.const(0), b.const(8), [b.const(1.0, f32)], inside)
    b.store(BufferRef("out", Slot("array", 0), f32), b.const(0), total)
    body = b.end([])
    b.begin()
    finish = b.end([])
    b.emit(ops.task, attr=TaskAttr("range_for", "k_0"), type=VOID, regions=(bounds, body, finish))
    return Kernel("k", (), b.end())


def test_values_of_a_run_that_a_region_yields() -> None:
    """A loop that may not be repeated, with 20 sines in a row in its body, the last of which it hands on."""
    expanded = expand_math(sines_in_a_loop(20, Slot("array", 1)), PassContext(Capabilities("cuda"), CompileOptions()))
    verify(expanded, "lowering")
    (loop,) = [op for op in expanded.walk() if op.code is ops.for_]
    assert loop.regions[0].results[0].code is ops.result


@pytest.mark.parametrize(("sines", "versions"), [(256, 2), (257, 1)])
def test_loops_with_many_sines_call_none_if_arguments_are_near(sines: int, versions: int) -> None:
    expanded = expand_math(sines_in_a_loop(sines, None), PassContext(Capabilities("cuda"), CompileOptions()))
    verify(expanded, "lowering")
    loops = [op for op in expanded.walk() if op.code is ops.for_]
    calls = [sum(op.code is ops.call for op in loop.regions[0].walk()) for loop in loops]
    assert calls == [0, sines][-versions:]


@pytest.mark.parametrize(
    ("argument", "checks"),
    [
        (lambda b, c, x: b.emit(ops.mul, c, b.const(-3.0, f32)), 0),
        (lambda b, c, x: b.emit(ops.fma, c, c, b.emit(ops.abs_, b.emit(ops.sin, c))), 0),
        (lambda b, c, x: b.emit(ops.max_, c, b.emit(ops.sub, c, b.const(4.9e4, f32))), 0),
        (lambda b, c, x: b.emit(ops.add, c, b.const(1e5, f32)), 1),
        (lambda b, c, x: b.emit(ops.mul, c, b.const(np.nan, f32)), 1),
        (lambda b, c, x: b.emit(ops.mul, c, x), 1),
        (lambda b, c, x: b.emit(ops.div, c, c), 1),
    ],
)
def test_arguments_that_are_known_to_be_near_are_not_checked(argument: Callable[..., Op], checks: int) -> None:
    """The sine of something made of the cosine ``c`` of a number ``x`` that is looked at."""
    b = Builder()
    b.begin()
    x = b.load(BufferRef("in", Slot("array", 0), f32), b.const(0))
    value = b.emit(ops.sin, argument(b, b.emit(ops.cos, x), x))
    b.store(BufferRef("out", Slot("array", 1, offset=8), f32), b.const(0), value)
    expanded = expand_math(Kernel("k", (), b.end()), PassContext(Capabilities("cuda"), CompileOptions()))
    assert len([op for op in expanded.walk() if op.code is ops.if_]) == 1 + checks


def test_loops_of_a_gradient_are_single_blocks_of_ptx() -> None:
    """The forward and the reverse loop, in the version for near arguments."""
    needs.need("vulkan")
    found: list[dumps.Compilation] = []
    sg.init(arch=sg.vulkan, offline_cache=False)
    x, y = (sg.field(sg.f32, 64, needs_grad=True) for _ in range(2))

    @sg.kernel
    def chain():
        for i in x:
            v = x[i]
            for _ in range(128):
                v = sg.sin(v) * 0.9 + 0.1
            y[i] = v

    dumps.listeners.append(found.append)
    try:
        chain.grad()
    finally:
        dumps.listeners.clear()
        sg.reset()
    caps = ptx.capabilities("sm_90")
    text = compile_kernel(found[-1].kernel, caps, CompileOptions()).binaries[0].decode()
    loops = [block for block in text.split("\n$") if f"bra \t${block.split(':')[0]};" in block]
    assert len(loops) == 2 and all("fma.rn.f32" in block and "f64" not in block for block in loops)


@pytest.mark.parametrize("trips", [4, 8, 31])
def test_gradients_of_short_loops_compile_for_cuda(trips: int) -> None:
    """They have runs of sines whose values are used in many places."""

    def run() -> Results:
        x, y, z, c = (sg.field(sg.f32, 64, needs_grad=True) for _ in range(4))

        @sg.kernel
        def chain():
            for i in x:
                v, w = x[i], y[i]
                for k in range(trips):
                    v, w = sg.sin(v) * c[k] + w, w * 0.5 + v * v * 0.1
                z[i] = v + w

        chain.grad()
        return {}

    caps = ptx.capabilities("sm_90")
    for source in kernels_of(Case("chain", run)):
        for kernel in source.kernels(caps):
            assert b".entry" in compile_kernel(kernel, caps, replace(source.options, verify=True)).binaries[0]


def loop_kernel(write: Slot | None) -> Kernel:
    """for i in range(8): v = sin(v), with a store in each iteration if ``write`` is given."""
    b = Builder()
    b.begin()
    i, v = b.begin(i32, f32)
    if write is not None:
        b.store(BufferRef("w", write, f32), i, v)
    body = b.end([b.emit(ops.sin, v)])
    (total,) = b.for_(b.const(0), b.const(8), [b.const(1.0, f32)], body)
    b.store(BufferRef("out", Slot("array", 0), f32), b.const(0), total)
    return Kernel("k", (), b.end())


def loops_of(kernel: Kernel) -> list[Op]:
    expanded = expand_math(kernel, PassContext(Capabilities("cuda"), CompileOptions()))
    return [op for op in expanded.walk() if op.code is ops.for_]


def test_only_loops_that_may_run_again_have_two_versions() -> None:
    assert len(loops_of(loop_kernel(None))) == 2
    assert len(loops_of(loop_kernel(Slot("adstacks")))) == 2
    assert len(loops_of(loop_kernel(Slot("array", 1)))) == 1


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("steps", [1, 3])
def test_a_sine_beside_a_cosine_has_the_same_bits(steps: int) -> None:
    """Loops are fused, and values computed again: what is computed beside them must not change them."""
    values = np.concatenate([np.linspace(-20, 20, 4001), [1e4, 2.5e5, -0.0]]).astype(np.float32)
    x, sine, cosine, both_sine, both_cosine = (sg.field(sg.f32, len(values)) for _ in range(5))

    @sg.kernel
    def alone_sine():
        for i in x:
            v = x[i]
            for _ in range(steps):
                v = sg.sin(v)
            sine[i] = v

    @sg.kernel
    def alone_cosine():
        for i in x:
            v, w = x[i], 0.0
            for _ in range(steps):
                w = sg.cos(v)
                v = v * 0.5
            cosine[i] = w

    @sg.kernel
    def both():
        for i in x:
            v, w, other = x[i], x[i], 0.0
            for _ in range(steps):
                other = sg.cos(w) + 0.0 * sg.sin(w)
                v, w = sg.sin(v) + 0.0 * sg.cos(v), w * 0.5
            both_sine[i], both_cosine[i] = v, other

    x.from_numpy(values)
    for kernel in (alone_sine, alone_cosine, both):
        kernel()
    assert (sine.to_numpy() == both_sine.to_numpy()).all() and (cosine.to_numpy() == both_cosine.to_numpy()).all()

"""Quotients and roots of f32 for NVIDIA's GPUs, executed by the CPU, against NumPy. The approximations of the device become those of the
CPU, off by some units in the last place."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest
from unit.llvm.gpu_programs import OPTIONS, TREES, kernel_of, loop

from spirograd.base.artifact import ArgBlock
from spirograd.base.dtypes import f32
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import BufferRef, Op
from spirograd.ir.ops import OpCode
from spirograd.llvmgen.gpu import emit_kernel
from spirograd.llvmgen.ptx import NVPTX
from spirograd.transforms.lowering.lower_tasks import lower_tasks
from spirograd.transforms.pass_context import PassContext
from validation.profiles import PTX

Function = Callable[[np.ndarray, np.ndarray], np.ndarray]

# The device's approximations have the right infinities, zeros and NaN; others are off by ``units``.
_COARSE = """
define internal float @coarse(float %exact, i32 %units) {
  %size = call float @llvm.fabs.f32(float %exact)
  %finite = fcmp olt float %size, 0x7FF0000000000000
  %positive = fcmp ogt float %size, 0.0
  %ordinary = and i1 %finite, %positive
  %bits = bitcast float %exact to i32
  %moved = add i32 %bits, %units
  %off = bitcast i32 %moved to float
  %result = select i1 %ordinary, float %off, float %exact
  ret float %result
}
define internal float @rcp(float %x) {
  %exact = fdiv float 1.0, %x
  %result = call float @coarse(float %exact, i32 UNITS)
  ret float %result
}
define internal float @rsqrt(float %x) {
  %wide = fpext float %x to double
  %root = call double @llvm.sqrt.f64(double %wide)
  %inverse = fdiv double 1.0, %root
  %exact = fptrunc double %inverse to float
  %result = call float @coarse(float %exact, i32 UNITS)
  ret float %result
}
define void @loop(ptr %x, ptr %y, ptr %z, i64 %n) {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %after, %next ]
  %at.x = getelementptr float, ptr %x, i64 %i
  %at.y = getelementptr float, ptr %y, i64 %i
  %at.z = getelementptr float, ptr %z, i64 %i
  %a = load float, ptr %at.x
  %b = load float, ptr %at.y
  %c = CALL
  store float %c, ptr %at.z
  %after = add i64 %i, 1
  %more = icmp ult i64 %after, %n
  br i1 %more, label %next, label %exit
exit:
  ret void
}
declare double @llvm.sqrt.f64(double)
declare float @llvm.fabs.f32(float)
declare float @llvm.fma.f32(float, float, float)
"""


def emitted(code: OpCode, divisor: float | None = None, attr: str | None = None, **options: bool) -> str:
    """The module of a task that divides, by a constant or not, or takes roots. ``attr``: of the operation."""
    x, y = (BufferRef(name, slot, f32) for name, slot in zip("xy", TREES))

    def body(b: Builder, i: Op) -> None:
        operands = [b.load(x, i)]
        if code is ops.div:
            operands.append(b.load(y, i) if divisor is None else b.emit(ops.const, attr=divisor, type=f32))
        b.store(y, i, b.emit(code, *operands, attr=attr))

    caps = PTX["cuda-sm_90"]
    kernel = lower_tasks(kernel_of(loop(body)), PassContext(caps, OPTIONS))
    return emit_kernel(kernel, ArgBlock(TREES, "", 16), NVPTX, caps, replace(OPTIONS, **options))


@pytest.fixture
def function() -> Iterator[Callable[[str, int], Function]]:
    engines = []

    def compiled(text: str, units: int) -> Function:
        functions = "".join(re.findall(r"^define internal .*?^}\n", text, re.M | re.S))
        call = re.search(r"call float @(?:\w+quotient|quotient|root)\(.*?\)", text[text.index("define ptx_kernel") :])
        assert call, text
        operands = iter(("%a", "%b"))
        called = re.sub(r"%\w+", lambda match: next(operands), call[0])
        module = functions + _COARSE.replace("UNITS", str(units)).replace("CALL", called)
        for name in ("rcp", "rsqrt"):
            module = module.replace(f"@llvm.nvvm.{name}.approx.ftz.f", f"@{name}")
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten()
        )
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(module), machine)
        engine.finalize_object()
        engines.append(engine)
        run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(engine.get_function_address("loop"))

        def apply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            result = np.empty_like(a)
            run(a.ctypes.data, b.ctypes.data, result.ctypes.data, len(a))
            return result

        return apply

    yield compiled
    for engine in engines:
        engine.close()


SIZES = ["0", "1", "3", "7", "inf", "nan", "1e-45", "1.1754944e-38", "1e-40", "1e-20", "1e20", "3.4028235e38", "0.99999994", "1.9999999"]
EDGES = np.array(
    [*[float(sign + size) for sign in "+-" for size in SIZES], *[2.0**power for power in (64, -64, 65, 126, -126)]], np.float32
)


def same(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) == y.view(np.uint32)) | (np.isnan(x) & np.isnan(y))


def random_bits(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 32, n, dtype=np.uint64).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("units", [-1, 0, 1])
def test_quotients(function, units: int) -> None:
    a, b = np.array(np.meshgrid(EDGES, EDGES), np.float32).reshape(2, -1)
    a, b = np.concatenate([a, random_bits(1 << 20, 1)]), np.concatenate([b, random_bits(1 << 20, 2)])
    result = function(emitted(ops.div), units)(a, b)
    with np.errstate(all="ignore"):
        exact, size = a / b, np.abs(a / b)
        least, largest = np.float32(2.0**-100), np.float32(3.4028233e38)
        promised = ~np.isfinite(a) | ~np.isfinite(b) | (a == 0) | (b == 0) | ((np.abs(a) >= least) & (size >= least) & (size <= largest))
        off = np.abs(result.astype(np.float64) - exact)
        others = ~promised & np.isfinite(exact) & np.isfinite(result)
    # The device's reciprocal of the number below a power of two is the nearest one: its own division takes that for granted, too.
    below = (b.view(np.uint32) & 0x7FFFFF) == 0x7FFFFF
    wrong = promised & ~same(result, exact) & ~(below & (units != 0))
    assert not wrong.any(), (a[wrong][:4], b[wrong][:4], result[wrong][:4], exact[wrong][:4])
    with np.errstate(over="ignore"):
        assert (off[others] <= np.maximum(np.spacing(np.abs(exact[others])), np.float32(1e-45))).all()


@pytest.mark.parametrize("divisor", [3.0, -7.0, 0.1, 1e19, 1e-19, 1e20, 0.0, np.inf])
def test_quotients_by_constants(function, divisor: float) -> None:
    a = np.concatenate([EDGES, random_bits(1 << 16, 3)])
    result = function(emitted(ops.div, divisor), 1)(a, np.full_like(a, divisor))
    with np.errstate(all="ignore"):
        exact = a / np.float32(divisor)
        promised = ~np.isfinite(a) | (a == 0) | ((np.abs(a) >= 2.0**-100) & (np.abs(exact) >= 2.0**-100) & (np.abs(exact) <= 3.4028233e38))
    assert same(result, exact)[promised | (divisor in (0.0, np.inf))].all()


@pytest.mark.parametrize("units", [-4, -1, 0, 1, 4])
def test_roots(function, units: int) -> None:
    """All mantissas of two neighbouring exponents would take a second: some of them, and all kinds of numbers."""
    a = np.concatenate([EDGES, random_bits(1 << 20, 4), np.arange(0x3F800000, 0x40800000, 13, np.uint32).view(np.float32)])
    with np.errstate(all="ignore"):
        assert same(function(emitted(ops.sqrt), units)(a, a), np.sqrt(a)).all()


@pytest.mark.parametrize(("attr", "fast_math"), [(None, False), ("exact", True)])
def test_quotients_that_are_rounded_as_written_are_those_of_the_device(attr: str | None, fast_math: bool) -> None:
    text = emitted(ops.div, attr=attr, fast_math=fast_math)
    assert "fdiv float" in text and "@quotient" not in text

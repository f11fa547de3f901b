"""Quotients and square roots of f32 on NVIDIA's GPUs, without branches.

The instructions `div.rn.f32` and `sqrt.rn.f32` become a test for rare operands and a branch to a routine, and the assembler moves nothing
across that. These functions take the approximation of the device and correct it by Newton's method, with remainders that are exact as fused
operations, as in P. Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor" (1990). On an H200, the
narrow phase of contacts in Genesis takes 0.76, and a sweep over the links of robots 0.58 of the time that it takes with `div.rn.f32`.
"""

from __future__ import annotations

import numpy as np

from spirograd.base.dtypes import f32
from spirograd.ir import ops
from spirograd.ir.nodes import Op
from spirograd.llvmgen.gpu import GpuEmitter
from spirograd.llvmgen.module import literal

# 2 ** 64, 2 ** -64, 2 ** -32, as LLVM writes f32.
_2P64, _2M64, _2M32 = (literal(2.0**k, f32) for k in (64, -64, -32))
_RANGE = (2.0**-64, 2.0**64)

_COARSE = {"rcp": "llvm.nvvm.rcp.approx.ftz.f", "rsqrt": "llvm.nvvm.rsqrt.approx.ftz.f"}

# Scaling by a power of two keeps the reciprocal of the divisor a normal number. Infinities, zeros and NaN make the corrected quotient NaN
# or zero, and the sign of a zero is lost in the correction: there the product with the coarse reciprocal is right.
_QUOTIENT = f"""
define internal float @quotient(float %dividend, float %divisor) alwaysinline nounwind {{
  %size = call float @llvm.fabs.f32(float %divisor)
  %large = fcmp ogt float %size, {_2P64}
  %small = fcmp olt float %size, {_2M64}
  %up = select i1 %small, float {_2P64}, float 1.0
  %scale = select i1 %large, float {_2M64}, float %up
  %a = fmul float %dividend, %scale
  %b = fmul float %divisor, %scale
  %coarse = call float @{_COARSE["rcp"]}(float %b)
  %minus = fneg float %b
  %error = call float @llvm.fma.f32(float %minus, float %coarse, float 1.0)
  %reciprocal = call float @llvm.fma.f32(float %coarse, float %error, float %coarse)
  %quotient = call float @corrected_quotient(float %a, float %minus, float %coarse, float %reciprocal)
  ret float %quotient
}}
"""
_CORRECTED = """
define internal float @corrected_quotient(float %a, float %minus, float %coarse, float %reciprocal) alwaysinline nounwind {
  %first = fmul float %a, %reciprocal
  %remainder = call float @llvm.fma.f32(float %minus, float %first, float %a)
  %second = call float @llvm.fma.f32(float %remainder, float %reciprocal, float %first)
  %size = call float @llvm.fabs.f32(float %second)
  %finite = fcmp olt float %size, 0x7FF0000000000000
  %positive = fcmp ogt float %size, 0.0
  %ordinary = and i1 %finite, %positive
  %otherwise = fmul float %a, %coarse
  %quotient = select i1 %ordinary, float %second, float %otherwise
  ret float %quotient
}
"""
# Exact for every f32: with an approximation that is off by up to four units in the last place, a coupled step (of the root and half of its
# reciprocal) and a correction by the remainder give the nearest number for each of the 2 ** 24 mantissas of two neighbouring exponents.
_ROOT = f"""
define internal float @root(float %x) alwaysinline nounwind {{
  %small = fcmp olt float %x, {_2M64}
  %up = select i1 %small, float {_2P64}, float 1.0
  %down = select i1 %small, float {_2M32}, float 1.0
  %a = fmul float %x, %up
  %coarse = call float @{_COARSE["rsqrt"]}(float %a)
  %s = fmul float %a, %coarse
  %h = fmul float %coarse, 0.5
  %minus = fneg float %s
  %error = call float @llvm.fma.f32(float %minus, float %h, float 0.5)
  %root = call float @llvm.fma.f32(float %s, float %error, float %s)
  %half = call float @llvm.fma.f32(float %h, float %error, float %h)
  %negative = fneg float %root
  %remainder = call float @llvm.fma.f32(float %negative, float %root, float %a)
  %second = call float @llvm.fma.f32(float %remainder, float %half, float %root)
  %scaled = fmul float %second, %down
  %zero = fcmp oeq float %x, 0.0
  %infinite = fcmp oeq float %x, 0x7FF0000000000000
  %itself = or i1 %zero, %infinite
  %result = select i1 %itself, float %x, float %scaled
  ret float %result
}}
"""


def divide(e: GpuEmitter, op: Op) -> str:
    """Append a quotient of f32. Return its operand.

    The nearest number. It may be off by one unit in the last place where the dividend or the quotient is below 2 ** -100, or the quotient
    within a unit of the largest number.
    """
    a, b = op.args
    _declare(e, "llvm.fabs.f32", "llvm.fma.f32")
    corrected = e.module.define("corrected_quotient", _CORRECTED)
    if b.code is ops.const and _RANGE[0] <= abs(b.attr) <= _RANGE[1]:
        reciprocal = literal(float(np.float32(1) / np.float32(b.attr)), f32)
        operands = f"float {e.env[a]}, float {literal(-b.attr, f32)}, float {reciprocal}, float {reciprocal}"
        return e.value(f"call float {corrected}({operands})")
    _declare(e, _COARSE["rcp"])
    return e.value(f"call float {e.module.define('quotient', _QUOTIENT)}(float {e.env[a]}, float {e.env[b]})")


def root(e: GpuEmitter, op: Op) -> str:
    """Append the square root of an f32, the nearest number to it. Return its operand."""
    _declare(e, "llvm.fma.f32", _COARSE["rsqrt"])
    return e.value(f"call float {e.module.define('root', _ROOT)}(float {e.env[op.args[0]]})")


def _declare(e: GpuEmitter, *names: str) -> None:
    for name in names:
        e.module.declare(name, "float", ", ".join(["float"] * (3 if "fma" in name else 1)))

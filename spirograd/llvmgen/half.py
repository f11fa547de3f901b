"""Conversions of f16 on x86 CPUs that lack them, as integer IR, so that generated code links without a compiler's run-time library.

All round to nearest, ties to even. The subnormal range is rounded by the adder: adding a power of two whose last place is 2**-24 leaves the
rounded multiple of 2**-24 in the low bits.
"""

from __future__ import annotations

from spirograd.base.caps import Capabilities

DOUBLE_TO_HALF = "sg_double_to_half"


def is_x86(caps: Capabilities) -> bool:
    """Return whether the CPU is an x86. Every 64-bit x86 CPU lists SSE2, and no other does."""
    return "+sse2" in caps.cpu_features


def needs_double_to_half(caps: Capabilities) -> bool:
    """Return whether f64 -> f16 would be a library call: F16C converts only f32."""
    return is_x86(caps) and "+avx512fp16" not in caps.cpu_features


def needs_library(caps: Capabilities) -> bool:
    """Return whether LLVM would call `__extendhfsf2` and `__truncsfhf2`."""
    return is_x86(caps) and "+f16c" not in caps.cpu_features


def _narrow(name: str, attributes: str, source: str, bits: int, mantissa: int) -> str:
    """Return a function from ``source`` (an IEEE type of ``bits`` with ``mantissa`` stored bits) to half."""
    i = f"i{bits}"
    shift = mantissa - 10
    bias = ((1 << (bits - mantissa - 2)) - 1) & ((1 << (bits - mantissa - 1)) - 1)
    smallest_normal = (bias - 14) << mantissa
    infinity = ((1 << (bits - mantissa - 1)) - 1) << mantissa
    overflow = ((bias + 15) << mantissa) | (0x7FF << (mantissa - 11))  # 65520: halfway from the largest half to 2**16
    magic = (bias + mantissa - 24) << mantissa
    return f"""define {attributes}half @{name}({source} %x) nounwind willreturn memory(none) {{
  %b = bitcast {source} %x to {i}
  %a = and {i} %b, {(1 << (bits - 1)) - 1}
  %s = lshr {i} %b, {bits - 16}
  %s16 = trunc {i} %s to i16
  %sign = and i16 %s16, -32768
  %m = sub {i} %a, {(bias - 15) << mantissa}
  %odd = lshr {i} %m, {shift}
  %last = and {i} %odd, 1
  %half = add {i} %m, {(1 << (shift - 1)) - 1}
  %sum = add {i} %half, %last
  %normal = lshr {i} %sum, {shift}
  %af = bitcast {i} %a to {source}
  %magic = bitcast {i} {magic} to {source}
  %moved = fadd {source} %af, %magic
  %mb = bitcast {source} %moved to {i}
  %sub = sub {i} %mb, {magic}
  %small = icmp ult {i} %a, {smallest_normal}
  %finite = select i1 %small, {i} %sub, {i} %normal
  %over = icmp uge {i} %a, {overflow}
  %r0 = select i1 %over, {i} 31744, {i} %finite
  %nan = icmp ugt {i} %a, {infinity}
  %r1 = select i1 %nan, {i} 32256, {i} %r0
  %t = trunc {i} %r1 to i16
  %signed = or i16 %t, %sign
  %h = bitcast i16 %signed to half
  ret half %h
}}"""


_WIDEN = """define linkonce_odr float @__extendhfsf2(half %x) nounwind willreturn memory(none) {
  %b = bitcast half %x to i16
  %w = zext i16 %b to i32
  %s = and i32 %w, 32768
  %sign = shl i32 %s, 16
  %a = and i32 %w, 32767
  %m = shl i32 %a, 13
  %normal = add i32 %m, 939524096
  %special = add i32 %m, 1879048192
  %raised = add i32 %m, 947912704
  %raisedf = bitcast i32 %raised to float
  %one = bitcast i32 947912704 to float
  %subf = fsub float %raisedf, %one
  %sub = bitcast float %subf to i32
  %small = icmp ult i32 %a, 1024
  %huge = icmp uge i32 %a, 31744
  %r0 = select i1 %small, i32 %sub, i32 %normal
  %r1 = select i1 %huge, i32 %special, i32 %r0
  %signed = or i32 %r1, %sign
  %f = bitcast i32 %signed to float
  ret float %f
}"""


def double_to_half() -> str:
    return _narrow(DOUBLE_TO_HALF, "internal ", "double", 64, 52)


def library() -> dict[str, str]:
    """Return name -> definition of the functions that LLVM calls for f16 if the CPU has no F16C."""
    return {"__extendhfsf2": _WIDEN, "__truncsfhf2": _narrow("__truncsfhf2", "linkonce_odr ", "float", 32, 23)}

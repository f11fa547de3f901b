"""Refuse by name what the device cannot do."""

from __future__ import annotations

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, Vec
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.ir.nodes import BufferRef, Kernel, Op, ref_of
from spirograd.transforms.context import PassContext

# The capability behind each type, and what to call it.
_TYPE_NEEDS = {
    "i8": ("int8", "8-bit integers"),
    "u8": ("int8", "8-bit integers"),
    "i16": ("int16", "16-bit integers"),
    "u16": ("int16", "16-bit integers"),
    "i64": ("int64", "64-bit integers"),
    "u64": ("int64", "64-bit integers"),
    "f16": ("float16", "16-bit floats"),
    "f64": ("float64", "64-bit floats"),
}
_STORAGE_NEEDS = {8: ("storage8", "8-bit storage"), 16: ("storage16", "16-bit storage")}


def check_capabilities(kernel: Kernel, ctx: PassContext) -> Kernel:
    """``kernel`` as it is; raises SpirogradUnsupportedError for the first type or access that the device lacks."""
    caps = ctx.caps
    missing = {name: what for name, (flag, what) in _TYPE_NEEDS.items() if not getattr(caps, flag)}
    narrow = {bits: what for bits, (flag, what) in _STORAGE_NEEDS.items() if not getattr(caps, flag)}
    if not missing and not narrow:
        return kernel
    for op in kernel.walk():
        t = op.type.elem if isinstance(op.type, Vec) else op.type
        if isinstance(t, DType) and t.name in missing:
            _refuse(caps, missing[t.name], f"a value of type {t}", op)
        ref = ref_of(op)
        if isinstance(ref, BufferRef) and ref.dtype.bits in narrow:
            _refuse(caps, narrow[ref.dtype.bits], f"'{ref.name}' ({ref.dtype})", op)
    return kernel


def _refuse(caps: Capabilities, feature: str, what: str, op: Op) -> None:
    message = f"this device (profile {caps.profile}) has no {feature}, which {what} needs"
    raise SpirogradUnsupportedError(message, op.loc, "use a wider or narrower type, or another device")

"""Instructions whose pseudocode is prose, is only nearly right, or would take long, as functions of NumPy arrays.

`tests/unit/rdna3` compares those that have usable pseudocode with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from validation.rdna3 import arithmetic
from validation.rdna3.arithmetic import Array
from validation.rdna3.decode import Instruction
from validation.rdna3.operands import Reader, modified
from validation.rdna3.tables import OperandType
from validation.rdna3.translate import Function
from validation.rdna3.waves import LANES, Waves

_U32, _U64 = np.uint32, np.uint64


def _float_op(function: Callable[..., Array], t: Any, sources: int = 1) -> Function:
    bits = np.dtype(f"u{np.dtype(t).itemsize}")

    def run(*values: Array) -> tuple[Array]:
        return (function(*[v.view(t) for v in values]).view(bits),)

    return Function(run, tuple(f"S{k}" for k in range(sources)), ("D0",))


def _plain(function: Callable[..., Array], *inputs: str) -> Function:
    def run(*values: Array) -> tuple[Array]:
        return (function(*values),)

    return Function(run, inputs, ("D0",))


def _signed(function: Callable[[Array], Array]) -> Function:
    return _plain(lambda s0: function(s0).view(_U32), "S0")


# --- minima and maxima ---


def _extremum(larger: bool) -> Callable[[Array, Array], Array]:
    """Return the extremum, which is a number if one operand is; -0.0 is less than 0.0. A signalling NaN wins, and becomes quiet."""

    def run(a: Array, b: Array) -> Array:
        below = (a < b) | ((a == b) & np.signbit(a))
        result = np.where(below != larger, a, b)
        if np.isnan(a).any() or np.isnan(b).any():
            result = np.where(np.isnan(b), a, np.where(np.isnan(a), b, result))
            result = np.where(arithmetic.is_signalling(b), arithmetic.quiet(b), result)
            result = np.where(arithmetic.is_signalling(a), arithmetic.quiet(a), result)
        return result

    return run


# --- division ---


def _div_scale(t: Any, far: int, tiny: int, shift: int) -> Function:
    """Operands of a division, scaled where the quotient or the reciprocal would leave the range of normal numbers.

    Where both would be subnormal, the vendor's pseudocode makes the denominator larger, up to infinity; it has to become smaller.
    """
    bits = np.dtype(f"u{np.dtype(t).itemsize}")

    def run(*values: Array) -> tuple[Array, Array]:
        value, denominator, numerator = np.broadcast_arrays(*[v.view(t) for v in values])
        en, ed = arithmetic.exponent(numerator), arithmetic.exponent(denominator)
        middle = np.finfo(t).maxexp - 3  # operands and results so far from both ends need nothing
        apart, bias = en - ed, np.finfo(t).maxexp - 1
        if ((ed > tiny) & (ed < bias + middle) & (en > tiny) & (en < bias + middle) & (apart < far) & (apart > -middle)).all():
            return value.view(bits), np.zeros(value.shape, np.bool_)
        inverse, quotient = t(1) / denominator, numerator / denominator
        is_denominator, is_numerator = value == denominator, value == numerator
        up, down = (arithmetic.ldexp(value, np.array([n])) for n in (shift, -shift))
        conditions: list[tuple[Array, Array, bool]] = [
            ((numerator == 0) | (denominator == 0), np.full_like(value, np.nan), False),
            (en - ed >= far, np.where(is_denominator, up, value), True),
            (arithmetic.is_denormal(denominator), up, False),
            (arithmetic.is_denormal(inverse) & arithmetic.is_denormal(quotient), np.where(is_denominator, down, value), True),
            (arithmetic.is_denormal(inverse), down, False),
            (arithmetic.is_denormal(quotient), np.where(is_numerator, up, value), True),
            (en <= tiny, up, False),
        ]
        result = np.select([c for c, _, _ in conditions], [r for _, r, _ in conditions], value).astype(t)
        scaled = np.select([c for c, _, _ in conditions], [np.full(value.shape, s) for _, _, s in conditions], False)
        return result.view(bits), scaled

    return Function(run, ("S0", "S1", "S2"), ("D0", "VCC@lane"))


def _div_fmas(t: Any, shift: int) -> Function:
    """The last step of a division, which undoes what `_div_scale` did, and rounds once.

    The vendor's pseudocode multiplies by 2**32 (f32) and 2**64 (f64) whatever was scaled; with that, quotients near the ends of the range
    would be wrong by powers of two.
    """
    bits = np.dtype(f"u{np.dtype(t).itemsize}")

    def run(scaled: Array, *values: Array) -> tuple[Array]:
        a, b, c = np.broadcast_arrays(*[v.view(t) for v in values])
        result = arithmetic.fma(a, b, c)
        scaled = np.broadcast_to(scaled, result.shape)
        if scaled.any():
            large = arithmetic.exponent(c) > np.finfo(t).maxexp - 1
            powers = np.where(large, shift, -shift)
            chosen = [x[scaled] for x in (a, b, c, powers)]
            result[scaled] = [arithmetic.scaled_fma(*map(float, row), t) for row in zip(*chosen)]
        return (result.view(bits),)

    return Function(run, ("VCC@lane", "S0", "S1", "S2"), ("D0",))


# --- integers ---


def _mad_64(signed: bool) -> Function:
    kind: Any = np.int64 if signed else _U64
    half: Any = np.int32 if signed else _U32

    def run(s0: Array, s1: Array, s2: Array) -> tuple[Array, Array]:
        product = s0.view(half).astype(kind) * s1.view(half).astype(kind)
        addend = s2.view(kind)
        total = product + addend
        carry = ((product < 0) == (addend < 0)) & ((total < 0) != (product < 0)) if signed else total < product
        return total.view(_U64), np.broadcast_to(carry, total.shape)

    return Function(run, ("S0", "S1", "S2"), ("D0", "VCC@lane"))


def _permute_bytes(s0: Array, s1: Array, selector: Array) -> Array:
    data = (s0.astype(_U64) << _U64(32)) | s1
    result: Array = np.zeros(1, _U32)
    for k in range(4):
        chosen = (selector >> _U32(8 * k)) & _U32(0xFF)
        byte = (data >> (_U64(8) * (chosen & _U32(7)).astype(_U64))).astype(_U32) & _U32(0xFF)
        sign_at = np.select([chosen == 8, chosen == 9, chosen == 10, chosen == 11], [15, 31, 47, 63], 0).astype(_U64)
        sign = np.where((data >> sign_at) & _U64(1) != 0, _U32(0xFF), _U32(0))
        byte = np.where(chosen < 8, byte, np.where(chosen < 12, sign, np.where(chosen == 12, _U32(0), _U32(0xFF))))
        result = result | (byte << _U32(8 * k))
    return result


def _mbcnt(first: int) -> Callable[[Array, Array], Array]:
    """How many of the mask's lanes come before this one, of lanes from ``first`` on."""
    below = np.array([((1 << lane) - 1 >> first) & 0xFFFFFFFF for lane in range(LANES)], _U32)[None, :]
    return lambda s0, s1: arithmetic.count_ones(s0 & below) + s1


def _saturated_byte(s0: Array) -> Array:
    wide = [(s0 >> _U32(shift)).astype(np.uint16).view(np.int16) for shift in (0, 16)]
    low, high = (np.clip(x, 0, 255).astype(np.uint16) for x in wide)
    return low | (high << np.uint16(8))


# --- packed and mixed operands ---


def _halves(low: Array, high: Array) -> Array:
    return low.view(np.uint16).astype(_U32) | (high.view(np.uint16).astype(_U32) << _U32(16))


def _pack_rtz(s0: Array, s1: Array) -> Array:
    return _halves(*(arithmetic.to_half_towards_zero(v.view(np.float32)) for v in (s0, s1)))


def _mix(half: bool) -> Function:
    """Sources have been converted to f32 (see `packed_source`)."""

    def run(*values: Array) -> tuple[Array]:
        result = arithmetic.fma(*[v.view(np.float32) for v in values])
        return (result.astype(np.float16).view(np.uint16) if half else result.view(_U32),)

    return Function(run, ("S0", "S1", "S2"), ("D0",))


def packed_source(ins: Instruction, number: int, code: int, read: Reader, about: OperandType) -> Reader:
    """A source of VOP3P: each half of the result has its own choice of halves, and its own sign."""
    fields = ins.fields
    low_from = fields["opsel"] >> number & 1
    high_from = fields["opsel_hi"] >> number & 1 if number < 2 else fields["opsel_hi2"]
    if ins.name in MIXED:
        negative, absolute = fields["neg"] >> number & 1, fields["neg_hi"] >> number & 1
        if not high_from:
            return modified(read, 32, negative, absolute)

        def half(w: Waves) -> Array:
            return (read(w) >> _U32(16 * low_from)).astype(np.uint16).view(np.float16).astype(np.float32).view(_U32)

        return modified(half, 32, negative, absolute)
    if "PK2" not in about.content:
        return read
    flip = (fields["neg"] >> number & 1) << 15 | (fields["neg_hi"] >> number & 1) << 31

    def packed(w: Waves) -> Array:
        value = read(w)
        low = (value >> _U32(16 * low_from)) & _U32(0xFFFF)
        high = (value >> _U32(16 * high_from)) << _U32(16)
        return (low | high) ^ _U32(flip)

    if (low_from, high_from, flip) == (0, 1, 0):
        return read
    return packed


# --- all of them ---

MIXED = ("V_FMA_MIX_F32", "V_FMA_MIXLO_F16", "V_FMA_MIXHI_F16")
_TYPES: dict[str, Any] = {"F16": np.float16, "F32": np.float32, "F64": np.float64}

FUNCTIONS: dict[str, Function] = {
    "V_DIV_SCALE_F32": _div_scale(np.float32, 96, 23, 64),
    "V_DIV_SCALE_F64": _div_scale(np.float64, 768, 53, 128),
    "V_DIV_FMAS_F32": _div_fmas(np.float32, 64),
    "V_DIV_FMAS_F64": _div_fmas(np.float64, 128),
    "V_MAD_U64_U32": _mad_64(signed=False),
    "V_MAD_I64_I32": _mad_64(signed=True),
    "V_PERM_B32": _plain(_permute_bytes, "S0", "S1", "S2"),
    "V_MBCNT_LO_U32_B32": _plain(_mbcnt(0), "S0", "S1"),
    "V_MBCNT_HI_U32_B32": _plain(_mbcnt(32), "S0", "S1"),
    "V_BCNT_U32_B32": _plain(lambda s0, s1: arithmetic.count_ones(s0) + s1, "S0", "S1"),
    "V_BFREV_B32": _plain(arithmetic.reverse_bits, "S0"),
    "V_CLZ_I32_U32": _signed(arithmetic.leading_zeros),
    "V_CTZ_I32_B32": _signed(arithmetic.trailing_zeros),
    "V_CLS_I32": _signed(lambda s0: arithmetic.leading_signs(s0.view(np.int32))),
    "V_SAT_PK_U8_I16": _plain(_saturated_byte, "S0"),
    "V_CVT_PK_RTZ_F16_F32": _plain(_pack_rtz, "S0", "S1"),
    "S_CVT_PK_RTZ_F16_F32": _plain(_pack_rtz, "S0", "S1"),
    "V_FMA_MIX_F32": _mix(half=False),
    "V_FMA_MIXLO_F16": _mix(half=True),
    "V_FMA_MIXHI_F16": _mix(half=True),
    "V_LDEXP_F16": _plain(lambda s0, s1: arithmetic.ldexp(s0.view(np.float16), s1.view(np.int16)).view(np.uint16), "S0", "S1"),
    "S_BREV_B32": _plain(arithmetic.reverse_bits, "S0"),
    "S_BREV_B64": _plain(arithmetic.reverse_bits, "S0"),
}
for _bits in ("32", "64"):
    FUNCTIONS[f"S_CLZ_I32_U{_bits}"] = _signed(arithmetic.leading_zeros)
    FUNCTIONS[f"S_CTZ_I32_B{_bits}"] = _signed(arithmetic.trailing_zeros)
FUNCTIONS["S_CLS_I32"] = FUNCTIONS["V_CLS_I32"]
FUNCTIONS["S_CLS_I32_I64"] = _signed(lambda s0: arithmetic.leading_signs(s0.view(np.int64)))


def _count(ones: bool) -> Function:
    def run(s0: Array) -> tuple[Array, Array]:
        found = arithmetic.count_ones(s0 if ones else ~s0)
        return found, found != 0

    return Function(run, ("S0",), ("D0", "SCC"))


for _ones in (0, 1):
    for _bits in ("32", "64"):
        FUNCTIONS[f"S_BCNT{_ones}_I32_B{_bits}"] = _count(bool(_ones))
for _name, _t in _TYPES.items():
    FUNCTIONS[f"V_RNDNE_{_name}"] = _float_op(np.rint, _t)
    FUNCTIONS[f"V_CEIL_{_name}"] = _float_op(np.ceil, _t)
    FUNCTIONS[f"V_FLOOR_{_name}"] = _float_op(np.floor, _t)
    FUNCTIONS[f"V_RSQ_{_name}"] = _float_op(lambda x: (1 / np.sqrt(x.astype(np.float64))).astype(x.dtype), _t)
    FUNCTIONS[f"V_FREXP_MANT_{_name}"] = _float_op(arithmetic.mantissa, _t)
    FUNCTIONS[f"V_MIN_{_name}"] = _float_op(_extremum(larger=False), _t, 2)
    FUNCTIONS[f"V_MAX_{_name}"] = _float_op(_extremum(larger=True), _t, 2)
    if _name != "F64":
        FUNCTIONS[f"S_RNDNE_{_name}"] = _float_op(np.rint, _t)
        FUNCTIONS[f"S_MIN_{_name}"] = _float_op(_extremum(larger=False), _t, 2)
        FUNCTIONS[f"S_MAX_{_name}"] = _float_op(_extremum(larger=True), _t, 2)
    if _name != "F16":
        FUNCTIONS[f"V_FREXP_EXP_I32_{_name}"] = _plain(lambda s0, t=_t: arithmetic.frexp_exponent(s0.view(t)).view(_U32), "S0")
FUNCTIONS["V_FREXP_EXP_I16_F16"] = _plain(lambda s0: arithmetic.frexp_exponent(s0.view(np.float16)).astype(np.int16).view(np.uint16), "S0")

"""Operands of an instruction -> functions that read them from waves, or write them, as unsigned integers of the operand's size.

Of vector instructions values have an element for each wave and lane (or 1 instead of all lanes, if all have the same); of scalar
instructions one for each wave.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from validation.rdna3.arithmetic import UNSIGNED, Array
from validation.rdna3.decode import LITERAL, Unsupported
from validation.rdna3.waves import EXEC, LANES, NULL, Waves, pack, unpack

Reader = Callable[[Waves], Array]
Writer = Callable[[Waves, Array], None]

_SCALARS = 128
_VECTORS = 256
_SCC = 253
_FLOATS = {240: 0.5, 241: -0.5, 242: 1.0, 243: -1.0, 244: 2.0, 245: -2.0, 246: 4.0, 247: -4.0, 248: 1 / (2 * np.pi)}
# Where shared and scratch memory begin among flat addresses; registers 235 to 238 hold that and the last address.
SHARED_BASE, PRIVATE_BASE = 0x0001_0000_0000_0000, 0x0002_0000_0000_0000
_APERTURES = {235: SHARED_BASE, 236: SHARED_BASE | 0xFFFFFFFF, 237: PRIVATE_BASE, 238: PRIVATE_BASE | 0xFFFFFFFF}
_INVERSE_2PI = {16: 0x3118, 32: 0x3E22F983, 64: 0x3FC45F306DC9C882}
_FLOAT_TYPES: dict[int, Any] = {16: np.float16, 32: np.float32, 64: np.float64}


def constant(code: int, bits: int, content: str, literal: int | None) -> int | None:
    """The bits of an inline constant or a literal; None if ``code`` is a register."""
    if code == LITERAL and literal is not None:
        if bits == 64 and "F64" in content:
            return literal << 32
        signed = bits == 64 and "I64" in content and literal >> 31
        return (literal | 0xFFFFFFFF00000000) if signed else literal & (1 << bits) - 1
    if 128 <= code <= 208:
        value = code - 128 if code <= 192 else 192 - code
        return value & (1 << bits) - 1
    if code in _FLOATS:
        if code == 248:
            return _INVERSE_2PI[bits]
        size = 16 if "PK2_F16" in content or bits == 16 else bits
        return int(np.array([_FLOATS[code]], _FLOAT_TYPES[size]).view(UNSIGNED[size])[0])
    if code in _APERTURES:
        return _APERTURES[code] if bits == 64 else _APERTURES[code] >> 32
    return None


def scalar(code: int, bits: int, content: str = "", literal: int | None = None) -> Reader:
    """Return the reader of an operand of scalar instructions."""
    value = constant(code, bits, content, literal)
    if value is not None:
        fixed = np.array([value], UNSIGNED[bits])
        return lambda w: fixed
    if code == _SCC:
        return lambda w: w.scc.astype(UNSIGNED[bits])
    if code >= _SCALARS:
        raise Unsupported(f"operand {code}")
    if code == NULL:
        zero = np.zeros(1, UNSIGNED[bits])
        return lambda w: zero
    if bits == 64:
        return lambda w: w.s[code].astype(np.uint64) | (w.s[code + 1].astype(np.uint64) << np.uint64(32))
    if bits == 32:
        return lambda w: w.s[code].copy()
    return lambda w: w.s[code].astype(UNSIGNED[bits])


def vector(code: int, bits: int, content: str = "", literal: int | None = None, high: bool = False) -> Reader:
    """Return the reader of an operand of vector instructions. ``high``: the upper half of a register, for operands of 16 bits."""
    if code >= _VECTORS:
        return vector_register(code - _VECTORS, bits, high)
    read = scalar(code, 32 if high else bits, content, literal)
    if high:
        return lambda w: (read(w) >> np.uint32(16)).astype(np.uint16)[:, None]
    return lambda w: read(w)[:, None]


def vector_register(register: int, bits: int, high: bool = False) -> Reader:
    if bits == 64:
        return lambda w: w.v[register].astype(np.uint64) | (w.v[register + 1].astype(np.uint64) << np.uint64(32))
    if bits == 32:
        return lambda w: w.v[register]
    if high:
        return lambda w: (w.v[register] >> np.uint32(16)).astype(np.uint16)
    return lambda w: w.v[register].astype(UNSIGNED[bits])


def lane_mask(code: int) -> Reader:
    """A truth value for each lane, from a scalar register or a constant."""
    if code == EXEC:
        return lambda w: w.lanes
    read = scalar(code, LANES)
    return lambda w: unpack(np.broadcast_to(read(w), (len(w),)))


def write_scalar(code: int, bits: int) -> Writer:
    if code >= _SCALARS:
        raise Unsupported(f"destination {code}")

    def write(w: Waves, value: Array) -> None:
        if code == NULL:
            return
        if bits == 64:
            w.s[code] = value.astype(np.uint32)
            w.s[code + 1] = (value >> np.uint64(32)).astype(np.uint32)
        else:
            w.s[code] = value
        if code in (EXEC - 1, EXEC, EXEC + 1):
            w.forget_lanes()

    return write


def write_mask(code: int, lanes: Reader | None = None) -> Writer:
    """Bits for the active lanes, or of those among them that are ``lanes``; 0 for the others."""
    store = write_scalar(code, LANES)

    def write(w: Waves, value: Array) -> None:
        store(w, pack((w.lanes if lanes is None else lanes(w)) & value))

    return write


def write_exec_mask(w: Waves, value: Array) -> None:
    w.set_exec(pack(w.lanes & value))


def write_vector(register: int, bits: int, high: bool = False, lanes: Reader | None = None) -> Writer:
    """Return the writer of a vector register, in active lanes or in ``lanes``; writing half a register keeps the other half."""

    def write(w: Waves, value: Array) -> None:
        some = None if lanes is None else lanes(w)
        if bits == 64:
            w.write_vector(register, value.astype(np.uint32), some)
            w.write_vector(register + 1, (value >> np.uint64(32)).astype(np.uint32), some)
            return
        if bits <= 16:
            old, wide = w.v[register], value.astype(np.uint32)
            value = (old & np.uint32(0xFFFF)) | (wide << np.uint32(16)) if high else (old & np.uint32(0xFFFF0000)) | wide
        w.write_vector(register, value, some)

    return write


def modified(read: Reader, bits: int, negative: int, absolute: int) -> Reader:
    """With the sign bit cleared, then flipped."""
    if not (negative or absolute):
        return read
    kind = UNSIGNED[bits]
    top, rest = kind(1 << bits - 1), kind((1 << bits - 1) - 1)

    def changed(w: Waves) -> Array:
        value = read(w)
        if absolute:
            value = value & rest
        return value ^ top if negative else value

    return changed


# --- data parallel primitives ---


def dpp_sources(fields: dict[str, int], kind: str) -> tuple[Array, Array]:
    """For each lane, the lane that it reads, and whether there is one."""
    lane = np.arange(LANES)
    row, place = lane & ~15, lane & 15
    everywhere = np.ones(LANES, np.bool_)
    if kind == "8":
        chosen = np.array([fields[f"lane_sel_{k}"] for k in range(8)])
        return (lane & ~7) + chosen[lane & 7], everywhere
    control = fields["dpp"]
    if control < 0x100:
        return (lane & ~3) + (control >> 2 * (lane & 3) & 3), everywhere
    n = control & 15
    kinds: dict[int, tuple[Array, Array]] = {
        0x100: (lane + n, place + n < 16),
        0x110: (lane - n, place >= n),
        0x120: (row + ((place - n) & 15), everywhere),
        0x150: (row + n, everywhere),
        0x160: (row + (place ^ n), everywhere),
    }
    if control == 0x140:
        return row + 15 - place, everywhere
    if control == 0x141:
        return (lane & ~7) + 7 - (lane & 7), everywhere
    if control & ~15 not in kinds:
        raise Unsupported(f"DPP control {control:#x}")
    return kinds[control & ~15]


def dpp(register: int, bits: int, fields: dict[str, int], kind: str) -> tuple[Reader, Reader]:
    """The first source of an instruction with DPP, and the lanes that it writes."""
    source, exists = dpp_sources(fields, kind)
    source = np.where(exists, source, 0)
    read = vector_register(register, bits)
    inactive = fields.get("fi", 0) if kind == "16" else int(fields["src0"] == 234)
    zeros = fields.get("bc", 0) if kind == "16" else 1
    lane = np.arange(LANES)
    written = np.ones(LANES, np.bool_)
    if kind == "16":
        written = (fields["row_mask"] >> (lane >> 4) & 1 == 1) & (fields["bank_mask"] >> (lane >> 2 & 3) & 1 == 1)

    def valid(w: Waves) -> Array:
        return exists if inactive else exists & w.lanes[:, source]

    def value(w: Waves) -> Array:
        found: Array = np.where(valid(w), read(w)[:, source], UNSIGNED[bits](0))
        return found

    def lanes(w: Waves) -> Array:
        return w.lanes & written if zeros else w.lanes & written & valid(w)

    return value, lanes

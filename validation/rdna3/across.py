"""Instructions in which lanes read the registers of other lanes, a wave those of one lane, or all registers with computed numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from validation.rdna3 import operands
from validation.rdna3.arithmetic import Array
from validation.rdna3.decode import Instruction, Unsupported
from validation.rdna3.waves import LANES, M0, Waves

Step = Callable[[Waves], None]
_LANE = np.arange(LANES)
_HALF = _LANE & 32  # The halves of waves of 64 lanes are apart for most of these instructions.


def _waves(w: Waves) -> Array:
    return np.arange(len(w))


def _read_first_lane(ins: Instruction) -> Step:
    read = operands.vector(ins.fields["src0"], 32, literal=ins.literal)
    store = operands.write_scalar(ins.fields["vdst"], 32)

    def step(w: Waves) -> None:
        first = np.argmax(w.lanes, axis=1)  # 0 if none is active
        value = np.broadcast_to(read(w), (len(w), LANES))
        store(w, value[_waves(w), first])

    return step


def _read_lane(ins: Instruction) -> Step:
    read = operands.vector(ins.fields["src0"], 32)
    lane = operands.scalar(ins.fields["src1"], 32, literal=ins.literal)
    store = operands.write_scalar(ins.fields["vdst"], 32)

    def step(w: Waves) -> None:
        value = np.broadcast_to(read(w), (len(w), LANES))
        store(w, value[_waves(w), np.broadcast_to(lane(w) & np.uint32(LANES - 1), (len(w),))])

    return step


def _write_lane(ins: Instruction) -> Step:
    value = operands.scalar(ins.fields["src0"], 32, literal=ins.literal)
    lane = operands.scalar(ins.fields["src1"], 32, literal=ins.literal)
    register = ins.fields["vdst"]

    def step(w: Waves) -> None:
        w.v[register][_waves(w), np.broadcast_to(lane(w) & np.uint32(LANES - 1), (len(w),))] = value(w)

    return step


def _permute_row(other_row: bool) -> Callable[[Instruction], Step]:
    """Each lane reads the lane of its row, or of the other row, that four bits of a 64-bit scalar choose."""

    def make(ins: Instruction) -> Step:
        read = operands.vector(ins.fields["src0"], 32)
        low, high = (operands.scalar(ins.fields[name], 32, literal=ins.literal) for name in ("src1", "src2"))
        inactive, zeros = ins.fields["opsel"] & 1, ins.fields["opsel"] >> 1 & 1
        register = ins.fields["vdst"]

        def step(w: Waves) -> None:
            place = _LANE & 15
            words = np.where(place[None, :] < 8, low(w)[:, None], high(w)[:, None])
            source = (words >> (4 * (place & 7)).astype(np.uint32)[None, :]) & np.uint32(15)
            source = source + ((_LANE & ~15) ^ (16 if other_row else 0)).astype(np.uint32)
            source = np.broadcast_to(source, (len(w), LANES)).astype(np.intp)
            value = np.take_along_axis(np.broadcast_to(read(w), (len(w), LANES)), source, axis=1)
            valid = np.take_along_axis(w.lanes, source, axis=1) | bool(inactive)
            value = np.where(valid, value, np.uint32(0))
            w.write_vector(register, value, w.lanes if zeros else w.lanes & valid)

        return step

    return make


def _relative(reads: bool, writes: bool) -> Callable[[Instruction], Step]:
    """Moves between vector registers whose numbers M0 is added to; waves may have different ones."""

    def make(ins: Instruction) -> Step:
        source, target = ins.fields["src0"], ins.fields["vdst"]
        plain = operands.vector(source, 32, literal=ins.literal)

        def step(w: Waves) -> None:
            waves, offset = _waves(w), w.s[M0].astype(np.intp)
            value = w.v[source - 256 + offset, waves] if reads else np.broadcast_to(plain(w), (len(w), LANES))
            register = target + (offset if writes else np.zeros_like(offset))
            w.v[register, waves] = np.where(w.lanes, value, w.v[register, waves])

        return step

    return make


def _swap(ins: Instruction) -> Step:
    a, b = ins.fields["vdst"], ins.fields["src0"] - 256

    def step(w: Waves) -> None:
        first, second = w.v[a].copy(), w.v[b].copy()
        w.write_vector(a, second)
        w.write_vector(b, first)

    return step


def _swap_halves(ins: Instruction) -> Step:
    """Each lane reads the same lane of the other half of the wave; nothing happens in waves of 32 lanes."""
    source, register = ins.fields["src0"] - 256, ins.fields["vdst"]

    def step(w: Waves) -> None:
        if LANES == 64:
            w.write_vector(register, w.v[source][:, _LANE ^ 32])

    return step


def _bpermute(ins: Instruction) -> Step:
    """Each lane reads the lane whose number times 4 is in its address; 0 from inactive lanes."""
    address, data, register = (ins.fields[name] for name in ("addr", "data0", "vdst"))
    offset = ins.fields["offset0"] | ins.fields["offset1"] << 8

    def step(w: Waves) -> None:
        source = (((w.v[address] + np.uint32(offset)) >> np.uint32(2)) & np.uint32(31)).astype(np.intp) + _HALF
        value = np.take_along_axis(w.v[data], source, axis=1)
        w.write_vector(register, np.where(np.take_along_axis(w.lanes, source, axis=1), value, np.uint32(0)))

    return step


def _permute(ins: Instruction) -> Step:
    """Each active lane gives its value to the lane whose number times 4 is in its address; the highest wins."""
    address, data, register = (ins.fields[name] for name in ("addr", "data0", "vdst"))
    offset = ins.fields["offset0"] | ins.fields["offset1"] << 8

    def step(w: Waves) -> None:
        target = (((w.v[address] + np.uint32(offset)) >> np.uint32(2)) & np.uint32(31)) + _HALF
        result = np.zeros((len(w), LANES), np.uint32)
        wave, lane = np.nonzero(w.lanes)
        result[wave, target[wave, lane]] = w.v[data][wave, lane]
        w.write_vector(register, result)

    return step


def _swizzle(ins: Instruction) -> Step:
    """Lanes of each quad, or of all 32 by masks of their numbers."""
    address, register = ins.fields["addr"], ins.fields["vdst"]
    control = ins.fields["offset0"] | ins.fields["offset1"] << 8
    if control >= 0xC000:
        raise Unsupported("FFT and rotation swizzles")
    if control & 0x8000:
        source = (_LANE & ~3) + (control >> 2 * (_LANE & 3) & 3)
    else:
        source = (((_LANE & (control & 31)) | (control >> 5 & 31)) ^ (control >> 10 & 31)) + _HALF

    def step(w: Waves) -> None:
        w.write_vector(register, np.where(w.lanes[:, source], w.v[address][:, source], np.uint32(0)))

    return step


STEPS: dict[str, Callable[[Instruction], Step]] = {
    "V_READFIRSTLANE_B32": _read_first_lane,
    "V_READLANE_B32": _read_lane,
    "V_WRITELANE_B32": _write_lane,
    "V_PERMLANE16_B32": _permute_row(other_row=False),
    "V_PERMLANEX16_B32": _permute_row(other_row=True),
    "V_PERMLANE64_B32": _swap_halves,
    "V_SWAP_B32": _swap,
    "V_MOVRELS_B32": _relative(reads=True, writes=False),
    "V_MOVRELD_B32": _relative(reads=False, writes=True),
    "V_MOVRELSD_B32": _relative(reads=True, writes=True),
    "DS_BPERMUTE_B32": _bpermute,
    "DS_PERMUTE_B32": _permute,
    "DS_SWIZZLE_B32": _swizzle,
}

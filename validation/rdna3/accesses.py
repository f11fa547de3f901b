"""Loads, stores and atomics: of scalar, global, flat, scratch and shared memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from validation.rdna3 import atomics, operands
from validation.rdna3.arithmetic import UNSIGNED, Array
from validation.rdna3.decode import Instruction, Unsupported
from validation.rdna3.memory import AccessError, Bytes, Memory, Private
from validation.rdna3.pseudocode import NotPseudocode
from validation.rdna3.waves import LANES, NULL, Waves

Step = Callable[[Waves], None]


@dataclass(slots=True)
class Spaces:
    """The memory of a dispatch: buffers, the shared memory of each workgroup, the scratch memory of each lane."""

    memory: Memory
    shared: Private
    scratch: Private


class LaneFault(Exception):
    """A lane accessed memory outside of what there is."""

    def __init__(self, message: str, wave: int, lane: int) -> None:
        super().__init__(message)
        self.wave, self.lane = wave, lane


# Where the active lanes of waves access memory: the space, and the offsets of ``size`` bytes in it.
_Place = Callable[[Waves, Spaces, int, int], tuple[Bytes, Array]]


def _active(w: Waves, value: Array) -> Array:
    return value.reshape(-1) if w.all_active else value[w.lanes]


def _fault(w: Waves, error: AccessError) -> LaneFault:
    wave, lane = np.nonzero(w.lanes)
    return LaneFault(str(error), int(w.index[wave[error.element]]), int(lane[error.element]))


def _owners(w: Waves, lanes: bool) -> Array:
    """For each active lane, the number of the range that it uses."""
    if lanes:
        numbers = w.index[:, None] * LANES + np.arange(LANES)
    else:
        numbers = np.broadcast_to(w.group[:, None], (len(w), LANES))
    return _active(w, numbers)


# --- addresses ---


def _signed_offset(ins: Instruction) -> int:
    return (ins.fields["offset"] ^ 0x1000) - 0x1000


def _global_place(ins: Instruction) -> _Place:
    base, address, offset = ins.fields["saddr"], ins.fields["addr"], _signed_offset(ins)
    wide = operands.vector_register(address, 64)
    scalar = operands.scalar(base, 64)

    def place(w: Waves, spaces: Spaces, more: int, size: int) -> tuple[Bytes, Array]:
        at = wide(w) if base == NULL else scalar(w)[:, None] + w.v[address]
        addresses = _active(w, at + np.uint64((offset + more) & (1 << 64) - 1))
        try:
            return spaces.memory, spaces.memory.offsets(addresses, size)
        except AccessError as error:
            raise _fault(w, error) from None

    return place


def _scratch_place(ins: Instruction) -> _Place:
    base, address, offset = ins.fields["saddr"], ins.fields["addr"], _signed_offset(ins)

    def place(w: Waves, spaces: Spaces, more: int, size: int) -> tuple[Bytes, Array]:
        at = np.full((len(w), LANES), offset + more, np.int64)
        if ins.fields["sve"]:
            at += w.v[address].view(np.int32)
        if base != NULL:
            at += w.s[base].view(np.int32)[:, None]
        try:
            return spaces.scratch, spaces.scratch.offsets(_owners(w, lanes=True), _active(w, at), size)
        except AccessError as error:
            raise _fault(w, error) from None

    return place


def _flat_place(ins: Instruction) -> _Place:
    """All active lanes are in one space, which the upper half of the address tells."""
    wide, offset = operands.vector_register(ins.fields["addr"], 64), _signed_offset(ins)

    def place(w: Waves, spaces: Spaces, more: int, size: int) -> tuple[Bytes, Array]:
        addresses = _active(w, wide(w) + np.uint64((offset + more) & (1 << 64) - 1))
        upper = addresses >> np.uint64(32)
        low = (addresses & np.uint64(0xFFFFFFFF)).astype(np.int64)
        try:
            for first, space, lanes in ((operands.SHARED_BASE, spaces.shared, False), (operands.PRIVATE_BASE, spaces.scratch, True)):
                inside = upper == np.uint64(first >> 32)
                if len(inside) and inside.all():
                    return space, space.offsets(_owners(w, lanes), low, size)
                if inside.any():
                    raise Unsupported("flat addresses of several kinds of memory")
            return spaces.memory, spaces.memory.offsets(addresses, size)
        except AccessError as error:
            raise _fault(w, error) from None

    return place


def _shared_place(ins: Instruction, offset: int) -> _Place:
    address = ins.fields["addr"]

    def place(w: Waves, spaces: Spaces, more: int, size: int) -> tuple[Bytes, Array]:
        at = _active(w, w.v[address].astype(np.int64) + (offset + more))
        try:
            return spaces.shared, spaces.shared.offsets(_owners(w, lanes=False), at, size)
        except AccessError as error:
            raise _fault(w, error) from None

    return place


def _places(ins: Instruction) -> list[_Place]:
    """One; two for instructions that access two places of shared memory."""
    if ins.format != "DS":
        return [{"GLOBAL": _global_place, "SCRATCH": _scratch_place, "FLAT": _flat_place}[ins.format](ins)]
    first, second = ins.fields["offset0"], ins.fields["offset1"]
    if "2ADDR" not in ins.name:
        return [_shared_place(ins, first | second << 8)]
    unit = _bits(ins.name) // 8 * (64 if "STRIDE64" in ins.name else 1)
    return [_shared_place(ins, first * unit), _shared_place(ins, second * unit)]


def _bits(name: str) -> int:
    found = re.search(r"_[BUIF](\d+)(?:_|$)", name)
    if found is None:
        raise Unsupported("an access of unknown size")
    return int(found[1])


# --- loads and stores ---


def _write(w: Waves, register: int, values: Array) -> None:
    """``values`` of the active lanes."""
    if w.all_active:
        w.v[register] = values.reshape(len(w), LANES)
    else:
        w.v[register][w.lanes] = values


def _load(ins: Instruction) -> Callable[[Waves, Spaces], None]:
    bits, register = _bits(ins.name), ins.fields["vdst"]
    signed, half = bool(re.search(r"_I\d+(_|$)", ins.name)), "D16" in ins.name
    high = "D16_HI" in ins.name
    places = _places(ins)

    def small(w: Waves, spaces: Spaces) -> None:
        space, at = places[0](w, spaces, 0, bits // 8)
        value = space.read(at, bits // 8)
        if signed:
            value = value.view(f"i{bits // 8}").astype(np.int32)
        value = value.astype(np.uint32)
        if half:
            old = _active(w, w.v[register])
            value = value & np.uint32(0xFFFF)
            value = (old & np.uint32(0xFFFF)) | (value << np.uint32(16)) if high else (old & np.uint32(0xFFFF0000)) | value
        _write(w, register, value)

    def words(w: Waves, spaces: Spaces) -> None:
        found = []
        for place in places:
            space, at = place(w, spaces, 0, bits // 8)
            found += [space.read(at + 4 * k, 4) for k in range(bits // 32)]
        for k, value in enumerate(found):
            _write(w, register + k, value)

    return words if bits >= 32 else small


def _store(ins: Instruction) -> Callable[[Waves, Spaces], None]:
    bits = _bits(ins.name)
    registers = [ins.fields[name] for name in ("data", "data0", "data1") if name in ins.fields]
    shift = np.uint32(16 if "D16_HI" in ins.name else 0)
    places = _places(ins)
    size = min(bits // 8, 4)

    def store(w: Waves, spaces: Spaces) -> None:
        for place, register in zip(places, registers):
            space, at = place(w, spaces, 0, bits // 8)
            for k in range(max(bits // 32, 1)):
                value = _active(w, w.v[register + k]) >> shift
                space.write(at + 4 * k, value.astype(UNSIGNED[8 * size]), size)

    return store


# --- atomics ---

_ATOMIC = re.compile(r"(?:GLOBAL_ATOMIC|FLAT_ATOMIC|DS)_([A-Z]+)(?:_RTN)?_([BUIF])(\d+)$")


def _atomic(ins: Instruction) -> Callable[[Waves, Spaces], None]:
    found = _ATOMIC.match(ins.name)
    if found is None:
        raise Unsupported("an access of this kind")
    operation, bits = found[1], int(found[3])
    shared = ins.format == "DS"
    (place,) = _places(ins)
    returns = "RTN" in ins.name if shared else bool(ins.fields["glc"])
    first = ins.fields["data0" if shared else "data"]
    registers = [first, ins.fields["data1"] if shared else first + bits // 32]
    readers = [operands.vector_register(register, bits) for register in registers[: 1 + (operation in atomics.COMPARING)]]
    try:
        update = atomics.update(operation, found[2], bits, returns, ins.pseudocode)
    except NotPseudocode as error:
        raise Unsupported(f"its pseudocode cannot be translated: {error}") from error

    def run(w: Waves, spaces: Spaces) -> None:
        space, at = place(w, spaces, 0, bits // 8)
        if not len(at):
            return
        if (at & (bits // 8 - 1)).any():
            raise LaneFault(f"an atomic at an address that is no multiple of {bits // 8}", int(w.index[0]), 0)
        before = update(space, at, [_active(w, read(w)) for read in readers])
        if returns:
            _write(w, ins.fields["vdst"], before.astype(np.uint32))
            if bits == 64:
                _write(w, ins.fields["vdst"] + 1, (before >> np.uint64(32)).astype(np.uint32))

    return run


# --- scalar loads ---


def _scalar_load(ins: Instruction) -> Callable[[Waves, Spaces], None]:
    count = _bits(ins.name) // 32
    base = operands.scalar(2 * ins.fields["sbase"], 64)
    index = operands.scalar(ins.fields["soffset"], 32)
    offset = (ins.fields["offset"] ^ 1 << 20) - (1 << 20)
    register = ins.fields["sdata"]

    def load(w: Waves, spaces: Spaces) -> None:
        addresses = (base(w) + index(w) + np.uint64(offset & (1 << 64) - 1)) & ~np.uint64(3)
        try:
            at = spaces.memory.offsets(addresses, 4 * count)
        except AccessError as error:
            raise LaneFault(str(error), int(w.index[error.element]), -1) from None
        for k in range(count):
            w.s[register + k] = spaces.memory.read(at + 4 * k, 4)
        if register + count > 126:
            w.forget_lanes()

    return load


def access(ins: Instruction) -> Callable[[Waves, Spaces], None]:
    """What an instruction that accesses memory does. Raises Unsupported."""
    if ins.format == "SMEM":
        if not ins.name.startswith("S_LOAD"):
            if "INV" in ins.name:
                return lambda w, spaces: None
            raise Unsupported("a scalar access of this kind")
        return _scalar_load(ins)
    if ins.name.startswith("GLOBAL_LOAD_LDS") or "ADDTID" in ins.name:
        raise Unsupported("an access of this kind")
    for start, make in (("_LOAD_", _load), ("_STORE_", _store)):
        if start in ins.name:
            return make(ins)
    return _atomic(ins)

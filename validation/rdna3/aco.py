"""Compute shaders that RADV compiled with ACO, as machine code that the emulator runs.

The driver tells a shader's encoded instructions, registers and memory (VK_KHR_pipeline_executable_properties), but not what the scalar
registers hold at the start. Of a shader with push constants and no descriptors that is, in this order:

1. If push constants do not all fit, the lower half of their address.
2. The 32-bit words of push constants that the shader reads, in order: all of them, or the first eight if there is an address.
3. The number of workgroups along x, y and z, if the shader reads it.
4. The numbers of the workgroup along x, y and z, without those that the shader does not read.
5. If the shader reads the number of its wave, a word with that number and the number of waves.

Which push constants and inputs a shader reads is found in its SPIR-V module. The parts must then have as many registers as ACO's listing
says, which tells the two cases of (1) apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from validation.rdna3.execute import EmulatorError
from validation.rdna3.launch import Registers
from validation.rdna3.waves import LANES, Waves

_ASSEMBLY, _INTERMEDIATE, _SOURCE = "Assembly", "ACO IR", "NIR Shader(s)"  # the names of listings
_WORDS = re.compile(r";((?: [0-9a-f]{8})+)\s*$")
_REPEATED = re.compile(r"\s*\(then repeated (\d+) times\)")
_SCALARS = re.compile(r"\bs\[(\d+)(?:-(\d+))?\]")
_LARGEST_WAVE = re.compile(r"^max_subgroup_size: (\d+)$", re.MULTILINE)
_INLINE_WITH_ADDRESS = 8
_AXES = 3
# Where a shader's word (5) has the number of the wave; that of waves is in the lowest bits.
_WAVE_BIT = 20


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a SPIR-V module reads: the 32-bit words of push constants, by number, and built-in variables."""

    words: tuple[int, ...]
    built_ins: frozenset[int]


@dataclass(frozen=True, slots=True)
class Layout:
    """The scalar registers at the start, see above. ``workgroup_ids``: how many."""

    address: bool
    inline: tuple[int, ...]
    grid: bool
    workgroup_ids: int
    wave: bool

    def registers(self, constants: bytes, address: int, groups: int, waves_per_group: int) -> Registers:
        """Return what writes the registers for a dispatch with these push constants, which also lie at ``address``."""
        values = [address & 0xFFFFFFFF] if self.address else []
        values += [int.from_bytes(constants[4 * k : 4 * k + 4], "little") for k in self.inline]
        values += [groups, 1, 1] if self.grid else []

        def write(waves: Waves, group: np.ndarray, place: np.ndarray) -> None:
            for register, value in enumerate(values):
                waves.s[register] = value
            first = len(values)
            for axis in range(self.workgroup_ids):
                waves.s[first + axis] = 0 if axis else group
            if self.wave:
                waves.s[first + self.workgroup_ids] = waves_per_group | place << _WAVE_BIT

        return write


def machine_code(listings: Mapping[str, str]) -> bytes:
    """Return the instructions, whose words the listing has behind semicolons. Raises EmulatorError for waves of another size."""
    largest = _LARGEST_WAVE.search(listings[_SOURCE])
    if largest is None or int(largest[1]) != LANES:
        raise EmulatorError(f"the driver did not compile for waves of {LANES} lanes, which the emulator has")
    code, last = bytearray(), b""
    for line in listings[_ASSEMBLY].split("\n"):
        if (found := _WORDS.search(line)) is not None:
            last = b"".join(int(word, 16).to_bytes(4, "little") for word in found[1].split())
            code += last
        elif (again := _REPEATED.match(line)) is not None:
            code += last * int(again[1])
        elif line.strip() and not line.startswith("BB"):
            raise EmulatorError(f"the driver's listing has a line without encoded words: {line.strip()!r}")
    return bytes(code)


def layout(inputs: Inputs, listings: Mapping[str, str]) -> Layout:
    """Return where the inputs of a shader are. Raises EmulatorError if ACO's listing has another number of registers."""
    start = next((line for line in listings[_INTERMEDIATE].split("\n") if "p_startpgm" in line), "")
    total = sum(int(last or first) - int(first) + 1 for first, last in _SCALARS.findall(start))
    grid, wave = _NUM_WORKGROUPS in inputs.built_ins, _SUBGROUP_ID in inputs.built_ins
    rest = total - _AXES * grid - wave
    if 0 <= rest - len(inputs.words) <= _AXES:
        return Layout(False, inputs.words, grid, rest - len(inputs.words), wave)
    ids = rest - 1 - _INLINE_WITH_ADDRESS
    if len(inputs.words) > _INLINE_WITH_ADDRESS and 0 <= ids <= _AXES:
        return Layout(True, inputs.words[:_INLINE_WITH_ADDRESS], grid, ids, wave)
    raise EmulatorError(
        f"ACO's shader starts with {total} scalar registers, which do not fit {len(inputs.words)} words of push constants and the inputs "
        f"{sorted(inputs.built_ins)}"
    )


# --- SPIR-V ---

_TYPE_INT, _TYPE_FLOAT, _TYPE_STRUCT, _TYPE_POINTER, _CONSTANT, _VARIABLE, _LOAD = 21, 22, 30, 32, 43, 59, 61
_ACCESS_CHAIN, _IN_BOUNDS_ACCESS_CHAIN, _DECORATE, _MEMBER_DECORATE = 65, 66, 71, 72
_BUILT_IN, _OFFSET, _PUSH_CONSTANT = 11, 35, 9
_NUM_WORKGROUPS, _SUBGROUP_ID = 24, 40


def inputs_of(module: bytes) -> Inputs:
    """Return what a module reads. Raises EmulatorError if it reads push constants in another way than whole numbers by constant index."""
    sizes: dict[int, int] = {}
    pointees: dict[int, int] = {}
    structs: dict[int, tuple[int, ...]] = {}
    offsets: dict[tuple[int, int], int] = {}
    constants: dict[int, int] = {}
    places: dict[int, tuple[int, int]] = {}  # of pointers to push constants: offset and size
    built_ins, words, block, members = set(), set(), 0, 0
    code = np.frombuffer(module, "<u4").tolist()
    at = 5
    while at < len(code):
        length, op = code[at] >> 16, code[at] & 0xFFFF
        a = code[at + 1 : at + length]
        at += length
        if op == _MEMBER_DECORATE and a[2] == _OFFSET:
            offsets[a[0], a[1]] = a[3]
        elif op == _DECORATE and a[1] == _BUILT_IN:
            built_ins.add(a[2])
        elif op in (_TYPE_INT, _TYPE_FLOAT):
            sizes[a[0]] = a[1] // 8
        elif op == _TYPE_STRUCT:
            structs[a[0]] = tuple(a[1:])
        elif op == _TYPE_POINTER:
            sizes[a[0]], pointees[a[0]] = 8, a[2]
        elif op == _CONSTANT:
            constants[a[1]] = a[2]
        elif op == _VARIABLE and a[2] == _PUSH_CONSTANT:
            block, members = a[1], pointees[a[0]]
        elif op in (_ACCESS_CHAIN, _IN_BOUNDS_ACCESS_CHAIN) and a[2] == block:
            member = constants[a[3]]
            places[a[1]] = offsets[members, member], sizes.get(structs[members][member], 0)
        elif op == _LOAD and a[2] in places:
            offset, size = places[a[2]]
            if not size:
                raise EmulatorError("a shader reads a push constant that is no number")
            words |= set(range(offset // 4, (offset + size - 1) // 4 + 1))
    return Inputs(tuple(sorted(words)), frozenset(built_ins))

"""Machine code, launched with a grid of workgroups: `run`; and kernels of code objects, which get a kernarg segment: `launch`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from validation.rdna3 import code_object
from validation.rdna3.accesses import Spaces
from validation.rdna3.code_object import Image, Kernel
from validation.rdna3.decode import Instruction
from validation.rdna3.execute import Dispatch, EmulatorError, Program
from validation.rdna3.memory import Memory, Private
from validation.rdna3.waves import LANES, Waves, pack

# How many lanes run in lockstep at most: workgroups beyond that run after the others.
_LANES_AT_A_TIME = 1 << 15
_NEAREST, _ALL_SUBNORMALS = 0, 15


@dataclass(frozen=True, slots=True)
class Resources:
    """What the waves of a kernel get. ``entry``: the address of its first instruction; ``vectors``: how many vector registers."""

    entry: int
    vectors: int
    shared_bytes: int
    scratch_bytes: int


# Writes the scalar registers of waves that are about to start: the waves, the workgroup of each, and the number of each in its workgroup.
Registers = Callable[[Waves, np.ndarray, np.ndarray], None]


@dataclass(eq=False)
class Loaded:
    """A code object in the emulator's memory. ``trace``: called with each instruction and the waves that are about to run it."""

    memory: Memory
    image: Image
    base: int
    program: Program
    trace: Callable[[Instruction, Waves], None] | None = None


def load(memory: Memory, elf: bytes) -> Loaded:
    """Place the segments of a linked code object in memory."""
    found = code_object.read(elf)
    base = memory.allocate(len(found.content))
    memory.slice(base, len(found.content))[:] = np.frombuffer(found.content, np.uint8)
    begin, end = found.code
    return Loaded(memory, found, base, Program(found.content[begin:end], base + begin))


def launch(loaded: Loaded, kernel: str, groups: int, group_size: int, arguments: bytes) -> int:
    """Run a kernel over ``groups`` workgroups, with ``arguments`` at the start of its kernarg segment; how many instructions that took.

    Raises EmulatorError.
    """
    about = loaded.image.kernels[kernel]
    _check(about)
    memory = loaded.memory
    segment = _kernarg(about, groups, group_size, arguments)
    address = memory.allocate(len(segment))
    packet = memory.allocate(64)
    try:
        memory.slice(address, len(segment))[:] = np.frombuffer(segment, np.uint8)
        memory.slice(packet, 64)[:] = np.frombuffer(_packet(about, groups, group_size, address), np.uint8)
        registers = _registers(about, {"kernarg_segment_ptr": address, "dispatch_ptr": packet})
        resources = Resources(loaded.base + about.entry, about.vectors, about.shared_bytes, about.scratch_bytes)
        return run(loaded.program, memory, resources, groups, group_size, registers, loaded.trace)
    finally:
        memory.free(address)
        memory.free(packet)


def _check(about: Kernel) -> None:
    if about.wave != LANES:
        raise EmulatorError(f"kernel {about.name} is for waves of {about.wave} lanes; the emulator has waves of {LANES}")
    if (about.round_mode, about.subnormals) != (_NEAREST, _ALL_SUBNORMALS):
        raise EmulatorError(f"kernel {about.name} wants another mode of rounding or of subnormals than the emulator has")


def _kernarg(about: Kernel, groups: int, group_size: int, arguments: bytes) -> bytes:
    """The explicit arguments, and the hidden ones that the runtime fills in."""
    values = {
        "hidden_block_count_x": groups, "hidden_block_count_y": 1, "hidden_block_count_z": 1, "hidden_group_size_x": group_size,
        "hidden_group_size_y": 1, "hidden_group_size_z": 1, "hidden_grid_dims": 1,
    }  # fmt: skip
    explicit = [a.offset + a.size for a in about.arguments if not a.kind.startswith("hidden_")]
    if len(arguments) < max(explicit, default=0):
        raise EmulatorError(f"kernel {about.name} takes {max(explicit)} bytes of arguments, and got {len(arguments)}")
    segment = bytearray(max(about.kernarg_bytes, len(arguments), 16))
    segment[: len(arguments)] = arguments
    for argument in about.arguments:
        if argument.kind.startswith("hidden_"):
            value = values.get(argument.kind, 0)
            segment[argument.offset : argument.offset + argument.size] = value.to_bytes(argument.size, "little")
    return bytes(segment)


def _packet(about: Kernel, groups: int, group_size: int, kernarg: int) -> bytes:
    """The dispatch packet of HSA."""
    sizes = (0, 1, group_size, 1, 1, 0, groups * group_size, 1, 1, about.scratch_bytes, about.shared_bytes)
    return struct.pack("<HHHHHHIIIIIQQQQ", *sizes, 0, kernarg, 0, 0)


def _registers(about: Kernel, addresses: dict[str, int]) -> Registers:
    """The user registers that a descriptor asks for, then the numbers of the workgroup."""

    def write(waves: Waves, groups: np.ndarray, _: np.ndarray) -> None:
        register = 0
        for what, length in about.user_registers:
            value = addresses.get(what, about.scratch_bytes if what == "private_segment_size" else 0)
            for k in range(length):
                waves.s[register] = value >> 32 * k & 0xFFFFFFFF
                register += 1
        register = about.workgroup_register
        for axis, wanted in enumerate(about.workgroup_ids):
            if wanted:
                waves.s[register] = groups if axis == 0 else 0
                register += 1

    return write


def run(
    program: Program,
    memory: Memory,
    resources: Resources,
    groups: int,
    group_size: int,
    registers: Registers,
    trace: Callable[[Instruction, Waves], None] | None = None,
) -> int:
    """Run ``groups`` workgroups, some at a time; return how many instructions that took. Raises EmulatorError."""
    each, instructions = max(_LANES_AT_A_TIME // group_size, 1), 0
    per_group = -(-group_size // LANES)
    for first in range(0, groups, each):
        some = np.arange(first, min(first + each, groups))
        number = np.arange(len(some) * per_group)
        local, place = number // per_group, number % per_group
        waves = Waves.start(resources.vectors, number, local, resources.entry)
        registers(waves, some[local], place)
        item = place[:, None] * LANES + np.arange(LANES)
        waves.v[0] = item  # y and z, in the bits above, are 0
        waves.set_exec(pack(item < group_size))
        shared = Private(len(some), resources.shared_bytes, "shared memory")
        scratch = Private(len(number) * LANES, resources.scratch_bytes, "scratch memory")
        dispatch = Dispatch(program, Spaces(memory, shared, scratch), per_group, trace)
        dispatch.run(waves)
        instructions += dispatch.instructions
    return instructions

"""Kernels of code objects, launched with a grid of workgroups and a kernarg segment."""

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
        each, instructions = max(_LANES_AT_A_TIME // group_size, 1), 0
        for first in range(0, groups, each):
            some = np.arange(first, min(first + each, groups))
            instructions += _run(loaded, about, some, group_size, {"kernarg_segment_ptr": address, "dispatch_ptr": packet})
    finally:
        memory.free(address)
        memory.free(packet)
    return instructions


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


def _run(loaded: Loaded, about: Kernel, groups: np.ndarray, group_size: int, addresses: dict[str, int]) -> int:
    per_group = -(-group_size // LANES)
    count = len(groups) * per_group
    number = np.arange(count)
    local = number // per_group
    waves = Waves.start(about.vectors, number, local, loaded.base + about.entry)
    register = 0
    for what, length in about.user_registers:
        value = addresses.get(what, about.scratch_bytes if what == "private_segment_size" else 0)
        for k in range(length):
            waves.s[register] = value >> 32 * k & 0xFFFFFFFF
            register += 1
    register = about.workgroup_register
    for axis, wanted in enumerate(about.workgroup_ids):
        if wanted:
            waves.s[register] = groups[local] if axis == 0 else 0
            register += 1
    item = (number % per_group)[:, None] * LANES + np.arange(LANES)
    waves.v[0] = item  # y and z, in the bits above, are 0
    waves.set_exec(pack(item < group_size))
    shared = Private(len(groups), about.shared_bytes, "shared memory")
    scratch = Private(count * LANES, about.scratch_bytes, "scratch memory")
    dispatch = Dispatch(loaded.program, Spaces(loaded.memory, shared, scratch), per_group, loaded.trace)
    dispatch.run(waves)
    return dispatch.instructions

"""Linked code objects as a loader sees them: what its segments put into memory, and what a kernel's descriptor asks for."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from validation import code_objects

_SEGMENT = struct.Struct("<IIQQQQQQ")
_LOAD, _EXECUTABLE = 1, 1
# What a descriptor may ask for in the first scalar registers, and how many registers that takes.
_USER_REGISTERS = (
    ("private_segment_buffer", 4), ("dispatch_ptr", 2), ("queue_ptr", 2), ("kernarg_segment_ptr", 2), ("dispatch_id", 2),
    ("flat_scratch_init", 2), ("private_segment_size", 1),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a kernel: its place in the kernarg segment, and what it is ("by_value", "hidden_block_count_x" ...)."""

    offset: int
    size: int
    kind: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """What hardware and runtime have to know of a kernel. ``entry``: the address of its first instruction, from the image's start.

    ``user_registers``: the first scalar registers, by name and how many; the workgroup's numbers begin at register ``workgroup_register``.
    """

    name: str
    entry: int
    shared_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    vectors: int
    wave: int
    user_registers: tuple[tuple[str, int], ...]
    workgroup_register: int
    workgroup_ids: tuple[bool, ...]
    round_mode: int
    subnormals: int
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Image:
    """``content``: the bytes of all segments, by address. ``code``: where executable bytes begin and end."""

    content: bytes
    code: tuple[int, int]
    kernels: dict[str, Kernel]


def read(elf: bytes) -> Image:
    """Read a linked code object for GFX11."""
    header = struct.unpack_from("<16sHHIQQQIHHHHHH", elf)
    segments = [_SEGMENT.unpack_from(elf, header[5] + k * header[9]) for k in range(header[10])]
    loaded = [segment for segment in segments if segment[0] == _LOAD]
    content = bytearray(max(address + memory for _, _, _, address, _, _, memory, _ in loaded))
    for _, _, offset, address, _, size, _, _ in loaded:
        content[address : address + size] = elf[offset : offset + size]
    code = next((address, address + size) for _, flags, _, address, _, size, _, _ in loaded if flags & _EXECUTABLE)
    about = code_objects.CodeObject(elf)
    kernels = [_kernel(about, symbol) for symbol in about.kernels]
    return Image(bytes(content), code, {kernel.name: kernel for kernel in kernels})


def _kernel(about: code_objects.CodeObject, symbol: str) -> Kernel:
    metadata, descriptor = about.kernels[symbol], about.descriptor(symbol)
    _, first, second = descriptor.resources
    asked = tuple([register for k, register in enumerate(_USER_REGISTERS) if descriptor.properties >> k & 1])
    return Kernel(
        name=metadata[".name"],
        entry=descriptor.entry,
        shared_bytes=descriptor.shared,
        scratch_bytes=descriptor.scratch,
        kernarg_bytes=descriptor.arguments,
        vectors=((first & 63) + 1) * 8,
        wave=descriptor.wave,
        user_registers=asked,
        workgroup_register=second >> 1 & 31,
        workgroup_ids=tuple([bool(second >> 7 + axis & 1) for axis in range(3)]),
        round_mode=first >> 12 & 15,
        subnormals=first >> 16 & 15,
        arguments=tuple([Argument(a[".offset"], a[".size"], a[".value_kind"]) for a in metadata[".args"]]),
    )

"""AMDGPU code objects: an ELF file's segments and symbols, kernel descriptors, and the metadata of kernel arguments."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_LOAD, _NOTE = 1, 4
_SYMBOLS = (2, 11)  # SHT_SYMTAB, SHT_DYNSYM
_AMDGPU, _METADATA = 224, 32
_DESCRIPTOR_BYTES = 64


class BadCodeObject(Exception):
    """The file is no code object that the emulator can load."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a kernel: its place in the kernarg segment, and what it is ("by_value", "hidden_block_count_x" ...)."""

    offset: int
    size: int
    kind: str


@dataclass(frozen=True, slots=True)
class KernelDescriptor:
    """What hardware and loader have to know of a kernel. ``entry``: the offset of its first instruction in the image.

    ``user_registers``: the first scalar registers, by name and how many; the workgroup's numbers begin at register ``workgroup_register``.
    """

    name: str
    entry: int
    shared_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    vectors: int
    workgroup_ids: tuple[bool, bool, bool]
    workitem_ids: int
    user_registers: tuple[tuple[str, int], ...]
    workgroup_register: int
    wave32: bool
    round_mode: int
    denormals: int
    ieee: bool
    arguments: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True)
class CodeObject:
    """``image``: the bytes of all segments, by address from 0 on. ``code``: where executable bytes begin and end."""

    image: bytes
    code: tuple[int, int]
    kernels: dict[str, KernelDescriptor]


def load(elf: bytes) -> CodeObject:
    """Read a linked code object of version 5 (or 4). Raises BadCodeObject."""
    if elf[:4] != b"\x7fELF" or elf[4] != 2 or struct.unpack_from("<H", elf, 18)[0] != _AMDGPU:
        raise BadCodeObject("no ELF file for AMDGPU")
    header = struct.unpack_from("<16sHHIQQQIHHHHHH", elf)
    segments = [_SEGMENT.unpack_from(elf, header[5] + k * header[9]) for k in range(header[10])]
    loaded = [s for s in segments if s[0] == _LOAD]
    if not loaded:
        raise BadCodeObject("nothing to load: the object is not linked")
    image = bytearray(max(s[3] + s[6] for s in loaded))
    for _, _, offset, address, _, size, _, _ in loaded:
        image[address : address + size] = elf[offset : offset + size]
    executable = next(s for s in loaded if s[1] & 1)
    arguments: dict[str, tuple[Argument, ...]] = {}
    for segment in segments:
        if segment[0] == _NOTE:
            arguments |= _arguments(elf[segment[2] : segment[2] + segment[5]])
    kernels = {}
    for name, value in _symbols(elf, header):
        if name.endswith(".kd"):
            kernel = name.removesuffix(".kd")
            kernels[kernel] = _descriptor(kernel, bytes(image), value, arguments.get(kernel, ()))
    return CodeObject(bytes(image), (executable[3], executable[3] + executable[5]), kernels)


def _symbols(elf: bytes, header: tuple[Any, ...]) -> list[tuple[str, int]]:
    sections = [_SECTION.unpack_from(elf, header[6] + k * header[11]) for k in range(header[12])]
    found: dict[str, int] = {}
    for section in sections:
        if section[1] in _SYMBOLS:
            names = sections[section[6]]
            for at in range(section[4], section[4] + section[5], _SYMBOL.size):
                name, _, _, place, value, _ = _SYMBOL.unpack_from(elf, at)
                start = names[4] + name
                if place:
                    found[elf[start : elf.index(0, start)].decode()] = value
    return list(found.items())


def _descriptor(name: str, image: bytes, at: int, arguments: tuple[Argument, ...]) -> KernelDescriptor:
    """The fields of `amdhsa_kernel_descriptor` for GFX11, as LLVM's AMDGPU usage guide has them."""
    shared, scratch, kernarg = struct.unpack_from("<III", image, at)
    (entry,) = struct.unpack_from("<q", image, at + 16)
    _, rsrc1, rsrc2, properties = struct.unpack_from("<IIIH", image, at + 44)
    user = (
        ("private_segment_buffer", 4), ("dispatch_ptr", 2), ("queue_ptr", 2), ("kernarg_segment_ptr", 2), ("dispatch_id", 2),
        ("flat_scratch_init", 2), ("private_segment_size", 1),
    )  # fmt: skip
    return KernelDescriptor(
        name, at + entry, shared, scratch, kernarg, ((rsrc1 & 63) + 1) * 8,
        (bool(rsrc2 >> 7 & 1), bool(rsrc2 >> 8 & 1), bool(rsrc2 >> 9 & 1)), rsrc2 >> 11 & 3,
        tuple([(what, count) for k, (what, count) in enumerate(user) if properties >> k & 1]), rsrc2 >> 1 & 31, bool(properties >> 10 & 1),
        rsrc1 >> 12 & 15, rsrc1 >> 16 & 15, bool(rsrc1 >> 23 & 1), arguments,
    )  # fmt: skip


# --- metadata ---


def _arguments(notes: bytes) -> dict[str, tuple[Argument, ...]]:
    at, found = 0, {}
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        name = notes[at + 12 : at + 12 + name_size].rstrip(b"\0")
        start = at + 12 + -(-name_size // 4) * 4
        if name == b"AMDGPU" and kind == _METADATA:
            about, _ = _unpack(notes, start)
            for kernel in about["amdhsa.kernels"]:
                arguments = [Argument(a[".offset"], a[".size"], a[".value_kind"]) for a in kernel.get(".args", ())]
                found[kernel[".name"]] = tuple(arguments)
        at = start + -(-size // 4) * 4
    return found


def _unpack(data: bytes, at: int) -> tuple[Any, int]:
    """A value of MessagePack, of the kinds that metadata has, and where the next one begins."""
    code = data[at]
    if code < 0x80:
        return code, at + 1
    if code >= 0xE0:
        return code - 256, at + 1
    if code < 0x90:
        return _map(data, at + 1, code & 15)
    if code < 0xA0:
        return _list(data, at + 1, code & 15)
    if code < 0xC0:
        return _text(data, at + 1, code & 31)
    if code in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[code], at + 1
    formats = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
    lengths = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}
    if code in formats:
        return struct.unpack_from(formats[code], data, at + 1)[0], at + 1 + struct.calcsize(formats[code])
    if code not in lengths:
        raise BadCodeObject(f"metadata of kind {code:#x}")
    count = struct.unpack_from(lengths[code], data, at + 1)[0]
    at += 1 + struct.calcsize(lengths[code])
    return (_text if code < 0xDC else _list if code < 0xDE else _map)(data, at, count)


def _text(data: bytes, at: int, count: int) -> tuple[str, int]:
    return data[at : at + count].decode(), at + count


def _list(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    items = []
    for _ in range(count):
        item, at = _unpack(data, at)
        items.append(item)
    return items, at


def _map(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    items = {}
    for _ in range(count):
        key, at = _unpack(data, at)
        items[key], at = _unpack(data, at)
    return items, at

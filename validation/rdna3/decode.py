"""Bytes of machine code -> instructions: the format, the operation, its fields, and what follows them (a literal, DPP's controls)."""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass, field

from validation.rdna3.tables import Format, OperandType, tables

LITERAL, DPP16, DPP8, DPP8_FI = 255, 250, 233, 234
# Formats that one instruction may have; variants of them are told apart below. Longer fixed parts come first.
_FORMATS = (
    "SOP1", "SOPC", "SOPP", "SOPK", "VOP3P", "VINTERP", "LDSDIR", "VOP1", "VOPC", "VOP3", "VOPD", "SMEM", "DS", "FLAT", "GLOBAL", "SCRATCH",
    "MUBUF", "MTBUF", "MIMG", "EXP", "SOP2", "VOP2",
)  # fmt: skip
_SOURCES = ("src0", "src1", "src2", "ssrc0", "ssrc1", "srcx0", "srcy0")
_DUAL = "V_DUAL_"


class Undecodable(Exception):
    """The bytes are no instruction that the tables know."""


class Unsupported(Exception):
    """The emulator lacks an instruction, or what one uses, which the message names."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """``name`` is that of the operation without the suffix of its encoding ("V_ADD_F32"); ``fields``: numbers as they are encoded.

    ``second``: the other half of a dual-issue instruction. ``dpp``: "16", "8" or ""; the controls are fields.
    """

    address: int
    size: int
    format: str
    name: str
    full_name: str
    fields: dict[str, int]
    literal: int | None = None
    dpp: str = ""
    second: Instruction | None = None
    words: tuple[int, ...] = field(default=())

    @property
    def operands(self) -> dict[str, OperandType]:
        return tables().operands.get((self.format, self.full_name), {})

    @property
    def pseudocode(self) -> str:
        return tables().pseudocode.get((self.format, self.full_name), "")

    def __str__(self) -> str:
        parts = [f"{name}={number:#x}" for name, number in self.fields.items() if name not in ("op", "opx", "opy")]
        literal = [f"literal={self.literal:#x}"] if self.literal is not None else []
        second = f" :: {self.second}" if self.second else ""
        return f"{self.full_name.lower()} {' '.join(parts + literal)}{second}"


@functools.cache
def _formats() -> tuple[Format, ...]:
    return tuple([tables().formats[name] for name in _FORMATS])


def decode(code: bytes, at: int, address: int) -> Instruction:
    """The instruction at offset ``at``, which lies at ``address``. Raises Undecodable."""
    words = struct.unpack_from(f"<{min(4, (len(code) - at) // 4)}I", code, at)
    bits = sum(word << 32 * k for k, word in enumerate(words))
    found = next((f for f in _formats() if f.fits(bits)), None)
    if found is None or not found.ops:
        raise Undecodable(f"{words[0]:#010x} at {address:#x} is no instruction of RDNA3")
    if found.name == "VOPD":
        return _dual(found, bits, address, words)
    number = found.fields["op"].of(bits)
    if found.name == "VOP3" and number in tables().formats["VOP3SD"].ops:
        found = tables().formats["VOP3SD"]
    if number not in found.ops:
        raise Undecodable(f"{words[0]:#010x} at {address:#x} is no operation of format {found.name}")
    full_name = found.ops[number]
    variant = found
    used = _length(found)
    literal, dpp = None, ""
    first = found.fields.get("src0")
    if first is not None and first.of(bits) in (DPP16, DPP8, DPP8_FI):
        dpp = "16" if first.of(bits) == DPP16 else "8"
        variant = tables().formats[f"{found.name}_DPP{dpp}"]
        used += 1
    elif _has_literal(found, full_name, bits):
        literal = words[used]
        used += 1
    fields = {name: part.of(bits) for name, part in variant.fields.items() if name not in ("encoding", "op", "seg", "literal")}
    short = full_name.removesuffix("_E32").removesuffix("_E64")
    return Instruction(address, 4 * used, found.name, short, full_name, fields, literal, dpp, None, words[:used])


def _length(found: Format) -> int:
    return 1 + max(part.high for part in found.fields.values()) // 32


def _has_literal(found: Format, name: str, bits: int) -> bool:
    wanted = "SIMM32" in tables().pseudocode.get((found.name, name), "") or name == "S_SETREG_IMM32_B32"
    return wanted or any(found.fields[source].of(bits) == LITERAL for source in _SOURCES if source in found.fields)


def _dual(found: Format, bits: int, address: int, words: tuple[int, ...]) -> Instruction:
    """Two operations of VOP1 and VOP2 that are issued at the same time."""
    names = [found.ops[found.fields[op].of(bits)].removeprefix(_DUAL) for op in ("opx", "opy")]
    values = {name: part.of(bits) for name, part in found.fields.items()}
    literal = any(values[source] == LITERAL for source in ("srcx0", "srcy0")) or any(name[:5] in ("FMAAK", "FMAMK") for name in names)
    halves = []
    for half, name in zip("xy", names):
        kind = "VOP1" if name.startswith("MOV") else "VOP2"
        destination = values["vdstx"] if half == "x" else values["vdsty"] << 1 | ~values["vdstx"] & 1
        fields = {"vdst": destination, "src0": values[f"src{half}0"], "vsrc1": values[f"vsrc{half}1"]}
        used = 3 if literal else 2
        halves.append(Instruction(address, 4 * used, kind, f"V_{name}", f"V_{name}_E32", fields, words[2] if literal else None))
    first, second = halves
    return Instruction(
        address, first.size, first.format, first.name, first.full_name, first.fields, first.literal, "", second, words[: first.size // 4]
    )

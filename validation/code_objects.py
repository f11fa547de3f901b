"""What a code object of AMD's GPUs says about its kernels: descriptors and metadata, as in LLVM's "User Guide for AMDGPU Backend"."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from spirograd.llvmgen.code_object import ObjectFile, Section, Symbol

_DYNSYM, _NOTE = 11, 7  # sh_type
_DESCRIPTOR = struct.Struct("<III4xq20xIIIHH4x")
_WAVES_OF_32 = 1 << 10  # among the properties of a descriptor


class Descriptor(NamedTuple):
    """What the hardware is told about a kernel. Sizes are bytes; ``entry``: the address of its first instruction."""

    shared: int
    scratch: int
    arguments: int
    entry: int
    resources: tuple[int, int, int]  # compute_pgm_rsrc3, 1, 2
    properties: int

    @property
    def wave(self) -> int:
        """Lanes of a wave."""
        return 32 if self.properties & _WAVES_OF_32 else 64


class CodeObject:
    """A linked code object. ``kernels``: the metadata of each, by symbol of its descriptor."""

    def __init__(self, binary: bytes) -> None:
        import msgpack  # of the extra "test": only this check needs it

        self.file = ObjectFile.read(binary, _DYNSYM)
        self.symbols = {symbol.name: symbol for symbol in self.file.symbols}
        note = next(section.data for section in self.file.sections if section.kind == _NOTE)
        name, size, _ = struct.unpack_from("<III", note)
        start = 12 + -(-name // 4) * 4
        self.metadata: dict[str, Any] = msgpack.unpackb(bytes(note[start : start + size]))
        self.kernels: dict[str, dict[str, Any]] = {kernel[".symbol"]: kernel for kernel in self.metadata["amdhsa.kernels"]}

    def section(self, symbol: Symbol) -> Section:
        return self.file.sections[symbol.section]

    def descriptor(self, name: str) -> Descriptor:
        """Read the descriptor at the symbol ``name`` ("....kd")."""
        symbol = self.symbols[name]
        section = self.section(symbol)
        start = symbol.value - section.address
        shared, scratch, arguments, entry, *resources, properties, _ = _DESCRIPTOR.unpack_from(section.data, start)
        first, second, third = resources
        return Descriptor(shared, scratch, arguments, symbol.value + entry, (first, second, third), properties)

    def problems(self) -> list[str]:
        """What a loader or a launch would refuse, and hidden costs: scratch memory, spilled registers."""
        found = []
        for name, kernel in self.kernels.items():
            code, descriptor = self.symbols.get(kernel[".name"]), self.descriptor(name)
            hidden = [argument[".value_kind"] for argument in kernel[".args"] if argument[".value_kind"].startswith("hidden")]
            claims = (
                ("there is no function of this name", code is not None and code.exported),
                ("the descriptor names another entry", code is not None and descriptor.entry == code.value and code.value % 256 == 0),
                ("two sizes of arguments", descriptor.arguments == kernel[".kernarg_segment_size"]),
                ("two sizes of shared memory", descriptor.shared == kernel[".group_segment_fixed_size"]),
                ("two sizes of scratch", descriptor.scratch == kernel[".private_segment_fixed_size"]),
                ("two sizes of waves", descriptor.wave == kernel[".wavefront_size"]),
                (f"{descriptor.scratch} bytes of scratch", not descriptor.scratch and not kernel[".uses_dynamic_stack"]),
                ("vector registers are spilled", not kernel[".vgpr_spill_count"]),  # scalar ones go to lanes of vector ones
                (f"the launcher does not pass {', '.join(hidden)}", not hidden),
            )
            found += [f"{kernel['.name']}: {text}" for text, holds in claims if not holds]
        return found

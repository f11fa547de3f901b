"""The text of one LLVM module: types, literals, declarations, attributes and metadata, each written once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from spirograd.base import dtypes as dt
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, Lanes, Type, Vec
from spirograd.base.options import CompileOptions
from spirograd.base.records import dataclass

if TYPE_CHECKING:
    from spirograd.llvmgen.function import BlockEntry

LLVM_TYPES: dict[DType, str] = {
    dt.u1: "i1",
    dt.i8: "i8",
    dt.u8: "i8",
    dt.i16: "i16",
    dt.u16: "i16",
    dt.i32: "i32",
    dt.u32: "i32",
    dt.i64: "i64",
    dt.u64: "i64",
    dt.f16: "half",
    dt.f32: "float",
    dt.f64: "double",
}


# The first parameter of functions that take the argument block. It is the caller's private copy: no kernel can write it.
BLOCK_PARAMETER = "ptr noalias nonnull readonly align 8 captures(none) %block"
# The attribute of functions for GPUs, which have no C library. Without it, LLVM turns stores and loops into `memset` and `memcpy`, and for
# NVIDIA's GPUs these into loops over bytes.
NO_LIBRARY = '"no-builtins"'
# Longer vectors live on the stack, which is five times as fast: LLVM spills an entire register for every run-time index. If indices become
# constant, LLVM splits arrays into scalars again.
LARGEST_REGISTER = 2


def is_array(t: Type) -> bool:
    """Return whether values of this type live in stack memory."""
    return isinstance(t, Vec) and t.n > LARGEST_REGISTER


def type_name(t: Type) -> str:
    """Return the LLVM type of a value."""
    if isinstance(t, DType):
        return LLVM_TYPES[t]
    if isinstance(t, (Vec, Lanes)):
        return f"<{t.n} x {LLVM_TYPES[t.elem]}>"
    raise TypeError(f"no LLVM value has type {t!r}")


def splat(text: str, t: Type) -> str:
    """Return ``text``, or the scalar in all lanes of a constant if ``t`` is lanes."""
    return f"splat ({type_name(t.elem)} {text})" if isinstance(t, Lanes) else text


def literal(value: bool | int | float, t: Type) -> str:
    """Return a constant, the same in all lanes if ``t`` is lanes. Floats are written as bits: a double's for f32 and f64 (exact for both),
    two bytes for f16."""
    if isinstance(t, Lanes):
        return splat(literal(value, t.elem), t)
    assert isinstance(t, DType)
    if t is dt.u1:
        return "true" if value else "false"
    if t is dt.f16:
        return f"0xH{int(np.float16(value).view(np.uint16)):04X}"
    if t.is_float:
        with np.errstate(all="ignore"):
            bits = np.float64(t.np.type(value)).view(np.uint64)
        return f"0x{int(bits):016X}"
    wrapped = int(value) & ((1 << t.bits) - 1)
    return str(wrapped - (1 << t.bits) if wrapped >> (t.bits - 1) else wrapped)


def returned_type(types: Sequence[Type]) -> str:
    """Return the type of the value that holds several results of a function."""
    return f"{{{', '.join(map(type_name, types))}}}"


def symbol(name: str) -> str:
    """Return ``name`` with characters that assemblers reject replaced."""
    return re.sub(r"[^A-Za-z0-9_.$]", "_", name) or "_"


def _no_function(name: str, lanes: int = 1) -> NoReturn:
    raise KeyError(name)


@dataclass(slots=True, eq=False)
class ModuleText:
    """The text of a module: collects declarations that functions refer to; `text` combines them.

    ``callee``: returns the text before and behind the arguments of a call of a function of the kernel, for a number of lanes.
    ``memory_callee``: returns the text before the arguments of a call of a function that accesses memory, and the entries of the argument
    block (`BlockEntry`) that follow them. ``stack_space``: the address space of stack memory. ``flags``: module flags.
    """

    caps: Capabilities
    options: CompileOptions
    stack_space: int = 0
    flags: Sequence[str] = ()
    functions: list[str] = field(default_factory=list)
    declarations: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, int] = field(default_factory=dict)
    metadata: list[str] = field(default_factory=lambda: ["!{}"])
    used: dict[str, None] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    uses_double_to_half: bool = False
    callee: Callable[[str, int], tuple[str, str]] = _no_function
    memory_callee: Callable[[str], tuple[str, Sequence[BlockEntry]]] = _no_function

    def declare(self, name: str, result: str, params: str, attributes: str = "") -> str:
        """Declare function ``name`` once. Return it as an operand of `call`."""
        if name not in self.declarations:
            self.declarations[name] = f"declare {result} @{name}({params}){attributes}"
        return f"@{name}"

    def define(self, name: str, text: str) -> str:
        """Define function ``name`` by its ``text`` once. Return it as an operand of `call`."""
        if name not in self.names:
            self.names.add(name)
            self.functions.append(text)
        return f"@{name}"

    def shared(self, name: str, kind: str) -> str:
        """Declare once a variable of type ``kind`` that a workgroup shares. Return it as an operand."""
        self.variables.setdefault(f"@{symbol(name)}", f"internal addrspace(3) global {kind} undef, align 16")
        return f"@{symbol(name)}"

    def stack(self, name: str, kind: str, align: int) -> str:
        """Return lines of the entry block that allocate stack memory for a ``kind``. Its address is ``name``, in the generic address
        space."""
        if not self.stack_space:
            return f"  {name} = alloca {kind}, align {align}"
        space = f"addrspace({self.stack_space})"
        return f"  {name}.own = alloca {kind}, align {align}, {space}\n  {name} = addrspacecast ptr {space} {name}.own to ptr"

    def attribute_group(self, text: str) -> str:
        """Return a reference to the attribute group with this text."""
        return f"#{self.attributes.setdefault(text, len(self.attributes))}"

    def node(self, text: str) -> str:
        """Return a reference to a new metadata node. ``{self}`` in the text stands for the node."""
        number = len(self.metadata)
        self.metadata.append(text.replace("{self}", f"!{number}"))
        return f"!{number}"

    def unique(self, name: str) -> str:
        """Return a symbol that this module does not have yet."""
        base = chosen = symbol(name)
        number = 1
        while chosen in self.names:
            chosen = f"{base}.{number}"
            number += 1
        self.names.add(chosen)
        return chosen

    def bytes_node(self, nbytes: int) -> str:
        """Return a reference to the metadata node for an alignment or another number of bytes."""
        text = f"!{{i64 {nbytes}}}"
        return f"!{self.metadata.index(text)}" if text in self.metadata else self.node(text)

    def text(self) -> str:
        """Return the text, and drop what defines functions: it refers to this module and to the kernel, which are freed at once then."""
        self.callee, self.memory_callee = _no_function, _no_function
        variables = [f"{name} = {text}" for name, text in self.variables.items()]
        parts = [*variables, *self.functions, *self.declarations.values()]
        if self.used:
            listed = ", ".join(f"ptr @{name}" for name in self.used)
            parts.append(f'@llvm.compiler.used = appending global [{len(self.used)} x ptr] [{listed}], section "llvm.metadata"')
        parts += [f"attributes #{number} = {{ {text} }}" for text, number in self.attributes.items()]
        parts += [f"!{number} = {text}" for number, text in enumerate([*self.metadata, *[f"!{{{flag}}}" for flag in self.flags]])]
        if self.flags:
            first = len(self.metadata)
            parts.append(f"!llvm.module.flags = !{{{', '.join([f'!{first + k}' for k in range(len(self.flags))])}}}")
        return "\n".join(parts) + "\n"

"""A builder of SPIR-V modules: sections, one id allocator, interned types and constants, capabilities that follow from use.

Everything is appended to lists of 32-bit words; `Module.to_bytes` joins the sections in the order of the specification (SPIR-V
specification, section 2.4, "Logical Layout of a Module").
"""

from __future__ import annotations

import linecache
import struct
import sys
from array import array
from collections.abc import Sequence

from spirograd.spirvgen.grammar import (
    CAPABILITY_EXTENSIONS,
    ENUMERANT_NEEDS,
    ENUMERANTS,
    INSTRUCTION_NEEDS,
    INSTRUCTIONS,
    MAGIC,
    OPCODES,
)

# Sections in order. Annotations and debug names may be added at any time, which is why each section is its own list.
SECTIONS = (
    *("capability", "extension", "import", "memory_model", "entry_point", "execution_mode"),
    *("string", "name", "annotation", "global", "function"),
)
_INT_CAPABILITIES = {8: "Int8", 16: "Int16", 64: "Int64"}
_FLOAT_CAPABILITIES = {16: "Float16", 64: "Float64"}
# A string literal may have 65,535 bytes, and a character takes at most four.
_SOURCE_PIECE = 16_000
_HAS_TYPE = {name: row[1].startswith("IdResultType") for name, row in INSTRUCTIONS.items()}


class ModuleError(AssertionError):
    """The generator built something that is not SPIR-V: a defect of the generator, never of the user's program."""


def text_words(text: str) -> tuple[int, ...]:
    """Return ``text`` as UTF-8, zero-terminated and padded to words."""
    data = text.encode() + b"\0"
    data += b"\0" * (-len(data) % 4)
    return struct.unpack(f"<{len(data) // 4}I", data)


# Reserved words of GLSL, HLSL, Metal and C++ that SPIRV-Cross (and so MoltenVK) does not rename.
_RESERVED_WORDS = (
    "in out inout uniform buffer shared sample patch centroid flat smooth noperspective precise invariant common partition active asm cast "
    "unsigned signed char short long half double int uint float bool void auto class struct union enum namespace template typename using "
    "typedef register static extern inline volatile const constexpr goto new delete operator private protected public friend virtual this "
    "throw try catch sizeof alignof decltype explicit export mutable default case switch device constant thread threadgroup kernel vertex "
    "fragment main and or not xor filter input output external interface noinline resource texture sampler superp hvec2 fixed"
)
_RESERVED = frozenset(_RESERVED_WORDS.split())


def _allowed(name: str) -> str:
    """Return ``name``, with an underscore if it is a reserved word of a translator."""
    return f"{name}_" if name in _RESERVED else name


def enumerant(kind: str, name: str) -> int:
    """Return the value of an enumerant. Raises KeyError if the grammar has none of that name."""
    return ENUMERANTS[kind][name]


class Module:
    """A module under construction.

    ``version`` is (major, minor). Types, constants and strings are interned: equal ones have one id. Capabilities and extensions follow
    from the instructions, enumerants and types in use.
    """

    def __init__(self, version: tuple[int, int], addressing: str, memory_model: str) -> None:
        self.version = version
        self.bound = 1
        self.sections: dict[str, list[int]] = {name: [] for name in SECTIONS}
        self.interface: list[int] = []
        # Whether to embed the text of source files, for tools that show it. It is large, and drivers do not use it.
        self.embeds_sources = False
        # Whether to embed files that are too long for one instruction, too.
        self.continues_sources = True
        self._capabilities: dict[str, None] = {}
        self._extensions: dict[str, None] = {}
        self._interned: dict[tuple[object, ...], int] = {}
        self._glsl = 0
        self.capability("Shader")
        self.use_enumerant("AddressingModel", addressing)
        self.use_enumerant("MemoryModel", memory_model)
        values = (enumerant("AddressingModel", addressing), enumerant("MemoryModel", memory_model))
        self.add("memory_model", "MemoryModel", *values)
        # In the memory model of Vulkan, accesses are private to the invocation unless they declare otherwise, barriers declare the order,
        # and scope Device requires a feature. In that of GLSL, all accesses are visible to all invocations.
        vulkan = memory_model == "Vulkan"
        self.shared_access = enumerant("MemoryAccess", "NonPrivatePointer") if vulkan else 0
        self.ordering = enumerant("MemorySemantics", "MakeAvailable") | enumerant("MemorySemantics", "MakeVisible") if vulkan else 0
        self.device_scope = enumerant("Scope", "QueueFamily" if vulkan else "Device")

    # --- words ---------------------------------------------------------------------------------------------------------

    def new_id(self) -> int:
        """Return a new result id."""
        fresh = self.bound
        self.bound = fresh + 1
        return fresh

    def add(self, section: str, name: str, *operands: int) -> None:
        """Append an instruction without a result to a section."""
        self.sections[section].extend(((len(operands) + 1) << 16 | OPCODES[name], *operands))

    def intern(self, name: str, *operands: int) -> int:
        """Return the id of the type, constant or other global with these operands (operand 0 is the type, if it has one)."""
        key = (name, *operands)
        known = self._interned.get(key)
        if known is None:
            known = self._interned[key] = self.add_global(name, *operands)
        return known

    def add_global(self, name: str, *operands: int) -> int:
        """Append a global instruction with a result, which is not interned."""
        self.require_instruction(name)
        rid = self.new_id()
        words = (operands[0], rid, *operands[1:]) if _HAS_TYPE[name] else (rid, *operands)
        self.add("global", name, *words)
        return rid

    def to_bytes(self) -> bytes:
        """Return the finished module, little endian."""
        self.sections["capability"] = [w for c in self._capabilities for w in (2 << 16 | OPCODES["Capability"], enumerant("Capability", c))]
        self.sections["extension"] = []
        for extension in self._extensions:
            self.add("extension", "Extension", *text_words(extension))
        words = array("I", (MAGIC, self.version[0] << 16 | self.version[1] << 8, 0, self.bound, 0))
        for section in SECTIONS:
            words.extend(self.sections[section])
        if sys.byteorder == "big":
            words.byteswap()
        return words.tobytes()

    # --- capabilities ----------------------------------------------------------------------------------------------------

    def capability(self, name: str) -> None:
        """Declare a capability, and the extension that brings it."""
        if name not in self._capabilities:
            self._capabilities[name] = None
            extension = CAPABILITY_EXTENSIONS.get(name)
            if extension is not None:
                self.extension(extension)

    def extension(self, name: str) -> None:
        """Declare an extension. Those that bring capabilities follow from these."""
        self._extensions[name] = None

    @property
    def capabilities(self) -> tuple[str, ...]:
        return tuple(self._capabilities)

    def _require_one(self, names: tuple[str, ...]) -> None:
        """Declare the first of ``names``, unless one of them is declared already."""
        if names and not any(n in self._capabilities for n in names):
            self.capability(names[0])

    def require_instruction(self, name: str) -> None:
        self._require_one(INSTRUCTION_NEEDS.get(name, ()))

    def use_enumerant(self, kind: str, name: str) -> int:
        """Return the value of an enumerant, and declare its capability."""
        self._require_one(ENUMERANT_NEEDS.get((kind, name), ()))
        return ENUMERANTS[kind][name]

    @property
    def glsl(self) -> int:
        """Return the id of the import of GLSL.std.450."""
        if not self._glsl:
            self._glsl = self.new_id()
            self.add("import", "ExtInstImport", self._glsl, *text_words("GLSL.std.450"))
        return self._glsl

    # --- types -----------------------------------------------------------------------------------------------------------

    @property
    def type_void(self) -> int:
        return self.intern("TypeVoid")

    @property
    def type_bool(self) -> int:
        return self.intern("TypeBool")

    def type_int(self, bits: int, signed: bool) -> int:
        if bits != 32:
            self.capability(_INT_CAPABILITIES[bits])
        return self.intern("TypeInt", bits, int(signed))

    def type_float(self, bits: int) -> int:
        if bits != 32:
            self.capability(_FLOAT_CAPABILITIES[bits])
        return self.intern("TypeFloat", bits)

    @property
    def u32(self) -> int:
        return self.type_int(32, False)

    def vector(self, element: int, count: int) -> int:
        return self.intern("TypeVector", element, count)

    def array(self, element: int, count: int) -> int:
        """Return an array without layout: for Function and Workgroup storage."""
        return self.intern("TypeArray", element, self.constant_u32(count))

    def pointer(self, storage: str, pointee: int) -> int:
        return self.intern("TypePointer", self.use_enumerant("StorageClass", storage), pointee)

    def block(self, members: Sequence[tuple[int, int, str]], name: str) -> int:
        """Return a new struct decorated as Block; ``members`` are (type, byte offset, name)."""
        rid = self.add_global("TypeStruct", *[m[0] for m in members])
        self.name(rid, name)
        self.decorate(rid, "Block")
        for k, (_, offset, label) in enumerate(members):
            self.add("annotation", "MemberDecorate", rid, k, enumerant("Decoration", "Offset"), offset)
            self.add("name", "MemberName", rid, k, *text_words(_allowed(label)))
        return rid

    def runtime_array_block(self, element: int, stride: int, name: str) -> int:
        """Return the interned type ``Block { element[] }``, the pointee of buffer addresses."""
        key = ("runtime_array_block", element, stride)
        known = self._interned.get(key)
        if known is None:
            elements = self.add_global("TypeRuntimeArray", element)
            self.decorate(elements, "ArrayStride", stride)
            known = self._interned[key] = self.block([(elements, 0, "data")], name)
        return known

    # --- constants -------------------------------------------------------------------------------------------------------

    def constant(self, type_id: int, *words: int) -> int:
        return self.intern("Constant", type_id, *words)

    def constant_u32(self, value: int) -> int:
        return self.intern("Constant", self.u32, value)

    def constant_bool(self, value: bool) -> int:
        return self.intern("ConstantTrue" if value else "ConstantFalse", self.type_bool)

    # --- variables, decorations, names -------------------------------------------------------------------------------------

    def global_variable(self, storage: str, pointee: int, name: str) -> int:
        """Add a variable outside of functions, which joins the interface of the entry point."""
        rid = self.add_global("Variable", self.pointer(storage, pointee), enumerant("StorageClass", storage))
        self.name(rid, name)
        self.interface.append(rid)
        return rid

    def storage_buffer(self, pointee: int, name: str, group: int, binding: int) -> int:
        """Add a StorageBuffer variable at a binding of a descriptor set."""
        rid = self.global_variable("StorageBuffer", pointee, name)
        self.decorate(rid, "DescriptorSet", group)
        self.decorate(rid, "Binding", binding)
        return rid

    def builtin(self, name: str, type_id: int) -> int:
        """Return the interned Input variable of a built-in."""
        key = ("builtin", name)
        variable = self._interned.get(key)
        if variable is None:
            variable = self._interned[key] = self.global_variable("Input", type_id, name)
            self.decorate(variable, "BuiltIn", self.use_enumerant("BuiltIn", name))
        return variable

    def decorate(self, target: int, decoration: str, *operands: int) -> None:
        self.add("annotation", "Decorate", target, self.use_enumerant("Decoration", decoration), *operands)

    def name(self, target: int, text: str) -> None:
        """Append OpName; empty names are omitted."""
        if text:
            self.add("name", "Name", target, *text_words(_allowed(text)))

    def string(self, text: str) -> int:
        """Return the id of an interned OpString."""
        key = ("string", text)
        known = self._interned.get(key)
        if known is None:
            known = self._interned[key] = self.new_id()
            self.add("string", "String", known, *text_words(text))
        return known

    def source(self, file: str) -> None:
        """Append OpSource for a source file (of language Unknown, because the grammar has no number for Python), with its text if
        requested."""
        text = "".join(linecache.getlines(file)) if self.embeds_sources else ""
        first, *rest = [text[k : k + _SOURCE_PIECE] for k in range(0, len(text), _SOURCE_PIECE)] or [""]
        if rest and not self.continues_sources:
            first, rest = "", []
        self.add("string", "Source", enumerant("SourceLanguage", "Unknown"), 0, self.string(file), *(text_words(first) if first else ()))
        for piece in rest:
            self.add("string", "SourceContinued", *text_words(piece))

    def entry_point(self, function: int, name: str, local_size: int) -> None:
        """Declare a compute entry point; call it when all global variables exist."""
        model = self.use_enumerant("ExecutionModel", "GLCompute")
        self.add("entry_point", "EntryPoint", model, function, *text_words(name), *self.interface)
        self.add("execution_mode", "ExecutionMode", function, self.use_enumerant("ExecutionMode", "LocalSize"), local_size, 1, 1)

    def reconverges(self, function: int) -> None:
        """Append the execution mode of SPV_KHR_maximal_reconvergence: invocations that take a path of the structured control flow run it
        together, in each iteration of each loop."""
        self.extension("SPV_KHR_maximal_reconvergence")
        self.add("execution_mode", "ExecutionMode", function, self.use_enumerant("ExecutionMode", "MaximallyReconvergesKHR"))

    def float_default(self, function: int, bits: int, permitted: int) -> None:
        """Append the execution mode of SPV_KHR_float_controls2 that says what drivers may do with floats of a width: a mask of
        FPFastMathMode. It also counts for instructions of GLSL.std.450. Does nothing if the module has no such floats so far."""
        t = self._interned.get(("TypeFloat", bits))
        if t is not None:
            mode = self.use_enumerant("ExecutionMode", "FPFastMathDefault")
            self.add("execution_mode", "ExecutionModeId", function, mode, t, self.constant_u32(permitted))

    def float_mode(self, function: int, mode: str, widths: Sequence[int]) -> None:
        """Append an execution mode of SPV_KHR_float_controls for all float types of these widths that the module has so far."""
        for bits in widths:
            if ("TypeFloat", bits) in self._interned:
                self.add("execution_mode", "ExecutionMode", function, self.use_enumerant("ExecutionMode", mode), bits)

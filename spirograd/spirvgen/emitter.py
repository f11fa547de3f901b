"""The emitter of one task, with its state: the module, the function, the SPIR-V id of every IR value, types and constants of IR types.

The table of `op_map` has the emitter of each operation; the functions are in ``emit_*.py``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping

from spirograd.base.artifact import Slot
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, Type, Vec, f16, f32, u1, u32, u64, unsigned
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.loc import Loc
from spirograd.base.options import CompileOptions
from spirograd.base.profiles import owner
from spirograd.ir import ops
from spirograd.ir.nodes import BufferRef, Op, Region, SharedRef
from spirograd.ir.ops import OpCode
from spirograd.spirvgen.function import Function
from spirograd.spirvgen.interfaces import StackSlots, TaskBuffers
from spirograd.spirvgen.module import Module

Handler = Callable[["Emitter", Op], None]
# The field of `Capabilities` that each type requires.
_NEEDED = {"i8": "int8", "u8": "int8", "i16": "int16", "u16": "int16", "i64": "int64", "u64": "int64", "f16": "float16", "f64": "float64"}
_FLOAT_FORMAT = {16: ("<e", "<H"), 32: ("<f", "<I"), 64: ("<d", "<Q")}


def _no_function(name: str) -> int:
    raise KeyError(name)


class Emitter:
    """The emitter of one task. ``ids`` maps IR values to SPIR-V ids; ``results`` the control operations to the ids of their results."""

    def __init__(
        self, module: Module, function: Function, caps: Capabilities, options: CompileOptions, handlers: Mapping[OpCode, Handler]
    ) -> None:
        self.m = module
        self.f = function
        self.caps = caps
        self.options = options
        self.handlers = handlers
        self.ids: dict[Op, int] = {}
        self.results: dict[Op, list[int]] = {}
        self.types: dict[Type, int] = {}
        self.constants: dict[tuple[DType, int], int] = {}
        self._zeros: dict[tuple[DType, int], int] = {}
        self._opaque_constants: dict[tuple[DType, float, bool], int] = {}
        self._lane_zeros: dict[DType, int] = {}
        self.loc: Loc | None = None
        self.slot_names: Mapping[Slot, str] = {}
        self.memory: TaskBuffers
        self.stack_slots: StackSlots
        self.shared: dict[SharedRef, int] = {}  # the variables of shared memory
        self.factors: dict[Op, dict[tuple[int, int], int]] = {}  # loaded factors of matrix products: by first row and column, the matrices
        self.claims: dict[BufferRef, int] = {}  # the variable with the number that this invocation has claimed, by counter
        self.grouped = False  # whether barriers of groups also order accesses to buffers
        self.callee: Callable[[str], int] = _no_function  # ids of functions, by name

    # --- regions -----------------------------------------------------------------------------------------------------------

    def run(self, region: Region) -> None:
        """Emit the operations of a region (whose parameters have ids) up to its terminator."""
        handlers = self.handlers
        line = self.f.line
        for op in region.ops[:-1]:
            code = op.code
            if code is not ops.const and code is not ops.result:
                loc = op.loc
                if loc is not None:
                    line(loc)
                self.loc = loc
            handlers[code](self, op)

    def at(self, loc: Loc | None) -> None:
        """Set the source location of the following instructions."""
        if loc is not None:
            self.f.line(loc)

    def yielded(self, region: Region) -> list[int]:
        """Return the ids of the values that the region yields."""
        return [self.id(a) for a in region.ops[-1].args]

    def id(self, value: Op) -> int:
        """Return the SPIR-V id of a value (for a large vector: of the array, which is loaded if necessary)."""
        known = self.ids.get(value)
        return self.stack_slots.load(value) if known is None else known

    # --- types -------------------------------------------------------------------------------------------------------------

    def type(self, t: Type) -> int:
        """Return the id of an IR type. Raises SpirogradUnsupportedError if the device lacks it."""
        known = self.types.get(t)
        if known is None:
            known = self.types[t] = self._new_type(t)
        return known

    def returned(self, t: Type) -> int:
        """Return the id of the type of a call: a structure for several results."""
        if t == ():
            return self.m.type_void
        return self.m.intern("TypeStruct", *map(self.type, t)) if isinstance(t, tuple) else self.type(t)

    def _new_type(self, t: Type) -> int:
        m = self.m
        if isinstance(t, Vec):
            element = self.type(t.elem)
            if t.n == 1:
                return element
            return m.vector(element, t.n) if t.n <= 4 else m.array(element, t.n)
        assert isinstance(t, DType), t
        if t is u1:
            return m.type_bool
        needed = _NEEDED.get(t.name)
        if needed is not None and not getattr(self.caps, needed):
            self.unsupported(f"values of type {t.name}", self.lacking(needed))
        return m.type_float(t.bits) if t.is_float else m.type_int(t.bits, t.is_signed)

    @property
    def address_type(self) -> int:
        """Return the type of a buffer's address: u64, or two words on devices without 64-bit integers."""
        return self.type(u64) if self.caps.int64 else self.m.vector(self.type(u32), 2)

    def pointer_from_address(self, pointee: int, address: int) -> int:
        """Return a physical pointer from an address of `address_type`."""
        return self.f.value("ConvertUToPtr" if self.caps.int64 else "Bitcast", self.m.pointer("PhysicalStorageBuffer", pointee), address)

    def lacking(self, capability: str) -> str:
        """Return the reason of a refusal: what lacks a capability, the device or the profile of the session."""
        return f"{owner(self.caps, capability)} lacks {capability}"

    def unsupported(self, what: str, why: str, loc: Loc | None = None) -> None:
        raise SpirogradUnsupportedError(f"{what} cannot be compiled: {why}", loc or self.loc)

    # --- constants ---------------------------------------------------------------------------------------------------------

    def const(self, value: bool | int | float, t: DType) -> int:
        """Return the id of a constant of a scalar type."""
        if t is u1:
            return self.m.constant_bool(bool(value))
        if t.is_float:
            number = float(value)
            if math.isinf(number) or math.isnan(number):
                return self._special_float(number, t)
            pack, unpack = _FLOAT_FORMAT[t.bits]
            bits = struct.unpack(unpack, struct.pack(pack, number))[0]
        else:
            bits = int(value)
        key = (t, bits)
        known = self.constants.get(key)
        if known is None:
            known = self.constants[key] = self.m.constant(self.type(t), *_words(bits, t))
        return known

    def _special_float(self, value: float, t: DType) -> int:
        """Return infinity or NaN. Not every consumer accepts them as constants, so the bits are cast, once, at the top of the function. A
        variable holds the bits if their cast may not be a constant, either.

        Those of f16 are converted from f32, because a device may have half floats without 16-bit integers.
        """
        pack, unpack = _FLOAT_FORMAT[t.bits]
        bits = struct.unpack(unpack, struct.pack(pack, value))[0]
        key = (t, bits)
        known = self.constants.get(key)
        if known is None:
            source = self.const(value, f32) if t is f16 else self.const(bits, unsigned(t))
            held = 0 if t is f16 or self.caps.special_constants else self.f.variable(self.type(unsigned(t)), "bits", source)
            with self.f.prologue():
                source = self.f.load(self.type(unsigned(t)), held) if held else source
                known = self.constants[key] = self.f.value("FConvert" if t is f16 else "Bitcast", self.type(t), source)
        return known

    def opaque_constant(self, value: float, t: DType) -> int:
        """Return a zero or an infinity that is opaque to drivers. Mesa simplifies x * 0 to 0 and x + 0 to x, with and without
        NoContraction, and NVIDIA's driver 0 * infinity of f64 to 0, as if NaN, infinities and negative zeros did not exist."""
        key = (t, value, math.copysign(1.0, value) < 0)
        known = self._opaque_constants.get(key)
        if known is None:
            with self.f.prologue():
                known = self._opaque_constants[key] = self.opaque(self.const(value, t), t)
        return known

    def opaque_ones(self, t: DType) -> int:
        """Return the integer whose bits are all ones, opaque to drivers."""
        zero = self._opaque_zero(unsigned(t), again=False)
        return self.bitcast(self.f.value("Not", self.type(unsigned(t)), zero), unsigned(t), t)

    def rounded(self, value: int, t: DType) -> int:
        """Return a float that drivers must not fuse or reorder with its uses. naga has no NoContraction."""
        if self.caps.target.naga:
            return self.opaque(value, t)
        if not self.caps.float_controls2:
            self.m.decorate(value, "NoContraction")
        return value

    def opaque(self, value: int, t: DType, again: bool = False) -> int:
        """Return a float with the bits of ``value``, opaque to drivers: a bitwise or with a number that is always zero. (Drivers would
        simplify two exclusive ors.) ``again``: use a different zero, for a value that may already be opaque."""
        if t is f16:
            wide = self.opaque(self.f.value("FConvert", self.type(f32), value), f32, again)
            return self.f.value("FConvert", self.type(f16), wide)
        if t.bits == 32 or self.caps.int64:
            bits, zero = self.type(unsigned(t)), self._opaque_zero(unsigned(t), again)
        else:
            bits, word = self.m.vector(self.type(u32), 2), self._opaque_zero(u32, again)
            zero = self.f.value("CompositeConstruct", bits, word, word)
        mixed = self.f.value("BitwiseOr", bits, self.f.value("Bitcast", bits, value), zero)
        return self.f.value("Bitcast", self.type(t), mixed)

    def _opaque_zero(self, t: DType, again: bool) -> int:
        """Return a zero that is opaque to compilers: the second coordinate of the workgroup, or with ``again`` the third (dispatches have
        one dimension)."""
        axis = 2 if again else 1
        known = self._zeros.get((t, axis))
        if known is None:
            word, vector = self.type(u32), self.m.vector(self.type(u32), 3)
            with self.f.prologue():
                zero = self.f.value("CompositeExtract", word, self.f.load(vector, self.m.builtin("WorkgroupId", vector)), axis)
                known = self._zeros[t, axis] = zero if t is u32 else self.f.value("UConvert", self.type(t), zero)
        return known

    def load_index(self, index: Op) -> int:
        """Return the index of a load, which looks different in each invocation to drivers that do not mask uniform loads."""
        at = self.ids[index]
        if not self.caps.unmasked_uniform_loads:
            return at
        assert isinstance(index.type, DType), index
        return self.f.value("IAdd", self.type(index.type), at, self._lane_zero(index.type))

    def _lane_zero(self, t: DType) -> int:
        """Return a zero that looks different in each invocation of a subgroup to compilers: x * (x + 1) is even."""
        known = self._lane_zeros.get(t)
        if known is None:
            word, one = self.type(u32), self.const(1, u32)
            self.m.capability("GroupNonUniform")
            with self.f.prologue():
                lane = self.f.load(word, self.m.builtin("SubgroupLocalInvocationId", word))
                product = self.f.value("IMul", word, lane, self.f.value("IAdd", word, lane, one))
                zero = self.f.value("BitwiseAnd", word, product, one)
                wide = zero if t.bits == 32 else self.f.value("UConvert", self.type(unsigned(t)), zero)
                known = self._lane_zeros[t] = self.bitcast(wide, unsigned(t), t)
        return known

    def bitcast(self, value: int, source: DType, target: DType) -> int:
        """Cast ``value`` of type ``source`` to ``target``, which has the same width."""
        return value if source is target else self.f.value("Bitcast", self.type(target), value)


def _words(bits: int, t: DType) -> tuple[int, ...]:
    """Return the words of a literal: 64-bit ones low word first; narrow ones sign- or zero-extended by their type."""
    if t.bits == 64:
        return (bits & 0xFFFFFFFF, bits >> 32 & 0xFFFFFFFF)
    return (bits & 0xFFFFFFFF,)

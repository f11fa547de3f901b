"""How each operation of device IR is spelled in SPIR-V: one table keyed by the entries of `ir.ops`.

Operations that are one instruction have a `Spelling`: the instruction for each kind of operand. A name that begins with ``glsl:`` is an
instruction of GLSL.std.450. The others are composed by the emitter (`COMPOSED`: the name of the file that does it) or never reach it
(`UNSUPPORTED`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from spirograd.ir import ops
from spirograd.ir.ops import OpCode


@dataclass(frozen=True, slots=True)
class Spelling:
    """Instruction per kind of the first operand ("float", "int", "uint", "bool"); empty: the operation does not take that kind."""

    float: str = ""
    int: str = ""
    uint: str = ""
    bool: str = ""

    def by_kind(self) -> dict[str, str]:
        return {kind: name for kind, name in (("float", self.float), ("int", self.int), ("uint", self.uint), ("bool", self.bool)) if name}


@dataclass(frozen=True, slots=True)
class COMPOSED:
    """Several instructions, by the code in ``where``."""

    where: str


@dataclass(frozen=True, slots=True)
class UNSUPPORTED:
    """Never reaches the emitter, for this reason."""

    reason: str


Entry = Union[Spelling, COMPOSED, UNSUPPORTED]


def _math(name: str) -> Spelling:
    return Spelling(float="glsl:" + name)


def _same(name: str, boolean: str = "") -> Spelling:
    return Spelling(int=name, uint=name, bool=boolean)


_KERNEL_ONLY = UNSUPPORTED("kernel IR only; lowered by layout")
_DERIVATIVES = UNSUPPORTED("kernel IR only; dropped before compilation")
_FLOORED = UNSUPPORTED("kernel IR only; lowered by legalize (OpSMod is wrong on some drivers)")

MAP: dict[OpCode, Entry] = {
    # structure
    ops.const: COMPOSED("emitter"),
    ops.param: UNSUPPORTED("listed in Region.params, never an operation of a region"),
    ops.result: COMPOSED("emit_control"),
    ops.yield_: UNSUPPORTED("the emitter of each construct reads it"),
    ops.if_: COMPOSED("emit_control"),
    ops.for_: COMPOSED("emit_control"),
    ops.while_: COMPOSED("emit_control"),
    ops.task: UNSUPPORTED("each task is a module, made by emit_task"),
    # arithmetic
    ops.add: Spelling("FAdd", "IAdd", "IAdd"),
    ops.sub: Spelling("FSub", "ISub", "ISub"),
    ops.mul: Spelling("FMul", "IMul", "IMul"),
    ops.div: Spelling("FDiv"),
    ops.idiv: Spelling("", "SDiv", "UDiv"),
    ops.irem: Spelling("", "SRem", "UMod"),
    ops.floordiv: _FLOORED,
    ops.floormod: _FLOORED,
    ops.neg: COMPOSED("emit_scalar"),
    ops.abs_: COMPOSED("emit_scalar"),
    ops.min_: COMPOSED("emit_scalar"),
    ops.max_: COMPOSED("emit_scalar"),
    ops.fma: _math("Fma"),
    # bits
    ops.and_: _same("BitwiseAnd", "LogicalAnd"),
    ops.or_: _same("BitwiseOr", "LogicalOr"),
    ops.xor: _same("BitwiseXor", "LogicalNotEqual"),
    ops.not_: _same("Not", "LogicalNot"),
    ops.shl: _same("ShiftLeftLogical"),
    ops.shr: Spelling("", "ShiftRightArithmetic", "ShiftRightLogical"),
    ops.popcnt: COMPOSED("emit_scalar"),
    ops.clz: COMPOSED("emit_scalar"),
    ops.ctz: COMPOSED("emit_scalar"),
    # comparison and choice
    ops.eq: Spelling("FOrdEqual", "IEqual", "IEqual", "LogicalEqual"),
    ops.ne: COMPOSED("emit_scalar"),
    ops.lt: Spelling("FOrdLessThan", "SLessThan", "ULessThan"),
    ops.le: Spelling("FOrdLessThanEqual", "SLessThanEqual", "ULessThanEqual"),
    ops.gt: Spelling("FOrdGreaterThan", "SGreaterThan", "UGreaterThan"),
    ops.ge: Spelling("FOrdGreaterThanEqual", "SGreaterThanEqual", "UGreaterThanEqual"),
    ops.select: COMPOSED("emit_scalar"),
    ops.cast: COMPOSED("emit_scalar"),
    ops.bitcast: COMPOSED("emit_scalar"),
    # math
    ops.sqrt: _math("Sqrt"),
    ops.rsqrt: _math("InverseSqrt"),
    ops.exp: _math("Exp"),
    ops.log: _math("Log"),
    ops.sin: _math("Sin"),
    ops.cos: _math("Cos"),
    ops.tan: _math("Tan"),
    ops.asin: _math("Asin"),
    ops.acos: _math("Acos"),
    ops.atan2: COMPOSED("emit_math"),
    ops.tanh: _math("Tanh"),
    ops.pow_: COMPOSED("emit_math"),
    ops.floor: _math("Floor"),
    ops.ceil: _math("Ceil"),
    ops.trunc: _math("Trunc"),
    ops.round_: _math("RoundEven"),
    ops.isnan: COMPOSED("emit_scalar"),
    ops.isinf: COMPOSED("emit_scalar"),
    # vectors
    ops.vec: COMPOSED("emit_vector"),
    ops.extract: COMPOSED("emit_vector"),
    ops.insert: COMPOSED("emit_vector"),
    # functions
    ops.call: COMPOSED("emit_control"),
    # arguments and memory
    ops.stop_grad: _DERIVATIVES,
    ops.recall: _DERIVATIVES,
    ops.arg: _KERNEL_ONLY,
    ops.shape: _KERNEL_ONLY,
    ops.seed: _KERNEL_ONLY,
    ops.tape_word: _KERNEL_ONLY,
    ops.row: COMPOSED("emit_workgroup"),
    ops.builtin: COMPOSED("emit_workgroup"),
    ops.slot: COMPOSED("buffers"),
    ops.load: COMPOSED("buffers"),
    ops.store: COMPOSED("buffers"),
    ops.atomic: COMPOSED("buffers"),
    ops.cas: COMPOSED("buffers"),
    ops.claim: COMPOSED("buffers"),
    ops.barrier: COMPOSED("buffers"),
    # workgroups
    ops.workgroup_barrier: COMPOSED("emit_workgroup"),
    ops.subgroup_reduce: COMPOSED("emit_workgroup"),
    ops.subgroup_shuffle: UNSUPPORTED("devices with subgroup_arithmetic reduce by one instruction"),
    # diagnostics
    ops.check: UNSUPPORTED("kernel IR only; lowered by diagnostics"),
    ops.print_: UNSUPPORTED("kernel IR only; lowered by diagnostics"),
}

# Math that GLSL.std.450 defines for 16- and 32-bit floats only; f64 has been expanded by expand_math.
NARROW_MATH = frozenset({ops.exp, ops.log, ops.sin, ops.cos, ops.tan, ops.asin, ops.acos, ops.atan2, ops.tanh, ops.pow_})
# Float arithmetic that a driver may fuse or reorder unless told not to.
CONTRACTIBLE = frozenset({ops.add, ops.sub, ops.mul, ops.div, ops.fma, ops.neg})

"""How LLVM spells each operation: a total table, keyed by the objects of the op table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from spirograd.base.dtypes import DType, Type
from spirograd.ir import ops
from spirograd.ir.ops import OpCode


@dataclass(frozen=True, slots=True)
class Instr:
    """An instruction of its operands, by their kind (u1 counts as unsigned); empty where the op does not take that kind."""

    signed: str
    unsigned: str
    float: str


@dataclass(frozen=True, slots=True)
class Compare:
    """Predicates of icmp (signed, unsigned) and fcmp."""

    signed: str
    unsigned: str
    float: str


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """`llvm.<name>.<type>`, by kind of operand; ``flag``: a trailing `i1 false` for the integer forms."""

    signed: str
    unsigned: str
    float: str
    flag: bool = False


@dataclass(frozen=True, slots=True)
class Math:
    """A function of libm: an intrinsic, or a call that the vector library knows."""

    name: str


@dataclass(frozen=True, slots=True)
class Emitted:
    """Written out by the method of FunctionEmitter with this name."""

    method: str


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Never reaches this back end, and why."""

    reason: str


Spelling = Union[Instr, Compare, Intrinsic, Math, Emitted, Unsupported]


def pick(spelling: Instr | Compare | Intrinsic, t: Type) -> str:
    """The spelling for operands of type ``t``."""
    assert isinstance(t, DType), t
    name = spelling.float if t.is_float else spelling.signed if t.is_signed else spelling.unsigned
    assert name, (spelling, t)
    return name


_GPU = Unsupported("the CPU has threads and lanes, no workgroups")
_KERNEL_LEVEL = Unsupported("kernel IR only: lowered before device IR")

OP_MAP: dict[OpCode, Spelling] = {
    ops.const: Emitted("const"),
    ops.param: Unsupported("parameters belong to a region and are bound by the operation that owns it"),
    ops.result: Emitted("result"),
    ops.yield_: Unsupported("the terminator is read by the operation that owns the region"),
    ops.if_: Emitted("if_"),
    ops.for_: Emitted("for_"),
    ops.while_: Emitted("while_"),
    ops.task: Unsupported("tasks are functions, made by emit_kernel"),
    # arithmetic
    ops.add: Instr("add", "add", "fadd"),
    ops.sub: Instr("sub", "sub", "fsub"),
    ops.mul: Instr("mul", "mul", "fmul"),
    ops.div: Instr("", "", "fdiv"),
    ops.idiv: Instr("sdiv", "udiv", ""),
    ops.irem: Instr("srem", "urem", ""),
    ops.floordiv: _KERNEL_LEVEL,
    ops.floormod: _KERNEL_LEVEL,
    ops.neg: Emitted("neg"),
    ops.abs_: Emitted("abs_"),
    ops.min_: Intrinsic("smin", "umin", "minnum"),
    ops.max_: Intrinsic("smax", "umax", "maxnum"),
    ops.fma: Emitted("fma"),
    # bits
    ops.and_: Instr("and", "and", ""),
    ops.or_: Instr("or", "or", ""),
    ops.xor: Instr("xor", "xor", ""),
    ops.not_: Emitted("not_"),
    ops.shl: Instr("shl", "shl", ""),
    ops.shr: Instr("ashr", "lshr", ""),
    ops.popcnt: Intrinsic("ctpop", "ctpop", ""),
    ops.clz: Intrinsic("ctlz", "ctlz", "", flag=True),
    ops.ctz: Intrinsic("cttz", "cttz", "", flag=True),
    # comparison and choice
    ops.eq: Compare("eq", "eq", "oeq"),
    ops.ne: Compare("ne", "ne", "une"),
    ops.lt: Compare("slt", "ult", "olt"),
    ops.le: Compare("sle", "ule", "ole"),
    ops.gt: Compare("sgt", "ugt", "ogt"),
    ops.ge: Compare("sge", "uge", "oge"),
    ops.select: Emitted("select"),
    ops.cast: Emitted("cast"),
    ops.bitcast: Emitted("bitcast"),
    # math
    ops.sqrt: Intrinsic("", "", "sqrt"),
    ops.rsqrt: Emitted("rsqrt"),
    ops.exp: Math("exp"),
    ops.log: Math("log"),
    ops.sin: Math("sin"),
    ops.cos: Math("cos"),
    ops.tan: Math("tan"),
    ops.asin: Math("asin"),
    ops.acos: Math("acos"),
    ops.atan2: Math("atan2"),
    ops.tanh: Math("tanh"),
    ops.pow_: Math("pow"),
    ops.floor: Intrinsic("", "", "floor"),
    ops.ceil: Intrinsic("", "", "ceil"),
    ops.trunc: Intrinsic("", "", "trunc"),
    # rint, not roundeven: the same under the default rounding mode, and every libm has it for CPUs without the instruction.
    ops.round_: Intrinsic("", "", "rint"),
    ops.isnan: Emitted("isnan"),
    ops.isinf: Emitted("isinf"),
    # vectors
    ops.vec: Emitted("vec"),
    ops.extract: Emitted("extract"),
    ops.insert: Emitted("insert"),
    # functions
    ops.call: Emitted("call"),
    # arguments
    ops.stop_grad: _KERNEL_LEVEL,
    ops.recall: _KERNEL_LEVEL,
    ops.arg: _KERNEL_LEVEL,
    ops.shape: _KERNEL_LEVEL,
    ops.seed: _KERNEL_LEVEL,
    ops.tape_word: _KERNEL_LEVEL,
    ops.row: Emitted("row"),
    ops.builtin: _GPU,
    ops.slot: Emitted("slot"),
    # memory
    ops.load: Emitted("load"),
    ops.store: Emitted("store"),
    ops.atomic: Emitted("atomic"),
    ops.cas: Emitted("cas"),
    ops.claim: Unsupported("for devices with very many invocations: here each worker has a row of the tapes"),
    ops.barrier: Emitted("barrier"),
    # workgroups
    ops.workgroup_barrier: _GPU,
    ops.subgroup_reduce: _GPU,
    ops.subgroup_shuffle: _GPU,
    # diagnostics
    ops.check: _KERNEL_LEVEL,
    ops.print_: _KERNEL_LEVEL,
}

# atomicrmw operations, by kind of element; None: lowered to a loop over cas before it gets here.
ATOMIC_MAP: dict[str, Instr | None] = {
    "add": Instr("add", "add", "fadd"),
    "mul": None,
    "min": Instr("min", "umin", "fmin"),
    "max": Instr("max", "umax", "fmax"),
    "and": Instr("and", "and", ""),
    "or": Instr("or", "or", ""),
    "xor": Instr("xor", "xor", ""),
    "exchange": Instr("xchg", "xchg", "xchg"),
}

"""The opcode mapping of SPIR-V: the emitter of each operation of `ops.ALL`.

Rows of `instructions` emit one instruction each. Functions of ``emit_*.py`` emit the other operations.
"""

from __future__ import annotations

from spirograd.ir import ops
from spirograd.ir.ops import OpCode
from spirograd.spirvgen import emit_control, emit_math, emit_matrices, emit_memory, emit_scalar, emit_vector, emit_workgroup
from spirograd.spirvgen.emitter import Handler
from spirograd.spirvgen.instructions import Glsl, Instr, Unsupported

_KERNEL_ONLY = Unsupported("kernel IR only; lowered by layout")
_DERIVATIVES = Unsupported("kernel IR only; dropped before compilation")
_FLOORED = Unsupported("kernel IR only; lowered by legalize (OpSMod is wrong on some drivers)")

OP_MAP: dict[OpCode, Handler] = {
    # structure
    ops.const: emit_scalar.emit_const,
    ops.param: Unsupported("listed in Region.params, never an operation of a region"),
    ops.result: emit_control.emit_result,
    ops.yield_: Unsupported("the emitter of each construct reads it"),
    ops.if_: emit_control.emit_if,
    ops.for_: emit_control.emit_for,
    ops.while_: emit_control.emit_while,
    **dict.fromkeys((ops.outlined, ops.stream), Unsupported("for the CPU")),
    ops.task: Unsupported("each task is a module, which emit_task defines"),
    # arithmetic
    ops.add: Instr("FAdd", "IAdd", "IAdd", contractible=True),
    ops.sub: emit_scalar.emit_sub,
    ops.mul: emit_scalar.emit_mul,
    ops.div: emit_scalar.emit_div,
    ops.idiv: Instr("", "SDiv", "UDiv"),
    ops.irem: Instr("", "SRem", "UMod"),
    ops.floordiv: _FLOORED,
    ops.floormod: _FLOORED,
    ops.neg: emit_scalar.emit_neg,
    ops.abs_: emit_scalar.emit_abs,
    ops.min_: emit_scalar.emit_clamp,
    ops.max_: emit_scalar.emit_clamp,
    ops.fma: Glsl("Fma", contractible=True),
    # bits
    ops.and_: Instr("", "BitwiseAnd", "BitwiseAnd", "LogicalAnd"),
    ops.or_: Instr("", "BitwiseOr", "BitwiseOr", "LogicalOr"),
    ops.xor: Instr("", "BitwiseXor", "BitwiseXor", "LogicalNotEqual"),
    ops.not_: Instr("", "Not", "Not", "LogicalNot"),
    ops.shl: Instr("", "ShiftLeftLogical", "ShiftLeftLogical"),
    ops.shr: Instr("", "ShiftRightArithmetic", "ShiftRightLogical"),
    ops.popcnt: emit_scalar.emit_bits,
    ops.clz: emit_scalar.emit_bits,
    ops.ctz: emit_scalar.emit_bits,
    # comparison and choice
    ops.eq: Instr("FOrdEqual", "IEqual", "IEqual", "LogicalEqual"),
    ops.ne: emit_scalar.emit_ne,
    ops.lt: Instr("FOrdLessThan", "SLessThan", "ULessThan"),
    ops.le: Instr("FOrdLessThanEqual", "SLessThanEqual", "ULessThanEqual"),
    ops.gt: Instr("FOrdGreaterThan", "SGreaterThan", "UGreaterThan"),
    ops.ge: Instr("FOrdGreaterThanEqual", "SGreaterThanEqual", "UGreaterThanEqual"),
    ops.select: emit_scalar.emit_select,
    ops.cast: emit_scalar.emit_cast,
    ops.bitcast: emit_scalar.emit_bitcast,
    ops.opaque: emit_scalar.emit_opaque,
    # math
    ops.sqrt: Glsl("Sqrt", invertible=True),
    ops.rsqrt: Glsl("InverseSqrt", invertible=True),
    ops.exp: Glsl("Exp", f64=False, invertible=True),
    ops.log: Glsl("Log", f64=False, invertible=True),
    ops.sin: Glsl("Sin", f64=False),
    ops.cos: Glsl("Cos", f64=False),
    ops.tan: Glsl("Tan", f64=False),
    ops.asin: Glsl("Asin", f64=False),
    ops.acos: Glsl("Acos", f64=False),
    ops.atan2: emit_math.emit_atan2,
    ops.tanh: Glsl("Tanh", f64=False),
    ops.pow_: Glsl("Pow", f64=False, invertible=True),
    ops.floor: Glsl("Floor"),
    ops.ceil: Glsl("Ceil"),
    ops.trunc: Glsl("Trunc"),
    ops.round_: Glsl("RoundEven"),
    ops.isnan: emit_scalar.emit_isnan,
    ops.isinf: emit_scalar.emit_isnan,
    # vectors
    ops.vec: emit_vector.emit_vec,
    ops.extract: emit_vector.emit_extract,
    ops.insert: emit_vector.emit_insert,
    # functions
    ops.call: emit_control.emit_call,
    ops.call_memory: emit_control.emit_call_memory,
    # arguments and memory
    ops.stop_grad: _DERIVATIVES,
    ops.recall: _DERIVATIVES,
    ops.with_partial: _DERIVATIVES,
    ops.arg: _KERNEL_ONLY,
    ops.shape: _KERNEL_ONLY,
    ops.address: _KERNEL_ONLY,
    ops.seed: _KERNEL_ONLY,
    ops.adstack_word: _KERNEL_ONLY,
    ops.thread_slot: emit_workgroup.emit_thread_slot,
    ops.builtin: emit_workgroup.emit_builtin,
    ops.slot: emit_memory.emit_slot,
    ops.load: emit_memory.emit_load,
    ops.store: emit_memory.emit_store,
    ops.atomic: emit_memory.emit_atomic,
    ops.cas: emit_memory.emit_cas,
    ops.claim: emit_memory.emit_claim,
    ops.barrier: emit_memory.emit_barrier,
    ops.clock: emit_memory.emit_clock,
    ops.stack_room: Unsupported("SPIR-V has no recursive functions"),
    # workgroups
    ops.workgroup_barrier: emit_workgroup.emit_workgroup_barrier,
    ops.subgroup_barrier: emit_workgroup.emit_subgroup_barrier,
    ops.subgroup_reduce: emit_workgroup.emit_subgroup_combine,
    ops.subgroup_scan: emit_workgroup.emit_subgroup_combine,
    ops.subgroup_read: emit_workgroup.emit_subgroup_read,
    ops.subgroup_ballot: emit_workgroup.emit_subgroup_ballot,
    ops.tile_entries: _KERNEL_ONLY,
    ops.tile_rows: _KERNEL_ONLY,
    ops.tile_product: _KERNEL_ONLY,
    ops.matrix_load: emit_matrices.emit_load,
    ops.matrix_store: emit_matrices.emit_store,
    ops.matrix_product: emit_matrices.emit_product,
    ops.subgroup_shuffle: Unsupported("devices with subgroup_arithmetic reduce by one instruction"),
    # diagnostics
    ops.check: Unsupported("kernel IR only; lowered by diagnostics"),
    ops.print_: Unsupported("kernel IR only; lowered by diagnostics"),
    ops.label: Unsupported("for the interpreter only"),
    **dict.fromkeys(ops.ON_LANES, Unsupported("for CPUs")),
}

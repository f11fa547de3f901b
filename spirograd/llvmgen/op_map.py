"""The opcode mapping of LLVM IR: the table from operation to emitter, keyed by the objects of the op table.

Operations that are one instruction or one call have a row that says which (`instructions`). Functions of ``emit_*.py`` emit the rest.
"""

from __future__ import annotations

from spirograd.ir import ops
from spirograd.ir.ops import OpCode
from spirograd.llvmgen import emit_control, emit_lanes, emit_memory, emit_outlined, emit_scalar, emit_stream, emit_vector
from spirograd.llvmgen.function import Handler
from spirograd.llvmgen.instructions import Compare, Division, Instr, Intrinsic, Math, Unsupported

_GPU = Unsupported("the CPU has threads and lanes, no workgroups")
_KERNEL_LEVEL = Unsupported("kernel IR only: lowered before device IR")

OP_MAP: dict[OpCode, Handler] = {
    ops.const: emit_scalar.emit_const,
    ops.param: Unsupported("parameters belong to a region and are bound by the operation that owns it"),
    ops.result: emit_control.emit_result,
    ops.yield_: Unsupported("the terminator is read by the operation that owns the region"),
    ops.if_: emit_control.emit_if,
    ops.for_: emit_control.emit_for,
    ops.while_: emit_control.emit_while,
    ops.outlined: emit_outlined.emit_outlined,
    ops.task: Unsupported("tasks are functions, which emit_kernel defines"),
    # arithmetic
    ops.add: Instr("add", "add", "fadd"),
    ops.sub: Instr("sub", "sub", "fsub"),
    ops.mul: Instr("mul", "mul", "fmul"),
    ops.div: Instr("", "", "fdiv"),
    ops.idiv: Division("sdiv", "udiv", ""),
    ops.irem: Division("srem", "urem", ""),
    ops.floordiv: _KERNEL_LEVEL,
    ops.floormod: _KERNEL_LEVEL,
    ops.neg: emit_scalar.emit_neg,
    ops.abs_: emit_scalar.emit_abs,
    ops.min_: Intrinsic("smin", "umin", "minnum"),
    ops.max_: Intrinsic("smax", "umax", "maxnum"),
    ops.fma: emit_scalar.emit_fma,
    # bits
    ops.and_: Instr("and", "and", ""),
    ops.or_: Instr("or", "or", ""),
    ops.xor: Instr("xor", "xor", ""),
    ops.not_: emit_scalar.emit_not,
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
    ops.select: emit_scalar.emit_select,
    ops.cast: emit_scalar.emit_cast,
    ops.bitcast: emit_scalar.emit_bitcast,
    ops.opaque: Unsupported("for drivers that compile modules: flags of each operation tell LLVM what it may do"),
    # math
    ops.sqrt: Intrinsic("", "", "sqrt"),
    ops.rsqrt: emit_scalar.emit_rsqrt,
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
    ops.isnan: emit_scalar.emit_isnan,
    ops.isinf: emit_scalar.emit_isinf,
    # vectors
    ops.vec: emit_vector.emit_vec,
    ops.extract: emit_vector.emit_extract,
    ops.insert: emit_vector.emit_insert,
    # functions
    ops.call: emit_control.emit_call,
    ops.call_memory: emit_control.emit_call_memory,
    # arguments
    ops.stop_grad: _KERNEL_LEVEL,
    ops.recall: _KERNEL_LEVEL,
    ops.with_partial: _KERNEL_LEVEL,
    ops.arg: _KERNEL_LEVEL,
    ops.shape: _KERNEL_LEVEL,
    ops.address: _KERNEL_LEVEL,
    ops.seed: _KERNEL_LEVEL,
    ops.adstack_word: _KERNEL_LEVEL,
    ops.thread_slot: emit_memory.emit_thread_slot,
    ops.builtin: _GPU,
    ops.slot: emit_memory.emit_slot,
    # memory
    ops.load: emit_memory.emit_load,
    ops.store: emit_memory.emit_store,
    ops.atomic: emit_memory.emit_atomic,
    ops.cas: emit_memory.emit_cas,
    ops.claim: Unsupported("for devices with very many invocations: here each worker has a thread slot"),
    ops.barrier: emit_memory.emit_barrier,
    ops.clock: emit_memory.emit_clock,
    ops.stream: emit_stream.emit_stream,
    ops.stack_room: emit_memory.emit_stack_room,
    # workgroups
    ops.workgroup_barrier: _GPU,
    ops.subgroup_barrier: _GPU,
    ops.subgroup_reduce: _GPU,
    ops.subgroup_scan: _GPU,
    ops.subgroup_read: _GPU,
    ops.subgroup_ballot: _GPU,
    ops.tile_entries: _KERNEL_LEVEL,
    ops.tile_rows: _KERNEL_LEVEL,
    ops.tile_product: _KERNEL_LEVEL,
    ops.matrix_load: _GPU,
    ops.matrix_store: _GPU,
    ops.matrix_product: _GPU,
    ops.subgroup_shuffle: _GPU,
    # lanes
    ops.splat: emit_lanes.emit_splat,
    ops.lane_const: emit_lanes.emit_lane_const,
    ops.load_lanes: emit_lanes.emit_load_lanes,
    ops.store_lanes: emit_lanes.emit_store_lanes,
    ops.store_compressed: emit_lanes.emit_store_compressed,
    ops.each_lane: emit_lanes.emit_each_lane,
    ops.reduce_lanes: emit_lanes.emit_reduce,
    ops.ballot_lanes: emit_lanes.emit_ballot,
    ops.lanes_of_bits: emit_lanes.emit_lanes_of_bits,
    ops.widen_mask: emit_lanes.emit_widen_mask,
    ops.narrow_mask: emit_lanes.emit_narrow_mask,
    ops.any_lane: emit_lanes.emit_any_lane,
    ops.lane_slots: emit_lanes.emit_lane_slots,
    # diagnostics
    ops.check: _KERNEL_LEVEL,
    ops.print_: _KERNEL_LEVEL,
    ops.label: _KERNEL_LEVEL,
}

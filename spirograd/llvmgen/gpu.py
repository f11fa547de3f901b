"""The code generator for GPUs: from device IR to the text of an LLVM module with one kernel function per task, which every invocation runs.

The differences between GPUs are in a `Dialect`: built-in variables, exchange of values, and barriers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import cast

from spirograd.base.artifact import GPU_STACK, ArgBlock, Slot
from spirograd.base.caps import COMMON, Capabilities
from spirograd.base.dtypes import DType, f32, f64, i32
from spirograd.base.options import CompileOptions
from spirograd.base.records import dataclass, replace
from spirograd.ir import ops
from spirograd.ir.congruences import Residues
from spirograd.ir.nodes import BufferRef, BuiltIn, Kernel, Op, Region, SharedRef, accesses_of
from spirograd.ir.ops import OpCode
from spirograd.llvmgen import abi, emit_control, emit_memory, emit_scalar, emit_vector
from spirograd.llvmgen.callees import Callees
from spirograd.llvmgen.function import FunctionEmitter, Handler
from spirograd.llvmgen.instructions import Math, Unsupported
from spirograd.llvmgen.members import Votes, votes_of
from spirograd.llvmgen.module import NO_LIBRARY, ModuleText, type_name
from spirograd.llvmgen.op_map import OP_MAP
from spirograd.llvmgen.partition import partition
from spirograd.llvmgen.ranges import SMALLEST_NORMAL_F32, is_at_least
from spirograd.llvmgen.task_memory import TaskMemory, written_by

# The alignment of the addresses of buffers, in bytes: devices allocate so, and reject memory from outside with another alignment.
BUFFER_ALIGNMENT = 16
# The most operations of a body that is unrolled, and how often. With 8 repetitions in place of 4, short loops spend their time in the
# remainder and take more registers. On an H200, with 8 and 4: loops of 3, 12, 20 and 200 iterations 6.5 and 6.0, 6.3 and 5.9, 6.8 and 6.3,
# 33 and 35 us; 65,536 bodies 10.4 and 10.5 ms; a step of Genesis, boxes in 30,000 environments, 6.37 and 6.15 ms.
_UNROLLED_LENGTH, _UNROLL = 48, 4
# The trip count, if known, from which short bodies are unrolled that many times: n-body, 65,536 bodies on an H200, takes 6.1 ms unrolled
# twice, 4.4 ms eight times, 3.0 ms 16 times, since the invocation waits for the first loads of a repetition.
_LONG_TRIP_COUNT, _SHORT_LENGTH, _MOST_UNROLL = 1024, 32, 32
# The least operations of a module that is worth a thread of its own, and the most modules of a kernel. (Contact detection of Genesis has
# 36,000 operations in 11 tasks, of which one has 20,000.)
_MODULE, _MODULES = 250, 16
# The most operations of a task for which registers are requested. Genesis on an H200: factors by tiles, of 6,300 operations, take 0.51 ms
# with 96 registers requested and 0.68 ms without, detection of contacts, of 20,264 operations, 0.607 ms with 128 and 0.545 ms without.
_FEW_REGISTERS = 8192
# The registers of an invocation whose loads overlap: the assembler takes some 32 otherwise, and n-body, 65,536 bodies on an H200, takes
# 3.57 ms in place of 2.45. Of workgroups of a subgroup, 32 fit on a multiprocessor, and all with 64 registers: sweeps over the links of an
# arm take 36, 57, 60, 90 and 32 us with 64, and 40, 60, 64, 127 and 37 us with 93 to 100 registers. Factors by tiles, whose entries lie in
# registers of the lanes, take 0.34 ms with 128, 0.43 with 64.
_OVERLAPPING, _SUBGROUP = 128, 64
# Operations that lanes run together, and how often a body with them is unrolled. LLVM does so only if no iterations are left over, and
# warns otherwise.
_UNROLL_TOGETHER = 8
_TOGETHER = ops.MEETING | {ops.subgroup_shuffle, ops.matrix_load, ops.matrix_store, ops.matrix_product, ops.claim}
_EXCHANGES = frozenset((ops.subgroup_shuffle, ops.subgroup_read))
_GLOBAL, _SHARED = "ptr addrspace(1)", "ptr addrspace(3)"
# Of the 4,096 bytes of arguments that every driver takes, some are reserved for arguments that it adds.
_ARGUMENT_BYTES = 4032
# The capabilities that GPUs of all dialects share. Each dialect adds its target, the architecture, and further capabilities.
CAPABILITIES = replace(
    COMMON,
    shared_f32_add=True,
    subgroup_shuffle=True,
    subgroup_read=True,
    max_group_size=1024,
    max_push_constants=_ARGUMENT_BYTES,
    exact_specials=(16, 32, 64),
    exact_subnormals=(16, 32, 64),
)
_EXPANDED = Unsupported("elementary functions have been expanded: LLVM ends the process for those that a GPU lacks")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The dialect of a GPU: operations for which LLVM IR has no common form.

    ``calling_convention``: the convention of kernel functions. ``block``, ``by_value``: the pointer that is their parameter, and its
    attribute. ``scope``: the scope of atomics between all invocations of the device. ``launch_bounds``: the attributes of a kernel function
    by the capabilities of the device, the size of its workgroups, and the registers to request. ``stack_space``: the address space of stack
    memory. ``atomic_metadata``: properties of the memory of atomics. ``module_flags``: module flags as metadata.

    The other members append instructions, and return the operand that holds the result. ``local``, ``workgroup``, ``lane``: the number of
    the invocation in its workgroup, of its workgroup in the dispatch, of the invocation in its subgroup; ``workgroups``: the number of
    workgroups in the dispatch. ``active``: the mask of the active lanes, an integer with a bit for each lane. ``rank``: the number of lanes
    of a mask below that of the invocation. ``from_first``: a 32-bit integer of the first active lane, given with the mask of the active
    ones. ``shuffle``: a 32-bit integer of the lane whose number differs in the bits of a mask; ``read``: of a lane given by its number.
    ``ballot``: an integer with a bit for each lane, set where an i1 is. ``reduce``: a 32-bit integer, of all lanes combined by a kind of
    `COMBINE`, given whether it is signed. ``barrier``, which has no result: waits for the workgroup. ``subgroup_barrier``: for the
    subgroup. ``has_members``: whether operations of subgroups name the lanes that take part, see `GpuEmitter.members`. ``clock``: an i64
    counter. ``matrix_load``, ``matrix_product``: the entries of these operations, typed. ``matrix_store`` has no result. ``rsqrt``: of f32,
    accurate to two units in the last place, given whether the argument is surely not subnormal. ``divide``: the entry of quotients of f32
    with fast math, ``root``: of square roots of f32; None: those of LLVM. ``anchor``: a value of some type, that LLVM computes here, not
    later; None: it needs no anchors.
    """

    calling_convention: str
    block: str
    by_value: str
    scope: str
    launch_bounds: Callable[[Capabilities, int, int], str]
    local: Callable[[GpuEmitter], str]
    workgroup: Callable[[GpuEmitter], str]
    workgroups: Callable[[GpuEmitter], str]
    lane: Callable[[GpuEmitter], str]
    active: Callable[[GpuEmitter], str]
    rank: Callable[[GpuEmitter, str], str]
    from_first: Callable[[GpuEmitter, str, str], str]
    shuffle: Callable[[GpuEmitter, str, int], str]
    read: Callable[[GpuEmitter, str, str], str]
    ballot: Callable[[GpuEmitter, str], str]
    reduce: Callable[[GpuEmitter, str, bool, str], str]
    barrier: Callable[[GpuEmitter], None]
    subgroup_barrier: Callable[[GpuEmitter], None]
    clock: Callable[[GpuEmitter], str]
    matrix_load: Callable[[GpuEmitter, Op], list[str]]
    matrix_store: Callable[[GpuEmitter, Op], None]
    matrix_product: Callable[[GpuEmitter, Op], list[str]]
    rsqrt: Callable[[GpuEmitter, str, bool], str]
    divide: Callable[[GpuEmitter, Op], str] | None = None
    root: Callable[[GpuEmitter, Op], str] | None = None
    anchor: Callable[[GpuEmitter, str, str], str] | None = None
    stack_space: int = 0
    atomic_metadata: str = ""
    has_members: bool = False
    module_flags: tuple[str, ...] = ()


class GpuEmitter(FunctionEmitter):
    """An emitter of the kernel function of a task. ``memory``: the metadata of its accesses; None: of a function.

    ``members``: an i32 with a bit for each lane of the subgroup that runs the current region; "" if all do. ``votes``: the code at begin
    and end of regions, see `members`. ``exchanges``: whether lanes read values of each other in the current one, not nested ones.
    """

    buffer_pointer = _GLOBAL

    def __init__(self, module: ModuleText, dialect: Dialect, group_size: int, memory: TaskMemory | None = None) -> None:
        super().__init__(module, HANDLERS)
        self.dialect = dialect
        self.group_size = group_size
        self.memory = memory
        self.wave = module.caps.subgroup_size
        self.atomic_scope = dialect.scope
        self.atomic_metadata = dialect.atomic_metadata
        self.members = ""
        self.votes: dict[Region, Votes] = {}
        self.exchanges = False
        self.residues = Residues()
        self.claims: dict[BufferRef, str] = {}  # counter -> the variable with the claim of the invocation

    def pointer_properties(self, slot: Slot) -> str:
        return f", !align {self.module.bytes_node(BUFFER_ALIGNMENT)}"

    def access_suffix(self, ref: BufferRef | SharedRef) -> str:
        return "" if self.memory is None or not isinstance(ref, BufferRef) else self.memory.suffix(ref)

    def stack_limit(self, name: str) -> list[str]:
        """Return the lines for a task. Its stack begins here and has `GPU_STACK` bytes, which the device was configured for."""
        here = f"call ptr {self.module.declare('llvm.stacksave.p0', 'ptr', '')}()"
        return [
            f"  {name}.begin = {here}",
            f"  {name}.address = ptrtoint ptr {name}.begin to i64",
            f"  {name} = sub i64 {name}.address, {GPU_STACK - abi.GPU_STACK_RESERVE}",
        ]

    def region(self, region: Region) -> list[str]:
        outer, self.exchanges = self.exchanges, any(op.code is ops.subgroup_read for op in region.ops)
        values = self._region(region)
        self.exchanges = outer
        return values

    def _region(self, region: Region) -> list[str]:
        votes = self.votes.pop(region, None)
        if votes is None:
            return super().region(region)
        outer, self.members = self.members, votes.members()
        values = super().region(region)
        if votes.vote is not None:
            votes.vote(values)
        self.members = outer
        return values

    def address(self, ref: object, index: Op) -> str:
        if not isinstance(ref, SharedRef):
            return super().address(ref, index)
        array, t = self.module.shared(f"{ref.name}.{ref.length}", f"[{ref.length} x {type_name(ref.dtype)}]"), type_name(index.type)
        return f"{_SHARED} {self.value(f'getelementptr inbounds {type_name(ref.dtype)}, {_SHARED} {array}, {t} {self.env[index]}')}"


def emit_kernel(
    kernel: Kernel, block: ArgBlock, dialect: Dialect, caps: Capabilities, options: CompileOptions, numbers: Sequence[int] | None = None
) -> str:
    """Return the module of ``kernel`` (device IR, tasks of kind "invocations"), with a function for each of `entry_names`. ``numbers``:
    of the tasks that the module has; None: all.

    A function takes the argument block by value, or its address if the block is larger than ``caps.max_push_constants``. Raises TypeError
    for an operation that device IR does not have.
    """
    module = ModuleText(caps, options, dialect.stack_space, dialect.module_flags)
    Callees(module, lambda: GpuEmitter(module, dialect, 1), kernel)
    by_address = block.size > caps.max_push_constants
    names = entry_names(kernel)
    for op, name in [(kernel.body.ops[k], names[k]) for k in (range(len(names)) if numbers is None else numbers)]:
        size = op.attr.group_size
        emitter = GpuEmitter(module, dialect, size, TaskMemory(module, written_by(op)))
        pointer, by_value = (_GLOBAL, "") if by_address else (dialect.block, f" {dialect.by_value}([{max(block.size, 1)} x i8]) align 8")
        param = f"{pointer}{by_value} %block" if pointer == "ptr" else f"{pointer}{by_value} %arguments"
        if pointer != "ptr":
            emitter.entry.append(f"  %block = addrspacecast {pointer} %arguments to ptr")
        (body,) = op.regions
        emitter.at(op.loc)
        emitter.last_uses.scan(body)
        emitter.region(body)
        bounds = dialect.launch_bounds(caps, size, _registers(body, size, caps.subgroup_size))
        group = module.attribute_group(f"nounwind {NO_LIBRARY} {bounds}")
        head = f"define {dialect.calling_convention} void @{name}({param}) {group}"
        module.functions.append(f"{head} {{\n{emitter.body_text()}\n  ret void\n}}\n")
    return f"; kernel {kernel.name}\n{module.text()}"


def emit_modules(
    kernel: Kernel, block: ArgBlock, dialect: Dialect, caps: Capabilities, options: CompileOptions
) -> tuple[list[str], list[int]]:
    """Return what `emit_kernel` returns, with the tasks of large kernels in several modules, and the number of the module of each task."""
    groups = partition(kernel, _MODULE, _MODULES)
    texts = [emit_kernel(kernel, block, dialect, caps, options, group) for group in groups]
    modules = {number: k for k, group in enumerate(groups) for number in group}
    return texts, [modules[number] for number in range(len(modules))]


def entry_names(kernel: Kernel) -> tuple[str, ...]:
    """Return the symbol of each task, in order: distinct identifiers that the assemblers of GPUs accept."""
    names = [re.sub(r"\W", "_", f"{kernel.name}_{op.attr.name or op.attr.kind}", flags=re.ASCII) for op in kernel.body.ops[:-1]]
    return tuple([f"k_{name}" if names.count(name) == 1 else f"k{number}_{name}" for number, name in enumerate(names)])


def _registers(task: Region, size: int, subgroup: int) -> int:
    """Return the registers to request for an invocation of a task in workgroups of ``size``, 0 to leave them to the assembler."""
    if sum(op.code not in (ops.const, ops.slot) for op in task.walk()) > _FEW_REGISTERS:
        return 0
    overlapping = _reads_in_loops(task)
    if size > subgroup or any(op.code is ops.matrix_product or (op.code.effect == "read" and op.type is f64) for op in task.walk()):
        return _OVERLAPPING if overlapping else 0
    in_lanes = not overlapping and any(op.code in _EXCHANGES for op in task.walk())
    return _OVERLAPPING if in_lanes else _SUBGROUP


def _reads_in_loops(task: Region) -> bool:
    """Return whether an iteration contains a loop that is unrolled, reads memory, and writes none."""
    inner = [op for outer in task.ops for region in outer.regions for op in region.walk() if op.code is ops.for_]
    return any(_unroll_count(op) and _effects(op) == {"read"} for op in inner)


def _effects(loop: Op) -> set[str]:
    """Return the effects of a loop on buffers, see `accesses_of`."""
    return {effect for region in loop.regions for op in region.walk() for effect, ref in accesses_of(op) if isinstance(ref, BufferRef)}


# --- operations --------------------------------------------------------------------------------------------------------


def _thread_slot(e: GpuEmitter, op: Op) -> None:
    first = e.value(f"mul i32 {e.dialect.workgroup(e)}, {e.group_size}")
    e.set(op, f"add i32 {first}, {e.dialect.local(e)}")


_BUILTINS: dict[BuiltIn, Callable[[GpuEmitter], str]] = {
    BuiltIn.LOCAL: lambda e: e.dialect.local(e),
    BuiltIn.WORKGROUPS: lambda e: e.dialect.workgroups(e),
    BuiltIn.LANE: lambda e: e.dialect.lane(e),
    BuiltIn.SUBGROUP: lambda e: e.value(f"lshr i32 {e.dialect.local(e)}, {e.wave.bit_length() - 1}"),
    BuiltIn.SUBGROUPS: lambda e: str(e.group_size // e.wave),
}


def _builtin(e: GpuEmitter, op: Op) -> None:
    e.env[op] = _BUILTINS[op.attr](e)


def _load(e: GpuEmitter, op: Op) -> None:
    pointer = e.address(op.attr, op.args[0])
    e.set(op, f"load {type_name(op.type)}, {pointer}, align {_alignment(e, op)}{e.access_suffix(op.attr)}")


def _store(e: GpuEmitter, op: Op) -> None:
    index, value = op.args
    e.line(f"store {e.typed(value)}, {e.address(op.attr, index)}, align {_alignment(e, op)}{e.access_suffix(op.attr)}")


def _alignment(e: GpuEmitter, access: Op) -> int:
    """Return the alignment of an access. LLVM looks at fewer operations, and merges only accesses that are aligned."""
    ref = access.attr
    size: int = ref.dtype.size
    if not isinstance(ref, BufferRef):
        return size
    return max(size, min(BUFFER_ALIGNMENT, size << e.residues.of(access.args[0]).zeros))


def _for(e: GpuEmitter, op: Op) -> None:
    """Emit a `for`. Short loops are unrolled: an invocation would otherwise idle while it waits for memory or for the previous result."""
    _vote(e, op)
    count = 0 if op.attr.vectorise == "rest" else _unroll_count(op)
    about = e.module.node(f'!{{!"llvm.loop.unroll.count", i32 {count}}}') if count else ""
    emit_control.emit_for(e, op, f", !llvm.loop {e.module.node(f'distinct !{{{{self}}, {about}}}')}" if count else "")


def _if(e: GpuEmitter, op: Op) -> None:
    _vote(e, op)
    emit_control.emit_if(e, op)


def _while(e: GpuEmitter, op: Op) -> None:
    _vote(e, op)
    emit_control.emit_while(e, op)


def _vote(e: GpuEmitter, op: Op) -> None:
    if e.dialect.has_members:
        e.votes.update(votes_of(e, op, lambda holds: e.dialect.ballot(e, holds), e.members))


def _unroll_count(loop: Op) -> int:
    """Return the unroll count of a loop; 0: LLVM decides."""
    operations = [inner for inner in loop.regions[0].walk() if inner.code not in (ops.const, ops.slot)]
    if len(operations) > _UNROLLED_LENGTH or any(inner.code in (ops.for_, ops.while_) for inner in operations):
        return 0
    first, end = loop.args[:2]
    constant = first.code is ops.const and end.code is ops.const
    trips = end.attr - first.attr if constant else 0
    together = not _TOGETHER.isdisjoint(loop.regions[0].codes)
    often = _UNROLL_TOGETHER if together else _UNROLL
    count = _MOST_UNROLL if trips >= _LONG_TRIP_COUNT and len(operations) <= _SHORT_LENGTH else often
    return 0 if together and (not trips or trips % count) else count


def _claim(e: GpuEmitter, op: Op) -> None:
    """Emit a claim. A variable keeps its number as long as the invocation runs; it is -1 before the claim."""
    held = e.claims.get(op.attr)
    if held is None:
        held = e.claims[op.attr] = e.name()
        e.entry += [e.module.stack(held, "i32", 4), f"  store i32 -1, ptr {held}"]
    claim, done = e.new_labels("claim", "claimed")
    free = e.value(f"icmp slt i32 {e.value(f'load i32, ptr {held}')}, 0")
    e.line(f"br i1 {free}, label %{claim}, label %{done}")
    e.start(claim)
    e.line(f"store i32 {_aggregated_increment(e, e.address(op.attr, op.args[0]))}, ptr {held}")
    e.goto(done)
    e.start(done)
    e.set(op, f"load i32, ptr {held}")


def _aggregated_increment(e: GpuEmitter, counter: str) -> str:
    """Add 1 to a counter (a typed pointer) for each active invocation, and return its value before. The first active invocation of a
    subgroup does so for all of them, by one atomic."""
    mask, active = f"i{e.wave}", e.dialect.active(e)
    rank = e.dialect.rank(e, active)
    leads = e.value(f"icmp eq i32 {rank}, 0")
    take, taken = e.new_labels("take", "taken")
    before = e.label
    e.line(f"br i1 {leads}, label %{take}, label %{taken}")
    e.start(take)
    count = e.value(f"call {mask} {e.module.declare(f'llvm.ctpop.{mask}', mask, mask)}({mask} {active})")
    if e.wave != 32:
        count = e.value(f"trunc {mask} {count} to i32")
    old = e.value(f"atomicrmw add {counter}, i32 {count}{e.atomic_scope} monotonic, align 4{e.atomic_metadata}")
    e.goto(taken)
    e.start(taken)
    own = e.value(f"phi i32 [ {old}, %{take} ], [ 0, %{before} ]")
    return e.value(f"add i32 {e.dialect.from_first(e, own, active)}, {rank}")


def _shuffle(e: GpuEmitter, op: Op) -> None:
    _by_words(e, op, lambda word: e.dialect.shuffle(e, word, op.attr))


def _read(e: GpuEmitter, op: Op) -> None:
    lane: str = e.env[op.args[1]]
    _by_words(e, op, lambda word: e.dialect.read(e, word, lane))


def _ballot(e: GpuEmitter, op: Op) -> None:
    e.env[op] = e.dialect.ballot(e, e.env[op.args[0]])


def _reduce(e: GpuEmitter, op: Op) -> None:
    e.env[op] = e.dialect.reduce(e, op.attr, op.type is i32, e.env[op.args[0]])


def _matrix_load(e: GpuEmitter, op: Op) -> None:
    emit_vector.set_vector(e, op, e.dialect.matrix_load(e, op))


def _matrix_store(e: GpuEmitter, op: Op) -> None:
    e.dialect.matrix_store(e, op)


def _matrix_product(e: GpuEmitter, op: Op) -> None:
    emit_vector.set_vector(e, op, e.dialect.matrix_product(e, op))


def _by_words(e: GpuEmitter, op: Op, exchange: Callable[[str], str]) -> None:
    """Apply ``exchange`` to the words of the first operand: narrow values are widened, those of 64 bits are split in two."""
    value, t = e.env[op.args[0]], op.type
    assert isinstance(t, DType)
    bits, kind = type_name(t), f"i{t.bits}"
    if bits != kind:
        value = e.value(f"bitcast {bits} {value} to {kind}")
    if kind == "i64":
        pair = e.value(f"bitcast i64 {value} to <2 x i32>")
        halves = [exchange(e.value(f"extractelement <2 x i32> {pair}, i32 {k}")) for k in range(2)]
        joined = "poison"
        for k, part in enumerate(halves):
            joined = e.value(f"insertelement <2 x i32> {joined}, i32 {part}, i32 {k}")
        value = e.value(f"bitcast <2 x i32> {joined} to i64")
    elif kind == "i32":
        value = exchange(value)
    else:
        wide = exchange(e.value(f"zext {kind} {value} to i32"))
        value = e.value(f"trunc i32 {wide} to {kind}")
    e.env[op] = value if bits == kind else e.value(f"bitcast {kind} {value} to {bits}")


def _rsqrt(e: GpuEmitter, op: Op) -> None:
    if op.type is f32 and e.module.options.fast_math:
        e.env[op] = e.dialect.rsqrt(e, e.env[op.args[0]], is_at_least(op.args[0], SMALLEST_NORMAL_F32))
    else:
        emit_scalar.emit_rsqrt(e, op)


def _div(e: GpuEmitter, op: Op) -> None:
    rounded_as_written = op.attr == "exact" or not e.module.options.fast_math
    if op.type is f32 and not rounded_as_written and e.dialect.divide is not None and not e.exchanges:
        e.env[op] = e.dialect.divide(e, op)
    else:
        OP_MAP[ops.div](e, op)


def _sqrt(e: GpuEmitter, op: Op) -> None:
    if op.type is f32 and e.dialect.root is not None and not e.exchanges:
        e.env[op] = e.dialect.root(e, op)
    else:
        OP_MAP[ops.sqrt](e, op)


def _fma(e: GpuEmitter, op: Op) -> None:
    """Emit a sum between exchanges in place. LLVM keeps the order of exchanges, and computes all else as late as possible: each value that
    lanes read of each other would be in a register of its own until then."""
    emit_scalar.emit_fma(e, op)
    if e.exchanges and e.dialect.anchor is not None and op.type in (f32, f64):
        assert isinstance(op.type, DType)
        e.env[op] = e.dialect.anchor(e, e.env[op], type_name(op.type))


def _barrier(e: GpuEmitter, op: Op) -> None:
    e.dialect.barrier(e)


def _subgroup_barrier(e: GpuEmitter, op: Op) -> None:
    e.dialect.subgroup_barrier(e)


def _clock(e: GpuEmitter, op: Op) -> None:
    e.env[op] = e.dialect.clock(e)


_OWN: dict[OpCode, Callable[[GpuEmitter, Op], None]] = {
    ops.thread_slot: _thread_slot,
    ops.builtin: _builtin,
    ops.load: _load,
    ops.store: _store,
    ops.atomic: emit_memory.emit_atomic,
    ops.if_: _if,
    ops.for_: _for,
    ops.while_: _while,
    ops.claim: _claim,
    ops.div: _div,
    ops.sqrt: _sqrt,
    ops.rsqrt: _rsqrt,
    ops.fma: _fma,
    ops.workgroup_barrier: _barrier,
    ops.subgroup_barrier: _subgroup_barrier,
    ops.clock: _clock,
    ops.subgroup_shuffle: _shuffle,
    ops.subgroup_read: _read,
    ops.subgroup_ballot: _ballot,
    ops.matrix_load: _matrix_load,
    ops.matrix_store: _matrix_store,
    ops.matrix_product: _matrix_product,
    ops.subgroup_reduce: _reduce,
    ops.subgroup_scan: Unsupported("neither PTX nor AMDGPU has an instruction for it"),
}
HANDLERS: dict[OpCode, Handler] = {
    **{code: _EXPANDED if isinstance(handler, Math) else handler for code, handler in OP_MAP.items()},
    **cast("dict[OpCode, Handler]", _OWN),
}

"""The code generator for CPUs: from IR of the level "loops" to the text of an LLVM module, with a function for each task, and a driver that
runs them in order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from itertools import chain

from spirograd.base import dtypes as dt
from spirograd.base.artifact import ArgBlock
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.chunk_loops import bound_range, loops_of
from spirograd.ir.fixed_chunks import FIXED_CHUNKS, SHORTEST_CHUNK
from spirograd.ir.nodes import BufferRef, Kernel, Op, Region, TaskAttr
from spirograd.llvmgen import abi, float_mode, half
from spirograd.llvmgen.callees import Callees
from spirograd.llvmgen.function import FunctionEmitter
from spirograd.llvmgen.module import BLOCK_PARAMETER, ModuleText, symbol
from spirograd.llvmgen.op_map import OP_MAP
from spirograd.llvmgen.partition import partition

# The least operations of a module that is worth a thread of its own, and the most modules of a kernel.
_MODULE, _MODULES = 100, 4
_LOADS = frozenset((ops.load, ops.load_lanes))


def entry_names(kernel: Kernel) -> tuple[str, ...]:
    """Return the symbol of each task, in order, as `emit_kernel` names them; each may have an uncontended variant. All are different, and
    none begins as the names of LLVM's own functions do."""
    names: list[str] = []
    taken: set[str] = set()
    for op in kernel.body.ops[:-1]:
        base = symbol(f"{kernel.name}.{op.attr.name or op.attr.kind}")
        base = f"_{base}" if base.startswith("llvm.") else base
        tries = itertools.chain([base], (f"{base}.{k}" for k in itertools.count(len(names))))
        name = next(x for x in tries if not {x, _uncontended(x)} & taken)
        taken |= {name, _uncontended(name)}
        names.append(name)
    return tuple(names)


def _uncontended(name: str) -> str:
    """Return the symbol of the uncontended variant of a task."""
    return f"{name}.uncontended"


def emit_kernel(kernel: Kernel, block: ArgBlock, caps: Capabilities, options: CompileOptions) -> str:
    """Return the module of ``kernel`` (level "loops"): functions `void task(ptr block[, i64 begin, i64 end, i32 slot, i32 lanes])` for the
    tasks, and the driver `sg_kernel`.

    Raises TypeError for an operation that this level does not have, ValueError for a slot that is not in ``block``.
    """
    (text,) = _emit(kernel, block, caps, options, [range(len(kernel.body.ops) - 1)])
    return text


def emit_modules(kernel: Kernel, block: ArgBlock, caps: Capabilities, options: CompileOptions) -> list[str]:
    """Return what `emit_kernel` returns, with the tasks of large kernels in several modules, which can be compiled at the same time."""
    return _emit(kernel, block, caps, options, partition(kernel, _MODULE, _MODULES))


def _emit(kernel: Kernel, block: ArgBlock, caps: Capabilities, options: CompileOptions, groups: Sequence[Sequence[int]]) -> list[str]:
    """Return a module for each of ``groups`` of tasks. The first one also has the driver."""
    _check_slots(kernel, block)
    tasks, names = kernel.body.ops[:-1], entry_names(kernel)
    linkage = "internal " if len(groups) == 1 else ""
    modules = []
    for group in groups:
        module = _module(kernel, caps, options)
        modules.append(module)
        for op, name in [(tasks[k], names[k]) for k in group]:
            assert op.code is ops.task and isinstance(op.attr, TaskAttr), op
            if op.attr.kind != "chunks":
                module.functions.append(_serial_task(module, op, name, linkage))
                continue
            module.functions.append(_chunk_task(module, op, name, op.regions[1], linkage))
            if len(op.regions) > 2:
                module.functions.append(_chunk_task(module, op, _uncontended(name), op.regions[2], linkage))
    first = modules[0]
    for group in groups[1:]:
        for op, name in [(tasks[k], names[k]) for k in group]:
            for entry in (name, _uncontended(name))[: max(len(op.regions) - 1, 1)]:
                first.declare(entry, "void", "ptr" if op.attr.kind != "chunks" else "ptr, i64, i64, i32, i32")
    first.functions.append(_driver(first, tasks, names))
    for module in modules:
        _add_half(module)
    return [f"; kernel {kernel.name}\n{module.text()}" for module in modules]


def _module(kernel: Kernel, caps: Capabilities, options: CompileOptions) -> ModuleText:
    """Return the text of a module that has no tasks yet."""
    module = ModuleText(caps, options)
    Callees(module, lambda: FunctionEmitter(module, OP_MAP), kernel)
    module.declare(abi.POOL_RUN, "void", "ptr, ptr, ptr, i64, i64, i64, i64, i64", " nounwind")
    module.declare(abi.POOL_UPDATE, "void", "ptr, ptr, ptr, ptr, i64, i64, i64, i64, i64, i64", " nounwind")
    return module


def optimisation_need(kernel: Kernel) -> int:
    """Return the level at which LLVM must optimise the code of ``kernel``.

    If all its parallel loops are vector loops, level 1 gives the same code as level 3. If the rest of its code runs once, level 0 suffices:
    without other loops, passes over IR that was simplified before cost much and gain nothing. Exceptions are vector loops that load an
    invariant address in each iteration, that take every n-th element of loaded vectors, which share masks, or that list iterations, for
    which scalar code is around.
    """
    tasks = [op for op in kernel.body.ops[:-1] if op.attr.kind == "chunks"]
    if not tasks or any(op.attr.grouped or any(loops_of(op, op.regions[1])) for op in tasks):
        return 3
    bodies = [op.regions[0] for task in tasks for op in task.regions[1].walk() if _is_vector_loop(op)]
    if any(op.attr.chunks.unit > 1 for op in tasks) or any(map(_needs_passes, bodies)):
        return 1
    once = [op for task in kernel.body.ops[:-1] for op in _runs_once(task)]
    return 1 if any(op.code in (ops.for_, ops.while_) for op in once) or any(len(op.regions) > 2 for op in tasks) else 0


def _is_vector_loop(op: Op) -> bool:
    return op.code is ops.for_ and op.attr.vectorise == "vectors"


def _runs_once(task: Op) -> Iterator[Op]:
    """Yield the operations of ``task`` that are not in the loops over a chunk."""
    if task.attr.kind != "chunks":
        return task.regions[0].walk()
    outside = [op for op in task.regions[1].ops if not any(map(_is_vector_loop, (op, *[o for r in op.regions for o in r.walk()])))]
    return chain(task.regions[0].walk(), outside, *[region.walk() for op in outside for region in op.regions])


def _needs_passes(body: Region) -> bool:
    return ops.store_compressed in body.codes or _rereads(body) or _loads_parts(body)


def _rereads(body: Region) -> bool:
    """Return whether a loop in ``body`` has a load whose address is the same in all its iterations."""
    inner = (region for op in body.walk() if op.code in (ops.for_, ops.while_) for region in op.regions)
    return any(op.code in _LOADS and op.args[0] in region.live_ins for region in inner for op in region.ops)


def _loads_parts(body: Region) -> bool:
    """Return whether a vector loop loads vectors and uses only a part of them."""
    return any(len(op.args) > 3 or (len(op.args) > 1 and op.attr[0] != 1) for op in body.walk() if op.code is ops.load_lanes)


def _check_slots(kernel: Kernel, block: ArgBlock) -> None:
    known = {(slot.offset, slot.kind) for slot in block.slots}
    used = [ref.slot for _, ref in kernel.accesses if isinstance(ref, BufferRef)]
    for slot in (*used, *[op.attr for op in kernel.having((ops.slot,))]):
        if (slot.offset, slot.kind) not in known:
            raise ValueError(f"{kernel.name}: {slot} is not in the argument block")


def _function(name: str, linkage: str, params: str, emitter: FunctionEmitter, attributes: str = "nounwind") -> str:
    return f"define {linkage}void @{name}({params}) {attributes} {{\n{emitter.body_text()}\n  ret void\n}}\n"


def _task(module: ModuleText, task: Op, name: str, linkage: str, params: str, emitter: FunctionEmitter) -> str:
    """Return the function of ``task``; if it flushes subnormal floats, with the function that calls it."""
    if not (module.options.flush_subnormals and float_mode.supported(module.caps) and float_mode.computes_floats(task)):
        return _function(name, linkage, params, emitter)
    inner = _function(f"{name}.flushed", "internal ", params, emitter, "noinline nounwind")
    return inner + float_mode.flushing(module, name, linkage, params)


def _serial_task(module: ModuleText, op: Op, name: str, linkage: str) -> str:
    emitter = FunctionEmitter(module, OP_MAP)
    emitter.function = name
    emitter.last_uses.scan(op.regions[0])
    emitter.region(op.regions[0])
    return _task(module, op, name, linkage, BLOCK_PARAMETER, emitter)


def _chunk_task(module: ModuleText, task: Op, name: str, body: Region, linkage: str) -> str:
    """Define the function of a chunk of ``task``, from one of its bodies, and return its symbol."""
    emitter = FunctionEmitter(module, OP_MAP)
    emitter.function = name
    emitter.at(task.loc)
    emitter.last_uses.scan(body)
    emitter.bind(body.params, ["%begin", "%end"])
    emitter.ranges.update(dict.fromkeys(body.params, bound_range(task)))
    emitter.region(body)
    params = f"{BLOCK_PARAMETER}, i64 %begin, i64 %end, i32 %slot, i32 %lanes"
    if not task.attr.chunks.fixed:
        return _task(module, task, name, linkage, params, emitter)
    module.declare("llvm.smin.i64", "i64", "i64, i64")
    chunk = _task(module, task, f"{name}.chunk", "internal ", params, emitter)
    return chunk + _fixed_chunks(name, linkage)


def _fixed_chunks(name: str, linkage: str) -> str:
    """Return the function that runs the fixed chunks ``%from`` to ``%to`` of a task, one after the other. ``%job``: the block, the range,
    and the length of a chunk."""
    return f"""define {linkage}void @{name}(ptr %job, i64 %from, i64 %to, i32 %slot, i32 %lanes) nounwind {{
entry:
  %block = load ptr, ptr %job
  %begin.at = getelementptr i64, ptr %job, i64 1
  %begin = load i64, ptr %begin.at
  %end.at = getelementptr i64, ptr %job, i64 2
  %end = load i64, ptr %end.at
  %length.at = getelementptr i64, ptr %job, i64 3
  %length = load i64, ptr %length.at
  br label %next
next:
  %k = phi i64 [ %from, %entry ], [ %following, %chunk ]
  %more = icmp slt i64 %k, %to
  br i1 %more, label %chunk, label %out
chunk:
  %offset = mul i64 %k, %length
  %low = add i64 %begin, %offset
  %limit = add i64 %low, %length
  %high = call i64 @llvm.smin.i64(i64 %limit, i64 %end)
  call void @{name}.chunk(ptr %block, i64 %low, i64 %high, i32 %slot, i32 %lanes)
  %following = add i64 %k, 1
  br label %next
out:
  ret void
}}
"""


def _fixed_job(emitter: FunctionEmitter, bounds: Sequence[str], work: int) -> str:
    """Return the arguments of the pool for a task of fixed chunks with these ``bounds``; see `fixed_chunk`. The range of the pool counts
    chunks."""
    value, line = emitter.value, emitter.line
    begin, end = bounds
    count = value(f"sub i64 {end}, {begin}")
    raised = value(f"add i64 {count}, {FIXED_CHUNKS - 1}")
    part = value(f"sdiv i64 {raised}, {FIXED_CHUNKS}")
    raised = value(f"add i64 {part}, 63")
    rounded = value(f"and i64 {raised}, -64")
    short = value(f"icmp slt i64 {rounded}, {SHORTEST_CHUNK}")
    length = value(f"select i1 {short}, i64 {SHORTEST_CHUNK}, i64 {rounded}")
    last = value(f"add i64 {length}, -1")
    raised = value(f"add i64 {count}, {last}")
    chunks = value(f"sdiv i64 {raised}, {length}")
    cost = value(f"mul i64 {length}, {work}")
    job = value("alloca [4 x i64]")
    for k, text in enumerate(("ptr %block", f"i64 {begin}", f"i64 {end}", f"i64 {length}")):
        place = value(f"getelementptr i64, ptr {job}, i64 {k}")
        line(f"store {text}, ptr {place}")
    return f"ptr {job}, i64 0, i64 {chunks}, i64 {cost}"


def _driver(module: ModuleText, tasks: tuple[Op, ...], names: tuple[str, ...]) -> str:
    emitter = FunctionEmitter(module, OP_MAP)
    for op, name in zip(tasks, names):
        if op.attr.kind != "chunks":
            emitter.line(f"call void @{name}(ptr %block)")
            continue
        bounds, chunks = op.regions[0], op.attr.chunks
        texts = emitter.region(bounds)
        wide = []
        for value, text in zip(bounds.results, texts):
            assert isinstance(value.type, DType)
            wide.append(emitter.resize(text, value.type, dt.i64))
        unit = chunks.unit
        if unit > 1:
            wide[:2] = [emitter.value(f"sdiv exact i64 {text}, {unit}") for text in wide[:2]]
        job = f"ptr %block, i64 {wide[0]}, i64 {wide[1]}, i64 {chunks.work * unit}"
        if chunks.fixed:
            job = _fixed_job(emitter, wide[:2], chunks.work * unit)
        room = f"i64 {wide[2] if len(wide) > 2 else abi.ANY_SLOTS}, i64 {chunks.lanes}"
        if chunks.uncontended_work:
            variant = f"ptr {f'@{_uncontended(name)}' if len(op.regions) > 2 else 'null'}"
            work = f"{job}, i64 {chunks.uncontended_work * unit}, {room}"
            emitter.line(f"call void @{abi.POOL_UPDATE}(ptr %pool, ptr @{name}, {variant}, {work})")
        else:
            emitter.line(f"call void @{abi.POOL_RUN}(ptr %pool, ptr @{name}, {job}, {room})")
    # The pool keeps the block alive during the call, so these are plain pointers.
    return _function(abi.DRIVER, "", "ptr nonnull align 8 %block, ptr %pool", emitter)


def _add_half(module: ModuleText) -> None:
    """Define the f16 conversions that the CPU lacks."""
    if module.uses_double_to_half:
        module.functions.append(half.double_to_half())
    if half.needs_library(module.caps) and any(" half" in text for text in module.functions):
        for name, text in half.library().items():
            module.functions.append(text)
            module.used[name] = None

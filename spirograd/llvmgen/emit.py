"""Device IR -> the text of an LLVM module for CPUs: one function per task, and a driver that runs them in order."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

from spirograd.base import dtypes as dt
from spirograd.base.artifact import ArgBlock
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.nodes import BufferRef, Kernel, Op, Region, TaskAttr
from spirograd.llvmgen import abi, half
from spirograd.llvmgen.callees import Callees, has_vector_forms
from spirograd.llvmgen.cost import cost_of, costs_of_calls
from spirograd.llvmgen.distributed import DistributedEmitter
from spirograd.llvmgen.divergent import DivergentEmitter
from spirograd.llvmgen.edges import find_edges, split_loop
from spirograd.llvmgen.function import FunctionEmitter
from spirograd.llvmgen.iterations import TaskEmitter
from spirograd.llvmgen.lane_groups import whole_vectors
from spirograd.llvmgen.lanes import MASKED_LANES, LaneEmitter, has_masks, lane_count
from spirograd.llvmgen.module import BLOCK_PARAMETER, ModuleText, literal, symbol
from spirograd.llvmgen.op_map import OP_MAP
from spirograd.llvmgen.parts import PartsEmitter, parts_of_iteration, parts_of_serial
from spirograd.llvmgen.rows import Rows, find_rows, index_ranges, row_loop
from spirograd.llvmgen.stages import find_stages
from spirograd.llvmgen.streaming import StreamingEmitter, find_streams
from spirograd.llvmgen.strides import prefers_scalar_iterations
from spirograd.llvmgen.uncontended import uncontended_body, updates_memory
from spirograd.llvmgen.uniform import Uniformity, is_adstack, lockstep

# Operations from which on a module of its own is worth a thread, and the most modules of a kernel.
_MODULE, _MODULES = 100, 4
_NOT_VECTORISED = '!{!"llvm.loop.vectorize.enable", i1 false}'


def entry_names(kernel: Kernel) -> tuple[str, ...]:
    """The symbol of each task, in order, as `emit_kernel` names them; each may have an uncontended variant. All are different, and none
    begins as the names of LLVM's own functions do."""
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
    """The symbol of the uncontended variant of a task."""
    return f"{name}.uncontended"


def emit_kernel(kernel: Kernel, block: ArgBlock, caps: Capabilities, options: CompileOptions) -> str:
    """The module of ``kernel`` (device IR): functions `void task(ptr block[, i64 begin, i64 end, i32 slot, i32 lanes])` for the tasks, and
    the driver `sg_kernel`.

    Raises TypeError for an operation that device IR does not have, ValueError for a slot that is not in ``block``.
    """
    (text,) = _emit(kernel, block, caps, options, [range(len(kernel.body.ops) - 1)])
    return text


def emit_modules(kernel: Kernel, block: ArgBlock, caps: Capabilities, options: CompileOptions) -> list[str]:
    """As `emit_kernel`, with the tasks of large kernels in several modules, which can be compiled at the same time."""
    return _emit(kernel, block, caps, options, _groups(kernel))


def _groups(kernel: Kernel) -> list[Sequence[int]]:
    """Numbers of tasks by module: of about the same size, each of which is worth a thread."""
    sizes = [sum([1 for region in op.regions for _ in region.walk()]) for op in kernel.body.ops[:-1]]
    count = max(min(sum(sizes) // _MODULE, _MODULES, len(sizes)), 1)
    groups: list[list[int]] = [[] for _ in range(count)]
    for number in sorted(range(len(sizes)), key=lambda k: -sizes[k]):
        min(groups, key=lambda group: sum([sizes[k] for k in group])).append(number)
    return [sorted(group) for group in groups]


def _emit(kernel: Kernel, block: ArgBlock, caps: Capabilities, options: CompileOptions, groups: Sequence[Sequence[int]]) -> list[str]:
    """A module for each of ``groups`` of tasks; the first one has the driver, too."""
    _check_slots(kernel, block)
    calls = costs_of_calls(kernel)
    tasks, names = kernel.body.ops[:-1], entry_names(kernel)
    linkage = "internal " if len(groups) == 1 else ""
    variants: dict[Op, str] = {}
    modules = []
    for group in groups:
        module = _module(kernel, caps, options)
        modules.append(module)
        for op, name in [(tasks[k], names[k]) for k in group]:
            assert op.code is ops.task and isinstance(op.attr, TaskAttr), op
            if op.attr.kind != "range_for":
                module.functions.append(_serial_task(module, op, name, linkage))
                continue
            # The iterations of a grouped task are groups, whose shared memory lies in the same place.
            module.functions.append(_range_task(module, op, name, op.regions[1], linkage))
            variant = None if op.attr.grouped else uncontended_body(op.regions[1], calls)
            if variant is not None:
                variants[op] = _uncontended(name)
                updated = frozenset([inner.attr[1] for inner in op.regions[1].walk() if inner.code is ops.atomic])
                module.functions.append(_range_task(module, op, variants[op], variant, linkage, updated))
    first = modules[0]
    for group in groups[1:]:
        for op, name in [(tasks[k], names[k]) for k in group]:
            for entry in (name, *([variants[op]] if op in variants else [])):
                first.declare(entry, "void", "ptr" if op.attr.kind != "range_for" else "ptr, i64, i64, i32, i32")
    first.functions.append(_driver(first, tasks, names, variants, calls))
    for module in modules:
        _add_half(module)
    return [f"; kernel {kernel.name}\n{module.text()}" for module in modules]


def _module(kernel: Kernel, caps: Capabilities, options: CompileOptions) -> ModuleText:
    """The text of a module without tasks yet."""
    module = ModuleText(caps, options)
    Callees(module, lambda: FunctionEmitter(module, OP_MAP), kernel)
    module.plain = frozenset(f.name for f in kernel.functions if has_vector_forms(f))
    module.declare(abi.POOL_RUN, "void", "ptr, ptr, ptr, i64, i64, i64, i64, i64", " nounwind")
    module.declare(abi.POOL_UPDATE, "void", "ptr, ptr, ptr, ptr, i64, i64, i64, i64, i64, i64", " nounwind")
    return module


def adstack_lanes(task: Op, caps: Capabilities, options: CompileOptions) -> int:
    """How many iterations of ``task`` (device IR) run in lockstep, each with its own thread slot."""
    if task.attr.kind != "range_for" or not any(map(is_adstack, task.regions[1].walk())):
        return 1
    return lane_count(caps) if _loop(task, options, has_masks(caps))[2] else 1


def optimisation_need(kernel: Kernel, caps: Capabilities, options: CompileOptions) -> int:
    """How far LLVM must optimise the code of ``kernel`` (device IR), as a level.

    If all its parallel loops run in lockstep, the code is vectors already: then 1, which gives the same code as 3. Nothing but them and
    code that runs once needs 0: without other loops, passes over IR that was simplified before cost much and gain nothing, unless loops
    load in each iteration what stays, or vectors of which they take every n-th element: those share masks.
    """
    tasks = [op for op in kernel.body.ops[:-1] if op.attr.kind == "range_for"]
    if not tasks or not all(_loop(op, options, has_masks(caps))[2] for op in tasks):
        return 3
    if any(_rereads(op.regions[1]) or _loads_parts(_loop(op, options, has_masks(caps))[2]) for op in tasks):
        return 1
    once = [region for op in kernel.body.ops[:-1] for region in (op.regions if op.attr.kind != "range_for" else op.regions[::2])]
    loops = any(op.code in (ops.for_, ops.while_) for region in once for op in region.walk())
    calls = costs_of_calls(kernel)
    return 1 if loops or any(uncontended_body(op.regions[1], calls) for op in tasks) else 0


def _rereads(body: Region) -> bool:
    """Whether a loop in ``body`` has a load whose address is the same in all its iterations."""
    inner = (region for op in body.walk() if op.code in (ops.for_, ops.while_) for region in op.regions)
    return any(op.code is ops.load and region.live_ins.issuperset(op.args) for region in inner for op in region.ops)


def _loads_parts(found: Uniformity | None) -> bool:
    """Whether a loop in lockstep has loads of vectors of which it takes a part."""
    if found is None:
        return False
    return found.groups is not None or any(op.code is ops.load and found.interleaved(op) for op in found.body.walk())


@functools.lru_cache(maxsize=8)
def _loop(task: Op, options: CompileOptions, masks: bool) -> tuple[Rows | None, Region, Uniformity | None]:
    """How a range task runs: by rows if it has rows; its body then; in lockstep if it can. ``masks``: as for `lockstep`."""
    if task.attr.grouped:
        return None, task.regions[1], None
    rows = find_rows(*task.regions[:2])
    body = task.regions[1] if rows is None else rows.body
    first, extent = (None, None) if rows is None else (rows.first, rows.extent)
    vectors = whole_vectors(task.regions[0], first, extent, MASKED_LANES) if masks else None
    return rows, body, lockstep(body, options, masks, vectors)


def _unit(task: Op, module: ModuleText) -> int:
    """How many iterations the pool hands out as one: those of a vector where each begins at a multiple of its lanes."""
    found = _loop(task, module.options, has_masks(module.caps))[2]
    return MASKED_LANES if found is not None and found.groups is not None else 1


def _check_slots(kernel: Kernel, block: ArgBlock) -> None:
    known = {(slot.offset, slot.kind) for slot in block.slots}
    used = [ref.slot for _, ref in kernel.accesses if isinstance(ref, BufferRef)]
    for slot in (*used, *[op.attr for op in kernel.walk() if op.code is ops.slot]):
        if (slot.offset, slot.kind) not in known:
            raise ValueError(f"{kernel.name}: {slot} is not in the argument block")


def _function(name: str, linkage: str, params: str, emitter: FunctionEmitter) -> str:
    return f"define {linkage}void @{name}({params}) nounwind {{\n{emitter.body_text()}\n  ret void\n}}\n"


def _serial_task(module: ModuleText, op: Op, name: str, linkage: str) -> str:
    emitter = PartsEmitter(module, OP_MAP, name, parts_of_serial(op.regions[0]))
    emitter.last_uses.scan(op.regions[0])
    emitter.region(op.regions[0])
    return _function(name, linkage, BLOCK_PARAMETER, emitter)


def _range_task(module: ModuleText, op: Op, name: str, body: Region, linkage: str, updated: frozenset[BufferRef] = frozenset()) -> str:
    """The loop over [begin, end) of one chunk, then `finish` on what it accumulated. ``body``: that of ``op``, or the same without atomics,
    which updates the memory ``updated``: there its iterations are not independent."""
    bounds, _, finish = op.regions
    if not updated:
        rows, body, found = _loop(op, module.options, has_masks(module.caps))
    else:
        rows, found = find_rows(bounds, body), None
        body = body if rows is None else rows.body
    outer = () if rows is None else (rows.row, rows.first, *rows.of_row)
    unlike = prefers_scalar_iterations(body, outer)
    # Iterations of a parallel loop are independent by definition: LLVM need not prove it.
    group = module.node("distinct !{}")
    parallel = module.node(f'!{{!"llvm.loop.parallel_accesses", {group}}}')

    def about(independent: bool) -> tuple[str, str]:
        """Metadata of accesses in a loop, and of its branch back."""
        properties = [parallel] if independent else []
        if unlike or not independent:
            properties.append(module.node(_NOT_VECTORISED))
        return f", !llvm.access.group {group}" if independent else "", module.node(f"distinct !{{{', '.join(['{self}', *properties])}}}")

    independent = not updated and not op.attr.grouped
    memory_suffix, loop = about(independent)
    edges = None
    if independent and not unlike and found is None and not op.attr.reductions:
        edges = find_edges(body, None, bounds.results[1]) if rows is None else find_edges(body, rows.first, rows.extent)
    emitter = _emitter(module, memory_suffix, name, op, body, found, updated, lambda part: about(independent or not _writes(part, updated)))
    emitter.at(op.loc)
    emitter.ranges.update(index_ranges(bounds, body, rows))
    for region in (body, finish, *([] if edges is None else [edges.inside])):
        emitter.last_uses.scan(region)
    index = body.params[0].type
    assert isinstance(index, DType)
    begin, end = _resized_bounds(emitter, index, _unit(op, module))
    reductions = op.attr.reductions
    initial = [literal(r.start, r.dtype) for r in reductions]
    types, suffix = [r.dtype for r in reductions], f", !llvm.loop {loop}"
    if rows is not None:
        values = row_loop(emitter, rows, edges, begin, end, types, initial, suffix)
    elif edges is not None:
        values = []
        split_loop(emitter, edges, begin, end, begin, body, suffix)
    else:
        values = emitter.iterations(index, begin, end, types, initial, body, suffix)
    if reductions:
        emitter.memory_suffix = ""
        emitter.bind(finish.params, values)
        emitter.region(finish)
    return _function(name, linkage, f"{BLOCK_PARAMETER}, i64 %begin, i64 %end, i32 %slot, i32 %lanes", emitter)


def _emitter(
    module: ModuleText,
    memory_suffix: str,
    name: str,
    op: Op,
    body: Region,
    found: Uniformity | None,
    updated: frozenset[BufferRef],
    about: Callable[[Region], tuple[str, str]],
) -> TaskEmitter:
    """What emits the range task ``op`` as function ``name``. ``about``: makes the metadata of the loop over a stage. ``body``, ``updated``:
    as for `_range_task`."""
    if found is not None:
        return (DivergentEmitter if found.divergent else LaneEmitter)(module, OP_MAP, found, op.attr.reductions)
    if op.attr.grouped:  # in one function, on whose stack its memory lies
        return TaskEmitter(module, OP_MAP, name, {}, memory_suffix)
    # One thread may run iterations that update memory in any order, as long as each update is complete.
    stages, parts = find_stages(body, updated), parts_of_iteration(body)
    streams = () if stages or parts or op.attr.reductions or not memory_suffix else find_streams(op, module.caps)
    if streams:
        return StreamingEmitter(module, OP_MAP, name, memory_suffix, body, streams)
    if stages is None:
        return TaskEmitter(module, OP_MAP, name, parts, memory_suffix)
    return DistributedEmitter(module, OP_MAP, name, parts, stages, lambda stage: about(stage.body))


def _writes(region: Region, memory: frozenset[object]) -> bool:
    """Whether ``region`` stores to some of ``memory``."""
    return any(op.code is ops.store and op.attr in memory for op in region.walk())


def _resized_bounds(emitter: FunctionEmitter, index: DType, unit: int) -> tuple[str, str]:
    """%begin and %end as the index type. ``unit``: so many iterations they count as one."""
    bounds = ["%begin", "%end"]
    if unit > 1:
        bounds = [emitter.value(f"mul i64 {bound}, {unit}") for bound in bounds]
    begin, end = (emitter.resize(bound, dt.i64, index) for bound in bounds)
    return begin, end


def _driver(module: ModuleText, tasks: tuple[Op, ...], names: tuple[str, ...], variants: dict[Op, str], calls: Mapping[str, int]) -> str:
    """``variants``: the uncontended variants of tasks. ``calls``: as for `cost_of`."""
    emitter = FunctionEmitter(module, OP_MAP)
    for op, name in zip(tasks, names):
        if op.attr.kind != "range_for":
            emitter.line(f"call void @{name}(ptr %block)")
            continue
        bounds, body, _ = op.regions
        texts = emitter.region(bounds)
        wide = []
        for value, text in zip(bounds.results, texts):
            assert isinstance(value.type, DType)
            wide.append(emitter.resize(text, value.type, dt.i64))
        unit = _unit(op, module)
        if unit > 1:
            wide[:2] = [emitter.value(f"sdiv exact i64 {text}, {unit}") for text in wide[:2]]
        job = f"ptr %block, i64 {wide[0]}, i64 {wide[1]}, i64 {cost_of(body, calls) * unit}"
        room = f"i64 {wide[2] if len(wide) > 2 else abi.ANY_SLOTS}, i64 {adstack_lanes(op, module.caps, module.options)}"
        if updates_memory(op):
            variant = f"ptr {'@' + variants[op] if op in variants else 'null'}"
            work = f"{job}, i64 {cost_of(body, calls, uncontended=True) * unit}, {room}"
            emitter.line(f"call void @{abi.POOL_UPDATE}(ptr %pool, ptr @{name}, {variant}, {work})")
        else:
            emitter.line(f"call void @{abi.POOL_RUN}(ptr %pool, ptr @{name}, {job}, {room})")
    # Plain pointers here: the pool holds on to the block while the call lasts.
    return _function(abi.DRIVER, "", "ptr nonnull align 8 %block, ptr %pool", emitter)


def _add_half(module: ModuleText) -> None:
    """Define the f16 conversions that the CPU lacks."""
    if module.uses_double_to_half:
        module.functions.append(half.double_to_half())
    if half.needs_library(module.caps) and any(" half" in text for text in module.functions):
        for name, text in half.library().items():
            module.functions.append(text)
            module.used[name] = None

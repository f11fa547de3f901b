"""The whole pipeline: kernel IR in, an artifact that the runtime can load out.

`compile_kernel` lists the passes in order. Each takes a kernel and the context and returns a kernel of the level that stands beside it
(`ir.spec`): "kernel" until `layout`, which replaces symbolic memory by buffers; "lowering", in which operations of both levels may stand;
"device", where only what a device has is left; "loops" at the end for the CPU, whose loops are planned in IR. The argument block and
the numbers of fault and print sites are fixed by `_Pipeline.describe`, before lowering: no later pass may add an argument or a site.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spirograd.analysis.adstacks import adstacks_of
from spirograd.analysis.compared_arrays import compared_arrays
from spirograd.analysis.effects import effects
from spirograd.analysis.order import changes_for_order
from spirograd.analysis.sites import collect_sites
from spirograd.analysis.sizes import size_of
from spirograd.analysis.temps import growth_of_temps, temp_offsets
from spirograd.analysis.work import work_of
from spirograd.analysis.workgroups import group_size, strides
from spirograd.base.artifact import CompiledKernel, SpaceLimit, Stage, TaskInfo
from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.loc import Loc
from spirograd.base.options import LOOPS, CompileOptions
from spirograd.base.python_limits import deep_recursion, gc_paused
from spirograd.base.records import replace
from spirograd.base.sizes.size_nodes import IfLess, Size, walk
from spirograd.base.spans import span
from spirograd.base.targets import TARGETS, Generator
from spirograd.ir import ops
from spirograd.ir.nodes import AdstackRef, Kernel, Op, TaskAttr
from spirograd.ir.text import to_text_with_locs
from spirograd.kernel_key import kernel_key
from spirograd.transforms.checks.check_capabilities import check_capabilities
from spirograd.transforms.conditional import (
    add_uncontended,
    assume_disjoint,
    block_copies,
    carry_elements,
    carry_vectors,
    check_barriers,
    check_bounds,
    check_loops,
    check_order,
    check_overflow,
    check_recursion,
    contract,
    demote_atomics,
    diagnostics,
    distribute,
    divergence_sites,
    divide_by_floats,
    divide_sums,
    drop_stop_grad,
    exact_extrema,
    exact_sums,
    expand_math,
    fission_groups,
    fuse_loops,
    gather,
    hoist_space_checks,
    inline_some,
    keep_tile_entries,
    late_stores,
    loops_in_order,
    lower_atomics,
    lower_remainder,
    lower_tasks,
    outline_parts,
    place_adstacks,
    private_copies,
    reassociate,
    reductions,
    separate_arrays,
    size_groups,
    split_int64,
    split_rows,
    take_space_limits,
    widen_narrow_types,
)
from spirograd.transforms.loops.chunk_tasks import chunk_tasks
from spirograd.transforms.loops.split_edges import split_edges
from spirograd.transforms.loops.stream_stores import stream_stores
from spirograd.transforms.loops.vectorise import vectorise
from spirograd.transforms.lowering.layout import arg_block, layout
from spirograd.transforms.lowering.legalize import legalize
from spirograd.transforms.lowering.native_atomics import unfinished_sites
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.dce import dce
from spirograd.transforms.simplification.simplify import simplify, simplify_lowered
from spirograd.transforms.tasks.forward_memory import forward_memory
from spirograd.transforms.tasks.offload import offload

if TYPE_CHECKING:
    from spirograd.ir.interp_state import OnOp
    from spirograd.transforms.tasks.fuse import Decision

Pass = Callable[[Kernel, PassContext], Kernel]

# Each workgroup of a reduction ends with an atomic: few of them, for speed and because each one rounds; enough to fill large GPUs. Sum of
# 512 MiB on an H200: 0.144 ms with 512 groups (Vulkan 0.425), 0.125 with 1,056 (0.237), no less with 4,224.
_REDUCTION_GROUPS = 1024
# The passes from device IR to what the code generator for the CPU accepts.
LOOP_PASSES: tuple[Pass, ...] = (
    chunk_tasks,
    add_uncontended,
    split_rows,
    divide_by_floats,
    vectorise,
    split_edges,
    distribute,
    outline_parts,
    stream_stores,
)


def compile_kernel(
    kernel: Kernel,
    caps: Capabilities,
    options: CompileOptions,
    key: str | None = None,
    on_op: OnOp | None = None,
    generate: bool = True,
) -> CompiledKernel:
    """Compile ``kernel`` (kernel IR, before `offload`) for a device with ``caps``.

    ``key``: its `kernel_key`, if known. ``on_op``: for the interpreter, called after each operation. ``generate``: False for the stages of
    IR only. Raises SpirogradUnsupportedError for what the device or target cannot do, IRError for broken IR (a defect of the compiler).
    """
    with gc_paused(), deep_recursion():
        # In a call, so that the IR is freed before the cycle collector runs again, which would visit all of it.
        return _compiled(kernel, caps, options, key, on_op, generate)


def _compiled(
    kernel: Kernel, caps: Capabilities, options: CompileOptions, key: str | None, on_op: OnOp | None, generate: bool
) -> CompiledKernel:
    """Run all passes, and generate code: see `compile_kernel`."""
    run = _Pipeline(caps, options, kernel)
    key = key or kernel_key(kernel, caps, options)
    run.begin(kernel)
    kernel = run.apply(drop_stop_grad, kernel, "kernel")
    kernel = run.apply(hoist_space_checks, kernel, "kernel")
    kernel = run.apply(check_barriers, kernel, "kernel")
    kernel = run.apply(exact_extrema, kernel, "kernel")
    kernel = run.apply(inline_some, kernel, "kernel")
    kernel = run.apply(check_recursion, kernel, "kernel")
    kernel = run.apply(check_overflow, kernel, "kernel")
    kernel = run.apply(check_bounds, kernel, "kernel")
    kernel, run.space_limits = take_space_limits(kernel, run.ctx)
    interpreted = caps.target.interpreted
    if interpreted and not run.takes_loops(kernel):
        kernel = _as_tasks_of_another(kernel, run) if options.interpret_as else kernel
        return _interpreted(kernel, run.describe(kernel, key), run, on_op)
    kernel = _tasks(kernel, run)
    kernel = run.apply(contract, kernel, "kernel")
    kernel = run.apply(check_loops, kernel, "kernel")
    kernel = run.apply(dce, kernel, "kernel")
    kernel = run.apply(place_adstacks, kernel, "kernel")
    kernel = run.apply(private_copies, kernel, "kernel")
    kernel = run.apply(block_copies, kernel, "kernel")
    kernel = run.apply(size_groups, kernel, "kernel")
    run.record_tasks(kernel)
    artifact = run.describe(kernel, key)
    kernel = run.apply(layout, kernel, "lowering")
    kernel = run.apply(fission_groups, kernel, "lowering")
    kernel = run.apply(diagnostics, kernel, "lowering")
    kernel = run.apply(expand_math, kernel, "lowering")
    kernel = run.apply(lower_tasks, kernel, "lowering")
    kernel = run.apply(legalize, kernel, "lowering")
    kernel = run.apply(lower_remainder, kernel, "lowering")
    kernel = run.apply(lower_atomics, kernel, "lowering")
    kernel = run.apply(widen_narrow_types, kernel, "lowering")
    kernel = run.apply(split_int64, kernel, "lowering")
    kernel = run.apply(carry_vectors, kernel, "lowering")
    kernel = run.apply(simplify_lowered, kernel, "device")
    kernel = run.apply(check_capabilities, kernel, "device")
    run.record("device.ir", kernel)
    if run.ctx.caps.target.generator is Generator.LLVM:
        kernel = _loops(kernel, run)
    if interpreted:
        return _interpreted(kernel, replace(artifact, target_name=caps.target_name), run, on_op)
    with span("generate code", "compile", target=caps.target_name):
        return _GENERATORS[caps.target.generator](kernel, artifact, run) if generate else artifact


def _tasks(kernel: Kernel, run: _Pipeline) -> Kernel:
    """The passes that make tasks of a kernel, and move, combine and privatise its accesses."""
    kernel = run.apply(simplify, kernel, "kernel")
    kernel = run.apply(keep_tile_entries, kernel, "kernel")
    kernel = run.apply(assume_disjoint, kernel, "kernel")
    kernel = run.apply(gather, kernel, "kernel")
    kernel = run.fuse(kernel)
    kernel = run.apply(separate_arrays, kernel, "kernel")
    kernel = run.apply(offload, kernel, "kernel")
    kernel = run.apply(demote_atomics, kernel, "kernel")
    kernel = run.apply(forward_memory, kernel, "kernel")
    kernel = run.apply(late_stores, kernel, "kernel")
    kernel = run.apply(carry_elements, kernel, "kernel")
    kernel = run.apply(reductions, kernel, "kernel")
    if run.ctx.options.deterministic:
        kernel = _in_order(kernel, run)
    kernel = run.apply(divide_sums, kernel, "kernel")
    return run.apply(reassociate, kernel, "kernel")


def _in_order(kernel: Kernel, run: _Pipeline) -> Kernel:
    """The passes that make results independent of the order of iterations."""
    before = kernel
    kernel = run.apply(loops_in_order, kernel, "kernel")
    kernel = run.apply(check_order, kernel, "kernel")
    kernel = run.apply(exact_sums, kernel, "kernel")
    run.changes = changes_for_order(before, kernel)
    return run.apply(reductions, kernel, "kernel")  # of the ranges of limbs


def _loops(kernel: Kernel, run: _Pipeline) -> Kernel:
    """The passes that plan the loops of the CPU."""
    for transform in LOOP_PASSES:
        kernel = run.apply(transform, kernel, "loops")
        if transform is vectorise:
            run.record("vectors.ir", kernel)
    run.record("loops.ir", kernel)
    return kernel


class _Pipeline:
    """What the stages have in common: the context, the recorded stages, verification."""

    def __init__(self, caps: Capabilities, options: CompileOptions, source: Kernel) -> None:
        if caps.target_name not in TARGETS:
            raise SpirogradUnsupportedError(f"there is no target {caps.target_name!r}; there are {', '.join(TARGETS)}", source.loc)
        self.ctx = PassContext(caps, options)
        self.source = source
        self.stages: dict[str, Stage] = {}
        self.stage_locs: dict[str, tuple[Loc | None, ...]] = {}
        self.space_limits: tuple[SpaceLimit, ...] = ()
        self.level = "kernel"  # of the last kernel that was verified
        self.decisions: tuple[Decision, ...] = ()
        self.changes: tuple[str, ...] = ()  # for `CompileOptions.deterministic`, in words

    def takes_loops(self, kernel: Kernel) -> bool:
        """Whether the interpreter is to run the loops that a CPU with masks runs of ``kernel``; then the passes are for that CPU from now
        on. Groups of threads and adstacks have no memory of their own there, so kernels with these are run as they are."""
        if self.ctx.options.interpret_as != LOOPS or any(op.code is ops.for_ and op.attr.grouped for op in kernel.walk()):
            return False
        if ops.adstack_word in kernel.codes or any(isinstance(ref, AdstackRef) for _, ref in kernel.accesses):
            return False
        features = _host_features() if self.ctx.options.deterministic else "+sse2,+avx2,+fma"
        self.ctx = replace(self.ctx, caps=replace(self.ctx.caps, target_name="cpu", cpu_features=features))
        return True

    def begin(self, kernel: Kernel) -> None:
        if self.ctx.options.verify:
            self.verify(kernel, "kernel")
        self.record("kernel.ir", kernel)

    def verify(self, kernel: Kernel, level: str) -> None:
        """See `spec.verify`. Imported here because programs run without verification."""
        from spirograd.ir.spec import verify

        verify(kernel, level)

    def apply(self, transform: Pass, kernel: Kernel, level: str) -> Kernel:
        """Run a pass; ``level`` is that of its result."""
        with span(transform.__name__, "pass"):
            new = transform(kernel, self.ctx)
        if self.ctx.options.verify and (new is not kernel or level != self.level):
            try:
                self.verify(new, level)
            except AssertionError as error:
                error.args = (f"after {transform.__name__}: {error}",)
                raise
        self.level = level
        return new

    def fuse(self, kernel: Kernel) -> Kernel:
        with span("fuse_loops", "pass"):
            fused, self.decisions = fuse_loops(kernel, self.ctx)
        return fused

    def record(self, name: str, kernel: Kernel) -> None:
        if self.ctx.options.keep_stages:
            self.stages[name], self.stage_locs[name] = to_text_with_locs(kernel)

    def record_tasks(self, kernel: Kernel) -> None:
        """The tasks, in IR and in words, and which loops were fused."""
        self.record("offload.ir", kernel)
        if self.ctx.options.keep_stages:
            places = ["" if op.loc is None else f", {op.loc}" for op in kernel.body.ops[:-1]]
            tasks = [f"task {op.attr.name}: {op.attr.kind}{place}" for op, place in zip(kernel.body.ops, places)]
            self.stages["tasks.txt"] = "".join(f"{line}\n" for line in (*tasks, *self.decisions, *self.changes))

    def describe(self, kernel: Kernel, key: str) -> CompiledKernel:
        """The artifact without binaries, from the last IR of kernel level. Fixes the argument block and the numbers of the sites."""
        faults, prints = collect_sites(kernel)
        faults = tuple(dict.fromkeys((*faults, *unfinished_sites(kernel, self.ctx.caps), *divergence_sites(kernel, self.ctx))))
        block = arg_block(kernel, self.ctx)
        self.ctx = replace(self.ctx, block=block, faults=faults, prints=prints)
        offsets, size = temp_offsets(kernel)
        returns = tuple((ref.dtype, offsets[ref]) for ref in kernel.returns)
        caps, found = self.ctx.caps, effects(kernel)
        tasks = _task_infos(kernel, caps, self.ctx.options, self.source)
        artifact = CompiledKernel(
            kernel.name, caps.target_name, key, block, tasks, (), size, returns, faults, prints, found, stages=self.stages
        )
        artifact.stage_locs = self.stage_locs
        artifact.adstacks = tuple(adstacks_of(kernel, caps.target.slots_by_thread).values())
        artifact.space_limits = self.space_limits
        artifact.disjoint = compared_arrays(kernel, found)
        artifact.recursive = bool(kernel.recursive())
        artifact.temps_growth = growth_of_temps(kernel)
        return artifact


# --- generators --------------------------------------------------------------------------------------------------------


def _host_features() -> str:
    """The features of this machine's CPU, whose loops the interpreter runs if it is to compute the same bits."""
    from spirograd.llvmgen.toolchain import host_caps

    return host_caps().cpu_features


def _as_tasks_of_another(kernel: Kernel, run: _Pipeline) -> Kernel:
    """The tasks that ``kernel`` would be on the target `CompileOptions.interpret_as`. Groups of threads stay as they are: the interpreter
    runs them as loops, not as tasks."""
    if any(op.code is ops.for_ and op.attr.grouped for op in kernel.walk()):
        return kernel
    own = run.ctx
    target = "cpu" if own.options.interpret_as == LOOPS else own.options.interpret_as
    run.ctx = replace(own, caps=replace(own.caps, target_name=target))
    kernel = run.apply(dce, _tasks(kernel, run), "kernel")
    kernel = run.apply(private_copies, kernel, "kernel")
    run.ctx = own
    run.record_tasks(kernel)
    return kernel


def _interpreted(kernel: Kernel, artifact: CompiledKernel, run: _Pipeline, on_op: OnOp | None) -> CompiledKernel:
    """The interpreter runs ``kernel``, IR of any level, as one task. Imported here because other targets do without it."""
    from spirograd.ir.interp import compile_for_run

    offsets, _ = temp_offsets(kernel)
    lanes, races = run.ctx.caps.group_lanes, run.ctx.options.detect_races
    program = compile_for_run(kernel, artifact.args, offsets, artifact.faults, artifact.prints, on_op, lanes, races)
    task = TaskInfo(kernel.name, "serial", kernel.name, 0)
    return replace(artifact, tasks=(task,), faults=program.faults, run=program.run)


def _native(kernel: Kernel, artifact: CompiledKernel, run: _Pipeline) -> CompiledKernel:
    """LLVM, for the CPU. Imported here because llvmlite is large and other targets do without it."""
    from spirograd.llvmgen.emit import emit_kernel, emit_modules, entry_names, optimisation_need
    from spirograd.llvmgen.toolchain import JIT_LINK, compile_module, compile_modules

    caps, options = run.ctx.caps, run.ctx.options
    need = optimisation_need(kernel)
    named = zip(kernel.body.ops, _by_task(kernel, artifact), entry_names(kernel))
    tasks = tuple(_with_code(info, entry, op.attr) for op, info, entry in named)
    if not options.keep_stages:
        emit = emit_modules if JIT_LINK else (lambda *args: [emit_kernel(*args)])  # the other linker wants all addresses close by
        texts = emit(kernel, artifact.args, caps, options)
        return replace(artifact, tasks=tasks, binaries=compile_modules(texts, caps, options, need))
    text = emit_kernel(kernel, artifact.args, caps, options)  # in one file, for readers
    code = compile_module(text, caps, options, need)
    run.stages |= {"kernel.ll": text, "kernel.opt.ll": code.optimized_ir, "kernel.s": code.assembly}
    return replace(artifact, tasks=tasks, binaries=(code.binary,))


def _with_code(info: TaskInfo, entry: str, attr: TaskAttr) -> TaskInfo:
    """The description of a task whose code was planned. ``attr``: its attributes then."""
    info, chunks = replace(info, entry=entry, binary=0, alternatives=attr.alternatives), attr.chunks
    return info if chunks is None else replace(info, lanes=chunks.lanes)


def _spirv(kernel: Kernel, artifact: CompiledKernel, run: _Pipeline) -> CompiledKernel:
    """One SPIR-V module per task."""
    from spirograd.spirvgen.disasm import disassemble
    from spirograd.spirvgen.emit import emit_task

    binaries: list[bytes] = []
    tasks = []
    for task, info in zip(kernel.body.ops, _by_task(kernel, artifact)):
        module, bindings = emit_task(task, kernel, artifact.args, run.ctx.caps, run.ctx.options)
        tasks.append(replace(info, entry="main", binary=len(binaries), bindings=bindings, alternatives=task.attr.alternatives))
        binaries.append(module)
        if run.ctx.options.keep_stages:
            run.stages |= {f"{info.name}.spv": module, f"{info.name}.spvasm": disassemble(module)}
    return replace(artifact, tasks=tuple(tasks), binaries=tuple(binaries))


def _gpu(kernel: Kernel, artifact: CompiledKernel, run: _Pipeline) -> CompiledKernel:
    """LLVM, for GPUs: an entry for each task, in one module, or in several that are compiled at the same time."""
    from spirograd.llvmgen.gpu import emit_kernel, emit_modules, entry_names
    from spirograd.llvmgen.translate import ASSEMBLY, DIALECTS, LOADED, translate, translate_modules

    caps, options = run.ctx.caps, run.ctx.options
    dialect = DIALECTS[caps.target.generator]
    named = zip(kernel.body.ops, _by_task(kernel, artifact), entry_names(kernel))
    tasks = tuple(
        replace(
            _with_code(info, entry, op.attr),
            group_size=op.attr.group_size,  # several groups of the program may share a workgroup
            coarsening=op.attr.coarsening,
            strides=(info.grouped or not info.loops) and strides(op.regions[0], info.grouped),
        )
        for op, info, entry in named
    )
    if not options.keep_stages:
        texts, modules = emit_modules(kernel, artifact.args, dialect, caps, options)
        tasks = tuple([replace(info, binary=module) for info, module in zip(tasks, modules)])
        return replace(artifact, tasks=tasks, binaries=tuple(translate_modules(texts, caps, options)))
    text = emit_kernel(kernel, artifact.args, dialect, caps, options)  # in one file, for readers
    code, generator = translate(text, caps, options), caps.target.generator
    run.stages |= {"kernel.ll": text, "kernel.opt.ll": code.optimized_ir}
    run.stages |= {LOADED[generator]: code.binary, ASSEMBLY[generator]: code.assembly}
    return replace(artifact, tasks=tasks, binaries=(code.binary,))


_GENERATORS: dict[Generator, Callable[[Kernel, CompiledKernel, _Pipeline], CompiledKernel]] = {
    Generator.LLVM: _native,
    Generator.SPIRV: _spirv,
    Generator.PTX: _gpu,
    Generator.CODE_OBJECT: _gpu,
}


# --- tasks -------------------------------------------------------------------------------------------------------------

_LOOPS = frozenset((ops.for_, ops.while_))


def _task_infos(kernel: Kernel, caps: Capabilities, options: CompileOptions, source: Kernel) -> tuple[TaskInfo, ...]:
    """What the runtime needs to know about each task, its bounds as far as the host can compute them. ``source``: what came in."""
    infos = []
    bodies = {op: op.regions[0 if op.attr.kind == "serial" else 1] for op in kernel.body.ops if op.code is ops.task}
    places = _numbers_at(source, {id(op.loc or body.ops[0].loc) for op, body in bodies.items()})
    for op, body in bodies.items():
        loc = op.loc or body.ops[0].loc
        work, place = work_of(body), -1 if loc is None else places.get(id(loc), -1)
        if op.attr.kind == "serial":
            infos.append(TaskInfo(op.attr.name, "serial", op.attr.name, 0, places=op.attr.places, work=work, source=place))
            continue
        begin, end = (_host_size(value, caps) for value in op.regions[0].results[:2])
        most = op.attr.max_groups or (_REDUCTION_GROUPS if op.attr.reductions else 0)
        size = group_size(op, caps, options)
        loops, name = not _LOOPS.isdisjoint(body.codes), op.attr.name
        grouped = op.attr.grouped
        infos.append(TaskInfo(name, "range_for", name, 0, begin, end, size, most, loops, work=work, source=place, grouped=grouped))
    return tuple(infos)


def _numbers_at(source: Kernel, locs: set[int]) -> dict[int, int]:
    """The number, in the order of `Kernel.walk`, of the first operation at each of the locations with the identities ``locs``."""
    found: dict[int, int] = {}
    for number, op in enumerate(source.walk()):
        if id(op.loc) in locs and id(op.loc) not in found:  # passes hand locations on as they are
            found[id(op.loc)] = number
            if len(found) == len(locs):
                break
    return found


def _host_size(bound: Op, caps: Capabilities) -> Size | None:
    """``bound`` as what the host computes before each launch. It takes microseconds to make choices, as of the sign of a step: that pays
    where it sizes a dispatch, and is left to the task elsewhere."""
    size = size_of(bound)
    choices = size is not None and any(isinstance(part, IfLess) for part in walk(size))
    return None if choices and not caps.target.invocations else size


def _by_task(kernel: Kernel, artifact: CompiledKernel) -> list[TaskInfo]:
    """The infos of the tasks that are left after lowering, in order. Names are unique."""
    infos = {info.name: info for info in artifact.tasks}
    return [infos[op.attr.name] for op in kernel.body.ops[:-1]]

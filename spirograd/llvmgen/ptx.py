"""PTX: the intrinsics of NVIDIA's GPUs, and LLVM IR text -> PTX for an architecture."""

from __future__ import annotations

import functools
import re
from contextlib import closing

import llvmlite.binding as llvm

from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.base.records import replace
from spirograd.llvmgen import ptx_arithmetic, ptx_matrices
from spirograd.llvmgen.gpu import CAPABILITIES, Dialect, GpuEmitter
from spirograd.llvmgen.toolchain import MachineCode, by_thread, emitted, optimise, parse

_WARP = 32
# The registers of a multiprocessor, and the most workgroups on one where that is not 16, by architecture (CUDA's programming guide, compute
# capabilities): the assembler ignores requests for more.
_REGISTERS = 65536
_MOST_RESIDENT = {70: 32, 72: 32, 80: 32, 89: 24, 90: 32, 100: 32, 103: 32, 110: 24, 120: 24, 121: 24}
# Versions of PTX before 7.3 do not know architectures from this number on.
_KNOWN_SINCE_7_3 = 87
_AMPERE = 80  # the first architecture that reduces over warps
_REDUCTIONS = ("add", "min", "max", "and", "or", "xor")
_TRIPLE = "nvptx64-nvidia-cuda"
_CALL = re.compile(r"// callseq (\d+)")


def _register(name: str, e: GpuEmitter) -> str:
    """Return a special register."""
    return e.value(f"call i32 {e.module.declare(f'llvm.nvvm.read.ptx.sreg.{name}', 'i32', '')}()")


def _shuffle(e: GpuEmitter, value: str, mask: int) -> str:
    target = e.module.declare("llvm.nvvm.shfl.sync.bfly.i32", "i32", "i32, i32, i32, i32")
    return e.value(f"call i32 {target}(i32 -1, i32 {value}, i32 {mask}, i32 {_WARP - 1})")


def _members(e: GpuEmitter) -> str:
    """Return the mask of the lanes that run the current region: outside of branches all lanes of the warp; the last warp may have fewer."""
    if e.members:
        return e.members
    missing = -e.group_size % _WARP
    if not missing:
        return "-1"
    last = str((1 << (_WARP - missing)) - 1)
    if e.group_size < _WARP:
        return last
    full_warp = e.value(f"icmp ult i32 {_register('tid.x', e)}, {e.group_size + missing - _WARP}")
    return e.value(f"select i1 {full_warp}, i32 -1, i32 {last}")


def _ballot(e: GpuEmitter, value: str) -> str:
    target = e.module.declare("llvm.nvvm.vote.ballot.sync", "i32", "i32, i1")
    return e.value(f"call i32 {target}(i32 {_members(e)}, i1 {value})")


def _reduce(e: GpuEmitter, kind: str, signed: bool, value: str) -> str:
    name = f"u{kind}" if kind in ("min", "max") and not signed else kind
    target = e.module.declare(f"llvm.nvvm.redux.sync.{name}", "i32", "i32, i32")
    return e.value(f"call i32 {target}(i32 {value}, i32 {_members(e)})")


def _read(e: GpuEmitter, value: str, lane: str) -> str:
    mask = _members(e)
    target = e.module.declare("llvm.nvvm.shfl.sync.idx.i32", "i32", "i32, i32, i32, i32")
    return e.value(f"call i32 {target}(i32 {mask}, i32 {value}, i32 {lane}, i32 {_WARP - 1})")


def _barrier(e: GpuEmitter) -> None:
    if e.group_size <= _WARP:  # The assembler keeps a barrier of the workgroup, and drops one of a warp whose lanes are together.
        _subgroup_barrier(e)
        return
    e.line(f"call void {e.module.declare('llvm.nvvm.barrier.cta.sync.aligned.all', 'void', 'i32')}(i32 0)")


def _subgroup_barrier(e: GpuEmitter) -> None:
    e.line(f"call void {e.module.declare('llvm.nvvm.bar.warp.sync', 'void', 'i32')}(i32 {_members(e)})")


def _active(e: GpuEmitter) -> str:
    return e.value(f"call i32 {e.module.declare('llvm.nvvm.activemask', 'i32', '')}()")


def _rank(e: GpuEmitter, mask: str) -> str:
    below = e.value(f"and i32 {mask}, {_register('lanemask.lt', e)}")
    return e.value(f"call i32 {e.module.declare('llvm.ctpop.i32', 'i32', 'i32')}(i32 {below})")


def _from_first(e: GpuEmitter, value: str, active: str) -> str:
    first = e.value(f"call i32 {e.module.declare('llvm.cttz.i32', 'i32', 'i32, i1')}(i32 {active}, i1 true)")
    target = e.module.declare("llvm.nvvm.shfl.sync.idx.i32", "i32", "i32, i32, i32, i32")
    return e.value(f"call i32 {target}(i32 {active}, i32 {value}, i32 {first}, i32 {_WARP - 1})")


def _rsqrt(e: GpuEmitter, value: str, normal: bool) -> str:
    # The instruction flushes subnormal numbers to zero, so without ".ftz" three more scale the argument.
    name = "llvm.nvvm.rsqrt.approx.ftz.f" if normal else "llvm.nvvm.rsqrt.approx.f"
    return e.value(f"call float {e.module.declare(name, 'float', 'float')}(float {value})")


def _launch_bounds(caps: Capabilities, size: int, registers: int) -> str:
    """Return the launch bounds of a kernel: the assembler concludes from the workgroups that must fit on a multiprocessor how many
    registers it may use."""
    least = min(_REGISTERS // (registers * size), _MOST_RESIDENT.get(_number(caps.cpu_name), 16)) if registers else 0
    resident = f' "nvvm.minctasm"="{max(1, least)}"' if registers else ""
    return f'"nvvm.maxntid"="{size}"{resident}'


def _anchor(e: GpuEmitter, value: str, t: str) -> str:
    register = "d" if t == "double" else "f"
    return e.value(f'call {t} asm sideeffect "", "={register},0"({t} {value})')


NVPTX = Dialect(
    calling_convention="ptx_kernel",
    block="ptr",
    by_value="byval",
    scope=' syncscope("device")',
    launch_bounds=_launch_bounds,
    local=functools.partial(_register, "tid.x"),
    workgroup=functools.partial(_register, "ctaid.x"),
    workgroups=functools.partial(_register, "nctaid.x"),
    lane=functools.partial(_register, "laneid"),
    active=_active,
    rank=_rank,
    from_first=_from_first,
    shuffle=_shuffle,
    read=_read,
    ballot=_ballot,
    reduce=_reduce,
    barrier=_barrier,
    subgroup_barrier=_subgroup_barrier,
    matrix_load=ptx_matrices.load,
    matrix_store=ptx_matrices.store,
    matrix_product=ptx_matrices.product,
    clock=lambda e: e.value(f"call i64 {e.module.declare('llvm.nvvm.read.ptx.sreg.clock64', 'i64', '')}()"),
    rsqrt=_rsqrt,
    divide=ptx_arithmetic.divide,
    root=ptx_arithmetic.root,
    anchor=_anchor,
    has_members=True,
)


@by_thread
def _number(architecture: str) -> int:
    return int(re.sub(r"\D", "", architecture))


def _target_machine(architecture: str, has_stack: bool, has_matrices: bool) -> llvm.TargetMachine:
    """Return a target machine. ``has_stack``: whether the code reads the stack pointer, which needs PTX 7.3 (CUDA 11.3). ``has_matrices``:
    whether the code multiplies matrices."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # LLVM's default is the first version that knows the architecture: for Volta one without activemask, for Turing one without products.
    features = "+ptx63" if architecture in ("sm_70", "sm_72") else "+ptx65" if architecture == "sm_75" and has_matrices else ""
    if has_stack and _number(architecture) < _KNOWN_SINCE_7_3:
        features = "+ptx73"
    return llvm.Target.from_triple(_TRIPLE).create_target_machine(cpu=architecture, features=features, opt=3)


def capabilities(architecture: str) -> Capabilities:
    """Return the capabilities that every GPU of an architecture ("sm_90") has."""
    number = _number(architecture)
    recent = number >= _AMPERE
    return replace(
        CAPABILITIES,
        target_name="cuda",
        cpu_name=architecture,
        subgroup_size=_WARP,
        shared_memory=48 << 10,
        atomic_f16_add=True,
        matrix_shapes=ptx_matrices.shapes(number),
        subgroup_reductions=_REDUCTIONS if recent else (),
    )


def compile_ptx(text: str, caps: Capabilities, options: CompileOptions) -> MachineCode:
    """Optimise a module and translate it for the architecture ``caps.cpu_name``, such as "sm_90".

    Raises SpirogradRuntimeError with LLVM's message if the text is no valid module: a defect of the emitter.
    """
    machine = _target_machine(caps.cpu_name, "@llvm.stacksave" in text, "@llvm.nvvm.mma" in text)
    with closing(parse(text, machine)) as module:
        if options.optimize:
            optimise(module, machine, max(options.opt_level, 1), vectorise=False, slp=False)
        if not options.keep_stages:
            return MachineCode(_renumbered(emitted(module, machine, assembly=True).decode()).encode())
        ptx = _renumbered(machine.emit_assembly(module.clone()))
        return MachineCode(ptx.encode(), str(module), ptx)


def _renumbered(ptx: str) -> str:
    """Renumber calls in comments. LLVM counts the calls of a process; counting those of a module gives the same text for the same
    module."""
    numbers: dict[str, int] = {}
    return _CALL.sub(lambda match: f"// callseq {numbers.setdefault(match[1], len(numbers))}", ptx)

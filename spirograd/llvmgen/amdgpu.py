"""AMDGPU: the intrinsics of AMD's GPUs, and LLVM IR text -> a linked code object for an architecture."""

from __future__ import annotations

from contextlib import closing
from typing import NoReturn

import llvmlite.binding as llvm

from spirograd.base.caps import COMBINATIONS, Capabilities
from spirograd.base.dtypes import f32, i32, u32
from spirograd.base.options import CompileOptions
from spirograd.base.records import replace
from spirograd.ir.nodes import Op
from spirograd.ir.ops import identity
from spirograd.llvmgen.code_object import link_code_object
from spirograd.llvmgen.gpu import CAPABILITIES, Dialect, GpuEmitter
from spirograd.llvmgen.module import literal
from spirograd.llvmgen.toolchain import MachineCode, by_thread, emitted, optimise, parse

# Architectures that LLVM 22 and the runtime of ROCm support. Those from gfx10 on run waves of 32 lanes, the others of 64.
ARCHITECTURES = tuple(
    f"gfx{number}"
    for number in (
        *("900", "906", "908", "90a", "90c", "942", "950"),
        *("1010", "1011", "1012", "1030", "1031", "1032", "1033", "1034", "1035", "1036"),
        *("1100", "1101", "1102", "1103", "1150", "1151", "1152", "1153", "1200", "1201"),
    )
)
_TRIPLE = "amdgcn-amd-amdhsa"
_CODE_OBJECT_VERSION = 500  # 5: the version that ROCm 6 and newer load
_GRID_SIZE_X = 12  # the offset in the dispatch packet of the number of invocations in x
_ROW_XMASK, _QUAD = 0x160, 0x0  # controls of DPP: lane i reads lane i ^ mask of its 16; lanes of 4 in any order
_ROW_MIRROR, _HALF_MIRROR = 0x140, 0x141  # lane i reads lane 15 - i of its 16; lane 7 - i of its 8
_ROW = 16  # lanes that DPP reaches
_IDENTITY = (0x76543210, 0xFEDCBA98)
# The reciprocal square root flushes subnormal numbers: values smaller than this are scaled.
_SMALL, _SCALE, _ROOT_OF_SCALE = 2.0**-100, 2.0**48, 2.0**24


def capabilities(architecture: str) -> Capabilities:
    """Return the capabilities that every GPU of an architecture of `ARCHITECTURES` has."""
    wave = 32 if _has_waves_of_32(architecture) else 64
    own = replace(CAPABILITIES, target_name="amdgpu", cpu_name=architecture, subgroup_size=wave, shared_memory=64 << 10)
    return replace(own, subgroup_reductions=COMBINATIONS)


def _has_waves_of_32(architecture: str) -> bool:
    return len(architecture) > len("gfx90a")


# --- intrinsics --------------------------------------------------------------------------------------------------------


def _call(e: GpuEmitter, name: str, arguments: str = "", result: str = "i32") -> str:
    """Call an intrinsic; ``arguments`` are typed."""
    types = ", ".join([argument.split()[0] for argument in arguments.split(", ")]) if arguments else ""
    return e.value(f"call {result} {e.module.declare(f'llvm.amdgcn.{name}', result, types)}({arguments})")


def _workgroups(e: GpuEmitter) -> str:
    """Return the number of workgroups from the packet that dispatched the kernel, which counts invocations."""
    packet = e.value(f"call ptr addrspace(4) {e.module.declare('llvm.amdgcn.dispatch.ptr', 'ptr addrspace(4)', '')}()")
    place = e.value(f"getelementptr inbounds i8, ptr addrspace(4) {packet}, i64 {_GRID_SIZE_X}")
    invocations = e.value(f"load i32, ptr addrspace(4) {place}, align 4, !invariant.load !0, !noundef !0")
    return e.value(f"udiv exact i32 {invocations}, {e.group_size}")


def _rank(e: GpuEmitter, mask: str) -> str:
    if e.wave == 32:
        return _call(e, "mbcnt.lo", f"i32 {mask}, i32 0")
    halves = (mask, mask)
    if mask != "-1":
        halves = (e.value(f"trunc i64 {mask} to i32"), e.value(f"trunc i64 {e.value(f'lshr i64 {mask}, 32')} to i32"))
    return _call(e, "mbcnt.hi", f"i32 {halves[1]}, i32 {_call(e, 'mbcnt.lo', f'i32 {halves[0]}, i32 0')}")


def _shuffle(e: GpuEmitter, value: str, mask: int) -> str:
    """Exchange a value with another lane: a near lane as an operand of the instruction that uses the value (DPP), other lanes through the
    network of shared memory."""
    control = None
    if mask < 4:
        control = _QUAD + sum([(lane ^ mask) << (2 * lane) for lane in range(4)])
    elif mask < 16 and e.wave == 32:
        control = _ROW_XMASK + mask
    if control is not None:
        return _dpp(e, value, control)
    if mask == 16 and e.wave == 32:
        low, high = _IDENTITY
        return _call(e, "permlanex16.i32", f"i32 poison, i32 {value}, i32 {low}, i32 {high - (1 << 32)}, i1 false, i1 false")
    if mask < 32:
        return _call(e, "ds.swizzle", f"i32 {value}, i32 {mask << 10 | 31}")
    lane = e.value(f"xor i32 {_rank(e, '-1')}, {mask}")
    return _call(e, "ds.bpermute", f"i32 {e.value(f'shl i32 {lane}, 2')}, i32 {value}")


def _read(e: GpuEmitter, value: str, lane: str) -> str:
    return _call(e, "ds.bpermute", f"i32 {e.value(f'shl i32 {lane}, 2')}, i32 {value}")


def _barrier(e: GpuEmitter) -> None:
    e.line('fence syncscope("workgroup") release')
    e.line(f"call void {e.module.declare('llvm.amdgcn.s.barrier', 'void', '')}()")
    e.line('fence syncscope("workgroup") acquire')


def _subgroup_barrier(e: GpuEmitter) -> None:
    """Emit a barrier that no code moves across. Lanes of a subgroup run in lockstep."""
    e.line('fence syncscope("wavefront") acq_rel')
    e.line(f"call void {e.module.declare('llvm.amdgcn.wave.barrier', 'void', '')}()")


def _rsqrt(e: GpuEmitter, value: str, normal: bool) -> str:
    if normal:
        return _call(e, "rsq.f32", f"float {value}", "float")
    small = e.value(f"fcmp olt float {value}, {literal(_SMALL, f32)}")
    scaled = e.value(f"fmul float {value}, {literal(_SCALE, f32)}")
    root = _call(e, "rsq.f32", f"float {e.value(f'select i1 {small}, float {scaled}, float {value}')}", "float")
    factor = e.value(f"select i1 {small}, float {literal(_ROOT_OF_SCALE, f32)}, float {literal(1.0, f32)}")
    return e.value(f"fmul float {root}, {factor}")


def _dpp(e: GpuEmitter, value: str, control: int) -> str:
    return _call(e, "update.dpp.i32", f"i32 poison, i32 {value}, i32 {control}, i32 15, i32 15, i1 false")


def _reduce(e: GpuEmitter, kind: str, signed: bool, value: str) -> str:
    """Reduce by a butterfly, as LLVM's optimiser of atomics does, because LLVM's reductions over waves are loops over the lanes. Waves of
    64 cannot exchange values of lanes i and i ^ 4 or i ^ 8 by DPP, but mirror rows, whose quads, or halves, hold one value by then; scalar
    instructions combine the values of their rows. In a branch some lanes may be missing: they take part with the identity (whole wave
    mode)."""
    t = i32 if signed else u32
    value = _call(e, "set.inactive.i32", f"i32 {value}, i32 {literal(identity(kind, t), t)}")

    def combined(a: str, b: str) -> str:
        if kind in ("min", "max"):
            name = f"llvm.{'s' if signed else 'u'}{kind}.i32"
            return e.value(f"call i32 {e.module.declare(name, 'i32', 'i32, i32')}(i32 {a}, i32 {b})")
        return e.value(f"{kind} i32 {a}, {b}")

    for mask in (1, 2):
        value = combined(value, _shuffle(e, value, mask))
    if e.wave == 32:
        for mask in (4, 8, 16):
            value = combined(value, _shuffle(e, value, mask))
        return _call(e, "strict.wwm.i32", f"i32 {value}")
    for control in (_HALF_MIRROR, _ROW_MIRROR):
        value = combined(value, _dpp(e, value, control))
    rows = [_call(e, "readlane.i32", f"i32 {value}, i32 {lane}") for lane in range(0, e.wave, _ROW)]
    return _call(e, "strict.wwm.i32", f"i32 {combined(combined(rows[0], rows[1]), combined(rows[2], rows[3]))}")


def _no_products(e: GpuEmitter, op: Op) -> NoReturn:
    raise TypeError(f"{op.attr} is a product of NVIDIA's GPUs")


AMDGPU = Dialect(
    calling_convention="amdgpu_kernel",
    block="ptr addrspace(4)",
    by_value="byref",
    stack_space=5,
    scope=' syncscope("agent")',
    # Memory that the runtime allocates is neither fine-grained nor on another device, where atomics of the hardware would do nothing.
    atomic_metadata=", !amdgpu.no.fine.grained.memory !0, !amdgpu.no.remote.memory !0, !amdgpu.ignore.denormal.mode !0",
    launch_bounds=lambda _, size, __: f'"amdgpu-flat-work-group-size"="{size},{size}" "uniform-work-group-size"="true"',
    module_flags=(f'i32 1, !"amdhsa_code_object_version", i32 {_CODE_OBJECT_VERSION}',),
    local=lambda e: _call(e, "workitem.id.x"),
    workgroup=lambda e: _call(e, "workgroup.id.x"),
    workgroups=_workgroups,
    lane=lambda e: _rank(e, "-1"),
    active=lambda e: _call(e, f"ballot.i{e.wave}", "i1 true", f"i{e.wave}"),
    rank=_rank,
    from_first=lambda e, value, active: _call(e, "readfirstlane.i32", f"i32 {value}"),
    shuffle=_shuffle,
    read=_read,
    ballot=lambda e, value: _call(e, f"ballot.i{e.wave}", f"i1 {value}", f"i{e.wave}"),
    reduce=_reduce,
    barrier=_barrier,
    subgroup_barrier=_subgroup_barrier,
    matrix_load=_no_products,
    matrix_store=_no_products,
    matrix_product=_no_products,
    clock=lambda e: e.value(f"call i64 {e.module.declare('llvm.readsteadycounter', 'i64', '')}()"),  # the cycle counter has 20 bits on some
    rsqrt=_rsqrt,
)


# --- code objects ------------------------------------------------------------------------------------------------------


@by_thread
def _target_machine(architecture: str) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(_TRIPLE).create_target_machine(cpu=architecture, features="", opt=3)


def compile_code_object(text: str, caps: Capabilities, options: CompileOptions) -> MachineCode:
    """Optimise a module, translate it for the architecture ``caps.cpu_name``, such as "gfx1100", and link it.

    Raises SpirogradRuntimeError with LLVM's message if the text is no valid module: a defect of the emitter.
    """
    machine = _target_machine(caps.cpu_name)
    with closing(parse(text, machine)) as module:
        if options.optimize:
            optimise(module, machine, max(options.opt_level, 1), vectorise=False, slp=False)
        if not options.keep_stages:
            return MachineCode(link_code_object(emitted(module, machine)))
        # Code generation changes the module, so the text comes from a clone.
        binary = link_code_object(machine.emit_object(module.clone()))
        machine.set_asm_verbosity(True)  # For the comment after each kernel that tells its occupancy.
        return MachineCode(binary, str(module), machine.emit_assembly(module.clone()))

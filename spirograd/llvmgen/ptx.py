"""PTX: the intrinsics of NVIDIA's GPUs, and LLVM IR text -> PTX for an architecture."""

from __future__ import annotations

import functools
from contextlib import closing
from typing import Any

import llvmlite.binding as llvm

from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.ir.nodes import BuiltIn
from spirograd.llvmgen.gpu import Dialect, GpuEmitter
from spirograd.llvmgen.toolchain import MachineCode, optimise, parse

_WARP = 32
# Of the 4,096 bytes of a kernel's parameters that every device takes, some are left for what is added.
PARAMETER_BYTES = 4032
_TRIPLE = "nvptx64-nvidia-cuda"


def _register(name: str, e: GpuEmitter) -> str:
    """A special register."""
    return e.value(f"call i32 {e.module.declare(f'llvm.nvvm.read.ptx.sreg.{name}', 'i32', '')}()")


def _number(e: GpuEmitter) -> str:
    first = e.value(f"mul i32 {_register('ctaid.x', e)}, {e.group_size}")
    return e.value(f"add i32 {first}, {_register('tid.x', e)}")


def _subgroup(e: GpuEmitter) -> str:
    return e.value(f"lshr i32 {_register('tid.x', e)}, {_WARP.bit_length() - 1}")


def _shuffle(e: GpuEmitter, value: str, mask: int) -> str:
    target = e.module.declare("llvm.nvvm.shfl.sync.bfly.i32", "i32", "i32, i32, i32, i32")
    return e.value(f"call i32 {target}(i32 -1, i32 {value}, i32 {mask}, i32 {_WARP - 1})")


def _barrier(e: GpuEmitter) -> None:
    e.line(f"call void {e.module.declare('llvm.nvvm.barrier.cta.sync.aligned.all', 'void', 'i32')}(i32 0)")


def _aggregated_increment(e: GpuEmitter, counter: str) -> str:
    """Warp-aggregated: the first active invocation of the warp increments the counter for all active ones."""
    active = e.value(f"call i32 {e.module.declare('llvm.nvvm.activemask', 'i32', '')}()")
    below = e.value(f"and i32 {active}, {_register('lanemask.lt', e)}")
    count = e.module.declare("llvm.ctpop.i32", "i32", "i32")
    rank = e.value(f"call i32 {count}(i32 {below})")
    first = e.value(f"call i32 {e.module.declare('llvm.cttz.i32', 'i32', 'i32, i1')}(i32 {active}, i1 true)")
    leads = e.value(f"icmp eq i32 {rank}, 0")
    take, taken = e.new_labels("take", "taken")
    before = e.label
    e.line(f"br i1 {leads}, label %{take}, label %{taken}")
    e.start(take)
    wanted = e.value(f"call i32 {count}(i32 {active})")
    old = e.value(f"atomicrmw add {counter}, i32 {wanted}{e.atomic_scope} monotonic, align 4")
    e.goto(taken)
    e.start(taken)
    own = e.value(f"phi i32 [ {old}, %{take} ], [ 0, %{before} ]")
    target = e.module.declare("llvm.nvvm.shfl.sync.idx.i32", "i32", "i32, i32, i32, i32")
    start = e.value(f"call i32 {target}(i32 {active}, i32 {own}, i32 {first}, i32 {_WARP - 1})")
    return e.value(f"add i32 {start}, {rank}")


def _rsqrt(e: GpuEmitter, value: str) -> str:
    return e.value(f"call float {e.module.declare('llvm.nvvm.rsqrt.approx.f', 'float', 'float')}(float {value})")


NVPTX = Dialect(
    calling_convention="ptx_kernel",
    block="ptr",
    by_value="byval",
    scope=' syncscope("device")',
    group_size=lambda size: f'"nvvm.maxntid"="{size}"',
    builtins={
        None: _number,
        BuiltIn.LOCAL: functools.partial(_register, "tid.x"),
        BuiltIn.WORKGROUPS: functools.partial(_register, "nctaid.x"),
        BuiltIn.LANE: functools.partial(_register, "laneid"),
        BuiltIn.SUBGROUP: _subgroup,
        BuiltIn.SUBGROUPS: lambda e: str(e.group_size // _WARP),
    },
    shuffle=_shuffle,
    barrier=_barrier,
    aggregated_increment=_aggregated_increment,
    rsqrt=_rsqrt,
)


@functools.lru_cache(maxsize=8)
def _target_machine(architecture: str) -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # By itself LLVM takes the first version that knows the architecture: for Volta one without activemask.
    features = "+ptx63" if architecture in ("sm_70", "sm_72") else ""
    return llvm.Target.from_triple(_TRIPLE).create_target_machine(cpu=architecture, features=features, opt=3)


def capabilities(architecture: str) -> Capabilities:
    """What every GPU of an architecture ("sm_90") can do."""
    return Capabilities(
        "cuda",
        int8=True,
        int16=True,
        int64=True,
        float16=True,
        float64=True,
        storage8=True,
        storage16=True,
        atomic_int64=True,
        atomic_f16_add=True,
        atomic_f32_add=True,
        atomic_f64_add=True,
        shared_f32_add=True,
        buffer_address=True,
        subgroup_size=_WARP,
        subgroup_shuffle=True,
        shared_memory=48 << 10,
        max_group_size=1024,
        max_push_constants=PARAMETER_BYTES,
        exact_specials=(16, 32, 64),
        exact_subnormals=(16, 32, 64),
        cpu_name=architecture,
    )


def compile_ptx(text: str, caps: Capabilities, options: CompileOptions) -> MachineCode:
    """Optimise a module and translate it for the architecture ``caps.cpu_name``, such as "sm_90".

    Raises SpirogradRuntimeError with LLVM's message if the text is no valid module: a defect of the emitter.
    """
    machine = _target_machine(caps.cpu_name)
    with closing(parse(text, machine)) as module:
        if options.optimize:
            optimise(module, machine, max(options.opt_level, 1), vectorise=False, slp=False)
        if not options.keep_stages:
            return MachineCode(machine.emit_assembly(module).encode())
        ptx = machine.emit_assembly(module.clone())
        return MachineCode(ptx.encode(), str(module), ptx)

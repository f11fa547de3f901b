"""Hand-written kernels for tests of the devices of CUDA and HIP: the argument block by value, or its address where it is too large for
parameters. For HIP the text of PTX stands for a code object: the stand-in for its driver reads no more of it than names."""

from spirograd.base.artifact import ArgBlock, CompiledKernel, Effects, Slot, TaskInfo
from spirograd.base.dtypes import u32
from spirograd.base.sizes.size_nodes import Arg
from spirograd.runtime.devices.gpu.device import GpuDevice

# arguments {u64 data; u32 n; u32 a}; for (i = thread; i < n; i += threads) body
HEADER = ".version 6.0\n.target sm_70\n.address_size 64\n"
BY_VALUE = (
    ".param .align 8 .b8 block[{size}]",
    "ld.param.u64 %rd1, [block];\nld.param.u32 %r1, [block+8];\nld.param.u32 %r2, [block+12];",
)
BY_ADDRESS = (
    ".param .u64 block",
    "ld.param.u64 %rd5, [block];\ncvta.to.global.u64 %rd6, %rd5;\n"
    "ld.global.u64 %rd1, [%rd6];\nld.global.u32 %r1, [%rd6+8];\nld.global.u32 %r2, [%rd6+12];",
)
ENTRY = """
.visible .entry {name}({parameter})
.maxntid 64, 1, 1
{{
.reg .pred %p<2>;
.reg .b32 %r<16>;
.reg .b64 %rd<8>;
{load}
cvta.to.global.u64 %rd2, %rd1;
mov.u32 %r3, %ctaid.x;
mov.u32 %r4, %ntid.x;
mov.u32 %r5, %tid.x;
mad.lo.u32 %r6, %r3, %r4, %r5;
mov.u32 %r7, %nctaid.x;
mul.lo.u32 %r8, %r7, %r4;
setp.ge.u32 %p1, %r6, %r1;
@%p1 bra DONE;
LOOP:
{body}
add.u32 %r6, %r6, %r8;
setp.lt.u32 %p1, %r6, %r1;
@%p1 bra LOOP;
DONE:
ret;
}}
"""
BODIES = {
    # data[i] = data[i] * 2 + a + i
    "scale": "mul.wide.u32 %rd3, %r6, 4;\nadd.s64 %rd4, %rd2, %rd3;\nld.global.u32 %r9, [%rd4];\nshl.b32 %r10, %r9, 1;\n"
    "add.u32 %r11, %r10, %r2;\nadd.u32 %r12, %r11, %r6;\nst.global.u32 [%rd4], %r12;",
    # data[0] += a
    "count": "atom.global.add.u32 %r9, [%rd2], %r2;",
    # an access to an address that no device has
    "trap": "mov.u64 %rd3, 64;\nst.global.u32 [%rd3], %r2;",
}

LAST = Arg(1)  # of the range of a task: a scalar argument
EFFECTS = Effects(frozenset({("tree", 0)}), frozenset({("tree", 0)}))


def ptx(*bodies: str, size: int = 16) -> bytes:
    """A module with an entry for each of ``bodies``, for a block of ``size`` bytes."""
    parameter, load = BY_ADDRESS if size > 4032 else BY_VALUE
    suffix = "_by_address" if size > 4032 else ""
    entries = [
        ENTRY.format(name=f"{body}{suffix}", parameter=parameter.format(size=size), load=load, body=BODIES[body])
        for body in dict.fromkeys(bodies)
    ]
    return (HEADER + "".join(entries)).encode()


def image(device: GpuDevice, text: bytes) -> bytes:
    """Text of PTX as the device takes it."""
    return text if device.api == "CUDA" else b"\x7fELF" + text + b"\0"


def compiled(device: GpuDevice, *bodies: str, end: object = LAST, by_address: bool = False) -> CompiledKernel:
    """A kernel for ``device`` whose tasks are ``bodies``: arguments (buffer of tree 0, i32 n, u32 a), padded beyond parameters if
    ``by_address``."""
    size = 16 + (4096 if by_address else 0)
    suffix = "_by_address" if by_address else ""
    slots = (Slot("tree", 0), Slot("scalar", 1, dtype=u32, offset=8), Slot("scalar", 2, dtype=u32, offset=12))
    tasks = tuple(TaskInfo(f"t{i}", "range_for", f"{body}{suffix}", 0, 0, end, 64) for i, body in enumerate(bodies))
    binary = image(device, ptx(*bodies, size=size))
    return CompiledKernel("k", device.caps.target_name, "k", ArgBlock(slots, "<QII", size), tasks, (binary,), effects=EFFECTS)

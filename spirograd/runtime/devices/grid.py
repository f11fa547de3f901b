"""What the devices that run SPIR-V share: how large a dispatch is, a first look at modules."""

from __future__ import annotations

from spirograd.base.artifact import TaskInfo
from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradRuntimeError

# Invocations that fill the device, for tasks whose length only the device knows (they stride, so any number is right).
_FILL = {"cpu": 4096}
_FILL_GPU = 65536
_FILL_LOOPS = 1 << 18
# Kernels stride over their range, so any number of groups is right. A CPU driver pays about 1 us for each group: few large
# strides take half the time of many groups (4 million elements: 87 ms with 256 groups, 161 ms with 62,500).
_CPU_GROUPS = 256
# llvmpipe ends the loops of an invocation after so many iterations: see transforms/checks/check_loops.py.
LLVMPIPE_LOOP_LIMIT = 65535
# Mesa's llvmpipe ignores conditions below 80 levels of `if`, and says nothing (seen with 22.3); some are for what drivers put around.
LLVMPIPE_NESTING_LIMIT = 77
_SPIRV_MAGIC = 0x07230203


def extent(task: TaskInfo, caps: Capabilities, kind: str) -> tuple[int, int]:
    """How many workgroups a task may have on a device of ``kind`` ("cpu", "discrete" ...), and how many invocations if only the device
    knows its length.

    lavapipe (Mesa 22.3) ends the loops of an invocation, nested ones included, after 65,535 iterations in all: a task with loops inside
    must not spend them on striding.
    """
    if task.loops and kind == "cpu":
        return caps.max_groups, _FILL_LOOPS
    most = min(caps.max_groups, _CPU_GROUPS) if kind == "cpu" else caps.max_groups
    return min(task.max_groups or most, most), _FILL.get(kind, _FILL_GPU)


def check_module(module: bytes, name: str) -> None:
    """Raise SpirogradRuntimeError if the bytes are no SPIR-V at all: drivers do not look. ``name`` is the kernel's."""
    if len(module) < 20 or len(module) % 4 or int.from_bytes(module[:4], "little") != _SPIRV_MAGIC:
        raise SpirogradRuntimeError(f"kernel {name}: this is no SPIR-V module ({len(module)} bytes)")

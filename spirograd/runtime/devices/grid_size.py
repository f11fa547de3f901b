"""The number of workgroups that a task is launched with. Kernels stride over their range, so it affects speed only, not results."""

from __future__ import annotations

from spirograd.base.artifact import TaskInfo
from spirograd.base.caps import Capabilities

# Invocations that fill the device, for tasks whose length only the device knows.
_FILL = {"cpu": 4096}
_FILL_GPU = 65536
_FILL_LOOPS = 1 << 18
# Code numbers invocations in 32 bits, and strides by their number: so many are enough to fill any device.
_INVOCATIONS = 1 << 30
# A CPU driver pays about 1 us for each group: few large strides take half the time of many groups (4 million elements: 87 ms with 256
# groups, 161 ms with 62,500).
_CPU_GROUPS = 256
# To begin a group takes a GPU longer than to stride on. H200, Vulkan, copy of 128M f32: 0.49 ms with 524,288 groups, 0.37 ms with these.
_GPU_GROUPS = 1 << 17
# llvmpipe ends the loops of an invocation after so many iterations: see transforms/checks/check_loops.py.
LLVMPIPE_LOOP_LIMIT = 65535
# Mesa's llvmpipe ignores conditions below 80 levels of `if`, and says nothing (seen with 22.3); some are for what drivers put around.
LLVMPIPE_NESTING_LIMIT = 77


def grid_limits(task: TaskInfo, caps: Capabilities, kind: str) -> tuple[int, int, int]:
    """How many iterations a workgroup takes at a time, how many workgroups there are at most, and how many if only the device knows the
    number of iterations.

    ``kind``: of the device, "cpu", "discrete" and so on.
    lavapipe (Mesa 22.3) ends the loops of an invocation, nested ones included, after 65,535 iterations in all: a task with loops inside
    must not spend them on striding.
    """
    size = max(task.group_size, 1)
    largest = min(caps.max_groups, max(_INVOCATIONS // size, 1))
    if task.loops and kind == "cpu":
        most, fill = largest, _FILL_LOOPS
    else:
        most = min(largest, _CPU_GROUPS if kind == "cpu" else _GPU_GROUPS)
        most, fill = min(task.max_groups or most, most), _FILL.get(kind, _FILL_GPU)
    return size * task.coarsening, most, min(-(-fill // size), most)

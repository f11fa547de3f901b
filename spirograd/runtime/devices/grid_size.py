"""The number of workgroups of a task's launch. Kernels stride over their range, so it affects only speed, not results."""

from __future__ import annotations

from spirograd.base.artifact import TaskInfo
from spirograd.base.caps import Capabilities

# Invocations that fill the device, for tasks whose length only the device knows.
_FILL = {"cpu": 4096}
_FILL_GPU = 65536
_FILL_LOOPS = 1 << 18
# Code numbers invocations in 32 bits, and strides by the count; this limit is enough to fill any device.
_INVOCATIONS = 1 << 30
# A CPU driver takes about 1 us for each group: few large strides take half the time of many groups (4 million elements: 87 ms with 256
# groups, 161 ms with 62,500).
_CPU_GROUPS = 256
# A GPU takes longer to start a group than to stride. H200, Vulkan, copy of 128M f32: 0.49 ms with 524,288 groups, 0.37 ms with this limit.
_GPU_GROUPS = 1 << 17
# llvmpipe ends the loops of an invocation after this number of iterations: see transforms/checks/check_loops.py.
LLVMPIPE_LOOP_LIMIT = 65535
# Mesa's llvmpipe silently ignores conditions below 80 levels of `if` (seen with 22.3). Some levels are reserved for the driver's own.
LLVMPIPE_NESTING_LIMIT = 77


def grid_limits(task: TaskInfo, caps: Capabilities, kind: str) -> tuple[int, int, int]:
    """Return the iterations that a workgroup runs at a time, the most workgroups, and the workgroups if only the device knows the number of
    iterations.

    ``kind``: the kind of the device, such as "cpu" or "discrete". lavapipe (Mesa 22.3) ends the loops of an invocation, nested ones
    included, after 65,535 iterations in all: a task with loops must not spend these on striding.
    """
    size = max(task.group_size, 1)
    largest = min(caps.max_groups, max(_INVOCATIONS // size, 1))
    if task.loops and kind == "cpu":
        most, fill = largest, _FILL_LOOPS
    else:
        most = min(largest, _CPU_GROUPS if kind == "cpu" else _GPU_GROUPS)
        most, fill = min(task.max_groups or most, most), _FILL.get(kind, _FILL_GPU)
    return size * task.coarsening, most, min(-(-fill // size), most)

"""Commands that dispatch the tasks of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Protocol

import vulkan as vk

from spirograd.base.loc import Loc
from spirograd.runtime.devices.driver_faults import Text, place
from spirograd.runtime.devices.vulkan.api import NULL
from spirograd.runtime.devices.vulkan.stream import WORK_STAGES

_COMPUTE_BIND = vk.VK_PIPELINE_BIND_POINT_COMPUTE
_COMPUTE_STAGE = vk.VK_SHADER_STAGE_COMPUTE_BIT


class Executable:
    """A loaded kernel: the pipeline and the grid (see `grid_limits`) of each task. ``text``: its name and place, for messages. ``kept``:
    executables that the pipelines belong to."""

    __slots__ = ("__weakref__", "kept", "name", "tasks", "text")

    def __init__(self, name: str, tasks: tuple[tuple[vk.ffi.CData, int, int, int], ...], kept: object = None) -> None:
        self.name = name
        self.tasks = tasks
        self.kept = kept
        self.locate(None)

    def locate(self, loc: Loc | None) -> None:
        self.text = Text(f" `{self.name}`{place(loc)}")


class Target(Protocol):
    """The destination of commands.

    ``commands`` is the command buffer, ``bound`` the pipeline that is bound in it, ``recorded`` the number of commands. ``barrier``: a
    memory barrier between two tasks. ``layout``: the layout of pipelines.
    """

    fn: SimpleNamespace
    layout: vk.ffi.CData
    commands: vk.ffi.CData
    bound: vk.ffi.CData
    barrier: vk.ffi.CData
    recorded: int


def padded(block: bytes | bytearray) -> bytes:
    """Return an argument block padded to whole words, as push constants require."""
    return bytes(block) if len(block) % 4 == 0 else bytes(block) + bytes(-len(block) % 4)


def dispatch(target: Target, executable: Executable, data: bytes, counts: Sequence[int | None], ordered: bool = True) -> None:
    """Record all tasks of a kernel, in order, with ``data`` as push constants. ``ordered``: whether they come after all earlier
    commands."""
    fn, commands = target.fn, target.commands
    if data:
        fn.CmdPushConstants(commands, target.layout, _COMPUTE_STAGE, 0, len(data), data)
    barrier, memory_barrier = fn.CmdPipelineBarrier, target.barrier
    for (pipeline, each, most, unknown), count in zip(executable.tasks, counts):
        groups = unknown if count is None else -(-count // each)
        if groups <= 0:
            continue
        if ordered:
            barrier(commands, WORK_STAGES, WORK_STAGES, 0, 1, memory_barrier, 0, NULL, 0, NULL)
        ordered = True
        if pipeline is not target.bound:
            fn.CmdBindPipeline(commands, _COMPUTE_BIND, pipeline)
            target.bound = pipeline
        fn.CmdDispatch(commands, groups if groups < most else most, 1, 1)
        target.recorded += 1

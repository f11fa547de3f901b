"""Commands that dispatch the tasks of a kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Protocol

import vulkan as vk

from spirograd.base.loc import Loc
from spirograd.runtime.devices.driver_faults import Text, place
from spirograd.runtime.devices.vulkan import call_words
from spirograd.runtime.devices.vulkan.api import NULL
from spirograd.runtime.devices.vulkan.stream import WORK_STAGES

_BOUND, _RECORDED = call_words.BOUND // 8, call_words.RECORDED // 8
_COMPUTE_BIND = vk.VK_PIPELINE_BIND_POINT_COMPUTE
_COMPUTE_STAGE = vk.VK_SHADER_STAGE_COMPUTE_BIT


Task = tuple[vk.ffi.CData, int, int, int, int]  # A pipeline, itself as a number, and a grid (see `grid_limits`).


class Executable:
    """A loaded kernel, as its tasks. ``nbytes``: the size of its argument block. ``text``: its name and place, for messages. ``resources``:
    what is deleted after it, once no pending work uses it. ``kept``: executables that the pipelines belong to."""

    __slots__ = ("__weakref__", "kept", "name", "nbytes", "resources", "tasks", "text")

    def __init__(self, name: str, tasks: tuple[Task, ...], nbytes: int, resources: list[object], kept: object = None) -> None:
        self.name = name
        self.tasks = tasks
        self.nbytes = nbytes
        self.resources = resources
        self.kept = kept
        self.locate(None)

    def locate(self, loc: Loc | None) -> None:
        self.text = Text(f" `{self.name}`{place(loc)}")

    def keep_text(self) -> None:
        """Keep the text alive as long as pending work of the kernel."""
        if self.text not in self.resources:
            self.resources.append(self.text)


class Target(Protocol):
    """The destination of commands.

    ``words``: the state of its command buffer, see `call_words`. ``barrier``: a memory barrier between two tasks. ``layout``: the layout of
    pipelines.
    """

    fn: SimpleNamespace
    layout: vk.ffi.CData
    barrier: vk.ffi.CData
    words: ctypes.Array[ctypes.c_uint64]


def workgroups(task: Task, count: int | None) -> int:
    """Return the number of workgroups that run ``count`` iterations; None: only the device knows the number."""
    _, _, each, most, unknown = task
    groups = unknown if count is None else -(-count // each)
    return (groups if groups < most else most) if groups > 0 else 0


def padded(block: bytes | bytearray) -> bytes:
    """Return an argument block padded to whole words, as push constants require."""
    return bytes(block) if len(block) % 4 == 0 else bytes(block) + bytes(-len(block) % 4)


def dispatch(
    target: Target, commands: vk.ffi.CData, executable: Executable, data: bytes, counts: Sequence[int | None], ordered: bool = True
) -> None:
    """Record all tasks of a kernel in ``commands``, in order, with ``data`` as push constants. ``ordered``: whether they come after all
    earlier commands."""
    fn, words = target.fn, target.words
    if data:
        fn.CmdPushConstants(commands, target.layout, _COMPUTE_STAGE, 0, len(data), data)
    barrier, memory_barrier = fn.CmdPipelineBarrier, target.barrier
    for task, count in zip(executable.tasks, counts):
        groups = workgroups(task, count)
        if not groups:
            continue
        if ordered:
            barrier(commands, WORK_STAGES, WORK_STAGES, 0, 1, memory_barrier, 0, NULL, 0, NULL)
        ordered = True
        if task[1] != words[_BOUND]:
            fn.CmdBindPipeline(commands, _COMPUTE_BIND, task[0])
            words[_BOUND] = task[1]
        fn.CmdDispatch(commands, groups, 1, 1)
        words[_RECORDED] += 1

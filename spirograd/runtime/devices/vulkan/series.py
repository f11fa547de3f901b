"""Series of launches, fills and copies as one command buffer, which is recorded once and submitted any number of times.

A barrier separates work only where it conflicts with work since the last barrier. Of sections that may run at the same time, the first
launch of each is recorded, then the second of each; unordered launches share one barrier. Arguments that fit are push constants, which are
part of the command buffer; others lie in memory of their own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import vulkan as vk

from spirograd.base.device import Buffer, Sections, Step, one_by_one
from spirograd.runtime.conflicts import UsedMemory, interleaved
from spirograd.runtime.devices.vulkan import call_words
from spirograd.runtime.devices.vulkan.allocator import Allocator, Range
from spirograd.runtime.devices.vulkan.api import NULL, check, ffi, struct
from spirograd.runtime.devices.vulkan.dispatch import dispatch, padded
from spirograd.runtime.devices.vulkan.stream import ARGUMENT_BYTES, WORK_STAGES, Stream

_ALIGNMENT = 16
_RECORDED = call_words.RECORDED // 8


class CommandPool:
    """A command pool with one command buffer, to which ``commands`` points."""

    def __init__(self, device: ffi.CData, functions: SimpleNamespace, family: int) -> None:
        self._device = device
        self._fn = functions
        self._pool = ffi.new("VkCommandPool*")
        info = struct("VkCommandPoolCreateInfo", queueFamilyIndex=family)
        check(functions.CreateCommandPool(device, info, NULL, self._pool), "create a command pool")
        self.commands = ffi.new("VkCommandBuffer*")
        kind = vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY
        wanted = struct("VkCommandBufferAllocateInfo", commandPool=self._pool[0], level=kind, commandBufferCount=1)
        check(functions.AllocateCommandBuffers(device, wanted, self.commands), "allocate a command buffer")

    def destroy(self) -> None:
        """Destroy both; the command buffer must not be pending."""
        self._fn.DestroyCommandPool(self._device, self._pool[0], NULL)


class RecordedSeries:
    """A series as a command buffer, to which ``commands`` points."""

    __slots__ = ("__weakref__", "_steps", "commands")

    def __init__(self, commands: ffi.CData, steps: Sequence[Step | Sections]) -> None:
        self.commands = commands
        self._steps = steps  # They keep pipelines and memory alive.

    def by_parts(self, device: Any) -> None:
        """Have ``device`` run the work piece by piece."""
        for step in one_by_one(self._steps):
            step.work(device)


class SeriesRecorder:
    """A recorder of one series: a `Target`, and the interface that its steps call. The device's lock is held.

    ``owned``: objects that are deleted with the series. ``arguments``: memory, and the argument blocks that belong there.
    """

    def __init__(self, stream: Stream, allocator: Allocator, family: int, push_limit: int) -> None:
        self.fn = stream.fn
        self.layout = stream.layout
        self.barrier = stream.barrier
        self.pool = CommandPool(stream.device, stream.fn, family)
        self.commands = self.pool.commands[0]
        self.words = (ctypes.c_uint64 * (call_words.STREAM_BYTES // 8))()
        self.owned: list[object] = [self.pool]
        self.arguments: list[tuple[Range, bytearray]] = []
        self._stream = stream
        self._allocator = allocator
        self._push_limit = push_limit
        self._ordered = False  # Later work comes after a barrier.

    def record(self, steps: Sequence[Step | Sections]) -> ffi.CData:
        """Record the series; return a pointer to its command buffer."""
        begin = struct("VkCommandBufferBeginInfo", flags=vk.VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT)
        check(self.fn.BeginCommandBuffer(self.commands, begin), "begin a command buffer")
        used = UsedMemory()
        self._ordered = True  # After submitted work.
        for step in interleaved(steps):
            if self._ordered or used.conflicts(step):
                self._ordered = True
                used.clear()
            used.add(step)
            before = self.words[_RECORDED]
            step.work(self)
            if self.words[_RECORDED] > before:
                self._ordered = False
        self._stream.let_host_see(self.commands)
        check(self.fn.EndCommandBuffer(self.commands), "end a command buffer")
        return self.pool.commands

    # --- called by steps ---

    def launch(self, executable: Any, block: bytes | bytearray, counts: Sequence[int | None]) -> None:
        """See `Device`."""
        data = padded(block)
        if len(block) > self._push_limit:
            data = self._put(data).to_bytes(8, "little")
        dispatch(self, self.commands, executable, data, counts, self._ordered)

    def fill(self, buffer: Buffer, offset: int, nbytes: int, word: int) -> None:
        """See `Device`."""
        part: Range = buffer.handle
        self._order()
        self.fn.CmdFillBuffer(self.commands, part.block.buffer, part.offset + offset, nbytes, word)

    def copy(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        """See `Device`."""
        begin, end = source.handle, target.handle
        region = ffi.new("VkBufferCopy*", (begin.offset + source_offset, end.offset + target_offset, nbytes))
        self._order()
        self.fn.CmdCopyBuffer(self.commands, begin.block.buffer, end.block.buffer, 1, region)

    def _order(self) -> None:
        if self._ordered:
            self.fn.CmdPipelineBarrier(self.commands, WORK_STAGES, WORK_STAGES, 0, 1, self.barrier, 0, NULL, 0, NULL)
        self.words[_RECORDED] += 1

    def _put(self, block: bytes) -> int:
        """Allocate memory for an argument block that lives as long as the series; return its address."""
        if not self.arguments or len(self.arguments[-1][1]) + len(block) > self.arguments[-1][0].size:
            part = self._allocator.take(max(len(block), ARGUMENT_BYTES))
            self.owned.append(part)
            self.arguments.append((part, bytearray()))
        part, data = self.arguments[-1]
        offset = len(data)
        data += block
        data += bytes(-len(data) % _ALIGNMENT)
        return part.address + offset

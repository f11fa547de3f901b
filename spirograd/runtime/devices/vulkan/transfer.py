"""Transfers between host and device: directly through mapped memory if there is any, else in pieces through staging."""

from __future__ import annotations

import ctypes
from collections import deque

from spirograd.runtime.devices.staging import StagingCells
from spirograd.runtime.devices.vulkan.allocator import Block, Range
from spirograd.runtime.devices.vulkan.api import ffi
from spirograd.runtime.devices.vulkan.call_words import SLOTS
from spirograd.runtime.devices.vulkan.readback import CellReadback
from spirograd.runtime.devices.vulkan.stream import STAGING_BYTES, Slot, Stream

# vkCmdUpdateBuffer carries up to 64 KiB inside the command buffer, in order with launches and without a wait.
_INLINE_BYTES = 65536
# Pieces of a download that are pending while earlier ones are copied out.
_IN_FLIGHT = SLOTS - 2


class VulkanTransfers:
    """The transfers of Vulkan, see `streamed.DeviceTransfers`."""

    def __init__(self, stream: Stream, cells: StagingCells[Block]) -> None:
        self._stream = stream
        self._cells = cells

    def upload(self, memory: Range, offset: int, data: memoryview) -> None:
        stream = self._stream
        nbytes = len(data)
        if memory.host and stream.idle:
            _view(memory)[offset : offset + nbytes] = data
            return
        if nbytes <= _INLINE_BYTES and not (offset % 4 or nbytes % 4):
            commands = stream.order()
            stream.fn.CmdUpdateBuffer(commands, memory.block.buffer, memory.offset + offset, nbytes, ffi.from_buffer(data))
            return
        if memory.host:
            stream.finish()
            _view(memory)[offset : offset + nbytes] = data
            return
        for start in range(0, nbytes, STAGING_BYTES):
            piece = data[start : start + STAGING_BYTES]
            _, block, at = stream.stage(len(piece))
            _host_bytes(block, at, len(piece))[:] = piece
            stream.copy(block.buffer, at, memory.block.buffer, memory.offset + offset + start, len(piece))

    def download(self, memory: Range, offset: int, out: memoryview) -> None:
        stream = self._stream
        if memory.host:
            stream.finish()
            out[:] = _view(memory)[offset : offset + len(out)]
            return
        pending: deque[tuple[Slot, Block, int, memoryview]] = deque()
        for start in range(0, len(out), STAGING_BYTES):
            piece = out[start : start + STAGING_BYTES]
            slot, block, at = stream.stage(len(piece))
            stream.copy(memory.block.buffer, memory.offset + offset + start, block.buffer, at, len(piece))
            stream.flush()
            pending.append((slot, block, at, piece))
            if len(pending) > _IN_FLIGHT:
                _collect(stream, *pending.popleft())
        while pending:
            _collect(stream, *pending.popleft())

    def read_async(self, memory: Range, offset: int, nbytes: int) -> CellReadback | bytes:
        if memory.view is not None and self._stream.idle:
            return bytes(memory.view[offset : offset + nbytes])
        readback = CellReadback(self._stream, self._cells.take(nbytes), nbytes)
        cell = readback.cell
        self._stream.copy(memory.block.buffer, memory.offset + offset, cell.block.buffer, cell.offset, nbytes)
        readback.value = self._stream.pending_value
        return readback

    def fill(self, memory: Range, offset: int, nbytes: int, word: int) -> None:
        commands = self._stream.order()
        self._stream.fn.CmdFillBuffer(commands, memory.block.buffer, memory.offset + offset, nbytes, word)

    def copy(self, target: Range, target_offset: int, source: Range, source_offset: int, nbytes: int) -> None:
        begin, end = source.offset + source_offset, target.offset + target_offset
        self._stream.copy(source.block.buffer, begin, target.block.buffer, end, nbytes)


def _collect(stream: Stream, slot: Slot, block: Block, at: int, piece: memoryview) -> None:
    stream.wait(slot.value)
    piece[:] = _host_bytes(block, at, len(piece))


def _view(part: Range) -> memoryview:
    view = part.view
    assert view is not None  # A mapped range has one.
    return view


def _host_bytes(block: Block, offset: int, nbytes: int) -> memoryview:
    raw = (ctypes.c_char * nbytes).from_address(block.host + offset)
    return memoryview(raw).cast("B")

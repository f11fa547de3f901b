"""Bytes between host and device: straight through mapped memory where there is some, else in pieces through staging."""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Any

from spirograd.runtime.devices.vulkan.allocator import Block, Range
from spirograd.runtime.devices.vulkan.api import ffi
from spirograd.runtime.devices.vulkan.stream import SLOTS, STAGING_BYTES, Slot, Stream

# vkCmdUpdateBuffer carries up to 64 KiB inside the command buffer, in order with launches and without a wait.
_INLINE_BYTES = 65536
# Pieces of a download that are under way while earlier ones are copied out.
_IN_FLIGHT = SLOTS - 2


def upload(stream: Stream, part: Range, offset: int, data: memoryview) -> None:
    """Write ``data`` into ``part`` at ``offset``, after everything recorded before."""
    nbytes = len(data)
    if part.host and stream.idle:
        _view(part)[offset : offset + nbytes] = data
        return
    if nbytes <= _INLINE_BYTES and not (offset % 4 or nbytes % 4):
        commands = stream.order()
        stream.fn.CmdUpdateBuffer(commands, part.block.buffer, part.offset + offset, nbytes, ffi.from_buffer(data))
        return
    if part.host:
        stream.finish()
        _view(part)[offset : offset + nbytes] = data
        return
    for start in range(0, nbytes, STAGING_BYTES):
        piece = data[start : start + STAGING_BYTES]
        _, block, at = stream.stage(len(piece))
        _host_bytes(block, at, len(piece))[:] = piece
        stream.copy(block.buffer, at, part.block.buffer, part.offset + offset + start, len(piece))


def download(stream: Stream, part: Range, offset: int, out: memoryview) -> None:
    """Wait for everything recorded before, then read ``len(out)`` bytes of ``part`` from ``offset``."""
    if part.host:
        stream.finish()
        out[:] = _view(part)[offset : offset + len(out)]
        return
    pending: deque[tuple[Slot, Block, int, memoryview]] = deque()
    for start in range(0, len(out), STAGING_BYTES):
        piece = out[start : start + STAGING_BYTES]
        slot, block, at = stream.stage(len(piece))
        stream.copy(part.block.buffer, part.offset + offset + start, block.buffer, at, len(piece))
        stream.flush()
        pending.append((slot, block, at, piece))
        if len(pending) > _IN_FLIGHT:
            _collect(stream, *pending.popleft())
    while pending:
        _collect(stream, *pending.popleft())


def _collect(stream: Stream, slot: Slot, block: Block, at: int, piece: memoryview) -> None:
    stream.wait(slot.value)
    piece[:] = _host_bytes(block, at, len(piece))


def _view(part: Range) -> memoryview:
    view = part.view
    assert view is not None  # a mapped range has one
    return view


def _host_bytes(block: Block, offset: int, nbytes: int) -> memoryview:
    raw: Any = (ctypes.c_char * nbytes).from_address(block.host + offset)
    return memoryview(raw).cast("B")

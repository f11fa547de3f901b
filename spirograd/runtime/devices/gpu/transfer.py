"""Transfers between host and device through a ring of pinned chunks: threads fill or empty chunks while the device copies others.

The device copies from pageable memory at 8 GB/s, from pinned memory at 55 GB/s (H200). One thread fills pinned memory at some 10 GB/s, so
several threads do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import ParamSpec

import numpy as np

from spirograd.base.records import dataclass
from spirograd.runtime.devices.gpu.allocator import DeviceRange, pinned
from spirograd.runtime.devices.gpu.readback import CellReadback, PinnedBlock
from spirograd.runtime.devices.gpu.side_streams import SideStreams
from spirograd.runtime.devices.gpu.stream import Stream
from spirograd.runtime.devices.staging import StagingCells

CHUNK_BYTES = 4 << 20
CHUNKS = 16
# Transfers up to this size share a chunk, and the calling thread copies them itself. Larger ones are cut into pieces of at least this size.
SMALL_BYTES = 1 << 20
_MOST_WORKERS = 8
# Readbacks above this size may run in parallel with kernels, on a stream of their own.
_BESIDE_BYTES = 1 << 16
_ALIGNMENT = 64
# Chunks that workers fill, and chunks that the device fills while workers empty the others.
_FILLING = CHUNKS - 4
_COMING = 4


P = ParamSpec("P")


@dataclass(slots=True, eq=False)
class Chunk:
    """A chunk of pinned memory at ``address``, seen through ``view``; the first ``used`` bytes are taken.

    ``event``: recorded after the copies of the chunk. ``emptied``: whether a worker is moving the bytes out.
    """

    address: int
    view: memoryview
    event: int
    used: int = 0
    emptied: Future[int] | None = None


class GpuTransfers:
    """Transfers between host and device in the order of ``stream``; asynchronous readbacks use ``cells``. The device's lock guards it."""

    def __init__(self, stream: Stream, cells: StagingCells[PinnedBlock], sides: SideStreams) -> None:
        self._stream = stream
        self._sides = sides
        self._beside: int | None = None  # The stream of large readbacks.
        self._driver = stream.driver
        self._cells = cells
        self._chunks: list[Chunk] = []  # All chunks.
        self._current: Chunk | None = None  # For small pieces.
        self._left: deque[Chunk] = deque()  # Chunks with copies that may be pending, oldest first.
        self._workers: ThreadPoolExecutor | None = None

    def upload(self, memory: DeviceRange, offset: int, data: memoryview) -> None:
        """Copy host bytes to the device. They may change after the call."""
        nbytes, target = len(data), memory.address + offset
        if nbytes <= SMALL_BYTES:
            chunk, start = self._room(nbytes)
            chunk.view[start : start + nbytes] = data
            self._to_device(target, chunk.address + start, nbytes)
            return
        source = _address(data)
        filling: deque[tuple[Chunk, Future[int], int, int]] = deque()
        try:
            for start, size in _pieces(nbytes):
                if len(filling) == _FILLING:
                    self._send(target, *filling[0])
                    filling.popleft()
                chunk = self._take()
                filling.append((chunk, self._move(chunk.address, source + start, size), start, size))
            while filling:
                self._send(target, *filling[0])
                filling.popleft()
        finally:  # After a failure, no worker may continue to read.
            wait([future for _, future, _, _ in filling])
            self._left.extend([chunk for chunk, *_ in filling])

    def _send(self, target: int, chunk: Chunk, filled: Future[int], start: int, size: int) -> None:
        filled.result()
        self._to_device(target + start, chunk.address, size)
        self._leave(chunk)

    def download(self, memory: DeviceRange, offset: int, out: memoryview) -> None:
        """Copy bytes to the host; the copy is complete on return."""
        if not len(out):
            return
        nbytes, source = len(out), memory.address + offset
        if nbytes <= SMALL_BYTES:
            chunk, start = self._room(nbytes)
            self._to_host(chunk.address + start, source, nbytes)
            self._stream.finish()
            out[:] = chunk.view[start : start + nbytes]
            return
        target = _address(out)
        coming: deque[tuple[Chunk, int, int]] = deque()
        moving: list[Future[int]] = []
        try:
            for start, size in _pieces(nbytes):
                if len(coming) == _COMING:
                    moving.append(self._receive(target, *coming[0]))
                    coming.popleft()
                chunk = self._take()
                coming.append((chunk, start, size))
                self._to_host(chunk.address, source + start, size)
                self._stream.record(chunk.event)
            while coming:
                moving.append(self._receive(target, *coming[0]))
                coming.popleft()
        finally:  # After a failure, no worker may continue to write.
            wait(moving)
            self._left.extend([chunk for chunk, *_ in coming])

    def _receive(self, target: int, chunk: Chunk, start: int, size: int) -> Future[int]:
        self._stream.wait(chunk.event)
        chunk.emptied = self._move(target + start, chunk.address, size)
        self._left.append(chunk)
        return chunk.emptied

    def read_async(self, memory: DeviceRange, offset: int, nbytes: int, beside: bool = False) -> CellReadback:
        """Begin a readback in order with launches.

        ``beside``: later work does not wait for large copies, and must not write to the memory before they are complete.
        """
        readback = CellReadback(self._stream, self._cells.take(nbytes), nbytes)
        large = nbytes > _BESIDE_BYTES  # Their cells are larger, too: other readbacks do not use them.
        beside = beside and large
        if beside:
            self._begin_beside()
        elif large and self._beside is not None:
            self._sides.order(self._beside, None)  # An abandoned copy into the cell may be pending.
        try:
            self._to_host(readback.address, memory.address + offset, nbytes)
            readback.record()
        finally:
            if beside:
                self._sides.end()
        return readback

    def move_out(self, readback: CellReadback, out: memoryview) -> Future[int]:
        """Copy the bytes of a readback to ``out`` in another thread, which keeps both alive."""
        return self._submit(_moved, readback, out)

    def _begin_beside(self) -> None:
        """Send later work to a stream that comes after the work so far, and that later work does not wait for."""
        if self._beside is None:
            self._beside = self._sides.take()
        self._sides.order(None, self._beside)
        self._sides.begin(self._beside)

    def fill(self, memory: DeviceRange, offset: int, nbytes: int, word: int) -> None:
        self._driver.call("fill memory", self._driver.fill, memory.address + offset, word, nbytes // 4, self._stream.handle)

    def copy(self, target: DeviceRange, target_offset: int, source: DeviceRange, source_offset: int, nbytes: int) -> None:
        to, of = target.address + target_offset, source.address + source_offset
        self._driver.call("copy memory", self._driver.copy, to, of, nbytes, self._stream.handle)

    def _to_device(self, target: int, source: int, nbytes: int) -> None:
        self._driver.call("copy to the device", self._driver.copy_to_device, target, source, nbytes, self._stream.handle)

    def _to_host(self, target: int, source: int, nbytes: int) -> None:
        self._driver.call("copy from the device", self._driver.copy_to_host, target, source, nbytes, self._stream.handle)

    # --- chunks ---

    def _room(self, nbytes: int) -> tuple[Chunk, int]:
        """Return a chunk and an offset in it; ``nbytes`` (at most SMALL_BYTES) there belong to the caller until the copies so far are
        complete."""
        chunk = self._current
        if chunk is None or chunk.used + nbytes > CHUNK_BYTES:
            if chunk is not None:
                self._leave(chunk)
                self._current = None
            chunk = self._current = self._take()
            chunk.used = 0
        start = chunk.used
        chunk.used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return chunk, start

    def _leave(self, chunk: Chunk) -> None:
        """Mark that all copies of a chunk were requested."""
        self._stream.record(chunk.event)
        self._left.append(chunk)

    def _take(self) -> Chunk:
        """Return a chunk with nothing pending, the one released longest ago. While it is busy, add new chunks, up to CHUNKS."""
        if not self._left or (len(self._chunks) < CHUNKS and self._busy(self._left[0])):
            address = pinned(self._driver, CHUNK_BYTES)
            view = memoryview((ctypes.c_ubyte * CHUNK_BYTES).from_address(address)).cast("B")
            chunk = Chunk(address, view, self._stream.event())
            self._chunks.append(chunk)
            return chunk
        chunk = self._left[0]
        self._stream.wait(chunk.event)
        if chunk.emptied is not None:
            chunk.emptied.result()
            chunk.emptied = None
        return self._left.popleft()

    def _busy(self, chunk: Chunk) -> bool:
        return (chunk.emptied is not None and not chunk.emptied.done()) or not self._stream.done(chunk.event)

    def _move(self, target: int, source: int, nbytes: int) -> Future[int]:
        """Copy on the host, in another thread."""
        return self._submit(ctypes.memmove, target, source, nbytes)

    def _submit(self, work: Callable[P, int], *args: P.args, **kwargs: P.kwargs) -> Future[int]:
        if self._workers is None:
            self._workers = ThreadPoolExecutor(min(_MOST_WORKERS, os.cpu_count() or 1), "spirograd-transfer")
        try:
            return self._workers.submit(work, *args, **kwargs)
        except RuntimeError:  # While Python exits, no thread can be started.
            done: Future[int] = Future()
            done.set_result(work(*args, **kwargs))
            return done

    def close(self) -> None:
        """Release all resources; nothing may be pending."""
        if self._workers is not None:
            with contextlib.suppress(RuntimeError):
                self._workers.shutdown()
        for chunk in self._chunks:
            self._driver.host_free(chunk.address)
        self._chunks.clear()
        self._left.clear()
        self._current = None


def _pieces(nbytes: int) -> Iterator[tuple[int, int]]:
    """Return begin and size of the pieces of a transfer: enough pieces to keep all workers busy, in chunks that need not be full."""
    size = min(max(-(-nbytes // _MOST_WORKERS), SMALL_BYTES), CHUNK_BYTES)
    return ((start, min(size, nbytes - start)) for start in range(0, nbytes, size))


def _moved(readback: CellReadback, out: memoryview) -> int:
    return ctypes.memmove(_address(out), readback.address, len(out))


def _address(data: memoryview) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data)

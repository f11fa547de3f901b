"""Transfers between host and wgpu device.

wgpu moves whole words: where a range begins or ends within a word, the whole word is transferred.
"""

from __future__ import annotations

from collections.abc import Callable

from spirograd.runtime.devices.wgpu.address_space import BufferRange
from spirograd.runtime.devices.wgpu.stream import BufferReadback, Stream


class WgpuTransfers:
    """The transfers of wgpu, see `streamed.DeviceTransfers`. ``count_wait`` counts a wait on the device."""

    def __init__(self, stream: Stream, count_wait: Callable[[], None]) -> None:
        self._stream = stream
        self._count_wait = count_wait

    def upload(self, memory: BufferRange, offset: int, data: memoryview) -> None:
        """Copy host bytes to the device. Words at ragged ends are read first."""
        end = offset + len(data)
        first, last = offset // 4 * 4, -(-end // 4) * 4
        if (first, last) != (offset, end):
            words = bytearray(last - first)
            self._count_wait()
            edges = {(first, first + 4), (last - 4, last)}
            for begin, stop in edges:
                self._stream.read(memory.buffer, memory.at(begin, 4), memoryview(words)[begin - first : stop - first])
            words[offset - first : end - first] = data
            offset, data = first, memoryview(words)
        at = memory.at(offset, len(data))
        self._stream.write(memory.buffer, at, data)

    def download(self, memory: BufferRange, offset: int, out: memoryview) -> None:
        end = offset + len(out)
        first, last = offset // 4 * 4, -(-end // 4) * 4
        if (first, last) == (offset, end):
            at = memory.at(offset, len(out))
            self._stream.read(memory.buffer, at, out)
            return
        words = memoryview(bytearray(last - first))
        at = memory.at(first, len(words))
        self._stream.read(memory.buffer, at, words)
        out[:] = words[offset - first : end - first]

    def read_async(self, memory: BufferRange, offset: int, nbytes: int) -> BufferReadback:
        return self._stream.read_async(memory.buffer, memory.at(offset, nbytes), nbytes)

    def fill(self, memory: BufferRange, offset: int, nbytes: int, word: int) -> None:
        at = memory.at(offset, nbytes)
        self._stream.fill(memory.buffer, at, nbytes, word)

    def copy(self, target: BufferRange, target_offset: int, source: BufferRange, source_offset: int, nbytes: int) -> None:
        """Copy between buffers. Ragged ranges go through the host."""
        if target_offset % 4 or source_offset % 4 or nbytes % 4:
            data = memoryview(bytearray(nbytes))
            self._count_wait()
            self.download(source, source_offset, data)
            self.upload(target, target_offset, data)
            return
        begin, end = source.at(source_offset, nbytes), target.at(target_offset, nbytes)
        self._stream.copy(source.buffer, begin, target.buffer, end, nbytes)

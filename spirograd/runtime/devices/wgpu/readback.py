"""Staging buffers for asynchronous readbacks of wgpu: one mapped buffer for a submission, read once and reused."""

from __future__ import annotations

from collections import deque

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.runtime.devices.wgpu.api import Mapping, wgpu

# Readbacks up to this size share buffers; larger ones have buffers of their size.
_SHARED_BYTES = 1 << 16
_ALIGNMENT = 8  # wgpu maps ranges that begin at multiples of it.
_USAGE = wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.MAP_READ


class StagingBuffer:
    """The readbacks of one submission.

    ``used`` bytes of ``buffer`` are taken. In the end ``data`` contains all bytes, or ``problem`` is set. ``submission`` is its index, 0
    while the commands are being recorded.
    """

    __slots__ = ("buffer", "data", "mapping", "problem", "submission", "used")

    def __init__(self, buffer: wgpu.GPUBuffer) -> None:
        self.buffer = buffer
        self.used = 0
        self.submission = 0
        self.mapping: Mapping | None = None
        self.data: bytes | None = None
        self.problem: SpirogradRuntimeError | None = None


class StagingBuffers:
    """An allocator of staging memory for readbacks. Not thread safe: the device's lock guards it."""

    def __init__(self, device: wgpu.GPUDevice) -> None:
        self._device = device
        self._spare: dict[int, list[wgpu.GPUBuffer]] = {}  # By size.
        self._recorded: list[StagingBuffer] = []
        self._under_way: deque[StagingBuffer] = deque()
        self.buffers = 0  # Created so far.

    def allocate(self, nbytes: int) -> tuple[StagingBuffer, int]:
        """Allocate ``nbytes`` in the submission that is being recorded. Return the staging buffer and the offset in it."""
        staging_buffer = self._recorded[-1] if self._recorded else None
        if staging_buffer is None or staging_buffer.used + nbytes > staging_buffer.buffer.size:
            size = max(_SHARED_BYTES, 1 << (nbytes - 1).bit_length())  # Few sizes, so that buffers are reused.
            spare = self._spare.get(size)
            staging_buffer = StagingBuffer(spare.pop() if spare else self._create(size))
            self._recorded.append(staging_buffer)
        offset = staging_buffer.used
        staging_buffer.used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return staging_buffer, offset

    def _create(self, nbytes: int) -> wgpu.GPUBuffer:
        self.buffers += 1
        return self._device.create_buffer(size=nbytes, usage=_USAGE)

    def take_recorded(self) -> list[StagingBuffer]:
        """Return and forget the buffers of the commands recorded so far, which are about to be submitted."""
        staging, self._recorded = self._recorded, []
        return staging

    def submitted(self, staging: list[StagingBuffer], submission: int) -> None:
        """Ask wgpu to map buffers when the submission is complete."""
        for staging_buffer in staging:
            staging_buffer.submission = submission
            staging_buffer.mapping = Mapping(staging_buffer.buffer, staging_buffer.used)
        self._under_way.extend(staging)

    def collect(self) -> None:
        """Read mapped buffers, and reuse them."""
        while self._under_way:
            staging_buffer = self._under_way[0]
            mapping = staging_buffer.mapping
            if mapping is None or not mapping.status:
                return
            try:
                if staging_buffer.data is None:  # Otherwise a signal interrupted the last attempt.
                    staging_buffer.data = mapping.read()[:]
                self._under_way.popleft()
                mapping.end()
                self._spare.setdefault(staging_buffer.buffer.size, []).append(staging_buffer.buffer)
            except SpirogradRuntimeError as error:
                self._under_way.popleft()
                staging_buffer.problem = error
            staging_buffer.buffer = staging_buffer.mapping = None

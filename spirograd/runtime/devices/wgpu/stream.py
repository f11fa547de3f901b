"""The queue of work: one open command encoder at a time, with one compute pass, submitted in batches."""

from __future__ import annotations

from collections import deque

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.runtime.devices.wgpu.api import ffi, handle, lib, poll, read_staging, telling, wgpu
from spirograd.runtime.devices.wgpu.readback import StagingBuffer, StagingBuffers

# Dispatches that are recorded before they are submitted: enough to hide the cost of a submission, few enough to keep the device busy.
BATCH = 256
# The most pending submissions: a host that is faster than the device waits, because recorded work would fill the memory.
_UNDER_WAY = 16
ARGUMENT_BYTES = 1 << 18  # For argument blocks, per submission.
_ARGUMENT_ALIGNMENT = 256
_STAGING_BYTES = 1 << 24
_PATTERN_BYTES = 1 << 20
# Bytes that wgpu keeps until work is complete (staging of writes, freed buffers): beyond this limit, the host submits and waits. The limit
# must be checked without a launch or a sync, because programs upload in loops.
_HELD_BYTES = 1 << 25
_COPIES = wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST


class Stream:
    """A recorder and submitter of commands. All work runs on the device in the order of the calls."""

    def __init__(self, device: wgpu.GPUDevice) -> None:
        self._device = device
        self._encoder: wgpu.GPUCommandEncoder | None = None
        self.compute: object = None  # The open compute pass.
        self.bound: object = None  # The pipeline that is set in it.
        self.recorded = 0
        self._timestamps: object = None  # The timestamps that the next pass writes.
        self._arguments = bytearray()
        self.ring = device.create_buffer(size=ARGUMENT_BYTES, usage=wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST)
        self._written = False  # Whether writes of the queue wait for a submission.
        self._held = 0  # Bytes that wgpu keeps until work is complete, since the last wait.
        self._staging: wgpu.GPUBuffer | None = None
        self._between: wgpu.GPUBuffer | None = None  # For copies within one buffer.
        self.staging = StagingBuffers(device)
        self._pattern: tuple[int, wgpu.GPUBuffer] | None = None  # A word, and a buffer filled with it.
        self._submitted: deque[int] = deque()
        self._index = ffi.new("WGPUSubmissionIndex *")

    # --- recording ---

    def open_pass(self) -> ffi.CData:
        """Return the C handle of the compute pass, opened if there is none. Dispatches in it run one after the other.

        Programs that read now and then open a pass for each launch: through the package that would take as long as the launch itself.
        """
        if self._encoder is None:
            self._encoder = self._device.create_command_encoder()
        descriptor = ffi.NULL
        if self._timestamps is not None:
            descriptor = ffi.new("WGPUComputePassDescriptor *", {"timestampWrites": self._timestamps})
        self.compute = lib.wgpuCommandEncoderBeginComputePass(handle(self._encoder), descriptor)
        self._timestamps = None
        return self.compute

    def pass_between(self, timestamps: object) -> None:
        """Have the next pass, which contains no earlier work, write ``timestamps``, a `WGPUPassTimestampWrites *`."""
        self.end_pass()
        self._timestamps = timestamps

    def end_pass(self) -> None:
        """End the open pass, if there is one."""
        if self.compute is not None:
            compute, self.compute, self.bound = self.compute, None, None
            lib.wgpuComputePassEncoderEnd(compute)
            lib.wgpuComputePassEncoderRelease(compute)

    def commands(self) -> wgpu.GPUCommandEncoder:
        """Return the encoder, outside of a pass: for one copy."""
        if self.recorded >= BATCH:
            self.flush()
        self.recorded += 1
        self.end_pass()
        if self._encoder is None:
            self._encoder = self._device.create_command_encoder()
        return self._encoder

    def put_arguments(self, block: bytes) -> int:
        """Store an argument block for the dispatches recorded next; return its offset in `ring`."""
        offset = -(-len(self._arguments) // _ARGUMENT_ALIGNMENT) * _ARGUMENT_ALIGNMENT
        if offset + len(block) > ARGUMENT_BYTES:
            self.flush()
            offset = 0
        self._arguments += bytes(offset - len(self._arguments)) + block
        return offset

    def flush(self) -> None:
        """Submit recorded work and writes of the queue.

        wgpu keeps the data of writes until a submission, and a wait alone makes none.
        """
        if self._encoder is None:
            if self._written:
                with telling("submit work through wgpu"):
                    lib.wgpuQueueSubmitForIndex(handle(self._device.queue), 0, ffi.NULL)
                self._written = False
            return
        encoder, self._encoder = self._encoder, None
        arguments, self._arguments = self._arguments, bytearray()
        self.recorded = 0
        staging = self.staging.take_recorded()
        try:
            with telling("submit work through wgpu"):
                self.end_pass()
                commands = encoder.finish()
                if arguments:
                    # Earlier submissions have read the ring by then: the queue keeps the order.
                    self._device.queue.write_buffer(self.ring, 0, arguments)
                index = lib.wgpuQueueSubmitForIndex(handle(self._device.queue), 1, ffi.new("WGPUCommandBuffer *", handle(commands)))
                self._submitted.append(index)
                self._written = False
                self.staging.submitted(staging, index)
        except BaseException as error:
            for staging_buffer in staging:
                if isinstance(error, SpirogradRuntimeError):
                    staging_buffer.problem = error
                elif not staging_buffer.submission:
                    staging_buffer.problem = SpirogradRuntimeError(f"a submission was interrupted: {error!r}")
            raise
        if len(self._submitted) > _UNDER_WAY:
            self._index[0] = self._submitted.popleft()
            self._wait(self._index)

    def _wait(self, submission: object) -> None:
        with telling("wait for work through wgpu"):
            poll(self._device, True, submission)
            self.staging.collect()

    def finish(self) -> None:
        """Submit, and wait until all work is complete."""
        self.flush()
        self._wait(ffi.NULL)
        self._submitted.clear()
        self._held = 0

    def hold(self, nbytes: int) -> None:
        """Count memory that wgpu keeps until the work so far is complete; where that is much, wait for it."""
        self._held += nbytes
        if self._held > _HELD_BYTES:
            self.finish()

    def close(self) -> None:
        """Release recorded work that cannot be submitted any more."""
        if self.compute is not None:
            compute, self.compute = self.compute, None
            lib.wgpuComputePassEncoderRelease(compute)

    # --- transfers: offsets and lengths are multiples of 4 ---

    def write(self, buffer: wgpu.GPUBuffer, offset: int, data: memoryview) -> None:
        """Write bytes of the host to ``buffer``."""
        if self._encoder is not None:
            self.flush()  # A write of the queue comes before later submissions.
        for start in range(0, len(data), _STAGING_BYTES):
            piece = data[start : start + _STAGING_BYTES]
            with telling("write to device memory through wgpu"):
                self._device.queue.write_buffer(buffer, offset + start, piece)
            self._written = True
            self.hold(len(piece))

    def read(self, buffer: object, offset: int, out: memoryview) -> None:
        """Read bytes of ``buffer`` to the host, after all recorded work."""
        for start in range(0, len(out), _STAGING_BYTES):
            piece = out[start : start + _STAGING_BYTES]
            with telling("read device memory through wgpu"):
                staging = self._staging_of(len(piece))
                self.commands().copy_buffer_to_buffer(buffer, offset + start, staging, 0, len(piece))
                self.flush()
                self._staging = None  # After an exception it is not used again.
                read_staging(self._device, staging, piece)
                self._staging = staging

    def read_async(self, buffer: object, offset: int, nbytes: int) -> BufferReadback:
        """Record a copy to staging memory that the host reads when it is complete."""
        with telling("read device memory through wgpu"):
            encoder = handle(self.commands())  # First: it may submit, and then the buffer is another.
            staging_buffer, at = self.staging.allocate(nbytes)
            lib.wgpuCommandEncoderCopyBufferToBuffer(encoder, handle(buffer), offset, handle(staging_buffer.buffer), at, nbytes)
            return BufferReadback(self, staging_buffer, at, nbytes)

    def poll(self) -> None:
        """Receive completed copies, without waiting."""
        with telling("look for finished work through wgpu"):
            poll(self._device, False)
            self.staging.collect()

    def wait_for(self, staging_buffer: StagingBuffer) -> None:
        """Submit if necessary, and wait until the staging buffer has data, or a problem."""
        if not staging_buffer.submission:
            self.flush()
        if staging_buffer.mapping is not None:
            self._index[0] = staging_buffer.submission
            self._wait(self._index)
        if staging_buffer.mapping is not None:
            self._wait(ffi.NULL)

    def _staging_of(self, nbytes: int) -> object:
        if self._staging is None or self._staging.size < nbytes:
            self._staging = self._create(nbytes, wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.MAP_READ)
        return self._staging

    def _create(self, nbytes: int, usage: int) -> wgpu.GPUBuffer:
        """Create a buffer for at least ``nbytes``, at most `_STAGING_BYTES`, in few sizes."""
        return self._device.create_buffer(size=min(_STAGING_BYTES, max(1 << 16, 1 << (nbytes - 1).bit_length())), usage=usage)

    def copy(self, source: object, source_offset: int, target: object, target_offset: int, nbytes: int) -> None:
        """Copy between buffers. wgpu does not copy within one buffer, so such copies go in pieces through another buffer."""
        with telling("copy device memory through wgpu"):
            if source is not target:
                self.commands().copy_buffer_to_buffer(source, source_offset, target, target_offset, nbytes)
                return
            for start in range(0, nbytes, _STAGING_BYTES):
                size = min(_STAGING_BYTES, nbytes - start)
                if self._between is None or self._between.size < size:
                    self._between = self._create(size, _COPIES)
                self.commands().copy_buffer_to_buffer(source, source_offset + start, self._between, 0, size)
                self.commands().copy_buffer_to_buffer(self._between, 0, target, target_offset + start, size)

    def fill(self, buffer: wgpu.GPUBuffer, offset: int, nbytes: int, word: int) -> None:
        """Fill a buffer with a 32-bit pattern."""
        with telling("fill device memory through wgpu"):
            if word == 0:
                self.commands().clear_buffer(buffer, offset, nbytes)
                return
            before = self._pattern
            pattern = self._pattern_of(word, nbytes)
            for start in range(0, nbytes, pattern.size):
                self.commands().copy_buffer_to_buffer(pattern, 0, buffer, offset + start, min(pattern.size, nbytes - start))
        if self._pattern is not before:
            self.hold(2 * pattern.size)  # With the data that is written to it.

    def _pattern_of(self, word: int, nbytes: int) -> wgpu.GPUBuffer:
        """Return a buffer filled with ``word``, of ``nbytes`` if that is not much.

        A new word gets a new buffer: pending work may read the old one.
        """
        size = min(_PATTERN_BYTES, 1 << max(nbytes - 1, 255).bit_length())
        if self._pattern is None or self._pattern[0] != word or self._pattern[1].size < size:
            pattern = self._device.create_buffer(size=size, usage=_COPIES)
            self._device.queue.write_buffer(pattern, 0, (word & 0xFFFFFFFF).to_bytes(4, "little") * (size // 4))
            self._written = True
            self._pattern = (word, pattern)
        return self._pattern[1]


class BufferReadback:
    """A `StagedReadback` of ``nbytes`` from ``at`` of a staging buffer."""

    __slots__ = ("_at", "_nbytes", "_staging", "_stream")

    def __init__(self, stream: Stream, staging_buffer: StagingBuffer, at: int, nbytes: int) -> None:
        self._stream = stream
        self._staging = staging_buffer
        self._at = at
        self._nbytes = nbytes

    def poll(self) -> bytes | None:
        """Return the bytes if they have arrived. Raises the buffer's problem."""
        staging_buffer = self._staging
        if staging_buffer.mapping is not None:
            self._stream.poll()
        if staging_buffer.problem is not None:
            raise staging_buffer.problem
        return None if staging_buffer.data is None else staging_buffer.data[self._at : self._at + self._nbytes]

    def wait(self) -> None:
        self._stream.wait_for(self._staging)

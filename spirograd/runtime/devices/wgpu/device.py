"""The wgpu device: memory, stream and pipelines as a `StreamedDevice`."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Sequence
from functools import partial

from spirograd.base.artifact import CompiledKernel, TaskInfo
from spirograd.base.device import Buffer
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.runtime.devices.artifacts import check_target
from spirograd.runtime.devices.deletion import COLLECT_AT
from spirograd.runtime.devices.grid_size import grid_limits
from spirograd.runtime.devices.open_devices import OpenDevices
from spirograd.runtime.devices.query_timer import QueryStopwatch
from spirograd.runtime.devices.streamed import DeviceLost, StreamedDevice
from spirograd.runtime.devices.wgpu.address_space import Allocator, BufferRange, GroupCache
from spirograd.runtime.devices.wgpu.api import abandon, ffi, handle, lib, losses, probe, release, telling, wgpu
from spirograd.runtime.devices.wgpu.features import Features, create_device
from spirograd.runtime.devices.wgpu.pipelines import Pipelines
from spirograd.runtime.devices.wgpu.stream import ARGUMENT_BYTES, BATCH, Stream
from spirograd.runtime.devices.wgpu.timer import WgpuTimer
from spirograd.runtime.devices.wgpu.transfer import WgpuTransfers


class Task:
    """The pipeline of one task, its grid (see `grid_limits`), and its bind groups.

    ``addresses`` reads the addresses of its buffers, each once, from an argument block; ``bindings`` are indices into these. ``packed``:
    the offsets in the block of buffers that share a binding, and their numbers.
    """

    __slots__ = ("addresses", "bindings", "grid", "groups", "keep", "packed", "pipeline")

    def __init__(self, info: TaskInfo, pipeline: wgpu.GPUComputePipeline, grid: tuple[int, int, int]) -> None:
        self.keep = pipeline
        self.pipeline = handle(pipeline)
        self.grid = grid
        used = sorted({offset for entry in info.bindings for offset in entry})
        gaps = [offset - (before + 8) for before, offset in zip([-8, *used], used)]
        self.addresses = struct.Struct("<" + "".join(f"{gap}xQ" for gap in gaps)).unpack_from
        self.bindings = tuple(tuple(used.index(offset) for offset in entry) for entry in info.bindings)
        self.packed = tuple(sorted({(offset, used.index(offset)) for entry in info.bindings if len(entry) > 1 for offset in entry}))
        self.groups = GroupCache()


class Executable:
    """The tasks of one kernel. ``arguments``: the bind group of the block, where it is too large for immediates."""

    __slots__ = ("__weakref__", "arguments", "tasks")

    def __init__(self, tasks: tuple[Task, ...], arguments: wgpu.GPUBindGroup | None) -> None:
        self.tasks = tasks
        self.arguments = arguments


class WgpuDevice(StreamedDevice):
    """One adapter of wgpu.

    Options: ``checked`` (use wgpu's own checks), ``cap`` (the most bytes of device memory to use).
    """

    api = "wgpu"
    open_devices = OpenDevices()

    def __init__(self, features: Features, checked: bool, cap: int | None) -> None:
        super().__init__()
        self._features = features
        self._device = create_device(features)
        self.info = features.info
        self.caps = features.caps
        self._allocator = Allocator(self._device, self.caps.max_allocation, cap)
        self._stream = Stream(self._device)
        self._transfers = WgpuTransfers(self._stream, self._count_wait)
        self._pipelines = Pipelines(self._device, checked)
        self._push_limit = self.caps.max_push_constants
        self._dynamic_offset = ffi.new("uint32_t[1]")
        self._losses = losses()  # Losses in this process that are known to concern other devices.
        self._executables: weakref.WeakSet[Executable] = weakref.WeakSet()
        self.open_devices.add(self)

    # --- memory ---

    def _allocate(self, nbytes: int, zeroed: bool) -> Buffer:
        place = self._allocator.take(nbytes)
        return Buffer(place.size, place.address, place)

    def _delete(self, thing: BufferRange) -> None:
        self._allocator.give(thing)
        self._stream.hold(thing.size)

    # --- kernels ---

    def load(self, kernel: CompiledKernel) -> Executable:
        """Make pipelines of the kernel's SPIR-V modules. Raises SpirogradRuntimeError on an invalid module."""
        check_target(kernel, self.caps.target_name, self.api)
        with self._turn:
            size = kernel.args.size
            if size > ARGUMENT_BYTES:
                raise SpirogradRuntimeError(f"the arguments of {kernel.name} take {size} bytes; at most {ARGUMENT_BYTES} are possible")
            indirect = size > self._push_limit
            immediates = 0 if indirect else size
            tasks = []
            for info in kernel.tasks:
                what = f"{kernel.name} ({info.name})"
                pipeline = self._pipelines.create(kernel.binaries[info.binary], info.entry, len(info.bindings), immediates, indirect, what)
                tasks.append(Task(info, pipeline, grid_limits(info, self.caps, self._features.kind)))
            arguments = self._pipelines.group([(self._stream.ring, 0, size)], dynamic=True) if indirect else None
            executable = Executable(tuple(tasks), arguments)
            self._executables.add(executable)
            return executable

    def launch(self, executable: Executable, block: bytes | bytearray, counts: Sequence[int | None]) -> None:
        """Record the dispatches, see `Device.launch`.

        They are submitted every few hundred dispatches, or when the host waits.
        """
        with self._turn:
            if self._stream.recorded >= BATCH:
                self._stream.flush()
            if len(self._deletions.released) > COLLECT_AT:
                self._collect()
            with telling("launch a kernel through wgpu"):
                for task, count in zip(executable.tasks, counts):
                    each, most, unknown = task.grid
                    groups = unknown if count is None else -(-count // each)
                    if groups > 0:
                        self._dispatch(executable, task, block, groups if groups < most else most)

    def _dispatch(self, executable: Executable, task: Task, block: bytes | bytearray, groups: int) -> None:
        stream = self._stream
        key = task.addresses(block)
        group = task.groups.entries.get(key) or self._bind(task, key)
        if task.packed:
            block = bytearray(block)
            for offset, number in task.packed:
                struct.pack_into("<Q", block, offset, self._allocator.at(key[number]).offset)
        if executable.arguments is not None:
            self._dynamic_offset[0] = stream.put_arguments(bytes(block))
        compute = stream.compute or stream.open_pass()
        if task.pipeline is not stream.bound:
            lib.wgpuComputePassEncoderSetPipeline(compute, task.pipeline)
            stream.bound = task.pipeline
        lib.wgpuComputePassEncoderSetBindGroup(compute, 0, handle(group), 0, ffi.NULL)
        if executable.arguments is not None:
            lib.wgpuComputePassEncoderSetBindGroup(compute, 1, handle(executable.arguments), 1, self._dynamic_offset)
        elif block:
            lib.wgpuComputePassEncoderSetImmediates(compute, 0, ffi.from_buffer(block), len(block))
        lib.wgpuComputePassEncoderDispatchWorkgroups(compute, groups, 1, 1)
        stream.recorded += 1

    def _bind(self, task: Task, key: tuple[int, ...]) -> wgpu.GPUBindGroup:
        """Return the bind group of a task for the buffers at the addresses ``key``."""
        places = [self._allocator.at(address) for address in key]
        for numbers in task.bindings:
            self._stream.hold(self._allocator.gather([places[number] for number in numbers], self._stream.copy))
        parts = []
        for numbers in task.bindings:  # Only now: buffers that were merged first may have moved again.
            place = places[numbers[0]]
            parts.append((place.buffer, place.offset, place.size) if len(numbers) == 1 else (place.buffer, 0, place.buffer.size))
        group = self._pipelines.group(parts)
        task.groups.put(key, group)
        for place in places:
            place.caches.add(task.groups)
        return group

    def task_timer(self) -> WgpuTimer:
        """See `TimesTasks`."""
        with self._turn:
            return WgpuTimer(self, self._device, self._stream, partial(WgpuDevice.launch, self))

    def stopwatch(self) -> QueryStopwatch[WgpuDevice, Executable]:
        """See `MeasuresLaunches`."""
        return QueryStopwatch(self.task_timer())

    def combine(self, executables: Sequence[Executable]) -> Executable:
        """See `MeasuresLaunches`."""
        combined = Executable(tuple([one.tasks[k] for k, one in enumerate(executables)]), executables[0].arguments)
        self._executables.add(combined)
        return combined

    # --- waits, failures, the end ---

    def _finish(self) -> None:
        self._stream.finish()

    def _check(self) -> None:
        if self._trouble:
            super()._check()
        if self._losses != losses():
            self._losses = losses()
            try:
                probe(self._device)
            except DeviceLost as error:
                self._lose(error)

    def _delete_all(self) -> None:
        try:
            if not self._trouble:
                self._stream.finish()
        finally:
            self._allocator.close()
            self._stream.close()
            del self._transfers, self._stream, self._pipelines, self._allocator
            for executable in self._executables:  # Kernels hold them, in cycles that only the garbage collector frees.
                executable.tasks, executable.arguments = (), None
            self._device.destroy()
            release(self._device)

    def _abandon(self) -> None:
        device = self._device
        super()._abandon()
        abandon(device)

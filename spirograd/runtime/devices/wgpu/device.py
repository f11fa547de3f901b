"""The wgpu device: the protocol of `spirograd.runtime.device` on top of memory, stream and pipelines."""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NoReturn

from spirograd.base.artifact import CompiledKernel, TaskInfo
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.runtime.device import Buffer
from spirograd.runtime.devices import interrupts
from spirograd.runtime.devices.fetching import check_range
from spirograd.runtime.devices.grid import extent
from spirograd.runtime.devices.open_devices import OpenDevices
from spirograd.runtime.devices.wgpu.address_space import Allocator, GroupCache, Place
from spirograd.runtime.devices.wgpu.api import DeviceLost, abandon, ffi, handle, lib, losses, lost_reason, probe, telling
from spirograd.runtime.devices.wgpu.features import Features, create_device
from spirograd.runtime.devices.wgpu.fetching import Landing
from spirograd.runtime.devices.wgpu.pipelines import Pipelines
from spirograd.runtime.devices.wgpu.stream import ARGUMENT_BYTES, BATCH, Stream

_TRASH_LIMIT = 1024

_open_devices: OpenDevices[WgpuDevice] = OpenDevices()


class Task:
    """The pipeline of one task, how large its dispatches are, and the bind groups made so far.

    ``addresses`` reads the addresses of its buffers, each once, from an argument block; ``bindings`` counts among these. ``packed``: the
    offsets in the block of those that share a binding, and their numbers.
    """

    __slots__ = ("addresses", "bindings", "fill", "group_size", "groups", "keep", "limit", "packed", "pipeline")

    def __init__(self, info: TaskInfo, pipeline: Any, limit: int, fill: int) -> None:
        self.keep = pipeline
        self.pipeline = handle(pipeline)
        self.group_size = max(info.group_size, 1)
        self.limit, self.fill = limit, fill
        used = sorted({offset for entry in info.bindings for offset in entry})
        gaps = [offset - (before + 8) for before, offset in zip([-8, *used], used)]
        self.addresses = struct.Struct("<" + "".join(f"{gap}xQ" for gap in gaps)).unpack_from
        self.bindings = tuple(tuple(used.index(offset) for offset in entry) for entry in info.bindings)
        self.packed = tuple(sorted({(offset, used.index(offset)) for entry in info.bindings if len(entry) > 1 for offset in entry}))
        self.groups = GroupCache()


class Executable:
    """The tasks of one kernel. ``arguments``: the bind group of the block, where it is too large for immediates."""

    __slots__ = ("__weakref__", "arguments", "tasks")

    def __init__(self, tasks: tuple[Task, ...], arguments: Any) -> None:
        self.tasks = tasks
        self.arguments = arguments


class _Turn:
    """``with turn:`` holds the lock of a device that works, else raises; if the device is lost inside, that is remembered and told. Ctrl-C
    waits until the end."""

    __slots__ = ("_device", "lock")

    def __init__(self, device: WgpuDevice) -> None:
        self._device = device
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        interrupts.enter()
        self.lock.acquire()
        try:
            self._device._check()
        except BaseException:
            self.lock.release()
            interrupts.leave()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        try:
            if isinstance(error, DeviceLost):
                self._device._lose(error)
        finally:
            self.lock.release()
            interrupts.leave()


class WgpuFetch:
    """A `Fetch`: where its submission lands until the bytes are taken."""

    __slots__ = ("_at", "_data", "_device", "_landing", "_nbytes")

    def __init__(self, device: WgpuDevice, landing: Landing, at: int, nbytes: int) -> None:
        self._device = device
        self._landing: Landing | None = landing
        self._at = at
        self._nbytes = nbytes
        self._data = b""

    def take(self) -> bytes | None:
        """See `Fetch.take`. While another thread is inside of the device, which may take long, the answer is None too."""
        if self._landing is None:
            return self._data
        turn = self._device._turn
        if not turn.lock.acquire(blocking=False):
            return None
        try:
            with turn:
                landing = self._landing
                if landing is not None:
                    if landing.mapping is not None:
                        self._device._stream.poll()
                    self._settle(landing)
                return self._data if self._landing is None else None
        finally:
            turn.lock.release()

    def wait(self) -> bytes:
        """See `Fetch.wait`."""
        turn = self._device._turn
        with turn.lock:
            self._device.waits += 1
            landing = self._landing
            if landing is not None:
                with turn:
                    self._device._stream.wait_for(landing)
                    self._device._check()
                    self._settle(landing)
            return self._data

    def _settle(self, landing: Landing) -> None:
        """Keep the bytes if they are there. Raises the landing's problem."""
        if landing.problem is not None:
            raise landing.problem
        if landing.data is not None:
            self._data = landing.data[self._at : self._at + self._nbytes]
            self._landing = None


class WgpuDevice:
    """One adapter of wgpu. See `spirograd.runtime.device.Device` for the methods.

    Options: ``checked`` (modules with wgpu's own checks), ``cap`` (bytes of device memory to use at most).
    """

    def __init__(self, features: Features, checked: bool, cap: int | None) -> None:
        self._turn = _Turn(self)
        self.waits = 0
        self._trouble = ""  # why the device cannot be used any more
        self._trash: deque[Place] = deque()  # appended to by finalizers, which may run anywhere: no lock there
        self._features = features
        self._device = create_device(features)
        self.info = features.info
        self.caps = features.caps
        self._allocator = Allocator(self._device, self.caps.max_allocation, cap)
        self._stream = Stream(self._device)
        self._pipelines = Pipelines(self._device, checked)
        self._push_limit = self.caps.max_push_constants
        self._dynamic_offset = ffi.new("uint32_t[1]")
        self._losses = losses()  # of this process, that we know not to be ours
        _open_devices.add(self)

    # --- memory ---

    def allocate(self, nbytes: int, zeroed: bool = True) -> Buffer:
        """See `Device.allocate`. Raises OutOfDeviceMemory with the bytes wanted and the limit."""
        with self._turn:
            self._collect()
            try:
                place = self._allocator.take(nbytes)
            except OutOfDeviceMemory:
                self._stream.finish()  # what was freed comes back once the device is idle
                place = self._allocator.take(nbytes)
            return Buffer(place.size, place.address, place)

    def free(self, buffer: Buffer) -> None:
        """See `Device.free`. May be called from finalizers, also while this device is at work."""
        self._trash.append(buffer.handle)

    def upload(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        """See `Device.upload`."""
        if not len(data):
            return
        with self._turn:
            self._upload(buffer.handle, offset, data)

    def _upload(self, place: Place, offset: int, data: memoryview) -> None:
        """wgpu writes whole words: at ragged ends those that are there are read first."""
        end = offset + len(data)
        first, last = offset // 4 * 4, -(-end // 4) * 4
        if (first, last) != (offset, end):
            whole = bytearray(last - first)
            self.waits += 1
            edges = {(first, first + 4), (last - 4, last)}
            for begin, stop in edges:
                self._stream.read(place.buffer, place.at(begin, 4), memoryview(whole)[begin - first : stop - first])
            whole[offset - first : end - first] = data
            offset, data = first, memoryview(whole)
        at = place.at(offset, len(data))
        self._stream.write(place.buffer, at, data)

    def download(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        """See `Device.download`."""
        with self._turn:
            self._download(buffer.handle, offset, out)
            self._check()

    def fetch(self, buffer: Buffer, offset: int, nbytes: int) -> WgpuFetch:
        """See `Device.fetch`."""
        check_range(buffer, offset, nbytes)
        with self._turn:
            place = buffer.handle
            landing, at = self._stream.fetch(place.buffer, place.at(offset, nbytes), nbytes)
            return WgpuFetch(self, landing, at, nbytes)

    def _download(self, place: Place, offset: int, out: memoryview) -> None:
        self.waits += 1
        end = offset + len(out)
        first, last = offset // 4 * 4, -(-end // 4) * 4
        if (first, last) == (offset, end):
            at = place.at(offset, len(out))
            self._stream.read(place.buffer, at, out)
            return
        whole = memoryview(bytearray(last - first))
        at = place.at(first, len(whole))
        self._stream.read(place.buffer, at, whole)
        out[:] = whole[offset - first : end - first]

    def fill(self, buffer: Buffer, offset: int, nbytes: int, word: int) -> None:
        """See `Device.fill`."""
        if not nbytes:
            return
        with self._turn:
            place = buffer.handle
            at = place.at(offset, nbytes)
            self._stream.fill(place.buffer, at, nbytes, word)

    def copy(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        """See `Device.copy`. Raises ValueError if both ranges overlap."""
        if not nbytes:
            return
        if target.handle is source.handle and abs(target_offset - source_offset) < nbytes:
            raise ValueError("a copy within one buffer must not overlap itself")
        with self._turn:
            to, of = target.handle, source.handle
            if target_offset % 4 or source_offset % 4 or nbytes % 4:
                data = memoryview(bytearray(nbytes))
                self._download(of, source_offset, data)
                self._upload(to, target_offset, data)
                return
            begin, end = of.at(source_offset, nbytes), to.at(target_offset, nbytes)
            self._stream.copy(of.buffer, begin, to.buffer, end, nbytes)

    def host_view(self, buffer: Buffer) -> memoryview | None:
        """None: memory of wgpu is not mapped while kernels may use it."""
        return None

    def wrap(self, address: int, nbytes: int) -> Buffer | None:
        """None: host memory cannot be used in place here."""
        return None

    # --- kernels ---

    def load(self, kernel: CompiledKernel) -> Executable:
        """Make pipelines of the kernel's SPIR-V modules. Raises SpirogradRuntimeError on a bad module."""
        if kernel.target_name != "wgpu":
            raise SpirogradRuntimeError(f"kernel {kernel.name} was compiled for {kernel.target_name!r}, not for wgpu")
        with self._turn:
            size = kernel.args.size
            if size > ARGUMENT_BYTES:
                raise SpirogradRuntimeError(f"the arguments of {kernel.name} take {size} bytes; at most {ARGUMENT_BYTES} are possible")
            indirect = size > self._push_limit
            tasks = []
            for info in kernel.tasks:
                what = f"{kernel.name} ({info.name})"
                immediates = 0 if indirect else size
                pipeline = self._pipelines.create(kernel.binaries[info.binary], info.entry, len(info.bindings), immediates, indirect, what)
                tasks.append(Task(info, pipeline, *extent(info, self.caps, self._features.kind)))
            arguments = self._pipelines.group([(self._stream.ring, 0, size)], dynamic=True) if indirect else None
            return Executable(tuple(tasks), arguments)

    def launch(self, executable: Executable, block: bytes | bytearray, counts: Sequence[int | None]) -> None:
        """See `Device.launch`. Records the dispatches; they are submitted every few hundred, or when somebody waits."""
        with self._turn:
            stream = self._stream
            if stream.recorded >= BATCH:
                stream.flush()
            if len(self._trash) > _TRASH_LIMIT:
                self._collect()
            with telling("launch a kernel through wgpu"):
                for task, count in zip(executable.tasks, counts):
                    if count is None:
                        count = task.fill
                    elif count <= 0:
                        continue
                    self._dispatch(executable, task, block, min(-(-count // task.group_size), task.limit))

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

    def _bind(self, task: Task, key: tuple[int, ...]) -> Any:
        """The bind group of a task for the buffers at the addresses ``key``."""
        places = [self._allocator.at(address) for address in key]
        for numbers in task.bindings:
            self._allocator.gather([places[number] for number in numbers], self._stream.copy)
        parts = []
        for numbers in task.bindings:  # only now: what was brought together first may have moved again
            place = places[numbers[0]]
            parts.append((place.buffer, place.offset, place.size) if len(numbers) == 1 else (place.buffer, 0, place.buffer.size))
        group = self._pipelines.group(parts)
        task.groups.put(key, group)
        for place in places:
            place.caches.add(task.groups)
        return group

    def synchronize(self) -> None:
        """See `Device.synchronize`. Raises what wgpu has reported, and a lost device."""
        with self._turn:
            self.waits += 1
            self._stream.finish()
            self._collect()
            self._check()

    # --- life and trouble ---

    def _collect(self) -> None:
        """Release what was freed."""
        while self._trash:
            self._allocator.give(self._trash.popleft())

    def _check(self) -> None:
        """Raise if the device cannot be used."""
        if self._trouble:
            raise SpirogradRuntimeError(self._trouble)
        if self._losses != losses():
            self._losses = losses()
            try:
                probe(self._device)
            except DeviceLost as error:
                self._lose(error)

    def _lose(self, error: DeviceLost) -> NoReturn:
        """Remember that the device is lost, and raise that."""
        self._trouble = (
            "the device of wgpu was lost (the driver reset it, often because a kernel ran too long or wrote outside of its arrays); "
            f"its memory is gone: call init again. wgpu says: {lost_reason() or error}"
        )
        raise SpirogradRuntimeError(self._trouble) from error

    def close(self) -> None:
        """Wait for the work under way and release everything."""
        with self._turn.lock:
            if self._device is None:
                return
            _open_devices.discard(self)
            try:
                if not self._trouble:
                    self._stream.finish()
            finally:
                self._trouble = self._trouble or "this device of wgpu was closed"
                self._trash.clear()
                self._allocator.close()
                self._stream.close()
                device, self._device = self._device, None
                del self._stream, self._pipelines, self._allocator
                device.destroy()

    def _abandon(self) -> None:
        """In a forked child: the threads of wgpu do not exist here, nothing may be called any more, not even to clean up."""
        device, self._device = self._device, None
        self._turn = _Turn(self)  # who holds the lock may not exist in this process
        self._trouble = "wgpu does not survive a fork; call init in the child process, or start it with the 'spawn' method"
        abandon(device)

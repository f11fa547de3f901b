"""The Vulkan device: the protocol of `spirograd.runtime.device` on top of memory, stream, transfers and pipelines."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vulkan as vk

from spirograd.base.artifact import CompiledKernel
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.runtime.device import Buffer, Fetch
from spirograd.runtime.devices.fetching import ReadyFetch, check_range
from spirograd.runtime.devices.grid import extent
from spirograd.runtime.devices.open_devices import OpenDevices
from spirograd.runtime.devices.vulkan import transfer
from spirograd.runtime.devices.vulkan.allocator import Allocator, MemoryTypes, Range, clear_host
from spirograd.runtime.devices.vulkan.api import NULL, device_functions
from spirograd.runtime.devices.vulkan.features import create_device, query
from spirograd.runtime.devices.vulkan.fetching import Cell, Cells
from spirograd.runtime.devices.vulkan.instance import choose, take_instance
from spirograd.runtime.devices.vulkan.pipelines import Pipelines
from spirograd.runtime.devices.vulkan.stream import BATCH, WORK_STAGES, Stream

_COMPUTE_BIND = vk.VK_PIPELINE_BIND_POINT_COMPUTE
_COMPUTE_STAGE = vk.VK_SHADER_STAGE_COMPUTE_BIT
# Frees are collected when so many wait; also whenever memory is allocated and on each synchronize.
_TRASH_LIMIT = 1024

_open_devices: OpenDevices[VulkanDevice] = OpenDevices()


class Executable:
    """The pipelines of one kernel: per task (pipeline, group size)."""

    __slots__ = ("__weakref__", "block_size", "tasks")

    def __init__(self, block_size: int, tasks: tuple[tuple[Any, int, int, int], ...]) -> None:
        self.block_size = block_size
        self.tasks = tasks


class VulkanFetch:
    """A `Fetch`: a cell of staging memory until the bytes are taken, whose contents are there when the timeline has passed ``value``."""

    __slots__ = ("_cell", "_data", "_device", "_nbytes", "_value")

    def __init__(self, device: VulkanDevice, cell: Cell, value: int, nbytes: int) -> None:
        self._device = device
        self._cell: Cell | None = cell
        self._value = value
        self._nbytes = nbytes
        self._data = b""

    def take(self) -> bytes | None:
        """See `Fetch.take`. While another thread is inside of the device, which may take long, the answer is None too."""
        if self._cell is None:
            return self._data
        device = self._device
        if not device._lock.acquire(blocking=False):
            return None
        try:
            if self._cell is not None:
                device._check()
                if device._stream.completed < self._value and device._guard(device._stream.poll) < self._value:
                    return None
                self._settle(self._cell)
            return self._data
        finally:
            device._lock.release()

    def wait(self) -> bytes:
        """See `Fetch.wait`."""
        device = self._device
        with device._lock:
            device.waits += 1
            if self._cell is not None:
                device._check()
                if device._stream.submitted < self._value:
                    device._guard(device._stream.flush)
                device._guard(device._stream.wait, self._value)
                self._settle(self._cell)
                device._check()
            return self._data

    def _settle(self, cell: Cell) -> None:
        """The bytes are there: keep them, and give the cell back."""
        self._data = cell.view[: self._nbytes]
        self._cell = None
        cell.home.append(cell)

    def __del__(self) -> None:
        if self._cell is not None:
            self._cell.home.append(self._cell)


class VulkanDevice:
    """One Vulkan device. See `spirograd.runtime.device.Device` for the methods.

    Options: ``validation`` (the validation layer's messages become SpirogradRuntimeErrors at the next call), ``cap`` (bytes of
    device memory to use at most), ``mappable`` (None: memory is mapped where host and device share it; False: never, so that
    everything goes through staging), ``cache_folder`` (of the pipeline cache; None: none).
    """

    def __init__(self, validation: bool, cap: int | None, mappable: bool | None, cache_folder: Path | None) -> None:
        self._instance = take_instance(validation)
        self._messages = self._instance.messages
        self._lock = threading.RLock()
        self.waits = 0
        self._trouble = ""  # why the device cannot be used any more
        self._trash: deque[tuple[str, Any]] = deque()  # appended to by finalizers, which may run anywhere: no lock there
        self._waiting: deque[tuple[int, str, Any]] = deque()  # (timeline value after which it may go, kind, what)
        self._device: Any = None
        try:
            self._features = query(choose(self._instance))
            self._device, family = create_device(self._features)
            self._fn = device_functions(self._device)
            self.info = self._features.info
            self.caps = self._features.caps
            types = MemoryTypes(self._features.physical, self._features.kind, mappable)
            self._allocator = Allocator(self._device, self._fn, types, self._features.max_allocation, cap)
            self._stream = Stream(self._device, self._fn, family, self._allocator)
            self._cells = Cells(self._allocator)
            self._push_limit = self.caps.max_push_constants
            self._pipelines = Pipelines(self._device, self._fn, self._push_limit, self._features.cache_identity, cache_folder)
        except BaseException:
            if self._device is not None:
                self._device_destroy()
            self._instance.close(reuse=False)
            raise
        _open_devices.add(self)

    # --- memory ---

    def allocate(self, nbytes: int, zeroed: bool = True) -> Buffer:
        """See `Device.allocate`. Raises OutOfDeviceMemory with the bytes wanted and the limit."""
        with self._lock:
            self._check()
            self._collect()
            try:
                part = self._allocator.take(max(nbytes, 16))
            except OutOfDeviceMemory:
                # What was freed but may still be in use comes back once the device is idle.
                self._finish()
                self._allocator.release_empty()
                part = self._allocator.take(max(nbytes, 16))
            if zeroed and part.host:
                clear_host(part)
            elif zeroed:
                self._fill(part, 0, part.size, 0)
            return Buffer(-(-max(nbytes, 16) // 16) * 16, part.address, part)

    def free(self, buffer: Buffer) -> None:
        """See `Device.free`. May be called from finalizers, also while this device is at work."""
        self._trash.append(("memory", buffer.handle))

    def upload(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        """See `Device.upload`."""
        with self._lock:
            self._check()
            self._guard(transfer.upload, self._stream, buffer.handle, offset, data)

    def download(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        """See `Device.download`."""
        with self._lock:
            self._check()
            self.waits += 1
            self._guard(transfer.download, self._stream, buffer.handle, offset, out)
            self._check()

    def fetch(self, buffer: Buffer, offset: int, nbytes: int) -> Fetch:
        """See `Device.fetch`."""
        check_range(buffer, offset, nbytes)
        with self._lock:
            if self._trouble or self._messages:
                self._check()
            fetch: Fetch = self._guard(self._fetch, buffer.handle, offset, nbytes)
            return fetch

    def _fetch(self, part: Range, offset: int, nbytes: int) -> Fetch:
        stream = self._stream
        if part.view is not None and stream.idle:
            return ReadyFetch(bytes(part.view[offset : offset + nbytes]), self._count_wait)
        cell = self._cells.take(nbytes)
        try:
            stream.copy(part.block.buffer, part.offset + offset, cell.buffer, cell.offset, nbytes)
        except BaseException:
            cell.home.append(cell)
            raise
        return VulkanFetch(self, cell, stream.pending_value, nbytes)

    def fill(self, buffer: Buffer, offset: int, nbytes: int, word: int) -> None:
        """See `Device.fill`."""
        with self._lock:
            self._check()
            self._fill(buffer.handle, offset, nbytes, word)

    def _fill(self, part: Range, offset: int, nbytes: int, word: int) -> None:
        if nbytes:
            commands = self._guard(self._stream.order)
            self._fn.CmdFillBuffer(commands, part.block.buffer, part.offset + offset, nbytes, word)

    def copy(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        """See `Device.copy`. Raises ValueError if both ranges overlap."""
        if not nbytes:
            return
        if target.handle is source.handle and abs(target_offset - source_offset) < nbytes:
            raise ValueError("a copy within one buffer must not overlap itself")
        with self._lock:
            self._check()
            to, of = target.handle, source.handle
            self._guard(self._stream.copy, of.block.buffer, of.offset + source_offset, to.block.buffer, to.offset + target_offset, nbytes)

    def host_view(self, buffer: Buffer) -> memoryview | None:
        """See `Device.host_view`: there is one where memory is mapped."""
        view: memoryview | None = buffer.handle.view
        return view

    def wrap(self, address: int, nbytes: int) -> Buffer | None:
        """None: host memory cannot be used in place here."""
        return None

    # --- kernels ---

    def load(self, kernel: CompiledKernel) -> Executable:
        """Make pipelines of the kernel's SPIR-V modules. Raises SpirogradRuntimeError on a bad module."""
        self._check()
        if kernel.target_name != "vulkan":
            raise SpirogradRuntimeError(f"kernel {kernel.name} was compiled for {kernel.target_name!r}, not for Vulkan")
        tasks: list[tuple[Any, int, int, int]] = []
        try:
            for task in kernel.tasks:
                pipeline = self._pipelines.create(kernel.binaries[task.binary], task.entry, f"{kernel.name} ({task.name})")
                tasks.append((pipeline, max(task.group_size, 1), *extent(task, self.caps, self._features.kind)))
        except BaseException:
            self._trash.extend(("pipeline", pipeline) for pipeline, *_ in tasks)
            raise
        executable = Executable(kernel.args.size, tuple(tasks))
        pipelines = [("pipeline", pipeline) for pipeline, *_ in tasks]
        weakref.finalize(executable, self._trash.extend, pipelines).atexit = False
        self._check()
        return executable

    def launch(self, executable: Executable, block: bytes | bytearray, counts: Sequence[int | None]) -> None:
        """See `Device.launch`. Records the dispatches; they are submitted every few hundred, or when somebody waits."""
        with self._lock:
            if self._trouble or self._messages:
                self._check()
            stream = self._stream
            if stream.recorded >= BATCH:
                self._guard(stream.flush)
                if len(self._trash) > _TRASH_LIMIT:
                    self._collect()
            size = len(block)
            data = bytes(block) if size % 4 == 0 else bytes(block) + bytes(-size % 4)
            if size > self._push_limit:
                data = self._guard(stream.put_arguments, data).to_bytes(8, "little")
            commands = stream.commands or self._guard(stream.open)
            fn = self._fn
            if data:
                fn.CmdPushConstants(commands, self._pipelines.layout, _COMPUTE_STAGE, 0, len(data), data)
            barrier, memory_barrier, dispatch = fn.CmdPipelineBarrier, stream.barrier, fn.CmdDispatch
            for (pipeline, group_size, limit, fill), count in zip(executable.tasks, counts):
                if count is None:
                    count = fill
                elif count <= 0:
                    continue
                barrier(commands, WORK_STAGES, WORK_STAGES, 0, 1, memory_barrier, 0, NULL, 0, NULL)
                if pipeline is not stream.bound:
                    fn.CmdBindPipeline(commands, _COMPUTE_BIND, pipeline)
                    stream.bound = pipeline
                dispatch(commands, min(-(-count // group_size), limit), 1, 1)
                stream.recorded += 1

    def synchronize(self) -> None:
        """See `Device.synchronize`. Raises what the validation layer has reported, and a lost device."""
        with self._lock:
            self._check()
            self.waits += 1
            self._finish()
            self._check()

    def _count_wait(self) -> None:
        with self._lock:
            self.waits += 1

    # --- life and trouble ---

    def _finish(self) -> None:
        if self._stream.commands is not None or self._stream.completed < self._stream.submitted:
            self._guard(self._stream.finish)
        if self._trash or self._waiting:
            self._collect()

    def _collect(self) -> None:
        """Release what was freed and is no longer in use."""
        after = self._stream.pending_value
        while self._trash:
            kind, what = self._trash.popleft()
            self._waiting.append((after, kind, what))
        if not self._waiting:
            return
        done = self._guard(self._stream.poll)
        while self._waiting and self._waiting[0][0] <= done:
            _, kind, what = self._waiting.popleft()
            if kind == "memory":
                self._allocator.give(what)
            else:
                self._pipelines.destroy(what)

    def _guard(self, function: Any, *args: Any) -> Any:
        """Call into Vulkan; a lost device is remembered, and told clearly from then on."""
        try:
            return function(*args)
        except SpirogradRuntimeError as error:
            if "VK_ERROR_DEVICE_LOST" not in str(error):
                raise
            self._trouble = (
                "the Vulkan device was lost (the driver reset it, often because a kernel ran too long or wrote outside of its "
                "arrays); its memory is gone: call init again"
            )
            raise SpirogradRuntimeError(self._trouble) from error

    def _check(self) -> None:
        if self._trouble:
            raise SpirogradRuntimeError(self._trouble)
        if self._messages:
            raise SpirogradRuntimeError("the Vulkan validation layer reports:\n" + self._take_messages())

    def _take_messages(self) -> str:
        texts: list[str] = []
        while self._messages:
            texts.append(self._messages.popleft())
        return "\n".join(texts)

    def close(self) -> None:
        """Wait for the work under way and release everything. Raises if the validation layer complains even then."""
        with self._lock:
            if self._device is None:
                return
            _open_devices.discard(self)
            self._fn.DeviceWaitIdle(self._device)
            self._device_destroy()
            self._instance.close(reuse=not self._trouble)
            self._trouble = self._trouble or "this Vulkan device was closed"
            if self._messages:
                raise SpirogradRuntimeError("the Vulkan validation layer reports on closing:\n" + self._take_messages())

    def _device_destroy(self) -> None:
        """Destroy what exists; also after a constructor that failed half-way."""
        for part in ("_pipelines", "_cells", "_stream", "_allocator"):
            if hasattr(self, part):
                getattr(self, part).close()
        device, self._device = self._device, None
        device_functions(device).DestroyDevice(device, NULL)

    def _abandon(self) -> None:
        """In a forked child: the driver's threads do not exist here, nothing may be called any more, not even to clean up."""
        self._device = None
        self._lock = threading.RLock()  # its owner may not exist in this process
        self._trouble = "Vulkan does not survive a fork; call init in the child process, or start it with the 'spawn' method"

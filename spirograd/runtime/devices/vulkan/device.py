"""The Vulkan device: memory, stream, transfers and pipelines as a `StreamedDevice`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from spirograd.base import validity
from spirograd.base.artifact import CompiledKernel, Stage
from spirograd.base.device import Buffer, CodeCache, NativeEntry, Sections, Step
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.loc import Loc
from spirograd.runtime.devices import interrupts
from spirograd.runtime.devices.artifacts import check_target
from spirograd.runtime.devices.deletion import COLLECT_AT
from spirograd.runtime.devices.driver_faults import FLIGHT, Text
from spirograd.runtime.devices.grid_size import grid_limits
from spirograd.runtime.devices.open_devices import OpenDevices
from spirograd.runtime.devices.query_timer import QueryStopwatch
from spirograd.runtime.devices.staging import StagingCells
from spirograd.runtime.devices.streamed import DeviceLost, StreamedDevice
from spirograd.runtime.devices.vulkan import inspection, metal_memory
from spirograd.runtime.devices.vulkan.allocator import FIRST_BLOCK, FIRST_BLOCK_OF_HOST, Allocator, MemoryTypes, Range, clear_host
from spirograd.runtime.devices.vulkan.api import NULL, device_functions, ffi, number
from spirograd.runtime.devices.vulkan.call_words import BATCH
from spirograd.runtime.devices.vulkan.dispatch import Executable, dispatch, padded
from spirograd.runtime.devices.vulkan.features import create_device, query
from spirograd.runtime.devices.vulkan.instance import Instance, choose, keep_driver_loaded, take_instance
from spirograd.runtime.devices.vulkan.pipelines import Pipelines
from spirograd.runtime.devices.vulkan.series import CommandPool, RecordedSeries, SeriesRecorder
from spirograd.runtime.devices.vulkan.side_streams import Event, SideStreams
from spirograd.runtime.devices.vulkan.stream import POLL_NANOSECONDS, RECORDED, Stream
from spirograd.runtime.devices.vulkan.timer import VulkanTimer
from spirograd.runtime.devices.vulkan.transfer import VulkanTransfers

if TYPE_CHECKING:
    from spirograd.runtime.native import launch_function

# If freed memory that pending work may still use exceeds this size, an allocation waits for that work.
_HELD_BYTES = 128 << 20


class VulkanDevice(StreamedDevice):
    """A Vulkan device.

    Options: ``validation`` (the validation layer's messages become SpirogradRuntimeErrors at the next call), ``cap`` (the most bytes of
    device memory to use), ``mappable`` (None: memory is mapped where host and device share it; False: never, so that all transfers use
    staging), ``cache_folder`` (the folder of the pipeline cache; None: no cache), ``requested`` (the requested device, see `choose`),
    ``profile`` (see `loader.open_device`).
    """

    api = "Vulkan"
    open_devices = OpenDevices()
    on_host = False

    def __init__(
        self,
        validation: bool,
        cap: int | None,
        mappable: bool | None,
        cache_folder: Path | None,
        requested: str = "",
        profile: str = "",
    ) -> None:
        super().__init__()
        self._pools: set[CommandPool] = set()  # Of recorded series.
        self._cache: CodeCache | None = None
        self._lent: weakref.WeakKeyDictionary[Any, Range] = weakref.WeakKeyDictionary()  # By user.
        self._lends = False  # Whether some of it may be in use.
        self._instance = take_instance(validation)
        self._messages = self._instance.messages
        try:
            self._features = query(choose(self._instance, requested), self._instance, profile)
            self._device, self._family, queues = create_device(self._features)
            self._fn = device_functions(self._device)
            self.info = self._features.info
            self.caps = self._features.caps
            types = MemoryTypes(self._features.physical, self._features.kind, mappable)
            first_block = FIRST_BLOCK_OF_HOST if self._features.kind == "cpu" else FIRST_BLOCK
            self._allocator = Allocator(self._device, self._fn, types, self._features.max_allocation, cap, first_block)
            # A driver that runs on the CPU needs the processor time that polling takes.
            poll_nanoseconds = 0 if self._features.kind == "cpu" else POLL_NANOSECONDS
            flight = FLIGHT if self._features.kind == "cpu" else None
            make = partial(Stream, self._device, self._fn, self._family, self._allocator, poll_nanoseconds, flight)
            self._own = self._stream = make()  # The latter: the stream that receives work.
            self._cells = StagingCells(partial(self._allocator.create_block, staging=True), self._allocator.destroy_block)
            self._transfers = VulkanTransfers(self._stream, self._cells)
            self._push_limit = self.caps.max_push_constants
            identity, size = self._features.cache_identity, self._features.subgroup_size
            self._pipelines = Pipelines(self._device, self._fn, self._push_limit, identity, cache_folder, size)
            self._own.layout = self._pipelines.layout
            self._sides = SideStreams(self._own, make, queues)
            self.several_queues = queues > 1
        except BaseException:
            if self._device is not None:
                self._device_destroy()
            self._instance.close(reuse=False)
            raise
        self.open_devices.add(self)

    # --- memory ---

    def _allocate(self, nbytes: int, zeroed: bool) -> Buffer:
        part = self._allocator.take(max(nbytes, 16))
        if zeroed and part.host:
            clear_host(part)
        elif zeroed:
            self._transfers.fill(part, 0, part.size, 0)
        return Buffer(-(-max(nbytes, 16) // 16) * 16, part.address, part)

    def adopt_metal(self, metal_buffer: int, offset: int, nbytes: int) -> Buffer | None:
        """See `UsesMetalBuffers`."""
        if metal_memory.EXTENSION not in self._features.extensions or nbytes == 0:
            return None
        with self._turn:
            self._collect()  # Former imports, which keep memory of the other library.
            part = self._allocator.import_metal(metal_buffer, offset, nbytes)
        return Buffer(nbytes, part.address, part)

    def _reclaim(self) -> None:
        super()._reclaim()
        self._allocator.release_empty()

    def host_view(self, buffer: Buffer) -> memoryview | None:
        """Return a view of mapped memory, see `Device.host_view`."""
        view: memoryview | None = buffer.handle.view
        return view

    def lend(self, buffer: Buffer, borrower: object) -> None:
        """See `LendsMemory`."""
        with self._turn:
            self._lent[borrower] = buffer.handle
            self._lends = True
            validity.renew()  # Launches by compiled code do not wait.

    def _after_work(self) -> None:
        """Wait until the work is complete while memory is lent.

        The host reads and writes lent memory by plain instructions, which cannot wait.
        """
        if self._lends:
            self._lends = bool(self._lent)
            if self._lends:
                self._stream.finish()  # On others no work is left.

    # --- kernels ---

    def load(self, kernel: CompiledKernel) -> Executable:
        """Make pipelines of the kernel's SPIR-V modules. Raises SpirogradRuntimeError on an invalid module."""
        self._check()
        check_target(kernel, self.caps.target_name, self.api)
        pipelines: list[object] = []
        try:
            for task in kernel.tasks:
                pipelines.append(self._pipelines.create(kernel.binaries[task.binary], task.entry, f"{kernel.name} ({task.name})"))
        except BaseException as error:
            self._deletions.extend(pipelines)
            if isinstance(error, DeviceLost):
                self._lose(error)
            raise
        grids = (grid_limits(task, self.caps, self._features.kind) for task in kernel.tasks)
        executable = Executable(kernel.name, tuple((p, number(p), *grid) for p, grid in zip(pipelines, grids)), kernel.args.size, pipelines)
        weakref.finalize(executable, self._deletions.extend, pipelines).atexit = False
        self._check()
        return executable

    def code_stages(self, kernel: CompiledKernel) -> dict[str, Stage]:
        """See `ShowsMachineCode`. Compiles the kernel once more, on a logical device of its own."""
        return inspection.code_stages(self._features, kernel)

    def keep_code(self, cache: CodeCache | None) -> None:
        """Keep code, see `KeepsCode`. Prepares the handler of memory faults, if the driver runs on the CPU."""
        self._cache = cache
        if self._features.kind == "cpu":
            from spirograd.runtime.devices import cpu_pool

            cpu_pool.prepare(cache)

    def locate(self, executable: Executable, locations: Sequence[Loc | None]) -> None:
        """See `ReportsFaults`."""
        executable.locate(next(iter(locations), None))

    def launch(self, executable: Executable, block: bytes | bytearray, counts: Sequence[int | None]) -> None:
        """Record the dispatches, see `Device.launch`.

        They are submitted every few hundred dispatches, or when the host waits.
        """
        interrupts.watch()
        try:
            with self._turn.lock:  # `Turn` written out, which is faster.
                if self._trouble or self._messages:
                    self._check()
                stream = self._stream
                if stream.words[RECORDED] >= BATCH:
                    stream.flush()
                    if len(self._deletions.released) > COLLECT_AT and stream is self._own:
                        self._collect()
                data = padded(block)
                if len(block) > self._push_limit:
                    data = stream.put_arguments(data).to_bytes(8, "little")
                commands = stream.open()
                if stream.flight is not None:
                    stream.flight.add(executable.text)
                dispatch(stream, commands, executable, data, counts)
                if self._lends:
                    self._after_work()
        except DeviceLost as error:
            self._lose(error)
        finally:
            if interrupts.pending.handler is not None:
                interrupts.deliver()

    def task_timer(self) -> VulkanTimer:
        """See `TimesTasks`."""
        with self._turn:
            return VulkanTimer(self, self._features.physical, self._family, partial(VulkanDevice.launch, self))

    def stopwatch(self) -> QueryStopwatch[VulkanDevice, Executable]:
        """See `MeasuresLaunches`."""
        return QueryStopwatch(self.task_timer())

    def combine(self, executables: Sequence[Executable]) -> Executable:
        """See `MeasuresLaunches`."""
        first, tasks = executables[0], tuple([one.tasks[k] for k, one in enumerate(executables)])
        combined = Executable(first.name, tasks, first.nbytes, first.resources, executables)
        combined.text = first.text
        return combined

    # --- launches without Python ---

    def native_code(self) -> launch_function.Code | None:
        """See `CallsNatively.native_code`."""
        from spirograd.runtime.native import launch_function  # Many processes record no launch.

        return launch_function.code(self._cache)

    def entry(self, executable: Executable, counts: Sequence[int | None]) -> NativeEntry | None:
        """Return the entry for compiled code, see `CallsNatively.entry`.

        Compiled code records launches in the open command buffer, and leaves to Python, which follows in the same turn, those for which a
        command buffer must be submitted or waited for. It does not wait after a launch, which lent memory requires.
        """
        if self._lends or executable.nbytes > self._push_limit or executable.nbytes % 4:
            return None
        from spirograd.runtime.devices.vulkan import call  # Many processes record no launch.

        with self._turn:
            code = call.connect(self._own, self._cache)
            executable.keep_text()
        if code is None:
            return None
        prepared = call.Prepared(self._own, executable, counts)
        weakref.finalize(prepared, self._deletions.put, prepared.words).atexit = False

        def launch(_: int) -> None:
            self.launch(executable, prepared.refused(), counts)

        return NativeEntry(code.record, prepared.address, self._turn.lock, (executable, prepared), prepared.refusal, launch)

    # --- streams ---

    def new_stream(self) -> Stream:
        """See `HasStreams`."""
        with self._turn:
            return self._sides.take()

    def delete_stream(self, stream: Stream) -> None:
        """See `HasStreams`."""
        with self._turn:
            self._sides.give(stream)

    @contextlib.contextmanager
    def on_stream(self, stream: Stream | None) -> Iterator[None]:
        """See `HasStreams`."""
        if stream is None:
            yield
            return
        with self._turn:
            transfers = self._transfers
            self._sides.busy[stream] = None
            self._stream, self._transfers = stream, VulkanTransfers(stream, self._cells)
            try:
                yield
            finally:
                self._stream, self._transfers = self._own, transfers

    def order_streams(self, first: Stream | None, then: Stream | None) -> None:
        """See `HasStreams`."""
        with self._turn:
            self._sides.order(first, then)

    def stream_done(self, stream: Stream | None) -> bool:
        """See `HasStreams`."""
        with self._turn:
            stream = stream or self._own
            stream.flush()
            return stream.idle

    def finish_stream(self, stream: Stream | None) -> None:
        """See `HasStreams`."""
        with self._turn:
            self.waits += 1
            (stream or self._own).finish()

    def record_event(self, stream: Stream | None) -> Event:
        """See `HasStreams`."""
        with self._turn:
            return self._sides.record(stream)

    def wait_for_event(self, event: Event, stream: Stream | None) -> None:
        """See `HasStreams`."""
        with self._turn:
            self._sides.wait(event, stream)

    def finish_event(self, event: Event) -> None:
        """See `HasStreams`."""
        with self._turn:
            self.waits += 1
            event.stream.wait(event.value)

    # --- graphs ---

    def record(self, steps: Sequence[Step | Sections]) -> RecordedSeries:
        """Record a command buffer, see `RecordsWork.record`. It may be submitted any number of times."""
        with self._turn:
            recorder = SeriesRecorder(self._stream, self._allocator, self._family, self._push_limit)
            try:
                commands = recorder.record(steps)
                for part, data in recorder.arguments:
                    self._transfers.upload(part, 0, memoryview(data))
            except BaseException:
                self._deletions.extend(recorder.owned)
                raise
            self._pools.add(recorder.pool)
        recorded = RecordedSeries(commands, steps)
        weakref.finalize(recorded, self._deletions.extend, recorder.owned).atexit = False
        return recorded

    def repeat(self, recorded: RecordedSeries) -> None:
        """See `RecordsWork.repeat`."""
        if "launch" in vars(self):  # Its tasks are to be timed.
            recorded.by_parts(self)
            return
        with self._turn:
            self._stream.submit(recorded.commands)
            if len(self._deletions.released) > COLLECT_AT:
                self._collect()
            self._after_work()

    # --- waits, failures, the end ---

    def _finish(self) -> None:
        self._sides.finish()
        self._own.finish()

    def _collect(self) -> None:
        if self._deletions:
            self._sides.join()
        self._deletions.collect(self._own.pending_value, self._own.poll)
        if self._deletions.held > _HELD_BYTES:
            self._own.finish()
            self._deletions.collect(self._own.pending_value, self._own.poll)

    def _delete(self, thing: object) -> None:
        if isinstance(thing, Range):
            borrower = next((one for one, part in self._lent.items() if part is thing), None)
            if borrower is None:
                self._allocator.give(thing)
            else:
                weakref.finalize(borrower, self._deletions.put, thing).atexit = False
        elif isinstance(thing, CommandPool):
            self._pools.discard(thing)
            thing.destroy()
        elif not isinstance(thing, Text):
            self._own.forget_recorded()
            if not isinstance(thing, ctypes.Array):  # Words of a prepared launch.
                self._pipelines.destroy(thing)

    def _check(self) -> None:
        if self._trouble:
            super()._check()
        if self._messages:
            raise SpirogradRuntimeError("the Vulkan validation layer reports:\n" + self._take_messages())

    def _take_messages(self) -> str:
        texts: list[str] = []
        while self._messages:
            texts.append(self._messages.popleft())
        return "\n".join(texts)

    def _delete_all(self) -> None:
        self._fn.DeviceWaitIdle(self._device)
        borrowers = list(self._lent)
        if borrowers:
            self._close_parts("_pipelines", "_cells", "_sides", "_own")
            if self._trouble:
                keep_driver_loaded()
            kept = _Kept(self._allocator, self._fn, self._device, self._instance, bool(self._trouble))
            for borrower in borrowers:
                borrower.kept = kept
            return
        self._device_destroy()
        self._instance.close(reuse=not self._trouble)
        if self._messages:
            raise SpirogradRuntimeError("the Vulkan validation layer reports on closing:\n" + self._take_messages())

    def _device_destroy(self) -> None:
        """Destroy all resources; also after a constructor that failed half-way."""
        self._close_parts("_pipelines", "_cells", "_sides", "_own", "_allocator")
        device_functions(self._device).DestroyDevice(self._device, NULL)

    def _close_parts(self, *names: str) -> None:
        for pool in self._pools:
            pool.destroy()
        for part in names:
            if hasattr(self, part):
                getattr(self, part).close()


class _Kept:
    """The remains of a closed device, kept as long as an object that borrowed its memory refers to them."""

    def __init__(self, allocator: Allocator, functions: SimpleNamespace, device: ffi.CData, instance: Instance, failed: bool) -> None:
        weakref.finalize(self, _destroy, os.getpid(), allocator, functions, device, instance, failed).atexit = False


def _destroy(process: int, allocator: Allocator, functions: SimpleNamespace, device: ffi.CData, instance: Instance, failed: bool) -> None:
    """Destroy the remains.

    ``failed``: whether the device was closed after a failure. Finalizers call this, which must not create an instance.
    """
    if process != os.getpid():  # In a forked child the driver must not be called.
        return
    allocator.close()
    functions.DestroyDevice(device, NULL)
    if failed:
        instance.destroy()
    else:
        instance.close()

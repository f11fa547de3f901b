"""A device of CUDA or HIP: a stream, a pool of memory and loaded kernels as a `StreamedDevice`."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Iterator, Sequence
from ctypes import c_void_p
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from spirograd.base import validity
from spirograd.base.artifact import GPU_STACK, CompiledKernel, Stage, TaskInfo
from spirograd.base.device import ARRIVAL_LIMIT, Arrival, Buffer, CodeCache, Loop, NativeEntry, Sections, Step
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.records import replace
from spirograd.runtime.devices import interrupts
from spirograd.runtime.devices.artifacts import check_target
from spirograd.runtime.devices.completed_readback import check_range
from spirograd.runtime.devices.deletion import COLLECT_AT, DeletionQueue
from spirograd.runtime.devices.gpu import call, disassembly, modules
from spirograd.runtime.devices.gpu.allocator import DeviceRange, Foreign, Pool
from spirograd.runtime.devices.gpu.call import Launch
from spirograd.runtime.devices.gpu.driver import Driver
from spirograd.runtime.devices.gpu.driver_graphs import (
    CannotBeRecorded,
    DriverGraph,
    GraphWork,
    Loaded,
    LoopRecorder,
    SeriesRecorder,
    condition_kernel,
)
from spirograd.runtime.devices.gpu.features import Features
from spirograd.runtime.devices.gpu.readback import CellArrival, pinned_cells
from spirograd.runtime.devices.gpu.repeated_launch import GraphLaunch, RepeatedLaunch
from spirograd.runtime.devices.gpu.side_streams import Event, SideStreams
from spirograd.runtime.devices.gpu.stream import Stream
from spirograd.runtime.devices.gpu.timer import GpuTimer
from spirograd.runtime.devices.gpu.transfer import GpuTransfers
from spirograd.runtime.devices.grid_size import grid_limits
from spirograd.runtime.devices.open_devices import OpenDevices
from spirograd.runtime.devices.query_timer import QueryStopwatch
from spirograd.runtime.devices.streamed import DeviceLost, StreamedDevice, Turn

if TYPE_CHECKING:
    from spirograd.runtime.native import launch_function

# Workgroups per multiprocessor of tasks that stride, see `TaskInfo.strides`. On an H200, loops take as long with 16 to 128 of them; groups
# that have work more or less by chance, as the factorisations of Genesis, 10 % longer with 64.
_STRIDING = 128
_SOMEWHERE = 256  # The address that stands for an array of other libraries without elements and without an address.


class Executable:
    """A loaded kernel: ``run(block, counts)`` launches its ``tasks`` and returns an error code.

    ``words``: the memory that ``run`` reads. ``nbytes``: the bytes of an argument block. ``usage``: the resources of each task.
    ``by_address``: whether the argument block is too large for parameters, so that tasks get its address. ``kept``: executables that the
    functions belong to.
    """

    __slots__ = ("__weakref__", "by_address", "kept", "name", "nbytes", "run", "tasks", "usage", "words")

    def __init__(
        self,
        name: str,
        nbytes: int,
        run: Launch,
        words: ctypes.Array[ctypes.c_uint64],
        tasks: Sequence[call.LaunchTask],
        usage: tuple[modules.Usage, ...],
        by_address: bool,
        kept: object = None,
    ) -> None:
        self.kept = kept
        self.name = name
        self.run = run
        self.words = words
        self.tasks = tasks
        self.nbytes = nbytes
        self.usage = usage
        self.by_address = by_address


class ContextTurn(Turn):
    """A turn with the device's context current in the thread. The turn restores the previous context at its end."""

    __slots__ = ("_entered", "_gpu")

    def __init__(self, device: GpuDevice) -> None:
        super().__init__(device)
        self._gpu = device
        self._entered: list[int] = []  # For each turn that the thread with the lock is in.

    def __enter__(self) -> None:
        super().__enter__()
        device = self._gpu
        entered = device._enter()
        if entered < 0:
            try:
                device._driver.check(-entered, "make the context current")
            except BaseException as error:
                super().__exit__(None, error, None)
                raise
        self._entered.append(entered)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        entered = self._entered.pop()
        if entered:
            self._gpu._driver.leave(entered)
        super().__exit__(kind, error, where)


class GpuDevice(StreamedDevice):
    """One device of ``driver``. Other users of the driver in the process, such as torch, use it, too.

    ``cap``: the most bytes of device memory to use.
    """

    on_host = False
    several_queues = True
    open_devices = OpenDevices()
    turn_type = ContextTurn

    def __init__(self, driver: Driver, features: Features, cap: int | None) -> None:
        super().__init__()
        self.info, self.caps = features.info, features.caps
        self.api = driver.api
        self._driver = driver
        self.ordinal = features.ordinal
        self.dlpack_device = (driver.dlpack_type, features.ordinal)
        self._processors = features.processors
        self._loaded: dict[Loaded, None] = {}  # In the order of the calls.
        self._unloads = DeletionQueue(self._unload)  # Of these, when the device is idle: unloading waits for kernels.
        self._has_stack = False  # For functions that call themselves.
        self._setter: Executable | None = None  # Of the values of conditions.
        self._assembly = threading.Lock()  # Held while the driver compiles, and while the device is closed.
        self._context = driver.context(features.ordinal)
        self._cache: CodeCache | None = None
        self._code = call.compiled(driver)
        self._enter = call.enterer(self._code, self._context)
        self._device = self._context
        try:
            with self._turn:
                self._stream = Stream(self._code, self._context)
                self._between = self._stream.event()  # Recorded on one stream, for another one to wait for.
                self._sides = SideStreams(self._stream, self._between)
                self._pool = Pool(self._stream, features.ordinal, features.total, cap)
                self._cells = pinned_cells(self._stream)
                self._transfers: GpuTransfers = GpuTransfers(self._stream, self._cells, self._sides)
        except BaseException:
            self._destroy()
            raise
        self.open_devices.add(self)

    # --- memory ---

    def _allocate(self, nbytes: int, zeroed: bool) -> Buffer:
        memory = self._pool.take(-(-max(nbytes, 16) // 16) * 16)
        if zeroed:
            self._transfers.fill(memory, 0, memory.nbytes, 0)
        return Buffer(memory.nbytes, memory.address, memory)

    def _reclaim(self) -> None:
        super()._reclaim()
        self._pool.trim()

    def _delete(self, thing: DeviceRange | Foreign) -> None:
        if isinstance(thing, DeviceRange):
            self._sides.on_own(lambda: self._give(thing))

    def _give(self, memory: DeviceRange) -> None:
        self._sides.join()
        self._pool.give(memory)

    # --- memory of other libraries ---

    def read_into_async(self, buffer: Buffer, offset: int, out: memoryview) -> Arrival:
        """See `ReadsIntoMemory`."""
        check_range(buffer, offset, len(out), ARRIVAL_LIMIT)
        with self._turn:
            readback = self._transfers.read_async(buffer.handle, offset, len(out), beside=True)
        return CellArrival(self, readback, lambda done: self._transfers.move_out(done, out))

    def adopt(self, address: int, nbytes: int) -> Buffer | None:
        """See `SharesMemory.adopt`."""
        with self._turn:
            owner = self._driver.owner(address)
        if nbytes and owner != self.ordinal:
            return None
        return Buffer(nbytes, address or _SOMEWHERE, Foreign(address, nbytes))

    @property
    def stream(self) -> int:
        """See `SharesMemory`."""
        return self._stream.handle

    def switch(self, stream: int) -> int:
        """See `SharesMemory.switch`."""
        with self._turn:
            before = self._stream.handle
            self._stream.switch(self._driver.stream(stream), self._between)
        return before

    def export(self, buffer: Buffer) -> None:
        """See `SharesMemory.export`."""
        with self._turn:
            self._pool.exported.add(buffer.handle)

    def free(self, buffer: Buffer) -> None:
        """Free a buffer, see `Device.free`.

        Exported memory may be freed when the device is closed, because no other thread calls the driver then.
        """
        super().free(buffer)
        if self._device is None:
            self._release_exported()

    def close(self) -> None:
        """See `Device.close`."""
        super().close()
        self._release_exported()

    def _release_exported(self) -> None:
        """Free exported memory that was released since the device was closed."""
        released = self._deletions.released
        while released:
            with contextlib.suppress(IndexError):  # Finalizers run in any thread, and within each other.
                memory = released.popleft()
                if memory in self._pool.exported:
                    self._pool.release(memory, self._context)

    def follow(self, stream: int) -> None:
        """See `SharesMemory.follow`."""
        with self._turn:
            self._stream.order(self._driver.stream(stream), self._stream.handle, self._between)

    def precede(self, stream: int) -> None:
        """See `SharesMemory.precede`."""
        with self._turn:
            self._stream.order(self._stream.handle, self._driver.stream(stream), self._between)

    # --- kernels ---

    def assemble(self, kernel: CompiledKernel) -> CompiledKernel:
        """Return cubins in place of PTX, see `Assembler.assemble`. Code objects of HIP are machine code already."""
        if not kernel.tasks:
            return kernel
        with self._assembly:  # In place of a turn: it takes long, and other threads launch meanwhile.
            self._check()
            try:
                return replace(kernel, binaries=modules.assembled(self._driver, self._current, kernel))
            except DeviceLost as error:
                self._lose(error)

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Make the context current in the thread, without a turn."""
        entered = self._enter()
        if entered < 0:
            self._driver.check(-entered, "make the context current")
        try:
            yield
        finally:
            if entered:
                self._driver.leave(entered)

    def load(self, kernel: CompiledKernel) -> Executable:
        """Load the kernel's machine code, or PTX.

        Raises SpirogradRuntimeError with the messages of the driver's compiler if it rejects the code.
        """
        check_target(kernel, self.caps.target_name, self.api)
        with self._turn:
            loaded: list[Loaded] = []
            try:
                if kernel.recursive and not self._has_stack:
                    self._driver.reserve_stack(GPU_STACK)
                    self._has_stack = True
                for binary in kernel.binaries if kernel.tasks else ():
                    loaded.append(Loaded(self._driver.module_unload, self._driver.load(binary, kernel.name).value or 0))
                functions = [
                    modules.function(self._driver, c_void_p(loaded[task.binary].handle), task.entry, f"{kernel.name} ({task.name})")
                    for task in kernel.tasks
                ]
                usage = [modules.usage(self._driver, f, max(task.group_size, 1)) for f, task in zip(functions, kernel.tasks)]
            except BaseException:
                self._unloads.extend(loaded)
                raise
            finally:
                self._loaded.update(dict.fromkeys(loaded))
        grids = [(max(task.group_size, 1), *self._grid(task, used)) for task, used in zip(kernel.tasks, usage)]
        tasks = [call.LaunchTask(function, *grid) for function, grid in zip(functions, grids)]
        run, words = call.launcher(self._code, self._context, self._stream.place, tasks)
        by_address = kernel.args.size > self.caps.max_push_constants
        executable = Executable(kernel.name, kernel.args.size, run, words, tasks, tuple(usage), by_address)
        weakref.finalize(executable, self._unloads.extend, loaded).atexit = False
        return executable

    def _grid(self, task: TaskInfo, usage: modules.Usage) -> tuple[int, int, int]:
        """Return the grid of a task, see `grid_limits`.

        Where only the device knows the number of iterations, the grid has as many groups as run at the same time.
        """
        each, most, _ = grid_limits(task, self.caps, "discrete")
        if task.strides:
            most = min(most, _STRIDING * self._processors)
        return each, most, max(min(most, self._processors * usage.resident), 1)

    def code_stages(self, kernel: CompiledKernel) -> dict[str, Stage]:
        """See `ShowsMachineCode`. Machine code of CUDA is shown if nvdisasm is on the path; the assembly of AMD's GPUs is LLVM's."""
        kernel = self.assemble(kernel)
        usage = "".join(f"{task.name}: {used}\n" for task, used in zip(kernel.tasks, self.load(kernel).usage))
        return {"kernel.usage": usage, **disassembly.stages(kernel)}

    def launch(self, executable: Executable, block: bytes | bytearray, counts: Sequence[int | None]) -> None:
        """See `Device.launch`."""
        interrupts.watch()
        try:
            with self._turn.lock:  # `Turn` written out, which is faster; ``run`` makes the context current.
                if self._trouble:
                    self._check()
                if len(self._deletions.released) > COLLECT_AT:
                    with self._turn:
                        self._collect()
                if type(counts) is not tuple:
                    counts = tuple(counts)
                if executable.by_address:
                    self._launch_by_address(executable, block, counts)
                    return
                code = executable.run(block if type(block) is bytes else bytes(block), counts)
                if code:
                    self._driver.check(code, f"launch kernel {executable.name}")
        except DeviceLost as error:
            self._lose(error)
        finally:
            if interrupts.pending.handler is not None:
                interrupts.deliver()

    def _launch_by_address(self, executable: Executable, block: bytes | bytearray, counts: tuple[int | None, ...]) -> None:
        with self._turn:
            memory = self._sides.on_own(lambda: self._put(block))
            try:
                self._driver.check(executable.run(memory.address.to_bytes(8, "little"), counts), f"launch kernel {executable.name}")
            finally:
                self._deletions.put(memory)

    def _put(self, block: bytes | bytearray) -> DeviceRange:
        memory = self._pool.take(len(block))
        try:
            self._transfers.upload(memory, 0, memoryview(block))
        except BaseException:
            self._deletions.put(memory)
            raise
        return memory

    def part(self, executable: Executable, task: call.LaunchTask) -> Executable:
        """Return one task of ``executable``, which must live as long as the result."""
        run, words = call.launcher(self._code, self._context, self._stream.place, [task])
        return Executable(executable.name, executable.nbytes, run, words, [task], (), executable.by_address)

    def task_timer(self) -> GpuTimer:
        """See `TimesTasks`."""
        with self._turn:
            return GpuTimer(self, self._code, self._context)

    def stopwatch(self) -> QueryStopwatch[GpuDevice, Executable]:
        """See `MeasuresLaunches`."""
        return QueryStopwatch(self.task_timer())

    def combine(self, executables: Sequence[Executable]) -> Executable:
        """See `MeasuresLaunches`."""
        first = executables[0]
        tasks = [one.tasks[k] for k, one in enumerate(executables)]
        usage = tuple([one.usage[k] for k, one in enumerate(executables)])
        run, words = call.launcher(self._code, self._context, self._stream.place, tasks)
        return Executable(first.name, first.nbytes, run, words, tasks, usage, first.by_address, executables)

    def _is_timed(self) -> bool:
        """Return False while another library records a graph on its stream, to which work goes."""
        return not self._stream.is_capturing()

    def clock_hz(self) -> int | None:
        """See `HasClock`."""
        return self._driver.clock_hz(self.ordinal)

    # --- launches without Python ---

    def keep_code(self, cache: CodeCache) -> None:
        """See `KeepsCode.keep_code`."""
        self._cache = cache

    def native_code(self) -> launch_function.Code | None:
        """See `CallsNatively.native_code`."""
        from spirograd.runtime.native import launch_function  # Many processes record no launch.

        return launch_function.code(self._cache)

    def entry(self, executable: Executable, counts: Sequence[int | None]) -> NativeEntry | None:
        """Return the entry for compiled code, see `CallsNatively.entry`.

        Compiled code takes the lock of the device, as `launch` does. Ctrl-C cannot interrupt it, because no Python runs meanwhile.
        """
        if executable.by_address:
            return None
        return RepeatedLaunch(self, executable, tuple(counts)).entry(self._code.prepared)

    # --- streams ---

    def new_stream(self) -> int:
        """See `HasStreams`."""
        with self._turn:
            return self._sides.take()

    def delete_stream(self, stream: int) -> None:
        """See `HasStreams`."""
        with self._turn:
            self._sides.give(stream)

    @contextlib.contextmanager
    def on_stream(self, stream: int | None) -> Iterator[None]:
        """See `HasStreams`."""
        if stream is None:
            yield
            return
        with self._turn:
            self._sides.begin(stream)
            try:
                yield
            finally:
                self._sides.end()

    def order_streams(self, first: int | None, then: int | None) -> None:
        """See `HasStreams`."""
        with self._turn:
            self._sides.order(first, then)

    def stream_done(self, stream: int | None) -> bool:
        """See `HasStreams`."""
        with self._turn:
            return self._stream.idle(self._stream.handle if stream is None else stream)

    def finish_stream(self, stream: int | None) -> None:
        """See `HasStreams`."""
        with self._turn:
            self.waits += 1
            self._stream.finish(stream)

    def record_event(self, stream: int | None) -> Event:
        """See `HasStreams`."""
        with self._turn:
            return self._sides.record(stream)

    def wait_for_event(self, event: Event, stream: int | None) -> None:
        """See `HasStreams`."""
        with self._turn:
            self._sides.wait(event, stream)

    def finish_event(self, event: Event) -> None:
        """See `HasStreams`."""
        with self._turn:
            self.waits += 1
            self._stream.wait(event.handle)

    # --- graphs ---

    def record(self, steps: Sequence[Step | Sections]) -> DriverGraph | None:
        """See `RecordsWork.record`."""
        with self._turn:
            work = GraphWork(self._driver, self._transfers)
            recorder = SeriesRecorder(self._stream, self._sides, self._between, work)
            try:
                handle = self._stream.record_graph(lambda: recorder.give(steps))
            except CannotBeRecorded:
                return None
            return self._loaded_graph(handle, steps)

    @property
    def reads_flags(self) -> bool:
        """See `RecordsLoops`."""
        return self._driver.reads_flags

    def record_loop(self, loop: Loop) -> DriverGraph | None:
        """See `RecordsLoops.record_loop`."""
        with self._turn:
            if self._setter is None:
                self._setter = self.load(condition_kernel(self.caps.target_name))
            work, context = GraphWork(self._driver, self._transfers), self._context & ~1
            recorder = LoopRecorder(self._stream, self._sides, self._between, context, work, self._setter)
            try:
                return self._loaded_graph(recorder.record(loop), ())
            except CannotBeRecorded:
                return None

    def entry_of(self, recorded: DriverGraph) -> NativeEntry:
        """See `RecordsLoops.entry_of`."""
        return GraphLaunch(self, recorded).entry(self._code.repeat)

    def _loaded_graph(self, handle: int, steps: Sequence[Step | Sections]) -> DriverGraph:
        loaded = Loaded(self._driver.graph_unload, handle)
        self._loaded[loaded] = None
        graph = DriverGraph(handle, steps)
        weakref.finalize(graph, self._unloads.put, loaded).atexit = False
        return graph

    def repeat(self, recorded: DriverGraph) -> None:
        """See `RecordsWork.repeat`."""
        if "launch" in vars(self):  # Its tasks are to be timed.
            recorded.by_parts(self)
            return
        with self._turn:
            self._driver.call("launch a graph", self._driver.graph_launch, recorded.handle, self._stream.handle)

    # --- waits, failures, the end ---

    def synchronize(self) -> None:
        """Wait for all work, see `Device.synchronize`. Raises the errors of kernels."""
        interrupts.watch()
        try:
            with self._turn.lock:  # A turn, written out, as in `launch`.
                if self._trouble:
                    self._check()
                self.waits += 1
                if self._sides.busy:
                    with self._turn:
                        self._sides.join()
                self._stream.finish()
                if self._deletions.released or self._unloads.released:  # Statements after the wait cost time, those before it do not.
                    with self._turn:
                        self._collect()
                        self._unloads.collect()
        except DeviceLost as error:
            self._lose(error)
        finally:
            if interrupts.pending.handler is not None:
                interrupts.deliver()

    def _finish(self) -> None:
        self._sides.join()
        self._stream.finish()

    def _finish_all(self) -> None:
        with self._turn:
            self._finish()

    def _unload(self, thing: Loaded) -> None:
        self._loaded.pop(thing, None)
        self._driver.call("unload a kernel", thing.unload, thing.handle)

    def _lose(self, error: DeviceLost) -> NoReturn:
        validity.renew()
        self._trouble = f"the {self.api} device was lost, and its memory is gone: start a new process. {error}"
        raise SpirogradRuntimeError(self._trouble) from error

    def _delete_all(self) -> None:
        if not self._trouble:
            with contextlib.suppress(SpirogradRuntimeError):
                self._finish_all()
        self._stream.back()
        with self._assembly:
            self._destroy()

    def _destroy(self) -> None:
        """Release all resources, whatever errors the driver reports; also after a constructor that failed half-way."""
        driver = self._driver
        entered = driver.enter(self._context)
        if not self._trouble and hasattr(self, "_pool"):
            with contextlib.suppress(SpirogradRuntimeError):
                self._collect()
        for part in ("_transfers", "_cells"):
            if hasattr(self, part):
                getattr(self, part).close()
        for thing in reversed(self._loaded):  # Graphs are released before the modules of their kernels.
            thing.unload(thing.handle)
        self._loaded.clear()
        for part in ("_pool", "_stream"):
            if hasattr(self, part):
                getattr(self, part).close()
        if entered > 0:
            driver.leave(entered)
        driver.forget()
        if self._trouble:
            driver.drop_context(self.ordinal)

    def _abandon(self) -> None:
        super()._abandon()
        self._pool.exported.clear()
        self._assembly = threading.Lock()
        self._trouble = self._driver.forked()

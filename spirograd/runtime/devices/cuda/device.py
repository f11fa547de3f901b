"""The CUDA device: the protocol of `spirograd.runtime.device` on one stream of the driver."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from ctypes import byref, c_void_p
from dataclasses import replace
from types import TracebackType
from typing import Any

from spirograd.base.artifact import CompiledKernel
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.runtime.device import Buffer, Fetch
from spirograd.runtime.devices.cuda import call, modules
from spirograd.runtime.devices.cuda.call import Launch
from spirograd.runtime.devices.cuda.driver import FORKED, NOT_READY, Calls, Driver
from spirograd.runtime.devices.cuda.features import PARAMETER_BYTES, Features
from spirograd.runtime.devices.cuda.fetching import Cell, Cells
from spirograd.runtime.devices.cuda.memory import Pool
from spirograd.runtime.devices.cuda.transfer import Transfers
from spirograd.runtime.devices.fetching import check_range
from spirograd.runtime.devices.grid import grid_limits
from spirograd.runtime.devices.open_devices import OpenDevices

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: no waits for the stream that other code of the process uses by default
# Frees are collected when so many wait; also whenever memory is allocated and on each synchronize.
_TRASH_LIMIT = 1024
# Queries in one wait, some 50 ms; between two of them Python handles Ctrl-C. After the first, a wait sleeps between queries.
_QUERIES = 50_000
_NAP_SECONDS = 100e-6

_open_devices = OpenDevices()


class Executable:
    """A loaded kernel: ``run(block, counts)`` launches its tasks and gives an error code.

    ``usage``: what each task takes. ``by_address``: the argument block is too large for parameters, so that tasks get its address."""

    __slots__ = ("__weakref__", "_kept", "by_address", "name", "run", "usage")

    def __init__(self, name: str, run: Launch, kept: Any, usage: tuple[modules.Usage, ...], by_address: bool) -> None:
        self.name = name
        self.run = run
        self._kept = kept  # what ``run`` reads
        self.usage = usage
        self.by_address = by_address


class Turn:
    """One thread at a time is inside of the device, and has its context current meanwhile; what was current before is so again after."""

    def __init__(self, calls: Calls, context: c_void_p) -> None:
        self.lock = threading.RLock()
        self._calls = calls
        self._context = context
        self._pushed: list[bool] = []

    def __enter__(self) -> None:
        self.lock.acquire()
        try:
            self._calls.check()
            driver, now = self._calls.driver, c_void_p()
            driver.context_current(byref(now))
            foreign = now.value != self._context.value
            if foreign:
                self._calls("make the context current", driver.context_push, self._context)
            self._pushed.append(foreign)
        except BaseException:
            self.lock.release()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self._pushed.pop():
                self._calls.driver.context_pop(byref(c_void_p()))
        finally:
            self.lock.release()


class CudaFetch:
    """A `Fetch`: a cell of pinned memory until the bytes are taken, which are there when its event is done."""

    __slots__ = ("_cell", "_data", "_device", "_nbytes")

    def __init__(self, device: CudaDevice, cell: Cell, nbytes: int) -> None:
        self._device = device
        self._cell: Cell | None = cell
        self._nbytes = nbytes
        self._data = b""

    def take(self) -> bytes | None:
        """See `Fetch.take`. While another thread is inside of the device, which may take long, the answer is None too."""
        if self._cell is None:
            return self._data
        device = self._device
        if not device._turn.lock.acquire(blocking=False):
            return None
        try:
            if self._cell is not None:
                device._calls.check()
                if not device._done("fetch from the device", device._driver.event_query, self._cell.event):
                    return None
                self._settle(self._cell)
            return self._data
        finally:
            device._turn.lock.release()

    def wait(self) -> bytes:
        """See `Fetch.wait`."""
        device = self._device
        with device._turn.lock:
            device.waits += 1
            if self._cell is not None:
                device._calls.check()
                device._wait("fetch from the device", device._driver.event_query, self._cell.event)
                self._settle(self._cell)
            return self._data

    def _settle(self, cell: Cell) -> None:
        """The bytes are there: keep them, and give the cell back."""
        self._data = cell.read(self._nbytes)
        self._cell = None
        cell.home.append(cell)

    def __del__(self) -> None:
        if self._cell is not None:
            self._cell.home.append(self._cell)


class CudaDevice:
    """One CUDA device. See `spirograd.runtime.device.Device` for the methods.

    It shares the device's primary context with other users of CUDA in the process, such as torch. ``cap``: bytes of device memory to use at
    most.
    """

    def __init__(self, driver: Driver, features: Features, cap: int | None) -> None:
        self.info, self.caps = features.info, features.caps
        self.waits = 0
        self._driver = driver
        self._calls = Calls(driver)
        self._handle = features.handle
        self._trash: deque[tuple[int, int]] = deque()  # memory; appended to by finalizers, which may run anywhere: no lock there
        self._unloads: deque[int] = deque()  # modules, likewise
        self._modules: set[int] = set()
        self._closed = False
        self._code = call.compiled(driver)
        self._context = c_void_p()
        self._calls(f"open {self.info.name}", driver.context_retain, byref(self._context), self._handle)
        self._turn = Turn(self._calls, self._context)
        self._stream = c_void_p()
        try:
            with self._turn:
                self._calls("create a stream", driver.stream_create, byref(self._stream), _NON_BLOCKING)
                self._pool = Pool(self._calls, features.ordinal, self._stream, features.total, cap)
                self._transfers = Transfers(self._calls, self._stream, self._wait)
                self._cells = Cells(self._calls)
        except BaseException:
            self._destroy()
            raise
        _open_devices.add(self)

    # --- memory ---

    def allocate(self, nbytes: int, zeroed: bool = True) -> Buffer:
        """See `Device.allocate`. Raises OutOfDeviceMemory with the bytes wanted and the limit."""
        size = -(-max(nbytes, 16) // 16) * 16
        with self._turn:
            self._collect()
            self._pool.check_limits(size)
            try:
                address = self._pool.take(size)
            except OutOfDeviceMemory:
                # What was freed but may still be in use comes back once the device is idle.
                self._finish()
                self._pool.trim()
                address = self._pool.take(size)
            if zeroed:
                self._calls("fill memory", self._driver.fill, address, 0, size // 4, self._stream)
            return Buffer(size, address)

    def free(self, buffer: Buffer) -> None:
        """See `Device.free`. May be called from finalizers, also while this device is at work."""
        self._trash.append((buffer.address, buffer.nbytes))

    def upload(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        """See `Device.upload`."""
        if len(data):
            with self._turn:
                self._transfers.upload(buffer.address + offset, data)

    def download(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        """See `Device.download`."""
        with self._turn:
            self.waits += 1
            if len(out):
                self._transfers.download(buffer.address + offset, out)

    def fetch(self, buffer: Buffer, offset: int, nbytes: int) -> Fetch:
        """See `Device.fetch`."""
        check_range(buffer, offset, nbytes)
        with self._turn:
            cell = self._cells.take(nbytes)
            try:
                self._calls("fetch from the device", self._driver.copy_to_host, cell.address, buffer.address + offset, nbytes, self._stream)
                self._calls("record an event", self._driver.event_record, cell.event, self._stream)
            except BaseException:
                cell.home.append(cell)
                raise
            return CudaFetch(self, cell, nbytes)

    def fill(self, buffer: Buffer, offset: int, nbytes: int, word: int) -> None:
        """See `Device.fill`."""
        if nbytes:
            with self._turn:
                self._calls("fill memory", self._driver.fill, buffer.address + offset, word, nbytes // 4, self._stream)

    def copy(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        """See `Device.copy`. Raises ValueError if both ranges overlap."""
        if not nbytes:
            return
        to, of = target.address + target_offset, source.address + source_offset
        if abs(to - of) < nbytes:
            raise ValueError("a copy within one buffer must not overlap itself")
        with self._turn:
            self._calls("copy memory", self._driver.copy, to, of, nbytes, self._stream)

    def host_view(self, buffer: Buffer) -> memoryview | None:
        """None: the host does not address device memory."""
        return None

    def wrap(self, address: int, nbytes: int) -> Buffer | None:
        """None: host memory cannot be used in place here."""
        return None

    # --- kernels ---

    def assemble(self, kernel: CompiledKernel) -> CompiledKernel:
        """See `Assembler.assemble`: cubins in place of PTX."""
        with self._turn:
            cubins = [b if modules.is_cubin(b) else modules.link(self._calls, b, kernel.name) for b in kernel.binaries]
        return replace(kernel, binaries=tuple(cubins))

    def load(self, kernel: CompiledKernel) -> Executable:
        """Load the kernel's PTX or machine code. Raises SpirogradRuntimeError, with its messages, if the driver's compiler refuses."""
        if kernel.target_name != "cuda":
            raise SpirogradRuntimeError(f"kernel {kernel.name} was compiled for {kernel.target_name!r}, not for CUDA")
        with self._turn:
            loaded: list[int] = []
            try:
                for binary in kernel.binaries:
                    loaded.append(modules.load(self._calls, binary, kernel.name).value or 0)
                tasks = [self._task(loaded[task.binary], kernel, task) for task in kernel.tasks]
                usage = tuple([modules.usage(self._calls, task.function) for task in tasks])
            except BaseException:
                self._unloads.extend(loaded)
                raise
            finally:
                self._modules.update(loaded)
        run, kept = call.launcher(self._driver, self._context.value or 0, self._stream.value or 0, tasks)
        executable = Executable(kernel.name, run, kept, usage, kernel.args.size > PARAMETER_BYTES)
        weakref.finalize(executable, self._unloads.extend, loaded).atexit = False
        return executable

    def _task(self, module: int, kernel: CompiledKernel, task: Any) -> call.LaunchTask:
        handle = modules.function(self._calls, c_void_p(module), task.entry, f"{kernel.name} ({task.name})")
        size, most, fill = grid_limits(task, self.caps, "discrete")
        return call.LaunchTask(handle, size, most, fill * size)

    def launch(self, executable: Executable, block: bytes | bytearray, counts: Sequence[int | None]) -> None:
        """See `Device.launch`."""
        with self._turn.lock:
            if self._calls.trouble:
                self._calls.check()
            if len(self._trash) > _TRASH_LIMIT:
                with self._turn:
                    self._collect()
            if type(counts) is not tuple:
                counts = tuple(counts)
            if executable.by_address:
                self._launch_by_address(executable, block, counts)
                return
            code = executable.run(block if type(block) is bytes else bytes(block), counts)
            if code:
                self._calls.fail(code, f"launch kernel {executable.name}")

    def _launch_by_address(self, executable: Executable, block: bytes | bytearray, counts: tuple[int | None, ...]) -> None:
        with self._turn:
            address = self._pool.take(len(block))
            try:
                self._transfers.upload(address, memoryview(block))
                code = executable.run(address.to_bytes(8, "little"), counts)
                if code:
                    self._calls.fail(code, f"launch kernel {executable.name}")
            finally:
                self._trash.append((address, len(block)))

    def synchronize(self) -> None:
        """See `Device.synchronize`. Raises what a kernel ran into."""
        with self._turn.lock:
            self._calls.check()
            self.waits += 1
            self._finish()

    # --- life and trouble ---

    def _done(self, what: str, query: Any, handle: c_void_p) -> bool:
        """Whether an event or the stream is done; ``query`` is the driver's function that tells."""
        code = self._code.spin(query, handle, self._context, 1)
        if code not in (0, NOT_READY):
            self._calls.fail(code, what)
        return bool(code == 0)

    def _wait(self, what: str, query: Any, handle: c_void_p) -> None:
        """Wait until it is done."""
        code = self._code.spin(query, handle, self._context, _QUERIES)
        while code == NOT_READY:
            time.sleep(_NAP_SECONDS)
            code = self._code.spin(query, handle, self._context, 1)
        if code:
            self._calls.fail(code, what)

    def _finish(self) -> None:
        self._wait("wait for the device", self._driver.stream_query, self._stream)
        if self._trash or self._unloads:
            with self._turn:
                self._collect()
                while self._unloads:  # only here, for unloading waits for kernels
                    module = self._unloads.popleft()
                    self._modules.discard(module)
                    self._calls("unload a kernel", self._driver.module_unload, module)

    def _collect(self) -> None:
        """Release what was freed: the driver does so after the work so far."""
        while self._trash:
            self._pool.give(*self._trash.popleft())

    def close(self) -> None:
        """Wait for the work under way and release everything."""
        with self._turn.lock:
            if self._closed:
                return
            self._closed = True
            _open_devices.discard(self)
            if not self._calls.trouble:
                with self._turn:
                    while self._code.spin(self._driver.stream_query, self._stream, self._context, _QUERIES) == NOT_READY:
                        pass
            self._destroy()
            self._calls.trouble = self._calls.trouble or "this CUDA device was closed"

    def _destroy(self) -> None:
        """Release what exists, whatever the driver says to it; also after a constructor that failed half-way."""
        driver = self._driver
        pushed = driver.context_push(self._context) == 0
        for part in ("_transfers", "_cells"):
            if hasattr(self, part):
                getattr(self, part).close()
        for module in self._modules:
            driver.module_unload(module)
        self._modules.clear()
        if hasattr(self, "_pool"):
            self._pool.close()
        if self._stream.value:
            driver.stream_destroy(self._stream)
        if pushed:
            driver.context_pop(byref(c_void_p()))
        driver.context_release(self._handle)

    def _abandon(self) -> None:
        """In a forked child: the driver does not work here, nothing may be called any more, not even to clean up."""
        self._closed = True
        self._turn = Turn(self._calls, self._context)  # the owner of its lock may not exist in this process
        self._calls.trouble = FORKED

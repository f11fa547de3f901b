"""The interface to the `wgpu` package: its C functions, and the conversion of its errors.

Only this file uses private names of wgpu.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import wgpu
from wgpu.backends.wgpu_native import GPUShaderModule, extras, ffi, lib
from wgpu.backends.wgpu_native import _api as native

from spirograd.base.errors import OutOfDeviceMemory, SpirogradError, SpirogradRuntimeError
from spirograd.runtime.devices.streamed import DeviceLost
from spirograd.runtime.devices.wgpu.c_types import parse_alone

__all__ = [
    "Mapping",
    "abandon",
    "check_version",
    "ffi",
    "handle",
    "lib",
    "losses",
    "lost_reason",
    "poll",
    "probe",
    "read_staging",
    "start_instance",
    "subgroup_sizes",
    "telling",
    "trusted_module",
    "wgpu",
]

parse_alone(ffi)

_OLDEST = (0, 32)  # The first version whose library takes SPIR-V without adding checks of its own.
_DEVICE_SELECT = "NODEVICE_SELECT"
_instance_lock = threading.Lock()
_instance_backend = ""


def check_version() -> None:
    """Raise SpirogradRuntimeError if the package is too old."""
    if tuple(wgpu.version_info[:2]) < _OLDEST:
        wanted = ".".join(map(str, _OLDEST))
        problem = f"the package wgpu is {wgpu.__version__}; {wanted} or newer is needed, which needs Python 3.11 or newer"
        raise SpirogradRuntimeError(problem)


def handle(thing: native.GPUObjectBase) -> ffi.CData:
    """Return the C handle of an object of wgpu."""
    return thing._internal


class _LossWatch(logging.Handler):
    """A watch on wgpu's log, which alone reports the loss of a device: first the loss, then the reason; never the device."""

    def __init__(self) -> None:
        super().__init__()
        self.losses = 0
        self.messages: deque[str] = deque(maxlen=1)

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "DEVICE LOST" in message:
            self.losses += 1
        elif "device was lost" in message:
            self.messages.append(message.strip())


_watch = _LossWatch()
logging.getLogger("wgpu").addHandler(_watch)


def losses() -> int:
    """Return the number of devices of wgpu that this process has lost. `probe` tells whether a certain device is lost."""
    return _watch.losses


def lost_reason() -> str:
    """Return wgpu's last message about the loss of a device, or ""."""
    return _watch.messages[-1] if _watch.messages else ""


def probe(device: wgpu.GPUDevice) -> None:
    """Raise DeviceLost if ``device`` does not work any more."""
    with telling("reach the device through wgpu"):
        device.create_buffer(size=16, usage=wgpu.BufferUsage.COPY_DST)


def start_instance(backend: str) -> str:
    """Restrict wgpu to one of its backends ("Vulkan", "Metal", "DX12", "GL"), if this process has not used it yet.

    Probing further backends takes long, and some of them print diagnostics. Returns the backend that wgpu is restricted to, or "" if other
    code started it with all backends.
    """
    global _instance_backend
    with _instance_lock:
        if not _instance_backend:
            try:
                with _without_device_select():
                    extras.set_instance_extras(backends=[backend])
            except RuntimeError:  # There is an instance already.
                return ""
            _instance_backend = backend
        return _instance_backend


@contextmanager
def _without_device_select() -> Iterator[None]:
    """Disable Mesa's device selection layer, which prints diagnostics where there is no desktop."""
    silent = "XDG_RUNTIME_DIR" not in os.environ and _DEVICE_SELECT not in os.environ
    if silent:
        os.environ[_DEVICE_SELECT] = "1"
    try:
        yield
    finally:
        if silent:
            del os.environ[_DEVICE_SELECT]


class telling:
    """A context that converts errors of wgpu and of its C functions: ``cannot <what>: ...``.

    Raises OutOfDeviceMemory, DeviceLost or SpirogradRuntimeError. Errors of this package pass unchanged.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        native.error_handler.capture(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _where: TracebackType | None) -> None:
        captured = native.error_handler.release(self)
        if error is None:
            if captured is not None:
                raise self._ours(captured[1], captured[0] == "OutOfMemory")
        elif isinstance(error, (wgpu.GPUError, RuntimeError)) and not isinstance(error, SpirogradError):
            raise self._ours(str(error), isinstance(error, wgpu.GPUOutOfMemoryError)) from error

    def _ours(self, message: str, memory: bool) -> SpirogradRuntimeError:
        text = f"cannot {self._what}: {_shortened(message)}"
        if "device is lost" in message:
            return DeviceLost(lost_reason() or text)
        return OutOfDeviceMemory(text) if memory else SpirogradRuntimeError(text)


def _shortened(message: str) -> str:
    """Return wgpu's message without its empty lines."""
    return "\n".join(line.rstrip() for line in message.splitlines() if line.strip())


def trusted_module(device: object, code: bytes, label: str) -> GPUShaderModule:
    """Return a shader module without wgpu's own checks of accesses and loops: spirograd has its own, and wgpu's cost a third of the
    time."""
    data = ffi.from_buffer("uint8_t[]", code)
    source = ffi.new("WGPUShaderSourceSPIRV *")
    source.chain.sType = lib.WGPUSType_ShaderSourceSPIRV
    source.codeSize = len(code) // 4
    source.code = ffi.cast("uint32_t *", data)
    name = ffi.new("char[]", label.encode())
    descriptor = ffi.new("WGPUShaderModuleDescriptor *")
    descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", source)
    descriptor.label.data, descriptor.label.length = name, len(name) - 1
    return GPUShaderModule(label, lib.wgpuDeviceCreateShaderModuleTrusted(handle(device), descriptor, 0), device)


class Mapping:
    """A request to map the first ``nbytes`` of a buffer with usage MAP_READ, after the last submission that writes them.

    wgpu fulfils it while it is polled; no submission may use the buffer until `end`.
    """

    __slots__ = ("_buffer", "_nbytes", "_number", "status")

    def __init__(self, buffer: object, nbytes: int) -> None:
        self._buffer, self._nbytes = buffer, nbytes
        self.status = 0  # 0 until wgpu has answered.
        self._number = next(_numbers)
        _mappings[self._number] = self
        callback = ffi.new("WGPUBufferMapCallbackInfo *")
        callback.mode = lib.WGPUCallbackMode_AllowProcessEvents
        callback.callback, callback.userdata1 = _answered, ffi.cast("void *", self._number)
        lib.wgpuBufferMapAsync(handle(buffer), lib.WGPUMapMode_Read, 0, nbytes, callback[0])

    def read(self) -> ffi.buffer:
        """Return the bytes as a buffer of cffi, valid until `end`. Raises SpirogradRuntimeError if wgpu could not map the buffer."""
        if self.status != lib.WGPUMapAsyncStatus_Success:
            raise SpirogradRuntimeError(f"wgpu cannot map memory to read it (status {self.status}): {lost_reason() or 'no reason given'}")
        return ffi.buffer(lib.wgpuBufferGetConstMappedRange(handle(self._buffer), 0, self._nbytes), self._nbytes)

    def end(self) -> None:
        """Let submissions use the buffer again."""
        lib.wgpuBufferUnmap(handle(self._buffer))


# Requests without an answer: wgpu may answer when nothing else refers to them any more.
_mappings: dict[int, Mapping] = {}
_numbers = itertools.count(1)


_interrupts: deque[BaseException] = deque()  # Exceptions of signal handlers that ran in callbacks of wgpu.


def _note_status(status: int, message: object, number: object, unused: object) -> None:
    mapping = _mappings.pop(int(ffi.cast("uintptr_t", number)), None)
    if mapping is not None:
        mapping.status = status


def _note_interrupted(kind: object, error: BaseException, where: TracebackType) -> None:
    """Complete `_note_status` after a signal handler raised an exception in it, and store the exception.

    No exception can pass through wgpu, so it is raised after the call into wgpu has returned. `interrupts` handles Ctrl-C only.
    """
    given = where.tb_frame.f_locals
    _note_status(given["status"], None, given["number"], None)
    _interrupts.append(error)


_answered = ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", _note_status, onerror=_note_interrupted)


def poll(device: object, wait: bool, submission: object = ffi.NULL) -> None:
    """Have wgpu answer requests after a wait for ``submission`` (NULL: all of them). Raises exceptions of signal handlers."""
    lib.wgpuDevicePoll(handle(device), wait, submission)
    if _interrupts:
        raise _interrupts.popleft()


def read_staging(device: object, buffer: object, out: memoryview) -> None:
    """Wait for all submitted work and copy the first bytes of ``buffer`` (usage MAP_READ) to ``out``.

    The function does the same as `GPUBuffer.map_sync` and `read_mapped` without the thread that these poll with: 20 us instead of 600.
    After an exception ``buffer`` may still be mapped: no submission may use it again, which would end the process.
    """
    mapping = Mapping(buffer, len(out))
    poll(device, True)
    out[:] = mapping.read()
    mapping.end()


def subgroup_sizes(adapter: object) -> tuple[int, int]:
    """Return the smallest and the largest number of invocations in a subgroup; zeros where wgpu does not know."""
    info = ffi.new("WGPUAdapterInfo *")
    lib.wgpuAdapterGetInfo(handle(adapter), info)
    sizes = (info.subgroupMinSize, info.subgroupMaxSize)
    lib.wgpuAdapterInfoFreeMembers(info[0])
    return sizes


def release(device: wgpu.GPUDevice) -> None:
    """Have the driver free a device that is no longer used.

    Without this call, the device would exist until Python collects its cycle with the queue: graphics cards support only a few dozen
    devices of all processes together.
    """
    device._release()  # And the queue.


def abandon(device: wgpu.GPUDevice) -> None:
    """Ensure that ``device`` is never released: in a forked child, its threads do not exist."""
    for thing in gc.get_objects():
        if isinstance(thing, native.GPUObjectBase) and (thing is device or thing._device is device):
            thing._internal = None
    device._poller = None
    device._queue = None
    device.adapter._internal = None

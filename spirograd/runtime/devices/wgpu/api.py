"""The edge to the `wgpu` package: its C functions, and its errors as ours.

Everything here that begins with an underscore in wgpu is used here and in no other file.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import wgpu
from wgpu.backends.wgpu_native import GPUShaderModule, extras, ffi, lib
from wgpu.backends.wgpu_native import _api as native

from spirograd.base.errors import SpirogradRuntimeError

__all__ = ["ffi", "handle", "lib", "lost_reason", "read_staging", "start_instance", "telling", "trusted_module", "wgpu"]

_LOST = "device was lost"
_DEVICE_SELECT = "NODEVICE_SELECT"
_lost_messages: list[str] = []
_instance_lock = threading.Lock()
_instance_started = False


def handle(thing: Any) -> Any:
    """The C handle of an object of wgpu."""
    return thing._internal


class _LossWatch(logging.Handler):
    """wgpu only logs the loss of a device."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if _LOST in message:
            _lost_messages.append(message.strip())


logging.getLogger("wgpu").addHandler(_LossWatch())


def lost_reason() -> str:
    """What wgpu said when a device of this process was lost; "" if none was."""
    return _lost_messages[-1] if _lost_messages else ""


def start_instance(backend: str) -> None:
    """Restrict wgpu to one of its backends ("Vulkan", "Metal", "DX12", "GL"), if nobody in this process has used it yet.

    Looking for backends that are not wanted takes long, and makes some print complaints.
    """
    global _instance_started
    with _instance_lock:
        if _instance_started:
            return
        _instance_started = True
        with _without_device_select():
            extras.set_instance_extras(backends=[backend])


@contextmanager
def _without_device_select() -> Iterator[None]:
    """Mesa's layer that asks the desktop which device it is on complains where there is no desktop."""
    silent = "XDG_RUNTIME_DIR" not in os.environ and _DEVICE_SELECT not in os.environ
    if silent:
        os.environ[_DEVICE_SELECT] = "1"
    try:
        yield
    finally:
        if silent:
            del os.environ[_DEVICE_SELECT]


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Errors of wgpu inside, those of its C functions included, become SpirogradRuntimeErrors: ``cannot <what>: ...``."""
    errors = native.error_handler
    errors.capture(what)
    try:
        yield
    except (wgpu.GPUError, RuntimeError) as error:
        errors.release(what)
        raise SpirogradRuntimeError(f"cannot {what}: {_shortened(str(error))}") from error
    except BaseException:
        errors.release(what)
        raise
    found = errors.release(what)
    if found is not None:
        raise SpirogradRuntimeError(f"cannot {what}: {_shortened(found[1])}")


def _shortened(message: str) -> str:
    """wgpu's message without its empty lines."""
    return "\n".join(line.rstrip() for line in message.splitlines() if line.strip())


def trusted_module(device: Any, code: bytes, label: str) -> Any:
    """A shader module in which wgpu adds no checks of its own to accesses and loops: spirograd has its own, and these cost a third."""
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


@ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)")
def _mapped(status: int, message: Any, first: Any, second: Any) -> None:
    """Leaves the status where `read_staging` looks for it."""
    ffi.cast("int *", first)[0] = status


def read_staging(device: Any, buffer: Any, out: memoryview) -> None:
    """Wait for all submitted work and copy the first bytes of ``buffer`` (usage MAP_READ) to ``out``.

    As `GPUBuffer.map_sync` and `read_mapped`, without the thread that these poll with: 20 us instead of 600.
    """
    status = ffi.new("int *", 0)
    callback = ffi.new("WGPUBufferMapCallbackInfo *")
    callback.mode = lib.WGPUCallbackMode_AllowProcessEvents
    callback.callback, callback.userdata1 = _mapped, status
    lib.wgpuBufferMapAsync(handle(buffer), lib.WGPUMapMode_Read, 0, len(out), callback[0])
    lib.wgpuDevicePoll(handle(device), True, ffi.NULL)
    if status[0] != lib.WGPUMapAsyncStatus_Success:
        raise SpirogradRuntimeError(f"wgpu cannot map memory to read it (status {status[0]}): {lost_reason() or 'no reason given'}")
    ffi.memmove(ffi.from_buffer(out), lib.wgpuBufferGetConstMappedRange(handle(buffer), 0, len(out)), len(out))
    lib.wgpuBufferUnmap(handle(buffer))

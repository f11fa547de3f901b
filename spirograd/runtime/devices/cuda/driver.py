"""The CUDA driver (libcuda) through ctypes: a table of its functions, and what its error codes mean. No toolkit is needed.

The stable C ABI of the driver is the source: CUDA Driver API Reference Manual. Names with ``_v2`` are those that ``cuda.h`` maps the plain
names to.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from spirograd.base import knobs
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.runtime.devices.streamed import DeviceLost

# Where the driver lies: as the system finds it, then where containers and Windows' Linux have it without telling the loader.
_LIBRARIES = (
    ("nvcuda.dll",)
    if sys.platform == "win32"
    else ("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1", "libcuda.so")
)

_handle, _address = c_void_p, c_uint64
_out = c_void_p  # pointers to results, as `ctypes.byref` gives them
# Function -> (its symbol, types of its arguments). Each returns an error code.
_FUNCTIONS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "init": ("cuInit", (c_uint,)),
    "driver_version": ("cuDriverGetVersion", (_out,)),
    "error_name": ("cuGetErrorName", (c_int, _out)),
    "error_text": ("cuGetErrorString", (c_int, _out)),
    "device_count": ("cuDeviceGetCount", (_out,)),
    "device_get": ("cuDeviceGet", (_out, c_int)),
    "device_name": ("cuDeviceGetName", (c_char_p, c_int, c_int)),
    "device_memory": ("cuDeviceTotalMem_v2", (_out, c_int)),
    "device_attribute": ("cuDeviceGetAttribute", (_out, c_int, c_int)),
    "context_retain": ("cuDevicePrimaryCtxRetain", (_out, c_int)),
    "context_release": ("cuDevicePrimaryCtxRelease_v2", (c_int,)),
    "context_push": ("cuCtxPushCurrent_v2", (_handle,)),
    "context_pop": ("cuCtxPopCurrent_v2", (_out,)),
    "stream_create": ("cuStreamCreate", (_out, c_uint)),
    "stream_destroy": ("cuStreamDestroy_v2", (_handle,)),
    "stream_wait": ("cuStreamWaitEvent", (_handle, _handle, c_uint)),
    "pointer_attribute": ("cuPointerGetAttribute", (_out, c_int, _address)),
    "event_create": ("cuEventCreate", (_out, c_uint)),
    "event_destroy": ("cuEventDestroy_v2", (_handle,)),
    "event_record": ("cuEventRecord", (_handle, _handle)),
    "pool_create": ("cuMemPoolCreate", (_out, c_void_p)),
    "pool_destroy": ("cuMemPoolDestroy", (_handle,)),
    "pool_set": ("cuMemPoolSetAttribute", (_handle, c_int, c_void_p)),
    "pool_trim": ("cuMemPoolTrimTo", (_handle, c_size_t)),
    "allocate_from_pool": ("cuMemAllocFromPoolAsync", (_out, c_size_t, _handle, _handle)),
    "free_on_stream": ("cuMemFreeAsync", (_address, _handle)),
    "host_allocate": ("cuMemHostAlloc", (_out, c_size_t, c_uint)),
    "host_free": ("cuMemFreeHost", (c_void_p,)),
    "copy_to_device": ("cuMemcpyHtoDAsync_v2", (_address, c_void_p, c_size_t, _handle)),
    "copy_to_host": ("cuMemcpyDtoHAsync_v2", (c_void_p, _address, c_size_t, _handle)),
    "copy": ("cuMemcpyDtoDAsync_v2", (_address, _address, c_size_t, _handle)),
    "fill": ("cuMemsetD32Async", (_address, c_uint, c_size_t, _handle)),
    "module_load": ("cuModuleLoadDataEx", (_out, c_char_p, c_uint, POINTER(c_int), POINTER(c_void_p))),
    "module_unload": ("cuModuleUnload", (_handle,)),
    "module_function": ("cuModuleGetFunction", (_out, _handle, c_char_p)),
    "function_attribute": ("cuFuncGetAttribute", (_out, c_int, _handle)),
    "occupancy": ("cuOccupancyMaxActiveBlocksPerMultiprocessor", (_out, _handle, c_int, c_size_t)),
    "link_create": ("cuLinkCreate_v2", (c_uint, POINTER(c_int), POINTER(c_void_p), _out)),
    "link_add": ("cuLinkAddData_v2", (_handle, c_int, c_char_p, c_size_t, c_char_p, c_uint, c_void_p, c_void_p)),
    "link_complete": ("cuLinkComplete", (_handle, _out, _out)),
    "link_destroy": ("cuLinkDestroy", (_handle,)),
}
# Called from compiled code only, which is linked with their addresses.
_CALLED = (
    "cuLaunchKernel",
    "cuStreamQuery",
    "cuEventQuery",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
)

SUCCESS, NOT_INITIALIZED, NO_DEVICE, NOT_READY = 0, 3, 100, 600
_OUT_OF_MEMORY = 2
# After these no later call succeeds: kernels ran into something that ends their context, or the device has gone.
_FATAL = frozenset((4, 46, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999))
_KERNEL_ERRORS = frozenset((700, 714, 715, 716, 717, 718, 719))
_TIMEOUT = 702


class Driver:
    """The driver of this process: its functions under the names of the table, their addresses by symbol. `take_driver` gives it."""

    def __init__(self, library: Any, path: str) -> None:
        self.path = path
        self.process = os.getpid()
        for name, (symbol, arguments) in _FUNCTIONS.items():
            function = _symbol(library, symbol, path)
            function.argtypes, function.restype = arguments, c_int
            setattr(self, name, function)
        self._contexts: dict[int, int] = {}
        self.addresses = {symbol: ctypes.cast(_symbol(library, symbol, path), c_void_p).value or 0 for symbol in _CALLED}

    def __getattr__(self, name: str) -> Any:  # tells type checkers of the functions
        raise AttributeError(name)

    def describe(self, code: int) -> str:
        """An error code as the driver explains it: ``CUDA_ERROR_INVALID_VALUE (invalid argument)``."""
        name, text = c_char_p(), c_char_p()
        self.error_name(code, ctypes.byref(name))
        self.error_text(code, ctypes.byref(text))
        known = (name.value or f"CUDA error {code}".encode()).decode()
        return f"{known} ({text.value.decode(errors='replace')})" if text.value else known

    def call(self, what: str, function: Any, *args: Any) -> None:
        """Call one of the functions; raise as `check`."""
        code = function(*args)
        if code:
            self.check(code, what)

    def check(self, code: int, what: str) -> None:
        """Raise if ``code`` is an error: OutOfDeviceMemory, DeviceLost or SpirogradRuntimeError, naming ``what`` was tried."""
        if code == _OUT_OF_MEMORY:
            raise OutOfDeviceMemory(f"CUDA: out of memory when trying to {what}")
        if code in _FATAL:
            raise DeviceLost(f"CUDA: cannot {what}: {self.describe(code)}{_cause(code)}")
        if code:
            raise SpirogradRuntimeError(f"CUDA: cannot {what}: {self.describe(code)}")

    def context(self, handle: int) -> int:
        """The primary context of a device. It is kept when a session ends: creating one takes up to a second."""
        if handle not in self._contexts:
            context = c_void_p()
            self.call("create a context", self.context_retain, ctypes.byref(context), handle)
            self._contexts[handle] = context.value or 0
        return self._contexts[handle]

    def drop_context(self, handle: int) -> None:
        """Do not keep the context: it is broken."""
        if self._contexts.pop(handle, None) is not None:
            self.context_release(handle)

    @property
    def version(self) -> str:
        """The version of CUDA that the driver implements, such as "13.0"."""
        number = c_int()
        self.call("read the version of the driver", self.driver_version, ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"


def _symbol(library: Any, name: str, path: str) -> Any:
    try:
        return getattr(library, name)
    except AttributeError:
        raise SpirogradRuntimeError(f"the CUDA driver {path} lacks {name}: CUDA 12.0 or newer is needed; update the driver") from None


def _load(path: str) -> tuple[Any, str]:
    """The library at ``path``, or, if that is empty, wherever the driver is found."""
    problems = []
    for candidate in (path,) if path else _LIBRARIES:
        try:
            return ctypes.CDLL(candidate), candidate
        except OSError as error:
            problems.append(str(error))
    raise SpirogradRuntimeError(f"the CUDA driver is not installed: {problems[0]}")


@functools.cache
def _started(path: str) -> Driver:
    library, found = _load(path)
    driver = Driver(library, found)
    code = driver.init(0)
    if code == NO_DEVICE:
        raise SpirogradRuntimeError("the CUDA driver is installed, but finds no device")
    if code == NOT_INITIALIZED:
        raise SpirogradRuntimeError(FORKED)
    driver.check(code, "start the driver")
    return driver


FORKED = "CUDA does not survive a fork; start the process with the 'spawn' method, or call init in the child only"
_start_lock = threading.Lock()


def take_driver() -> Driver:
    """The driver, started. Raises SpirogradRuntimeError if there is none, or no device, or in a fork of a process that used it."""
    with _start_lock:
        driver = _started(knobs.get("SG_LIBCUDA"))
    if driver.process != os.getpid():
        raise SpirogradRuntimeError(FORKED)
    return driver


def _cause(code: int) -> str:
    if code in _KERNEL_ERRORS:
        return ", most often because a kernel accessed memory outside of its arrays (`init(debug=True)` finds where)"
    return ", because a kernel ran too long" if code == _TIMEOUT else ""

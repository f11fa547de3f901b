"""CUDA: the library libcuda of NVIDIA's driver, and the features of its devices. No toolkit is needed.

The interface is the stable C ABI of the driver (CUDA Driver API Reference Manual). Names with ``_v2`` are those that ``cuda.h`` maps the
plain names to.
"""

from __future__ import annotations

import sys
from ctypes import CDLL, POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from spirograd.base.device import DeviceInfo
from spirograd.base.records import replace
from spirograd.llvmgen import ptx, toolchain
from spirograd.runtime.devices.gpu import cuda_context, opening, ptx_compiler
from spirograd.runtime.devices.gpu.device import GpuDevice
from spirograd.runtime.devices.gpu.driver import HANDLE, OUT, Driver
from spirograd.runtime.devices.gpu.features import Features, driver_version

# Paths of the driver: where the system finds it, then where containers and Windows' Linux have it outside of the loader's paths.
_LIBRARIES = (
    ("nvcuda.dll",)
    if sys.platform == "win32"
    else ("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1", "libcuda.so")
)
_STACK_SIZE = 0  # CU_LIMIT_STACK_SIZE
_SYMBOLS = {
    "init": "cuInit",
    "synchronize": "cuCtxSynchronize",
    "driver_version": "cuDriverGetVersion",
    "device_count": "cuDeviceGetCount",
    "device_get": "cuDeviceGet",
    "device_name": "cuDeviceGetName",
    "device_memory": "cuDeviceTotalMem_v2",
    "device_attribute": "cuDeviceGetAttribute",
    "stream_create": "cuStreamCreate",
    "stream_destroy": "cuStreamDestroy_v2",
    "stream_wait": "cuStreamWaitEvent",
    "stream_query": "cuStreamQuery",
    "capture_begin": "cuStreamBeginCapture_v2",
    "capture_end": "cuStreamEndCapture",
    "capture_state": "cuStreamIsCapturing",
    "graph_destroy": "cuGraphDestroy",
    "graph_make": "cuGraphInstantiateWithFlags",
    "graph_launch": "cuGraphLaunch",
    "graph_unload": "cuGraphExecDestroy",
    "pointer_attribute": "cuPointerGetAttribute",
    "event_create": "cuEventCreate",
    "event_destroy": "cuEventDestroy_v2",
    "event_record": "cuEventRecord",
    "event_elapsed": "cuEventElapsedTime",
    "event_query": "cuEventQuery",
    "pool_create": "cuMemPoolCreate",
    "pool_destroy": "cuMemPoolDestroy",
    "pool_set": "cuMemPoolSetAttribute",
    "pool_trim": "cuMemPoolTrimTo",
    "allocate_from_pool": "cuMemAllocFromPoolAsync",
    "free_on_stream": "cuMemFreeAsync",
    "host_allocate": "cuMemHostAlloc",
    "host_free": "cuMemFreeHost",
    "copy_to_device": "cuMemcpyHtoDAsync_v2",
    "copy_to_host": "cuMemcpyDtoHAsync_v2",
    "copy": "cuMemcpyDtoDAsync_v2",
    "fill": "cuMemsetD32Async",
    "module_unload": "cuModuleUnload",
    "module_function": "cuModuleGetFunction",
    "function_attribute": "cuFuncGetAttribute",
    "occupancy": "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "launch": "cuLaunchKernel",
}
_OWN = {
    "error_name": ("cuGetErrorName", (c_int, OUT)),
    "error_text": ("cuGetErrorString", (c_int, OUT)),
    "context_retain": ("cuDevicePrimaryCtxRetain", (OUT, c_int)),
    "context_release": ("cuDevicePrimaryCtxRelease_v2", (c_int,)),
    "context_push": ("cuCtxPushCurrent_v2", (HANDLE,)),
    "context_pop": ("cuCtxPopCurrent_v2", (OUT,)),
    "module_load": ("cuModuleLoadDataEx", (OUT, c_char_p, c_uint, POINTER(c_int), POINTER(c_void_p))),
    "context_limit": ("cuCtxSetLimit", (c_int, c_size_t)),
    "link_create": ("cuLinkCreate_v2", (c_uint, POINTER(c_int), POINTER(c_void_p), OUT)),
    "link_add": ("cuLinkAddData_v2", (HANDLE, c_int, c_char_p, c_size_t, c_char_p, c_uint, c_void_p, c_void_p)),
    "link_complete": ("cuLinkComplete", (HANDLE, OUT, OUT)),
    "link_destroy": ("cuLinkDestroy", (HANDLE,)),
}
# Graphs with loops.
_LOOPS = {
    "graph_create": ("cuGraphCreate", (OUT, c_uint)),
    "graph_add": ("cuGraphAddNode", (OUT, HANDLE, OUT, c_size_t, OUT)),
    "condition_create": ("cuGraphConditionalHandleCreate", (OUT, HANDLE, HANDLE, c_uint, c_uint)),
    "capture_to": ("cuStreamBeginCaptureToGraph", (HANDLE, HANDLE, OUT, c_void_p, c_size_t, c_int)),
    "capture_info": ("cuStreamGetCaptureInfo_v2", (HANDLE, OUT, OUT, OUT, OUT, OUT)),
}
_LOOPS_SINCE = 12040  # CUDA 12.4
_CALLED = {
    "context_get": "cuCtxGetCurrent",
    "context_set": "cuCtxSetCurrent",
    "context_push": "cuCtxPushCurrent_v2",
    "context_pop": "cuCtxPopCurrent_v2",
}
# CUdevice_attribute.
_MAX_GROUP, _MAX_GRID, _SHARED, _KILOHERTZ, _PROCESSORS, _INTEGRATED, _MAJOR, _MINOR, _POOLS = 1, 5, 8, 13, 16, 18, 75, 76, 115
# Architectures that LLVM 22 generates code for. PTX for an older one runs on all newer devices.
_ARCHITECTURES = (70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
_VERSION_FILE = Path("/proc/driver/nvidia/version")


class CudaDriver(Driver):
    """The driver of CUDA, see `Driver`. A context is the primary one of a device, which other users of CUDA in the process share, such as
    torch."""

    api, arch, knob = "CUDA", "cuda", "SG_LIBCUDA"
    missing, needed = "the CUDA driver is not installed", "CUDA 12.0 or newer is needed; update the driver"
    symbols, own, called, optional = _SYMBOLS, _OWN, _CALLED, _LOOPS
    switch: ClassVar[ModuleType] = cuda_context
    launch_end, dlpack_type, forked_code = 0, 2, 3

    def __init__(self, library: CDLL, path: str) -> None:
        super().__init__(library, path)
        self._contexts: dict[int, tuple[int, int]] = {}  # With the handles of their devices.

    @classmethod
    def libraries(cls) -> tuple[str, ...]:
        return _LIBRARIES

    def stream(self, handle: int) -> int:
        return handle

    def describe(self, code: int) -> str:
        name, text = c_char_p(), c_char_p()
        self.error_name(code, byref(name))
        self.error_text(code, byref(text))
        known = (name.value or f"CUDA error {code}".encode()).decode()
        return f"{known} ({text.value.decode(errors='replace')})" if text.value else known

    def version(self) -> str:
        number = c_int()
        self.call("read the version of the driver", self.driver_version, byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    @property
    def reads_flags(self) -> bool:
        number = c_int()
        self.call("read the version of the driver", self.driver_version, byref(number))
        return number.value >= _LOOPS_SINCE and all(getattr(self, name) is not None for name in _LOOPS)

    def clock_hz(self, ordinal: int) -> int | None:
        return 1000 * self.attribute(ordinal, _KILOHERTZ)

    # --- contexts ---

    def context(self, ordinal: int) -> int:
        if ordinal not in self._contexts:
            context, handle = c_void_p(), self.handle(ordinal)
            self.call("create a context", self.context_retain, byref(context), handle)
            self._contexts[ordinal] = context.value or 0, handle
        return self._contexts[ordinal][0] | (ordinal == 0)

    def enter(self, context: int) -> int:
        code: int = self.context_push(context & ~1)
        return -code if code else cuda_context.PUSHED

    def leave(self, entered: int) -> None:
        if entered == cuda_context.PUSHED:
            self.context_pop(byref(c_void_p()))

    def drop_context(self, ordinal: int) -> None:
        entry = self._contexts.pop(ordinal, None)
        if entry is not None:
            self.context_release(entry[1])

    def forget(self) -> None:
        """Do nothing: the driver reports errors only to the caller that made them."""

    # --- kernels ---

    def load(self, image: bytes, name: str) -> c_void_p:
        return ptx_compiler.load(self, image, name)

    def reserve_stack(self, nbytes: int) -> None:
        self.context_limit(_STACK_SIZE, nbytes)

    def assemble(self, image: bytes, name: str) -> bytes:
        return ptx_compiler.link(self, image, name)

    # --- devices ---

    def unusable(self, ordinal: int) -> str:
        major, minor = (self.attribute(ordinal, attribute) for attribute in (_MAJOR, _MINOR))
        if (major, minor) < (7, 0):
            return f"the CUDA device {self.name(ordinal)} has compute capability {major}.{minor}; 7.0 is needed"
        if not self.attribute(ordinal, _POOLS):
            return f"the CUDA device {self.name(ordinal)} cannot be used: its driver offers no memory pools"
        return ""

    def query(self, ordinal: int) -> Features:
        total, processors = self.memory(ordinal), self.attribute(ordinal, _PROCESSORS)
        major, minor = self.attribute(ordinal, _MAJOR), self.attribute(ordinal, _MINOR)
        architecture = max(sm for sm in _ARCHITECTURES if sm <= 10 * major + minor)
        api = f"CUDA {self.version()}"
        caps = replace(
            ptx.capabilities(f"sm_{architecture}"),
            shared_memory=self.attribute(ordinal, _SHARED),
            max_group_size=self.attribute(ordinal, _MAX_GROUP),
            max_groups=self.attribute(ordinal, _MAX_GRID),
            max_allocation=total,
            toolchain=f"{toolchain.version()}, {api}",
        )
        detail = (
            ("kind", "integrated" if self.attribute(ordinal, _INTEGRATED) else "discrete"),
            ("compute capability", f"{major}.{minor}"),
            ("multiprocessors", str(processors)),
            ("memory", f"{total / 2**30:.1f} GiB"),
        )
        info = DeviceInfo(self.arch, self.name(ordinal), driver_version(_VERSION_FILE, api), detail)
        return Features(ordinal, info, caps, total, processors)


def open(debug: bool = False, max_threads: int = 0, device_memory_bytes: int | None = None, device: str = "") -> GpuDevice:
    """Open a CUDA device: see `opening.open_gpu`."""
    return opening.open_gpu(CudaDriver, device_memory_bytes, device)


def available() -> str | None:
    """Return None if a CUDA device can be opened, else the reason why not."""
    return opening.available(CudaDriver)


def devices() -> list[tuple[str, str]]:
    """See `opening.devices`."""
    return opening.devices(CudaDriver)

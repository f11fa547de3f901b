"""HIP: the library libamdhip64 of AMD's ROCm, and the features of its devices. No compiler of ROCm is needed.

The interface is the C API (HIP Runtime API Reference). Its functions are those of CUDA under different names, except for contexts, which
are numbers of devices here, and for errors, which every library of the thread sees.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import CDLL, byref, c_char_p, c_int, c_void_p
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from spirograd.base.device import DeviceInfo
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.records import replace
from spirograd.llvmgen import amdgpu, toolchain
from spirograd.runtime.devices.gpu import hip_context, opening
from spirograd.runtime.devices.gpu.device import GpuDevice
from spirograd.runtime.devices.gpu.driver import OUT, Driver
from spirograd.runtime.devices.gpu.features import Features, driver_version

_WINDOWS = ("amdhip64_7.dll", "amdhip64_6.dll", "amdhip64.dll")
_LINUX = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so", "/opt/rocm/lib/libamdhip64.so")
_MAPS = Path("/proc/self/maps")
_SYMBOLS = {
    "init": "hipInit",
    "synchronize": "hipDeviceSynchronize",
    "driver_version": "hipDriverGetVersion",
    "device_count": "hipGetDeviceCount",
    "device_get": "hipDeviceGet",
    "device_name": "hipDeviceGetName",
    "device_memory": "hipDeviceTotalMem",
    "device_attribute": "hipDeviceGetAttribute",
    "stream_create": "hipStreamCreateWithFlags",
    "stream_destroy": "hipStreamDestroy",
    "stream_wait": "hipStreamWaitEvent",
    "stream_query": "hipStreamQuery",
    "capture_begin": "hipStreamBeginCapture",
    "capture_end": "hipStreamEndCapture",
    "capture_state": "hipStreamIsCapturing",
    "graph_destroy": "hipGraphDestroy",
    "graph_make": "hipGraphInstantiateWithFlags",
    "graph_launch": "hipGraphLaunch",
    "graph_unload": "hipGraphExecDestroy",
    "pointer_attribute": "hipPointerGetAttribute",
    "event_create": "hipEventCreateWithFlags",
    "event_destroy": "hipEventDestroy",
    "event_record": "hipEventRecord",
    "event_elapsed": "hipEventElapsedTime",
    "event_query": "hipEventQuery",
    "pool_create": "hipMemPoolCreate",
    "pool_destroy": "hipMemPoolDestroy",
    "pool_set": "hipMemPoolSetAttribute",
    "pool_trim": "hipMemPoolTrimTo",
    "allocate_from_pool": "hipMallocFromPoolAsync",
    "free_on_stream": "hipFreeAsync",
    "host_allocate": "hipHostMalloc",
    "host_free": "hipHostFree",
    "copy_to_device": "hipMemcpyHtoDAsync",
    "copy_to_host": "hipMemcpyDtoHAsync",
    "copy": "hipMemcpyDtoDAsync",
    "fill": "hipMemsetD32Async",
    "module_unload": "hipModuleUnload",
    "module_function": "hipModuleGetFunction",
    "function_attribute": "hipFuncGetAttribute",
    "occupancy": "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor",
    "launch": "hipModuleLaunchKernel",
}
_OWN = {
    "last_error": ("hipGetLastError", ()),
    "current_device": ("hipGetDevice", (OUT,)),
    "set_device": ("hipSetDevice", (c_int,)),
    "module_load": ("hipModuleLoadData", (OUT, c_char_p)),
}
_CALLED = {"device_current": "hipGetDevice", "device_set": "hipSetDevice", "last_error": "hipGetLastError"}
# A context is the number of a device. Entering gives 1 more than the number of the device that was current, if that was another one.
# hipDeviceAttribute_t, whose numbers have been the same since ROCm 5.
_INTEGRATED, _MAX_GRID, _MAX_GROUP, _PROCESSORS, _SHARED, _WAVE, _POOLS = 16, 29, 56, 63, 74, 87, 88
# hipDeviceProp_t changed with ROCm 6, and with it the name of the function. Each entry has the function, and the offset of `gcnArchName`.
_PROPERTIES = (("hipGetDevicePropertiesR0600", 1160), ("hipGetDeviceProperties", 396))
_PROPERTY_BYTES, _ARCHITECTURE_BYTES = 4096, 256
_VERSION_FILE = Path("/sys/module/amdgpu/version")


class HipDriver(Driver):
    """The driver of HIP, see `Driver`. Other users of HIP in the process, such as torch, use the same devices."""

    api, arch, knob = "HIP", "amdgpu", "SG_LIBHIP"
    missing = "HIP's runtime is not installed (on Linux it comes with ROCm, on Windows with the HIP SDK or AMD's driver)"
    needed = "ROCm 5.2 or newer is needed; update it"
    symbols, own, called = _SYMBOLS, _OWN, _CALLED
    switch: ClassVar[ModuleType] = hip_context
    launch_end, dlpack_type, forked_code = 3, 10, None

    def __init__(self, library: CDLL, path: str) -> None:
        super().__init__(library, path)
        self.error_name, self.error_text = self.find(library, "hipGetErrorName"), self.find(library, "hipGetErrorString")
        for function in (self.error_name, self.error_text):
            function.argtypes, function.restype = (c_int,), c_char_p
        known = [(symbol, place) for symbol, place in _PROPERTIES if hasattr(library, symbol)]
        symbol, self._architecture_at = (known or _PROPERTIES)[0]
        self.device_properties = self.find(library, symbol)
        self.device_properties.argtypes, self.device_properties.restype = (c_void_p, c_int), c_int

    @classmethod
    def libraries(cls) -> tuple[str, ...]:
        """Return the paths of the library.

        A process must have one HIP runtime, because two would not share memory and streams. torch brings its own.
        """
        if sys.platform == "win32":
            return _WINDOWS
        try:
            mapped = [line.split(maxsplit=5) for line in _MAPS.read_text(errors="replace").splitlines()]
            loaded = [fields[5] for fields in mapped if len(fields) == 6 and "/libamdhip64.so" in fields[5]]
        except OSError:
            loaded = []
        return (*dict.fromkeys(loaded), *_LINUX)

    def stream(self, handle: int) -> int:
        return 0 if handle == 1 else handle

    def describe(self, code: int) -> str:
        name, text = self.error_name(code), self.error_text(code)
        known = (name or f"HIP error {code}".encode()).decode()
        return f"{known} ({text.decode(errors='replace')})" if text else known

    def version(self) -> str:
        number = c_int()
        self.call("read the version of the driver", self.driver_version, byref(number))
        return f"{number.value // 10_000_000}.{number.value // 100_000 % 100}"

    # --- the current device ---

    def context(self, ordinal: int) -> int:
        return ordinal

    def enter(self, context: int) -> int:
        now = c_int()
        self.current_device(byref(now))
        code: int = self.set_device(context)
        return -code if code else now.value + 1

    def leave(self, entered: int) -> None:
        if entered > 0:
            self.set_device(entered - 1)

    def drop_context(self, ordinal: int) -> None:
        """Do nothing: HIP has no contexts."""

    def forget(self) -> None:
        self.last_error()

    # --- kernels ---

    def load(self, image: bytes, name: str) -> c_void_p:
        module = c_void_p()
        self.call(f"load kernel {name}", self.module_load, byref(module), image)
        return module

    def assemble(self, image: bytes, name: str) -> bytes:
        raise SpirogradRuntimeError(f"kernel {name}: this is no code object ({len(image)} bytes)")

    # --- devices ---

    def architecture(self, ordinal: int) -> str:
        """Return LLVM's name of the architecture of a device, such as "gfx1100", without its features."""
        properties = ctypes.create_string_buffer(_PROPERTY_BYTES)
        self.call(f"read the properties of device {ordinal}", self.device_properties, properties, ordinal)
        text = properties.raw[self._architecture_at : self._architecture_at + _ARCHITECTURE_BYTES].split(b"\0")[0]
        return text.decode(errors="replace").split(":")[0]

    def unusable(self, ordinal: int) -> str:
        architecture = self.architecture(ordinal)
        if architecture not in amdgpu.ARCHITECTURES:
            known = ", ".join(amdgpu.ARCHITECTURES)
            return f"the HIP device {self.name(ordinal)} has the architecture {architecture}; spirograd has code for {known}"
        if not self.attribute(ordinal, _POOLS):
            return f"the HIP device {self.name(ordinal)} cannot be used: its driver offers no memory pools"
        return ""

    def query(self, ordinal: int) -> Features:
        total, processors = self.memory(ordinal), self.attribute(ordinal, _PROCESSORS)
        api, architecture = f"HIP {self.version()}", self.architecture(ordinal)
        caps = replace(
            amdgpu.capabilities(architecture),
            shared_memory=self.attribute(ordinal, _SHARED),
            max_group_size=self.attribute(ordinal, _MAX_GROUP),
            max_groups=self.attribute(ordinal, _MAX_GRID),
            max_allocation=total,
            toolchain=toolchain.version(),
        )
        detail = (
            ("kind", "integrated" if self.attribute(ordinal, _INTEGRATED) else "discrete"),
            ("architecture", architecture),
            ("wave size", str(self.attribute(ordinal, _WAVE))),
            ("compute units", str(processors)),
            ("memory", f"{total / 2**30:.1f} GiB"),
        )
        info = DeviceInfo(self.arch, self.name(ordinal), driver_version(_VERSION_FILE, api), detail)
        return Features(ordinal, info, caps, total, processors)


def open(debug: bool = False, max_threads: int = 0, device_memory_bytes: int | None = None, device: str = "") -> GpuDevice:
    """Open a HIP device: see `opening.open_gpu`."""
    return opening.open_gpu(HipDriver, device_memory_bytes, device)


def available() -> str | None:
    """Return None if a HIP device can be opened, else the reason why not."""
    return opening.available(HipDriver)


def devices() -> list[tuple[str, str]]:
    """See `opening.devices`."""
    return opening.devices(HipDriver)

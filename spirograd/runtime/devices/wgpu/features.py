"""Adapters and their features: the choice among them, features and limits, the capability record."""

from __future__ import annotations

import sys

from spirograd.base import knobs
from spirograd.base.caps import COMBINATIONS, Capabilities
from spirograd.base.device import DeviceInfo
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.profiles import restricted
from spirograd.base.records import dataclass
from spirograd.runtime.devices.choice import named_device
from spirograd.runtime.devices.grid_size import LLVMPIPE_LOOP_LIMIT, LLVMPIPE_NESTING_LIMIT
from spirograd.runtime.devices.wgpu.api import check_version, start_instance, subgroup_sizes, telling, wgpu

# SG_WGPU_BACKEND -> wgpu's names of the backend: in a request, and in the information of an adapter.
BACKENDS = {"vulkan": ("Vulkan", "Vulkan"), "metal": ("Metal", "Metal"), "d3d12": ("DX12", "D3D12"), "gl": ("GL", "OpenGL")}
_PLATFORM = {"darwin": "metal", "win32": "d3d12"}
# Kinds of adapters, best first.
_PREFERENCE = {"DiscreteGPU": 0, "IntegratedGPU": 1, "Unknown": 2, "CPU": 3}
_KINDS = {"DiscreteGPU": "discrete", "IntegratedGPU": "integrated", "CPU": "cpu"}
# Feature of wgpu -> field of Capabilities.
_FEATURES = {
    "shader-int64": "int64",
    "shader-f64": "float64",
    "shader-f16": "float16",
    "shader-int64-atomic-all-ops": "atomic_int64",
    "shader-float32-atomic": "atomic_f32_add",
}
# Limit of wgpu -> field of Capabilities, for sessions that a profile restricts: the device then checks them.
_LIMITS = {
    "max-storage-buffers-per-shader-stage": "max_buffers",
    "max-storage-buffer-binding-size": "max_allocation",
    "max-compute-workgroup-storage-size": "shared_memory",
    "max-compute-invocations-per-workgroup": "max_group_size",
    "max-compute-workgroup-size-x": "max_group_size",
    "max-compute-workgroup-size-y": "max_group_size",
    "max-compute-workgroups-per-dimension": "max_groups",
}
# The defaults of WebGPU for limits that no field has.
_DEFAULT_LIMITS = {"max-compute-workgroup-size-z": 64, "min-storage-buffer-offset-alignment": 256}
_DEFAULT_BUFFER = 256 << 20
_SCANS = ("add", "mul")  # Types of scans in WGSL.
_IMMEDIATES, _SUBGROUPS, TIMESTAMPS = "immediates", "subgroup", "timestamp-query"


@dataclass(slots=True)
class Features:
    """The features of an adapter. ``kind``: discrete, integrated, cpu, other. ``enabled``: features to switch on;
    ``limits``: those to request instead of the adapter's."""

    adapter: wgpu.GPUAdapter
    kind: str
    info: DeviceInfo
    caps: Capabilities
    enabled: tuple[str, ...]
    limits: dict[str, int]


def backend_name(arch: str) -> str:
    """Return the backend of wgpu for ``arch`` ("wgpu" or "metal"), by SG_WGPU_BACKEND or the platform; raise SpirogradRuntimeError."""
    wanted = knobs.get("SG_WGPU_BACKEND").strip().lower()
    if wanted and wanted not in BACKENDS:
        raise SpirogradRuntimeError(f"SG_WGPU_BACKEND={wanted}: there is no such backend; there are {', '.join(BACKENDS)}")
    if arch == "metal":
        if sys.platform != "darwin":
            raise SpirogradRuntimeError("Metal exists on macOS only; elsewhere use sg.vulkan, sg.wgpu or sg.gpu")
        if wanted not in ("", "metal", "vulkan"):
            raise SpirogradRuntimeError(f"SG_WGPU_BACKEND={wanted}: arch=sg.metal runs on metal, or on vulkan (MoltenVK)")
        return wanted or "metal"
    return wanted or _PLATFORM.get(sys.platform, "vulkan")


def adapters(backend: str) -> list[wgpu.GPUAdapter]:
    """Return the adapters of a backend, in the order of the numbers of SG_DEVICE.

    Raises SpirogradRuntimeError if wgpu runs on another backend.
    """
    check_version()
    requested, shown = BACKENDS[backend]
    started = start_instance(requested)
    if started not in ("", requested):
        now = next(name for name, (native, _) in BACKENDS.items() if native == started)
        raise SpirogradRuntimeError(f"wgpu runs on {now} in this process already; set SG_WGPU_BACKEND={backend} when the process starts")
    with telling("look for adapters through wgpu"):
        return [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] == shown]


def choose(arch: str, requested: str = "") -> wgpu.GPUAdapter:
    """Return the adapter that SG_DEVICE or ``requested`` names (number, or part of the name), else the most capable kind.

    Raises SpirogradRuntimeError with a list of the adapters if no adapter fits.
    """
    backend = backend_name(arch)
    candidates = adapters(backend)
    if not candidates:
        raise SpirogradRuntimeError(f"wgpu is installed, but finds no adapter for its backend {backend}; install a driver for it")
    number = named_device([adapter_name(a) for a in candidates], "adapter of wgpu", requested)
    if number is not None:
        return candidates[number]
    return min(candidates, key=lambda a: _PREFERENCE.get(a.info["adapter_type"], 2))


def adapter_name(adapter: wgpu.GPUAdapter) -> str:
    return str(adapter.info["device"] or adapter.info["vendor"])


def query(adapter: wgpu.GPUAdapter, arch: str, profile: str = "") -> Features:
    """Return the features of ``adapter``. ``profile``: see `loader.open_device`; features that it lacks are not enabled, either."""
    info, limits, offered = adapter.info, adapter.limits, set(adapter.features)
    smallest, largest = subgroup_sizes(adapter)
    same_subgroups = _SUBGROUPS in offered and smallest == largest > 0
    kind = _KINDS.get(info["adapter_type"], "other")
    caps = Capabilities(
        target_name="wgpu",
        nearest_f16=False,
        **{field: feature in offered for feature, field in _FEATURES.items()},  # type: ignore[arg-type]
        storage_f16="shader-f16" in offered,
        atomic_cas=False,
        subgroup_size=smallest if same_subgroups else 0,
        subgroup_arithmetic=same_subgroups,
        subgroup_reductions=COMBINATIONS if same_subgroups and kind != "cpu" else (),
        subgroup_scans=_SCANS if same_subgroups and kind != "cpu" else (),
        subgroup_read=same_subgroups,
        shared_memory=limits["max-compute-workgroup-storage-size"],
        max_group_size=min(limits["max-compute-invocations-per-workgroup"], limits["max-compute-workgroup-size-x"]),
        max_groups=limits["max-compute-workgroups-per-dimension"],
        max_push_constants=limits.get("max-immediate-size", 0) if _IMMEDIATES in offered else 0,
        max_buffers=limits["max-storage-buffers-per-shader-stage"],
        max_allocation=min(limits["max-buffer-size"], limits["max-storage-buffer-binding-size"]) // 16 * 16,
        loop_limit=LLVMPIPE_LOOP_LIMIT if info["vendor"] == "llvmpipe" else 0,
        nesting_limit=LLVMPIPE_NESTING_LIMIT if info["vendor"] == "llvmpipe" else 0,
        memory_barriers=info["vendor"] != "llvmpipe",
        coarse_sines=info["vendor"].startswith("SwiftShader"),
        cpu_driver=kind == "cpu",
    )
    limits_of_profile: dict[str, int] = {}
    if profile:
        caps = restricted(caps, profile)
        offered -= {feature for feature, field in _FEATURES.items() if not getattr(caps, field)}
        offered -= set() if caps.max_push_constants else {_IMMEDIATES}
        limits_of_profile = {limit: getattr(caps, field) for limit, field in _LIMITS.items()} | _DEFAULT_LIMITS
        limits_of_profile["max-buffer-size"] = max(caps.max_allocation, min(_DEFAULT_BUFFER, limits["max-buffer-size"]))
    native = ".".join(map(str, wgpu.backends.wgpu_native.version_info))
    detail = (("kind", kind), ("backend", info["backend_type"]), ("wgpu-native", native))
    device_info = DeviceInfo(arch, adapter_name(adapter), str(info["description"]), detail)
    wanted = (*_FEATURES, _IMMEDIATES, _SUBGROUPS, TIMESTAMPS)
    return Features(adapter, kind, device_info, caps, tuple(f for f in wanted if f in offered), limits_of_profile)


def create_device(features: Features) -> wgpu.GPUDevice:
    """Return the device of wgpu, with all of ``features.enabled`` on and the limits of the profile, else of the adapter."""
    with telling(f"open {features.info.name} through wgpu"):
        return features.adapter.request_device_sync(required_features=list(features.enabled), required_limits=features.limits)

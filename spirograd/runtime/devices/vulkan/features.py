"""The features of a physical device: queried once, turned into Capabilities, and enabled when the logical device is created."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import vulkan as vk

from spirograd.base import knobs
from spirograd.base.caps import COMBINATIONS, Capabilities
from spirograd.base.device import DeviceInfo
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.matrix_shapes import SHAPES, MatrixShape
from spirograd.base.profiles import restricted
from spirograd.base.records import dataclass, replace
from spirograd.runtime.devices.grid_size import LLVMPIPE_LOOP_LIMIT, LLVMPIPE_NESTING_LIMIT
from spirograd.runtime.devices.vulkan.api import (
    API_1_2,
    API_1_3,
    NULL,
    check,
    device_extensions,
    enumerate_all,
    ffi,
    lib,
    strings,
    struct,
    text,
)
from spirograd.runtime.devices.vulkan.instance import Instance
from spirograd.runtime.devices.vulkan.later_structures import LATER, later_structure
from spirograd.runtime.devices.vulkan.metal_memory import APPLE
from spirograd.runtime.devices.vulkan.metal_memory import EXTENSION as METAL_MEMORY

_V11, _V12 = "VkPhysicalDeviceVulkan11Features", "VkPhysicalDeviceVulkan12Features"
_CLOCK = "VkPhysicalDeviceShaderClockFeaturesKHR"
_MATRIX = "VkPhysicalDeviceCooperativeMatrixFeaturesKHR"
_FLOAT, _FLOAT2 = "VkPhysicalDeviceShaderAtomicFloatFeaturesEXT", "VkPhysicalDeviceShaderAtomicFloat2FeaturesEXT"
_EXECUTABLE = "VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR"
_RECONVERGENCE = "VkPhysicalDeviceShaderMaximalReconvergenceFeaturesKHR"
_SIZE_CONTROL = "VkPhysicalDeviceSubgroupSizeControlFeatures"
_FLOAT_CONTROLS2 = "VkPhysicalDeviceShaderFloatControls2Features"
EXECUTABLES = "VK_KHR_pipeline_executable_properties"
# Structures of features in the order of their chain: (name, extension that it needs).
_CHAIN = (
    (_V11, ""),
    (_V12, ""),
    (_FLOAT, "VK_EXT_shader_atomic_float"),
    (_FLOAT2, "VK_EXT_shader_atomic_float2"),
    (_CLOCK, "VK_KHR_shader_clock"),
    (_MATRIX, "VK_KHR_cooperative_matrix"),
    (_RECONVERGENCE, "VK_KHR_shader_maximal_reconvergence"),
    (_FLOAT_CONTROLS2, "VK_KHR_shader_float_controls2"),
    (_SIZE_CONTROL, "VK_EXT_subgroup_size_control"),
    (_EXECUTABLE, EXECUTABLES),
)
_CORE = "core"
_MEMORY_MODEL, _DEVICE_SCOPE = "vulkanMemoryModel", "vulkanMemoryModelDeviceScope"
_EXTENDED_TYPES = "shaderSubgroupExtendedTypes"  # Values of 8, 16 and 64 bits in operations of subgroups.
# Every optional feature that is enabled, and the field of Capabilities that reports it.
_FEATURES = (
    (_CORE, "shaderInt64", "int64"),
    (_CORE, "shaderFloat64", "float64"),
    (_CORE, "shaderInt16", "int16"),
    (_V11, "storageBuffer16BitAccess", "storage16"),
    (_V12, "storageBuffer8BitAccess", "storage8"),
    (_V12, "shaderInt8", "int8"),
    (_V12, "shaderFloat16", "float16"),
    (_V12, "shaderBufferInt64Atomics", "atomic_int64"),
    (_V12, "shaderSharedInt64Atomics", "shared_int64"),
    (_V12, "bufferDeviceAddress", "buffer_address"),
    (_V12, "timelineSemaphore", ""),
    (_V12, _EXTENDED_TYPES, ""),
    (_V12, "scalarBlockLayout", ""),
    (_FLOAT, "shaderBufferFloat32Atomics", ""),
    (_FLOAT, "shaderBufferFloat32AtomicAdd", "atomic_f32_add"),
    (_FLOAT, "shaderSharedFloat32AtomicAdd", "shared_f32_add"),
    (_FLOAT, "shaderBufferFloat64Atomics", ""),
    (_FLOAT, "shaderBufferFloat64AtomicAdd", "atomic_f64_add"),
    (_FLOAT2, "shaderBufferFloat32AtomicMinMax", "atomic_f32_minmax"),
    (_CLOCK, "shaderSubgroupClock", ""),
    (_CLOCK, "shaderDeviceClock", ""),
    (_V12, _MEMORY_MODEL, ""),
    (_V12, _DEVICE_SCOPE, ""),
    (_MATRIX, "cooperativeMatrix", ""),
    (_RECONVERGENCE, "shaderMaximalReconvergence", "maximal_reconvergence"),
    (_FLOAT_CONTROLS2, "shaderFloatControls2", "float_controls2"),
    (_SIZE_CONTROL, "subgroupSizeControl", ""),
)
# Required features: kernels reach memory by its address, and submissions are ordered on a timeline.
_REQUIRED = {
    "bufferDeviceAddress": "buffer device addresses",
    "timelineSemaphore": "timeline semaphores",
}
_PORTABILITY_SUBSET = "VK_KHR_portability_subset"  # Must be enabled where it is offered (MoltenVK).
_MESA_25_1 = (25 << 22) | (1 << 12)
_CLOCKS = (("shaderDeviceClock", "device"), ("shaderSubgroupClock", "subgroup"))  # The better one first.
# Drivers whose results with float controls 2 were compared with NumPy at the ends of the range: lavapipe, and RADV's code in an emulator.
_COMPARED_FLOAT_CONTROLS = (vk.VK_DRIVER_ID_MESA_LLVMPIPE, vk.VK_DRIVER_ID_MESA_RADV)
# Drivers whose invocations are known to hold equal parts of a total; the specification leaves this open.
_EVEN_TOTALS = (
    vk.VK_DRIVER_ID_NVIDIA_PROPRIETARY,
    vk.VK_DRIVER_ID_MESA_LLVMPIPE,
    vk.VK_DRIVER_ID_MESA_NVK,
    vk.VK_DRIVER_ID_MESA_RADV,
)
_COMPONENTS = {vk.VK_COMPONENT_TYPE_FLOAT16_KHR: "f16", vk.VK_COMPONENT_TYPE_FLOAT32_KHR: "f32", vk.VK_COMPONENT_TYPE_FLOAT64_KHR: "f64"}
_INDEPENDENCE_NONE = 2  # VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_NONE
_COMPUTE_STAGE = 0x20
# The size of subgroups that pipelines ask for where a driver has another default, such as 64 of RADV: that of most GPUs, for which ballots
# are words, and for which there are products of matrices.
_WANTED_SUBGROUP = 32
_WORD = 32  # The subgroup size of ballots: larger subgroups need integers of 64 bits.
_SUBGROUP_ARITHMETIC, _SUBGROUP_BALLOT, _SUBGROUP_SHUFFLE = 0x4, 0x8, 0x10
_KIND_NAMES = {
    vk.VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: "discrete",
    vk.VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: "integrated",
    vk.VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: "virtual",
    vk.VK_PHYSICAL_DEVICE_TYPE_CPU: "cpu",
}


@dataclass(slots=True)
class Features:
    """The features of a physical device.

    ``kind``: discrete, integrated, virtual, cpu, other. ``max_allocation``: the most bytes of one buffer. ``cache_identity``: identifies
    the device and driver of a pipeline cache. ``subgroup_size``: the size of subgroups that pipelines must ask for, 0 for the default.
    """

    physical: object
    kind: str
    info: DeviceInfo
    caps: Capabilities
    enabled: frozenset[tuple[str, str]]
    extensions: tuple[str, ...]
    max_allocation: int
    cache_identity: bytes
    subgroup_size: int = 0


def query(physical: object, instance: Instance, profile: str = "") -> Features:
    """Return the features of ``physical``, a device of ``instance``. ``profile``: see `loader.open_device`; features that it lacks are not
    enabled, either.

    Raises SpirogradRuntimeError with the names of required features that it lacks.
    """
    properties, v11, v12, v13 = _properties(physical)
    name = text(properties.deviceName)
    version = f"{properties.apiVersion >> 22}.{properties.apiVersion >> 12 & 0x3FF}.{properties.apiVersion & 0xFFF}"
    if properties.apiVersion < API_1_2:
        raise SpirogradRuntimeError(f"the Vulkan device {name} has Vulkan {version}; 1.2 is needed")
    offered = device_extensions(physical)
    enabled = _available_features(physical, offered)
    if v12.driverID not in _COMPARED_FLOAT_CONTROLS:
        enabled.discard((_FLOAT_CONTROLS2, "shaderFloatControls2"))
    missing = [label for feature, label in _REQUIRED.items() if all(f != feature for _, f in enabled)]
    if missing:
        raise SpirogradRuntimeError(f"the Vulkan device {name} cannot be used: it lacks {', '.join(missing)}; use another back end")
    extensions = [extension for chained, extension in _CHAIN if extension and any(s == chained for s, _ in enabled)]
    if _PORTABILITY_SUBSET in offered:
        extensions.append(_PORTABILITY_SUBSET)
    if METAL_MEMORY in offered and properties.vendorID == APPLE:
        extensions.append(METAL_MEMORY)
    limits = properties.limits
    allocation = min(v11.maxMemoryAllocationSize, v13.maxBufferSize if v13 is not None else v11.maxMemoryAllocationSize)
    flags = {field: True for group, feature, field in _FEATURES if field and (group, feature) in enabled}
    kind = _KIND_NAMES.get(properties.deviceType, "other")
    wanted = _wanted_subgroup_size(physical, v11, enabled)
    size = wanted or v11.subgroupSize
    caps = Capabilities(
        target_name="vulkan",
        **flags,  # type: ignore[arg-type]
        **_subgroups(v11, size, (_V12, _EXTENDED_TYPES) in enabled, kind),
        shared_memory=limits.maxComputeSharedMemorySize,
        max_group_size=min(limits.maxComputeWorkGroupInvocations, limits.maxComputeWorkGroupSize[0]),
        max_groups=limits.maxComputeWorkGroupCount[0],
        max_push_constants=limits.maxPushConstantsSize,
        max_allocation=allocation,
        **driver_facts(v12, properties.driverVersion),
        cpu_driver=kind == "cpu",
        matrix_shapes=_matrix_shapes(physical, instance, size, v12, enabled),
        shader_clock=next((scope for feature, scope in _CLOCKS if (_CLOCK, feature) in enabled), ""),
    )
    if profile:
        caps = restricted(caps, profile)
        enabled -= {(group, feature) for group, feature, field in _FEATURES if field and not getattr(caps, field)}
    driver = f"{text(v12.driverName)} {text(v12.driverInfo)}".strip()
    detail = (("kind", kind), ("vulkan", version))
    identity = bytes(ffi.buffer(v11.deviceUUID)) + bytes(ffi.buffer(v11.driverUUID)) + bytes(ffi.buffer(properties.pipelineCacheUUID))
    return Features(
        physical,
        kind,
        DeviceInfo("vulkan", name, driver, detail),
        caps,
        frozenset(enabled),
        tuple(extensions),
        allocation,
        identity + properties.driverVersion.to_bytes(4, "little"),
        wanted,
    )


def driver_facts(v12: vk.ffi.CData, version: int) -> dict[str, Any]:
    """Return the members of `Capabilities` that depend on the driver and its version, as Vulkan packs it. See docs/spirv.md#drivers."""
    facts = _float_modes(v12)
    if v12.driverID == vk.VK_DRIVER_ID_GOOGLE_SWIFTSHADER:
        facts["coarse_sines"] = True
    if v12.driverID == vk.VK_DRIVER_ID_MOLTENVK:
        facts["positive_zero_products"] = True
    if v12.driverID == vk.VK_DRIVER_ID_MESA_LLVMPIPE:
        facts |= {"loop_limit": LLVMPIPE_LOOP_LIMIT, "nesting_limit": LLVMPIPE_NESTING_LIMIT, "memory_barriers": False}
        if version >= _MESA_25_1:
            facts["unmasked_uniform_loads"] = True
    return facts


def _float_modes(v12: vk.ffi.CData) -> dict[str, Any]:
    """Return the modes for special floats that modules can request, as members of `Capabilities`.

    SwiftShader (Chromium 156) runs spirv-opt on each module. If the module requests any of these modes, spirv-opt's constant propagation
    replaces loop-carried values by their initial constants if their update contains an extended instruction, such as SMin or Sin.
    """
    if v12.driverID == vk.VK_DRIVER_ID_GOOGLE_SWIFTSHADER:
        return {}
    specials = tuple(bits for bits in (16, 32, 64) if getattr(v12, f"shaderSignedZeroInfNanPreserveFloat{bits}"))
    subnormals = tuple(bits for bits in (16, 32, 64) if getattr(v12, f"shaderDenormPreserveFloat{bits}"))
    # Where the modes of the widths depend on each other (independence "none"), all widths must offer the mode.
    together = v12.denormBehaviorIndependence == _INDEPENDENCE_NONE and len(subnormals) < 3
    return {"exact_specials": specials, "exact_subnormals": () if together else subnormals}


def _wanted_subgroup_size(physical: object, v11: vk.ffi.CData, enabled: set[tuple[str, str]]) -> int:
    """Return `Features.subgroup_size`."""
    if v11.subgroupSize == _WANTED_SUBGROUP or (_SIZE_CONTROL, "subgroupSizeControl") not in enabled:
        return 0
    sizes = struct("VkPhysicalDeviceSubgroupSizeControlProperties")
    lib.vkGetPhysicalDeviceProperties2(physical, struct("VkPhysicalDeviceProperties2", pNext=sizes))
    offered = sizes.minSubgroupSize <= _WANTED_SUBGROUP <= sizes.maxSubgroupSize and sizes.requiredSubgroupSizeStages & _COMPUTE_STAGE
    return _WANTED_SUBGROUP if offered else 0


def _subgroups(v11: vk.ffi.CData, size: int, all_types: bool, kind: str) -> dict[str, Any]:
    """Return the operations of subgroups, as members of `Capabilities`. ``all_types``: also with values of 8, 16 and 64 bits."""
    if not v11.subgroupSupportedStages & _COMPUTE_STAGE:
        return {}
    operations = v11.subgroupSupportedOperations
    has_arithmetic = bool(operations & _SUBGROUP_ARITHMETIC)
    return {
        "subgroup_size": size,
        "subgroup_arithmetic": has_arithmetic,
        **combinations(kind, has_arithmetic),
        "subgroup_read": all_types and bool(operations & _SUBGROUP_SHUFFLE),
        "subgroup_ballot": bool(operations & _SUBGROUP_BALLOT) and size <= _WORD,
    }


def _matrix_shapes(
    physical: object, instance: Instance, subgroup_size: int, v12: vk.ffi.CData, enabled: set[tuple[str, str]]
) -> tuple[str, ...]:
    """Return the products of `SHAPES` that subgroups compute by cooperative matrices, better ones first."""
    needed = {(_MATRIX, "cooperativeMatrix"), (_V12, _MEMORY_MODEL), (_V12, _EXTENDED_TYPES)}
    if not needed <= enabled or v12.driverID not in _EVEN_TOTALS:
        return ()
    return offered_shapes(instance.cooperative_matrices(physical), subgroup_size)


def offered_shapes(offered: Iterable[vk.ffi.CData], subgroup_size: int) -> tuple[str, ...]:
    """Return the products of `SHAPES` among VkCooperativeMatrixPropertiesKHR, of subgroups of this size."""
    extents = set()
    for p in offered:
        types = tuple([_COMPONENTS.get(t) for t in (p.AType, p.BType, p.CType, p.ResultType)])
        if p.scope == vk.VK_SCOPE_SUBGROUP_KHR and not p.saturatingAccumulation:
            extents.add((p.MSize, p.NSize, p.KSize, *types))
    return tuple([name for name, s in SHAPES.items() if s.lanes == subgroup_size and _extents(s) in extents])


def _extents(shape: MatrixShape) -> tuple[object, ...]:
    factor, total = shape.factor.name, shape.total.name
    return shape.rows, shape.columns, shape.depth, factor, factor, total, total


def combinations(kind: str, has_arithmetic: bool) -> dict[str, object]:
    """Return the members of `Capabilities` that say which reductions and scans are one instruction on a device of a ``kind`` (see
    `Features`)."""
    # On lavapipe these instructions are loops over the lanes: 16 sums of 2**20 integers take 104 ms by them, 62 ms by exchanges.
    kinds = COMBINATIONS if has_arithmetic and kind != "cpu" else ()
    return {"subgroup_reductions": kinds, "subgroup_scans": kinds}


def with_executables(features: Features) -> Features:
    """Return ``features`` of a device that tells about its machine code, see `inspection`."""
    told = (_EXECUTABLE, "pipelineExecutableInfo")
    return replace(features, enabled=features.enabled | {told}, extensions=(*features.extensions, EXECUTABLES))


def create_device(features: Features) -> tuple[vk.ffi.CData, int, int]:
    """Create a logical device with compute queues and all wanted features enabled.

    Returns the device, the queue family and the number of its queues.
    """
    family, count = _compute_family(features.physical)
    count = min(count, _wanted_queues())
    priorities = ffi.new("float[]", [1.0] * count)
    queue = struct("VkDeviceQueueCreateInfo", queueFamilyIndex=family, queueCount=count, pQueuePriorities=priorities)
    chain = _chain({name for name, _ in features.enabled})
    for group, feature in features.enabled:
        setattr(chain[group].features if group == _CORE else chain[group], feature, 1)
    names, kept = strings(list(features.extensions))
    info = struct(
        "VkDeviceCreateInfo",
        pNext=chain[_CORE],
        queueCreateInfoCount=1,
        pQueueCreateInfos=queue,
        enabledExtensionCount=len(features.extensions),
        ppEnabledExtensionNames=names,
    )
    device = ffi.new("VkDevice*")
    check(lib.vkCreateDevice(features.physical, info, NULL, device), f"open the Vulkan device {features.info.name}")
    del kept
    return device[0], family, count


def _properties(physical: object) -> tuple[vk.ffi.CData, vk.ffi.CData, vk.ffi.CData, vk.ffi.CData]:
    basic = ffi.new("VkPhysicalDeviceProperties*")
    lib.vkGetPhysicalDeviceProperties(physical, basic)
    v13 = struct("VkPhysicalDeviceVulkan13Properties") if basic.apiVersion >= API_1_3 else None
    v12 = struct("VkPhysicalDeviceVulkan12Properties", pNext=v13 if v13 is not None else NULL)
    v11 = struct("VkPhysicalDeviceVulkan11Properties", pNext=v12)
    if basic.apiVersion >= API_1_2:
        both = struct("VkPhysicalDeviceProperties2", pNext=v11)
        lib.vkGetPhysicalDeviceProperties2(physical, both)
    return basic, v11, v12, v13


def _chain(names: set[str]) -> dict[str, vk.ffi.CData]:
    """Return zeroed feature structures linked to each other; the dict keeps them alive."""
    chain: dict[str, object] = {}
    following: object = NULL
    for name, _ in reversed(_CHAIN):
        if name not in names:
            continue
        if name in LATER:
            chain[name], following = later_structure(name, following)
        else:
            chain[name] = following = struct(name, pNext=following)
    chain[_CORE] = struct("VkPhysicalDeviceFeatures2", pNext=following)
    return chain


def _available_features(physical: object, offered: set[str]) -> set[tuple[str, str]]:
    chain = _chain({name for name, extension in _CHAIN if not extension or extension in offered})
    lib.vkGetPhysicalDeviceFeatures2(physical, chain[_CORE])
    available: set[tuple[str, str]] = set()
    for group, feature, _ in _FEATURES:
        if group in chain and getattr(chain[group].features if group == _CORE else chain[group], feature):
            available.add((group, feature))
    if (_V12, _DEVICE_SCOPE) not in available:
        available.discard((_V12, _MEMORY_MODEL))  # Without that scope, it would prevent other modules from using it.
    return available


def _wanted_queues() -> int:
    text = knobs.get("SG_VULKAN_QUEUES").strip()
    if not text.isdecimal() or int(text) < 1:
        raise SpirogradRuntimeError(f"SG_VULKAN_QUEUES must be a number of queues, 1 or more, not {text!r}")
    return int(text)


def _compute_family(physical: object) -> tuple[int, int]:
    """Return the number of the queue family for compute work, and the number of its queues."""
    families = enumerate_all(
        lambda count, array: lib.vkGetPhysicalDeviceQueueFamilyProperties(physical, count, array), "VkQueueFamilyProperties"
    )
    for index, family in enumerate(families):
        if family.queueFlags & vk.VK_QUEUE_COMPUTE_BIT and family.queueCount:
            return index, family.queueCount
    raise SpirogradRuntimeError("the Vulkan device has no queue for compute work; name another one in SG_DEVICE, or use another back end")

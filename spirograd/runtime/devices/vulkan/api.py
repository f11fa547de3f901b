"""The Vulkan API through raw cffi function pointers: 4 to 8 times as fast per call as the `vulkan` package's own wrappers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import vulkan as vk
from vulkan import ffi as ffi

from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.runtime.devices.streamed import DeviceLost, WorkLost

lib = vk.lib
NULL = ffi.NULL

API_1_2 = (1 << 22) | (2 << 12)
API_1_3 = (1 << 22) | (3 << 12)

_RESULT_NAMES = {value: name for name, value in vars(vk).items() if name.startswith("VK_ERROR_") and isinstance(value, int)}
_OUT_OF_MEMORY = (vk.VK_ERROR_OUT_OF_HOST_MEMORY, vk.VK_ERROR_OUT_OF_DEVICE_MEMORY)
_ST = "VK_STRUCTURE_TYPE_"
_STRUCTURE_TYPES = {
    "VkApplicationInfo": "APPLICATION_INFO",
    "VkBufferCreateInfo": "BUFFER_CREATE_INFO",
    "VkBufferDeviceAddressInfo": "BUFFER_DEVICE_ADDRESS_INFO",
    "VkCommandBufferAllocateInfo": "COMMAND_BUFFER_ALLOCATE_INFO",
    "VkCommandBufferBeginInfo": "COMMAND_BUFFER_BEGIN_INFO",
    "VkCommandPoolCreateInfo": "COMMAND_POOL_CREATE_INFO",
    "VkComputePipelineCreateInfo": "COMPUTE_PIPELINE_CREATE_INFO",
    "VkDebugUtilsMessengerCreateInfoEXT": "DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT",
    "VkDeviceCreateInfo": "DEVICE_CREATE_INFO",
    "VkDeviceQueueCreateInfo": "DEVICE_QUEUE_CREATE_INFO",
    "VkExternalMemoryBufferCreateInfo": "EXTERNAL_MEMORY_BUFFER_CREATE_INFO",
    "VkInstanceCreateInfo": "INSTANCE_CREATE_INFO",
    "VkMemoryAllocateFlagsInfo": "MEMORY_ALLOCATE_FLAGS_INFO",
    "VkMemoryAllocateInfo": "MEMORY_ALLOCATE_INFO",
    "VkMemoryBarrier": "MEMORY_BARRIER",
    "VkMemoryDedicatedAllocateInfo": "MEMORY_DEDICATED_ALLOCATE_INFO",
    "VkPhysicalDeviceCooperativeMatrixFeaturesKHR": "PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR",
    "VkPhysicalDeviceFeatures2": "PHYSICAL_DEVICE_FEATURES_2",
    "VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR": "PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR",
    "VkPhysicalDeviceProperties2": "PHYSICAL_DEVICE_PROPERTIES_2",
    "VkPhysicalDeviceShaderAtomicFloat2FeaturesEXT": "PHYSICAL_DEVICE_SHADER_ATOMIC_FLOAT_2_FEATURES_EXT",
    "VkPhysicalDeviceShaderAtomicFloatFeaturesEXT": "PHYSICAL_DEVICE_SHADER_ATOMIC_FLOAT_FEATURES_EXT",
    "VkPhysicalDeviceShaderClockFeaturesKHR": "PHYSICAL_DEVICE_SHADER_CLOCK_FEATURES_KHR",
    "VkPhysicalDeviceVulkan11Features": "PHYSICAL_DEVICE_VULKAN_1_1_FEATURES",
    "VkPhysicalDeviceVulkan11Properties": "PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES",
    "VkPhysicalDeviceVulkan12Features": "PHYSICAL_DEVICE_VULKAN_1_2_FEATURES",
    "VkPhysicalDeviceVulkan12Properties": "PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES",
    "VkPhysicalDeviceVulkan13Properties": "PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES",
    "VkPipelineCacheCreateInfo": "PIPELINE_CACHE_CREATE_INFO",
    "VkPipelineExecutableInfoKHR": "PIPELINE_EXECUTABLE_INFO_KHR",
    "VkPipelineLayoutCreateInfo": "PIPELINE_LAYOUT_CREATE_INFO",
    "VkPipelineShaderStageCreateInfo": "PIPELINE_SHADER_STAGE_CREATE_INFO",
    "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo": "PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO",
    "VkQueryPoolCreateInfo": "QUERY_POOL_CREATE_INFO",
    "VkSemaphoreCreateInfo": "SEMAPHORE_CREATE_INFO",
    "VkSemaphoreTypeCreateInfo": "SEMAPHORE_TYPE_CREATE_INFO",
    "VkSemaphoreWaitInfo": "SEMAPHORE_WAIT_INFO",
    "VkShaderModuleCreateInfo": "SHADER_MODULE_CREATE_INFO",
    "VkSubmitInfo": "SUBMIT_INFO",
    "VkTimelineSemaphoreSubmitInfo": "TIMELINE_SEMAPHORE_SUBMIT_INFO",
}
_STRUCTURE_TYPE_VALUES = {name: getattr(vk, _ST + suffix) for name, suffix in _STRUCTURE_TYPES.items()}

# fmt: off
_DEVICE_FUNCTIONS = (
    "AllocateCommandBuffers", "AllocateMemory", "BeginCommandBuffer", "BindBufferMemory", "CmdBindPipeline", "CmdCopyBuffer",
    "CmdDispatch", "CmdFillBuffer", "CmdPipelineBarrier", "CmdPushConstants", "CmdUpdateBuffer", "CreateBuffer", "CreateCommandPool",
    "CreateComputePipelines", "CreatePipelineCache", "CreatePipelineLayout", "CreateSemaphore", "CreateShaderModule", "DestroyBuffer",
    "DestroyCommandPool", "DestroyDevice", "DestroyPipeline", "DestroyPipelineCache", "DestroyPipelineLayout", "DestroySemaphore",
    "DestroyShaderModule", "DeviceWaitIdle", "EndCommandBuffer", "FreeMemory", "GetBufferDeviceAddress", "GetBufferMemoryRequirements",
    "GetDeviceQueue", "GetPipelineCacheData", "GetSemaphoreCounterValue", "MapMemory", "QueueSubmit", "WaitSemaphores",
    "CmdResetQueryPool", "CmdWriteTimestamp", "CreateQueryPool", "DestroyQueryPool", "GetQueryPoolResults",
)
# fmt: on


def struct(name: str, **members: object) -> ffi.CData:
    """Return a zeroed structure with its sType set. The caller keeps the targets of its pointers alive."""
    return ffi.new(f"{name}*", {"sType": _STRUCTURE_TYPE_VALUES[name], **members})


def number(value: ffi.CData) -> int:
    """Return a handle, or a pointer, as a number."""
    return int(ffi.cast("uintptr_t", value))


def device_functions(device: object) -> SimpleNamespace:
    """Return the device-level functions that this package uses, without their ``vk``, as attributes."""
    table = SimpleNamespace()
    for name in _DEVICE_FUNCTIONS:
        pointer = lib.vkGetDeviceProcAddr(device, f"vk{name}".encode())
        if pointer == NULL:
            raise SpirogradRuntimeError(f"the Vulkan driver lacks vk{name}")
        setattr(table, name, ffi.cast(f"PFN_vk{name}", pointer))
    return table


def check(result: int, what: str) -> None:
    """Raise OutOfDeviceMemory, DeviceLost or SpirogradRuntimeError if a VkResult is an error. ``what``: the attempted operation."""
    if result >= 0:
        return
    name = _RESULT_NAMES.get(result, f"VkResult {result}")
    if result in _OUT_OF_MEMORY:
        remedy = "free arrays, or end other processes that use the device"
        raise OutOfDeviceMemory(f"Vulkan: out of memory ({name}) when trying to {what}: {remedy}")
    kind = DeviceLost if result == vk.VK_ERROR_DEVICE_LOST else SpirogradRuntimeError
    raise kind(f"Vulkan: cannot {what}: {name}")


def check_submission(result: int, what: str) -> None:
    """Raise like `check`, for a call that ends or submits a command buffer.

    Without memory for the call the recorded work is lost, and a caller that frees memory and tries again would continue without it. This
    case raises WorkLost, after which the device is not used.
    """
    if result in _OUT_OF_MEMORY:
        raise WorkLost(f"Vulkan: cannot {what}: {_RESULT_NAMES[result]}")
    check(result, what)


def text(array: object) -> str:
    """Return a fixed-size char array as text."""
    return str(ffi.string(array).decode(errors="replace"))


def strings(values: list[str]) -> tuple[ffi.CData, list[ffi.CData]]:
    """Return a ``char*[]`` of ``values``, and the objects that must stay alive while it is used."""
    kept = [ffi.new("char[]", value.encode()) for value in values]
    return (ffi.new("char*[]", kept) if kept else NULL), kept


def enumerate_all(function: Callable[..., int], element: str, *args: object) -> ffi.CData:
    """Run the usual two-call enumeration, ``function(*args, count, array)``.

    Returns an array, which owns its elements, or an empty tuple.
    """
    count = ffi.new("uint32_t*")
    function(*args, count, NULL)
    if not count[0]:
        return ()
    array = ffi.new(f"{element}[]", count[0])
    function(*args, count, array)
    return array


def device_extensions(physical: object) -> set[str]:
    """Return names of the extensions that a physical device offers."""
    return {text(e.extensionName) for e in enumerate_all(lib.vkEnumerateDeviceExtensionProperties, "VkExtensionProperties", physical, NULL)}


def instance_extensions() -> set[str]:
    """Return names of the extensions that instances can have."""
    return {text(e.extensionName) for e in enumerate_all(lib.vkEnumerateInstanceExtensionProperties, "VkExtensionProperties", NULL)}

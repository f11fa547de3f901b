"""Buffers of Metal as memory of a Vulkan device, without a copy: the import of VK_EXT_external_memory_metal, which MoltenVK has since 1.3.

The package `vulkan` lacks the extension: its structures are declared here by ctypes.
"""

from __future__ import annotations

import ctypes

import vulkan as vk

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.runtime.devices.vulkan.api import NULL, check, ffi, lib, number, struct

EXTENSION = "VK_EXT_external_memory_metal"
# The vendor of all GPUs of Apple silicon. Such a machine has a single GPU, so that all libraries use the same MTLDevice.
APPLE = 0x106B
# Values of vk.xml.
MTLBUFFER = 0x10000  # VK_EXTERNAL_MEMORY_HANDLE_TYPE_MTLBUFFER_BIT_EXT
IMPORT_INFO, HANDLE_PROPERTIES = 1000602000, 1000602001
_GET_PROPERTIES = "vkGetMemoryMetalHandlePropertiesEXT"


class ImportMemoryMetalHandleInfo(ctypes.Structure):
    """VkImportMemoryMetalHandleInfoEXT."""

    _fields_ = [("sType", ctypes.c_uint32), ("pNext", ctypes.c_void_p), ("handleType", ctypes.c_uint32), ("handle", ctypes.c_void_p)]


class MemoryMetalHandleProperties(ctypes.Structure):
    """VkMemoryMetalHandlePropertiesEXT."""

    _fields_ = [("sType", ctypes.c_uint32), ("pNext", ctypes.c_void_p), ("memoryTypeBits", ctypes.c_uint32)]


def buffer_info(size: int, usage: int) -> tuple[vk.ffi.CData, vk.ffi.CData]:
    """Return the VkBufferCreateInfo of a buffer to be bound to imported memory, and the structure that it refers to."""
    external = struct("VkExternalMemoryBufferCreateInfo", handleTypes=MTLBUFFER)
    return struct("VkBufferCreateInfo", pNext=external, size=size, usage=usage), external


def memory_types(device: vk.ffi.CData, metal_buffer: int) -> int:
    """Return the bit mask of the memory types as which an `id<MTLBuffer>` can be imported."""
    address = lib.vkGetDeviceProcAddr(device, _GET_PROPERTIES.encode())
    if address == NULL:
        raise SpirogradRuntimeError(f"the Vulkan driver lacks {_GET_PROPERTIES}, although it offers {EXTENSION}")
    properties = MemoryMetalHandleProperties(sType=HANDLE_PROPERTIES)
    get = ffi.cast("int(*)(VkDevice, uint32_t, void*, void*)", address)
    handle, out = ffi.cast("void*", metal_buffer), ffi.cast("void*", ctypes.addressof(properties))
    check(get(device, MTLBUFFER, handle, out), "look up the memory types of a Metal buffer")
    bits: int = properties.memoryTypeBits
    return bits


def import_info(metal_buffer: int, following: vk.ffi.CData) -> tuple[vk.ffi.CData, ctypes.Structure]:
    """Return a pointer to the structure that imports an `id<MTLBuffer>`, for the chain of a VkMemoryAllocateInfo, and what keeps it alive.

    ``following``: the next structure of the chain. The driver retains the MTLBuffer until the memory is freed.
    """
    info = ImportMemoryMetalHandleInfo(sType=IMPORT_INFO, pNext=number(following), handleType=MTLBUFFER, handle=metal_buffer)
    return ffi.cast("void*", ctypes.addressof(info)), info

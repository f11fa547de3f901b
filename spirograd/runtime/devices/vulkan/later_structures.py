"""Structures of features that are newer than the package `vulkan`, declared by ctypes; the package's own compiled ffi takes no more.

Each consists of its type, a pointer to the next structure, and one VkBool32 for each feature.
"""

from __future__ import annotations

import ctypes

import vulkan as vk

from spirograd.runtime.devices.vulkan.api import ffi, number

# Name -> its VkStructureType, and its features (vk.xml of Vulkan-Headers).
LATER: dict[str, tuple[int, tuple[str, ...]]] = {
    "VkPhysicalDeviceShaderMaximalReconvergenceFeaturesKHR": (1000434000, ("shaderMaximalReconvergence",)),
    "VkPhysicalDeviceShaderFloatControls2Features": (1000528000, ("shaderFloatControls2",)),
}


def later_structure(name: str, following: vk.ffi.CData) -> tuple[ctypes.Structure, vk.ffi.CData]:
    """Return a zeroed structure of `LATER`, whose attributes are its features, and a pointer to it, which does not keep it alive.

    ``following``: the next structure of the chain.
    """
    structure_type, features = LATER[name]
    members = [("sType", ctypes.c_uint32), ("pNext", ctypes.c_void_p), *[(feature, ctypes.c_uint32) for feature in features]]
    layout = type(name, (ctypes.Structure,), {"_fields_": members})
    structure = layout(sType=structure_type, pNext=number(following))
    return structure, ffi.cast("void*", ctypes.addressof(structure))

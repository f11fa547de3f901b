"""The Vulkan instance: layers, portability enumeration, messages of the validation layer, choice of the physical device."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections import deque

import vulkan as vk

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.runtime.devices.choice import listing, named_device
from spirograd.runtime.devices.vulkan.api import (
    API_1_2,
    API_1_3,
    NULL,
    check,
    enumerate_all,
    ffi,
    instance_extensions,
    lib,
    strings,
    struct,
    text,
)

_VALIDATION_LAYER = "VK_LAYER_KHRONOS_validation"
LAYER_HINT = "Debian, Ubuntu: vulkan-validationlayers; elsewhere: the Vulkan SDK"
_DEBUG_UTILS = "VK_EXT_debug_utils"
_PORTABILITY = "VK_KHR_portability_enumeration"
_ENUMERATE_PORTABILITY_BIT = 1
_WARNING_OR_ERROR = 0x100 | 0x1000
# Messages of validation and performance; "general" messages are the loader's own, about drivers that the program does not use.
_MESSAGE_TYPES = 0x2 | 0x4
_CALLBACK = (
    "VkBool32(VkDebugUtilsMessageSeverityFlagBitsEXT, VkDebugUtilsMessageTypeFlagsEXT, const VkDebugUtilsMessengerCallbackDataEXT*, void*)"
)
# The order of preference among kinds of devices, unless the user chooses.
_PREFERENCE = {
    vk.VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: 0,
    vk.VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: 1,
    vk.VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: 2,
    vk.VK_PHYSICAL_DEVICE_TYPE_CPU: 3,
}


# Instances without a device, kept for the next device; the key is whether the validation layer is on. Creating an instance takes longer
# than opening a device. The loader also unloads drivers with the last instance, and some cannot be loaded often: after some tens of times
# NVIDIA's driver finds no memory for its thread-local storage.
_idle: dict[bool, Instance] = {}


def take_instance(validation: bool) -> Instance:
    """Return an idle instance, else a new one. `Instance.close` makes it idle again."""
    instance = _idle.pop(validation, None)
    if instance is None:
        return Instance(validation)
    instance.messages = deque()  # The previous device may still hold its own instance.
    return instance


def keep_driver_loaded() -> None:
    """Ensure that there is an idle instance. Finalizers must not call this, because they must not create one."""
    if not _idle:
        with contextlib.suppress(SpirogradRuntimeError):
            spare = Instance(False)
            if _idle.setdefault(False, spare) is not spare:  # Another thread has stored one.
                spare.destroy()


def _destroy_validating() -> None:
    """Destroy instances with the validation layer before Python exits, because its messenger calls into Python."""
    instance = _idle.pop(True, None)
    if instance is not None:
        instance.destroy()


atexit.register(_destroy_validating)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # The driver's threads do not exist in the child.


def has_validation_layer() -> bool:
    """Return whether the Khronos validation layer is installed."""
    layers = enumerate_all(lib.vkEnumerateInstanceLayerProperties, "VkLayerProperties")
    return any(text(layer.layerName) == _VALIDATION_LAYER for layer in layers)


class Instance:
    """A VkInstance; `take_instance` returns one. ``messages`` collects warnings and errors of the validation layer, if it is on."""

    def __init__(self, validation: bool) -> None:
        self.messages: deque[str] = deque()
        self.validation = validation
        self._callback = ffi.callback(_CALLBACK, self._on_message) if validation else None
        version = ffi.new("uint32_t*", API_1_2)
        lib.vkEnumerateInstanceVersion(version)
        self.api_version = min(version[0], API_1_3)
        self.handle = self._create()
        self._messenger = self._create_messenger() if validation else None

    def _create(self) -> vk.ffi.CData:
        wanted = [_PORTABILITY] if _PORTABILITY in instance_extensions() else []
        flags = _ENUMERATE_PORTABILITY_BIT if wanted else 0
        layers: list[str] = []
        if self.validation:
            if not has_validation_layer():
                raise SpirogradRuntimeError(
                    f"the Vulkan validation layer was asked for (SG_VALIDATION=1), but {_VALIDATION_LAYER} is not installed ({LAYER_HINT})"
                )
            layers.append(_VALIDATION_LAYER)
            wanted.append(_DEBUG_UTILS)
        name = ffi.new("char[]", b"spirograd")
        app = struct("VkApplicationInfo", apiVersion=max(self.api_version, API_1_2), pEngineName=name)
        layer_names, kept_layers = strings(layers)
        extension_names, kept_extensions = strings(wanted)
        messenger = self._messenger_info() if self.validation else NULL
        info = struct(
            "VkInstanceCreateInfo",
            pNext=messenger,
            flags=flags,
            pApplicationInfo=app,
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=layer_names,
            enabledExtensionCount=len(wanted),
            ppEnabledExtensionNames=extension_names,
        )
        handle = ffi.new("VkInstance*")
        check(lib.vkCreateInstance(info, NULL, handle), "create a Vulkan instance")
        del kept_layers, kept_extensions
        return handle[0]

    def _messenger_info(self) -> vk.ffi.CData:
        return struct(
            "VkDebugUtilsMessengerCreateInfoEXT",
            messageSeverity=_WARNING_OR_ERROR,
            messageType=_MESSAGE_TYPES,
            pfnUserCallback=self._callback,
        )

    def _create_messenger(self) -> vk.ffi.CData:
        create = self._function("vkCreateDebugUtilsMessengerEXT")
        messenger = ffi.new("VkDebugUtilsMessengerEXT*")
        check(create(self.handle, self._messenger_info(), NULL, messenger), "listen to the validation layer")
        return messenger[0]

    def _function(self, name: str) -> vk.ffi.CData:
        return ffi.cast(f"PFN_{name}", lib.vkGetInstanceProcAddr(self.handle, name.encode()))

    def _on_message(self, _severity: int, _kind: int, data: vk.ffi.CData, _user: object) -> int:
        self.messages.append(text(data.pMessage))
        return 0

    def physical_devices(self) -> list[vk.ffi.CData]:
        """Return all physical devices, in the loader's order (the numbers of SG_DEVICE)."""
        return list(enumerate_all(lib.vkEnumeratePhysicalDevices, "VkPhysicalDevice", self.handle))

    def cooperative_matrices(self, physical: object) -> vk.ffi.CData:
        """Return the array of VkCooperativeMatrixPropertiesKHR of a physical device that has the extension."""
        function = self._function("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")
        count = ffi.new("uint32_t*")
        function(physical, count, NULL)
        shapes = ffi.new("VkCooperativeMatrixPropertiesKHR[]", count[0])
        for properties in shapes:
            properties.sType = vk.VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR
        check(function(physical, count, shapes), "read the shapes of cooperative matrices")
        return shapes

    def close(self, reuse: bool = True) -> None:
        """Make the instance idle for the next device, or destroy it if there is an idle one already, or without ``reuse``, after failures.

        Another instance is created first, which keeps the driver loaded: tests, and programs that continue after failures, do this often.
        """
        if reuse and _idle.setdefault(self.validation, self) is self:
            return
        keep_driver_loaded()
        self.destroy()

    def destroy(self) -> None:
        """Destroy the instance."""
        if self._messenger is not None:
            self._function("vkDestroyDebugUtilsMessengerEXT")(self.handle, self._messenger, NULL)
            self._messenger = None
        lib.vkDestroyInstance(self.handle, NULL)


def basic_properties(physical: object) -> vk.ffi.CData:
    """Return the VkPhysicalDeviceProperties of a physical device."""
    properties = ffi.new("VkPhysicalDeviceProperties*")
    lib.vkGetPhysicalDeviceProperties(physical, properties)
    return properties


def choose(instance: Instance, requested: str = "") -> vk.ffi.CData:
    """Return the physical device that SG_DEVICE or ``requested`` names (number, or part of the name), else the most capable kind.

    Raises SpirogradRuntimeError with a list of the devices if no device fits.
    """
    devices = instance.physical_devices()
    if not devices:
        raise SpirogradRuntimeError("Vulkan is installed, but no driver offers a device; `spirograd doctor` tells how to get one")
    names = [text(basic_properties(d).deviceName) for d in devices]
    number = named_device(names, "Vulkan device", requested)
    if number is not None:
        return devices[number]
    usable = [d for d in devices if basic_properties(d).apiVersion >= API_1_2]
    if not usable:
        raise SpirogradRuntimeError(f"no Vulkan device supports Vulkan 1.2, which is needed; there are {listing(names)}")
    return min(usable, key=lambda d: _PREFERENCE.get(basic_properties(d).deviceType, 4))

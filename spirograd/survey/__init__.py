"""Compiles kernels by the Vulkan drivers of many devices, on a machine that has none of these devices."""

"""Devices, memory and launches of compiled kernels. Nothing here depends on the IR."""

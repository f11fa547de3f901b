"""Checks of an artifact before a device loads it."""

from __future__ import annotations

from spirograd.base.artifact import CompiledKernel
from spirograd.base.errors import SpirogradRuntimeError

_SPIRV_MAGIC = 0x07230203


def check_target(kernel: CompiledKernel, target_name: str, device: str) -> None:
    """Raise SpirogradRuntimeError if ``kernel`` was compiled for another target than ``target_name``. ``device`` is its name for users."""
    if kernel.target_name != target_name:
        raise SpirogradRuntimeError(f"kernel {kernel.name} was compiled for {kernel.target_name!r}, not for {device}")


def check_module(module: bytes, name: str) -> None:
    """Raise SpirogradRuntimeError if the bytes are no SPIR-V at all: drivers do not look. ``name`` is the kernel's."""
    if len(module) < 20 or len(module) % 4 or int.from_bytes(module[:4], "little") != _SPIRV_MAGIC:
        raise SpirogradRuntimeError(f"kernel {name}: this is no SPIR-V module ({len(module)} bytes)")

"""Checks of an artifact before a device loads it."""

from __future__ import annotations

from spirograd.base.artifact import CompiledKernel
from spirograd.base.errors import SpirogradRuntimeError

_SPIRV_MAGIC = 0x07230203
_HEADER_WORDS = 5
_ENTRY_POINT, _FUNCTION = 15, 54  # the numbers of OpEntryPoint and OpFunction


def check_target(kernel: CompiledKernel, target_name: str, device: str) -> None:
    """Raise SpirogradRuntimeError if ``kernel`` was compiled for another target than ``target_name``. ``device`` is its name for users."""
    if kernel.target_name != target_name:
        raise SpirogradRuntimeError(f"kernel {kernel.name} was compiled for {kernel.target_name!r}, not for {device}")


def check_module(module: bytes, entry: str, name: str) -> None:
    """Raise SpirogradRuntimeError if the bytes are not SPIR-V, or have no entry point called ``entry``. Drivers do not check either.

    ``name`` is the kernel's name. The instructions are not checked; with `SG_VALIDATE=1`, `spirv-val` checks the compiler's modules.
    """
    if len(module) < 4 * _HEADER_WORDS or len(module) % 4 or int.from_bytes(module[:4], "little") != _SPIRV_MAGIC:
        raise SpirogradRuntimeError(f"kernel {name}: this is no SPIR-V module ({len(module)} bytes)")
    words = memoryview(module).cast("I")
    at, wanted = _HEADER_WORDS, entry.encode() + b"\0"
    while at < len(words):  # Entry points are near the beginning.
        length, code = words[at] >> 16, words[at] & 0xFFFF
        if not length or at + length > len(words) or code == _FUNCTION:
            break
        if code == _ENTRY_POINT and module[4 * (at + 3) : 4 * (at + length)].startswith(wanted):
            return
        at += length
    raise SpirogradRuntimeError(f"kernel {name}: the SPIR-V module has no entry point {entry!r:.80}")

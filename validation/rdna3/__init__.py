"""An emulator of RDNA3 (gfx11, wave32): it runs machine code on NumPy, without a card: the code objects of target "amdgpu", and what AMD's
Vulkan driver of Mesa, RADV, makes of the modules of target "vulkan".

Encodings, operands and the pseudocode of instructions come from tables that the package tinygrad generates from AMD's documents of the
instruction set; nothing else of that package is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from spirograd.runtime import loader
from validation.rdna3.tables import PACKAGE, folder

NAME, RADV = "rdna3", "radv"  # among the back ends that cases run on
# The back end whose sessions run on the emulator, and the module of the device.
_DEVICES = {NAME: ("amdgpu", f"{__name__}.device"), RADV: ("vulkan", f"{__name__}.radv")}


def missing(name: str = NAME) -> str | None:
    """None if the emulator works here, else why not. ``name``: `NAME`, or `RADV`, which needs the driver, too."""
    if folder() is None:
        return f"the tables of the instruction set are not installed: pip install {PACKAGE}"
    if name == RADV:
        from validation.rdna3 import radv

        return radv.missing() or None
    return None


@contextmanager
def emulated(name: str = NAME) -> Iterator[str]:
    """Sessions that begin inside run on the emulator; the value is their back end: "amdgpu", and of `RADV` "vulkan"."""
    arch, module = _DEVICES[name]
    with mock.patch.dict(loader.DEVICES, {arch: module}):
        yield arch

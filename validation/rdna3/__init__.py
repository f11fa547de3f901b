"""An emulator of RDNA3 (gfx11): it runs machine code on NumPy, without a card: the code objects of target "amdgpu", and what AMD's
Vulkan driver of Mesa, RADV, makes of the modules of target "vulkan".

Encodings, operands and the pseudocode of instructions come from tables that the package tinygrad generates from AMD's documents of the
instruction set; nothing else of that package is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from spirograd.runtime import loader
from validation.rdna3.tables import PACKAGE, folder

NAME, RADV, RADV_64 = "rdna3", "radv", "radv64"  # among the back ends that cases run on
# The back end whose sessions run on the emulator, the module of the device, and the lanes of a wave.
_DEVICES = {
    NAME: ("amdgpu", f"{__name__}.device", 32),
    RADV: ("vulkan", f"{__name__}.radv", 32),
    RADV_64: ("vulkan", f"{__name__}.radv", 64),
}
EMULATED = tuple(_DEVICES)
_WAVE = "RDNA3_WAVE"  # the variable that `waves` reads when it is imported


def missing(name: str = NAME) -> str | None:
    """None if the emulator works here, else why not. ``name``: one of `EMULATED`. Those of RADV need the driver, too."""
    if folder() is None:
        return f"the tables of the instruction set are not installed: pip install {PACKAGE}"
    if name != NAME:
        from validation.rdna3 import radv

        return radv.missing() or None
    return None


@contextmanager
def emulated(name: str = NAME) -> Iterator[str]:
    """Sessions that begin inside run on the emulator; the value is their back end: "amdgpu", and of RADV "vulkan". Raises RuntimeError if
    the process has emulated waves of another size."""
    arch, module, lanes = _DEVICES[name]
    with mock.patch.dict(os.environ, {_WAVE: str(lanes)}), mock.patch.dict(loader.DEVICES, {arch: module}):
        from validation.rdna3.waves import LANES

        if lanes != LANES:
            raise RuntimeError(f"this process emulates waves of {LANES} lanes: use another one for {name}")
        yield arch

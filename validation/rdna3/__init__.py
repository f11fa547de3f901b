"""An emulator of RDNA3 (gfx11, wave32): it runs the code objects of target "amdgpu" on NumPy, without a card.

Encodings, operands and the pseudocode of instructions come from tables that the package tinygrad generates from AMD's documents of the
instruction set; nothing else of that package is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from spirograd.runtime import loader
from validation.rdna3.tables import PACKAGE, folder

NAME = "rdna3"  # among the back ends that cases run on


def missing() -> str | None:
    """None if the emulator works here, else why not."""
    return None if folder() else f"the tables of the instruction set are not installed: pip install {PACKAGE}"


@contextmanager
def emulated() -> Iterator[None]:
    """Sessions of `amdgpu` that begin inside run on the emulator."""
    with mock.patch.dict(loader.DEVICES, {"amdgpu": f"{__name__}.device"}):
        yield

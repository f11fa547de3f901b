"""AMD's GPUs."""

from __future__ import annotations

from dataclasses import replace

from spirograd.base.caps import Capabilities
from spirograd.llvmgen import ptx

ARCHITECTURES = ("gfx906", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1201")


def capabilities(architecture: str) -> Capabilities:
    """What every GPU of an architecture ("gfx1100") can do."""
    return replace(ptx.capabilities(architecture), target_name="amdgpu")

"""Metal, as far as it goes without a Mac: SPIRV-Cross translates the modules of an Apple GPU to the Metal shading language."""

from __future__ import annotations

import shutil
import time

from spirograd.base.artifact import CompiledKernel
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.records import replace
from spirograd.report.shaders import TRANSLATOR, metal
from spirograd.survey.machine_code import OfflineCompiler
from spirograd.survey.profiles import profile_capabilities
from spirograd.survey.results import COMPILES, FAILED, Build


def metal_compiler(profile: str) -> OfflineCompiler:
    """Return SPIRV-Cross for an Apple GPU with a profile of `PROFILES`. Raises SpirogradRuntimeError if there is none."""
    if shutil.which(TRANSLATOR) is None:
        raise SpirogradRuntimeError(f"there is no program `{TRANSLATOR}` on the path: install SPIRV-Cross (package spirv-cross)")
    # Older versions of SPIRV-Cross translate atomic additions of floats to a function that Metal lacks: they are lowered.
    caps = replace(profile_capabilities(profile, "wgpu"), atomic_f32_add=False)
    return OfflineCompiler("translated by SPIRV-Cross, not compiled", caps, metal_builds)


def metal_builds(kernel: CompiledKernel, _: float) -> list[Build]:
    """Return the translation of each task."""
    return [_translated(kernel.binaries[task.binary]) for task in kernel.tasks]


def _translated(module: bytes) -> Build:
    begin = time.perf_counter()
    listing = metal(module)
    seconds = time.perf_counter() - begin
    return Build(COMPILES if listing.lines else FAILED, listing.note, seconds, code="\n".join(listing.lines))

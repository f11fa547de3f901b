"""Metal, as far as it goes without a Mac: SPIRV-Cross translates the modules of an Apple GPU to the Metal shading language."""

from __future__ import annotations

import shutil
import time

from spirograd.base.artifact import CompiledKernel
from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.records import dataclass
from spirograd.report.shaders import TRANSLATOR, metal
from spirograd.survey.machine_code import OfflineCompiler
from spirograd.survey.results import COMPILES, FAILED, Build

# The capabilities of an M1 through wgpu. Atomic additions of floats are lowered, because older versions of SPIRV-Cross translate them to
# a function that Metal lacks.
M1 = Capabilities(
    "wgpu",
    nearest_f16=False,
    int64=True,
    float16=True,
    storage_f16=True,
    atomic_cas=False,
    max_buffers=31,
    max_group_size=1024,
)


@dataclass(frozen=True, slots=True)
class MetalDevice:
    """An Apple GPU: see `devices.SurveyDevice`."""

    name: str
    title: str

    def open(self) -> OfflineCompiler:
        """See `devices.SurveyDevice`. Raises SpirogradRuntimeError if there is no SPIRV-Cross."""
        if shutil.which(TRANSLATOR) is None:
            raise SpirogradRuntimeError(f"there is no program `{TRANSLATOR}` on the path: install SPIRV-Cross (package spirv-cross)")
        return OfflineCompiler("translated by SPIRV-Cross, not compiled", M1, metal_builds)


def metal_builds(kernel: CompiledKernel, _: float) -> list[Build]:
    """Return the translation of each task."""
    return [_translated(kernel.binaries[task.binary]) for task in kernel.tasks]


def _translated(module: bytes) -> Build:
    begin = time.perf_counter()
    listing = metal(module)
    seconds = time.perf_counter() - begin
    return Build(COMPILES if listing.lines else FAILED, listing.note, seconds, code="\n".join(listing.lines))

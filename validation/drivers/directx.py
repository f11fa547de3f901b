"""Microsoft's compiler for DirectX 12, as a device of a survey: SPIRV-Cross makes HLSL of modules of target "wgpu", which DXC compiles.

What SPIRV-Cross is known not to translate (`tools.LIMITS`) counts as refused: most modules with numbers of 64 bits or f16, because it
writes memory as words. Modules for a device of `WORDS` have 64-bit integers as pairs of words.
"""

from __future__ import annotations

import importlib.metadata
import time
from contextlib import AbstractContextManager, nullcontext

from spirograd.base.artifact import CompiledKernel
from spirograd.base.caps import Capabilities
from spirograd.base.records import replace
from spirograd.survey.results import COMPILES, FAILED, REFUSED, Build
from validation.profiles import WGPU
from validation.tools import LIMIT, OK, hlsl

# A device with numbers of 32 bits only.
WORDS = replace(WGPU, int64=False, float16=False, float64=False, storage_f16=False, atomic_int64=False, atomic_f32_add=False)
_OUTCOMES = {OK: COMPILES, LIMIT: REFUSED}


class DirectX:
    """A device and its compiler: see `devices.SurveyDevice` and `devices.SurveyCompiler`."""

    title = "DirectX 12"

    def __init__(self, name: str, caps: Capabilities) -> None:
        self.name, self.caps = name, caps

    @property
    def driver(self) -> str:
        """The name and the version of the compiler."""
        return f"DXC of compushady-lrtu {importlib.metadata.version('compushady-lrtu')}, HLSL by SPIRV-Cross"

    def open(self) -> AbstractContextManager[DirectX]:
        """See `devices.SurveyDevice`."""
        return nullcontext(self)

    def build(self, kernel: CompiledKernel, seconds: float) -> list[Build]:
        """See `devices.SurveyCompiler`."""
        builds = [_built(binary) for binary in kernel.binaries]
        return [builds[task.binary] for task in kernel.tasks]


def _built(module: bytes) -> Build:
    begin = time.perf_counter()
    verdict = hlsl(module, WGPU.target_name)
    return Build(_OUTCOMES.get(verdict.status, FAILED), verdict.text, time.perf_counter() - begin)

"""Kernels that are compiled ahead of time: `Module` writes them to a file, `load` runs them without the compiler."""

from typing import TYPE_CHECKING

from spirograd.aot.loaded import LoadedGradient, LoadedKernel, LoadedModule, load
from spirograd.base import later as _later

if TYPE_CHECKING:
    from spirograd.aot.module_builder import Module as Module

__all__ = ["LoadedGradient", "LoadedKernel", "LoadedModule", "Module", "load"]

# What builds modules imports the compiler, which loading them must not.
if not TYPE_CHECKING:
    __getattr__ = _later.attributes("spirograd.aot", __all__, elsewhere={"Module": "spirograd.aot.module_builder"})

    def __dir__():
        return sorted({*globals(), *__all__})

"""LLVM IR text -> what a device loads, for every target that LLVM serves."""

from __future__ import annotations

from collections.abc import Callable

from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.base.targets import Generator
from spirograd.llvmgen.ptx import compile_ptx
from spirograd.llvmgen.toolchain import MachineCode, compile_module

_TRANSLATORS: dict[Generator, Callable[[str, Capabilities, CompileOptions], MachineCode]] = {
    Generator.LLVM: compile_module,
    Generator.PTX: compile_ptx,
}
# The stage with the assembly.
ASSEMBLY = {Generator.LLVM: "kernel.s", Generator.PTX: "kernel.ptx"}


def translate(text: str, caps: Capabilities, options: CompileOptions) -> MachineCode:
    """Compile the stage ``kernel.ll`` of a kernel, which may have been edited.

    Raises SpirogradRuntimeError with LLVM's message if the text is no valid module.
    """
    return _TRANSLATORS[caps.target.generator](text, caps, options)

"""Differences between LLVM targets: the dialect of kernel functions on GPUs, and the translation of their text to machine code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spirograd.base.caps import Capabilities
from spirograd.base.concurrently import map_concurrently
from spirograd.base.options import CompileOptions
from spirograd.base.targets import Generator
from spirograd.llvmgen.amdgpu import AMDGPU, compile_code_object
from spirograd.llvmgen.ptx import NVPTX, compile_ptx
from spirograd.llvmgen.toolchain import MachineCode, compile_module

DIALECTS = {Generator.PTX: NVPTX, Generator.CODE_OBJECT: AMDGPU}
# The compilation stage with the assembly.
ASSEMBLY = {Generator.LLVM: "kernel.s", Generator.PTX: "kernel.ptx", Generator.CODE_OBJECT: "kernel.s"}
# The compilation stage that is loaded.
LOADED = {Generator.PTX: "kernel.ptx", Generator.CODE_OBJECT: "kernel.hsaco"}
_TRANSLATORS: dict[Generator, Callable[[str, Capabilities, CompileOptions], MachineCode]] = {
    Generator.LLVM: compile_module,
    Generator.PTX: compile_ptx,
    Generator.CODE_OBJECT: compile_code_object,
}


def translate_modules(texts: Sequence[str], caps: Capabilities, options: CompileOptions) -> list[bytes]:
    """Compile several modules of a kernel at the same time. Raises what `translate` raises."""
    return map_concurrently(lambda text: translate(text, caps, options).binary, texts)


def translate(text: str, caps: Capabilities, options: CompileOptions) -> MachineCode:
    """Compile the stage ``kernel.ll`` of a kernel, which may have been edited.

    Raises SpirogradRuntimeError with LLVM's message if the text is no valid module.
    """
    return _TRANSLATORS[caps.target.generator](text, caps, options)

"""Stages of compiled kernels as files: writing them, and replacing stages by edited files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from spirograd.base.artifact import CompiledKernel
from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.base.records import dataclass, replace
from spirograd.base.targets import Generator
from spirograd.ir.nodes import Kernel


@dataclass(frozen=True, slots=True)
class Compilation:
    """A compilation: the compiled kernel with its target. ``kernel``: the IR from the front end."""

    compiled: CompiledKernel
    kernel: Kernel
    caps: Capabilities
    options: CompileOptions
    arch: str


# Called with each compilation, which then has its stages. While there are listeners, kernels are compiled and not taken from the cache.
listeners: list[Callable[[Compilation], None]] = []
# Called with the IR from the front end, and the options, of each compilation. While there are observers, every kernel is traced anew.
observers: list[Callable[[Kernel, CompileOptions], None]] = []


def stage_path(compiled: CompiledKernel, folder: Path, stage: str) -> Path:
    """Return the file of a stage: ``<kernel>-<key>.<stage>``. The stage may contain the name of a task, which the program chose."""
    plain = re.sub(r"[^\w.]", "_", stage)
    return folder / f"{compiled.name}-{compiled.key[:8]}.{plain}"


def write_stages(compiled: CompiledKernel, folder: Path) -> list[Path]:
    """Write every stage of ``compiled`` to ``folder``; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    out = []
    for name, content in compiled.stages.items():
        path = stage_path(compiled, folder, name)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content, encoding="utf-8")
        out.append(path)
    return out


def with_overrides(compiled: CompiledKernel, folder: Path, caps: Capabilities, options: CompileOptions) -> CompiledKernel:
    """Return ``compiled`` with its binaries replaced by those in ``folder``: SPIR-V modules, PTX and code objects unchanged, LLVM IR
    compiled. PTX or a code object that was not edited does not take precedence over LLVM IR."""
    if caps.target.generator is Generator.SPIRV:
        return replace(compiled, binaries=_modules(compiled, folder))
    return replace(compiled, binaries=_machine_code(compiled, folder, caps, options))


def _modules(compiled: CompiledKernel, folder: Path) -> tuple[bytes, ...]:
    binaries = list(compiled.binaries)
    for task in compiled.tasks:
        module = stage_path(compiled, folder, f"{task.name}.spv")
        if module.exists():
            binaries[task.binary] = module.read_bytes()
    return tuple(binaries)


def _machine_code(compiled: CompiledKernel, folder: Path, caps: Capabilities, options: CompileOptions) -> tuple[bytes, ...]:
    from spirograd.llvmgen.translate import LOADED, translate  # llvmlite is large, and only this needs it here

    generator = caps.target.generator
    if generator in LOADED:
        loaded = stage_path(compiled, folder, LOADED[generator])
        if loaded.exists():
            content = loaded.read_bytes() if generator is Generator.CODE_OBJECT else loaded.read_text(encoding="utf-8").encode()
            if content != compiled.binaries[0]:
                return (content,)
    text = stage_path(compiled, folder, "kernel.ll")
    if text.exists():
        return (translate(text.read_text(encoding="utf-8"), caps, options).binary,)
    return compiled.binaries

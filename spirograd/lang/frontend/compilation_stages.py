"""What can be seen of compiled kernels: the stages of compilation, by name."""

from __future__ import annotations

from collections.abc import Container

from spirograd.base.device import ShowsMachineCode
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.ir import nodes
from spirograd.lang import context
from spirograd.lang.session_protocol import Session


class Staged:
    """Something that is compiled to kernel IR. Subclasses say what was compiled last, and how errors call it."""

    def _compiled_last(self) -> nodes.Kernel | None:
        raise NotImplementedError

    def _label(self) -> str:
        raise NotImplementedError

    def stages(self) -> dict[str, str | bytes]:
        """Return all stages of what was compiled last: name -> text, or bytes of SPIR-V modules.

        Raises SpirogradRuntimeError before the first call.
        """
        return self._stages()

    def ir(self, stage: str = "kernel") -> str:
        """Return the IR: ``stage`` is "kernel" (from the front end), "offload" (tasks), "device" (lowered), or "loops" (planned for the
        CPU)."""
        stages, name = self._stages(generate=False), stage.removesuffix(".ir")
        if f"{name}.ir" not in stages:
            known = [file.removesuffix(".ir") for file in stages if file.endswith(".ir")]
            raise SpirogradRuntimeError(f"there is no IR {name!r}; there is that of the stages {', '.join(map(repr, known))}")
        return str(stages[f"{name}.ir"])

    def spirv(self) -> dict[str, bytes]:
        """Return the SPIR-V modules, by name of the task. Raises SpirogradRuntimeError on back ends without SPIR-V."""
        modules = self._some(".spv", "SPIR-V")
        return {name[: -len(".spv")]: data for name, data in modules.items() if isinstance(data, bytes)}

    def spirv_asm(self) -> dict[str, str]:
        """Return the SPIR-V modules as text, by name of the task, with the source line of each group of instructions."""
        return {name[: -len(".spvasm")]: str(text) for name, text in self._some(".spvasm", "SPIR-V").items()}

    def llvm(self, optimized: bool = False) -> str:
        """Return the LLVM IR of the kernel, before or after optimisation. Raises SpirogradRuntimeError on back ends that make SPIR-V."""
        return str(self._some(".opt.ll" if optimized else "kernel.ll", "LLVM IR").popitem()[1])

    def asm(self) -> str:
        """Return the machine code of the kernel as assembly; on CUDA its PTX, and then its machine code if nvdisasm is on the path. On GPUs
        it comes under a comment that says what each task takes, such as registers and spilled registers. Raises SpirogradRuntimeError if
        the driver of the device does not show its machine code: wgpu never does, drivers of Vulkan may."""
        stages = self._stages()
        codes = [str(text) for name, text in stages.items() if name in ("kernel.ptx", "kernel.sass") or name.endswith(".s")]
        if not codes:
            modules = any(name.endswith(".spv") for name in stages)
            raise SpirogradRuntimeError(_no_assembly(context.session(), stages, modules))
        usage = "".join(f"// {line}\n" for line in str(stages.get("kernel.usage", "")).splitlines())
        return usage + "\n".join(codes)

    def _stages(self, generate: bool = True) -> dict[str, str | bytes]:
        kernel = self._compiled_last()
        if kernel is None:
            raise SpirogradRuntimeError(f"{self._label()} was not compiled yet: call it first")
        return context.session().stages(kernel, generate)

    def _some(self, suffix: str, what: str) -> dict[str, str | bytes]:
        stages = {name: data for name, data in self._stages().items() if name.endswith(suffix)}
        if not stages:
            raise SpirogradRuntimeError(f"there is no {what} on this back end ({context.session().arch})")
        return stages


def _no_assembly(session: Session, stages: Container[str], modules: bool) -> str:
    """Return the message for a device that shows no machine code. ``modules``: whether its driver compiles SPIR-V."""
    message = f"there is no assembly on this back end ({session.arch})"
    if not modules:
        return message
    reason = ""
    if "kernel.usage" in stages:
        reason = ": its driver shows resources only, which `stages()` has as `kernel.usage`"
    elif isinstance(session.device, ShowsMachineCode):
        reason = ": its driver lacks VK_KHR_pipeline_executable_properties, which shows code"
    return f"{message}{reason}; see `spirv_asm`, or what other compilers make of the kernel: `spirograd survey`"

"""One case, compiled for every profile and looked at by every tool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from spirograd.base.artifact import CompiledKernel
from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.targets import Generator
from spirograd.compiler import compile_kernel
from spirograd.dumps import write_stages
from spirograd.spirvgen.disasm import capabilities
from spirograd.survey.collecting import Source
from validation.case import NEEDS, Case
from validation.tools import CHECKS, FAILED, LIMIT, OK, Verdict, metal_text

REFUSED = "refused"
# Of the verdicts on several modules the first of these counts.
_WORST = (FAILED, LIMIT, "absent", REFUSED, "n/a", OK)


@dataclass(slots=True)
class Compiled:
    """What became of a case in one profile. ``verdicts``: by check (`tools.CHECKS`), and of "compile"; ``tasks``: kernel and task,
    "run/run_0"; sizes in bytes."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    tasks: list[str] = field(default_factory=list)
    modules: int = 0
    nbytes: int = 0
    capabilities: set[str] = field(default_factory=set)
    limits: set[str] = field(default_factory=set)

    def add(self, check: str, verdict: Verdict) -> None:
        if verdict.status == LIMIT:
            self.limits.add(verdict.text)
        known = self.verdicts.get(check)
        if known is None or _WORST.index(verdict.status) < _WORST.index(known.status):
            self.verdicts[check] = verdict

    @property
    def failed(self) -> bool:
        return any(v.status == FAILED for v in self.verdicts.values())


def compile_case(
    sources: Iterable[Source],
    case: Case,
    caps: Capabilities,
    folder: Path,
    checks: Iterable[str] = tuple(CHECKS),
    keep_stages: bool = False,
) -> Compiled:
    """Compile all kernels of a case for a device with ``caps``; what fails leaves its stages in ``folder``. ``keep_stages``: modules as for
    dumps, with source locations."""
    result = Compiled()
    missing = [need for need in case.needs if not getattr(caps, NEEDS[need])]
    for source in sources:
        try:
            options = replace(source.options, verify=True, keep_stages=keep_stages)
            for kernel in source.kernels(caps):
                _check(compile_kernel(kernel, caps, options), caps, checks, result)
                if result.failed:
                    _leave(compile_kernel(kernel, caps, replace(options, keep_stages=True)), caps, folder / case.name)
        except SpirogradUnsupportedError as error:
            message = str(error).splitlines()[0]
            result.add("compile", Verdict(REFUSED, f"needs {', '.join(missing)}") if missing else Verdict(FAILED, f"refused: {message}"))
        except Exception as error:
            result.add("compile", Verdict(FAILED, f"{type(error).__name__}: {error}"))
    if missing and not any(v.status in (REFUSED, FAILED) for v in result.verdicts.values()):
        result.add("compile", Verdict(FAILED, f"the case says that it needs {', '.join(missing)}, but compiles without"))
    return result


def _check(compiled: CompiledKernel, caps: Capabilities, checks: Iterable[str], result: Compiled) -> None:
    result.add("compile", Verdict(OK))
    result.tasks += [f"{compiled.name}/{task.name}" for task in compiled.tasks]
    for binary in compiled.binaries:
        result.modules += 1
        result.nbytes += len(binary)
        if caps.target.generator is Generator.SPIRV:
            result.capabilities |= set(capabilities(binary))
        for check in checks:
            result.add(check, CHECKS[check](binary, caps.target_name))


def _leave(compiled: CompiledKernel, caps: Capabilities, folder: Path) -> None:
    """Write the stages of a kernel to ``folder``, and what Metal gets."""
    for path in write_stages(compiled, folder):
        if path.suffix == ".spv":
            path.with_suffix(".metal").write_text(metal_text(path.read_bytes(), caps.target_name))

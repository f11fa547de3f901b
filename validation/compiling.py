"""One case, compiled for every profile and looked at by every tool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import spirograd as sg
from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.compiler import compile_kernel
from spirograd.dumps import Compilation, listeners, write_stages
from spirograd.spirvgen.disasm import disassemble
from validation.case import NEEDS, Case
from validation.tools import CHECKS, FAILED, LIMIT, OK, Verdict, metal_text

REFUSED = "refused"
# Of the verdicts on several modules the first of these counts.
_WORST = (FAILED, LIMIT, "absent", REFUSED, "n/a", OK)


@dataclass(slots=True)
class Compiled:
    """What became of a case in one profile. ``verdicts``: by check (`tools.CHECKS`), and of "compile"; sizes in bytes."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
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


def kernels_of(case: Case) -> list[Compilation]:
    """The kernels that a case runs, as the front end hands them to the compiler."""
    found: list[Compilation] = []
    listeners.append(found.append)
    try:
        sg.init(arch="cpu", offline_cache=False, **dict(case.options))
        case.run(*case.args)
    finally:
        listeners.remove(found.append)
        sg.reset()
    return found


def compile_case(
    kernels: Iterable[Compilation], case: Case, caps: Capabilities, folder: Path, checks: Iterable[str] = tuple(CHECKS)
) -> Compiled:
    """Compile all kernels of a case for a device with ``caps``; what fails leaves its stages in ``folder``."""
    result = Compiled()
    missing = [need for need in case.needs if not getattr(caps, NEEDS[need])]
    for kernel in kernels:
        try:
            compiled = compile_kernel(kernel.kernel, caps, replace(kernel.options, verify=True, keep_stages=True))
        except SpirogradUnsupportedError as error:
            message = str(error).splitlines()[0]
            result.add("compile", Verdict(REFUSED, f"needs {', '.join(missing)}") if missing else Verdict(FAILED, f"refused: {message}"))
            continue
        except Exception as error:
            result.add("compile", Verdict(FAILED, f"{type(error).__name__}: {error}"))
            continue
        result.add("compile", Verdict(OK))
        for binary in compiled.binaries:
            result.modules += 1
            result.nbytes += len(binary)
            result.capabilities |= _capabilities(binary)
            for check in checks:
                result.add(check, CHECKS[check](binary, caps.profile))
        if result.failed:
            for path in write_stages(compiled, folder / case.name):
                if path.suffix == ".spv":
                    path.with_suffix(".metal").write_text(metal_text(path.read_bytes(), caps.profile))
    if missing and not any(v.status in (REFUSED, FAILED) for v in result.verdicts.values()):
        result.add("compile", Verdict(FAILED, f"the case says that it needs {', '.join(missing)}, but compiles without"))
    return result


def _capabilities(module: bytes) -> set[str]:
    return {line.split()[1] for line in disassemble(module).splitlines() if line.lstrip().startswith("OpCapability")}

"""Compilers of machine code that need no driver: LLVM for AMD's GPUs, and NVIDIA's ptxas with nvdisasm."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from spirograd.base.artifact import CompiledKernel
from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.records import dataclass
from spirograd.llvmgen import amdgpu, ptx
from spirograd.runtime.devices.gpu import disassembly
from spirograd.survey.results import COMPILES, FAILED, Build, Usage

_SECONDS = 120
_PTXAS = "ptxas"
_REGISTER_BYTES = 4
# An entry of the metadata at the end of AMD's assembly, and the comment after each kernel.
_FIELD = re.compile(r"^ +(?:- )?\.(\w+): +(\S+)$", re.M)
_OCCUPANCY = re.compile(r"^; Occupancy: (\d+)$", re.M)


@dataclass(frozen=True, slots=True)
class OfflineCompiler:
    """A compiler as `devices.SurveyCompiler`. ``reads``: returns what it made of a kernel, whose compilation took some seconds."""

    driver: str
    caps: Capabilities
    reads: Callable[[CompiledKernel, float], list[Build]]

    def __enter__(self) -> OfflineCompiler:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def build(self, kernel: CompiledKernel, seconds: float) -> list[Build]:
        """See `devices.SurveyCompiler`."""
        return self.reads(kernel, seconds)


@dataclass(frozen=True, slots=True)
class OfflineDevice:
    """A device whose compiler needs no driver: see `devices.SurveyDevice`.

    ``compiler``: returns the compiler for ``model``, an architecture or a profile. Raises SpirogradRuntimeError with what is missing.
    """

    name: str
    title: str
    compiler: Callable[[str], OfflineCompiler]
    model: str

    def open(self) -> OfflineCompiler:
        """See `devices.SurveyDevice`."""
        return self.compiler(self.model)


def amd_compiler(architecture: str) -> OfflineCompiler:
    """Return LLVM for an architecture of AMD's GPUs."""
    return OfflineCompiler(f"LLVM for {architecture}", amdgpu.capabilities(architecture), amd_builds)


def nvidia_compiler(architecture: str) -> OfflineCompiler:
    """Return ptxas for an architecture of NVIDIA's GPUs. Raises SpirogradRuntimeError if there is none."""
    program = shutil.which(_PTXAS)
    if program is None:
        raise SpirogradRuntimeError(f"there is no program `{_PTXAS}` on the path: install NVIDIA's CUDA toolkit")
    version = re.search(r"release ([\d.]+)", _output([program, "--version"]))
    reads = lambda kernel, seconds: nvidia_builds(kernel, program, architecture)  # noqa: E731
    return OfflineCompiler(f"ptxas {version[1] if version else ''}".strip(), ptx.capabilities(architecture), reads)


def amd_builds(kernel: CompiledKernel, seconds: float) -> list[Build]:
    """Return what LLVM made of each task, from the assembly with its comments. The time is that of the whole kernel, in the first task."""
    assembly = str(kernel.stages["kernel.s"])
    records = {record["name"]: record for record in _metadata(assembly)}
    builds = []
    for number, task in enumerate(kernel.tasks):
        code, record = _function(assembly, task.entry), records[task.entry]
        occupancy = _OCCUPANCY.search(assembly, assembly.index(f".size\t{task.entry},"))
        statistics = {key: int(record[key]) for key in _AMD_STATISTICS if key in record}
        instructions = sum(1 for line in code if line.startswith("\t") and not line.startswith(("\t.", "\t;")))
        used = Usage(
            registers=statistics["vgpr_count"],
            spills=statistics["vgpr_spill_count"] + statistics["sgpr_spill_count"],
            instructions=instructions,
            occupancy="" if occupancy is None else f"{occupancy[1]} waves/SIMD",
        )
        builds.append(Build(COMPILES, "", seconds if number == 0 else 0.0, used, dict(statistics), "\n".join(code)))
    return builds


_AMD_STATISTICS = (
    "vgpr_count",
    "agpr_count",
    "sgpr_count",
    "vgpr_spill_count",
    "sgpr_spill_count",
    "private_segment_fixed_size",
    "group_segment_fixed_size",
    "wavefront_size",
)


def _metadata(assembly: str) -> list[dict[str, str]]:
    """Return the records of the kernels, without their arguments, from the metadata of AMD's assembly."""
    text = assembly[assembly.index("amdhsa.kernels:") :]
    return [
        dict(_FIELD.findall(re.sub(r"^ {6,}.*$", "", part, flags=re.M)))
        for part in re.split(r"^  - ", text, flags=re.M)[1:]
        if ".name:" in part
    ]


def _function(assembly: str, name: str) -> list[str]:
    """Return the lines of a function in AMD's assembly, from its label to its end."""
    found = re.search(rf"^{re.escape(name)}:.*?^\.Lfunc_end", assembly, re.M | re.S)
    return [] if found is None else found[0].splitlines()[:-1]


def nvidia_builds(kernel: CompiledKernel, program: str, architecture: str) -> list[Build]:
    """Return what ptxas made of each task of ``kernel``, whose binary is PTX."""
    with tempfile.TemporaryDirectory() as folder:
        text, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        text.write_bytes(kernel.binaries[0])
        command = [program, "-v", f"-arch={architecture}", str(text), "-o", str(cubin)]
        done = _run(command)
        if done.returncode:
            reason = f"{_PTXAS}: {done.stderr.strip().splitlines()[0] if done.stderr.strip() else done.returncode}"
            return [Build(FAILED, reason) for _ in kernel.tasks]
        listing = disassembly.listing(cubin.read_bytes())
    return [_nvidia_build(done.stderr, listing, task.entry) for task in kernel.tasks]


def _nvidia_build(said: str, listing: str, entry: str) -> Build:
    """Return what ptxas said of an entry, with its instructions in the output of nvdisasm."""
    part = said[said.index(f"Compiling entry function '{entry}'") + 1 :].split("Compiling entry function")[0]
    numbers = {name: int(found[1]) for name, pattern in _PTXAS_STATISTICS.items() if (found := re.search(pattern, part))}
    took = re.search(r"Compile time = ([\d.]+) ms", part)
    code = disassembly.of_entry(listing, entry)
    spills = numbers.get("bytes of spill stores")
    used = Usage(numbers.get("registers"), None if spills is None else spills // _REGISTER_BYTES, disassembly.instructions(code) or None)
    return Build(COMPILES, "", float(took[1]) / 1000 if took else None, used, dict(numbers), "\n".join(code))


_PTXAS_STATISTICS = {
    "registers": r"Used (\d+) registers",
    "bytes of stack frame": r"(\d+) bytes stack frame",
    "bytes of spill stores": r"(\d+) bytes spill stores",
    "bytes of spill loads": r"(\d+) bytes spill loads",
    "bytes of shared memory": r"(\d+) bytes smem",
}


def _output(command: list[str]) -> str:
    done = _run(command)
    return done.stdout if done.returncode == 0 else ""


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SpirogradRuntimeError(f"{command[0]} cannot be run: {error}") from None

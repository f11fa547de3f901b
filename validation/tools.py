"""Other programs that look at our modules: spirv-val, spirv-cross (to Metal, GLSL, HLSL), naga (to Metal), g++, glslangValidator; ptxas;
llvm-objdump."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spirograd.base.targets import TARGETS, Generator
from spirograd.spirvgen.module import ModuleError
from spirograd.spirvgen.validate import available, validate
from validation import dxc
from validation.code_objects import CodeObject

SHIM = Path(__file__).with_name("metal_shim")
_ROOT = Path(__file__).parents[1]
_SECONDS = 120
_OLDEST_SM = 75  # that ptxas 13 assembles for
_OLDEST_LLVM, _NEWEST_LLVM = 19, 29  # that know gfx1201; that there may be
_MSL = ("--msl-force-native-arrays",)  # its own array class is overloaded on address spaces, which C++ does not have
OK, FAILED, LIMIT, ABSENT, NOT_APPLICABLE = "ok", "failed", "limit", "absent", "n/a"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a tool says of a module. ``status``: one of the constants above; ``text``: why."""

    status: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """What a translator cannot do, by a part of its message. ``tool``: the first word of its checks; ``why``: whose limit that is;
    ``target``: which target meets it, "" for any."""

    tool: str
    message: str
    why: str
    target: str = ""


# Each is met by some case of the corpus where its tools are installed. A limit that is no longer met is an error, so the list stays true.
LIMITS = (
    Limit("MSL", "No backing variable for atomic", "SPIRV-Cross issue 2272: atomics behind buffer addresses", "vulkan"),
    Limit("MSL", "64-bit atomics", "Metal has no 64-bit atomics but min and max"),
    Limit("MSL", "‘atomicAdd’ was not declared", "this SPIRV-Cross writes the atomic addition of floats as GLSL does; newer ones do not"),
    Limit("MSL", "double types are not supported", "Metal has no doubles"),
    Limit("naga", "Unsupported scalar kind: Scalar { kind: Float, width: 8 }", "naga: Metal has no doubles", "wgpu"),
    Limit("naga", "‘atomic_long’", "naga: Metal has no 64-bit atomics of signed integers", "wgpu"),
    Limit("naga", "(metal::atomic_ulong*", "naga: Metal has no 64-bit atomics but min and max", "wgpu"),
    Limit("MSL", "unimplemented op 561", "this SPIRV-Cross does not know atomic minima and maxima of floats", "vulkan"),
    Limit("GLSL", "unimplemented op 561", "this SPIRV-Cross does not know atomic minima and maxima of floats", "vulkan"),
    Limit("GLSL", "required extension not requested", "SPIRV-Cross does not ask for the extension of 64-bit atomics"),
    Limit("HLSL", "types other than 32-bit", "SPIRV-Cross writes ByteAddressBuffer, of words only (wgpu goes through naga)", "wgpu"),
    Limit("HLSL", "Double to UInt64", "SPIRV-Cross writes no conversions between f64 and 64-bit integers", "wgpu"),
    Limit("HLSL", "Access chains have no default expression", "SPIRV-Cross: atomics of a ByteAddressBuffer behind chains", "wgpu"),
)


def _run(command: list[str], text: bytes | None = None) -> tuple[int, str, str]:
    done = subprocess.run(command, input=text, capture_output=True, timeout=_SECONDS, check=False)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def ptxas_path() -> str | None:
    """Where NVIDIA's assembler lies: on the path, or in its wheel (nvidia-cuda-nvcc, too large to ask for)."""
    found = importlib.util.find_spec("nvidia")
    wheels = [Path(folder) / "cu13" / "bin" / "ptxas" for folder in (found.submodule_search_locations or ())] if found else []
    return shutil.which("ptxas") or next((str(path) for path in wheels if path.exists()), None)


def registers_of(module: bytes) -> tuple[Verdict, int, int]:
    """The most registers that a kernel of a PTX module takes, and how many bytes are spilled: stored by all kernels, for an invocation."""
    verdict = assembled(module, "-v")
    said = re.findall(r"Used (\d+) registers|(\d+) bytes spill stores", verdict.text)
    return verdict, max([int(used or 0) for used, _ in said], default=0), sum([int(spilled or 0) for _, spilled in said])


def assembled(module: bytes, *options: str) -> Verdict:
    """PTX through NVIDIA's assembler, for the architecture that it is for; the oldest ones are those of newer devices, too."""
    ptxas = ptxas_path()
    if ptxas is None:
        return Verdict(ABSENT, "ptxas is not installed: pip install nvidia-cuda-nvcc")
    found = re.search(rb"\.target sm_(\d+)", module)
    assert found is not None
    with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
        file.write(module)
        file.flush()
        status, said, complaint = _run([ptxas, *options, f"-arch=sm_{max(int(found[1]), _OLDEST_SM)}", "-o", os.devnull, file.name])
    return Verdict(FAILED if status else OK, complaint + said)


def llvm_program(name: str) -> str | None:
    """A program of LLVM that knows today's GPUs of AMD, such as "llvm-objdump": the newest that has a version in its name (Debian), or the
    one on the path."""
    for number in range(_NEWEST_LLVM, _OLDEST_LLVM - 1, -1):
        if found := shutil.which(f"{name}-{number}"):
            return found
    found = shutil.which(name)
    version = re.search(r"(?:LLD|version) (\d+)", _run([found, "--version"])[1]) if found else None
    return found if version and int(version[1]) >= _OLDEST_LLVM else None


def inspected(module: bytes) -> Verdict:
    """What a code object says of itself, and whether LLVM's disassembler knows every instruction."""
    try:
        problems = CodeObject(module).problems()
    except ModuleNotFoundError:
        return Verdict(ABSENT, "msgpack is not installed: pip install '.[test]'")
    objdump = llvm_program("llvm-objdump")
    if not problems and objdump is not None:
        with tempfile.NamedTemporaryFile(suffix=".hsaco") as file:
            file.write(module)
            file.flush()
            status, text, said = _run([objdump, "-d", file.name])
        problems = [line.strip() for line in text.splitlines() if "<unknown>" in line or ".long" in line] + [said] * (status != 0)
    return Verdict(FAILED, "; ".join(problems[:5])) if problems else Verdict(OK)


def valid(module: bytes, target: str) -> Verdict:
    """What the tool of the target's own kind of module says: spirv-val, with the environment of the target, ptxas, llvm-objdump."""
    if TARGETS[target].generator is Generator.PTX:
        return assembled(module)
    if TARGETS[target].generator is Generator.CODE_OBJECT:
        return inspected(module)
    if not available():
        return Verdict(ABSENT, "spirv-val is not installed: apt install spirv-tools")
    try:
        validate(module, target)
    except ModuleError as error:
        return Verdict(FAILED, str(error))
    return Verdict(OK)


def _translate(tool: str, module: bytes, target: str, arguments: list[str]) -> tuple[Verdict, str]:
    """The text that spirv-cross makes of a module."""
    if shutil.which("spirv-cross") is None:
        return Verdict(ABSENT, "spirv-cross is not installed: apt install spirv-cross"), ""
    with tempfile.NamedTemporaryFile(suffix=".spv") as file:
        file.write(module)
        file.flush()
        status, text, said = _run(["spirv-cross", file.name, *arguments])
    if status == 0 and "unimplemented op" not in text:
        return Verdict(OK), text
    said = said if status else next(line for line in text.splitlines() if "unimplemented op" in line)
    return _failure(tool, target, f"spirv-cross: {said.strip()}"), ""


def _failure(tool: str, target: str, said: str) -> Verdict:
    """A limit of the tool that is known, or a failure."""
    for limit in LIMITS:
        if limit.tool == tool and limit.message in said and target == (limit.target or target):
            return Verdict(LIMIT, limit.why)
    return Verdict(FAILED, said)


def spirv_cross_text(module: bytes, target: str, version: str) -> tuple[Verdict, str]:
    """Return the Metal source that SPIRV-Cross writes for a version of the language, such as "2.3"."""
    major, minor = version.split(".")
    return _translate("MSL", module, target, ["--msl", "--msl-version", f"{major}0{minor}00", *_MSL])


def naga_program() -> str | None:
    """Return where naga-translate lies: on the path, or where validation/naga/build puts it."""
    return shutil.which("naga-translate") or shutil.which("naga-translate", path=_ROOT / "out" / "naga" / "release")


def naga_text(module: bytes, version: str) -> tuple[Verdict, str]:
    """Return the Metal source that naga writes, which wgpu uses, for a version of the language, such as "2.3"."""
    program = naga_program()
    if program is None:
        return Verdict(ABSENT, "naga-translate is not built: validation/naga/build"), ""
    status, text, said = _run([program, "msl", version], module)
    return (Verdict(OK), text) if status == 0 else (_failure("naga", "wgpu", f"naga: {said.strip()}"), "")


def read_by_stand_in(tool: str, text: str, target: str, version: str) -> Verdict:
    """Have a C++ compiler read Metal source, with a stand-in for Metal's library."""
    if shutil.which("g++") is None:
        return Verdict(ABSENT, "g++ is not installed: apt install g++")
    options = ["-std=c++17", "-x", "c++", "-fsyntax-only", "-w", "-fsingle-precision-constant", f"-I{SHIM}", "-"]
    status, _, said = _run(["g++", *options], text.encode())
    errors = [line for line in said.splitlines() if "error:" in line]
    return _failure(tool, target, f"MSL {version}: {errors[0] if errors else said}") if status else Verdict(OK)


def msl(module: bytes, target: str, version: str) -> Verdict:
    """Translate to Metal by SPIRV-Cross, and have the result read."""
    verdict, text = spirv_cross_text(module, target, version)
    return read_by_stand_in("MSL", text, target, version) if verdict.status == OK else verdict


def naga(module: bytes, target: str) -> Verdict:
    """Translate to Metal by naga, and have the result read."""
    if target == "vulkan":
        return Verdict(NOT_APPLICABLE, "naga takes no buffer addresses")
    verdict, text = naga_text(module, "3.0")
    return read_by_stand_in("naga", text, target, "3.0") if verdict.status == OK else verdict


def metal_text(module: bytes, target: str) -> str:
    """The Metal source of a module; "" where there is none."""
    return spirv_cross_text(module, target, "3.0")[1]


def glsl(module: bytes, target: str) -> Verdict:
    """Translated to GLSL for Vulkan, and that compiled back."""
    verdict, text = _translate("GLSL", module, target, ["-V"])
    if verdict.status != OK:
        return verdict
    if shutil.which("glslangValidator") is None:
        return Verdict(ABSENT, "glslangValidator is not installed: apt install glslang-tools")
    with tempfile.NamedTemporaryFile(suffix=".comp", mode="w") as file:
        file.write(text)
        file.flush()
        status, said, _ = _run(["glslangValidator", "-V", "--target-env", "vulkan1.2", "-o", "/dev/null", file.name])
    errors = [line for line in said.splitlines() if "ERROR" in line]
    return _failure("GLSL", target, f"glslang: {errors[0] if errors else said}") if status else Verdict(OK)


def hlsl(module: bytes, target: str) -> Verdict:
    """Translated to HLSL, which has no buffer addresses, and compiled to DXIL by Microsoft's compiler, if that is installed."""
    if target == "vulkan":
        return Verdict(NOT_APPLICABLE, "HLSL has no buffer addresses")
    verdict, text = _translate("HLSL", module, target, ["--hlsl", "--shader-model", "60"])
    if verdict.status != OK or dxc.library() is None:
        return verdict
    status, _, said = _run([sys.executable, "-m", "validation.dxc"], text.encode())
    errors = [line for line in said.splitlines() if "error:" in line]
    return _failure("HLSL", target, f"DXC: {errors[0] if errors else said}") if status else Verdict(OK)


def _of_spirv(check: Callable[[bytes, str], Verdict]) -> Callable[[bytes, str], Verdict]:
    """``check``, for targets that take SPIR-V."""

    def run(module: bytes, target: str) -> Verdict:
        if TARGETS[target].generator is not Generator.SPIRV:
            return Verdict(NOT_APPLICABLE, "this is no SPIR-V")
        return check(module, target)

    return run


CHECKS: dict[str, Callable[[bytes, str], Verdict]] = {
    "valid": valid,
    "MSL 2.3": _of_spirv(lambda module, target: msl(module, target, "2.3")),
    "MSL 3.0": _of_spirv(lambda module, target: msl(module, target, "3.0")),
    "naga": _of_spirv(naga),
    "GLSL": _of_spirv(glsl),
    "HLSL": _of_spirv(hlsl),
}

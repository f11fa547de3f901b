"""Every case of the corpus compiles for profiles of each kind, and spirv-val accepts what comes out; a few run on every back end, and the
tools that look at modules notice when something is wrong. `make validate` does the rest."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import needs
import numpy as np
import pytest
from corpus.sizings import EXPECTED, sizing

import spirograd as sg
from spirograd.compiler import compile_kernel
from spirograd.survey.collecting import Source
from spirograd.survey.drivers import DRIVERS
from spirograd.survey.results import COMPILES
from spirograd.survey.vulkan import VulkanCompiler
from validation import tools
from validation.__main__ import absent, idle_limits, main
from validation.case import Case, case, load
from validation.collecting import kernels_of
from validation.compiling import compile_case
from validation.matrix import Row
from validation.profiles import AMDGPU, PROFILES, PTX, SPIRV, VULKAN, WGPU
from validation.running import Run, run_cases

CASES = {c.name: c for c in load()}
ROOT = Path(__file__).resolve().parents[2]


def test_the_corpus_is_large() -> None:
    assert len(CASES) >= 150


def profiles_of(name: str) -> list[str]:
    """What a case is compiled for by day.

    Of the profiles of Vulkan and wgpu it meets one: one generator makes the modules of all, and cases that are the same on other types
    meet each in turn. A case that needs a type that is optional meets one that can do everything, and one with next to nothing, which
    refuses it. Architectures of one vendor hardly differ, so it meets one of a vendor. For GPUs of vendors LLVM takes most of the time, and
    one emitter makes the code of all: of cases that are the same on other types, and of gradients, every sixth meets a vendor, each time
    the other one.
    """
    number, kind = list(CASES).index(name), name.rpartition("_")[0]
    if name.startswith("gradient"):
        count = number + 2  # these: two of the others take LLVM five seconds and more
    else:
        count = [other for other in CASES if other.rpartition("_")[0] == kind].index(name)
    turns = [(profile,) for profile in SPIRV]
    if CASES[name].needs:
        turns = [("vulkan-bare", "wgpu"), ("vulkan", "wgpu-browser")]
    vendor = list((PTX, AMDGPU)[(number + count // 6) % 2])
    return [*turns[number % len(turns)], *([] if count % 6 else [vendor[number // 2 % len(vendor)]])]


@pytest.fixture(scope="module")
def radv() -> Iterator[VulkanCompiler | None]:
    """AMD's driver in front of a null device, None if it is not on this machine."""
    driver = DRIVERS["radv-gfx1030"]
    if needs.missing("radv-gfx1030"):
        yield None
    else:
        with VulkanCompiler(driver) as compiler:
            yield compiler


@pytest.mark.parametrize("name,profiles", [pytest.param(name, profiles_of(name), id=name) for name in CASES])
def test_compiles_for_devices_of_each_kind(name: str, profiles: list[str], radv: VulkanCompiler | None, tmp_path: Path) -> None:
    """Where RADV is, every pipeline becomes machine code of RDNA 2, too, and the driver tells its resources. See test_null_devices.py."""
    kernels = compiles(name, profiles, tmp_path)
    if radv is None:
        return
    options = [(kernel, source.options) for source in kernels for kernel in source.kernels(radv.caps)]
    builds = [build for kernel, given in options for build in radv.build(compile_kernel(kernel, radv.caps, given), 0.0)]
    assert not [build.reason for build in builds if build.outcome != COMPILES]
    assert all(build.usage.registers and build.usage.instructions for build in builds) and builds


@pytest.mark.long
@pytest.mark.parametrize("name", list(CASES))
def test_compiles_for_all_others(name: str, tmp_path: Path) -> None:
    compiles(name, [profile for profile in PROFILES if profile not in profiles_of(name)], tmp_path)


def compiles(name: str, profiles: list[str], tmp_path: Path) -> list[Source]:
    """Compile a case for profiles, and return its kernels.

    The corpus sizes tapes in nearly all of its gradients, on all profiles, whatever else they lack.
    """
    kernels = kernels_of(CASES[name])
    assert kernels
    for profile, caps in [(profile, PROFILES[profile]) for profile in profiles]:
        found = compile_case(kernels, CASES[name], caps, tmp_path, ["valid"])
        assert not found.failed, (profile, {check: v.text for check, v in found.verdicts.items()})
        if name in EXPECTED:
            assert sizing(found) == EXPECTED[name], profile
        elif name.startswith("gradient") and not CASES[name].needs:
            assert all(sizing(found)), profile
    needs.need("spirv-val")  # without it, only the compiler has been tested
    return kernels


@pytest.mark.parametrize("name", ["tickets_f32", "atomic_add_i8", "many_buffers_40", "powers", "scalar_arguments", "conjugate_gradient"])
def test_runs(arch: str, name: str) -> None:
    given = CASES[name]
    sg.init(arch=arch, **dict(given.options))
    assert given.wrong(given.run(*given.args)) == ""


# --- the checks themselves -------------------------------------------------------------------------------------------------


@case(rtol=1e-3)
def _sample() -> dict:
    out = np.zeros(3, np.float32)

    @sg.kernel
    def run(out: sg.types.ndarray(sg.f32, 1)):
        for i in out:
            out[i] = i * 1.5

    run(out)
    return {"out": (out, [0, 1.5, 3.1])}


def test_a_wrong_result_is_noticed() -> None:
    sg.init(arch="cpu")
    assert "Mismatched" in _sample[0].wrong(_sample[0].run())
    assert _sample[0].place.startswith(__file__)


def test_a_need_that_is_none_is_noticed(tmp_path: Path) -> None:
    honest = CASES["add_sub_mul_f64"]
    kernels = kernels_of(honest)
    bare = replace(WGPU, float64=False)
    assert compile_case(kernels, honest, bare, tmp_path, []).verdicts["compile"].status == "refused"
    assert compile_case(kernels, replace(honest, needs=()), bare, tmp_path, []).failed
    boasting = replace(CASES["steps"], needs=("f64",))
    assert compile_case(kernels_of(boasting), boasting, bare, tmp_path, []).failed


@pytest.mark.needs("spirv-val", "spirv-cross")
def test_a_failure_leaves_its_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tools.CHECKS, "valid", lambda module, target: tools.Verdict(tools.FAILED, "no"))
    found = compile_case(kernels_of(CASES["steps"]), CASES["steps"], VULKAN, tmp_path, ["valid"])
    assert found.failed
    assert {path.suffix for path in (tmp_path / "steps").iterdir()} >= {".ir", ".spv", ".spvasm", ".metal"}


def test_a_missing_tool_is_named_and_its_limits_are_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SPIRV-Cross each of its limits used to be reported as one to take off the list."""
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    row = Row(CASES["steps"], {"wgpu": compile_case(kernels_of(CASES["steps"]), CASES["steps"], WGPU, tmp_path)})
    assert not row.failures
    missing = absent([row])
    assert missing["spirv-cross is not installed: apt install spirv-cross"] == ["GLSL", "HLSL", "MSL 2.3", "MSL 3.0"]
    assert missing["spirv-val is not installed: apt install spirv-tools"] == ["valid (wgpu)"]
    assert idle_limits([row]) == []
    row.compiled["wgpu"].verdicts = {}
    assert idle_limits([row]) == list(tools.LIMITS)


# A package is hidden by None in sys.modules.
WITHOUT = """
import runpy, sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
sys.argv = sys.argv[2:]
run = runpy.run_path if sys.argv[0].endswith(".py") else runpy.run_module
sys.path.insert(0, "examples")
run(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    "packages,command,said",
    [
        (
            "msgpack",
            "validation --only steps --no-run --profiles amdgpu-gfx1100 --jobs 1",
            "not checked: valid (amdgpu): msgpack is not installed: pip install '.[test]'",
        ),
        ("rich,tinygrad", "validation --only steps --no-run --profiles vulkan --jobs 1", "1 cases, 0 with failures"),
        ("hypothesis,pytest", "tests.fuzz kernels --count 1 --on cpu", "1 programs in"),
        ("jax", "benchmarks.small_tapes", "needs JAX: pip install '.[jax]'"),
        ("mpmath", "tools/fit_polynomials.py", "needs mpmath: pip install mpmath"),
        ("PIL", "tools/gallery.py", "pip install '.[demo,media]'"),
        ("matplotlib", "examples/wave.py", "need matplotlib and rich: pip install 'spirograd[demo]'"),
        ("rich", "examples/wave.py", "need matplotlib and rich: pip install 'spirograd[demo]'"),
    ],
)
def test_commands_name_the_package_that_they_lack(packages: str, command: str, said: str, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path)] if command.startswith(("validation", "tests")) else []
    done = subprocess.run([sys.executable, "-c", WITHOUT, packages, *command.split(), *out], cwd=ROOT, capture_output=True, text=True)
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.needs("spirv-cross")
def test_translators_are_asked(tmp_path: Path) -> None:
    """A module that is none fails in every translator; a good one passes, Metal without doubles included."""
    for check in ("MSL 2.3", "GLSL"):
        assert tools.CHECKS[check](b"\x03\x02\x23\x07" + bytes(20), "vulkan").status == tools.FAILED
    found = compile_case(kernels_of(CASES["steps"]), CASES["steps"], WGPU, tmp_path, ["MSL 2.3", "GLSL", "HLSL"])
    assert not found.failed
    doubles = compile_case(kernels_of(CASES["sums_f64"]), CASES["sums_f64"], WGPU, tmp_path, ["MSL 2.3"])
    assert doubles.verdicts["MSL 2.3"].status == tools.LIMIT


def test_the_stand_in_for_metal_refuses(tmp_path: Path) -> None:
    """Atomic minima of floats, and doubles, are not in Metal."""
    needs.need("g++")
    head = "#include <metal_stdlib>\nusing namespace metal;\n"
    atomic = "void g(device atomic_float* p) {{ atomic_fetch_{}_explicit(p, 1.0, memory_order_relaxed); }}"
    good = "float f(float x) { return fma(x, 2.0, sin(x)); } " + atomic.format("add")
    bad = ("double f(double x) { return x; }", atomic.format("min"))
    for text, fine in ((good, True), *((b, False) for b in bad)):
        command = ["g++", "-std=c++17", "-x", "c++", "-fsyntax-only", "-fsingle-precision-constant", f"-I{ROOT}/validation/metal_shim", "-"]
        assert (subprocess.run(command, input=head + text, capture_output=True, text=True).returncode == 0) == fine, text


def test_a_process_that_ends_is_a_failure_of_one_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As when naga aborts it: the cases after it still run."""
    worker = tmp_path / "validation" / "worker.py"
    worker.parent.mkdir()
    (tmp_path / "validation" / "__init__.py").touch()
    worker.write_text(
        "import json, os, sys\nfor name in sys.argv[2:]:\n print(json.dumps({'begin': name}), flush=True)\n"
        " if name == 'bits_i8': os.abort()\n"
        " print(json.dumps({'name': name, 'status': 'ok', 'text': '', 'seconds': 0.1}), flush=True)\n"
    )
    monkeypatch.setattr("validation.running._ROOT", tmp_path)
    runs: dict[str, Run] = {}
    names = ["steps", "bits_i8", "bits_u8"]
    run_cases("wgpu", [CASES[name] for name in names], runs.__setitem__)
    assert [runs[name].status for name in names] == ["ok", "failed", "ok"]
    assert "ended with status" in runs["bits_i8"].text


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "validation", "--only", "st*ps", "--arch", "cpu", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 cases, 0 with failures" in done.stdout
    assert "steps" in (tmp_path / "matrix.md").read_text() and "steps" in (tmp_path / "matrix.html").read_text()
    unknown: Case | None = CASES.get("nothing")
    assert unknown is None
    monkeypatch.setattr(sys, "argv", ["validation", "--only", "nothing"])
    with pytest.raises(SystemExit, match="no case fits"):
        main()

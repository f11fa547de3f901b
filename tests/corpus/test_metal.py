"""Metal by SPIRV-Cross and by naga: what the translators make of the same module, and the report of differences."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from validation import tools
from validation.case import load
from validation.collecting import kernels_of
from validation.compiling import compile_case
from validation.metal import Comparison, Translation, compare, library_functions, report
from validation.profiles import DEVICES, WGPU

ROOT = Path(__file__).resolve().parents[2]
CASES = {c.name: c for c in load()}


def test_the_functions_of_the_library() -> None:
    functions = library_functions()
    assert {
        "fma",
        "fast::min",
        "precise::tanh",
        "atomic_fetch_add_explicit",
        "select",
        "popcount",
        "simd_sum",
        "threadgroup_barrier",
    } <= functions
    assert not {"name", "operator", "vec", "word"} & functions


def test_the_report() -> None:
    good, bad = tools.Verdict(tools.OK), tools.Verdict(tools.LIMIT, "Metal has no doubles")
    same = Comparison("a, wgpu, run/0", Translation(good, frozenset({"sin", "fast::min"})), Translation(good, frozenset({"sin", "min"})))
    other = Comparison("b, wgpu, run/0", Translation(bad, frozenset()), Translation(good, frozenset({"tanh"})))
    text = report([same, other])
    assert "| both | 1 |" in text and "| naga only | 1 |" in text
    assert "| b, wgpu, run/0 | limit: Metal has no doubles | ok |" in text and "a, wgpu" not in text
    assert "| `fast::min` | 1 | 0 |\n| `min` | 0 | 1 |\n" in text and "tanh" not in text


def test_without_naga(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_ROOT", tmp_path)
    monkeypatch.setenv("PATH", "")
    assert tools.naga(b"", "wgpu") == tools.Verdict(tools.ABSENT, "naga-translate is not built: validation/naga/build")
    assert tools.naga(b"", "vulkan").status == tools.NOT_APPLICABLE


@pytest.mark.needs("spirv-cross", "g++", "naga-translate")
@pytest.mark.parametrize("name", ["steps", "tickets_f32", "sums_f32", "gradient_ragged", "sums_f64", "atomic_add_i64"])
def test_translations(name: str, tmp_path: Path) -> None:
    """Metal has neither doubles nor 64-bit additions; everything else becomes Metal by naga."""
    found = compile_case(kernels_of(CASES[name]), CASES[name], WGPU, tmp_path, ["naga"])
    assert found.verdicts["naga"].status == (tools.LIMIT if CASES[name].needs else tools.OK), found.verdicts
    m1 = compile_case(kernels_of(CASES[name]), CASES[name], DEVICES["wgpu-m1"], tmp_path, ["naga"])
    assert m1.verdicts.get("naga", tools.Verdict(tools.OK)).status == tools.OK
    assert not m1.failed


@pytest.mark.needs("spirv-cross", "g++", "naga-translate")
def test_a_comparison() -> None:
    (kernel,) = [k for source in kernels_of(CASES["steps"]) for k in source.kernels(WGPU)]
    from spirograd.base.options import CompileOptions
    from spirograd.compiler import compile_kernel

    for binary in compile_kernel(kernel, WGPU, CompileOptions()).binaries:
        both = compare("steps", bytes(binary), library_functions())
        assert both.spirv_cross.verdict.status == both.naga.verdict.status == tools.OK and not both.differs


@pytest.mark.needs("spirv-cross", "g++", "naga-translate")
def test_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "validation.metal", "--only", "sums_f32", "--profiles", "wgpu", "--out", str(tmp_path / "metal.md")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| both |" in (tmp_path / "metal.md").read_text()

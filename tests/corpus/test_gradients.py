"""Gradients in the corpus: they differ by device, and the kernels that count for their tapes are checked like all others."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from corpus.sizings import EXPECTED, sizing

import spirograd as sg
from spirograd.dumps import Compilation, listeners
from spirograd.lang.context import session
from spirograd.spirvgen.disasm import disassemble
from validation import tools
from validation.case import load
from validation.collecting import kernels_of
from validation.compiling import compile_case
from validation.profiles import AMDGPU, PROFILES, PTX, SPIRV

# Architectures of one vendor hardly differ.
BY_DAY = {*SPIRV, *list(PTX)[:1], *list(AMDGPU)[:1]}
CASES = {c.name: c for c in load() if c.name.startswith("gradient")}


@pytest.mark.parametrize("profile", [name if name in BY_DAY else pytest.param(name, marks=pytest.mark.long) for name in PROFILES])
def test_kernels_that_size_are_checked(profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_corpus.py` compiles and checks all others, and compares with `EXPECTED`."""
    name = "gradient_carried_bounds"
    seen: list[bytes] = []

    def check(module: bytes, target: str) -> tools.Verdict:
        seen.append(module)
        return tools.Verdict(tools.OK)

    monkeypatch.setitem(tools.CHECKS, "valid", check)
    compiled = compile_case(kernels_of(CASES[name]), CASES[name], PROFILES[profile], tmp_path, ["valid"])
    assert sizing(compiled) == EXPECTED[name]
    assert len(seen) == compiled.modules and sum(map(len, seen)) == compiled.nbytes


def text(module: bytes) -> str:
    """What a module does; fields without a name of their own are numbered in the order of their creation."""
    return " ".join(re.sub(r"field\d+", "field", disassemble(module)).split())


@pytest.mark.vulkan_or_wgpu
@pytest.mark.archs("vulkan", "wgpu")
@pytest.mark.parametrize("name", [*(name for name, expected in EXPECTED.items() if any(expected)), "gradient_of_many_arrays"])
def test_devices_run_what_is_checked(arch: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules that a session of the device itself compiles are those that validation makes for its capabilities."""
    given = CASES[name]
    found: list[Compilation] = []
    listeners.append(found.append)
    try:
        sg.init(arch=arch, **dict(given.options))
        assert given.wrong(given.run(*given.args)) == ""
        caps = session().device.caps
    finally:
        listeners.remove(found.append)
    checked: list[bytes] = []

    def check(module: bytes, target: str) -> tools.Verdict:
        checked.append(module)
        return tools.Verdict(tools.OK)

    monkeypatch.setitem(tools.CHECKS, "valid", check)
    compile_case(kernels_of(given), given, caps, tmp_path, ["valid"], keep_stages=True)
    run = [module for compilation in found for module in compilation.compiled.binaries]
    assert Counter(map(text, checked)) == Counter(map(text, run))
    assert len(run) > 3

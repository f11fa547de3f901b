"""Gradients in the corpus: they differ by device, and the kernels that count for their tapes are checked like all others."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import spirograd as sg
from spirograd.dumps import Compilation, listeners
from spirograd.lang.context import session
from spirograd.spirvgen.disasm import disassemble
from spirograd.transforms.place_tapes import PLACING
from validation import tools
from validation.case import load
from validation.collecting import kernels_of
from validation.compiling import Compiled, compile_case
from validation.profiles import PROFILES

CASES = {c.name: c for c in load() if c.name.startswith("gradient")}
# Kernels that count, and tasks that place tapes, of the gradient or of such kernels.
SIZING = {
    "gradient_constant_bound": (0, 0),
    "gradient_bound_of_arguments": (0, 0),
    "gradient_bound_of_a_field": (1, 1),
    "gradient_ragged": (1, 1),
    "gradient_nested_reads": (1, 1),
    "gradient_while_of_floats": (1, 1),
    "gradient_carried_bounds": (3, 3),
    "gradient_serial": (1, 1),
    "gradient_several_tasks": (1, 1),
    "gradient_gate_compound": (1, 1),
    "gradient_gate_before_a_known_bound": (1, 1),
    "gradient_gate_of_floats_f32": (2, 2),
    "gradient_of_overwritten_memory": (1, 1),
    "gradient_in_a_direction": (1, 1),
}


def sizing(compiled: Compiled) -> tuple[int, int]:
    """How many kernels count, and how many tasks place tapes."""
    kernels, tasks = zip(*[task.split("/") for task in compiled.tasks])
    counting = sum(kernel.endswith("_sizes") and task == f"{kernel}_0" for kernel, task in zip(kernels, tasks))
    return counting, tasks.count(PLACING)


@pytest.mark.parametrize("name", SIZING)
def test_kernels_that_size_are_checked(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def check(module: bytes, profile: str) -> tools.Verdict:
        seen.append(module)
        return tools.Verdict(tools.OK)

    monkeypatch.setitem(tools.CHECKS, "valid", check)
    sources = kernels_of(CASES[name])
    for profile, caps in PROFILES.items():
        seen.clear()
        compiled = compile_case(sources, CASES[name], caps, tmp_path, ["valid"])
        assert sizing(compiled) == SIZING[name], profile
        assert len(seen) == compiled.modules and sum(map(len, seen)) == compiled.nbytes


def test_the_corpus_sizes_tapes_in_most_cases(tmp_path: Path) -> None:
    """On all profiles, whatever else they lack."""
    for caps in PROFILES.values():
        able = [c for c in CASES.values() if not c.needs]
        counts = [sizing(compile_case(kernels_of(c), c, caps, tmp_path, [])) for c in able]
        assert len(able) >= 20 and sum(all(count) for count in counts) >= len(able) - 2


def text(module: bytes) -> str:
    """What a module does; fields without a name of their own are numbered in the order of their creation."""
    return " ".join(re.sub(r"field\d+", "field", disassemble(module)).split())


@pytest.mark.archs("vulkan", "wgpu")
@pytest.mark.parametrize("name", [*(name for name in SIZING if any(SIZING[name])), "gradient_of_many_arrays"])
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

    def check(module: bytes, profile: str) -> tools.Verdict:
        checked.append(module)
        return tools.Verdict(tools.OK)

    monkeypatch.setitem(tools.CHECKS, "valid", check)
    compile_case(kernels_of(given), given, caps, tmp_path, ["valid"])
    run = [module for compilation in found for module in compilation.compiled.binaries]
    assert Counter(map(text, checked)) == Counter(map(text, run))
    assert len(run) > 3

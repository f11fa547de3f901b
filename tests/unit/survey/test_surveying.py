"""A survey goes on after refusals, errors, crashes and hangs, and says in which kernel they were."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import needs
import pytest
from unit.survey.programs import PROGRAM, sources

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.records import fields, replace
from spirograd.commands.table import table
from spirograd.survey import loading, machine_code, tables, vulkan
from spirograd.survey.devices import all_devices, chosen_devices
from spirograd.survey.machine_code import OfflineDevice, amd_compiler
from spirograd.survey.results import COMPILES, CRASHED, FAILED, REFUSED
from spirograd.survey.surveying import survey
from spirograd.survey.vulkan import VulkanDevice
from validation.profiles import VULKAN

WORKER = Path(__file__).with_name("crashing_worker.py")
KERNELS = """\
import spirograd as sg

sg.init()
x = sg.field(sg.f32, shape=8)
for name in ("first", "crash", "second", "hang", "refuse", "last"):
    def body():
        for i in x:
            x[i] += 1.0
    body.__name__ = name
    sg.kernel(body)()
"""


@pytest.fixture
def crashing(monkeypatch):
    """A device with the worker of `crashing_worker`."""
    capabilities = json.dumps({f.name: getattr(VULKAN, f.name) for f in fields(VULKAN)})
    monkeypatch.setattr(loading, "python", lambda *_: ([sys.executable, str(WORKER)], {"CAPABILITIES": capabilities}))
    monkeypatch.setattr(vulkan, "SECONDS", 2.0)
    return VulkanDevice("crashing", "", None, Path("/"))


def test_crashes_and_hangs(crashing, tmp_path):
    found = survey([crashing], sources(tmp_path, KERNELS))
    outcomes = {result.kernel: (result.build.outcome, result.build.reason) for result in found.results}
    assert outcomes == {
        "first": (COMPILES, ""),
        "crash": (CRASHED, "the driver's compiler ended by SIGSEGV: nir_validate: assertion failed"),
        "second": (COMPILES, ""),
        "hang": (CRASHED, "the driver's compiler gave no result within 2 s"),
        "refuse": (FAILED, "Vulkan: cannot compile"),
        "last": (COMPILES, ""),
    }
    assert found.devices == {"crashing": "a device, a driver 1.0"}
    assert [result.kernel for result in found.failures(["errors"])] == ["crash", "hang", "refuse"]
    assert [result.kernel for result in found.failures(["spills"])] == ["first", "second", "last"]
    assert found.failures([]) == []
    lines = [tables.failure(result) for result in found.failures(["errors", "spills"])]
    assert lines[0] == "  first, first_0, on crashing: 1 spill (program.py:7)"
    assert lines[-2] == "  refuse, refuse_0, on crashing: failed: Vulkan: cannot compile (program.py:7)"
    text = " ".join(tables.text(found, table).split())
    assert "crashing crashed - - - - - the driver's compiler ended by SIGSEGV" in text
    assert "crashing yes 7 1 3 - 250.0" in text
    assert text.endswith("6 kernels on 1 device; of their tasks, 3 compile, 1 fails, 2 crash the compiler, 3 with spills")


def test_a_defect_fails_one_kernel(tmp_path, monkeypatch):
    """Whether it is in the compiler, in differentiating for the device, or in reading what a program says."""
    found = sources(tmp_path)

    def broken(*_):
        raise ValueError("no such register")

    monkeypatch.setattr(machine_code, "_function", broken)
    device = OfflineDevice("llvm-gfx1100", "", amd_compiler, "gfx1100")
    results = survey([device], found).results
    assert {(result.build.outcome, result.build.reason) for result in results} == {(FAILED, "ValueError: no such register")}
    monkeypatch.undo()
    results = survey([device], [replace(found[0], kernels=broken), *found[1:]]).results
    assert [result.build.outcome == FAILED for result in results] == [True] + [False] * (len(results) - 1)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere LLVM runs in this process")
@pytest.mark.parametrize(
    ("end", "reason"),
    [(lambda *_: os.kill(os.getpid(), signal.SIGKILL), "LLVM ended by SIGKILL"), (lambda *_: os._exit(1), "LLVM ended with status 1")],
)
def test_a_fatal_error_of_llvm_ends_a_copy_of_the_process(end, reason, tmp_path, monkeypatch):
    found = sources(tmp_path)
    whole = machine_code.amd_builds
    monkeypatch.setattr(machine_code, "amd_builds", lambda kernel, seconds: end() if kernel.name == "run" else whole(kernel, seconds))
    results = survey([OfflineDevice("llvm-gfx1100", "", amd_compiler, "gfx1100")], found).results
    assert [(result.kernel, result.build.reason) for result in results if result.build.outcome == CRASHED] == [("run", reason)]
    assert {result.kernel for result in results if result.build.outcome == COMPILES} == {"run_grad_sizes", "run_grad", "double"}


def test_a_driver_that_does_not_start_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "python", lambda *_: ([sys.executable, "-c", "raise SystemExit('no such chip')"], {}))
    found = survey([VulkanDevice("broken", "", None, Path("/"))], sources(tmp_path))
    assert found.missing == {"broken": "the driver cannot be started: the process that loads it ended with status 1: no such chip"}
    assert not found.results and "Devices that are missing here" in tables.text(found, table)


def test_refusals_have_their_line(crashing, monkeypatch, tmp_path):
    bare = replace(VULKAN, float64=False)
    capabilities = json.dumps({f.name: getattr(bare, f.name) for f in fields(bare)})
    monkeypatch.setattr(loading, "python", lambda *_: ([sys.executable, str(WORKER)], {"CAPABILITIES": capabilities}))
    found = survey([crashing, OfflineDevice("llvm-gfx1100", "", amd_compiler, "gfx1100")], sources(tmp_path))
    refused = [result for result in found.results if result.build.outcome == REFUSED]
    assert [(result.device, result.kernel) for result in refused] == [("crashing", "double")]
    assert PROGRAM.splitlines()[refused[0].loc.line - 1] == "def double(s: sg.f64):"
    assert "has no 64-bit floats" in refused[0].build.reason and f"(program.py:{refused[0].loc.line})" in tables.text(found, table)
    places = {(result.task, result.place.rsplit(":")[-1]) for result in found.results if result.kernel == "double" and result.task}
    assert places == {("double_0", "17"), ("double_1", "19")}
    by_task = tables.text(found, table, by_task=True)
    assert "double task double_1" in by_task and by_task.count("llvm-gfx1100") > tables.text(found, table).count("llvm-gfx1100")


def test_kernels_of_one_name_have_signatures(tmp_path):
    program = """
import numpy as np
import spirograd as sg
sg.init()
@sg.kernel
def fill(a: sg.types.ndarray()):
    for i in a:
        a[i] = 1
fill(np.zeros(3, np.float32))
fill(np.zeros(3, np.int32))
"""
    found = survey([OfflineDevice("llvm-gfx1100", "", amd_compiler, "gfx1100")], sources(tmp_path, program))
    assert [result.kernel for result in found.results] == ["fill(a: f32[:])", "fill(a: i32[:])"]


def test_the_driver_of_this_machine(tmp_path):
    needs.need("vulkan")
    found = survey([VulkanDevice("vulkan", "", None, Path("/"))], sources(tmp_path))
    assert {result.kernel for result in found.results} == {"run", "run_grad_sizes", "run_grad", "double"}
    assert all(result.build.outcome == COMPILES and result.build.seconds > 0 for result in found.results), found.results


def test_devices_are_chosen_by_name_and_pattern():
    assert [device.name for device in chosen_devices(["metal", "radv-gfx1*", "llvm-gfx1030"])] == [
        "metal", "radv-gfx1201", "radv-gfx1100", "radv-gfx1030", "llvm-gfx1030",
    ]  # fmt: skip
    assert [device.name for device in chosen_devices([])] == list(all_devices())
    with pytest.raises(SpirogradRuntimeError, match="there is no device `radv-gfx1200`; did you mean `radv-gfx1"):
        chosen_devices(["radv-gfx1200"])
    with pytest.raises(SpirogradRuntimeError, match=r"there is no device `intel`; there are vulkan, .* take other architectures"):
        chosen_devices(["intel"])

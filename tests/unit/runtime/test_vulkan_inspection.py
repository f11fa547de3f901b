"""Machine code that Vulkan drivers show: by RADV in front of a null device, by a stand-in, and by drivers that show none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import needs
import pytest

import spirograd as sg
from spirograd import dumps
from spirograd.lang import context
from spirograd.report.document import document
from spirograd.runtime.devices.vulkan.inspection import machine_code, tells_code
from spirograd.survey.drivers import DRIVERS, environment, missing

# The null device compiles, but has no memory: it is asked without a session.
SCRIPT = """
import sys
from spirograd.compiler import compile_kernel
from spirograd.runtime.devices.vulkan.features import query
from spirograd.runtime.devices.vulkan.inspection import code_stages
from spirograd.runtime.devices.vulkan.instance import choose, take_instance
from unit.survey.programs import sources
from pathlib import Path

instance = take_instance(False)
features = query(choose(instance), instance)
source = sources(Path(sys.argv[1]))[-1]
for name, text in code_stages(features, compile_kernel(source.kernel, features.caps, source.options)).items():
    print("stage", name, len(text), "s_endpgm" in text, "VGPRs" in text)
"""
PROGRAM = {"double_0.NIR.txt": "nir", "double_0.s": "s_endpgm", "kernel.usage": "double_0: VGPRs 12\n"}


def test_radv_shows_its_assembly(tmp_path):
    driver = DRIVERS["radv-polaris10"]
    if missing(driver):
        pytest.skip(missing(driver))
    tests = str(Path(__file__).parents[2])
    variables = {**os.environ, **environment(driver, tmp_path), "PYTHONPATH": f"{tests}:{Path(tests).parent}", "SG_ARCH": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, env=variables, check=False, timeout=200
    )
    if ("null" not in done.stderr.lower() and done.returncode < 0) or "no driver offers a device" in done.stderr:
        pytest.skip(f"this RADV has no null device: {done.stderr}")
    assert done.returncode == 0, done.stderr
    stages = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("stage ")}
    assert stages["double_0.s"].endswith("True False") and stages["double_1.s"].endswith("True False")
    assert stages["kernel.usage"].endswith("False True")


@pytest.fixture
def double():
    needs.need("vulkan")
    sg.init(arch=sg.vulkan, offline_cache=False)
    y = sg.field(sg.f32, shape=8)

    @sg.kernel
    def double():
        for i in y:
            y[i] *= 2.0

    yield double
    sg.reset()


def test_drivers_that_show_nothing(double):
    if tells_code(context.session().device._features.physical):
        pytest.skip("the driver shows its code")
    double()
    with pytest.raises(RuntimeError, match=r"no assembly on this back end \(vulkan\): its driver lacks VK_KHR_pipeline_exec.*`spirv_asm`"):
        double.asm()


def test_stages_of_a_driver(double, monkeypatch):
    """The kernel's methods and the page of `spirograd dump` show them."""
    monkeypatch.setattr(type(context.session().device), "code_stages", lambda self, kernel: dict(PROGRAM))
    compilations: list[dumps.Compilation] = []
    listener = compilations.append
    dumps.listeners.append(listener)
    try:
        double()
    finally:
        dumps.listeners.remove(listener)
    assert double.asm() == "// double_0: VGPRs 12\ns_endpgm"
    assert PROGRAM.items() <= double.stages().items()
    (entry,) = document(compilations, "")["kernels"]
    stages = {stage["title"]: (stage["task"], stage["lines"]) for stage in entry["stages"]}
    assert stages["machine code"] == ("double_0", ["s_endpgm"]) and stages["NIR"] == ("double_0", ["nir"])
    assert stages["resources"] == ("", ["double_0: VGPRs 12"])


def test_a_driver_that_tells_statistics_only(double, monkeypatch):
    """As NVIDIA's does."""
    monkeypatch.setattr(
        type(context.session().device), "code_stages", lambda self, kernel: {"kernel.usage": "double_0: Register Count 16\n"}
    )
    double()
    with pytest.raises(RuntimeError, match=r"its driver shows resources only, which `stages\(\)` has as `kernel\.usage`; see `spirv_asm`"):
        double.asm()


def test_the_machine_code_among_listings():
    assert machine_code({"NIR Shader(s)": "", "ACO IR": "", "Assembly": ""}) == "Assembly"
    assert machine_code({"NAK assembly": "", "other": ""}) == "NAK assembly"
    assert machine_code({"first": "", "last": ""}) == "last"
    assert machine_code({}) is None

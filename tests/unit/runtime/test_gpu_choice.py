"""Which device of CUDA or HIP is used, what is said of it, and of a machine that has none. On stand-ins for their drivers."""

import re
import subprocess
import sys

import pytest
from unit.runtime import standin_gpu
from unit.runtime.standin_gpu import CUDA, HIP

import spirograd as sg
from spirograd import api
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.commands import doctor
from spirograd.lang import context
from spirograd.runtime import loader
from spirograd.runtime.devices.gpu import driver, hip


def test_choice_of_the_device(open_gpu, standin, monkeypatch):
    standin.machine(devices=3, architecture=standin.api.weak)
    assert open_gpu().info.name == "Stand-in B", "the first one that can be used"
    for wanted, name in (("2", "Stand-in C"), ("stand-in b", "Stand-in B")):
        monkeypatch.setenv("SG_DEVICE", wanted)
        assert open_gpu().info.name == name
    arch, name = standin.api.arch, standin.api.name
    weakness = "6.1; 7.0 is" if standin.api is CUDA else "has the architecture gfx803; spirograd has code for gfx9"
    for wanted, message in (
        ("3", f"no such {name} device; there are 3 (0: Stand-in A, 1"),
        ("x", f"no {name} device has this"),
        ("0", weakness),
    ):
        monkeypatch.setenv("SG_DEVICE", wanted)
        with pytest.raises(SpirogradRuntimeError, match=re.escape(message)):
            loader.open_device(arch)
        assert message.split(";")[0] in (loader.available(arch) or "")
    monkeypatch.delenv("SG_DEVICE")
    listed = loader.devices(arch)
    assert [name for name, _ in listed] == ["Stand-in A", "Stand-in B", "Stand-in C"]
    assert weakness in listed[0][1] and listed[1][1] == ""


def test_the_option_device(standin):
    standin.machine(devices=2)
    for wanted, name in ((1, "Stand-in B"), (0, "Stand-in A"), ("b", "Stand-in B")):
        sg.init(arch=standin.api.arch, device=wanted)
        device = context.session().device
        assert device.info.name == name and device.ordinal == (name == "Stand-in B") and sg.cfg.device == str(wanted)
    refusal = rf"`device=2`: there is no such {standin.api.name} device; there are 2 \(0: Stand-in A"
    with pytest.raises(SpirogradRuntimeError, match=refusal):
        sg.init(arch=standin.api.arch, device=2)
    with pytest.raises(SpirogradRuntimeError, match="there is no such"):
        sg.init(arch=[standin.api.arch, sg.cpu], device=2, enable_fallback=True)
    sg.reset()


@pytest.mark.parametrize("arch", ["cpu", "interpreter"])
def test_the_option_device_where_there_is_one(arch, monkeypatch):
    with pytest.raises(SpirogradRuntimeError, match=f"`device=1`.*`{arch}` has only one"):
        sg.init(arch=arch, device=1)
    monkeypatch.setenv("SG_DEVICE", "1")
    sg.init(arch=arch)
    sg.reset()


def test_doctor_and_gpu(standin):
    row = " ".join(doctor._back_end_row(doctor.probe(standin.api.arch)))
    what = "compute capability 9.0" if standin.api is CUDA else "architecture gfx1100, wave size 32"
    for part in ("Stand-in A", standin.api.version, what, "memory 1.0 GiB"):
        assert part in row
    assert api.available_archs()[0] == standin.api.arch, "before Vulkan and wgpu"


def test_newer_devices_than_llvm_knows(open_gpu, standin):
    if standin.api is CUDA:
        standin.machine(architecture="105")
        assert open_gpu().caps.cpu_name == "sm_103"
    else:
        standin.machine(architecture="gfx9999")
        assert "Stand-in A has the architecture gfx9999; spirograd has code for" in (loader.available("amdgpu") or "")


def test_no_driver_and_no_device(standin, monkeypatch):
    arch = standin.api.arch
    driver._started.clear()
    forked = "does not survive a fork" if standin.api is CUDA else "cannot start the driver"
    for code, message in ((100, "finds no device"), (999, "cannot start the driver"), (3, forked)):
        standin.fail("init", code)
        assert message in (loader.available(arch) or "")
    standin.library.hipGetLastError() if standin.api is HIP else None  # clear the error that the library starts with
    assert loader.available(arch) is None
    standin.machine(devices=0)
    assert "finds no device" in (loader.available(arch) or "")
    monkeypatch.setenv(standin.api.knob, "/nowhere/lib.so.1")
    with pytest.raises(SpirogradRuntimeError, match=r"is not installed.*: /nowhere"):
        loader.open_device(arch)
    monkeypatch.setenv(standin.api.knob, "libm.so.6")
    with pytest.raises(SpirogradRuntimeError, match=rf"libm\.so\.6 lacks {'cu' if standin.api is CUDA else 'hip'}Init"):
        loader.open_device(arch)


@pytest.mark.needs("cc")
def test_properties_of_rocm_5(tmp_path_factory, monkeypatch):
    """They are laid out otherwise, and another function gives them."""
    library = standin_gpu.build(tmp_path_factory.getbasetemp(), HIP, "-DHIP5")
    library.reset()
    monkeypatch.setenv("SG_LIBHIP", str(library.path))
    assert hip.HipDriver.take().architecture(0) == "gfx1100"


@pytest.mark.needs("cc")
def test_the_runtime_that_another_library_loaded(tmp_path_factory):
    """Two of them in one process would not know each other's memory."""
    folder = tmp_path_factory.mktemp("bundled with spaces")
    library = folder / "libamdhip64.so.6"
    library.write_bytes(standin_gpu.build(tmp_path_factory.getbasetemp(), HIP).path.read_bytes())
    code = f"""
import ctypes
ctypes.CDLL({str(library)!r})
from spirograd.runtime.devices.gpu.hip import HipDriver
print(HipDriver.take().path)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == str(library), done.stderr

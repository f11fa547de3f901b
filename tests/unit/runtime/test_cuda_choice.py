"""Which CUDA device is used, what is said of it, and of a machine that has none. On the stand-in for the driver."""


import pytest

from spirograd import api
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.commands import doctor
from spirograd.runtime import loader
from spirograd.runtime.devices.cuda import driver


def test_choice_of_the_device(open_cuda, standin, monkeypatch):
    standin.machine(devices=3, sm=61)
    assert open_cuda().info.name == "Stand-in B", "the first one that can be used"
    for wanted, name in (("2", "Stand-in C"), ("stand-in b", "Stand-in B")):
        monkeypatch.setenv("SG_DEVICE", wanted)
        assert open_cuda().info.name == name
    for wanted, message in (
        ("3", "no such CUDA device; there are 0: Stand-in A, 1"),
        ("x", "no CUDA device has this"),
        ("0", "6.1; 7.0 is"),
    ):
        monkeypatch.setenv("SG_DEVICE", wanted)
        with pytest.raises(SpirogradRuntimeError, match=message):
            loader.open_device("cuda")
        assert message.split(";")[0] in (loader.available("cuda") or "")
    monkeypatch.delenv("SG_DEVICE")
    listed = loader.devices("cuda")
    assert [name for name, _ in listed] == ["Stand-in A", "Stand-in B", "Stand-in C"]
    assert "7.0 is needed" in listed[0][1] and listed[1][1] == ""


def test_doctor_and_gpu(standin):
    info = doctor.probe("cuda")
    row = " ".join(doctor._back_end_row(info))
    for part in ("Stand-in A", "CUDA 13.0", "compute capability 9.0", "memory 1.0 GiB"):
        assert part in row
    assert api.available_archs()[0] == "cuda", "before Vulkan and wgpu"


def test_newer_devices_than_llvm_knows(open_cuda, standin):
    standin.machine(sm=105)
    assert open_cuda().caps.cpu_name == "sm_103"


def test_no_driver_and_no_device(standin, monkeypatch):
    driver._started.cache_clear()
    for code, message in ((100, "finds no device"), (999, "cannot start the driver"), (3, "does not survive a fork")):
        standin.fail("cuInit", code)
        assert message in (loader.available("cuda") or "")
    assert loader.available("cuda") is None
    standin.machine(devices=0)
    assert "finds no device" in (loader.available("cuda") or "")
    monkeypatch.setenv("SG_LIBCUDA", "/nowhere/libcuda.so.1")
    with pytest.raises(SpirogradRuntimeError, match="driver is not installed: /nowhere"):
        loader.open_device("cuda")
    monkeypatch.setenv("SG_LIBCUDA", "libm.so.6")
    with pytest.raises(SpirogradRuntimeError, match=r"libm\.so\.6 lacks cuInit"):
        loader.open_device("cuda")

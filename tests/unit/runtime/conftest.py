import gc

import needs
import pytest
from unit.runtime import standin_cuda

from spirograd.runtime.loader import open_device


def _open(arch, **options):
    needs.need(arch)
    needs.need("spirv-as")
    return open_device(arch, **options)


@pytest.fixture
def open_vulkan():
    """Opens Vulkan devices that are closed after the test; closing checks that the validation layer found no leak."""
    opened = []

    def make(**options):
        device = _open("vulkan", **options)
        opened.append(device)
        return device

    yield make
    for device in opened:
        device.close()


@pytest.fixture(params=["mapped", "staged"])
def vulkan(request, open_vulkan):
    """A device with the validation layer, once with mapped memory where there is some, once with all data going through staging."""
    return open_vulkan(debug=True, mappable=None if request.param == "mapped" else False)


@pytest.fixture
def open_wgpu():
    """Opens wgpu devices that are closed after the test."""
    opened = []

    def make(**options):
        device = _open("wgpu", **options)
        opened.append(device)
        return device

    yield make
    for device in opened:
        device.close()


@pytest.fixture(params=["trusted", "checked"])
def wgpu(request, open_wgpu):
    """A device, once with modules as they are, once with wgpu's own checks in them."""
    return open_wgpu(debug=request.param == "checked")


@pytest.fixture
def standin(tmp_path_factory, monkeypatch):
    """The stand-in for the CUDA driver in place of the driver, fresh. After the test nothing may be left in it."""
    needs.need("cc")
    library = standin_cuda.build(tmp_path_factory.getbasetemp())
    library.reset()
    monkeypatch.setenv("SG_LIBCUDA", str(library.path))
    yield library
    gc.collect()
    assert library.leftovers() == {}
    assert library.depth <= 1, "a context was left on the stack"


@pytest.fixture
def open_cuda(standin):
    """Opens CUDA devices on the stand-in that are closed after the test."""
    opened = []

    def make(**options):
        device = open_device("cuda", **options)
        opened.append(device)
        return device

    yield make
    standin.hold(False)
    for device in opened:
        device.close()


@pytest.fixture
def cuda(open_cuda):
    return open_cuda()

import needs
import pytest

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

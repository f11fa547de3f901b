import needs
import pytest

from spirograd.runtime.loader import open_device


def _open(**options):
    needs.need("vulkan")
    needs.need("spirv-as")
    return open_device("vulkan", **options)


@pytest.fixture
def open_vulkan():
    """Opens Vulkan devices that are closed after the test; closing checks that the validation layer found no leak."""
    opened = []

    def make(**options):
        device = _open(**options)
        opened.append(device)
        return device

    yield make
    for device in opened:
        device.close()


@pytest.fixture(params=["mapped", "staged"])
def vulkan(request, open_vulkan):
    """A device with the validation layer, once with mapped memory where there is some, once with all data going through staging."""
    return open_vulkan(debug=True, mappable=None if request.param == "mapped" else False)

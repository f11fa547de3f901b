import os
import shutil

import pytest

# lavapipe's default optimiser takes seconds for kernels with many loops; the results are the same without.
os.environ.setdefault("GALLIVM_PERF", "nopt")
os.environ.setdefault("SG_OFFLINE_CACHE", "0")

from spirograd.runtime.loader import available, open_device


def _reason():
    reason = available("vulkan")
    if reason is None and shutil.which("spirv-as") is None:
        reason = "spirv-as is not installed"
    return reason


def _open(**options):
    reason = _reason()
    if reason is not None:
        pytest.skip(f"no Vulkan: {reason}")
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

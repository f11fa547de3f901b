import functools
import gc
import signal

import needs
import pytest
from unit.runtime import gpu_modules, standin_gpu

import spirograd as sg
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


@pytest.fixture(params=standin_gpu.APIS, ids=lambda api: api.arch)
def standin(request, tmp_path_factory, monkeypatch, younger_garbage):
    """A stand-in for the driver of a GPU in place of the driver, fresh. After the test nothing may be left in it."""
    needs.need("cc")
    api = request.param
    library = standin_gpu.build(tmp_path_factory.getbasetemp(), api)
    library.reset()
    monkeypatch.setenv(api.knob, str(library.path))
    yield library
    gc.collect()
    assert library.leftovers() == {}
    assert library.depth <= (api is standin_gpu.CUDA), "a context was left on the stack, or a device current"
    assert library.last_error == 0, "an error was left for others to find"


@pytest.fixture
def ctrl_c():
    """Python's own handler of SIGINT, which shells have processes in the background ignore; afterwards what was there."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def open_gpu(standin):
    """Opens devices on the stand-in that are closed after the test."""
    opened = []

    def make(**options):
        device = open_device(standin.api.arch, **options)
        opened.append(device)
        return device

    yield make
    standin.hold(False)
    for device in opened:
        device.close()


@pytest.fixture
def gpu(open_gpu):
    return open_gpu()


@pytest.fixture
def compiled(gpu):
    """Makes kernels for the device: see `gpu_modules.compiled`."""
    return functools.partial(gpu_modules.compiled, gpu)


@pytest.fixture
def session(standin):
    """The stand-in, with a session on it."""
    sg.init(arch=standin.api.arch)
    yield standin
    standin.hold(False)
    sg.reset()

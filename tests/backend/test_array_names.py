"""Names of the array API standard on fields and ndarrays: what they say agrees with NumPy's arrays of the contents."""

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.usefixtures("session")


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)])
def test_names(arch, shape):
    found = [
        sg.field(sg.f32, shape),
        sg.ndarray(sg.i32, shape),
        sg.Vector.field(3, sg.f32, shape=shape),
        sg.Matrix.ndarray(2, 2, sg.f32, shape),
    ]
    for memory in found:
        array = memory.to_numpy()
        element = memory.view.element_shape
        assert memory.shape == array.shape[: array.ndim - len(element)] == shape
        assert memory.size * int(np.prod(element)) == array.size
        assert memory.dtype.np == array.dtype
        assert memory.device.split(":")[0] == arch and memory.to_device(memory.device) is memory
        assert arch in ("cuda", "amdgpu") or np.from_dlpack(memory).shape == array.shape
        if memory.device != "cpu":
            memory.fill(3)
            host = memory.to_device("cpu")
            assert isinstance(host, np.ndarray) and host.shape == array.shape and (host == 3).all()
        way = "and does not go to 'moon'" if memory.device == "cpu" else "from where it goes to 'cpu', not to 'moon'"
        with pytest.raises(sg.SpirogradValueError, match=f"lies on the device '{memory.device}', {way}"):
            memory.to_device("moon")
        with pytest.raises(sg.SpirogradValueError, match="takes no stream"):
            memory.to_device("cpu", stream=1)
        assert not hasattr(memory, "__array_namespace__")


def test_sparse_fields():
    x = sg.field(sg.f32)
    sg.root.pointer(sg.i, 4).dense(sg.i, 2).place(x)
    assert x.size == 8 and x.to_device(x.device) is x


def test_parts_of_arrays():
    array = sg.ndarray(sg.f32, (6, 4))
    assert (array[1:5, ::2].size, array[1:5, ::2].device) == (8, array.device)

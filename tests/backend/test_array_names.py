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


class Capsule:
    """What `from_dlpack` takes, with options of the protocol that it does not know itself in NumPy 1."""

    def __init__(self, memory, **options):
        self.memory, self.options = memory, options

    def __dlpack__(self, **_):
        return self.memory.__dlpack__(**self.options)

    def __dlpack_device__(self):
        return self.memory.__dlpack_device__()


@pytest.mark.archs("cpu", "vulkan", "wgpu", "interpreter")
def test_exports_to_the_host_are_copies_where_they_say_so(arch):
    sparse = sg.field(sg.f32)
    sg.root.pointer(sg.i, 4).dense(sg.i, 2).place(sparse)
    sparse.from_numpy(np.ones(8, np.float32))  # activates all cells
    array = sg.ndarray(sg.f32, (3, 4))
    mapped = sg.ndarray(sg.f32, 1).allocation.host_address is not None  # not on graphics cards
    regular = [array, sg.field(sg.f32, (3, 4), order="ji"), sg.field(sg.f32, ()), sg.Vector.field(2, sg.f32, shape=3), array[1:, ::2]]
    for memory in (*regular, sparse, array[::-1], array[:, ::-1]):
        shares = memory in regular and mapped

        def seen(memory=memory, **options):
            """Whether the export has what is written to the memory later."""
            whole = array if isinstance(memory, type(array[1:])) else memory
            whole.fill(1)
            out = np.from_dlpack(Capsule(memory, **options))
            assert out.shape == memory.to_numpy().shape and all(stride > 0 for stride in out.strides) and (out == 1).all()
            whole.fill(2)
            sg.sync()
            return bool((out == 2).all())

        assert seen() == shares and not seen(copy=True)
        if shares:
            assert seen(copy=False)
        else:
            with pytest.raises(BufferError, match="as a copy: the host cannot address"):
                memory.__dlpack__(copy=False)
        with pytest.raises(BufferError, match=r"DLPack device \(1, 0\), and not on \(2, 0\)"):
            memory.__dlpack__(dl_device=(2, 0))
    assert np.from_dlpack(Capsule(sg.ndarray(sg.f32, (0, 4)), copy=False)).shape == (0, 4)


def test_sparse_fields():
    x = sg.field(sg.f32)
    sg.root.pointer(sg.i, 4).dense(sg.i, 2).place(x)
    assert x.size == 8 and x.to_device(x.device) is x


def test_parts_of_arrays():
    array = sg.ndarray(sg.f32, (6, 4))
    assert (array[1:5, ::2].size, array[1:5, ::2].device) == (8, array.device)

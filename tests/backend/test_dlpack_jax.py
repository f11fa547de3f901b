"""Memory that spirograd and JAX share by DLPack, and copies where they cannot."""

import needs
import numpy as np
import pytest

import spirograd as sg

jax = needs.package("jax")

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.needs("jax")]


def on_the_host(x):
    """``x`` in memory that NumPy can read, also where JAX has a GPU."""
    return jax.device_put(x, jax.devices("cpu")[0])


@sg.kernel
def double(a: sg.types.NDArray, b: sg.types.NDArray):
    for i in a:
        b[i] = a[i] * 2


def test_jax_takes_arrays_and_fields():
    array, field, vectors = sg.ndarray(sg.f32, 5), sg.field(sg.i32, (2, 3)), sg.Vector.field(3, sg.f32, 4)
    array.from_numpy(np.arange(5, dtype=np.float32))
    field.from_numpy(np.arange(6, dtype=np.int32).reshape(2, 3))
    vectors.from_numpy(np.arange(12, dtype=np.float32).reshape(4, 3))
    sg.sync()
    for memory in (array, field, vectors):
        found = jax.numpy.from_dlpack(memory)
        assert isinstance(found, jax.Array)
        assert found.dtype == memory.to_numpy().dtype
        np.testing.assert_array_equal(found, memory.to_numpy())


@pytest.mark.archs("cpu")  # elsewhere the host cannot address the memory, and JAX gets a copy
def test_the_memory_is_the_same():
    array = sg.ndarray(sg.f32, 1 << 12)
    found = jax.numpy.from_dlpack(array, copy=False)
    assert found.unsafe_buffer_pointer() == array.to_numpy(copy=False).ctypes.data
    array.fill(3.0)
    assert float(found[17]) == 3.0


def test_the_memory_outlives_the_session(session):
    array = sg.ndarray(sg.f32, 100)
    array.fill(2.5)
    sg.sync()
    found = jax.numpy.from_dlpack(array)
    sg.init(arch=session.arch)
    del array
    assert (found == 2.5).all()


def test_kernels_take_what_jax_exports():
    """Through NumPy, whose arrays share the memory of JAX's, which nobody may write to."""
    x = on_the_host(jax.numpy.arange(6.0) + 1)
    shared = np.from_dlpack(x)
    out = np.zeros(6, np.float32)
    double(shared, out)
    np.testing.assert_array_equal(out, 2 * np.asarray(x))
    array = sg.ndarray(sg.f32, 6)
    array.from_numpy(shared)
    double(array, out)
    np.testing.assert_array_equal(out, 2 * np.asarray(x))
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="read-only"):
        double(out, shared)
    np.testing.assert_array_equal(x, np.arange(6.0) + 1)


@pytest.mark.needs("torch")
def test_from_torch_to_jax_through_a_kernel():
    torch = needs.package("torch")
    given = torch.arange(4.0)
    out = sg.ndarray(sg.f32, 4)
    double(given, out)
    sg.sync()
    np.testing.assert_array_equal(jax.numpy.from_dlpack(out), 2 * given.numpy())


def test_arrays_of_jax_are_no_arguments():
    x = on_the_host(jax.numpy.arange(4.0))
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="argument `a` takes an array"):
        double(x, np.zeros(4, np.float32))

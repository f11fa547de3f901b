"""Memory on a GPU that spirograd and CuPy share, by DLPack and by the CUDA array interface; both sides in the order of their streams."""

import needs
import numpy as np
import pytest

import spirograd as sg

cupy = needs.package("cupy")

# CuPy has memory on GPUs only; there is no build of it for the host that NumPy would not be.
pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.needs("cupy"), pytest.mark.archs("cuda", "amdgpu")]


@sg.kernel
def double(a: sg.types.NDArray, b: sg.types.NDArray):
    for i in a:
        b[i] = a[i] * 2


@pytest.mark.parametrize("take", [lambda x: cupy.from_dlpack(x), lambda x: cupy.asarray(x)], ids=["dlpack", "interface"])
def test_cupy_takes_memory_as_it_is(take):
    array, field, vectors = sg.ndarray(sg.f32, 1 << 12), sg.field(sg.i32, (2, 3)), sg.Vector.field(3, sg.f32, 4)
    for memory in (array, field, vectors):
        whole = np.arange(memory.to_numpy().size).reshape(memory.to_numpy().shape).astype(memory.dtype.np)
        memory.from_numpy(whole)
        found = take(memory)
        assert found.dtype == whole.dtype and found.shape == whole.shape
        np.testing.assert_array_equal(cupy.asnumpy(found), whole)
        found += 1  # in the memory itself
        cupy.cuda.get_current_stream().synchronize()
        np.testing.assert_array_equal(memory.to_numpy(), whole + 1)


def test_kernels_take_arrays_of_cupy():
    x, out = cupy.arange(1 << 16, dtype=cupy.float32), cupy.zeros(1 << 16, cupy.float32)
    for turn in range(3):
        x += 1  # on CuPy's stream, before the kernel
        double(x, out)
        y = out + 1  # after it
        np.testing.assert_array_equal(cupy.asnumpy(y), 2 * (np.arange(1 << 16, dtype=np.float32) + turn + 1) + 1)
    with pytest.raises(sg.SpirogradRuntimeError, match="not contiguous"):
        double(cupy.arange(8, dtype=cupy.float32)[::2], out)


def test_the_memory_outlives_the_session(arch):
    array = sg.ndarray(sg.f32, 1000)
    array.fill(2.5)
    found = cupy.from_dlpack(array)
    del array
    sg.init(arch=arch)
    assert bool((found == 2.5).all())


def test_a_stream_of_cupy():
    stream = cupy.cuda.Stream(non_blocking=True)
    x = sg.ndarray(sg.f32, 1 << 16)
    with stream, sg.Stream(stream):
        for turn in range(4):
            x.fill(turn)
            assert bool((cupy.from_dlpack(x) == turn).all())

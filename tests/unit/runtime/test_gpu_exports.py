"""Memory of CUDA and HIP devices in the hands of other libraries: DLPack, the CUDA array interface, torch. On stand-ins for the drivers."""

import contextlib
import ctypes
import gc
import math
import sys

import needs
import numpy as np
import pytest
from unit.runtime.standin_gpu import CUDA

import spirograd as sg
from spirograd.lang import context
from spirograd.lang.data import device_arrays

OFFSET = 1 << 62  # of the addresses of the stand-in
OTHER = 7  # a stream of another library
VERSIONS = np.lib.NumpyVersion(np.__version__) >= "2.1.0"  # whether NumPy makes capsules of DLPack 1


class Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


def holders(x):
    """How many references there are to what owns the memory."""
    gc.collect()
    return sys.getrefcount(x.tree.allocation)


def has_version(capsule):
    valid = ctypes.pythonapi.PyCapsule_IsValid
    valid.argtypes = (ctypes.py_object, ctypes.c_char_p)
    return bool(valid(capsule, b"dltensor_versioned"))


def taken(capsule):
    """What a consumer reads from a capsule, which it renames; and the function by which it gives the array back."""
    versioned = has_version(capsule)
    name = b"dltensor_versioned" if versioned else b"dltensor"
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    address = pointer(capsule, name)
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = (ctypes.py_object, ctypes.c_char_p)
    used = ctypes.c_char_p(b"used_" + name)
    kept.append(used)
    rename(capsule, used)
    managed = (Versioned if versioned else Managed).from_address(address)
    return managed, lambda: ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)(address)


kept = []


def strides_of(tensor):
    """In elements; no strides are those of an array in C order."""
    shape = tensor.shape[: tensor.ndim]
    return tuple(tensor.strides[: tensor.ndim]) if tensor.strides else tuple(math.prod(shape[k + 1 :]) for k in range(tensor.ndim))


def makers():
    yield "an ndarray", lambda: sg.ndarray(sg.f32, shape=(5, 7)), (5, 7), (7, 1)
    yield "an ndarray of vectors", lambda: sg.Vector.ndarray(3, sg.f64, 4), (4, 3), (3, 1)
    yield "a field", lambda: sg.field(sg.i16, shape=(2, 3, 4)), (2, 3, 4), (12, 4, 1)
    yield "a field of matrices", lambda: sg.Matrix.field(2, 2, sg.f32, shape=(3,)), (3, 2, 2), (4, 2, 1)
    yield "a field by columns", lambda: sg.field(sg.f32, shape=(4, 3), order="ji"), (4, 3), (1, 4)
    yield "a field of vectors by components", lambda: sg.Vector.field(3, sg.f32, (4, 2), layout=sg.Layout.SOA), (4, 2, 3), (2, 1, 8)
    yield "one element", lambda: sg.field(sg.f16, shape=()), (), ()
    if np.lib.NumpyVersion(np.__version__) >= "1.25.0":  # older ones know no truth values in DLPack
        yield "truth values", lambda: sg.field(sg.u1, shape=3), (3,), (1,)


MAKERS = {name: rest for name, *rest in makers()}


@pytest.mark.parametrize("what", MAKERS)
@pytest.mark.parametrize("versioned", [False, True])
def test_dlpack(session, what, versioned):
    make, shape, strides = MAKERS[what]
    x = make()
    kind = (2, 0) if session.api is CUDA else (10, 0)
    assert x.__dlpack_device__() == kind
    before = holders(x)
    copies = [session.calls(name) for name in ("copy", "copy_to_host", "copy_to_device")]
    capsule = x.__dlpack__(stream=OTHER, max_version=(1, 0) if versioned else None)
    assert has_version(capsule) == (versioned and VERSIONS)
    managed, delete = taken(capsule)
    assert [session.calls(name) for name in ("copy", "copy_to_host", "copy_to_device")] == copies
    tensor = managed.tensor
    assert tensor.data == x.tree.allocation.address + x.view.blocks[0].offset and tensor.byte_offset == 0
    assert (tensor.device_type, tensor.device_id, tensor.ndim) == (*kind, len(shape))
    assert (tuple(tensor.shape[: len(shape)]), strides_of(tensor)) == (shape, strides)
    assert (tensor.code, tensor.bits, tensor.lanes) == ({"i": 0, "f": 2, "b": 6}[x.dtype.np.kind], 8 * x.dtype.np.itemsize, 1)
    assert not isinstance(managed, Versioned) or (managed.major, managed.flags) == (1, 0)
    assert holders(x) > before
    delete()
    assert holders(x) == before


def test_the_order_of_streams(session):
    """A consumer's stream goes on after the work that was launched before, and not before."""
    a = sg.ndarray(sg.i32, shape=4)
    device = context.session().device
    sg.sync()
    session.hold(stream=device.stream)
    a.fill(5)
    address = a.allocation.address
    taken(a.__dlpack__(stream=OTHER))[1]()
    fill = session.library.cuMemsetD32Async if session.api is CUDA else session.library.hipMemsetD32Async
    with device._turn:
        fill(ctypes.c_uint64(address), 6, ctypes.c_size_t(4), ctypes.c_void_p(OTHER))
    for _ in range(20):
        device._stream.done(device._between)
    assert session.pending
    session.hold(False, stream=device.stream)
    device.follow(OTHER)
    assert a.to_numpy().tolist() == [6] * 4


def test_streams_that_the_protocol_refuses(session):
    a = sg.ndarray(sg.f32, shape=4)
    waits = session.calls("stream_wait")
    a.__dlpack__(stream=-1)
    assert session.calls("stream_wait") == waits, "the consumer puts the work in order"
    for stream in (0,) if session.api is CUDA else (1, 2):
        with pytest.raises(BufferError, match=f"no stream {stream}"):
            a.__dlpack__(stream=stream)
    for stream in (None, *((1, 2) if session.api is CUDA else (0,)), 9):
        a.__dlpack__(stream=stream)
    assert session.calls("stream_wait") == waits + (4 if session.api is CUDA else 3)


def test_copies_and_other_devices(session):
    a = sg.ndarray(sg.f32, shape=(2, 3))
    a.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
    for options in ({"dl_device": (1, 0)}, {"dl_device": (1, 0), "copy": True}):
        np.testing.assert_array_equal(np.from_dlpack(_Capsule(a.__dlpack__(**options))), a.to_numpy())
    with pytest.raises(BufferError, match="lies on the DLPack device"):
        a.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="lies on the DLPack device"):
        a.__dlpack__(dl_device=(2, 5))
    assert not a.allocation.shared
    managed, delete = taken(a.__dlpack__(copy=True, max_version=(1, 2)))
    assert managed.tensor.data != a.allocation.address and not a.allocation.shared
    assert managed.flags == 2 if VERSIONS else isinstance(managed, Managed)
    sg.sync()
    values = np.ctypeslib.as_array((ctypes.c_float * 6).from_address(managed.tensor.data - OFFSET))
    assert values.tolist() == list(range(6))
    del values
    delete()


class _Capsule:
    """A capsule on the host, as `np.from_dlpack` takes it."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **options):
        return self.capsule

    def __dlpack_device__(self):
        return (1, 0)


def blocked():
    """A field whose elements lie in blocks of 2 x 2."""
    x = sg.field(sg.f32)
    sg.root.dense(sg.ij, (3, 2)).dense(sg.ij, (2, 2)).place(x)
    return x


def scattered():
    """A field of vectors whose components lie at uneven distances."""
    v, between = sg.Vector.field(3, sg.f32), sg.field(sg.f32)
    node = sg.root.dense(sg.i, 4)
    node.place(v.get_scalar_field(0), between, v.get_scalar_field(1), v.get_scalar_field(2))
    return v


def test_irregular_memory_is_copied_to_the_host(session):
    for x in (blocked(), scattered()):
        data = np.arange(np.prod(x.view.full_shape), dtype=np.float32).reshape(x.view.full_shape)
        x.from_numpy(data)
        assert x.__dlpack_device__() == (1, 0) and not hasattr(x, "__cuda_array_interface__")
        np.testing.assert_array_equal(np.from_dlpack(x), data)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_arrays_without_elements(session, shape):
    """They lie on the device, too: a consumer that expects all arrays of a program there would refuse memory of the host."""
    x = sg.ndarray(sg.f32, shape=shape)
    kind = (2, 0) if session.api is CUDA else (10, 0)
    assert x.__dlpack_device__() == kind
    for options in ({}, {"copy": True}):
        managed, delete = taken(x.__dlpack__(stream=OTHER, **options))
        tensor = managed.tensor
        assert (tensor.device_type, tensor.device_id, tuple(tensor.shape[:2]), tensor.data) == (*kind, shape, None)
        delete()
    interface = x.__cuda_array_interface__
    assert (interface["data"], interface["shape"], interface["typestr"]) == ((0, False), shape, "<f4")
    assert np.from_dlpack(_Capsule(x.__dlpack__(dl_device=(1, 0)))).shape == shape


@pytest.mark.parametrize("what", MAKERS)
def test_the_cuda_array_interface(session, what):
    make, shape, strides = MAKERS[what]
    x = make()
    assert not x.tree.allocation.shared
    interface = x.__cuda_array_interface__
    size = x.dtype.np.itemsize
    assert interface == {
        "version": 3,
        "data": (x.tree.allocation.address + x.view.blocks[0].offset, False),
        "shape": shape,
        "strides": tuple(s * size for s in strides),
        "typestr": x.dtype.np.str,
        "stream": context.session().device.stream,
    }
    assert x.tree.allocation.shared


@pytest.mark.parametrize("arch", ["cpu", "interpreter"])
def test_only_gpus_have_the_interface(arch):
    sg.init(arch=arch)
    assert not hasattr(sg.ndarray(sg.f32, shape=3), "__cuda_array_interface__")
    assert not hasattr(sg.field(sg.f32, shape=3), "__cuda_array_interface__")
    sg.reset()


def test_what_is_handed_out_counts_as_shared_from_then_on(session):
    """Also under a tape, which keeps a copy of it (`spirograd/ad/exposed.py`); passing an array to a kernel hands nothing out."""
    a, x = sg.ndarray(sg.f32, shape=3), sg.field(sg.f32, shape=3)

    @sg.kernel
    def step(a: sg.types.ndarray(sg.f32, 1), t: sg.Tensor):
        for i in a:
            a[i] = t[i] * 2.0

    step(a, x)
    assert not a.allocation.shared and not x.tree.allocation.shared
    before = holders(x)
    capsule = x.to_dlpack()
    assert holders(x) > before
    assert x.tree.allocation.shared == {x.view.part}
    del capsule
    assert holders(x) == before, "a capsule that was not taken gives the memory back"


def test_numpy_refuses_memory_of_a_gpu(session):
    """With its own error, which must survive that the capsule goes."""
    x = sg.ndarray(sg.f32, shape=(2, 3))
    before = holders(x)
    with pytest.raises((BufferError, RuntimeError), match="device"):
        np.from_dlpack(x)
    assert holders(x) == before


def test_exported_memory_outlives_array_and_session(session):
    a = sg.ndarray(sg.i32, shape=4)
    a.fill(3)
    address = a.allocation.address
    managed, delete = taken(a.to_dlpack())
    assert managed.tensor.ndim == 1
    synchronized = session.calls("synchronize")
    del a
    gc.collect()
    sg.sync()
    assert session.live("memory") >= 1
    sg.reset()
    gc.collect()
    assert session.live("memory") == 1, "all other memory was freed"
    assert session.live("pools") == 1, "NVIDIA's driver crashes later on where a pool was destroyed before the memory from it"
    assert (ctypes.c_int32 * 4).from_address(address - OFFSET)[:] == [3] * 4
    delete()
    gc.collect()
    assert session.live("memory") == 0 and session.calls("synchronize") == synchronized + 1
    assert session.live("pools") == 0


def test_a_capsule_that_is_never_taken_outlives_array_and_session(session):
    a = sg.ndarray(sg.i32, shape=4)
    capsule = a.to_dlpack()
    del a
    gc.collect()
    sg.reset()
    gc.collect()
    assert session.live("memory") == 1
    del capsule
    gc.collect()
    assert session.live("memory") == 0


def test_a_capsule_is_taken_once(session):
    """Its name says so afterwards, and the consumer, not the capsule, gives the memory back."""
    a = sg.ndarray(sg.i32, shape=4)
    before = holders(a)
    capsule = a.to_dlpack()
    _, delete = taken(capsule)
    with contextlib.suppress(ValueError):
        taken(capsule)
        pytest.fail("it was taken twice")
    del capsule
    assert holders(a) > before
    delete()
    assert holders(a) == before


def test_freeing_exported_memory_waits_for_its_users(session):
    a = sg.ndarray(sg.i32, shape=4)
    _, delete = taken(a.to_dlpack())
    before = session.calls("synchronize")
    delete()
    del a
    gc.collect()
    sg.sync()
    assert session.calls("synchronize") == before + 1, "its users may have work under way on any stream"
    b = sg.ndarray(sg.i32, shape=4)
    del b
    gc.collect()
    sg.sync()
    assert session.calls("synchronize") == before + 1


def test_exported_memory_that_was_given_back_goes_with_the_session(session):
    a = sg.ndarray(sg.i32, shape=4)
    _, delete = taken(a.to_dlpack())
    delete()
    del a
    gc.collect()
    sg.reset()
    assert session.live("memory") == 0


@pytest.fixture
def torch_on_the_gpu(session, monkeypatch):
    """Tensors over the memory of the stand-in, as if torch had a GPU."""
    torch = needs.package("torch")

    class Stream:
        cuda_stream = OTHER

    def over(allocation, block, dtype):
        sg.sync()
        buffer = (ctypes.c_ubyte * block.span).from_address(allocation.address - OFFSET + block.offset)
        return torch.from_numpy(np.ndarray(block.dims, dtype.np, buffer, 0, block.strides))

    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: Stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(device_arrays, "_block_over", over)
    return torch


def vector_fields():
    yield sg.Vector.field(3, sg.f32, shape=(4, 2))
    yield sg.Vector.field(3, sg.f32, shape=(4, 2), layout=sg.Layout.SOA)
    yield sg.Matrix.field(2, 3, sg.f64, shape=5)
    yield sg.Matrix.field(2, 3, sg.i32, shape=5, layout=sg.Layout.SOA)
    yield scattered()


def test_vectors_and_matrices_are_copied_on_the_device(session, torch_on_the_gpu):
    torch = torch_on_the_gpu
    for x in vector_fields():
        data = np.arange(np.prod(x.view.full_shape)).reshape(x.view.full_shape).astype(x.dtype.np)
        x.from_numpy(data)
        before = [session.calls(name) for name in ("copy_to_host", "copy_to_device")]
        ordered = session.calls("stream_wait")
        tensor = x.to_torch(device="cuda")
        np.testing.assert_array_equal(tensor.numpy(), data)
        assert x.to_torch(device="cuda", keep_dims=True).shape[-1] == (1 if x.ndim == 1 else 3)
        assert [session.calls(name) for name in ("copy_to_host", "copy_to_device")] == before
        assert session.calls("stream_wait") == ordered + 4, "after the launches, before the next ones"

        class OnTheGpu(torch.Tensor):
            is_cuda = True
            device = torch.device("cuda", 0)

        before = [session.calls(name) for name in ("copy_to_host", "copy_to_device")]
        x.from_torch((tensor * 2).as_subclass(OnTheGpu))
        assert [session.calls(name) for name in ("copy_to_host", "copy_to_device")] == before
        np.testing.assert_array_equal(x.to_numpy(), 2 * data)

"""The handlers that XLA calls, called by a stand-in for XLA: with host memory, and on CUDA with addresses of the device and its stream."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest

import spirograd as sg
from spirograd.interop import jax_calls, xla_frames
from spirograd.interop.jax_functions import JaxFunction
from spirograd.interop.jax_kernels import JaxCall
from spirograd.lang.data.foreign_buffers import DeviceBuffer

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.archs("interpreter", "cpu", "vulkan", "wgpu", "cuda")]
LINE = sg.types.NDArray[sg.f32, 1]
POINTER = ctypes.c_void_p
CODES = {dtype: code for code, dtype in xla_frames._TYPES.items()}


@sg.kernel
def wave(u: LINE, w: LINE, n: sg.i32, out: LINE):
    for i in u:
        s = u[i]
        for k in range(n):
            s = sg.sin(s) * w[k]
        out[i] = s


class Memory:
    """An array of XLA: in memory of the host, or on CUDA in memory of the device."""

    def __init__(self, contents, on_device):
        self.host = np.array(contents)
        self.array = None
        if on_device:
            self.array = sg.ndarray(sg.i32 if self.host.dtype == np.int32 else sg.f32, self.host.shape or (1,))
            self.array.from_numpy(self.host.reshape(self.array.shape))
        self.address = self.host.ctypes.data if self.array is None else self.array.allocation.address

    def numpy(self):
        return self.host if self.array is None else self.array.to_numpy().reshape(self.host.shape)


class Xla:
    """Calls a handler as XLA does."""

    def __init__(self, session):
        self.on_device = session.arch == "cuda"
        self.errors: list[str] = []
        self._stream = session.device.stream if self.on_device else 0
        self._kept = [xla_frames._Function(self._make_error), xla_frames._Function(self._give_stream)]
        create, stream = (ctypes.cast(function, POINTER).value for function in self._kept)
        self.api = xla_frames.Api(size=192, major=0, minor=3, error_create=create, stream_get=stream)
        self.handler = xla_frames.handler(jax_calls.run, self.on_device)

    def _make_error(self, address):
        given = xla_frames._ErrorArguments.at(address)
        self.errors.append(given.message.decode())
        return 1

    def _give_stream(self, address):
        xla_frames._StreamArguments.at(address).stream = self._stream
        return None

    def memory(self, contents):
        return Memory(contents, self.on_device)

    def _list(self, given, kept):
        items = (POINTER * max(len(given), 1))()
        for k, memory in enumerate(given):
            dims = (ctypes.c_int64 * max(memory.host.ndim, 1))(*memory.host.shape)
            made = xla_frames.BufferOfXla(size=48, dtype=CODES[memory.host.dtype], data=memory.address, rank=memory.host.ndim, dims=dims)
            kept += [made, dims, memory]
            items[k] = ctypes.addressof(made)
        kept.append(items)
        return xla_frames.List(size=40, count=len(given), items=items)

    def call(self, work, args, rets, **changes):
        """Run ``work``; the message of the error that it ends with, else None."""
        kept: list[object] = []
        number = ctypes.c_int64(jax_calls.number_of(work))
        scalar = xla_frames.Scalar(dtype=5, value=ctypes.pointer(number))
        attributes = xla_frames.Attributes(size=48, count=1, items=(POINTER * 1)(ctypes.addressof(scalar)))
        given = {"size": 168, "api": ctypes.addressof(self.api), "stage": 3, **changes}
        frame = xla_frames.Frame(args=self._list(args, kept), rets=self._list(rets, kept), attrs=attributes, **given)
        failed = self.handler(ctypes.addressof(frame))
        return self.errors.pop() if failed else None


def of(n, function, outputs):
    return JaxCall(function, (("n", function._fixed("n", n)),), ("u", "w"), outputs, ("float32",) * len(outputs))


@pytest.fixture
def setting(session):
    function, xla = JaxFunction(wave, {"out": "u"}, {}), Xla(session)
    rng = np.random.default_rng(0)
    return of(2, function, ((5,),)), xla, rng.uniform(0.3, 1.0, 5).astype(np.float32), rng.uniform(0.5, 1.0, 2).astype(np.float32)


def forward(u, w):
    first = np.sin(u) * w[0]
    return np.sin(first) * w[1], np.cos(first) * w[1] * np.cos(u) * w[0]


def test_launches_gradients_and_tangents(setting):
    call, xla, u, w = setting
    for scale in (1.0, 0.5):  # again with changed data
        args = [xla.memory(u * np.float32(scale)), xla.memory(w)]
        value, slope = forward(u * scale, w)
        out = xla.memory(np.zeros(5, np.float32))
        assert xla.call(("launch", call, (), ()), [*args, out], [out]) is None
        np.testing.assert_allclose(out.numpy(), value, rtol=1e-5)
        adjoint, gradient = xla.memory(np.arange(1, 6, dtype=np.float32)), xla.memory(np.zeros(5, np.float32))
        assert xla.call(("gradient", call, ("u",), ()), [*args, out, adjoint, gradient], [adjoint, gradient]) is None
        np.testing.assert_allclose(gradient.numpy(), slope * np.arange(1, 6), rtol=1e-4)
        direction, tangent = xla.memory(u), xla.memory(np.full(5, 9.0, np.float32))
        assert xla.call(("tangent", call, (), ("u",)), [*args, out, direction], [tangent]) is None
        np.testing.assert_allclose(tangent.numpy(), slope * u, rtol=1e-4)
        weights, bend = xla.memory(np.ones(5, np.float32)), xla.memory(np.zeros(5, np.float32))
        assert xla.call(("hessian", call, ("u",), ("u",)), [*args, out, weights, direction], [bend]) is None
        step, at = 1e-5, u.astype(float)
        by_differences = (forward(at * (scale + step), w)[1] - forward(at * (scale - step), w)[1]) / (2 * step)
        np.testing.assert_allclose(bend.numpy(), by_differences, rtol=2e-3, atol=1e-4)


def test_numbers_are_passed_and_returned(session):
    @sg.kernel
    def total(u: LINE, n: sg.i32) -> sg.f32:
        s = 0.0
        for i in range(n):
            s += u[i]
        return s

    xla, function = Xla(session), JaxFunction(total, {}, {})
    call = JaxCall(function, (), ("u", "n"), ((),), ("float32",))
    for n in (0, 2, 3):
        result = xla.memory(np.float32(9.0))
        assert xla.call(("launch", call, (), ()), [xla.memory(np.float32([1, 2, 4])), xla.memory(np.int32(n))], [result]) is None
        assert result.numpy() == [0, 1, 3, 7][n]


def test_errors_come_back_to_xla(setting):
    call, xla, u, w = setting
    out, other = xla.memory(np.zeros(5, np.float32)), xla.memory(np.zeros(5, np.float32))
    args = [xla.memory(u), xla.memory(w)]
    work = ("launch", call, (), ())
    assert "did not give a result the memory" in xla.call(work, [*args, out], [other])
    with sg.ad.FwdMode(loss=(x := sg.field(sg.f32, (), needs_dual=True)), param=x):
        assert "ran while a tape or `FwdMode` was open" in xla.call(work, [*args, out], [out])
    assert re.search(r"`Frame` of XLA has 160 bytes, expected 168", xla.call(work, [*args, out], [out], size=160) or "")
    assert xla.call(work, [*args, out], [out], stage=1) is None  # a stage before the launch
    assert (out.numpy() == 0.0).all()
    assert xla.call(work, [*args, out], [out]) is None
    assert (out.numpy() != 0.0).all()


def test_handlers_tell_the_version_of_xla(session):
    xla = Xla(session)
    metadata = xla_frames.Metadata(size=48, traits=7)
    extension = xla_frames.Extension(size=32, kind=1, metadata=ctypes.addressof(metadata))
    frame = xla_frames.Frame(size=168, extension=ctypes.addressof(extension), api=ctypes.addressof(xla.api))
    assert xla.handler(ctypes.addressof(frame)) is None
    assert (metadata.major, metadata.minor, metadata.traits) == (0, 3, 0)
    xla.api.major = 1
    assert xla.handler(ctypes.addressof(frame)) == 1
    assert "XLA has version 1 of its interface for handlers, expected 0" in xla.errors.pop()


@pytest.mark.archs("cpu")
def test_device_memory_needs_a_session_there():
    function = JaxFunction(wave, {"out": "u"}, {})
    buffers = [DeviceBuffer(4096, np.dtype(np.float32), (n,), 1) for n in (5, 2, 5)]
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="lies in memory that this back end does not use in place"):
        jax_calls.run(jax_calls.number_of(("launch", of(2, function, ((5,),)), (), ())), buffers, buffers[2:])

"""Memory of the process stays flat in loops that upload, copy, fill, allocate and free without a launch or a `sync` between them."""

import gc
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import spirograd as sg

pytestmark = [
    pytest.mark.usefixtures("session"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm"),
]

N = 3 << 20
FEW = N // 64  # elements that kernels touch: whole arrays are made, moved and saved, whatever is computed with them
MB = 1 << 20
REPEATS = 50  # of 12 MB each
MOST = 200 * MB  # a third of what is moved; pipelining and caches take some


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _growth(step: Callable[[int], None]) -> int:
    """How many bytes more than at first the process has at most while ``step`` is repeated."""
    for i in range(2):
        step(i)
    sg.sync()
    gc.collect()
    first = most = _resident()
    for i in range(REPEATS):
        step(i + 2)
        most = max(most, _resident())
    sg.sync()
    return max(most, _resident()) - first


def _upload():
    x, data = sg.field(sg.f32, N), np.ones(N, np.float32)
    return lambda i: x.from_numpy(data)


def _upload_and_sync():
    x, data = sg.field(sg.f32, N), np.ones(N, np.float32)

    def step(i):
        x.from_numpy(data)
        sg.sync()

    return step


def _upload_ndarray():
    x, data = sg.ndarray(sg.f32, N), np.ones(N, np.float32)
    return lambda i: x.from_numpy(data)


def _upload_vectors():
    x, data = sg.Vector.field(3, sg.f32, N // 3), np.ones((N // 3, 3), np.float32)
    return lambda i: x.from_numpy(data)


def _download():
    x = sg.field(sg.f32, N)
    return lambda i: x.to_numpy()


def _fill_with_other_values():
    x = sg.field(sg.f32, N)
    return lambda i: x.fill(float(i))


def _copy_within_one_tree():
    x, y = sg.field(sg.f32, N), sg.field(sg.f32, N)
    y.fill(1.0)
    return lambda i: x.copy_from(y)


def _temporary_ndarray():
    @sg.kernel
    def increase(a: sg.types.ndarray()):
        for i in range(FEW):
            a[i] += 1.0

    def step(i):
        increase(sg.ndarray(sg.f32, N))

    return step


def _temporary_ndarray_that_is_filled():
    return lambda i: sg.ndarray(sg.f32, N).fill(3.0)


def _temporary_ndarray_with_upload():
    data = np.ones(N, np.float32)
    return lambda i: sg.ndarray(sg.f32, N).from_numpy(data)


def _temporary_tree():
    def step(i):
        builder = sg.FieldsBuilder()
        x = sg.field(sg.f32)
        builder.dense(sg.i, N).place(x)
        tree = builder.finalize()
        x.fill(2.0)
        tree.destroy()

    return step


def _array_of_numpy():
    data = np.ones(N, np.float32)

    @sg.kernel
    def increase(a: sg.types.ndarray()):
        for i in range(FEW):
            a[i] += 1.0

    return lambda i: increase(data)


def _tape():
    x, loss = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def scale():
        for i in range(FEW):
            x[i] = x[i] * x[i]

    @sg.kernel
    def total():
        for i in range(FEW):
            loss[None] += x[i]

    def step(i):
        with sg.ad.Tape(loss):
            scale()
            total()

    return step


PROGRAMS = [
    _upload,
    _upload_and_sync,
    _upload_ndarray,
    _upload_vectors,
    _download,
    _fill_with_other_values,
    _copy_within_one_tree,
    _temporary_ndarray,
    _temporary_ndarray_that_is_filled,
    _temporary_ndarray_with_upload,
    _temporary_tree,
    _array_of_numpy,
    _tape,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__.strip("_"))
@pytest.mark.archs("cpu", "vulkan", "wgpu")
def test_memory_is_flat(program, monkeypatch):
    monkeypatch.setenv("SG_CHECK_TAPES", "0")  # a check waits for launches
    assert _growth(program()) < MOST


@pytest.mark.archs("cpu", "vulkan", "wgpu")
def test_a_copy_in_pieces_is_exact():
    """Larger than one piece of a copy within one buffer."""
    n = 9 << 20
    x, y = sg.field(sg.i32, n), sg.field(sg.i32, n)
    y.from_numpy(np.arange(n, dtype=np.int32))
    x.copy_from(y)
    y.fill(7)
    assert (x.to_numpy() == np.arange(n)).all()


def test_uploads_without_a_launch_are_seen(session):
    x = sg.field(sg.i32, 100)
    for i in range(5):
        x.from_numpy(np.full(100, i, np.int32))
        sg.sync()
    assert (x.to_numpy() == 4).all()
    x.fill(9)
    x.from_numpy(np.full(100, 8, np.int32))
    assert x[50] == 8

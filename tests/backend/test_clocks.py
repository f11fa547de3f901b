"""The clock of the device, read in kernels."""

import numpy as np
import pytest

import spirograd as sg

LINE = sg.types.ndarray(sg.i64, ndim=1)


@pytest.fixture
def clocked(session):
    if session.arch == "wgpu":
        pytest.skip("wgpu has no clock")
    return session


def test_it_goes_up(clocked):
    n = 37
    x = sg.field(sg.f32, n)

    @sg.kernel
    def read(marks: LINE, work: sg.i32):
        for i in range(n):
            a = sg.clock_counter()
            for _ in range(work):
                x[i] = 0.5 * x[i] + 1.0
            b = sg.clock_counter()
            marks[3 * i] = a
            marks[3 * i + 1] = b
            marks[3 * i + 2] = sg.clock_counter()

    marks = sg.ndarray(sg.i64, 3 * n)
    for _ in range(3):
        read(marks, 1000)
        a, b, c = marks.to_numpy().reshape(n, 3).T
        assert (a > 0).all() and (a < b).all() and (b <= c).all()
    if clocked.arch != "interpreter":  # which counts readings
        shortest = [(marks.to_numpy()[1::3] - marks.to_numpy()[::3]).min() for work in (0, 20_000) for _ in [read(marks, work)]]
        assert shortest[1] > 20 * shortest[0]


def test_readings_are_not_shared_nor_left_out(clocked):
    """In code that is serial, outside of loops, in functions, and in branches."""

    @sg.func
    def now():
        return sg.clock_counter()

    @sg.kernel
    def read(marks: LINE, deep: sg.i32):
        marks[0] = sg.clock_counter()
        marks[1] = now()
        for i in range(1):
            if deep > 0:
                marks[2] = now()
        marks[3] = sg.clock_counter()

    marks = sg.ndarray(sg.i64, 4)
    read(marks, 1)
    found = marks.to_numpy()
    assert (np.diff(found) >= 0).all() and found[3] > found[0] > 0
    if clocked.arch == "interpreter":
        assert np.diff(found).tolist() == [1, 1, 1]


def test_gradients_of_a_kernel_that_reads_it(clocked):
    x = sg.field(sg.f32, 4, needs_grad=True)
    loss = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def square(marks: LINE):
        for i in x:
            loss[None] += x[i] * x[i]
            marks[i] = sg.clock_counter()

    marks = sg.ndarray(sg.i64, 4)
    x.from_numpy(np.arange(4, dtype=np.float32))
    with sg.ad.Tape(loss):
        square(marks)
    assert x.grad.to_numpy().tolist() == [0, 2, 4, 6]
    assert (marks.to_numpy() > 0).all()


def test_in_groups(clocked):
    n = 64

    @sg.kernel
    def read(marks: LINE, out: LINE):
        sg.loop_config(block_dim=32)
        for i in range(n):
            shared = sg.simt.block.SharedArray((32,), sg.i64)
            shared[i % 32] = sg.clock_counter()
            sg.simt.block.sync()
            out[i] = sg.clock_counter() - shared[i % 32]
            marks[i] = shared[31 - i % 32]

    marks, out = sg.ndarray(sg.i64, n), sg.ndarray(sg.i64, n)
    read(marks, out)
    assert (marks.to_numpy() > 0).all() and (out.to_numpy() >= 0).all()


def test_what_is_refused(session):
    @sg.kernel
    def read(marks: LINE):
        for i in marks:
            marks[i] = sg.clock_counter()

    if session.arch == "wgpu":
        with pytest.raises(sg.SpirogradUnsupportedError, match=r"`clock_counter` cannot be compiled[\s\S]*marks\[i\] = "):
            read(sg.ndarray(sg.i64, 3))
    with pytest.raises(sg.SpirogradRuntimeError, match="`clock_counter` reads the clock of the device: call it in a kernel"):
        sg.clock_counter()
    if session.arch == "cuda":
        assert 1e8 < sg.clock_freq_hz() < 1e10
    else:
        with pytest.raises(sg.SpirogradUnsupportedError, match=f"the rate of the clock is not known on `{session.arch}`"):
            sg.clock_freq_hz()

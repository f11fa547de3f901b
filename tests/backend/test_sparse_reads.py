"""How kernels read sparse fields: what the IR says, and that derivatives see active cells only."""

import numpy as np

import spirograd as sg


def test_reads_of_floats_have_no_selection(session):
    """The null cell is zero. Only a derivative has to know whether a cell is active."""
    x, y = sg.field(sg.f32, needs_grad=True), sg.field(sg.f32, 64, needs_grad=True)
    sg.root.pointer(sg.i, 8).dense(sg.i, 8).place(x, x.grad)

    @sg.kernel
    def read():
        for i in range(64):
            y[i] = 2.0 * x[(i * 7) % 64]

    for i in range(16):
        x[i] = i + 1.0
    read()
    values = np.concatenate([np.arange(1.0, 17.0), np.zeros(48)])
    np.testing.assert_array_equal(y.to_numpy(), 2.0 * values[np.arange(64) * 7 % 64])
    if "offload.ir" in read.stages():  # the interpreter runs the kernel as it is
        assert "select(" not in read.ir("offload")
    y.grad.fill(3.0)
    read.grad()
    np.testing.assert_array_equal(x.grad.to_numpy(), np.where(np.arange(64) < 16, 6.0, 0.0))
    x[40] = 1.0  # The gradient of a new cell is zero: nothing was added to the null cell.
    assert x.grad[40] == 0.0
    y.grad.fill(3.0)
    read.grad()
    np.testing.assert_array_equal(x.grad.to_numpy()[40:48], np.full(8, 6.0))

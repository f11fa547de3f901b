"""Tapes that repeat an earlier one follow its writes of Python, and launches that draw random numbers, too."""

from __future__ import annotations

import random

import numpy as np
import pytest

import spirograd as sg

N = 12


@pytest.mark.parametrize("seed", range(3))
def test_writes_are_followed(session, followed, seed):
    """Fills, copies and writes of elements at the same places are part of the sequence; what they write may differ."""
    x, y, z, loss = (sg.field(sg.f32, shape, needs_grad=True) for shape in (N, N, N, ()))

    @sg.kernel
    def multiply():
        for i in y:
            y[i] = y[i] * x[i] + z[i] * z[i]

    @sg.kernel
    def measure():
        for i in y:
            loss[None] += y[i] * y[i] * z[i]

    def once(k, change=None):
        start, value = np.linspace(0.5, 1.0, N) + 0.01 * k, 0.25 + 0.05 * k
        x.from_numpy(start.astype(np.float32))
        z.fill(0.5)
        with sg.ad.Tape(loss):
            y.copy_from(x)
            multiply()
            z.fill(value)
            multiply()
            z[2] = 0.125
            if change == "another value":
                z[3] = 0.5
            if change != "one less":
                y.copy_from(z if change == "another source" else y)
            multiply()
            z.fill(2.0 * value)
            measure()
            if change == "one more":
                x.fill(0.0)
        first = value * np.ones(N)
        last = first.copy()
        last[2] = 0.125
        if change == "another value":
            last[3] = 0.5
        a = start * start + 0.25
        b = a * start + first**2
        slope = (2 * start) * start + a
        if change == "another source":
            b, slope = last, np.zeros(N)
        y_end = b * start + last**2
        np.testing.assert_allclose(x.grad.to_numpy(), 2 * y_end * 2 * value * (slope * start + b), rtol=2e-5, err_msg=str(change))
        np.testing.assert_allclose(y.to_numpy(), y_end, rtol=2e-5)
        np.testing.assert_allclose(z.to_numpy(), 2 * value, rtol=1e-6)

    for k in range(4):
        once(k)
    if session.native is not None and session.native.on_host:
        assert followed == {"launches": 8, "missed": 0}
    changes = ["another value", "one less", "another source", "one more"]
    random.Random(seed).shuffle(changes)
    for k, change in enumerate(changes):
        once(k, change)
        for again in range(3):
            once(again)


def test_random_numbers_of_followed_launches(session, followed):
    """Each tape draws numbers of its own, which its reverse pass draws again, also where the tape leaves the sequence."""
    x, y, loss = (sg.field(sg.f32, shape, needs_grad=True) for shape in (N, N, ()))

    @sg.kernel
    def scale():
        for i in x:
            y[i] = x[i] * sg.random()

    @sg.kernel
    def measure():
        for i in y:
            loss[None] += y[i]

    seen = []
    for k in range(7):
        x.fill(2.0)
        with sg.ad.Tape(loss):
            for _ in range(2):
                scale()
                measure()
            last = y.to_numpy()
            if k == 5:
                scale()
        seen.append(x.grad.to_numpy())
        total = loss[None]
        assert abs(seen[-1].sum() * 2.0 - total) < 1e-4 * total
        assert (seen[-1] > last / 2.0).all()
    assert len({tuple(gradients) for gradients in seen}) == 7
    if session.native is not None and session.native.on_host:
        assert followed == {"launches": 4 * 4, "missed": 1}

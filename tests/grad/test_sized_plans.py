"""Which plan a derivative gets: what its loops are, and what runs it, decide."""

from __future__ import annotations

import numpy as np
from grad.chains import AMPLIFIED, advance, advanced, chains, starts

import spirograd as sg
from spirograd.derivatives.plan import GrowthLimit, UnplannedAdstacks
from spirograd.derivatives.sized_plans import DeviceSized, HostSized

N = 33


def gradient(kernel, x, y, trips, *args):
    x.from_numpy(starts(N))
    x.grad.fill(0.0)
    y.grad.fill(1.0)
    kernel.grad(*args)
    np.testing.assert_allclose(x.grad.to_numpy(), AMPLIFIED * advanced(starts(N), trips)[1], rtol=3e-3, atol=1e-3)
    return kernel.grad._last.plan


def test_plans(session):
    """A kernel without loops, one whose bound is an argument, and one whose bounds lie in memory."""
    x, y = chains(N)
    trips = sg.field(sg.i32, N)

    @sg.kernel
    def once():
        for i in x:
            y[i] = AMPLIFIED * advance(x[i])

    @sg.kernel
    def known(n: sg.i32):
        for i in x:
            v = x[i]
            for _ in range(n):
                v = advance(v)
            y[i] = AMPLIFIED * v

    @sg.kernel
    def counted():
        for i in x:
            v = x[i]
            for _ in range(trips[i]):
                v = advance(v)
            y[i] = AMPLIFIED * v

    many = np.arange(N) % 7
    trips.from_numpy(many.astype(np.int32))
    assert type(gradient(once, x, y, 1)) is UnplannedAdstacks
    plans = [gradient(known, x, y, n, n) for n in (5, 3)]
    plans.append(gradient(counted, x, y, many))
    if session.arch == "interpreter":
        expected = [UnplannedAdstacks] * 3
    elif session.arch == "cpu":
        expected = [HostSized] * 3
    else:
        expected = [HostSized] * 2 + [DeviceSized]
    assert [type(plan) for plan in plans] == expected
    assert (plans[2].adstack_bytes > 0) == (session.arch != "interpreter")


def test_limits_of_adstacks_that_grow():
    limit = GrowthLimit(100, (("a", 8, 0), ("b", 4, 1)))
    assert limit.error("kernel", (10, 5)) is None
    error = limit.error("kernel", (10, 30))
    assert error is not None
    assert (error.adstack, error.share) == ("b", 0.5)
    assert "the adstacks of kernel need 200 bytes, and may have 100: 120 alone for one of this loop" in str(error)

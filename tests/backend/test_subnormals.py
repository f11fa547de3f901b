"""The option `subnormals`: whether tasks on the CPU take subnormal floats for zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.compat import quadrants as qd
from spirograd.compat import taichi as ti

N = 100_000


def scaled(library: Any, t: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """A parallel loop's products with small numbers, the numbers, and the product of a serial task."""
    tiny = float(np.finfo(t.np).tiny)
    x, y = library.field(t, N), library.field(t, ())

    @library.kernel
    def scale(a: t, b: t):
        y[None] = a * b
        for i in x:
            x[i] *= b

    numbers = tiny * np.linspace(0.1, 8, N).astype(t.np)
    x.from_numpy(numbers)
    scale(tiny, 0.25)
    return x.to_numpy(), numbers, float(y[None])


@pytest.mark.parametrize("t", [sg.f32, sg.f64], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_subnormals(arch: str, t: Any, threads: int) -> None:
    """The mode of a thread is restored after each task, so that Python computes with subnormals after a launch."""
    tiny = np.finfo(t.np).tiny
    for library, options in ((sg, {}), (sg, {"subnormals": "flush"}), (sg, {"subnormals": "keep"}), (ti, {}), (qd, {})):
        library.init(arch=arch, cpu_max_num_threads=threads, **options)
        found, numbers, product = scaled(library, t)
        flushes = library is not sg or options == {"subnormals": "flush"}
        exact = numbers * t.np.type(0.25)
        if arch == "cpu" and flushes:
            expected = np.where((numbers < tiny) | (exact < tiny), 0, exact)
            np.testing.assert_array_equal(found, expected)
            assert product == 0
        elif arch in ("cpu", "interpreter"):
            np.testing.assert_array_equal(found, exact)
            assert product == tiny / 4
        host = np.full(4, tiny, t.np) * t.np.type(0.5)
        assert host.all() and (host + host == tiny).all()


def test_kernels_without_float_arithmetic_keep_subnormals(arch: str) -> None:
    sg.init(arch=arch, subnormals="flush")
    x, y = sg.field(sg.f32, N), sg.field(sg.f32, N)

    @sg.kernel
    def copy():
        for i in x:
            y[i] = x[i]

    numbers = (np.finfo(np.float32).tiny * np.linspace(0.1, 2, N)).astype(np.float32)
    x.from_numpy(numbers)
    copy()
    np.testing.assert_array_equal(y.to_numpy(), numbers)


def test_the_option(arch: str) -> None:
    with pytest.raises(RuntimeError, match="`subnormals` is one of 'keep', 'flush', not 'x'"):
        sg.init(arch=arch, subnormals="x")

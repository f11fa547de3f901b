"""Debug mode tells where a gradient becomes NaN."""

from __future__ import annotations

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu


def test_line_and_index(arch: str) -> None:
    sg.init(arch=arch, debug=True, offline_cache=False)
    x = sg.field(sg.f32, 6, needs_grad=True)
    y = sg.field(sg.f32, 6, needs_grad=True)

    @sg.kernel
    def roots():
        for i in x:
            v = x[i]
            for j in range(3):
                v = sg.sqrt(v) * 2.0
            y[i] = v + x[i]

    x.from_numpy(np.array([1, 2, 3, -1, 5, 6], np.float32))
    roots()
    y.grad.fill(0.0)
    roots.grad()
    sg.sync()
    y.grad.fill(1.0)
    with pytest.raises(sg.SpirogradAssertionError, match=r"is NaN here, at index \(3, \d\)") as error:
        roots.grad()
        sg.sync()
    assert "v = sg.sqrt(v) * 2.0" in str(error.value)

"""Whether loops are fused changes no bit, though drivers simplify arithmetic and round parts of it together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import needs
import numpy as np
import pytest
from backend.test_fusion import ARCHS, tasks
from fuzz.run import load

import spirograd as sg
from spirograd.lang import context

pytestmark = [pytest.mark.archs(*ARCHS), pytest.mark.vulkan_or_wgpu, pytest.mark.optimized]


@pytest.mark.parametrize("first", ["x[i] + z[i]", "x[i] * 3.7", "sg.sqrt(abs(z[i]))", "1.0 / z[i]", "sg.exp(z[i])"])
def test_no_arithmetic_across_loops(arch: str, first: str) -> None:
    """Drivers that take (x + z) - x for z see the sum, rounded, as if it came from memory."""
    seconds = ("y[i] - x[i]", "y[i] + z[i]", "y[i] * y[i]", "1.0 / y[i]", "y[i] * 0.3", "y[i] + 0.3")

    def results(fuse: bool) -> list[Any]:
        sg.init(arch=arch, fuse_tasks=fuse, offline_cache=False)
        fields = {name: sg.field(sg.f32, shape=200) for name in "xyzwu"}
        values = np.random.default_rng(3).normal(size=(5, 200)).astype(np.float32)
        found = []
        for second in seconds:
            for name, value in zip(fields, values):
                fields[name].from_numpy(value)
            loops = (f"y[i] = {first}", f"w[i] = {second}", "y[i] += w[i]", "u[i] = y[i] - w[i]", "sg.atomic_add(u[i], 0.3)")
            source = "@sg.kernel\ndef k():\n" + "".join(f"    for i in range(200):\n        {loop}\n" for loop in loops)
            kernel = load(source, {"sg": sg, **fields})
            kernel()
            assert tasks(kernel) == (1 if fuse else 5)
            found += [field.to_numpy() for field in fields.values()]
        return found

    for mine, theirs in zip(results(True), results(False)):
        assert mine.tobytes() == theirs.tobytes()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1.0 / z[i]", "1.0 / z[i] + 0.3"),
        ("sg.sqrt(abs(z[i]))", "1.0 / sg.sqrt(abs(z[i]))"),
        ("sg.exp(z[i])", "sg.exp(z[i]) - x[i]"),
        ("x[i] / z[i]", "x[i] / z[i] - w[i] * 0.7"),
        ("sg.sin(x[i]) * z[i]", "sg.sin(x[i]) + sg.cos(x[i])"),
    ],
)
@pytest.mark.parametrize("fast_math", [True, False])
def test_arithmetic_that_loops_share(arch: str, first: str, second: str, fast_math: bool) -> None:
    """It is computed once, and used by both as it would be by each alone."""

    def results(fuse: bool) -> list[Any]:
        sg.init(arch=arch, fuse_tasks=fuse, fast_math=fast_math, offline_cache=False)
        fields = {name: sg.field(sg.f32, shape=200) for name in "xyzwu"}
        for name, values in zip(fields, np.random.default_rng(4).normal(size=(5, 200)).astype(np.float32)):
            fields[name].from_numpy(values)
        loops = "".join(f"    for i in range(200):\n        {name}[i] = {value}\n" for name, value in (("y", first), ("u", second)))
        kernel = load(f"@sg.kernel\ndef k():\n{loops}", {"sg": sg, **fields})
        kernel()
        assert tasks(kernel) == (1 if fuse else 2)
        return [fields[name].to_numpy() for name in "yu"]

    for mine, theirs in zip(results(True), results(False)):
        assert mine.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("t", [sg.f16, sg.f32, sg.f64], ids=str)
@pytest.mark.archs("vulkan", "wgpu")
def test_functions_of_drivers_for_graphics_cards(arch: str, t: Any, fuse: bool) -> None:
    """Their results are opaque, and sums are rounded as written, whether the loops are fused or not; loops without neighbours are left."""
    sg.init(arch=arch, fuse_tasks=fuse, offline_cache=False)
    needs.of_type(t)
    device = context.session().device
    device.caps = replace(device.caps, cpu_driver=False)
    x, y, z = (sg.field(t, shape=100) for _ in range(3))
    values = np.linspace(1.0, 3.0, 100).astype(t.np)
    x.from_numpy(values)

    @sg.kernel
    def both():
        for i in x:
            y[i] = sg.sqrt(x[i]) + 0.5
        for i in x:
            z[i] = 1.0 / y[i] - x[i]

    @sg.kernel
    def alone():
        for i in x:
            y[i] = sg.sqrt(x[i]) + 0.5

    both()
    assert tasks(both) == (1 if fuse else 2)
    text = both.ir("offload")
    alone()
    assert text.count("opaque(") == (3 if fuse else 2)  # the third one is what is forwarded
    assert text.count('"exact"') == 3
    assert "opaque(" not in alone.ir("offload")
    wide = values.astype(np.float64)
    want = 1 / (np.sqrt(wide) + 0.5) - wide
    np.testing.assert_allclose(z.to_numpy().astype(np.float64), want, rtol=0, atol={16: 5e-3, 32: 1e-6, 64: 1e-14}[t.bits])

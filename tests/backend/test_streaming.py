"""Large maps of the CPU write past its caches: which stores do, and that they write what others would."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import pytest
from fuzz.run import load

import spirograd as sg
from spirograd.analysis import loop_costs
from spirograd.llvmgen import emit_stream

pytestmark = [
    pytest.mark.optimized,
    pytest.mark.archs("cpu"),  # it is about the code for CPUs
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="streaming stores are for x86"),
]


def streams(kernel: Any) -> int:
    """How many stores of ``kernel`` bypass caches."""
    return kernel.stages()["kernel.ll"].count("!nontemporal") // emit_stream._PER_TRIP


@pytest.fixture(autouse=True)
def any_size(session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_costs, "LEAST_STREAM", 1)


@pytest.mark.parametrize("n", [1, 7, 255, 256, 257, 1000, 70000])
@pytest.mark.parametrize("t", [sg.i8, sg.i16, sg.i32, sg.i64, sg.f32, sg.f64], ids=str)
def test_maps(t: Any, n: int) -> None:
    x, y, z = (sg.field(t, shape=n) for _ in range(3))
    values = np.random.default_rng(0).integers(-40, 40, n).astype(t.np)
    x.from_numpy(values)

    @sg.kernel
    def double():
        for i in x:
            y[i] = x[i] + x[i]
            z[i] = x[i] - 3

    for _ in range(2):
        double()
        np.testing.assert_array_equal(y.to_numpy(), values + values)
        np.testing.assert_array_equal(z.to_numpy(), values - 3)
        np.testing.assert_array_equal(x.to_numpy(), values)
        values = values[::-1].copy()
        x.from_numpy(values)
    assert streams(double) == (2 if n > 64 else 0)  # fields of a few elements do not begin at multiples of a vector


@pytest.mark.parametrize("n", [256, 1000, 70000])
def test_edges(n: int) -> None:
    """The iterations between the edges bypass caches, those at the edges do not."""
    x, y = sg.field(sg.f32, shape=n), sg.field(sg.f32, shape=n)
    x.from_numpy(np.arange(n, dtype=np.float32))

    @sg.kernel
    def shifted():
        for i in x:
            y[i] = 2.0 * sg.max(i - 1, 0) + x[i]

    shifted()
    i = np.arange(n)
    np.testing.assert_array_equal(y.to_numpy(), 2.0 * np.maximum(i - 1, 0) + i)
    assert streams(shifted) == 1 and 'vectorise="rest"' in shifted.ir("loops")


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("y[i] = x[i]", 1),
        ("y[i] = x[p[i]]", 1),
        ("x[i] = x[i] + 1", 0),
        ("y[i] += x[i]", 0),
        ("y[p[i]] = x[i]", 0),
        ("y[i] = x[i]; w[p[i]] = 5", 0),
        ("y[i + 8] = x[i]", 1),
        ("y[i + 1] = x[i]", 0),
        ("y[i] = x[i]; w[i] = y[n - 1 - i]", 0),
        ("y[i] = x[i]; x[i] = 7", 1),
        ("if x[i] > 2:\n            y[i] = x[i]", 0),
        ("y[i] = x[i] if x[i] > 2 else 3", 1),
        ("y[i] = x[i]; total[None] += x[i]", 0),
    ],
)
def test_which_stores(body: str, count: int) -> None:
    n = 3000
    names = {name: sg.field(sg.i32, shape=n + 8) for name in "xy"} | {name: sg.field(sg.i32, shape=n) for name in "wp"}
    names |= {"total": sg.field(sg.i32, shape=())}
    rng = np.random.default_rng(1)
    before = {name: rng.integers(0, 5, field.shape).astype(np.int32) for name, field in names.items()}
    before["p"] = rng.permutation(n).astype(np.int32)
    for name, values in before.items():
        names[name].from_numpy(values)
    if "n - 1 - i" in body:
        before["y"][:n] = before["x"][:n] = 4  # so that the order of iterations shows nowhere
        names["x"].from_numpy(before["x"])
        names["y"].from_numpy(before["y"])
    kernel = load(f"@sg.kernel\ndef k():\n    for i in range({n}):\n        {body}\n", {"sg": sg, "n": n, **names})
    kernel()
    want = {name: values.copy() for name, values in before.items()}
    want["total"] = want["total"].reshape(1)
    code = compile(body.replace("[None]", "[0]"), "body", "exec")
    for i in range(n):
        exec(code, {"n": n, "i": i, **want})
    for name, field in names.items():
        np.testing.assert_array_equal(field.to_numpy().reshape(-1), want[name].reshape(-1), err_msg=name)
    assert streams(kernel) == count


def test_only_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found = []
    for n in (1 << 22, 1 << 23):
        x, y = sg.field(sg.f32, shape=n), sg.field(sg.f32, shape=n)

        @sg.kernel
        def copy(x: sg.template(), y: sg.template()):
            for i in x:
                y[i] = x[i]

        x.fill(2.5)
        copy(x, y)
        found.append(streams(copy))
        assert (y.to_numpy() == 2.5).all()
    assert found == [0, 1]

"""Gradients of branches that stand in each other: right, and of a size that grows with the program alone."""

import importlib.util
import pathlib
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.autodiff import differentiate


def chain(folder: pathlib.Path, depth: int, used: bool) -> Any:
    """The kernel ``run`` with an `elif` chain; ``used``: operations on the results stand between the levels."""
    lines = ["import spirograd as sg", "def make(x, y):", "  @sg.kernel", "  def run():", "    for i in x:", "      a, b = x[i], 1.0"]
    for k in range(depth):
        pad = "      " + "  " * (k if used else 0)
        lines += [f"{pad}{'if' if used or not k else 'elif'} a < {k}.5:", f"{pad}  b = a * {k + 1}.25 + b"]
        lines += [f"{pad}else:"] if used else []
    if used:
        lines.append("      " + "  " * depth + "b = b * a")
        lines += ["      " + "  " * k + "b = b * 0.5 + a" for k in reversed(range(depth))]
    lines += ["      y[i] = b * b", "  return run"]
    path = folder / f"chain{depth}{used}.py"
    path.write_text("\n".join(lines) + "\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make


def slope(a: float, depth: int, used: bool) -> float:
    """The derivative of what the chain computes at ``a``."""
    k = next((k for k in range(depth) if a < k + 0.5), depth)
    b, d = (a * (k + 1.25) + 1.0, k + 1.25) if k < depth else (a, 1.0) if used else (1.0, 0.0)
    for _ in range(min(k, depth - 1) + 1 if used else 0):
        b, d = b * 0.5 + a, d * 0.5 + 1.0
    return 2.0 * b * d


@pytest.mark.parametrize("used", [False, True])
def test_the_gradient_of_each_level(session, tmp_path: pathlib.Path, used: bool) -> None:
    depth = 12
    values = np.array([0.0, 1.0, 2.25, 5.0, depth - 1.0, depth + 3.0], np.float32)
    x, y = (sg.field(sg.f32, len(values), needs_grad=True) for _ in range(2))
    x.from_numpy(values)
    y.grad.fill(1.0)
    chain(tmp_path, depth, used)(x, y).grad()
    np.testing.assert_allclose(x.grad.to_numpy(), [slope(float(a), depth, used) for a in values], rtol=1e-5)


def test_a_chain_is_not_run_as_often_as_it_is_deep(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    clean = differentiate.clean
    monkeypatch.setattr(differentiate, "clean", lambda kernel, ctx: sizes.append(sum(1 for _ in kernel.walk())) or clean(kernel, ctx))
    sg.init(arch=sg.cpu)
    for depth in (20, 40, 80):
        x, y = (sg.field(sg.f32, 3, needs_grad=True) for _ in range(2))
        chain(tmp_path, depth, False)(x, y).grad()
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])

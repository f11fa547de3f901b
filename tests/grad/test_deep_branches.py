"""Gradients of branches that stand in each other: right, and of a size that grows with the program alone."""

import importlib.util
import pathlib
from typing import Any

import needs
import numpy as np
import pytest
from grad.check import Program, check, on_all_with_types

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
    return made(folder, f"chain{depth}{used}", lines)


def made(folder: pathlib.Path, name: str, lines: list[str]) -> Any:
    """The function ``make`` of a module with these lines."""
    path = folder / f"{name}.py"
    path.write_text("\n".join(lines) + "\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.make


def nest(folder: pathlib.Path, depth: int, around: str = "", inside: str = "") -> Any:
    """The kernel ``run`` with branches in each other, behind each of which products take its results: a float, a vector and an integer.
    ``around``: a loop around the nest; ``inside``: one in each branch."""
    lines = ["import spirograd as sg", "def make(x, y, t):", "  @sg.kernel", "  def run():", "    for i in x:"]
    lines += ["      a, b, m, w = x[i], sg.cast(1.0, t), 0, sg.Vector([sg.cast(1.0, t), sg.cast(2.0, t)])"]
    pad = "      "
    if around:
        lines.append(f"{pad}{around}")
        pad += "  "
    for k in range(depth):
        lines += [f"{pad}if a < {k}.5:", f"{pad}  b = b * 0.75 + a * 0.25", f"{pad}  m = {k} % 3", f"{pad}else:"]
        pad += "  "
        lines += [f"{pad}{inside}", f"{pad}  b = sg.sin(b) + 0.5"] if inside else []
        lines.append(f"{pad}w = w * 0.5 + a * 0.125")
    lines.append(f"{pad}b = b * 0.5 + a * b * 0.125")
    for _ in range(depth):
        pad = pad[:-2]
        lines += [f"{pad}b = sg.sin(b * w[0] + 0.5)", f"{pad}w = sg.cos(w * b * 0.5 + m)", f"{pad}m = (m * 5 + 1) % 7"]
    lines += ["      y[i] = b * w[1]", "  return run"]
    return made(folder, f"nest{depth}", lines)


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


@pytest.mark.vulkan_or_wgpu
@on_all_with_types
@pytest.mark.parametrize(
    ("around", "inside"), [("", ""), ("for _ in range(9):", ""), ("", "for _ in range(m + 2):")], ids=["alone", "in a loop", "with loops"]
)
def test_results_of_many_kinds(arch: str, t: Any, tmp_path: pathlib.Path, around: str, inside: str) -> None:
    depth = 9
    make = nest(tmp_path, depth, around, inside)

    def case(t: Any) -> Program:
        x, y = (sg.field(t, 7, needs_grad=True) for _ in range(2))
        return Program(make(x, y, t), [x, y], low=0.0, high=depth + 1.0)

    case.__qualname__ += around + inside  # by which its Jacobian is kept
    sg.init(arch=arch)
    needs.of_type(t)
    check(case, t, trials=1, tolerance=5e-3 if t is sg.f32 else None)


@pytest.mark.usefixtures("session")
@pytest.mark.archs("cpu", "vulkan")
def test_the_second_derivative_of_a_nest(tmp_path: pathlib.Path) -> None:
    """Forward mode goes through what the gradient keeps; against differences of the gradient."""
    depth, step = 9, 1e-6
    x, y, loss = (sg.field(sg.f64, n, needs_grad=True, needs_dual=True) for n in (5, 5, ()))
    run = nest(tmp_path, depth)(x, y, sg.f64)

    @sg.kernel
    def total():
        for i in y:
            loss[None] += y[i]

    def gradient(values: np.ndarray) -> np.ndarray:
        x.from_numpy(values)
        with sg.ad.Tape(loss):
            run()
            total()
        return x.grad.to_numpy()

    values, direction = np.array([0.1, 3.3, 5.2, 8.9, 12.0]), np.array([1.0, -0.5, 2.0, 0.25, 1.5])
    wanted = (gradient(values + step * direction) - gradient(values - step * direction)) / (2 * step)
    x.from_numpy(values)
    found = sg.ad.hvp(lambda: (run(), total()), loss, x, direction)
    np.testing.assert_allclose(found.to_numpy() if hasattr(found, "to_numpy") else found, wanted, rtol=1e-5, atol=1e-7)


def test_operations_of_a_nest_are_linear_in_its_depth(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before what no derivative needs is removed, and after."""
    sizes, kept = [], []

    def counted(kernel, ctx):
        sizes.append(sum(1 for _ in kernel.walk()))
        cleaned = clean(kernel, ctx)
        kept.append(sum(1 for _ in cleaned.walk()))
        return cleaned

    clean = differentiate.clean
    monkeypatch.setattr(differentiate, "clean", counted)
    sg.init(arch=sg.cpu, opt_level=0)
    for depth in (10, 20, 40):
        x, y = (sg.field(sg.f32, 3, needs_grad=True) for _ in range(2))
        nest(tmp_path, depth)(x, y, sg.f32).grad()
    for counts in (sizes, kept):
        assert counts[2] - counts[1] <= 2.2 * (counts[1] - counts[0])

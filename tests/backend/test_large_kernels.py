"""Kernels that are deeply nested, as programs write them that generate code."""

import importlib.util
import pathlib
from typing import Any

import numpy as np
import pytest

import spirograd as sg

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.optimized]

DEPTH = 300
LEVELS = 70  # that every driver in use here compiles


def built(folder: pathlib.Path, lines: list[str]) -> Any:
    """The kernel ``run(x)`` with this body."""
    path = folder / "large.py"
    header = ["import spirograd as sg", "@sg.kernel", "def run(x: sg.types.ndarray(sg.f32, 1)):", "    for i in x:"]
    path.write_text("\n".join([*header, *(f"        {line}" for line in lines), ""]))
    spec = importlib.util.spec_from_file_location("large", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.run


def expect(session, run: Any, depth: int, x: np.ndarray, want: list[float]) -> None:
    """``run(x)`` gives ``want``, or an error where the driver goes wrong at this depth."""
    limit = session.device.caps.nesting_limit
    if limit and depth > limit:
        with pytest.raises(sg.SpirogradUnsupportedError, match=f"nested more than {limit} levels"):
            run(x)
        return
    run(x)
    np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize("depth", [LEVELS, DEPTH])
def test_a_long_chain_of_elif(session, tmp_path, depth: int) -> None:
    """Each `elif` stands inside of the `else` before it."""
    lines = ["a = x[i]"]
    for k in range(depth):
        lines += [f"{'el' if k else ''}if a < {k}.5:", f"    x[i] = {k}.0 * a"]
    x = np.array([0.0, 1.0, 2.0, depth - 1.0, depth + 1.0], np.float32)
    expect(session, built(tmp_path, lines), depth, x, [0.0, 1.0, 4.0, (depth - 1.0) ** 2, depth + 1.0])


@pytest.mark.archs("cpu")  # by llvmgen
def test_a_chain_of_elif_is_cut(session, tmp_path) -> None:
    """Into functions, which take and return values of several types."""
    depth = 1000  # more than run as lanes
    lines = ["a, b, count, found = x[i], 1.0, 0, False"]
    for k in range(depth):
        lines += [f"{'el' if k else ''}if a < {k}.5:", f"    b, count, found = a * {k % 9}.0 + b, {k} + i, True"]
    run = built(tmp_path, [*lines, "x[i] = b + count if found else -1.0"])
    x = np.array([0.0, 1.0, 123.0, depth - 1.0, depth + 1.0], np.float32)
    want = [k * (k % 9) + 1 + k + i if k < depth else -1 for i, k in enumerate(x.astype(int))]
    expect(session, run, 0, x, want)
    assert run.llvm().count(".part") > 4


@pytest.mark.parametrize("depth", [LEVELS, DEPTH])
def test_a_long_condition(session, tmp_path, depth: int) -> None:
    run = built(tmp_path, [f"if {' and '.join(f'x[i] != {k}.0' for k in range(depth))}:", "    x[i] = -1.0"])
    x = np.array([0.0, 3.0, 3.5, depth - 1.0, depth], np.float32)
    expect(session, run, depth, x, [0.0, 3.0, -1.0, depth - 1.0, -1.0])


def test_a_long_sum(session, tmp_path) -> None:
    run = built(tmp_path, [f"x[i] = {' + '.join(f'x[i] * {k}.0' for k in range(DEPTH))}"])
    x = np.array([0.0, 1.0, 2.0], np.float32)
    run(x)
    np.testing.assert_array_equal(x, np.array([0.0, 1.0, 2.0]) * sum(range(DEPTH)))

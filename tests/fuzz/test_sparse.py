"""Random programs on sparse trees; SG_FUZZ_EXAMPLES for more, ``python -m tests.fuzz sparse`` for long runs."""

from __future__ import annotations

import os
import random

import needs
import numpy as np
import pytest

import spirograd as sg
from spirograd.runtime import loader

from . import sparse, sparse_gradients, sparse_programs
from .sparse_programs import Model

EXAMPLES = int(os.environ.get("SG_FUZZ_EXAMPLES", "2"))


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_random_programs(seed: int) -> None:
    needs.need("cpu")
    program = sparse_programs.write(seed)
    archs = [name for name in ("interpreter", "cpu", ("vulkan", "wgpu")[seed % 2]) if loader.available(name) is None]
    if sparse.failure(program, archs):
        short = sparse.shortened(program, archs)
        pytest.fail(f"{sparse.failure(short, archs)}\n{short!r}", pytrace=False)


# The second one reads elements of y, not active before the kernel, which overwrites them.
GRADIENTS = [
    *map(sparse_gradients.write, range(EXAMPLES)),
    sparse_gradients.Program((9, 3), (5, 17), ("two_loops",), ((0, 1),)),
]


@pytest.mark.parametrize("program", GRADIENTS, ids=lambda program: "-".join(program.steps))
def test_random_gradients(program: sparse_gradients.Program) -> None:
    needs.need("cpu")
    archs = [name for name in ("cpu", ("vulkan", "wgpu")[program.trees[0] % 2]) if loader.available(name) is None]
    if sparse_gradients.failure(program, archs):
        short = sparse_gradients.shortened(program, archs)
        pytest.fail(f"{sparse_gradients.failure(short, archs)}\n{short!r}", pytrace=False)


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself."""
    program = sparse_gradients.Program((0, 0), (5,), ("in_place", "square"), ((0, 1),))
    monkeypatch.setattr(sparse_gradients, "STEP", 0.5)
    assert "difference quotient" in sparse_gradients.failure(program, ["cpu"])


def test_a_wrong_element_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself, and that programs are shortened."""
    program = next(p for p in map(sparse_programs.write, range(100)) if len(p.steps) > 4 and p.steps[-1].kind == "add" and not p.debug)
    run = Model.run

    def off(self: Model, step: sparse_programs.Step, indices: list[tuple[int, ...]]) -> None:
        run(self, step, indices)
        if step.kind == "add" and self.values:
            self.values[next(iter(self.values))] += 1

    monkeypatch.setattr(Model, "run", off)
    assert "not" in sparse.failure(program, ["interpreter"])
    assert len(sparse.shortened(program, ["interpreter"]).steps) == 1


@pytest.mark.parametrize("arch", ["cpu", "vulkan", "wgpu"])
@pytest.mark.parametrize("rounds", [100, pytest.param(10_000, marks=pytest.mark.long)])
def test_rounds_without_growth(rounds: int, arch: str) -> None:
    """Cells and chunks that are given again and again, with memory for few."""
    needs.need(arch)
    sg.init(arch=getattr(sg, arch))
    x = sg.field(sg.i32)
    outer = sg.root.pointer(sg.i, 50, cells=4)
    node = outer.dynamic(sg.j, 30, 4, cells=16)
    node.place(x)

    @sg.kernel
    def fill(first: sg.i32, count: sg.i32):
        for k in range(4 * count):
            x[(first + k % 4) % 50].append(k)

    @sg.kernel
    def empty(first: sg.i32):
        for k in range(4):
            sg.deactivate(outer, [(first + k) % 50])

    chosen = random.Random(5)
    for _ in range(rounds):
        first, count = chosen.randrange(50), chosen.randint(1, 16)
        fill(first, count)
        if chosen.random() < 0.1:
            expected = [range(k, 4 * count, 4) for k in range(4)]
            found = x.to_numpy()
            assert all(sorted(found[(first + k) % 50, :count]) == list(numbers) for k, numbers in enumerate(expected))
            assert np.count_nonzero(found) <= 4 * count
        assert outer.cells_in.used[None] == 4 and node.cells_in.used[None] <= 16
        empty(first)
    sg.sync()
    assert outer.cells_in.used[None] == node.cells_in.used[None] == 0 and not x.to_numpy().any()

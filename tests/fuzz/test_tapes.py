"""Tapes of random sizes, launch after launch; SG_FUZZ_EXAMPLES for more, ``python -m tests.fuzz`` for long runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import needs
import numpy as np
import pytest
from cases import seeds

from spirograd.runtime import loader
from spirograd.runtime.freshness import Freshness

from . import gradients, tapes
from .tape_programs import INTEGERS, Program, Step, write

EXAMPLES = int(os.environ.get("SG_FUZZ_EXAMPLES", "1"))
AT_NIGHT = 6
LARGEST = 300  # elements, of programs that every run of the tests has


@pytest.fixture(scope="module", autouse=True)
def sessions() -> Iterator[None]:
    """Devices that the programs share."""
    needs.need("cpu")
    yield
    gradients.close()


@pytest.mark.parametrize("seed", seeds(EXAMPLES, max(EXAMPLES, AT_NIGHT)))
def test_gradients_with_tapes_of_random_sizes(seed: int) -> None:
    program = write(seed)
    program = replace(program, n=min(program.n, LARGEST))
    archs = [name for name in ("cpu", ("vulkan", "wgpu")[seed % 2]) if loader.available(name) is None]
    if tapes.failure(program, archs):
        short = tapes.shortened(program, archs, seconds=30)
        pytest.fail(f"{tapes.failure(short, archs)}\n{short!r}", pytrace=False)


CHAINS = """@sg.kernel
def k(n: sg.i32, m: sg.i32, a: sg.types.ndarray(sg.i32, 1)):
    for i in x:
        v = x[i]
        for _ in range(b[i]):
            v = sg.sin(v * w[i]) + 0.5 * x[i]
        y[i] += v
"""


def grown(n: int) -> Program:
    """Chains that are longer at the second launch."""
    first = tuple((name, "host", "same" if name in "be" else "zero", 3) for name in INTEGERS)
    return Program(CHAINS, 0, n, (Step(first, 1, False, True), Step((("b", "host", "large", 4),), 1, False, True)))


def test_a_wrong_gradient_of_one_element_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: one element of thousands is 1 % off, at the second launch."""
    assert tapes.check(grown(3000), ["cpu"])["compared, cpu"] == 2
    pull = tapes.Loaded.pull

    def off(self: tapes.Loaded, step: Step, adjoint: np.ndarray) -> None:
        pull(self, step, adjoint)
        if len(step.writes) == 1:
            i = int(np.argmax(np.abs(adjoint)))
            self.floats["x"].grad[i] *= 1.01

    monkeypatch.setattr(tapes.Loaded, "pull", off)
    assert "cpu, launch 1: 1 of 3000 elements of x.grad" in tapes.failure(grown(3000), ["cpu"])
    assert tapes.shortened(grown(3000), ["cpu"], seconds=5).n == 1


def test_sizes_of_another_launch_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: tapes as long as the first launch needed."""
    monkeypatch.setattr(Freshness, "key", lambda self, *_: ())
    assert tapes.failure(grown(17), ["cpu"])

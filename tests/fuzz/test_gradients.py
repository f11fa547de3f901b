"""Gradients of random kernels against finite differences; SG_FUZZ_EXAMPLES for more, ``python -m tests.fuzz`` for long runs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import needs
import pytest

from . import gradients
from .gradient_programs import write

EXAMPLES = int(os.environ.get("SG_FUZZ_EXAMPLES", "12"))
BATCH = 6


@pytest.fixture(scope="module", autouse=True)
def sessions() -> Iterator[None]:
    """Devices that the programs share."""
    needs.need("cpu")
    yield
    gradients.close()


@pytest.mark.parametrize("first", range(0, EXAMPLES, BATCH))
def test_gradients_of_random_kernels(first: int) -> None:
    for seed in range(first, first + BATCH):
        program = write(seed)
        archs = ["interpreter", "cpu"] if seed % 4 == 0 else ["interpreter"]
        if gradients.failure(program, archs):
            short = gradients.shortened(program, archs, seconds=30)
            pytest.fail(f"{gradients.failure(short, archs)}\n{short!r}", pytrace=False)


def test_a_wrong_gradient_is_found_and_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: gradients that are 1 % off."""
    pull = gradients.Loaded.pull
    monkeypatch.setattr(gradients.Loaded, "pull", lambda self, *args: 1.01 * pull(self, *args))
    found = gradients.failure(write(2), ["interpreter"])
    assert "the slope is" in found
    assert len(gradients.shortened(write(2), ["interpreter"], seconds=5).source) < len(write(2).source)

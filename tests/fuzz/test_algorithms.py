"""Random calls of algorithms, on every back end."""

from __future__ import annotations

import pytest
from cases import seeds

from . import algorithm_programs


@pytest.mark.archs("interpreter", "cpu", "vulkan", "cuda")  # the fuzzer has its own sessions
@pytest.mark.parametrize("seed", seeds(6, 200))
def test_algorithms(seed: int, arch: str) -> None:
    algorithm_programs.check(algorithm_programs.write(seed), (arch,))

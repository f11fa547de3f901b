"""Random parallel loops that run in lockstep, between pages that cannot be accessed."""

from __future__ import annotations

import sys

import pytest
from cases import seeds

from . import lane_programs


@pytest.mark.optimized
@pytest.mark.archs("cpu")
@pytest.mark.skipif(sys.platform == "win32", reason="mprotect")
@pytest.mark.parametrize("seed", seeds(24, 400))
def test_lanes(seed: int, arch: str) -> None:
    lane_programs.check(lane_programs.Program(seed), (arch,))


@pytest.mark.optimized
@pytest.mark.archs("cpu")
@pytest.mark.skipif(sys.platform == "win32", reason="mprotect")
@pytest.mark.parametrize("seed", (114, 141, 246))
def test_whole_vectors_without_atomics(seed: int, arch: str) -> None:
    """Chunks of whole vectors, also where one thread runs them without atomics."""
    lane_programs.check(lane_programs.Program(seed), (arch,))


@pytest.mark.parametrize("seed", seeds(12, 400))
def test_vectors_as_interpreted(seed: int) -> None:
    """The interpreter runs the vector loops that the CPU runs."""
    lane_programs.check(lane_programs.Program(seed), ("interpreter as loops",))

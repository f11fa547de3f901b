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

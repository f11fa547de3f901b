"""Random loops that add to elements around each iteration, on every back end; ``python -m tests.fuzz scatters`` for long runs."""

from __future__ import annotations

import pytest
from cases import seeds

from . import scatter_programs


@pytest.mark.vulkan_or_wgpu
@pytest.mark.archs("cpu", "vulkan", "wgpu", "cuda")
@pytest.mark.parametrize("seed", seeds(16, 300))
def test_scatters(seed: int, arch: str) -> None:
    scatter_programs.check(scatter_programs.Program(seed), (arch,))


@pytest.mark.archs("cpu")
def test_many_become_gathers(arch: str) -> None:
    """So that the programs say something."""
    assert sum(scatter_programs.check(scatter_programs.Program(seed), (arch,)) > 0 for seed in range(20)) >= 4

"""Random kernels of groups."""

from __future__ import annotations

import pytest
from cases import seeds

from . import group_programs


@pytest.mark.archs("cpu", "vulkan", "wgpu", "cuda")
@pytest.mark.parametrize("seed", seeds(6, 60))
def test_groups(seed: int, arch: str) -> None:
    group_programs.check(group_programs.Program(seed, group_programs.MOST[arch]), (arch,))

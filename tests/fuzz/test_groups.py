"""Random kernels of groups, on every back end that has the subgroups of the interpreter."""

from __future__ import annotations

import pytest
from cases import seeds

from . import group_programs


@pytest.mark.archs("cpu", "vulkan", "cuda")
@pytest.mark.parametrize("seed", seeds(6, 60))
def test_groups(seed: int, arch: str) -> None:
    group_programs.check(group_programs.Program(seed, subgroups=arch != "vulkan"), (arch,))

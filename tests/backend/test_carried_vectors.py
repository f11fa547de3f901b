"""Vectors that are indexed at run time, in loops and branches that pass them on, against NumPy."""

from __future__ import annotations

import pytest
from unit.carried_vector_programs import PROGRAMS, check

import spirograd as sg


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_vectors_that_loops_carry(arch: str, name: str) -> None:
    sg.init(arch=arch)
    check(name)

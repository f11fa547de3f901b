"""Factors and solutions by tiles in SPIR-V, where invocations read values of each other: which instructions, and how often. What they
compute is tested where there is a graphics card."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from unit.tile_programs import factorised

import spirograd as sg
from spirograd.simt import Tile16x16, Tile32x32
from spirograd.spirvgen.validate import available, validate
from validation.profiles import VULKAN


@pytest.mark.parametrize(("tile", "dtype"), [(Tile16x16, sg.f32), (Tile16x16, sg.f64), (Tile32x32, sg.f32)], ids=str)
def test_a_factor_and_a_solution(tile: Any, dtype: Any) -> None:
    n, compiled = tile.SIZE, factorised(tile, dtype, replace(VULKAN, subgroup_read=True))
    (text,) = [stage for name, stage in compiled.stages.items() if name.endswith(".spvasm")]
    assert isinstance(text, str)
    if available():
        validate(compiled.binaries[0], "vulkan")
    assert text.count("OpGroupNonUniformShuffle") == n * (n + 1)
    assert text.count(" Fma ") == n * (n - 1)
    assert text.count("OpFDiv") == n  # a reciprocal for each entry of a solution

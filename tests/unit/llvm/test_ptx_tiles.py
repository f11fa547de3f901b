"""Factors, triangular systems and products of tiles in PTX: how many instructions they take, and which none of their steps needs."""

from __future__ import annotations

import re
from typing import Any

import needs
import pytest
from unit.tile_programs import factorised

import spirograd as sg
from spirograd.simt import Tile16x16, Tile32x32
from validation.profiles import PTX
from validation.tools import ABSENT, registers_of

SIZES = [Tile16x16, Tile32x32]
TYPES = [sg.f32, sg.f64]
# Registers that leave an invocation those of a row of two tiles, and of what a solution and its addresses take.
MOST_REGISTERS = {(16, sg.f32): 96, (16, sg.f64): 144, (32, sg.f32): 144, (32, sg.f64): 255}


def count(text: str, instruction: str) -> int:
    return len(re.findall(rf"^\s+(?:@!?%p\d+ )?{instruction}\S*\s", text, re.MULTILINE))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("tile", SIZES, ids=str)
def test_a_factor_and_a_solution(tile: Any, dtype: Any) -> None:
    """Lanes read each entry of the lower triangle once for the factor, and once for the solution."""
    n, words = tile.SIZE, dtype.size // 4
    text = factorised(tile, dtype, PTX["cuda-sm_90"]).stages["kernel.ptx"]
    number = n == 32  # the number of the subgroup in its workgroup, which other groups share
    assert count(text, "shfl.sync.idx.b32") == n * (n + 1) * words + number
    assert count(text, r"fma\.rn") == n * (n - 1)
    assert count(text, r"div\.") == 0
    assert count(text, r"sqrt\.rn") == n
    assert count(text, "(vote|match|activemask)") == 0
    assert ".local" not in text and "shared" not in text


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("tile", SIZES, ids=str)
def test_masks_are_constants(tile: Any, dtype: Any) -> None:
    """They are in loops and branches that the group runs together, because a mask in a register takes the assembler many instructions."""
    text = factorised(tile, dtype, PTX["cuda-sm_90"]).stages["kernel.ptx"]
    masks = set(re.findall(r"shfl\.sync\.idx\.b32\s.*, ([^;,]+);", text))
    assert masks == {str((1 << tile.SIZE) - 1) if tile.SIZE < 32 else "-1"}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("tile", SIZES, ids=str)
def test_registers(tile: Any, dtype: Any) -> None:
    """Values that lanes read of each other are used before the next ones are read, so nothing is spilled."""
    verdict, registers, spilled = registers_of(factorised(tile, dtype, PTX["cuda-sm_90"]).stages["kernel.ptx"].encode())
    if verdict.status == ABSENT:
        pytest.skip(f"{needs.PREFIX}ptxas: {verdict.text}")
    assert registers <= MOST_REGISTERS[tile.SIZE, dtype], verdict.text
    assert spilled <= 16, verdict.text

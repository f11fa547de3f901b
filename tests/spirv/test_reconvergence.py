"""Modules that ask for maximal reconvergence (SPV_KHR_maximal_reconvergence): which ones, and what they say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from unit.tile_programs import compiled

import spirograd as sg
from spirograd.simt import block, warp
from spirograd.spirvgen.disasm import disassemble
from validation.profiles import VULKAN

from . import kit

DEVICE = replace(VULKAN, subgroup_read=True, subgroup_ballot=True)
MODE, EXTENSION = "MaximallyReconvergesKHR", 'OpExtension "SPV_KHR_maximal_reconvergence"'


def text_of(make: Any, offered: bool) -> str:
    """The text of the module of a kernel, which spirv-val finds valid, or does not know."""
    (binary,) = compiled(make, replace(DEVICE, maximal_reconvergence=offered)).binaries
    kit.check(binary, "vulkan")
    return disassemble(binary)


def votes() -> Any:
    """A loop that lanes leave one by one, with a vote in each iteration."""
    x = sg.field(sg.i32, 64)

    @sg.kernel
    def main():  # type: ignore[no-untyped-def]
        sg.loop_config(block_dim=64)
        for i in x:
            left, total = x[i], 0
            while left > 0:
                if warp.any_nonzero(warp.active_mask(), left % 3 == 0):
                    total += 1
                left -= 1
            x[i] = total

    return main


def shares() -> Any:
    """Groups of threads that have memory and barriers, and no operation of subgroups."""
    x = sg.field(sg.i32, 64)

    @sg.kernel
    def main():  # type: ignore[no-untyped-def]
        sg.loop_config(block_dim=64)
        for i in x:
            shared = block.SharedArray((64,), sg.i32)
            shared[block.thread_idx()] = x[i]
            block.sync()
            x[i] = shared[63 - block.thread_idx()]

    return main


def sums() -> Any:
    """A reduction over a loop without groups of threads."""
    x, total = sg.field(sg.i32, 64), sg.field(sg.i32, ())

    @sg.kernel
    def main():  # type: ignore[no-untyped-def]
        for i in x:
            total[None] += x[i]

    return main


def test_operations_of_subgroups_reconverge() -> None:
    text = text_of(votes, offered=True)
    assert EXTENSION in text and MODE in text


def test_only_where_the_device_offers_it() -> None:
    text = text_of(votes, offered=False)
    assert "OpGroupNonUniformBallot" in text and EXTENSION not in text and MODE not in text


@pytest.mark.parametrize("make", [shares, sums])
def test_other_modules_are_as_they_were(make: Any) -> None:
    assert text_of(make, offered=True) == text_of(make, offered=False)

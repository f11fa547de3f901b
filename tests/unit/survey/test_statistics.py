"""Drivers' names of registers, spills, instructions and occupancy. The statistics are excerpts of what Mesa 26.2 tells."""

from __future__ import annotations

import pytest

from spirograd.survey.results import Usage
from spirograd.survey.statistics import usage

TOLD = {
    "RADV": (
        {"SGPRs": 108, "VGPRs": 48, "Spilled SGPRs": 2, "Spilled VGPRs": 3, "Subgroups per SIMD": 32, "Instructions": 357},
        Usage(48, 5, 357, "32 waves/SIMD"),
    ),
    "NVK": (
        {"Instruction count": 79, "Max warps/SM": 64, "Spills to memory": 4, "Spills to reg": 1, "Number of GPRs": 24},
        Usage(24, 4, 79, "64 warps/SM"),
    ),
    "Turnip": (
        {"Max Waves Per Core": 16, "Instruction Count": 160, "Registers used": 5, "STP Count": 0},
        Usage(5, 0, 160, "16 waves/core"),
    ),
    "Honeykrisp": ({"Instructions": 100, "GPRs": 19, "Threads": 1024, "Spills": 0}, Usage(19, 0, 100, "1024 threads/core")),
    "NVIDIA": ({"Register Count": 16, "Binary Size": 768, "Stack Size": 0, "Local Memory Size": 68719476736}, Usage(16)),
    "none": ({}, Usage()),
}


@pytest.mark.parametrize("driver", TOLD)
def test_usage(driver):
    told, expected = TOLD[driver]
    assert usage(told) == expected

"""The names that drivers give to the resources of machine code, in the statistics of their pipelines."""

from __future__ import annotations

from collections.abc import Mapping

from spirograd.survey.results import Statistic, Usage

# The first name of a row that a driver tells counts. In order: RADV (on GCN and later, scalar registers do not limit anything), NVK,
# Turnip, Honeykrisp, NVIDIA.
_REGISTERS = ("VGPRs", "Number of GPRs", "Registers used", "GPRs", "Register Count")
_INSTRUCTIONS = ("Instructions", "Instruction count", "Instruction Count")
# All names of this row are added. Turnip does not tell spills from arrays in private memory: it counts stores to that memory (STP).
_SPILLS = ("Spilled SGPRs", "Spilled VGPRs", "Spills to memory", "STP Count", "Spills", "Spill Count")
_OCCUPANCY = {
    "Subgroups per SIMD": "waves/SIMD",
    "Max warps/SM": "warps/SM",
    "Max Waves Per Core": "waves/core",
    "Threads": "threads/core",
}


def usage(statistics: Mapping[str, Statistic]) -> Usage:
    """Return the resources among a driver's statistics."""
    spills = [int(statistics[name]) for name in _SPILLS if name in statistics]
    told = next(((name, unit) for name, unit in _OCCUPANCY.items() if name in statistics), None)
    return Usage(
        registers=_first(statistics, _REGISTERS),
        spills=sum(spills) if spills else None,
        instructions=_first(statistics, _INSTRUCTIONS),
        occupancy="" if told is None else f"{statistics[told[0]]} {told[1]}",
    )


def _first(statistics: Mapping[str, Statistic], names: tuple[str, ...]) -> int | None:
    return next((int(statistics[name]) for name in names if name in statistics), None)

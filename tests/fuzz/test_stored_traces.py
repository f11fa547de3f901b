"""Programs that are edited between processes, with stored traces; ``python -m tests.fuzz stored_traces`` for long runs."""

from __future__ import annotations

import os
import random

import pytest
from cases import seeds

from . import stored_traces
from .run import Difference
from .trace_programs import CATALOGUE, Version

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forks")


@pytest.mark.archs("cpu", "vulkan", "wgpu")
@pytest.mark.parametrize("seed", seeds(2, 60))
def test_edited_programs(seed: int, arch: str) -> None:
    stored_traces.check(stored_traces.write(seed), (arch,))


@pytest.mark.archs("cpu")
@pytest.mark.parametrize("first", range(0, len(CATALOGUE), 6))
def test_all_ingredients_are_recalled(first: int, arch: str) -> None:
    """So that the programs say something: a version that runs again traces nothing, whatever it reads."""

    r = random.Random(first)
    names = list(CATALOGUE)[first : first + 6]
    version = Version(tuple([(name, CATALOGUE[name].draw(r)) for name in names]), zeros=first % 12 == 0)
    assert stored_traces.check(stored_traces.Program((version,)), (arch,))["recalled"] == 1


@pytest.mark.archs("cpu")
def test_values_that_are_not_compared_are_found(arch: str) -> None:
    """So that the fuzzer says something: it fails where traces are recalled whatever was read."""
    first = Version((("global", "1.0"), ("a class", "2.0")))
    program = stored_traces.Program((first, Version((("global", "3.0"), ("a class", "2.0")))))
    with pytest.raises(Difference, match="with a cache"):
        stored_traces.check(program, (arch,), stored_traces.compare_no_values)

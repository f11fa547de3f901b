"""Random programs: the reference evaluator, the interpreter, the CPU and Vulkan agree bit by bit.

SG_FUZZ_EXAMPLES raises the number of programs; ``python -m tests.fuzz`` is for long runs.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

import needs
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from . import run
from .evaluate import TooLong
from .expressions import Choices
from .kernel_programs import Program, write
from .shrink import shrunk

EXAMPLES = int(os.environ.get("SG_FUZZ_EXAMPLES", "8"))


@pytest.fixture(scope="module", autouse=True)
def sessions() -> Iterator[None]:
    """Devices that the programs share."""
    for name in needs.ARCHS:
        needs.need(name)
    yield
    run.close()


def failure(program: Program) -> str:
    """What is wrong with a program; empty if nothing is."""
    try:
        run.check(program)
    except TooLong:
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@functools.cache
def report(source: str, text: str) -> str:
    """The failure of the program, shortened; by our own means, which know statements (Hypothesis would take an hour)."""
    program = PROGRAMS[source]
    short = shrunk(program, lambda p: failure(p)[:KIND] == text[:KIND], seconds=30)
    return f"{failure(short)}\n{short!r}"


@st.composite
def programs(draw: Any) -> Program:
    """Return a random program whose choices Hypothesis makes."""
    return write(Choices(lambda low, high: draw(st.integers(low, high))))


KIND = 24  # as much of a message as names the error and the back end
PROGRAMS: dict[str, Program] = {}


@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    phases=(Phase.generate,),
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
@given(programs())
def test_back_ends_agree_with_the_reference(program: Program) -> None:
    text = failure(program)
    if text:
        PROGRAMS[program.source] = program
        pytest.fail(report(program.source, text), pytrace=False)

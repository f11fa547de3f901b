"""Parameters of tests: some by day, the rest in long runs (`pytest --long`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from spirograd.lang import context


def seeds(day: int, night: int) -> list[Any]:
    """The seeds of random programs: below ``day``, and below ``night`` in long runs."""
    return by_day(range(night), lambda seed: seed < day)


def by_day(cases: Iterable[Any], wanted: Callable[..., bool]) -> list[Any]:
    """All ``cases``, values or tuples of them; those for which ``wanted`` does not hold run in long runs only."""
    split = [(case if isinstance(case, tuple) else (case,)) for case in cases]
    return [pytest.param(*case, marks=() if wanted(*case) else pytest.mark.long) for case in split]


def rounding_of_sums() -> float:
    """By how much gradients may differ from run to run on the device of the session: on GPUs, workgroups run at the same time, and their
    atomics add floats in another order each time."""
    caps = context.session().device.caps
    return 1e-3 if caps.target.asynchronous and not caps.cpu_driver else 0.0

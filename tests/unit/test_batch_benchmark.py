"""`python -m benchmarks.batches`: both forms of the walker are measured, and compute the same."""

import pytest

import spirograd as sg
from benchmarks import batches


@pytest.fixture(autouse=True)
def _no_session_is_left():
    yield
    sg.reset()


def test_both_forms_are_measured():
    """`measure` compares their losses and gradients."""
    sg.init(arch=sg.cpu)
    times = batches.measure(environments=3, steps=2, rounds=1)
    assert all(min(pair) > 0 for pair in times.values())

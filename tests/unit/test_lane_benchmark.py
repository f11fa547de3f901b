"""`python -m benchmarks.lanes`: both forms of a loop are compiled and measured, and compute the same."""

from unittest import mock

import pytest

import spirograd as sg
from benchmarks import lanes


@pytest.fixture(autouse=True)
def _no_session_is_left():
    yield
    sg.reset()


@pytest.mark.parametrize("make", [lanes.matrix_product, lanes.columns], ids=lambda make: make.__name__)
def test_both_forms_are_measured(make):
    """`measure` also compares their results."""
    without, with_lanes, chosen = lanes.measure(make, 1, 0.0)
    assert without > 0.0 and with_lanes > 0.0 and chosen == "lanes"


def test_loops_that_lanes_enter_one_after_another_do_not_run_in_lanes():
    """A search that all lanes begin together gains from lanes; behind branches of a march, few lanes need it at a time."""
    choices = [lanes.measure(make, 1, 0.0)[2] for make in (lanes.binary_search, lanes.rare_searches)]
    assert [choice.partition(",")[0] for choice in choices] == ["lanes", "no lanes"]


def test_stores_are_measured():
    assert min(lanes.measure_stores(lanes.large_fill, 1, 0.0)) > 0.0


@pytest.mark.parametrize("forced", [False, True])
def test_a_decision_is_forced_on_the_compiler(forced):
    """The kernel has vectors if and only if lanes are forced; the cost model chooses them in any case."""
    with mock.patch.object(lanes.vectorise, "lane_gain", lanes._Forced(forced)):
        sg.init(arch=sg.cpu, offline_cache=False, tune=False)
        run, _ = lanes.columns()
        run()
        text = run.ir("loops")
    assert ("load_lanes" in text) == forced, text

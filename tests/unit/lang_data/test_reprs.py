"""What `repr` shows of fields, arrays and tapes: their name if they have one, shape, type of the elements."""

from __future__ import annotations

import linecache

import pytest

import spirograd as sg


@pytest.fixture(autouse=True)
def session():
    sg.init(arch=sg.interpreter)
    yield
    sg.reset()


def test_fields() -> None:
    grid = sg.field(sg.f32, shape=(3, 4))
    velocity = sg.Vector.field(2, sg.f64, shape=6)
    turns = sg.Matrix.field(3, 2, sg.i32, shape=())
    unplaced = sg.field(sg.f32)
    assert repr(grid) == "<field `grid` (3, 4) of f32>"
    assert repr(velocity) == "<field `velocity` (6,) of vectors of 2 of f64>"
    assert repr(turns) == "<field `turns` () of 3 x 2 matrices of i32>"
    assert repr(unplaced) == "<field `unplaced` of f32>"


def test_the_name_is_that_of_a_statement_of_its_own() -> None:
    made: dict[str, object] = {}
    source = "import spirograd as sg\nfirst = 1; second = sg.field(sg.f32, shape=2)\nthird = sg.field(sg.f32, shape=2)\n"
    linecache.cache["<program>"] = (len(source), None, source.splitlines(keepends=True), "<program>")
    exec(compile(source, "<program>", "exec"), made)
    assert "first" not in repr(made["second"]) and "`third`" in repr(made["third"])


def test_arrays_and_tapes() -> None:
    assert repr(sg.ndarray(sg.f32, shape=(3,))) == "<ndarray (3,) of f32>"
    assert repr(sg.Vector.ndarray(3, sg.f32, shape=(4,))) == "<ndarray (4,) of vectors of 3 of f32>"
    loss = sg.field(sg.f32, shape=(), needs_grad=True)
    assert repr(sg.ad.Tape(loss)) == "<Tape of the loss <field `loss` () of f32>>"
    assert repr(sg.ad.Tape()) == "<Tape without a loss>"

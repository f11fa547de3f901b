"""A kernel is traced once more only where the trace has relied on the opposite of a fact that it learns."""

from __future__ import annotations

from typing import Any

import pytest

import spirograd as sg
from spirograd.lang.frontend.assumptions import Assumptions, Contradiction, Deactivates


@pytest.fixture
def cells() -> Any:
    sg.init(arch="interpreter")
    x = sg.field(sg.i32)
    sg.root.pointer(sg.i, 4).place(x)
    return x


def test_facts() -> None:
    assumptions = Assumptions()
    assumptions.learn(Deactivates())
    assert assumptions.holds(Deactivates())
    assumptions = Assumptions()
    assert not assumptions.holds(Deactivates())
    with pytest.raises(Contradiction):
        assumptions.learn(Deactivates())
    assumptions.begin_trace()
    assert assumptions.holds(Deactivates())
    assumptions.learn(Deactivates())


def test_no_activate_before_the_writes(cells: Any, traces: list[str]) -> None:
    x = cells

    @sg.kernel
    def write() -> None:
        sg.no_activate(x.parent())
        for i in range(4):
            x[i] = 1

    write()
    assert traces == ["write"]
    assert not x.to_numpy().any()


def test_no_activate_after_a_write(cells: Any, traces: list[str]) -> None:
    x = cells

    @sg.kernel
    def write() -> None:
        for i in range(4):
            x[i] = 1
        sg.no_activate(x.parent())

    write()
    assert traces == ["write", "write"]
    assert not x.to_numpy().any()


def test_deactivation_without_an_access_before(cells: Any, traces: list[str]) -> None:
    x = cells

    @sg.kernel
    def clear() -> None:
        for i in x:
            sg.deactivate(x.parent(), [i])

    x[1] = 3
    clear()
    assert traces == ["clear"]
    assert not x.to_numpy().any()


def test_deactivation_after_an_access_that_takes_its_cell_for_active(cells: Any, traces: list[str]) -> None:
    x = cells

    @sg.kernel
    def clear() -> None:
        for i in x:
            if x[i] == 3:
                sg.deactivate(x.parent(), [i])

    x[1], x[2] = 3, 4
    clear()
    assert traces == ["clear", "clear"]
    assert x.to_numpy().tolist() == [0, 0, 4, 0]


def test_a_call_whose_target_is_known_late_changes_a_variable(cells: Any, traces: list[str]) -> None:
    x = cells

    @sg.func
    def increase(n: sg.template()) -> None:  # type: ignore[valid-type]
        n += 1

    functions = [increase]

    @sg.kernel
    def count() -> None:
        n = 0
        sg.loop_config(serialize=True)
        for _ in range(3):
            functions[0](n)
        x[0] = n

    count()
    assert traces == ["count", "count"]
    assert x[0] == 3

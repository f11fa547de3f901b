"""Values of functions that return from loops: their type is one that holds what each `return` gives, and each body is traced once."""

from __future__ import annotations

from typing import Any

import pytest

import spirograd as sg


@pytest.fixture
def out() -> Any:
    sg.init(arch="interpreter")
    return sg.field(sg.f32, shape=4)


def test_returns_of_one_loop_have_different_types(out: Any) -> None:
    @sg.func
    def find(n: sg.i32) -> Any:
        for i in range(n):
            if i == 3:
                return 1
            if i == 1:
                return 2.5
        return 0

    @sg.kernel
    def run() -> None:
        out[0] = find(5)
        out[1] = find(1)

    run()
    assert out.to_numpy().tolist() == [2.5, 0, 0, 0]


def test_a_loop_after_another_that_returns_a_narrower_type(out: Any) -> None:
    @sg.func
    def find(n: sg.i32) -> Any:
        for i in range(n):
            if i == 1:
                return 2
        for i in range(n):
            if i == 0:
                return 2.5
        return 0

    @sg.kernel
    def run() -> None:
        for n in range(3):
            out[n] = find(n)

    run()
    assert out.to_numpy().tolist() == [0, 2.5, 2, 0]


def test_tuples_returned_from_nested_loops(out: Any) -> None:
    @sg.func
    def find(x: sg.i32) -> Any:
        for i in range(4):
            for k in range(4):
                if i * 4 + k == x:
                    return i, k + 0.5
            if i == 2:
                return -1, -1.0
        return -2, -2.0

    @sg.kernel
    def run() -> None:
        for n in range(2):
            i, k = find(5 + 8 * n)
            out[2 * n], out[2 * n + 1] = i, k

    run()
    assert out.to_numpy().tolist() == [1, 1.5, -1, -1]


def test_a_body_is_traced_once(out: Any) -> None:
    calls: list[int] = []

    class Python:
        def __index__(self) -> int:
            calls.append(1)
            return 1

    constant = Python()

    def one(x: Any) -> int:
        return constant.__index__()

    @sg.func
    def inner(n: sg.i32) -> Any:
        for i in range(n):
            if i == sg.static(one(out)):
                return i
        return 0

    @sg.func
    def outer(n: sg.i32) -> Any:
        for i in range(n):
            if inner(n) == 1:
                return 2.0
        return 3.0

    @sg.kernel
    def run() -> None:
        out[0] = outer(3)

    run()
    assert out[0] == 2
    assert len(calls) == 1


def test_a_value_on_one_path_and_none_on_another(out: Any) -> None:
    @sg.func
    def find(n: sg.i32) -> Any:
        for i in range(n):
            if i == 1:
                return 1.5
            if i == 2:
                return
        return 2.5

    @sg.kernel
    def run() -> None:
        out[0] = find(3)

    with pytest.raises(sg.SpirogradSyntaxError, match="returns a value, but not on every path"):
        run()

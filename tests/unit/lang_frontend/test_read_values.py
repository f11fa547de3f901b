"""Values that traces in the offline cache have read: their descriptions, which another process compares."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.lang.frontend.read_values import Differs, Unrecordable, Values, compares_by_itself


class Color(enum.Enum):
    RED = 1
    GREEN = 2


class Plain:
    pass


@dataclasses.dataclass
class Point:
    x: float
    y: float


@dataclasses.dataclass
class Compared:
    x: float

    def __eq__(self, other: object) -> bool:
        return True


class Sized:
    def __len__(self) -> int:
        return 0


class Called:
    def __call__(self) -> int:
        return 0


def texts(value: object) -> list[str]:
    values = Values()
    values.add(value)
    return values.texts


@pytest.mark.parametrize(
    "one, other",
    [
        (0.0, -0.0),
        (1, True),
        (1, 1.0),
        ("1", 1),
        (b"a", "a"),
        (np.float32(1), np.float64(1)),
        ([1, 2], (1, 2)),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 2}),
        (range(3), range(4)),
        (np.arange(3), np.arange(3.0)),
        (np.array([1, 2]), np.array([1, 3])),
        (Color.RED, Color.GREEN),
        (Point(1, 2), Point(1, 3)),
        (sg.f32, sg.f64),
        (sg.types.vector(3, sg.f32), sg.types.vector(3, sg.f64)),
        (sg.types.struct(a=sg.f32), sg.types.struct(b=sg.f32)),
        (min, max),
        (Plain, Point),
    ],
)
def test_values_that_differ(one: object, other: object) -> None:
    assert texts(one) == texts(one) != texts(other) == texts(other)


def test_objects_that_are_shared() -> None:
    one, other = Plain(), Plain()
    assert texts([one, one]) != texts([one, other]) == texts([other, one])


@pytest.mark.parametrize("make", [lambda: Sized(), lambda: Called(), lambda: iter([1]), lambda: np.array([object()])])
def test_values_that_may_behave_in_any_way(make: Callable[[], Any]) -> None:
    value = make()
    with pytest.raises(Unrecordable):
        texts(value)


def test_comparisons_that_run_methods() -> None:
    assert compares_by_itself([1, Compared(1.0)]) and compares_by_itself({Compared: Compared(1.0)})
    assert not compares_by_itself([Plain(), Point(1, 2), Color.RED, 1.0, "text", sg.f32])


def test_the_first_difference_ends_a_comparison() -> None:
    values = Values(texts([1, 2, 3]))
    with pytest.raises(Differs):
        values.add([1, 2, 4])
    assert values.texts == ["list 3", "int 1", "int 2"]

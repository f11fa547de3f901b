"""Which functions of the program may be called again to compare results."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest

from spirograd.lang.frontend.pure_functions import called, is_literal, is_pure, literal

LIMIT, NAMES, LOG = 3, ("a", "b"), [1]


def doubled(v):
    return 2 * v


def mutual(v):
    return v if v < 1 else other(v - 1)


def other(v):
    return mutual(v - 1)


def nested(n):
    parts = {k: doubled(k) for k in range(n)}
    return tuple(sorted(parts.values(), key=lambda v: -v)) + NAMES


def own_variable(n):
    total = 0

    def add(v):
        nonlocal total
        total += v
        return total

    return [add(k) for k in range(n)]


def reads_a_list():
    return len(LOG)


def changes_a_global():
    global LIMIT
    LIMIT = 4


def changes_an_attribute(v):
    doubled.calls = v


def imports():
    import sys

    return sys


def prints(v):
    print(v)


def remembers(v, before=[]):  # noqa: B006
    before.append(v)
    return len(before)


def generates(n):
    yield n


def escapes():
    return ().__class__.__base__.__subclasses__()


def closure(value) -> Callable[[], object]:
    def inner():
        return value

    return inner


def with_attributes(v):
    with_attributes.calls.append(v)
    return len(with_attributes.calls)


with_attributes.calls = []  # type: ignore[attr-defined]


@functools.wraps(math.sin)
def named_like_sin(v):
    return len(LOG) * v


def calls_named_like_sin(v):
    return named_like_sin(v)


def counter() -> Callable[[], int]:
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return count

    return step


PURE = [doubled, mutual, nested, own_variable, closure(3), lambda v: math.sqrt(v) + math.pi + LIMIT]
IMPURE = [
    reads_a_list,
    changes_a_global,
    changes_an_attribute,
    imports,
    prints,
    remembers,
    generates,
    escapes,
    with_attributes,
    named_like_sin,
    calls_named_like_sin,
    closure([]),
    counter(),
    print,
    len,
]


@pytest.mark.parametrize("function", PURE)
def test_pure(function: Callable[..., object]) -> None:
    assert is_pure(function)


@pytest.mark.parametrize("function", IMPURE)
def test_impure(function: Callable[..., object]) -> None:
    assert not is_pure(function)
    with pytest.raises(ValueError, match="effects"):
        called(function, literal((), {}))


def test_calls() -> None:
    assert called(nested, literal((3,), {})) == (4, 2, 0, "a", "b")
    assert called(doubled, literal((), {"v": (1, "é", None, -0.5, True, b"x")})) == (1, "é", None, -0.5, True, b"x") * 2
    with pytest.raises(ValueError, match="fails"):
        called(doubled, literal((1, 2), {}))


def test_literals() -> None:
    assert is_literal((1, (2.5, "x"), None, b"", True))
    assert not any(map(is_literal, ([1], math.inf, math.nan, {}, {1}, object(), (1, [2]), 1 << 20_000)))

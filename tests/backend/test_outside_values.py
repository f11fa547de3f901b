"""Values from outside of kernels that change after compiling: the launch after the change warns, once for each name."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.usefixtures("session")

number = 1.0
field: Any = None
table = {"a": 1.0}
entries = [1.0, 2.0]
space = types.SimpleNamespace(a=1.0, inner=types.SimpleNamespace(b=2.0))


class Plain:
    dt = 1.0

    def __init__(self):
        self.own = 1.0

    @property
    def computed(self):
        return 2 * self.own


class Slots:
    __slots__ = ("a",)

    def __init__(self):
        self.a = 1.0


def helper(x):
    return x + number


@sg.func
def scaled(x):
    return x * number


@sg.func
def other(x):
    return x * 3


def _warnings(caplog: Any) -> list[str]:
    return [r.getMessage() for r in caplog.records if "was compiled with" in r.getMessage()]


def _changes(kernel: Any, change: Callable[[], None], caplog: Any, launches: int, texts: tuple[str, ...]) -> None:
    """``change`` after some ``launches`` has the next one warn, and no other."""
    first = kernel()
    for _ in range(launches):
        assert kernel() == first
    assert not _warnings(caplog)
    change()
    assert kernel() == first
    (text,) = _warnings(caplog)
    for part in ("test_outside_values.py:", *texts):
        assert part in text
    change()
    for _ in range(20):
        assert kernel() == first
    assert len(_warnings(caplog)) == 1


LAUNCHES = pytest.mark.parametrize("launches", [0, 40])  # done by Python, and by compiled code where there is that


@pytest.fixture
def kept():
    """The values of the module, put back afterwards."""
    before = dict(globals())
    yield
    globals().update(before)


@LAUNCHES
def test_a_number(caplog: Any, kept: Any, launches: int) -> None:
    @sg.kernel
    def read() -> sg.f32:
        return number

    def change() -> None:
        globals()["number"] += 1.0

    _changes(read, change, caplog, launches, ("the global `number`", "1.0", "2.0", "kernel `read`"))


@LAUNCHES
def test_a_number_of_a_function(caplog: Any, kept: Any, launches: int) -> None:
    @sg.kernel
    def read() -> sg.f32:
        return scaled(2.0) + helper(sg.cast(1.0, sg.f32))

    def change() -> None:
        globals()["number"] += 1.0

    _changes(read, change, caplog, launches, ("the global `number`", "in scaled"))


@LAUNCHES
def test_a_variable_around_the_kernel(caplog: Any, launches: int) -> None:
    a = 1.0

    @sg.kernel
    def read() -> sg.f32:
        return a

    def change() -> None:
        nonlocal a
        a += 1

    _changes(read, change, caplog, launches, ("`a`", "1.0", "2.0"))


@LAUNCHES
@pytest.mark.parametrize("which", ["function", "field", "array"])
def test_another_object_under_a_name(caplog: Any, launches: int, which: str) -> None:
    made = {"function": lambda: other, "field": lambda: sg.field(sg.f32, 4), "array": lambda: sg.ndarray(sg.f32, 4)}
    thing: Any = scaled if which == "function" else made[which]()
    if which != "function":
        thing.fill(2.0)

    @sg.kernel
    def read() -> sg.f32:
        value = 0.0
        if sg.static(which == "function"):
            value = thing(1.0)
        else:
            value = thing[0]
        return value

    def change() -> None:
        nonlocal thing
        thing = made[which]()

    _changes(read, change, caplog, launches, ("`thing`",))


def _set(owner: Any, name: str) -> Callable[[], None]:
    return lambda: setattr(owner, name, getattr(owner, name) + 1.0)


@LAUNCHES
@pytest.mark.parametrize("which", ["own", "class", "hidden", "slots", "namespace", "inner", "of the class", "module"])
def test_a_member(caplog: Any, launches: int, which: str) -> None:
    cls = type("Other", (Plain,), {})
    plain, slots, inner, module = cls(), Slots(), types.SimpleNamespace(b=types.SimpleNamespace(c=1.0)), types.ModuleType("parameters")
    module.dt = 1.0  # type: ignore[attr-defined]
    names = types.SimpleNamespace(a=1.0)

    @sg.kernel
    def read() -> sg.f32:
        value = 0.0
        if sg.static(which == "own"):
            value = plain.own
        elif sg.static(which in ("class", "hidden")):
            value = plain.dt
        elif sg.static(which == "slots"):
            value = slots.a
        elif sg.static(which == "namespace"):
            value = names.a
        elif sg.static(which == "inner"):
            value = inner.b.c
        elif sg.static(which == "of the class"):
            value = Plain.dt
        else:
            value = module.dt
        return value

    owner, name = {
        "own": (plain, "own"), "class": (Plain, "dt"), "hidden": (plain, "dt"), "slots": (slots, "a"), "namespace": (names, "a"),
        "inner": (inner.b, "c"), "of the class": (Plain, "dt"), "module": (module, "dt"),
    }[which]  # fmt: skip
    try:
        _changes(read, _set(owner, name), caplog, launches, (f".{name}`", "1.0", "2.0"))
    finally:
        Plain.dt = 1.0


@LAUNCHES
def test_items(caplog: Any, launches: int) -> None:
    held, listed = {"a": 1.0}, [1.0, 2.0]

    @sg.kernel
    def read() -> sg.f32:
        return held["a"]

    @sg.kernel
    def first() -> sg.f32:
        return listed[0]

    _changes(read, lambda: held.update(a=held["a"] + 1), caplog, launches, ("`held['a']`", "1.0", "2.0"))
    caplog.clear()
    _changes(first, lambda: listed.__setitem__(0, 5.0), caplog, launches, ("`listed[0]`", "1.0", "5.0"))


def test_what_does_not_change_is_silent(caplog: Any, kept: Any) -> None:
    plain = Plain()

    @sg.kernel
    def read() -> sg.f32:
        return number + plain.computed + space.inner.b + np.pi * 0 + sg.math.pi * 0

    for k in range(40):
        globals()["number"] = float(str(1.0))  # an equal one
        globals()["unused"] = k
        assert read() == 5
    assert not _warnings(caplog)


def test_data_oriented_attributes_are_followed(caplog: Any) -> None:
    @sg.data_oriented
    class Solver:
        def __init__(self):
            self.dt = 1.0

        @sg.kernel
        def read(self) -> sg.f32:
            return self.dt

    solver = Solver()
    for k in range(30):
        solver.dt = float(k)
        assert solver.read() == k
    assert not _warnings(caplog)


def test_tapes_and_gradients_warn_too(caplog: Any) -> None:
    x, y = sg.field(sg.f32, 4, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    a = 2.0

    @sg.kernel
    def square():
        for i in x:
            y[None] += a * x[i] ** 2

    x.fill(1.0)
    square()
    a = 3.0
    with sg.ad.Tape(y):
        square()
    assert (x.grad.to_numpy() == 4).all()
    assert len(_warnings(caplog)) == 1

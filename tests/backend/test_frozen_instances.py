"""Instances of frozen dataclasses as arguments: what is found once for each of them is found anew where it may have changed."""

import dataclasses
import gc
import weakref
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.lang.frontend import frozen_instances, parameters

pytestmark = [pytest.mark.usefixtures("session", "way"), pytest.mark.archs("cpu", "vulkan")]
A1 = sg.types.ndarray(sg.f32, 1)


@dataclasses.dataclass(frozen=True)
class Inner:
    a: A1
    n: sg.i32


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner
    b: A1
    f: sg.template()
    by: sg.template()


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    a: A1
    n: sg.i32


@dataclasses.dataclass
class Open:
    a: A1
    n: sg.i32


@pytest.fixture
def keys_found(monkeypatch):
    """The arrays whose keys were asked for."""
    arrays = []
    key = parameters.ArrayParameter.key
    monkeypatch.setattr(parameters.ArrayParameter, "key", lambda self, value: arrays.append(value) or key(self, value))
    return arrays


def outer(n: int = 3, by: Any = 2, size: int = 4) -> Outer:
    return Outer(Inner(sg.ndarray(sg.f32, size), n), sg.ndarray(sg.f32, size), sg.field(sg.f32, size), by)


def make():
    @sg.kernel
    def step(s: Outer, k: sg.f32):
        for i in s.inner.a:
            s.inner.a[i] += s.inner.n * k
            s.b[i] += s.by * k
            s.f[i] += k

    return step


def values(s: Outer) -> list[float]:
    return [s.inner.a.to_numpy()[1], s.b.to_numpy()[1], s.f.to_numpy()[1]]


def test_instances_in_turn(keys_found):
    step, one, two = make(), outer(), outer(5, 7, 2)
    for k in range(1, 5):
        step(one, 1.0)
        step(two, float(k))
    assert values(one) == [12, 8, 4] and values(two) == [50, 70, 10]
    assert len(keys_found) == 4


def test_a_gradient_that_changes(way):
    @dataclasses.dataclass(frozen=True)
    class Pair:
        a: A1
        out: A1

    @sg.kernel
    def copy(p: Pair):
        for i in p.a:
            p.out[i] = p.a.grad[i]

    a = sg.ndarray(sg.f32, 2, needs_grad=True)
    pair = Pair(a, sg.ndarray(sg.f32, 2))
    for value in (1.0, 2.0):
        a.grad.fill(value)
        copy(pair)
        assert pair.out.to_numpy().tolist() == [value] * 2
    other = sg.ndarray(sg.f32, 2)
    other.fill(5.0)
    a.grad = other
    for _ in range(3):
        copy(pair)
        assert pair.out.to_numpy().tolist() == [5.0] * 2


def test_members_that_may_change():
    """What is not steady is looked at in each launch."""

    @dataclasses.dataclass(frozen=True)
    class Listed:
        a: A1
        factors: sg.template()
        v: sg.types.vector(2, sg.f32)

    @sg.kernel
    def scale(s: Listed):
        for i in s.a:
            s.a[i] += s.factors[0] * s.v[1]

    s = Listed(sg.ndarray(sg.f32, 2), [2.0, 3.0], sg.Vector([1.0, 1.0]))
    array = Listed(np.zeros(2, np.float32), (2.0, 3.0), (1.0, 1.0))
    for k in range(4):
        s.factors[0] = float(k)
        s.v[1] = 10.0**k
        scale(s)
        scale(array)
    assert s.a.to_numpy().tolist() == [0 + 10 + 200 + 3000] * 2
    assert array.a.tolist() == [8.0] * 2


@pytest.mark.parametrize("cls", [Slotted, Open])
def test_other_dataclasses(cls):
    """Instances that no weak reference can watch, and those whose members may be set."""

    @sg.kernel
    def step(s: cls):
        for i in s.a:
            s.a[i] += s.n

    s = cls(sg.ndarray(sg.f32, 2), 3)
    for _ in range(3):
        step(s)
    before = s.a
    if cls is Open:
        s.a, s.n = sg.ndarray(sg.f32, 2), 4
        step(s)
        assert s.a.to_numpy().tolist() == [4.0] * 2
    assert before.to_numpy().tolist() == [9.0] * 2


def test_errors_come_each_time():
    step, one = make(), outer()
    step(one, 1.0)
    wrong = Outer(Inner(one.inner.a, "x"), one.b, one.f, 1)
    for _ in range(3):
        with pytest.raises(sg.SpirogradRuntimeTypeError, match=r"argument `s.inner.n` takes an integer \(i32\), got"):
            step(wrong, 1.0)
        with pytest.raises(sg.SpirogradRuntimeTypeError, match="takes an instance of Outer, got"):
            step(one.inner, 1.0)
    step(one, 1.0)
    assert values(one) == [6, 4, 2]


def test_instances_go_with_their_memory():
    step = make()
    for _ in range(3):
        builder, f = sg.FieldsBuilder(), sg.field(sg.f32)
        builder.dense(sg.i, 4).place(f)
        one = Outer(Inner(sg.ndarray(sg.f32, 4), 1), sg.ndarray(sg.f32, 4), f, 1)
        refs = [weakref.ref(x) for x in (one, one.inner, one.inner.a, one.b, one.b.allocation, one.f)]
        for _ in range(3):
            step(one, 1.0)
        del one, f, builder
        gc.collect()
        assert [ref() for ref in refs] == [None] * 6
    assert not [place for place in frozen_instances._known if place[0] in (Outer, Inner)]


def test_sessions_and_destroyed_fields():
    step, one = make(), outer()
    for _ in range(3):
        step(one, 1.0)
    builder, f = sg.FieldsBuilder(), sg.field(sg.f32)
    builder.dense(sg.i, 4).place(f)
    tree = builder.finalize()
    two = Outer(one.inner, one.b, f, 2)
    for _ in range(3):
        step(two, 1.0)
    tree.destroy()
    for _ in range(2):
        with pytest.raises(sg.SpirogradRuntimeError, match="destroyed"):
            step(two, 1.0)
    step(one, 1.0)
    assert values(one) == [21, 14, 4]
    sg.init(arch=sg.cfg.arch)
    for _ in range(2):
        with pytest.raises(sg.SpirogradRuntimeError, match="earlier session"):
            step(one, 1.0)


def test_gradients_on_tapes():
    @dataclasses.dataclass(frozen=True)
    class Pair:
        a: A1
        loss: A1

    @sg.kernel
    def square(p: Pair):
        for i in p.a:
            p.loss[0] += p.a[i] ** 2

    pair = Pair(sg.ndarray(sg.f32, 3, needs_grad=True), sg.ndarray(sg.f32, 1, needs_grad=True))
    for value in (1.0, 2.0, 3.0):
        pair.a.fill(value)
        square(pair)
        with sg.ad.Tape(pair.loss):
            square(pair)
        assert pair.a.grad.to_numpy().tolist() == [2 * value] * 3

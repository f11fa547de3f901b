"""Where kernels may be defined: files with postponed annotations, functions, classes, notebooks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from backend.batch import define

import spirograd as sg

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.usefixtures("session")]

vec2 = sg.types.vector(2, sg.f32)


@sg.dataclass
class Body:
    pos: vec2
    mass: sg.f32

    @sg.func
    def moved(self, by: vec2) -> vec2:
        return self.pos + by / self.mass


@dataclasses.dataclass
class Bodies:
    x: sg.types.ndarray(vec2, 1)
    n: int


@sg.func
def doubled(v: vec2) -> vec2:
    return v * 2


@sg.kernel
def shift(bodies: Bodies, body: Body, f: sg.template()) -> Body:
    for i in range(bodies.n):
        bodies.x[i] += doubled(body.moved(vec2(1, 2)))
        f[i] = bodies.x[i].x
    out = body
    out.mass = 10
    return out


def test_postponed_annotations(arch: str) -> None:
    f = sg.field(sg.f32, shape=3)
    x = np.zeros((3, 2), np.float32)
    got = shift(Bodies(x, 2), Body([1, 1], 0.5), f)
    assert x.tolist() == [[6, 10], [6, 10], [0, 0]] and f.to_numpy().tolist() == [6, 6, 0] and got.mass == 10


def test_postponed_annotations_of_locals(arch: str) -> None:
    element = sg.types.vector(3, sg.i32)

    @sg.dataclass
    class Item:
        v: element
        k: sg.i32

    @sg.func
    def total(v: element) -> sg.i32:
        return v.sum()

    @sg.kernel
    def run(item: Item, x: sg.types.NDArray[element, 1]) -> sg.i32:
        for i in x:
            x[i] = item.v * item.k
        return total(x[0])

    x = sg.ndarray(element, 2)
    assert run(Item([1, 2, 3], 10), x) == 60 and x[1].to_list() == [10, 20, 30]


def test_postponed_annotations_in_classes(arch: str) -> None:
    def build(t):
        @sg.data_oriented
        class Scaler:
            def __init__(self) -> None:
                self.x = sg.field(t, shape=2)

            @sg.func
            def scale(self, v: t) -> t:
                return v / 2

            @sg.kernel
            def run(self, v: t) -> t:
                for i in self.x:
                    self.x[i] = self.scale(v)
                return self.x[1]

        return Scaler()

    assert build(sg.f32).run(3) == 1.5
    assert build(sg.i32).run(3) == 1


def test_dataclasses_cannot_name_locals(arch: str) -> None:
    element = sg.types.vector(3, sg.i32)

    @dataclasses.dataclass
    class Local:
        v: element

    @sg.kernel
    def run(item: Local) -> sg.i32:
        return item.v.sum()

    with pytest.raises(sg.SpirogradNameError, match="dataclass `Local`"):
        run(Local([1, 2, 3]))


def test_notebooks(arch: str) -> None:
    text = """
import spirograd as sg
x = sg.field(sg.i32, shape=4)

@sg.func
def cube(v):
    return v * v * v

@sg.kernel
def run(k: sg.i32):
    for i in x:
        x[i] = cube(i) + k

@sg.data_oriented
class Cell:
    k = 5

    @sg.kernel
    def run(self) -> sg.i32:
        return self.k * x[2]
"""
    made = define(text, {"__name__": "notebook"})
    made["run"](1)
    assert made["x"].to_numpy().tolist() == [1, 2, 9, 28]
    assert made["Cell"]().run() == 45


def test_without_source(arch: str) -> None:
    made: dict = {"sg": sg}
    exec("@sg.kernel\ndef run():\n    pass\n", made)
    with pytest.raises(sg.SpirogradSyntaxError, match="source"):
        made["run"]()


def test_decorators_of_others_and_odd_layout(arch: str) -> None:
    def keep(f):
        f.kept = True
        return f

    # fmt: off
    @sg.kernel
    @keep
    def run(
        x: sg.types.ndarray(
            sg.i32,
            1,
        ),
        k: sg.i32 = 3,  # a default
    ) -> sg.i32:
        """A docstring."""
        for i in x: x[i] = (  # noqa: E701
            i * k
        )
    # a comment at another column
        return x[
            1
        ]
    # fmt: on

    assert run(sg.ndarray(sg.i32, 2)) == 3 and run(sg.ndarray(sg.i32, 2), k=4) == 4

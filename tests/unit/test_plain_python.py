"""`arch=sg.python`: kernels as plain Python, beside the interpreter where both can run them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg

torch = needs.package("torch")


@pytest.fixture(autouse=True)
def _session() -> Iterator[None]:
    sg.init(arch=sg.python, random_seed=3)
    yield
    sg.reset()


def on_both(program: Callable[[], Any]) -> Any:
    """What the program gives, which is the same on the interpreter."""
    found = []
    for arch in (sg.interpreter, sg.python):
        sg.init(arch=arch, random_seed=3)
        found.append(program())
    np.testing.assert_equal(found[1], found[0])
    return found[1]


def test_loops_over_fields_arrays_and_ranges() -> None:
    def program() -> Any:
        x, a = sg.field(sg.i32, shape=(2, 3), offset=(-1, 2)), sg.ndarray(sg.f64, 5)

        @sg.kernel
        def run(a: sg.types.NDArray, part: sg.BufferView, n: sg.i32):
            for i, j in x:
                x[i, j] = 10 * i + j
            for p in sg.grouped(x):
                x[p] += 100 * n
            for i in sg.ndrange(3):
                x[0, 2 + i] += 1000 * i
            for i in range(a.shape[0]):
                a[i] += i / 2
            for i in part:
                part[i] *= -1

        run(a, a[1:3], 4)
        run(a, a[::2], n=2)
        return x.to_numpy(), a.to_numpy()

    on_both(program)


def test_vectors_structs_functions_and_results() -> None:
    point = sg.types.struct(mass=sg.f32, at=sg.math.vec2)

    @sg.func
    def scaled(v, n: sg.i32):
        v[0] += 100.0  # the caller's stays as it is
        return v * n

    def program() -> Any:
        v, p = sg.Vector.field(2, sg.f32, shape=3), point.field(shape=3)

        @sg.kernel
        def run(s: sg.f32, w: sg.math.vec2) -> tuple[sg.math.vec2, sg.i32, sg.f32]:
            for i in v:
                v[i] = [i, 2 * i]
                p[i].mass = i * 0.5
                p[i].at.y += s
            sg.atomic_add(v[1], w)
            v[2].y = 7.0
            v[2] *= 2.0
            result = scaled(w, 2.7)
            return result + w, s * 3, s

        ends, whole, s = run(2.6, sg.math.vec2(1, 2))
        return ends.to_list(), whole, s, v.to_numpy(), p.mass.to_numpy(), p.at.to_numpy()

    assert on_both(program)[:2] == ([203.0, 6.0], 7)


def test_atomics_return_the_old_value() -> None:
    def program() -> Any:
        x, old = sg.field(sg.i32, shape=()), sg.field(sg.i32, shape=11)

        @sg.kernel
        def run():
            x[None] = 6
            old[0] = sg.atomic_add(x[None], 7)
            old[1] = sg.atomic_sub(x[None], 3)
            old[2] = sg.atomic_mul(x[None], 5)
            old[3] = sg.atomic_min(x[None], 40)
            old[4] = sg.atomic_max(x[None], 45)
            old[5] = sg.atomic_and(x[None], 44)
            old[6] = sg.atomic_or(x[None], 3)
            old[7] = sg.atomic_xor(x[None], 5)
            old[8] = sg.atomic_exchange(x[None], 9)
            old[9] = sg.atomic_cas(x[None], 9, 3)
            old[10] = sg.atomic_cas(x[None], 9, 4)

        run()
        return old.to_numpy(), x[None]

    on_both(program)


@dataclasses.dataclass
class Data:
    x: sg.types.NDArray
    n: sg.i32


@sg.data_oriented
class Holder:
    def __init__(self) -> None:
        self.factor = 3
        self.data = sg.field(sg.i32, shape=4)

    @sg.func
    def scaled(self, i):
        return i * self.factor

    @sg.kernel
    def run(self, given: Data, times: sg.template()):
        for i in self.data:
            for _ in sg.static(range(times)):
                self.data[i] += self.scaled(i)
            given.x[i] += given.n


def test_objects_and_arrays_of_other_libraries() -> None:
    def program() -> Any:
        holder, data = Holder(), np.arange(4.0)
        holder.run(Data(data, 5), 2)
        vectors = np.ones((2, 3), np.float32)

        @sg.kernel
        def double(v: sg.types.NDArray[sg.math.vec3, 1]):
            for i in v:
                v[i] = v[i] * [1, 2, 3] + i

        double(vectors)
        return holder.data.to_numpy(), data, vectors

    on_both(program)


def test_tensors() -> None:
    tensor = torch.zeros(3)

    @sg.kernel
    def run(a: sg.types.NDArray):
        for i in a:
            a[i] = i * i

    run(tensor)
    assert tensor.tolist() == [0, 1, 4]


def test_random_numbers() -> None:
    x = sg.field(sg.f32, shape=1000)
    n = sg.field(sg.i32, shape=1000)

    @sg.kernel
    def run():
        sg.loop_config(serialize=True)
        for i in x:
            x[i] = sg.random() + 0 * sg.randn()
            n[i] = sg.random(sg.i32)

    run()
    first = x.to_numpy()
    assert first.min() >= 0 and first.max() < 1 and abs(first.mean() - 0.5) < 0.05
    assert n.to_numpy().min() < -(2**29) and n.to_numpy().max() > 2**29
    run()
    assert (x.to_numpy() != first).all()


def test_python_in_kernels() -> None:
    """What only Python can do, and an exception, after which the session goes on."""
    x, seen = sg.field(sg.i32, shape=3), []

    @sg.kernel
    def run(limit: sg.i32):
        for i in x:
            seen.append((i, x[i]))
            if i == limit:
                raise ZeroDivisionError
            x[i] += 1

    with pytest.raises(ZeroDivisionError):
        run(2)
    run(5)
    assert seen == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 0)] and copy.copy(x[0]) == 2
    with pytest.raises(sg.SpirogradRuntimeError, match="only inside kernels"):
        sg.atomic_add(x[0], 1)
    with pytest.raises(TypeError, match="loop over a field"):
        iter(x)


def test_refusals() -> None:
    x = sg.field(sg.f32, shape=3, needs_grad=True)

    @sg.kernel
    def run(n: sg.i32):
        for i in x:
            x[i] += n

    @sg.kernel
    def of_variables() -> sg.i32:
        most = 0
        sg.atomic_max(most, 9)
        return most

    @sg.kernel
    def in_groups():
        for _ in x:
            sg.simt.block.sync()

    @sg.kernel
    def nested():
        run(1)

    for call, error, match in (
        (lambda: run.grad(1), sg.errors.SpirogradUnsupportedError, "have no gradients"),
        (lambda: run(2**40), sg.SpirogradRuntimeTypeError, "does not fit i32"),
        (lambda: run(), sg.errors.SpirogradCallError, "argument `n` is missing"),
        (of_variables, sg.SpirogradTypeError, "`atomic_max` of a variable has no meaning on `arch=sg.python`"),
        (in_groups, sg.errors.SpirogradUnsupportedError, r"`block\.sync` does not work on `arch=sg\.python`"),
        (nested, sg.SpirogradSyntaxError, "a kernel cannot be called from a kernel"),
    ):
        with pytest.raises(error, match=match):
            call()
    with pytest.raises(sg.errors.SpirogradUnsupportedError, match="have no gradients"), sg.ad.Tape():
        run(1)
    with pytest.raises(sg.SpirogradBoundsError):
        x[3]

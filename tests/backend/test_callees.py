"""Whichever way a function reaches a call, its parameters taken by reference are those variables; arguments are evaluated once."""

import functools
import types

import numpy as np
import pytest

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]


@sg.func
def add(i, ret: sg.template()):
    ret += 1.0


@sg.func
def add_two(i, ret: sg.template()):
    ret += 2.0


@sg.data_oriented
class Tasks:
    def __init__(self):
        self.step = 1.0
        self.functions = [add, add_two]
        self.by_name = {"one": add, 2: add_two}
        self.held = add
        self.space = types.SimpleNamespace(inner=types.SimpleNamespace(f=add_two))
        self.bound = self.task
        self.partial = functools.partial(self.task, 3)

    @sg.func
    def task(self, i, ret: sg.template()):
        ret += self.step

    @staticmethod
    @sg.func
    def static_task(i, ret: sg.template()):
        ret += 1.0

    @classmethod
    @sg.func
    def class_task(cls, i, ret: sg.template()):
        ret += 1.0

    @sg.func
    def __call__(self, i, ret: sg.template()):
        ret += 4.0

    @sg.func
    def pick(self, first: sg.template()):
        return sg.static(add if first else add_two)

    @sg.func
    def for_all(self, ret: sg.template(), task: sg.template()):
        for i in range(5):
            task(i, ret)

    @sg.func
    def for_odd(self, ret: sg.template(), task: sg.template(), n):
        for i in range(n):
            if i % 2:
                task(i, ret)

    @sg.func
    def nested(self, ret: sg.template(), task: sg.template()):
        for _ in range(2):
            self.for_all(ret, task)

    @sg.kernel
    def template_arguments(self) -> sg.types.vector(4, sg.f32):
        a = b = c = d = 0.0
        self.for_all(a, self.task)
        self.for_odd(b, self.task, 7)
        self.nested(c, self.task)
        self.for_all(d, add_two)
        return sg.Vector([a, b, c, d])

    @sg.kernel
    def attributes(self, n: sg.i32) -> sg.types.vector(8, sg.f32):
        v = sg.Vector([0.0] * 8)
        for _ in range(1):
            for i in range(n):
                self.held(i, v[0])
                self.space.inner.f(i, v[1])
                self.bound(i, v[2])
                self.static_task(i, v[3])
                Tasks.static_task(i, v[4])
                Tasks.task(self, i, v[5])
                self.class_task(i, v[6])
                self(i, v[7])
        return v

    @sg.kernel
    def expressions(self, n: sg.i32) -> sg.types.vector(8, sg.f32):
        v = sg.Vector([0.0] * 8)
        a = 0.0
        for _ in range(1):
            i = 0
            while i < n:
                self.functions[0](i, v[0])
                self.by_name["one"](ret=v[1], i=i)
                (add_two if sg.static(self.step > 0) else add)(i, v[2])
                sg.static(self.task)(i, v[3])
                self.pick(False)(i, v[4])
                self.partial(v[5])
                getattr(self, "task")(*[i], v[6])  # noqa: B009 -- one of the ways
                self.by_name[2](i, a)
                i += 1
        v[7] = a
        return v

    @sg.kernel
    def names(self, n: sg.i32) -> sg.types.vector(3, sg.f32):
        a = b = c = 0.0
        for _ in range(1):
            for i in range(n):
                if i < 3:
                    f = sg.static(self.functions[1])
                    f(i, a)
                for g in sg.static(self.functions):
                    g(i, b)
                add_two = sg.static(add)  # hides the function of that name
                add_two(i, c)
        return sg.Vector([a, b, c])


@sg.data_oriented
class Derived(Tasks):
    @sg.func
    def task(self, i, ret: sg.template()):
        super().task(i, ret)
        ret += 10.0

    @sg.kernel
    def of_base(self, n: sg.i32) -> sg.f32:
        a = 0.0
        for _ in range(1):
            for i in range(n):
                super().task(i, a)
        return a


def test_template_arguments():
    assert list(Tasks().template_arguments()) == [5, 3, 10, 10]
    assert list(Derived().template_arguments()) == [55, 33, 110, 10]


def test_attributes():
    for n in (0, 1, 5):
        assert list(Tasks().attributes(n)) == [n, 2 * n, n, n, n, n, n, 4 * n]


def test_expressions():
    for n in (0, 1, 5):
        assert list(Tasks().expressions(n)) == [n, n, 2 * n, n, 2 * n, n, n, 2 * n]


def test_names_that_are_bound_inside_of_the_loop():
    for n in (0, 1, 5):
        assert list(Tasks().names(n)) == [2 * min(n, 3), 3 * n, n]


def test_super():
    assert Derived().of_base(5) == 5


def test_bound_methods_as_arguments_of_kernels():
    @sg.kernel
    def run(task: sg.template(), n: sg.i32) -> sg.f32:
        a = 0.0
        for _ in range(1):
            for i in range(n):
                task(i, a)
        return a

    tasks, other = Tasks(), Derived()
    assert [run(tasks.task, n) for n in (0, 1, 5)] == [0, 1, 5]
    assert len(run._specializations) == 1
    tasks.step = 3.0  # what was compiled for another value is not used
    assert run(tasks.task, 5) == 15 and run(other.task, 5) == 55 and run(add_two, 5) == 10 and run(tasks, 2) == 8
    assert run(functools.partial(Tasks.task, tasks), 2) == 6


def test_closures_default_arguments_and_while_conditions():
    def made(step):
        @sg.func
        def inner(i, ret: sg.template()):
            ret += step

        return inner

    half = made(0.5)

    @sg.func
    def with_default(ret: sg.template(), task: sg.template() = half):
        for i in range(4):
            task(i, ret)

    @sg.func
    def below(ret: sg.template(), limit):
        ret += 1.0
        return ret < limit

    conditions = [below]

    @sg.kernel
    def run(n: sg.i32) -> sg.types.vector(3, sg.f32):
        a = b = c = 0.0
        with_default(a)
        for _ in range(1):
            for i in range(n):
                half(i, b)
            while conditions[0](c, n):
                pass
        return sg.Vector([a, b, c])

    assert list(run(6)) == [2, 3, 6]


def test_methods_of_structs_with_references_of_their_own():
    def grow(self, by, total: sg.template()):
        self.x += by
        total += self.x

    pair = sg.types.struct(x=sg.f32, __struct_methods={"grow": grow, "again": grow})
    field = pair.field(shape=3)

    @sg.kernel
    def run(n: sg.i32) -> sg.types.vector(5, sg.f32):
        a = b = c = 0.0
        s = pair(x=0.0)
        for _ in range(1):
            for i in range(n):
                s.grow(1.0, a)
                field[i % 2 + 1].again(1.0, b)
                t = pair(x=float(i))
                t.grow(1.0, total=c)
        return sg.Vector([a, b, c, s.x, pair(x=5.0).x])

    assert list(run(4)) == [1 + 2 + 3 + 4, 1 + 1 + 2 + 2, 1 + 2 + 3 + 4, 4, 5]
    assert field.x.to_numpy().tolist() == [0, 2, 2]

    @sg.kernel
    def lost():
        s = pair(x=0.0)
        total = 0.0
        method = s.grow
        method(1.0, total)

    with pytest.raises(sg.SpirogradTypeError, match="changes its struct"):
        lost()


def test_atomics_and_fill_by_other_names():
    updates = [sg.atomic_add, sg.atomic_max]

    @sg.kernel
    def run(n: sg.i32) -> sg.types.vector(4, sg.f32):
        a = b = 0.0
        v = sg.Vector([0.0, 0.0])
        for _ in range(1):
            for i in range(n):
                updates[0](a, 2.0)
                for update in sg.static(updates):
                    update(b, 1.0 + i)
                v.fill(1.0 + i)
        return sg.Vector([a, b, v[0], v[1]])

    expected = 0.0
    for i in range(4):
        expected = max(expected + 1 + i, 1 + i)
    assert list(run(4)) == [8, expected, 4, 4]


def test_parallel_loops_and_branches():
    tasks = Tasks()
    out = sg.field(sg.f32, shape=4)

    @sg.kernel
    def run(n: sg.i32):
        for i in out:
            a = 0.0
            for k in range(i):
                if k < n:
                    tasks.functions[1](k, a)
            tasks.by_name["one"](0, out[i])
            out[i] += a

    run(2)
    assert out.to_numpy().tolist() == [1, 3, 5, 5]


def test_starred_arguments_keep_the_others_in_place():
    x = sg.field(sg.f32, shape=2)

    @sg.func
    def weigh(a: sg.template(), b: sg.template(), ret: sg.template()):
        ret += a * 100.0 + b * 10.0

    @sg.kernel
    def run(a: sg.f32) -> sg.f32:
        r = 1.0
        weigh(*[a, 2.0], r)
        weigh(*[a, 2.0], x[1])
        weigh(*(a, 2.0), **{"ret": x[0]})  # noqa: PIE804 -- as a program may have it
        return r

    assert run(3.0) == 321 and x.to_numpy().tolist() == [0, 320]


def test_comprehensions_change_what_is_around_them():
    @sg.func
    def next_of(ret: sg.template()):
        ret += 1.0
        return ret

    @sg.kernel
    def run() -> sg.types.vector(4, sg.f32):
        r = 0.0
        k = 7.0
        v = [next_of(r) for k in sg.static(range(3))]
        s = 0.0
        w = [(s := s + j) for j in sg.static(range(4))]
        return sg.Vector([r + v[2], k, s, w[3]])

    assert list(run()) == [6, 7, 6, 6]


def test_each_argument_is_evaluated_once_from_left_to_right():
    n, x, v = sg.field(sg.i32, shape=()), sg.field(sg.f32, shape=8), sg.Vector.field(2, sg.f32, shape=8)
    pair = sg.types.struct(a=sg.f32)

    @sg.func
    def count():
        return sg.atomic_add(n[None], 1)

    @sg.func
    def counted():
        n[None] += 1
        return sg.Vector([1.0, 2.0])

    @sg.func
    def made():
        n[None] += 1
        return pair(a=3.0)

    @sg.func
    def raise_(r: sg.template()):
        r += 1.0

    @sg.func
    def digits(a, b, c=0):
        return a * 100 + b * 10 + c

    @sg.kernel
    def run(out: sg.types.ndarray(dtype=sg.f32, ndim=1)):
        for _ in range(1):
            out[0] = counted()[1] + counted()[0:2][1] + counted().yx[0] + [counted(), counted()][1][0]
            raise_(x[count()])  # the sixth
            v[count()].fill(2.0)
            out[1] = v[count() - 1].norm()
            out[2] = digits(count(), c=0, b=count())
            out[3] = made().a + v[6].y
            n[None] = 0
            out[4] = digits(count(), count(), count())

    out = np.zeros(5, np.float32)
    run(out)
    np.testing.assert_allclose(out, [7, np.sqrt(8), 890, 5, 12])
    assert n[None] == 3 and x.to_numpy().tolist() == [0, 0, 0, 0, 0, 1, 0, 0]

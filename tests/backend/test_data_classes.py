"""Objects that kernels take from outside: data-oriented classes, dataclasses, template arguments, closures."""

import dataclasses
import gc
import weakref

import numpy as np
import pytest

import spirograd as sg

# The front end leaves nothing of it to code generators: the interpreter, which runs what it makes, and one back end with passes.
pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.archs("interpreter", "cpu")]


@sg.data_oriented
class Counter:
    """Fields, numbers, functions and kernels in one class."""

    def __init__(self, n: int, step: int) -> None:
        self.n = n
        self.step = step
        self.x = sg.field(sg.i32, shape=n)
        self.offset = sg.Vector([1, 2])
        self.names = {"low": 1, "high": 5}
        self.children: list = []

    @sg.func
    def scaled(self, i):
        return i * self.step + self.bias()

    @staticmethod
    @sg.func
    def twice(v):
        return v * 2

    @sg.func
    def bias(self):
        return 0

    @sg.kernel
    def fill(self):
        for i in self.x:
            self.x[i] = self.scaled(i) + self.offset[1]

    @sg.kernel
    def add(self, other: sg.template(), by: sg.i32) -> sg.i32:
        for i in range(self.n):
            self.x[i] += self.twice(by) + other[i]
        return self.x[self.n - 1]


@sg.data_oriented
class Biased(Counter):
    @sg.func
    def bias(self):
        return 1000

    @sg.kernel
    def more(self):
        self.x[0] = -self.bias()


def test_methods_and_inheritance(arch: str) -> None:
    a, b, c = Counter(4, 10), Counter(6, 3), Biased(3, 1)
    for obj in (a, b, c):
        obj.fill()
    np.testing.assert_array_equal(a.x.to_numpy(), 10 * np.arange(4) + 2)
    np.testing.assert_array_equal(b.x.to_numpy(), 3 * np.arange(6) + 2)
    np.testing.assert_array_equal(c.x.to_numpy(), np.arange(3) + 1002)
    assert a.add(b.x, 100) == 30 + 2 + 200 + 9 + 2
    assert a.add(other=b.x, by=0) == 30 + 2 + 200 + 2 * (9 + 2)
    c.more()
    assert c.x[0] == -1000


def test_changed_attributes_are_noticed(arch: str, session) -> None:
    a = Counter(4, 10)
    a.fill()
    compiled = session.compiled

    def check(step: int, offset: int) -> None:
        a.fill()
        np.testing.assert_array_equal(a.x.to_numpy(), step * np.arange(4) + offset)

    a.step = 7
    check(7, 2)
    a.offset[1] = 5
    check(7, 5)
    a.offset = sg.Vector([0, 9])
    check(7, 9)
    old = a.x
    a.x = sg.field(sg.i32, shape=2)
    a.fill()
    assert a.x.to_numpy().tolist() == [9, 16] and old[3] == 30
    assert session.compiled == compiled + 4
    a.x, a.step, a.offset = old, 10, sg.Vector([1, 2])
    check(10, 2)
    check(10, 2)
    assert session.compiled == compiled + 4  # what was compiled first


def test_types_of_numbers_count(arch: str) -> None:
    @sg.data_oriented
    class Scale:
        def __init__(self) -> None:
            self.k = 2

        @sg.kernel
        def half(self) -> sg.f32:
            return (self.k + 1) // 2 + self.k / 4

    s = Scale()
    assert s.half() == 1.5
    s.k = 2.0
    assert s.half() == 1.5
    s.k = 2.5
    assert s.half() == 1 + 0.625
    s.k = float("nan")
    assert np.isnan(s.half())
    s.k = True
    assert s.half() == 1.25


def test_nested_objects(arch: str, session) -> None:
    class Material:
        def __init__(self, stiffness: float) -> None:
            self.stiffness = stiffness
            self.table = sg.ndarray(sg.f32, 3)
            self.table.fill(stiffness)

    @sg.data_oriented
    class Part:
        def __init__(self, material: Material) -> None:
            self.material = material
            self.f = sg.field(sg.f32, shape=())
            self.weights = [0.5, 1.5]
            self.fields = [sg.field(sg.i32, shape=2), sg.field(sg.i32, shape=3)]

        @sg.func
        def force(self, d):
            return self.material.stiffness * d

    @sg.data_oriented
    class World:
        def __init__(self) -> None:
            self.parts = [Part(Material(1.0)), Part(Material(10.0))]
            self.main = self.parts[1]

        @sg.kernel
        def run(self, d: sg.f32):
            for p in sg.static(self.parts):
                p.f[None] = p.force(d)
            self.main.f[None] += self.main.material.table[1] * 100
            for k in sg.static(range(2)):
                for i in self.main.fields[k]:
                    self.main.fields[k][i] = i + k * self.main.weights[k]

    w = World()
    w.run(2)
    assert w.parts[0].f[None] == 2 and w.main.f[None] == 1020
    assert w.main.fields[1].to_numpy().tolist() == [1, 2, 3]
    compiled = session.compiled
    w.main.material.table.fill(20)
    w.run(2)
    assert w.main.f[None] == 2020 and session.compiled == compiled
    w.main.material.table = sg.ndarray(sg.f32, 5)
    w.run(2)
    assert w.main.f[None] == 20 and session.compiled == compiled
    w.main.material = Material(3.0)
    w.run(2)
    assert w.main.f[None] == 6 + 300
    w.main.weights[1] = 7.0
    w.run(2)
    assert w.main.fields[1].to_numpy().tolist() == [7, 8, 9]


def test_attributes_that_were_one_array(arch: str) -> None:
    @sg.data_oriented
    class Pair:
        def __init__(self) -> None:
            self.a = self.b = sg.ndarray(sg.f32, 2)

        @sg.kernel
        def run(self):
            for i in self.a:
                self.a[i] = 1
                self.b[i] += 10

    p = Pair()
    p.run()
    assert p.a.to_numpy().tolist() == [11, 11]
    p.b = sg.ndarray(sg.f32, 2)
    p.run()
    assert p.a.to_numpy().tolist() == [1, 1] and p.b.to_numpy().tolist() == [10, 10]


def test_instances_are_let_go(arch: str) -> None:
    @sg.data_oriented
    class Holder:
        def __init__(self, k: int) -> None:
            self.k = k
            self.a = sg.ndarray(sg.i32, 4)

        @sg.kernel
        def run(self):
            for i in self.a:
                self.a[i] = self.k

    alive = []
    for k in range(4):
        h = Holder(k)
        h.run()
        assert h.a[3] == k
        alive += [weakref.ref(h), weakref.ref(h.a)]
        del h
        gc.collect()
    assert [ref() for ref in alive] == [None] * 8


def test_other_things_in_classes(arch: str, session) -> None:
    @sg.data_oriented
    class Base:
        scale = 3
        __slots__ = ("_n", "x")

        def __init__(self) -> None:
            self.x = sg.ndarray(sg.f32, 4)
            self._n = np.int64(4)

        @property
        def n(self):
            return self._n

        @property
        def table(self):
            return {"bonus": [self._n, 0]}

        @classmethod
        def make(cls):
            return cls()

        @staticmethod
        def plain(k):
            return k * 2

        @sg.func
        def value(self, i):
            return self.scale * i + self.plain(3)

    class Derived(Base):
        @sg.func
        def value(self, i):
            return super().value(i) + self.table["bonus"][0] + Base.value(self, 0)

        @sg.kernel
        def run(self):
            for i in range(self.n):
                self.x[i] = self.value(i)

    d = Derived.make()
    d.run()
    assert d.x.to_numpy().tolist() == [16, 19, 22, 25]
    compiled = session.compiled
    d.run()
    assert session.compiled == compiled
    Base.scale = 100
    d._n = np.int64(2)
    d.run()
    assert d.x.to_numpy().tolist() == [14, 114, 22, 25]


def test_instances_that_are_equal_are_not_the_same(arch: str) -> None:
    @sg.data_oriented
    @dataclasses.dataclass
    class Cell:
        k: int
        f: object

        @sg.kernel
        def run(self) -> sg.i32:
            return self.k + self.f[0]

    f, g = sg.field(sg.i32, shape=1), sg.field(sg.i32, shape=1)
    f[0] = 10
    cells = [Cell(1, f), Cell(1, f), Cell(1, g)]
    assert [c.run() for c in cells] == [11, 11, 1]
    cells[0].k = 5
    cells[1].f = g
    assert [c.run() for c in cells] == [15, 1, 1]


def test_class_must_be_marked(arch: str) -> None:
    class Plain:
        @sg.kernel
        def run(self):
            pass

    with pytest.raises(sg.SpirogradRuntimeError, match="data_oriented"):
        Plain().run()


def test_templates(arch: str, session) -> None:
    x, y = sg.field(sg.i32, shape=3), sg.field(sg.f32, shape=(2, 2))

    @sg.func
    def double(v):
        return v * 2

    @sg.func
    def negative(v):
        return -v

    @sg.kernel
    def fill(f: sg.template(), value: sg.template(), g: sg.template(), t: sg.template(), at: sg.template()):
        for I in sg.grouped(f):
            f[I] = g(sg.cast(value, t)) + at[0]

    fill(x, 2.75, double, sg.i32, (1, 2))
    assert x.to_numpy().tolist() == [5] * 3
    compiled = session.compiled
    fill(x, 2.75, double, sg.i32, (1, 2))
    fill(x, 2.75, double, sg.i32, (1, 2))
    assert session.compiled == compiled
    fill(y, 2.75, negative, sg.f32, [10, 20])
    assert y.to_numpy().tolist() == [[7.25] * 2] * 2
    fill(x, 3, double, sg.i32, sg.Vector([100]))
    assert x.to_numpy().tolist() == [106] * 3
    fill(x, True, double, sg.i32, {0: 7})
    assert x.to_numpy().tolist() == [9] * 3
    compiled = session.compiled
    fill(x, True, double, sg.i32, {0: 7})
    fill(x, 3, double, sg.i32, sg.Vector([100]))
    assert session.compiled == compiled


def test_templates_of_arrays_and_text(arch: str, session) -> None:
    @sg.kernel
    def run(x: sg.Template, mode: sg.template()) -> sg.i32:
        if sg.static(mode == "set"):
            for i in x:
                x[i] = i
        elif sg.static(mode is None):
            for i in x:
                x[i] = -1
        return x[1] + x.shape[0]

    a, b = sg.ndarray(sg.i32, 3), sg.ndarray(sg.i32, 5)
    assert run(a, "set") == 4 and run(b, "set") == 6
    compiled = session.compiled
    assert run(sg.ndarray(sg.i32, 9), "set") == 10 and session.compiled == compiled
    assert run(a, None) == 2 and run(a, mode="none") == 2


def test_function_arguments(arch: str) -> None:
    @sg.func
    def square(v):
        return v * v

    @sg.func
    def twice(f: sg.types.func, v):
        return f(f(v))

    @sg.kernel
    def apply(f: sg.types.func, v: sg.i32) -> sg.i32:
        return twice(f, v) + twice(square, 2)

    assert apply(square, 3) == 97


@dataclasses.dataclass
class Grid:
    cells: sg.types.NDArray[sg.f32, 2]
    spacing: sg.f32
    size: sg.types.vector(2, sg.i32)


@dataclasses.dataclass(frozen=True)
class Scene:
    grid: Grid
    mask: sg.template()
    gain: float
    count: int
    label: sg.template() = "scene"


def test_dataclasses(arch: str, session) -> None:
    mask = sg.field(sg.i32, shape=3)

    @sg.func
    def cell(g: Grid, i, j):
        return g.cells[i, j] * g.spacing

    @sg.kernel
    def run(s: Scene, out: sg.types.ndarray(sg.f32, 2)):
        for i, j in s.grid.cells:
            s.grid.cells[i, j] += s.gain
            out[i, j] = cell(s.grid, i, j) + s.grid.size.x + s.count
            if sg.static(s.label == "scene"):
                s.mask[i] = 1

    cells, out = sg.ndarray(sg.f32, (2, 3)), sg.ndarray(sg.f32, (2, 3))
    run(Scene(Grid(cells, 0.5, [10, 20]), mask, 4.0, 100), out)
    np.testing.assert_array_equal(cells.to_numpy(), 4)
    np.testing.assert_array_equal(out.to_numpy(), 112)
    assert mask.to_numpy().tolist() == [1, 1, 0]
    compiled = session.compiled
    array = np.zeros((3, 1), np.float32)
    scene = Scene(Grid(array, 2, sg.Vector([1, 2])), mask, 1.0, 0)
    out = np.zeros((3, 1), np.float32)
    run(scene, out)
    assert session.compiled == compiled
    assert out.tolist() == [[3]] * 3 and array.tolist() == [[1]] * 3 and mask[2] == 1
    scene.grid.spacing = 10
    run(scene, out)
    assert out.tolist() == [[21]] * 3
    mask.fill(0)
    run(dataclasses.replace(scene, label="other"), out)
    assert mask.to_numpy().sum() == 0
    for bad in (3, Grid(cells, 1, [1, 2]), Scene(3, mask, 1.0, 1), Scene(Grid(mask, 1, [1, 2]), mask, 1.0, 1)):
        with pytest.raises(sg.SpirogradRuntimeTypeError):
            run(bad, out)


def test_dataclass_members_of_methods(arch: str) -> None:
    @sg.data_oriented
    class Solver:
        def __init__(self) -> None:
            self.k = 3

        @sg.kernel
        def run(self, g: Grid):
            for i, j in g.cells:
                g.cells[i, j] = self.k * i + j

    g = Grid(sg.ndarray(sg.f32, (2, 2)), 1, [0, 0])
    Solver().run(g)
    assert g.cells.to_numpy().tolist() == [[0, 1], [3, 4]]


def test_kernels_made_in_functions(arch: str) -> None:
    def make(power: int, f):
        @sg.kernel
        def raised(x: sg.f32) -> sg.f32:
            r = 1.0
            for _ in sg.static(range(power)):
                r *= f(x)
            return r

        return raised

    @sg.func
    def plus(x):
        return x + offset

    offset = 1.0
    square, cube = make(2, plus), make(3, plus)
    assert square(2) == 9 and cube(2) == 27
    offset = 2.0
    assert square(2) == 9 and make(2, plus)(2) == 16  # closures are constants of the compilation


def test_attribute_that_is_none_beside_globals():
    """What a kernel finds by name is no attribute of a `None` that it read before."""
    values = sg.ndarray(sg.f32, shape=4)
    scale = 3

    @sg.data_oriented
    class Solver:
        def __init__(self):
            self.limit = None

        @sg.kernel
        def run(self):
            if self.limit is None:
                for i in range(4):
                    values[i] = scale * i

    solver = Solver()
    for _ in range(2):
        solver.run()
        np.testing.assert_array_equal(values.to_numpy(), [0, 3, 6, 9])
        values.fill(0)
    assert [len(found) for found in Solver.run._specializations.values()] == [1]


@pytest.mark.parametrize("equal", [False, True])
def test_attribute_that_is_none_once_its_object_is_gone(equal):
    """The weak reference to what the attribute was gives None, too."""

    class Plain:
        pass

    class Equal:
        def __eq__(self, other):
            return True

        __hash__ = None

    class Owner:
        pass

    owner = Owner()
    owner.part = Equal() if equal else Plain()

    @sg.kernel
    def parts(owner: sg.template()) -> sg.i32:
        return 0 if sg.static(owner.part is None) else 1

    assert parts(owner) == 1
    owner.part = None
    assert parts(owner) == 0


@sg.data_oriented
class Named:
    """The object has other names than `self`."""

    def __init__(this, k):
        this.k = k
        this.x, this.y = (sg.field(sg.f32, shape=3, needs_grad=True) for _ in range(2))

    @sg.func
    def scaled(me, v):
        return v * me.k

    @sg.kernel
    def fill(this, value: sg.f32):
        for i in this.x:
            this.y[i] = this.scaled(this.x[i]) + value

    @sg.kernel
    def total(that) -> sg.f32:
        s = 0.0
        for i in that.y:
            s += that.y[i]
        return s


@sg.data_oriented
class Derived(Named):
    @sg.kernel
    def add(obj, n: sg.i32):
        for i in range(n):
            obj.y[i] += obj.scaled(1.0)


@sg.kernel
def added_later(thing, value: sg.f32):
    for i in thing.y:
        thing.y[i] += value


def test_the_object_of_a_method_has_any_name(session) -> None:
    a, b = Named(2.0), Derived(3.0)
    for which in (a, b):
        which.x.fill(1)
        which.fill(1.0)
    b.add(2)
    assert a.total() == 9
    assert b.total() == 18
    a.k = 4.0  # an attribute that the kernel read: it is compiled again
    a.fill(0.0)
    assert Named.total(a) == 12
    a.y.grad.fill(1)
    a.fill.grad(0.0)
    assert (a.x.grad.to_numpy() == 4).all()
    Named.later = added_later
    try:
        a.later(1.0)
    finally:
        del Named.later
    assert a.total() == 15


def test_parameters_of_other_kernels_need_types(session) -> None:
    @sg.kernel
    def work(this, a: sg.f32):
        pass

    class Holder:
        @staticmethod
        @sg.kernel
        def static(this, a: sg.f32):
            pass

    for kernel in (work, Holder.static):
        with pytest.raises(sg.SpirogradTypeError, match="parameter `this` has no type"):
            kernel(1.0, 2.0)

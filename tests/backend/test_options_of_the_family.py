"""What programs of the family expect of their modules: powers of integers, orders of axes, and which tensors have gradients."""

import itertools

import needs
import numpy as np
import pytest

import spirograd as sg
from spirograd.compat import quadrants as qd
from spirograd.compat import taichi as ti

torch = needs.package("torch")


@pytest.mark.parametrize("library", [ti, qd])
@pytest.mark.parametrize("t", ["i32", "i64", "u32", "i8"])
def test_integers_to_negative_powers(arch, library, t):
    library.init(arch=arch)
    dtype = getattr(library, t)

    @library.kernel
    def power(a: dtype, n: library.i32) -> dtype:
        return a**n

    bases = (0, 1, 2, 3) if t == "u32" else (-3, -1, 0, 1, 2, 3)
    for a, n in itertools.product(bases, range(-3, 4)):
        assert power(a, n) == a ** abs(n)


def test_the_option_of_negative_powers(arch):
    @sg.kernel
    def power(a: sg.i32, n: sg.i32) -> sg.i32:
        return a**n

    for options, expected in (({}, 0), ({"negative_powers": "truncate"}, 0), ({"negative_powers": "ignore_sign"}, 8)):
        sg.init(arch=arch, **options)
        assert power(2, -3) == expected
        assert power(-1, -3) == -1
    with pytest.raises(RuntimeError, match="`negative_powers` is one of 'truncate', 'ignore_sign', not 'x'"):
        sg.init(arch=arch, negative_powers="x")
    sg.init(arch=arch, debug=True, negative_powers="ignore_sign")
    assert power(2, 3) == 8
    with pytest.raises(AssertionError, match="negative power"):
        power(2, -3)
        sg.sync()


def test_annotations_mean_the_default_types_of_the_session(arch):
    sg.reset()  # as in modules that are imported before `init`

    @sg.kernel
    def store(a: sg.types.ndarray(dtype=float, ndim=1), v: sg.types.ndarray(dtype=sg.types.vector(2, float))):
        a[0] = v[0][0] / 3

    @sg.real_func
    def third(x: sg.types.ref(float)):
        x /= 3

    @sg.kernel
    def call() -> float:
        x = 1.0
        third(x)
        return x

    for t, number in ((sg.f32, np.float32), (sg.f64, np.float64)):
        sg.init(arch=arch, default_fp=t)
        a, v = sg.ndarray(float, 1), sg.Vector.ndarray(2, float, 1)
        v.fill(1)
        store(a, v)
        assert a.dtype is t and a[0] == number(1) / number(3)
        assert call() == number(1) / number(3)
        with pytest.raises((TypeError, ValueError), match=f"expected an array of {t}"):
            store(np.zeros(1, {sg.f32: np.float64, sg.f64: np.float32}[t]), v)


@pytest.mark.parametrize("library", [ti, qd])
def test_floats_as_bounds_of_ranges(arch, library, caplog):
    library.init(arch=arch)
    steps, whole = 2.7, 4.0

    @library.kernel
    def sums(a: library.f32, out: library.types.ndarray(dtype=library.i32, ndim=1)):
        for i in range(whole):
            out[i] = 10 * i
        for _ in range(1):
            for i in range(-a, a):
                out[4] += 100 + i
            for i in range(steps):
                out[5] += 100 + i

    out = np.zeros(6, np.int32)
    with caplog.at_level("WARNING", "spirograd"):
        sums(1.75, out)
    assert out.tolist() == [0, 10, 20, 30, 99 + 100, 100 + 101]
    given = [record.message.partition(", ")[0] for record in caplog.records]
    assert given == [f"a bound of `range` is of type i32 and takes {value}" for value in ("a value of type f32", "2.7")]


def test_the_option_of_floats_as_bounds(arch):
    @sg.kernel
    def count(a: sg.f32) -> sg.i32:
        n = 0
        for _ in range(a):
            n += 1
        return n

    sg.init(arch=arch)
    with pytest.raises(sg.SpirogradTypeError, match="`range` needs integers, got f32"):
        count(2.5)
    sg.init(arch=arch, float_bounds="cast")
    assert [count(a) for a in (-1.5, 0.9, 2.5)] == [0, 0, 2]


def test_vectors_and_variables_to_negative_powers(arch):
    ti.init(arch=arch)

    @ti.kernel
    def powers(n: ti.i32) -> ti.types.vector(4, ti.i32):
        v = ti.Vector([2, 3]) ** n
        w = 5
        w **= n
        return ti.Vector([v[0], v[1], w, 2**n])

    assert powers(-2).to_list() == [4, 9, 25, 4]
    assert powers(3).to_list() == [8, 27, 125, 8]


@pytest.mark.parametrize("axes", [2, 3, 9, 12])
def test_orders_of_many_axes(session, axes):
    letters = "ijklmnopqrst"[:axes]
    shape = tuple(2 if k in (0, 1, axes - 1) else 1 for k in range(axes))
    numbers = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    orders = {letters, letters[::-1], letters[1:] + letters[0]}

    for order in orders:
        x = sg.field(sg.i32, shape=shape, order=order)
        x.from_numpy(numbers)
        assert (x.to_numpy() == numbers).all()
        last = tuple(n - 1 for n in shape)
        assert x[last] == numbers[last]

        @sg.kernel
        def weighted() -> sg.i32:
            total = 0
            for index in sg.grouped(x):
                total += x[index] * (index[0] + 2 * index[1])
            return total

        grid = np.indices(shape)
        assert weighted() == (numbers * (grid[0] + 2 * grid[1])).sum()


def test_orders_that_are_none(session):
    for order, message in (("ik", "axis 'k'"), ("ii", "repeats an axis"), ("i", "names 2 axes"), ("ab", "axis 'a'"), (3, "names 2 axes")):
        with pytest.raises(TypeError, match=message):
            sg.field(sg.i32, shape=(2, 3), order=order)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("library", [sg, ti, qd])
def test_gradients_of_tensors_are_there_after_a_launch(arch, library):
    library.init(arch=arch)

    @library.kernel
    def square(a: library.types.ndarray(), b: library.types.ndarray()):
        for i in a:
            b[i] = a[i] * a[i]

    a = torch.arange(4.0, requires_grad=True)
    b = torch.zeros(4, requires_grad=True)
    square(a, b)
    a.grad.zero_()
    b.grad.fill_(1.0)
    square.grad(a, b)
    assert a.grad.tolist() == [0.0, 2.0, 4.0, 6.0]
    plain = torch.arange(4.0)
    square(plain, torch.zeros(4))
    assert plain.grad is None


@pytest.mark.needs("torch")
def test_tensors_that_need_no_gradient(session):
    @sg.kernel
    def scaled(a: sg.types.ndarray(needs_grad=False), b: sg.types.ndarray(), c: sg.types.ndarray()):
        for i in a:
            c[i] = a[i] * b[i]

    a, b = (torch.arange(4.0, requires_grad=True) for _ in range(2))
    c = torch.zeros(4, requires_grad=True)
    scaled(a, b, c)
    assert a.grad is None and b.grad is not None
    assert c.tolist() == [0.0, 1.0, 4.0, 9.0]
    c.grad.fill_(1.0)
    scaled.grad(a, b, c)
    assert a.grad is None and b.grad.tolist() == [0.0, 1.0, 2.0, 3.0]
    changed = torch.zeros(4, requires_grad=True)

    @sg.kernel
    def fill(x: sg.types.ndarray(needs_grad=False)):
        for i in x:
            x[i] = i

    fill(changed)
    assert changed.grad is None and changed.tolist() == [0.0, 1.0, 2.0, 3.0]

"""Variables that stay known while compiling, and forms of indices, conditionals and annotations that large programs use."""

import needs
import numpy as np
import pytest

import spirograd as sg

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.usefixtures("session")]


def test_a_variable_assigned_once_by_static_stays_known():
    @sg.func
    def same(x: sg.template()):
        return x + 1

    @sg.kernel
    def run(n: sg.template(), count: sg.i32) -> sg.i32:
        flag = sg.static(n > 2)
        size = sg.static(n + 1)
        total = same(size)
        if sg.static(flag):
            total += 1000
        for _ in range(count):
            doubled = sg.static(2 * size)
            for k in sg.static(range(doubled)):
                total += k
        return total

    for n, count in ((1, 0), (1, 3), (4, 0), (4, 2)):
        expected = n + 2 + (1000 if n > 2 else 0) + count * sum(range(2 * n + 2))
        assert run(n, count) == expected


def test_a_variable_assigned_by_static_that_changes_is_a_variable():
    @sg.kernel
    def run(count: sg.i32) -> sg.i32:
        total = sg.static(1)
        for i in range(count):
            total += i
        least = sg.static(9)
        sg.atomic_min(least, total)
        return 100 * total + least

    assert run(0) == 101
    assert run(5) == 1109


def test_a_variable_of_branches_that_exclude_each_other_stays_known():
    @sg.func
    def same(x: sg.template()):
        return x + 1

    @sg.kernel
    def run(n: sg.template(), out: sg.types.NDArray[sg.i32, 1]):
        if sg.static(n > 2):
            size = sg.static(4 * n)
            sg.loop_config(block_dim=size)
            for i in out:
                out[i] = same(size)
        elif sg.static(n > 1):
            if sg.static(n == 2):
                size = sg.static(8)
                for i in out:
                    out[i] = same(size) + size
        else:
            size = sg.static(16 * n)
            for i in out:
                for k in sg.static(range(size)):
                    out[i] += k

    for n, expected in ((4, 17), (2, 17), (1, sum(range(16)))):
        out = np.zeros(5, np.int32)
        run(n, out)
        assert (out == expected).all()


def test_a_variable_assigned_in_turn_outside_of_loops_stays_known():
    @sg.kernel
    def run(n: sg.template(), out: sg.types.NDArray[sg.i32, 1], count: sg.i32):
        size = sg.static(2 * n)
        for i in out:
            for k in sg.static(range(size)):
                out[i] += k
        if sg.static(n > 1):
            size = sg.static(16 * n)
            sg.loop_config(block_dim=size)
            for i in out:
                out[i] += size
        for i in out:
            for _ in range(count):
                out[i] += size

    for n in (1, 2):
        out = np.zeros(5, np.int32)
        run(n, out, 3)
        assert (out == sum(range(2 * n)) + (4 * 16 * n if n > 1 else 3 * 2 * n)).all()


def test_a_variable_of_branches_that_follow_each_other_is_a_variable():
    @sg.kernel
    def run(n: sg.template(), count: sg.i32) -> sg.i32:
        size = sg.static(0)
        for _ in range(count):
            if sg.static(n > 1):
                size = sg.static(n)
            if sg.static(n > 2):
                size = sg.static(n + 1)
        if count > 5:
            other = sg.static(10)
        else:
            other = sg.static(20)
        return size + other

    assert [run(n, count) for n in (1, 2, 3) for count in (0, 1, 6)] == [20, 20, 10, 20, 22, 12, 20, 24, 14]


def test_a_known_variable_cannot_be_changed_by_reference():
    @sg.func
    def increment(x: sg.template()):
        x += 1

    @sg.kernel
    def run() -> sg.i32:
        n = sg.static(1)
        increment(n)
        return n

    with pytest.raises(sg.SpirogradTypeError, match="`increment` changes `n`, which is known while compiling"):
        run()


def test_lists_and_tuples_as_indices():
    x = sg.field(sg.f32, shape=(3, 4, 5))
    x.from_numpy(np.arange(60, dtype=np.float32).reshape(3, 4, 5))

    @sg.func
    def at(f: sg.template(), where):
        return f[where]

    @sg.func
    def between(f: sg.template(), i, where, k):
        return f[i, where, k]

    @sg.kernel
    def run(i: sg.i32) -> sg.types.vector(4, sg.f32):
        return sg.Vector([at(x, [i, 2, 3]), between(x, i, (2,), 3), between(x, i, [2], 3), between(x, (i, 2), (), 3)])

    assert list(run(1)) == [33.0] * 4


def test_conditionals_of_tuples():
    @sg.kernel
    def run(c: sg.i32) -> sg.f32:
        a, b = (1, 2.5) if c > 0 else (3, 4)
        (p, q), v = ((a, 2), sg.Vector([1.0, 2.0])) if c > 1 else ((4, a), sg.Vector([5.0, 6.0]))
        return 1000 * a + 100 * b + 10 * p + q + 0.1 * v.sum()

    for c in (0, 1, 2):
        a, b = (1, 2.5) if c > 0 else (3, 4)
        (p, q), v = ((a, 2), 3.0) if c > 1 else ((4, a), 11.0)
        assert run(c) == pytest.approx(1000 * a + 100 * b + 10 * p + q + 0.1 * v)


def test_elements_of_arrays_by_their_number_of_axes():
    @sg.kernel
    def total(a: sg.types.ndarray(element_dim=1)) -> sg.f32:
        s = 0.0
        for i in a:
            s += a[i].sum()
        return s

    @sg.kernel
    def corners(a: sg.types.ndarray(element_dim=2, ndim=1)) -> sg.f32:
        s = 0.0
        for i in a:
            s += a[i][0, 1]
        return s

    assert total(np.ones((4, 3), np.float32)) == 12
    assert total(np.ones((5, 2), np.float32)) == 10
    assert corners(np.ones((4, 2, 3), np.float32)) == 4
    with pytest.raises(TypeError, match="expected an array with 1 axis, got 2"):
        corners(np.ones((4, 2, 3, 2), np.float32))
    scalars = sg.ndarray(sg.f32, 4)
    with pytest.raises(TypeError, match="whose elements have 1 axis, got 0"):
        total(scalars)
    torch = needs.package("torch")
    assert total(torch.ones(6, 2)) == 12


@pytest.mark.archs("interpreter", "cpu")  # f64
def test_vectors_of_any_type_in_annotations():
    any3 = sg.types.vector(3)

    @sg.func
    def shifted(v: any3, w: sg.types.vector(2)) -> (any3, sg.types.vector(2)):
        return v + 1, w * 2

    @sg.kernel
    def run() -> sg.f64:
        v, w = shifted(sg.Vector([1.0, 2, 3]), sg.Vector([sg.cast(0.1, sg.f64), 2]))
        return v.sum() + w[0]

    @sg.kernel
    def first(a: sg.types.ndarray(any3, ndim=1)) -> sg.f64:
        return a[0][1]

    assert run() == pytest.approx(9.2, abs=1e-12)
    assert first(np.full((2, 3), 1.1)) == 1.1
    assert first(np.full((2, 3), 4, np.int32)) == 4
    with pytest.raises(TypeError, match="has no elements of shape"):
        first(np.ones((2, 4)))
    assert any3 == sg.types.vector(3) != sg.types.vector(3, sg.f32)
    assert repr(any3) == "vector(3)"
    with pytest.raises(TypeError, match="no type of entries"):
        any3.field(shape=2)

"""What programs of the Taichi family write: several results, references, `fill` in kernels, `and` of vectors, calls that do not fit."""

from __future__ import annotations

import typing
from typing import Any

import numpy as np
import pytest

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]
VEC2 = sg.types.vector(2, sg.f32)
PAIR = sg.types.struct(a=sg.i32, b=sg.f32)


# --- several results ---------------------------------------------------------------------------------------------------------


_ANNOTATIONS = [(sg.i32, sg.f32), tuple[sg.i32, sg.f32], typing.Tuple[sg.i32, sg.f32], [sg.i32, sg.f32]]  # noqa: UP006


@pytest.mark.parametrize("annotation", _ANNOTATIONS, ids=str)
def test_kernels_return_tuples(annotation: Any) -> None:
    def run(a):
        return a, a * 0.5

    run.__annotations__ = {"a": sg.i32, "return": annotation}
    kernel = sg.kernel(run)
    assert kernel(7) == (7, 3.5)
    assert kernel(-8) == (-8, -4.0)


def test_members_of_a_result_are_converted_one_by_one() -> None:
    @sg.kernel
    def run(x: sg.f32) -> (sg.i32, sg.u8, bool, sg.f32):
        return x, x, x, x

    assert run(2.75) == (2, 2, True, 2.75)
    assert run(0.0) == (0, 0, False, 0.0)


def test_results_hold_vectors_and_structs() -> None:
    @sg.kernel
    def run(n: sg.i32) -> (VEC2, PAIR, sg.i64):
        total = sg.i64(0)
        for i in range(n):
            total += i
        return sg.Vector([n, 2 * n]), PAIR(a=n, b=0.5), total

    for n in (0, 1, 1000):
        vector, pair, total = run(n)
        assert vector.to_list() == [n, 2 * n]
        assert (pair.a, pair.b, total) == (n, 0.5, n * (n - 1) // 2)


def test_a_tuple_from_a_function_and_from_branches() -> None:
    @sg.func
    def divided(a, b):
        return a // b, a % b

    @sg.real_func
    def sorted_pair(a: sg.i32, b: sg.i32) -> (sg.i32, sg.f32):
        if a > b:
            return b, a
        return a, b

    @sg.kernel
    def run(a: sg.i32, b: sg.i32) -> tuple[sg.i32, sg.i32, sg.f32]:
        q, r = divided(a, b)
        low, high = sorted_pair(q, r)
        return low, r, high / 2

    assert run(17, 5) == (2, 2, 1.5)
    assert run(9, 7) == (1, 2, 1.0)


def test_a_function_converts_what_its_annotation_says() -> None:
    @sg.func
    def parts(x) -> (sg.i32, sg.f32):
        return x, x

    @sg.kernel
    def run(x: sg.f32) -> sg.f32:
        whole, all_of_it = parts(x)
        return 100 * whole + all_of_it

    assert run(2.75) == 202.75


def test_wrong_numbers_of_results() -> None:
    @sg.kernel
    def few() -> (sg.i32, sg.f32):
        return 1

    @sg.kernel
    def many() -> (sg.i32, sg.f32):
        return 1, 2, 3

    for kernel, got in ((few, "got the number 1"), (many, "got a tuple of 3")):
        with pytest.raises(sg.SpirogradTypeError, match=f"expected 2 values, .*{got}"):
            kernel()


def test_a_tuple_of_one_is_its_member() -> None:
    @sg.kernel
    def run() -> (sg.i32,):
        return 3

    assert run() == 3


def test_an_annotation_of_a_scalar_is_the_type_of_a_vectors_entries() -> None:
    @sg.func
    def whole(v: sg.i32):
        return v

    @sg.func
    def made() -> sg.i32:
        return sg.Vector([1.5, 2.75])

    @sg.kernel
    def run() -> sg.math.vec4:
        a, b = whole(sg.Vector([3.5, 4.25])), made()
        return sg.Vector([a[0], a[1], b[0], b[1]])

    assert run().to_list() == [3, 4, 1, 2]


# --- fill --------------------------------------------------------------------------------------------------------------------


def test_fill_in_a_kernel() -> None:
    x = sg.field(sg.f32, shape=7)
    shifted = sg.field(sg.i32, shape=(3, 5), offset=(-1, 2))
    v = sg.Vector.field(3, sg.i32, shape=(2, 2))
    pairs = PAIR.field(shape=3)
    empty = sg.field(sg.i32, shape=())

    @sg.kernel
    def run(value: sg.i32, a: sg.types.NDArray[sg.f64, 2]):
        x.fill(value * 0.5)
        shifted.fill(value)
        v.fill(sg.Vector([1, 2, value]))
        pairs.fill(PAIR(a=value, b=0.25))
        empty.fill(value)
        a.fill(value)

    for value in (3, -4):
        a = np.ones((2, 3))
        run(value, a)
        assert (x.to_numpy() == value * 0.5).all() and (shifted.to_numpy() == value).all() and (a == value).all()
        assert (v.to_numpy() == [1, 2, value]).all()
        assert [(pairs[i].a, pairs[i].b) for i in range(3)] == [(value, 0.25)] * 3
        assert empty[None] == value


def test_fill_in_functions_loops_and_branches() -> None:
    x, y = sg.field(sg.i32, shape=5), sg.field(sg.i32, shape=5)

    @sg.func
    def clear(f: sg.template()):
        f.fill(0)

    @sg.kernel
    def run(n: sg.i32):
        clear(x)
        for _ in range(1):
            for k in range(n):
                y.fill(k)
        for i in x:
            x[i] += i

    for n in (1, 4):
        run(n)
        assert x.to_numpy().tolist() == [0, 1, 2, 3, 4]
        assert y.to_numpy().tolist() == [n - 1] * 5


def test_what_does_not_fit_a_fill() -> None:
    v = sg.Vector.field(3, sg.i32, shape=2)

    @sg.kernel
    def run():
        v.fill(sg.Vector([1, 2]))

    with pytest.raises(sg.SpirogradTypeError, match="cannot assign a vector of 2 to an element of `v`") as error:
        run()
    assert "test_family_language.py" in str(error.value) and "kernel_methods" not in str(error.value)


# --- references --------------------------------------------------------------------------------------------------------------


def test_references() -> None:
    x = sg.field(sg.i32, shape=3)

    @sg.real_func
    def add(total: sg.ref(sg.i32), value: sg.i32) -> sg.i32:
        total += value
        return total * 2

    @sg.kernel
    def run(n: sg.i32) -> sg.math.vec3:
        s = 0
        t = 0
        v = sg.Vector([1, 2])
        for _ in range(1):
            for i in range(n):
                t += add(s, i)
        add(v[1], 40)
        add(x[2], 5)
        return sg.Vector([s, t, v[1]])

    assert run(4).to_list() == [6, 20, 42]
    assert run(0).to_list() == [0, 0, 42]
    assert x.to_numpy().tolist() == [0, 0, 10]


@sg.real_func
def _set(a: sg.ref(sg.f32)):
    a = 1.5  # noqa: F841


@sg.real_func
def _both(a: sg.ref(sg.i32), b: sg.ref(sg.i32)):
    a = a + 1
    b = b * 10


@sg.func
def _inlined(a: sg.ref(sg.f32)):
    a = 1.5  # noqa: F841


@sg.real_func
def _bare(a: sg.ref):
    a = 1.5  # noqa: F841


def test_references_that_do_not_fit() -> None:
    @sg.kernel
    def of_another_type():
        n = 1
        _set(n)

    @sg.kernel
    def of_a_result():
        x = 1.0
        _set(x + 1)

    @sg.kernel
    def twice():
        n = 1
        _both(n, n)

    @sg.kernel
    def inlined():
        x = 1.0
        _inlined(x)

    @sg.kernel
    def bare():
        x = 1.0
        _bare(x)

    for kernel, message in (
        (of_another_type, "reference to a scalar of type f32, got a scalar of type i32"),
        (of_a_result, "takes a variable, or an element of memory, of type f32"),
        (twice, "changes `n`, which it takes by reference more than once"),
        (inlined, "`ref` is for functions decorated with `@sg.real_func`"),
        (bare, "the annotation `ref` takes a type"),
    ):
        with pytest.raises(sg.SpirogradTypeError, match=message):
            kernel()


# --- the rest ----------------------------------------------------------------------------------------------------------------


def test_and_or_of_vectors_are_entry_by_entry() -> None:
    @sg.kernel
    def run(a: sg.math.ivec3, b: sg.math.ivec3, n: sg.i32) -> (sg.math.ivec3, sg.math.ivec3, sg.math.ivec3, bool):
        return a and b, a or b, a and n, ((a > 0) and (a < 4)).all()

    a, b = np.array([5, 0, 3]), np.array([2, 7, 0])
    for n in (0, 2):
        both, either, scaled, inside = run(a, b, n)
        assert both.to_list() == ((a != 0) & (b != 0)).tolist()
        assert either.to_list() == ((a != 0) | (b != 0)).tolist()
        assert scaled.to_list() == ((a != 0) & (n != 0)).tolist()
        assert not inside
    assert run([1, 2, 3], b, 1)[3]


def test_dicts() -> None:
    @sg.func
    def tenfold(a):
        return a * 10

    @sg.kernel
    def run(x: sg.i32) -> sg.i32:
        first = {"a": tenfold(x), "b": {"c": x**2}}
        second = {"a": 0, **first, "d": dict(e=x, f=list((1, x)))}  # noqa: C408, C410
        return second["a"] + second["b"]["c"] * 100 + second["d"]["e"] * 1000 + second["d"]["f"][1] * 10000

    assert run(3) == 30 + 900 + 3000 + 30000


def test_lists_are_stored_entry_by_entry() -> None:
    """The integer is not rounded as the float beside it is."""
    v, m = sg.Vector.field(2, sg.i32, shape=2), sg.Matrix.field(2, 2, sg.i32, shape=())

    @sg.kernel
    def run(a: sg.i32, b: sg.f32):
        v[0] = [a, b]
        v[1] += (b, a)
        m[None] = [[a, b], [b, a]]

    run(2**24 + 1, 2.5)
    assert v.to_numpy().tolist() == [[2**24 + 1, 2], [2, 2**24 + 1]]
    assert m[None].to_list() == [[2**24 + 1, 2], [2, 2**24 + 1]]


def test_annotations_that_this_version_lacks() -> None:
    @sg.func
    def f(a: sg.Texture):
        return a

    @sg.kernel
    def run() -> sg.i32:
        return f(1)

    with pytest.raises(sg.SpirogradUnsupportedError, match="`Texture` is not supported"):
        run()


def test_annotated_assignments() -> None:
    x = sg.field(sg.f32, shape=2)

    @sg.kernel
    def run() -> sg.f32:
        a: sg.i32 = 2.7
        x[1]: sg.i32 = 3.9
        b = 1
        b: sg.i32 = 5.5
        return a + x[1] * 10 + b * 100

    assert run() == 532

    @sg.kernel
    def again():
        a: sg.i32 = 2
        a: sg.f32 = 2.5  # noqa: F841

    @sg.kernel
    def without():
        a: sg.i32  # noqa: F842

    for kernel, message in ((again, "`a` is a scalar of type i32 already, and keeps its type"), (without, "a declaration needs a value")):
        with pytest.raises(sg.SpirogradSyntaxError, match=message):
            kernel()


def test_numbers_from_strings() -> None:
    """`float("inf")` is how many programs write infinity; strings are known while compiling."""
    out = sg.field(sg.f32, shape=6)
    digits = {"eps": "1e-3"}

    @sg.kernel
    def run():
        nearest = float("inf")
        for k in range(3):
            nearest = min(nearest, 5.0 - k)
        out[0], out[1] = float("inf"), -float("inf")
        out[2] = nearest
        out[3] = sg.static(float(digits["eps"])) * int("7") + int("0x10", 16)
        out[4] = float("nan")
        out[5] = 1.0 if bool("x") else 0.0

    run()
    assert np.array_equal(out.to_numpy(), np.array([np.inf, -np.inf, 3, 16.007, np.nan, 1], np.float32), equal_nan=True)

    @sg.kernel
    def wrong() -> sg.f32:
        return float("many")

    with pytest.raises(sg.SpirogradTypeError, match="`float`: could not convert string to float: 'many'"):
        wrong()


def test_scalar_types_annotate_entries() -> None:
    """A vector or matrix in an assignment with a scalar type keeps its shape, and its entries get the type: as of arguments and returns."""
    out = sg.field(sg.f32, shape=7)

    @sg.func
    def halves(v: sg.i32) -> sg.f32:
        cut: sg.i32 = v + 0.75
        wide: sg.f32 = cut
        wide /= 2
        return wide

    @sg.kernel
    def run(x: sg.f32):
        v = halves(sg.Vector([x, 2.9, -3.9]))
        m: sg.i32 = sg.Matrix([[x, 2 * x], [-x, 7.75]])
        for i in sg.static(range(3)):
            out[i] = v[i]
        for i, j in sg.static(sg.ndrange(2, 2)):
            out[3 + 2 * i + j] = m[i, j]

    run(1.5)
    assert out.to_numpy().tolist() == [0.5, 1.0, -1.0, 1, 3, -1, 7]


def test_calls_that_do_not_fit() -> None:
    """To Python they are TypeErrors; to the family, syntax errors."""

    @sg.func
    def f(a, b=1):
        return a + b

    @sg.kernel
    def missing() -> sg.i32:
        return f()

    @sg.kernel
    def unknown() -> sg.i32:
        return f(1, c=2)

    @sg.kernel
    def run(a: sg.i32):
        pass

    for call in (missing, unknown, run, lambda: run(1, 2), lambda: run(1, b=2), lambda: run(1, a=2)):
        with pytest.raises(sg.SpirogradCallError) as error:
            call()
        assert isinstance(error.value, (SyntaxError, TypeError)) and isinstance(error.value, sg.SpirogradSyntaxError)

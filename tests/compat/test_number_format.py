"""Numbers are shown as in the family: floats with six digits behind the point, truth values as 0 and 1, vectors in Python as by NumPy."""

import numpy as np
import pytest

import spirograd as sg
from spirograd.compat import quadrants as qd
from spirograd.compat import taichi as ti


@pytest.mark.parametrize("library", [ti, qd])
def test_print_in_kernels(arch, capfd, library):
    library.init(arch=arch)

    @library.kernel
    def show(n: library.i32, x: library.f32):
        print(n, x, x > 0, True, 1.0, 2, x / 3, sep=" ", end=";\n")
        print(library.Vector([x, 2.0]), library.Matrix([[n, 2], [3, 4]]), f"{x} {n:3d} {x:.2f} {2.5}", "{} {}".format(x, n))  # noqa: UP032
        print(library.cast(x, library.f16), library.math.inf, -x * 1e6, x * 1e-9)

    show(7, 1.5)
    library.sync()
    expected = [
        "7 1.500000 1 1 1.000000 2 0.500000;",
        "[1.500000, 2.000000] [[7, 2], [3, 4]] 1.500000   7 1.50 2.500000 1.500000 7",
        "1.500000 inf -1500000.000000 0.000000",
    ]
    assert capfd.readouterr().out.splitlines() == expected


@pytest.mark.archs("cpu", "vulkan", "interpreter")  # f64
def test_print_of_doubles(arch, capfd):
    ti.init(arch=arch, default_fp=ti.f64)

    @ti.kernel
    def show(x: ti.f64):
        print(x / 3, 0.5)

    show(1.0)
    ti.sync()
    assert capfd.readouterr().out == "0.333333333333 0.500000000000\n"


def test_vectors_in_python(arch):
    ti.init(arch=arch)
    v, m = ti.Vector([1.0, 2.5]), ti.Matrix([[1, 2], [3, 4]])
    assert (str(v), str(m), f"{v * 2}") == ("[1.  2.5]", str(np.array([[1, 2], [3, 4]])), "[2. 5.]")
    field = ti.Vector.field(2, ti.f32, 3)
    assert str(field[0]) == "[0. 0.]"

    @ti.kernel
    def result() -> ti.math.vec3:
        return ti.math.vec3(1, 2, 3)

    assert str(result()) == "[1. 2. 3.]"


def test_messages_of_assertions_have_short_numbers(arch):
    ti.init(arch=arch, debug=True)

    @ti.kernel
    def check(x: ti.f32):
        assert x > 3, f"x is {x}, not {3.5}, {1}, {2}, {4}, {5}, {6}"

    with pytest.raises(AssertionError, match=r"x is 2\.5, not 3\.5, 1, 2, 4, 5, 6"):
        check(2.5)
        ti.sync()


def test_the_option(arch, capfd):
    @sg.kernel
    def show(x: sg.f32):
        print(x, x > 1)

    for options, expected in (({}, "1.5 True\n"), ({"number_format": "fixed"}, "1.500000 1\n")):
        sg.init(arch=arch, **options)
        show(1.5)
        sg.sync()
        assert capfd.readouterr().out == expected
    with pytest.raises(RuntimeError, match="`number_format` is one of"):
        sg.init(arch=arch, number_format="long")

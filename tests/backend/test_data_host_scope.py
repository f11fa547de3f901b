"""Fields and arrays outside of kernels: what NumPy's own functions, `len` and operators make of them."""

import operator

import numpy as np
import pytest

import spirograd as sg

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.usefixtures("session")]

HAS_COPY = np.lib.NumpyVersion(np.__version__) >= "2.0.0"
VALUES = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def made() -> dict:
    """Fields and arrays of each kind and element type, with their contents."""
    out = {}
    for t in (sg.i32, sg.f32, sg.u8):
        data = VALUES.astype(t.np)
        cases = {
            "field": (sg.field(t, (2, 3, 4)), data),
            "field in another order": (sg.field(t, (2, 3, 4), order="kij"), data),
            "vectors": (sg.Vector.field(4, t, (2, 3)), data),
            "vectors apart": (sg.Vector.field(4, t, (2, 3), layout=sg.Layout.SOA), data),
            "matrices": (sg.Matrix.field(3, 4, t, 2), data),
            "ndarray": (sg.ndarray(t, (2, 3, 4)), data),
            "array of vectors": (sg.Vector.ndarray(4, t, (2, 3)), data),
            "array of matrices": (sg.Matrix.ndarray(3, 4, t, 2), data),
            "tensor": (sg.tensor(t, (2, 3, 4), backend=sg.Backend.FIELD), data),
            "no axes": (sg.field(t, ()), data[0, 0, 1]),
        }
        out |= {f"{name} of {t}": case for name, case in cases.items()}
    for x, data in out.values():
        x.from_numpy(data)
    return out


def test_numpy_sees_the_contents() -> None:
    for name, (x, data) in made().items():
        for array in (np.array(x), np.asarray(x), np.stack([x, x])[1]):
            assert array.dtype == data.dtype and array.shape == data.shape, name
            np.testing.assert_array_equal(array, data, err_msg=name)
        wide = np.asarray(x, dtype=np.float64)
        assert wide.dtype == np.float64, name
        np.testing.assert_array_equal(wide, data.astype(np.float64), err_msg=name)
        np.testing.assert_array_equal(np.add(x, 1), data + data.dtype.type(1), err_msg=name)


def test_what_numpy_gets_is_a_copy() -> None:
    for name, (x, data) in made().items():
        array = np.asarray(x)
        array[...] = 77
        np.testing.assert_array_equal(x.to_numpy(), data, err_msg=name)


@pytest.mark.skipif(not HAS_COPY, reason="NumPy 1 has no copy=False of this meaning")
def test_no_copy_is_an_error_where_there_has_to_be_one(arch: str) -> None:
    for name, (x, data) in made().items():
        try:
            array = np.asarray(x, copy=False)
        except ValueError:
            assert arch != "cpu" or name.startswith("vectors apart"), name
        else:
            assert arch in ("cpu", "interpreter", "vulkan"), name
            np.testing.assert_array_equal(array, data)
            x.fill(5)  # the memory itself: it changes with the field
            sg.sync()
            assert (array == 5).all(), name
        with pytest.raises(ValueError, match="copy=False"):
            np.asarray(x, dtype=np.complex64, copy=False)
    with pytest.raises(ValueError, match="copy=False"):
        np.asarray(sg.Vector([1, 2]), copy=False)


def test_fields_of_structs_are_no_array() -> None:
    bodies = sg.Struct.field({"mass": sg.f32, "at": sg.types.vector(2, sg.f32)}, shape=3)
    for convert in (np.array, np.asarray):
        with pytest.raises(sg.SpirogradTypeError, match="not one array"):
            convert(bodies)
    assert np.asarray(bodies.at).shape == (3, 2)
    assert len(bodies) == 3


def test_a_field_is_no_vector() -> None:
    x, a = sg.field(sg.f32, 3), sg.ndarray(sg.f32, 3)

    @sg.kernel
    def take(v: sg.types.vector(3, sg.f32)) -> sg.f32:
        return v.sum()

    for value in (x, a):
        with pytest.raises(TypeError, match="expected a vector of 3"):
            take(value)
    assert take(np.asarray(a)) == 0


def test_length_is_the_first_axis() -> None:
    for name, (x, data) in made().items():
        if x.shape:
            assert len(x) == data.shape[0], name
        else:
            with pytest.raises(sg.SpirogradTypeError, match=r"has no axes(.|\n)*x\[None\]"):
                len(x)
    assert len(sg.ndarray(sg.f32, (0, 3))) == 0


def test_there_is_something_even_if_it_is_empty() -> None:
    assert sg.ndarray(sg.f32, 0) and sg.field(sg.f32, ()) and sg.ndarray(sg.f32, ())


def test_operators_name_what_to_do() -> None:
    x, a, v = sg.field(sg.f32, 3), sg.ndarray(sg.f32, 3), sg.Vector.field(2, sg.f32, 3)
    names = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "and_", "or_", "xor", "lt", "ge")
    for name in names:
        function = getattr(operator, name)
        for left, right in ((x, 1), (1.5, x), (a, a), (v, sg.Vector([1, 2])), (a, x)):
            with pytest.raises(sg.SpirogradTypeError, match=r"outside of kernels(.|\n)*to_numpy"):
                function(left, right)
    for function in (operator.neg, operator.pos, operator.invert, abs):
        with pytest.raises(sg.SpirogradTypeError, match=r"outside of kernels(.|\n)*to_numpy"):
            function(x)
    with pytest.raises(sg.SpirogradTypeError, match=r"`\+` is not defined for the number 1.5 and an ndarray of f32"):
        1.5 + a
    assert x != a and x == x


def test_operators_in_kernels_keep_their_words() -> None:
    x = sg.field(sg.f32, 3)

    @sg.kernel
    def add():
        x[0] = 1 + x

    @sg.kernel
    def negative():
        x[0] = -x

    @sg.kernel
    def length():
        x[0] = len(x)

    for kernel, words in ((add, r"`\+` is not defined"), (negative, "`-` is not defined"), (length, "has no length")):
        with pytest.raises(sg.SpirogradTypeError, match=words) as caught:
            kernel()
        assert "outside of kernels" not in str(caught.value)

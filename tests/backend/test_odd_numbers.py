"""Numbers that are none of the language's: each is an error that names it, or means what it says."""

import numpy as np
import pytest

import spirograd as sg

HUGE = 10**400
pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.archs("cpu", "vulkan")]  # the front end decides


@pytest.mark.parametrize("value", [HUGE, -HUGE], ids=["huge", "-huge"])
@pytest.mark.parametrize("dtype", [sg.f16, sg.f32, sg.f64], ids=str)
def test_integers_beyond_floats_on_the_host(dtype, value) -> None:
    field, array, scalar = sg.field(dtype, shape=3), sg.ndarray(dtype, 3), sg.field(dtype, shape=())
    vectors = sg.Vector.field(2, dtype, shape=2)
    for change in (
        lambda: field.fill(value),
        lambda: array.fill(value),
        lambda: vectors.fill(value),
        lambda: field.__setitem__(1, value),
        lambda: array.__setitem__(1, value),
        lambda: scalar.__setitem__(None, value),
    ):
        with pytest.raises(sg.SpirogradTypeError, match=f"an integer of 1329 bits does not fit {dtype}"):
            change()
    assert field.to_numpy().tolist() == array.to_numpy().tolist() == [0, 0, 0]


@pytest.mark.parametrize("value", [HUGE, -HUGE], ids=["huge", "-huge"])
def test_integers_beyond_floats_in_kernels(value) -> None:
    x, n = sg.field(sg.f32, shape=()), sg.field(sg.i32, shape=())

    @sg.kernel
    def to_float(t: sg.template()):
        x[None] = t

    @sg.kernel
    def to_integer(t: sg.template()):
        n[None] = t

    @sg.kernel
    def scaled(t: sg.template()) -> sg.f32:
        return x[None] * t

    @sg.kernel
    def argument(t: sg.f32) -> sg.f32:
        return t

    for run in (to_float, to_integer, scaled, argument):
        with pytest.raises(sg.SpirogradError, match="an integer of 1329 bits does not fit"):
            run(value)


@pytest.mark.parametrize(
    "value",
    [np.complex64(1 + 1j), np.datetime64("2020-01-01"), np.timedelta64(3, "D"), 1 + 2j, np.str_("1")],
    ids=lambda v: type(v).__name__,
)
def test_numpy_scalars_that_are_no_numbers_of_the_language(value) -> None:
    x = sg.field(sg.f32, shape=())

    @sg.kernel
    def by_value(t: sg.f32) -> sg.f32:
        return t

    @sg.kernel
    def integer(t: sg.i32) -> sg.i32:
        return t

    @sg.kernel
    def static(t: sg.template()) -> sg.f32:
        return 1.0 + t

    for run in (by_value, integer, static):
        with pytest.raises(sg.SpirogradError) as caught:
            run(value)
        assert "bug of spirograd" not in str(caught.value)
    with pytest.raises(sg.SpirogradTypeError):
        x.fill(value)
    with pytest.raises(sg.SpirogradTypeError):
        x[None] = value


def test_arrays_without_axes_are_scalars() -> None:
    @sg.kernel
    def both(n: sg.i32, v: sg.f32) -> sg.f32:
        return n + v

    assert both(np.array(3), np.array(0.5)) == 3.5
    assert both(np.int64(3), np.float16(0.5)) == 3.5
    assert both(np.uint8(200), np.longdouble(0.25)) == 200.25
    assert sg.field(sg.f32, shape=np.array(3)).shape == (3,)
    assert sg.ndarray(sg.f32, np.array(3)).shape == (3,)
    x = sg.field(sg.f32)
    sg.root.dense(sg.ij, np.array(3)).place(x)
    assert x.shape == (3, 3)
    with pytest.raises(sg.SpirogradError, match="array"):
        both(np.array([3]), 0.5)


@pytest.mark.parametrize("shape", [-1, (2, -1), 2.0, np.float32(3), "3", [[3]], np.array(2.5)], ids=repr)
def test_shapes_that_are_none(shape) -> None:
    for make in (lambda: sg.field(sg.f32, shape=shape), lambda: sg.ndarray(sg.f32, shape)):
        with pytest.raises(sg.SpirogradError):
            make()
            sg.sync()

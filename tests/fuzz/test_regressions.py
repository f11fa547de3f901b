"""Programs that the fuzzer found to be wrong once, shortened."""

from __future__ import annotations

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

INTEGERS = np.array([0, 1, 5, 2**31 - 1, -(2**31), -1, -5], np.int32)
FLOATS = [0.0, -0.0, 1.0, -2.5, np.nan, np.inf, -np.inf, 1e-45, -3e38]


@pytest.fixture
def strict(arch: str) -> None:
    sg.init(arch=arch, fast_math=False)


def test_jumps_of_while_outside_of_for(session: object) -> None:
    @sg.kernel
    def count(start: sg.i32) -> sg.i32:
        n = start
        total = 0
        while True:
            n -= 1
            if n < 0:
                break
            if n == 2:
                continue
            total += n
        return total

    assert count(5) == 4 + 3 + 1


def test_break_of_while_in_function_called_from_unrolled_loop(session: object) -> None:
    @sg.func
    def halvings(x):
        n = 0
        while True:
            if x <= 1:
                break
            x //= 2
            n += 1
        return n

    @sg.kernel
    def total(x: sg.i32) -> sg.i32:
        out = 0
        for k in sg.static(range(3)):
            out += halvings(x + k)
        return out

    assert total(7) == 2 + 3 + 3


def test_conditional_expression_of_one_value_on_both_sides(session: object) -> None:
    @sg.kernel
    def same(c: sg.i32, v: sg.i32) -> sg.i32:
        return v if c else v  # noqa: RUF034

    assert same(0, 5) == same(1, 5) == 5


def test_abs_of_a_negated_unsigned_number(session: object) -> None:
    @sg.kernel
    def run(x: sg.i32) -> sg.u32:
        return sg.abs(-sg.u32(x))

    assert run(2**31 - 1) == 2**31 + 1


@pytest.mark.parametrize("constant", [0, 1, -1, 2**31 - 1, -(2**31), 2**40])
def test_comparisons_of_a_widened_i32_with_a_constant(session: object, constant: int) -> None:
    """lavapipe gets these wrong after OpSConvert."""
    c = constant

    @sg.kernel
    def run(x: sg.types.ndarray(sg.i32, 1), out: sg.types.ndarray(sg.i32, 2)):
        for i in x:
            wide = sg.i64(x[i])
            out[0, i] = wide < sg.i64(c)
            out[1, i] = wide <= sg.i64(c)
            out[2, i] = sg.i64(c) < wide
            out[3, i] = sg.i64(c) <= wide
            out[4, i] = wide == sg.i64(c)

    out = np.zeros((5, len(INTEGERS)), np.int32)
    run(INTEGERS, out)
    wide = INTEGERS.astype(np.int64)
    np.testing.assert_array_equal(out, [wide < c, wide <= c, c < wide, c <= wide, wide == c])


def floats_kept(x: np.ndarray) -> np.ndarray:
    """``x`` without subnormals, if the device is a graphics card that takes them for 0 and cannot be told not to."""
    device = sg.lang.context.session().device
    if dict(device.info.detail).get("kind", "cpu") == "cpu" or x.dtype.itemsize * 8 in device.caps.exact_subnormals:
        return x
    return x[~((x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny))]


@pytest.mark.parametrize("t", [sg.f16, sg.f32, sg.f64], ids=str)
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_floats_with_a_constant_zero(strict: None, t: object, zero: float) -> None:
    """Drivers take x * 0 for 0 and x + 0 for x, whatever x is."""

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 2)):
        for i in x:
            out[0, i] = x[i] + t(zero)
            out[1, i] = x[i] - t(zero)
            out[2, i] = t(zero) - x[i]
            out[3, i] = x[i] * t(zero)
            out[4, i] = x[i] / t(zero)
            out[5, i] = t(zero) / x[i]
            out[6, i] = x[i] // t(zero)
            out[7, i] = x[i] % t(zero)

    z = t.np.type(zero)  # type: ignore[attr-defined]
    with np.errstate(all="ignore"):
        x = floats_kept(np.array(FLOATS).astype(t.np))  # type: ignore[attr-defined]
        want = np.stack([x + z, x - z, z - x, x * z, x / z, z / x, np.floor(x / z), x - np.floor(x / z) * z])
    out = np.zeros_like(want)
    run(x, out)
    np.testing.assert_array_equal(out, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(out)[number], np.signbit(want)[number])


def test_division_by_an_index_that_reaches_zero(strict: None) -> None:
    """In a loop that the driver unrolls, the divisor becomes a constant."""

    @sg.kernel
    def run(x: sg.types.ndarray(sg.f32, 1), out: sg.types.ndarray(sg.f32, 2)):
        for i in x:
            for j in range(3, -1, -1):
                out[j, i] = x[i] / j

    x = floats_kept(np.array(FLOATS, np.float32))
    out = np.zeros((4, len(x)), np.float32)
    run(x, out)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(out, np.stack([x / np.float32(j) for j in range(4)]), rtol=4e-7, atol=0)  # f32 division: 2.5 ulp


def test_a_literal_assigned_to_a_variable_takes_its_type(session: object) -> None:
    @sg.kernel
    def run() -> sg.f64:
        v = sg.f64(0)
        v = 0.1
        return v

    assert run() == 0.1


def test_unrolled_loop_after_a_conditional_return(session: object) -> None:
    @sg.func
    def early(x):
        if x > 3:
            return x
        for k in sg.static(range(3)):
            x += k
        return -x

    @sg.kernel
    def run(x: sg.i32) -> sg.i32:
        return early(x)

    assert (run(5), run(1)) == (5, -4)

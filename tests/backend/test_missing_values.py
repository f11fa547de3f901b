"""Functions with `real_func` that return a value on some paths only, as the Taichi family allows."""

import logging

import pytest

import spirograd as sg


@sg.real_func
def first_square_above(limit: sg.i32, count: sg.i32) -> sg.i32:
    for i in range(count):
        if i * i > limit:
            return i


@sg.real_func
def half(n: sg.i32) -> sg.types.vector(2, sg.f32):
    if n % 2 == 0:
        return sg.Vector([n / 2, 1.0])


@sg.real_func
def sign(x: sg.f32) -> sg.i32:
    if x > 0:
        return 1
    elif x < 0:
        return -1


def test_values_where_a_return_is_reached_and_zero_elsewhere(session):
    x = sg.field(sg.i32, 8)

    @sg.kernel
    def fill() -> sg.f32:
        for i in x:
            x[i] = first_square_above(i * i, 7) + 10 * sign(i - 3.0)
        return half(6)[0] + 10 * half(6)[1] + 100 * half(5).sum()

    assert fill() == 13
    assert x.to_numpy().tolist() == [-9, -8, -7, 4, 15, 16, 10, 10]


def test_a_warning_names_the_function(session, caplog):
    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        return sign(n) + sign(n + 1)

    with caplog.at_level(logging.WARNING, "spirograd"):
        assert run(1) == 2
    texts = [record.getMessage() for record in caplog.records if "may end without `return`" in record.getMessage()]
    assert len(texts) == 1 and "function `sign` may end without `return`: its value is 0 then" in texts[0] and "def sign" in texts[0]


def test_debug_mode_finds_missing_values(arch):
    sg.init(arch=arch, debug=True)

    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        return sign(n)

    assert (run(2), run(-2)) == (1, -1)
    with pytest.raises(AssertionError, match="function `sign` ended without `return`"):
        run(0)
        sg.sync()


def test_inlined_functions_still_need_a_value_on_every_path(session):
    @sg.func
    def positive(n: sg.i32) -> sg.i32:
        if n > 0:
            return 1

    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        return positive(n)

    with pytest.raises(sg.SpirogradSyntaxError, match="not on every path"):
        run(1)

"""Conversions that lose part of a value, and that the program does not ask for, are warned of: once for each place, with the line."""

import logging

import pytest

import spirograd as sg

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.archs("interpreter")]  # the front end alone decides


@pytest.fixture
def warned(caplog):
    caplog.set_level(logging.WARNING, "spirograd")
    return lambda: [r.getMessage() for r in caplog.records]


def test_a_variable_keeps_its_type(warned):
    @sg.kernel
    def run(n: sg.i32) -> sg.i32:
        a = 0
        for _ in range(1):
            for _ in range(n):
                a += 0.5
        for _ in sg.static(range(3)):
            a = a / 2
        return a

    run(2)
    first, second = warned()
    assert first.startswith("`a` is of type i32 and takes 0.5, whose fraction is lost\n") and "a += 0.5" in first
    assert "sg.cast(value, sg.i32)" in first and "a = a / 2" in second
    run(3)
    assert len(warned()) == 2


def test_memory_vectors_and_structs(warned):
    i, u, f, d, long = (sg.field(t, shape=2) for t in (sg.i32, sg.u8, sg.f32, sg.f64, sg.i64))
    vi = sg.Vector.field(2, sg.i32, shape=2)
    pair = sg.types.struct(a=sg.i32)

    @sg.kernel
    def run():
        i[0] = f[0] * 2
        i[0] += 0.5
        f[0] = d[0]
        f[1] -= d[0]
        i[0] = long[0]
        u[0] = i[0]
        u[1] = 300
        vi[0] = sg.Vector([0.5, 1.5])
        v = sg.Vector([1, 2])
        v[0] = 1.5
        s = pair(a=1)
        s.a = f[0]
        sg.atomic_max(i[0], 2.5)
        flag = True
        flag = i[0]
        i[1] = flag

    run()
    lines = [text.splitlines() for text in warned()]
    assert [text[2].partition("|")[2].strip() for text in lines] == [
        "i[0] = f[0] * 2", "i[0] += 0.5", "f[0] = d[0]", "f[1] -= d[0]", "i[0] = long[0]", "u[0] = i[0]", "u[1] = 300",
        "vi[0] = sg.Vector([0.5, 1.5])", "v[0] = 1.5", "s.a = f[0]", "sg.atomic_max(i[0], 2.5)", "flag = i[0]",
    ]  # fmt: skip
    losses = [text[0].partition(", ")[2] for text in lines]
    low, fraction = "of which it keeps the low bits only", "whose fraction is lost"
    assert losses == [
        fraction, fraction, "which is rounded", "which is rounded", low, low, "which does not fit", fraction, fraction, fraction, fraction,
        "of which it keeps only whether it is 0",
    ]  # fmt: skip


def test_what_loses_nothing_or_is_asked_for_is_silent(warned):
    i, f, h, u = (sg.field(t, shape=2) for t in (sg.i32, sg.f32, sg.f16, sg.u32))
    d = sg.field(sg.f64, shape=2)

    @sg.func
    def whole(x: sg.i32) -> sg.i32:
        return x

    @sg.kernel
    def run() -> sg.f32:
        a = 0
        a += sg.cast(0.5, sg.i32)
        a = int(f[0])
        a = 2.0
        b: sg.i32 = 0.5
        i[0] = f[0] > 0
        i[1] = a + b + whole(f[0])
        f[0] = i[0]
        f[1] = 0.1
        h[0] = 0.1
        u[0] = i[0]
        i[0] = u[0]
        d[0] = f[0] * 0.1
        c = 0.0
        c += i[0]
        flag = f[0] > 0
        flag &= i[0] > 0
        return d[0]

    run()
    assert warned() == []


def test_functions_warn_once_for_all_kernels(warned):
    @sg.func
    def half(ret: sg.template()):
        ret += 0.5

    @sg.kernel
    def first() -> sg.i32:
        a = 0
        half(a)
        return a

    @sg.kernel
    def second() -> sg.i32:
        a = 0
        half(a)
        return a

    first(), second()
    assert len(warned()) == 1 and "called from" in warned()[0]

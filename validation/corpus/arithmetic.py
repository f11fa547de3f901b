"""Numbers of every type: operators, comparisons, bits, conversions."""

from __future__ import annotations

import numpy as np

import spirograd as sg
from validation.case import Results, case, precision, type_needs

SIGNED, UNSIGNED = (sg.i8, sg.i16, sg.i32, sg.i64), (sg.u8, sg.u16, sg.u32, sg.u64)
INTS, FLOATS = SIGNED + UNSIGNED, (sg.f16, sg.f32, sg.f64)


def numbers(t, n=61, seed=0):
    """Values of ``t`` from all of its range (floats: of a few units), the edges among them."""
    rng = np.random.default_rng(seed)
    if t.is_float:
        return rng.uniform(-4, 4, n).astype(t.np)
    low, high = int(t.min), int(t.max)
    values = rng.integers(low, high, n, dtype=t.np, endpoint=True)
    edges = np.array([0, 1, high, low, high - 1, low + 1, 2, 3], dtype=t.np)
    values[: len(edges)] = edges
    return values


@case(INTS + FLOATS, needs=type_needs, rtol=precision, atol=lambda t: precision(t) * 10)
def add_sub_mul(t) -> Results:
    """Integers wrap."""
    a, b = numbers(t), numbers(t, seed=1)[::-1].copy()
    out = np.zeros((4, len(a)), t.np)

    @sg.kernel
    def run(a: sg.types.ndarray(t, 1), b: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 2)):
        for i in a:
            out[0, i] = a[i] + b[i]
            out[1, i] = a[i] - b[i]
            out[2, i] = a[i] * b[i]
            out[3, i] = -a[i] + b[i] * t(3)

    run(a, b, out)
    with np.errstate(over="ignore"):
        want = np.stack([a + b, a - b, a * b, np.negative(a) + b * t.np.type(3)])
    return {"out": (out, want)}


@case(INTS, needs=type_needs)
def division(t) -> Results:
    """`//` rounds down, `%` has the sign of the divisor, and 0 is the result of dividing by 0."""
    a, b = numbers(t), numbers(t, seed=1)[::-1].copy()
    out = np.zeros((2, len(a)), t.np)

    @sg.kernel
    def run(a: sg.types.ndarray(t, 1), b: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 2)):
        for i in a:
            out[0, i] = a[i] // b[i]
            out[1, i] = a[i] % b[i]

    run(a, b, out)
    with np.errstate(all="ignore"):
        safe = np.where(b == 0, t.np.type(1), b)
        want = np.where(b == 0, t.np.type(0), np.stack([a // safe, a % safe]))
    return {"out": (out, want)}


@case(INTS, needs=type_needs)
def division_by_constants(t) -> Results:
    a = numbers(t)
    out = np.zeros((6, len(a)), t.np)

    @sg.kernel
    def run(a: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 2)):
        for i in a:
            for k, d in sg.static(enumerate((1, 2, 8))):
                out[2 * k, i] = a[i] // t(d)
                out[2 * k + 1, i] = a[i] % t(d)

    run(a, out)
    return {"out": (out, np.stack([f(a, t.np.type(d)) for d in (1, 2, 8) for f in (np.floor_divide, np.mod)]))}


@case(FLOATS, needs=type_needs, rtol=precision, atol=lambda t: precision(t) * 10)
def float_division(t) -> Results:
    a, b = numbers(t), numbers(t, seed=1) + t.np.type(6)
    out = np.zeros((3, len(a)), t.np)

    @sg.kernel
    def run(a: sg.types.ndarray(t, 1), b: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 2)):
        for i in a:
            out[0, i] = a[i] / b[i]
            out[1, i] = a[i] // b[i]
            out[2, i] = a[i] % b[i]

    run(a, b, out)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    return {"out": (out.astype(np.float64), np.stack([wide_a / wide_b, wide_a // wide_b, wide_a % wide_b]))}


@case(INTS, needs=type_needs)
def bits(t) -> Results:
    a, b = numbers(t), numbers(t, seed=1)
    out = np.zeros((4, len(a)), t.np)

    @sg.kernel
    def run(a: sg.types.ndarray(t, 1), b: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 2)):
        for i in a:
            out[0, i] = a[i] & b[i]
            out[1, i] = a[i] | b[i]
            out[2, i] = a[i] ^ b[i]
            out[3, i] = ~a[i]

    run(a, b, out)
    return {"out": (out, np.stack([a & b, a | b, a ^ b, ~a]))}


@case(INTS, needs=type_needs)
def shifts(t) -> Results:
    """`>>` of signed numbers keeps the sign; counts are taken modulo the width."""
    a = numbers(t)
    count = (np.arange(len(a)) % (2 * t.bits)).astype(t.np)
    out = np.zeros((2, len(a)), t.np)

    @sg.kernel
    def run(a: sg.types.ndarray(t, 1), count: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 2)):
        for i in a:
            out[0, i] = a[i] << count[i]
            out[1, i] = a[i] >> count[i]

    run(a, count, out)
    effective = (count % t.np.type(t.bits)).astype(t.np)
    return {"out": (out, np.stack([a << effective, a >> effective]))}


@case(INTS, needs=type_needs)
def counting_bits(t) -> Results:
    a = numbers(t)
    out = np.zeros((2, len(a)), np.int32)

    @sg.kernel
    def run(a: sg.types.ndarray(t, 1), out: sg.types.ndarray(sg.i32, 2)):
        for i in a:
            out[0, i] = sg.i32(sg.popcnt(a[i]))
            out[1, i] = sg.i32(sg.clz(a[i]))

    run(a, out)
    words = [int(x) & ((1 << t.bits) - 1) for x in a]
    return {"out": (out, [[bin(w).count("1") for w in words], [t.bits - w.bit_length() for w in words]])}


@case(INTS + FLOATS, needs=type_needs)
def comparisons(t) -> Results:
    a, b = numbers(t), numbers(t, seed=1)
    b[::3] = a[::3]
    out = np.zeros((6, len(a)), np.int32)

    @sg.kernel
    def run(a: sg.types.ndarray(t, 1), b: sg.types.ndarray(t, 1), out: sg.types.ndarray(sg.i32, 2)):
        for i in a:
            out[0, i] = a[i] < b[i]
            out[1, i] = a[i] <= b[i]
            out[2, i] = a[i] > b[i]
            out[3, i] = a[i] >= b[i]
            out[4, i] = a[i] == b[i]
            out[5, i] = a[i] != b[i]

    run(a, b, out)
    return {"out": (out, np.stack([a < b, a <= b, a > b, a >= b, a == b, a != b]).astype(np.int32))}


@case(INTS + FLOATS, needs=type_needs)
def extrema(t) -> Results:
    a, b = numbers(t), numbers(t, seed=1)
    out = np.zeros((3, len(a)), t.np)

    @sg.kernel
    def run(a: sg.types.ndarray(t, 1), b: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 2)):
        for i in a:
            out[0, i] = sg.min(a[i], b[i])
            out[1, i] = sg.max(a[i], b[i], t(1))
            out[2, i] = abs(a[i])

    run(a, b, out)
    with np.errstate(over="ignore"):
        return {"out": (out, np.stack([np.minimum(a, b), np.maximum(np.maximum(a, b), t.np.type(1)), np.abs(a)]))}


@case(INTS, needs=type_needs)
def casts_between_integers(t) -> Results:
    """Narrowing keeps the low bits; widening keeps the number."""
    a = numbers(t)
    narrow = [np.zeros(len(a), u.np) for u in (sg.i8, sg.u8, sg.i16, sg.u16, sg.i32, sg.u32)]

    @sg.kernel
    def run(
        a: sg.types.ndarray(t, 1), x0: sg.types.ndarray(sg.i8, 1), x1: sg.types.ndarray(sg.u8, 1), x2: sg.types.ndarray(sg.i16, 1),
        x3: sg.types.ndarray(sg.u16, 1), x4: sg.types.ndarray(sg.i32, 1), x5: sg.types.ndarray(sg.u32, 1),
    ):  # fmt: skip
        for i in a:
            x0[i] = sg.cast(a[i], sg.i8)
            x1[i] = sg.cast(a[i], sg.u8)
            x2[i] = sg.cast(a[i], sg.i16)
            x3[i] = sg.cast(a[i], sg.u16)
            x4[i] = sg.cast(a[i], sg.i32)
            x5[i] = sg.cast(a[i], sg.u32)

    run(a, *narrow)
    return {str(x.dtype): (x, a.astype(x.dtype)) for x in narrow}


@case(FLOATS, needs=type_needs)
def casts_to_integers(t) -> Results:
    """Towards zero; what does not fit becomes the nearest that does, NaN becomes 0."""
    a = np.array([0, -0.5, 0.5, 1.5, -1.5, 2.999, 100.7, -100.7, 300, -300, np.inf, -np.inf, np.nan], t.np)
    if t is not sg.f16:
        a = np.append(a, np.array([3e9, -3e9, 5e9], t.np))
    small, word, unsigned = np.zeros(len(a), np.int8), np.zeros(len(a), np.int32), np.zeros(len(a), np.uint32)

    @sg.kernel
    def run(a: sg.types.ndarray(t, 1), small: sg.types.ndarray(sg.i8), word: sg.types.ndarray(sg.i32), unsigned: sg.types.ndarray(sg.u32)):
        for i in a:
            small[i] = sg.cast(a[i], sg.i8)
            word[i] = sg.cast(a[i], sg.i32)
            unsigned[i] = sg.cast(a[i], sg.u32)

    def want(kind):
        info = np.iinfo(kind)
        return np.clip(np.trunc(np.nan_to_num(a.astype(np.float64), nan=0.0)), info.min, info.max).astype(kind)

    run(a, small, word, unsigned)
    return {"small": (small, want(np.int8)), "word": (word, want(np.int32)), "unsigned": (unsigned, want(np.uint32))}


@case(INTS, needs=type_needs, rtol=2e-7)
def casts_to_floats(t) -> Results:
    a = numbers(t)
    out = np.zeros(len(a), np.float32)

    @sg.kernel
    def run(a: sg.types.ndarray(t, 1), out: sg.types.ndarray(sg.f32, 1)):
        for i in a:
            out[i] = sg.f32(a[i])

    run(a, out)
    return {"out": (out, a.astype(np.float32))}


@case(((sg.f32, sg.i32), (sg.u32, sg.f32), (sg.f64, sg.i64)), needs=lambda t, u: (*type_needs(t), *type_needs(u)))
def bit_casts(t, u) -> Results:
    a = numbers(t)
    out = np.zeros(len(a), u.np)

    @sg.kernel
    def run(a: sg.types.ndarray(t, 1), out: sg.types.ndarray(u, 1)):
        for i in a:
            out[i] = sg.bit_cast(a[i], u)

    run(a, out)
    return {"out": (out.view(t.np).view(np.uint8), a.view(np.uint8))}


@case()
def promotion() -> Results:
    """A float wins over an integer, the wider over the narrower."""
    out = np.zeros(5, np.float32)

    @sg.kernel
    def run(out: sg.types.ndarray(sg.f32, 1), k: sg.i32, x: sg.f32):
        small = sg.i8(100)
        out[0] = small + sg.i32(100)
        out[1] = k + x
        out[2] = k / 4
        out[3] = 7 // k
        out[4] = True + k

    run(out, 2, 0.25)
    return {"out": (out, np.array([200, 2.25, 0.5, 3, 3], np.float32))}


@case()
def powers() -> Results:
    """`**` of integers is an integer."""
    base, out, floats = np.arange(-5, 6, dtype=np.int32), np.zeros((3, 11), np.int32), np.zeros(11, np.float32)

    @sg.kernel
    def run(base: sg.types.ndarray(sg.i32, 1), out: sg.types.ndarray(sg.i32, 2), floats: sg.types.ndarray(sg.f32, 1)):
        for i in base:
            out[0, i] = base[i] ** 2
            out[1, i] = base[i] ** 3
            out[2, i] = base[i] ** sg.cast(i % 4, sg.i32)
            floats[i] = sg.abs(sg.f32(base[i])) ** 1.5

    run(base, out, floats)
    want = np.stack([base**2, base**3, base ** (np.arange(11) % 4)])
    return {"out": (out, want), "floats": (floats, np.abs(base) ** 1.5)}


@case()
def not_a_number() -> Results:
    """No order holds for NaN; min and max skip it."""
    a = np.array([np.nan, 1, -np.inf, np.inf, -0.0], np.float32)
    out = np.zeros((6, 5), np.float32)

    @sg.kernel
    def run(a: sg.types.ndarray(sg.f32, 1), out: sg.types.ndarray(sg.f32, 2)):
        for i in a:
            out[0, i] = a[i] != a[i]
            out[1, i] = a[i] < 2.0
            out[2, i] = sg.max(a[i], 0.5)
            out[3, i] = sg.min(0.5, a[i])
            out[4, i] = sg.math.isnan(a[i])
            out[5, i] = sg.math.isinf(a[i])

    run(a, out)
    want = np.stack([a != a, a < 2, np.fmax(a, np.float32(0.5)), np.fmin(a, np.float32(0.5)), np.isnan(a), np.isinf(a)])
    return {"out": (out, want.astype(np.float32))}

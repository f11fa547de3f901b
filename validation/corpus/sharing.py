"""What iterations do together: atomics, reductions, random numbers, and what they report."""

from __future__ import annotations

import contextlib
import io

import numpy as np

import spirograd as sg
from validation.case import Results, case, precision, type_needs

WIDE = (sg.i32, sg.u32, sg.i64, sg.u64, sg.f32, sg.f64)
NARROW = (sg.i8, sg.u8, sg.i16, sg.u16)
N = 2000


def atomic_needs(t, *_):
    """64-bit elements take 64-bit atomics, floats too (there is no float of 64 bits without the exchange of 64 bits)."""
    return (*type_needs(t), *(("atomic_i64",) if t.bits == 64 else ()))


def inputs(t):
    low, high = (0, 100) if not t.is_signed else (-100, 100)
    return np.random.default_rng(1).integers(low, high, N).astype(t.np)


@case(WIDE + NARROW, needs=atomic_needs)
def atomic_add(t) -> Results:
    """A few elements, thousands of iterations. Sums of these integers are exact in every type."""
    x, out = inputs(t), np.zeros(7, t.np)

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 1)):
        for i in x:
            out[i * i % 7] += x[i]

    run(x, out)
    where = np.arange(N) ** 2 % 7
    with np.errstate(over="ignore"):
        return {"out": (out, [x[where == k].sum(dtype=t.np) for k in range(7)])}


@case(WIDE + NARROW, needs=atomic_needs)
def atomic_extrema(t) -> Results:
    x, low, high = inputs(t), np.full(5, 50, t.np), np.full(5, 50, t.np)

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), low: sg.types.ndarray(t, 1), high: sg.types.ndarray(t, 1)):
        for i in x:
            sg.atomic_min(low[i % 5], x[i])
            sg.atomic_max(high[i % 5], x[i])

    run(x, low, high)
    return {"low": (low, [min(50, x[k::5].min()) for k in range(5)]), "high": (high, [max(50, x[k::5].max()) for k in range(5)])}


@case((sg.i32, sg.u32, sg.i64), needs=atomic_needs)
def atomic_bits(t) -> Results:
    x, out = inputs(t), np.array([0, -1 if t.is_signed else 2**32 - 1, 0] * 3).astype(t.np)

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 1)):
        for i in x:
            k = 3 * (i % 3)
            out[k] |= x[i]
            out[k + 1] &= x[i]
            out[k + 2] ^= x[i]

    run(x, out)
    want = [f.reduce(x[k::3]) for k in range(3) for f in (np.bitwise_or, np.bitwise_and, np.bitwise_xor)]
    return {"out": (out, want)}


@case((sg.i32, sg.f32, sg.u32), rtol=1e-3)
def atomic_multiplication(t) -> Results:
    """The order of f32 products is open: thousands of roundings."""
    out = np.ones(3, t.np)
    factor = 1.001 if t.is_float else 3

    @sg.kernel
    def run(out: sg.types.ndarray(t, 1)):
        for i in range(900):
            out[i % 3] *= t(factor)

    run(out)
    want = t.np.type(factor) ** 300 if t.is_float else pow(3, 300, 2**32)
    return {"out": (out, np.full(3, want).astype(np.float64 if t.is_float else np.uint32).astype(t.np))}


@case((sg.i32, sg.f32))
def tickets(t) -> Results:
    """Every old value of a counter is seen once."""
    counter, seen = sg.field(t, shape=()), np.zeros(500, np.int32)

    @sg.kernel
    def run(seen: sg.types.ndarray(sg.i32, 1)):
        for _ in range(500):
            seen[sg.i32(sg.atomic_add(counter[None], t(1)))] += 1

    run(seen)
    return {"seen": (seen, np.ones(500, np.int32)), "counter": (counter[None], 500)}


@case()
def compare_and_swap() -> Results:
    """The largest value by hand."""
    x, cell = np.random.default_rng(2).integers(0, 10**6, 300).astype(np.int32), sg.field(sg.i32, shape=())

    @sg.kernel
    def run(x: sg.types.ndarray(sg.i32, 1)):
        for i in x:
            for _ in range(1000):
                old = cell[None]
                if old >= x[i] or sg.atomic_cas(cell[None], old, x[i]) == old:
                    break

    run(x)
    return {"cell": (cell[None], x.max())}


@case(WIDE, needs=atomic_needs, rtol=lambda t: precision(t) * 10)
def sums(t) -> Results:
    """A variable that all iterations add to; f32 rounds once for each of some hundred partial sums."""
    x = inputs(t)
    n = sg.field(t, shape=())

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1)) -> t:
        total = t(0)
        for i in x:
            total += x[i]
            n[None] += t(1)
        return total

    return {"total": (run(x), x.sum(dtype=t.np)), "n": (n[None], N)}


@case(("min", "max", "and", "or", "xor"))
def reductions(kind) -> Results:
    x = np.random.default_rng(6).integers(0, 2**31 - 1, N).astype(np.int32)
    combine = {"min": sg.atomic_min, "max": sg.atomic_max, "and": sg.atomic_and, "or": sg.atomic_or, "xor": sg.atomic_xor}[kind]
    start = {"min": 2**31 - 1, "and": -1}.get(kind, 0)

    @sg.kernel
    def run(x: sg.types.ndarray(sg.i32, 1)) -> sg.i32:
        result = start
        for i in x:
            combine(result, x[i])
        return result

    reference = {"min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[kind]
    return {kind: (run(x), reference.reduce(x))}


@case(large=True, rtol=1e-4)
def a_long_sum() -> Results:
    """Three million numbers in single precision."""
    x = np.random.default_rng(7).uniform(0, 1, 3_000_001).astype(np.float32)

    @sg.kernel
    def run(x: sg.types.ndarray(sg.f32, 1)) -> sg.f32:
        total = 0.0
        for i in x:
            total += x[i]
        return total

    return {"sum": (run(x), x.sum(dtype=np.float64))}


@case()
def histogram() -> Results:
    x, bins = np.random.default_rng(8).normal(0, 1, N).astype(np.float32), np.zeros(16, np.int32)

    @sg.kernel
    def run(x: sg.types.ndarray(sg.f32, 1), bins: sg.types.ndarray(sg.i32, 1)):
        for i in x:
            bins[sg.math.clamp(sg.cast(sg.floor(x[i] * 2.0), sg.i32) + 8, 0, 15)] += 1

    run(x, bins)
    return {"bins": (bins, np.bincount(np.clip(np.floor(x * 2).astype(int) + 8, 0, 15), minlength=16))}


@case(atol=0.05)
def random_numbers() -> Results:
    """Mean, spread and range of 20,000 numbers; the tolerance is some ten standard errors."""
    x, y, k = np.zeros(20000, np.float32), np.zeros(20000, np.float32), np.zeros(20000, np.int32)

    @sg.kernel
    def run(x: sg.types.ndarray(sg.f32, 1), y: sg.types.ndarray(sg.f32, 1), k: sg.types.ndarray(sg.i32, 1)):
        for i in x:
            x[i] = sg.random()
            y[i] = sg.randn()
            k[i] = sg.random(sg.i32)

    run(x, y, k)
    inside = bool((x >= 0).all() and (x < 1).all())
    moments = [x.mean(), x.std(), y.mean(), y.std(), (k > 0).mean()]
    distinct = len(set(k.tolist())) > 19990
    return {"inside": (inside, True), "moments": (moments, [0.5, 12**-0.5, 0.0, 1.0, 0.5]), "distinct": (distinct, True)}


@case()
def prints() -> Results:
    @sg.kernel
    def run(n: sg.i32):
        for _ in range(1):
            print("n", n, 0.5, sg.Vector([1, 2]), f"{n:03d}|{1.5:.2f}", n > 2)

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        run(7)
        sg.sync()
    return {"text": (said.getvalue(), "n 7 0.5 [1, 2] 007|1.50 True\n")}


def message_of(kernel, *args):
    """The first line of the error that a kernel ends with."""
    try:
        kernel(*args)
        sg.sync()
    except sg.SpirogradRuntimeError as error:
        return str(error).splitlines()[0]
    return "no error"


@case(debug=True)
def assertions() -> Results:
    x = sg.field(sg.i32, shape=4)

    @sg.kernel
    def run(limit: sg.i32):
        for i in x:
            assert i < limit, f"{i} against {limit}"
            x[i] = i

    first, again = message_of(run, 3), message_of(run, 9)
    return {"first": (first, "3 against 3"), "again": (again, "no error"), "x": (x.to_numpy(), np.arange(4))}


@case(check_out_of_bound=True)
def bounds_checks() -> Results:
    x = sg.field(sg.i32, shape=4)

    @sg.kernel
    def run(k: sg.i32):
        for i in range(4):
            x[i + k] = i

    return {"inside": (message_of(run, 0), "no error"), "outside": ("out of" in message_of(run, 1), True)}

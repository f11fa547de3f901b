"""8-bit and 16-bit integers on a device without such types and without such memory: the Vulkan device, with that taken from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import needs
import numpy as np
import pytest
from cases import by_day

import spirograd as sg
from spirograd.base.dtypes import DType

pytestmark = pytest.mark.archs("vulkan")
NARROW = (sg.i8, sg.u8, sg.i16, sg.u16)
_LESS: tuple[dict[str, bool], ...] = (
    dict.fromkeys(("int8", "int16", "storage8", "storage16"), False),
    dict.fromkeys(("storage8", "storage16"), False),
    dict.fromkeys(("int8", "storage8"), False),
    dict.fromkeys(("int16", "storage16"), False),
)


def without(arch: str, **missing: bool) -> Any:
    """A session on a device that lacks what is named; everything is compiled anew."""
    sg.init(arch=arch, offline_cache=False)
    session = sg.lang.context.session()
    session.device.caps = replace(session.device.caps, **missing)
    return session


@pytest.fixture(params=_LESS, ids=("nothing", "no memory", "no bytes", "no halves"))
def poor(request: pytest.FixtureRequest, arch: str) -> Any:
    return without(arch, **request.param)


@pytest.fixture
def poorest(arch: str) -> Any:
    return without(arch, **_LESS[0])


def samples(t: DType) -> np.ndarray[Any, Any]:
    """Edges of a type, and some between."""
    edges = {int(t.min), int(t.min) + 1, int(t.max), int(t.max) - 1, int(t.max) // 2, int(t.max) // 2 + 1, 0, 1, 2, 3, 7, 100}
    return np.array(sorted(edges | ({-1, -2, -7, -100} if t.is_signed else set())), t.np)


def pairs(t: DType) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    x = samples(t)
    return np.repeat(x, len(x)), np.tile(x, len(x))


def wrapped(values: Any, t: DType) -> np.ndarray[Any, Any]:
    """Exact integers modulo the range of ``t``."""
    return np.asarray(values, np.int64).astype(t.np)


@pytest.mark.parametrize("t", NARROW, ids=str)
def test_binary_operators(poor: Any, t: DType) -> None:
    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), y: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 2), flags: sg.types.ndarray(sg.i32, 2)):
        for i in range(x.shape[0]):
            a, b = x[i], y[i]
            out[0, i] = a + b
            out[1, i] = a - b
            out[2, i] = a * b
            out[3, i] = a // b
            out[4, i] = a % b
            out[5, i] = a & b
            out[6, i] = a | b
            out[7, i] = a ^ b
            out[8, i] = sg.min(a, b)
            out[9, i] = sg.max(a, b)
            out[10, i] = a << (b & 7)
            out[11, i] = a >> (b & 7)
            out[12, i] = (a + b) * (a - b) - a
            flags[0, i] = a < b
            flags[1, i] = a <= b
            flags[2, i] = a + b > a
            flags[3, i] = a - b == 0
            flags[4, i] = (a + b) // 3
            flags[5, i] = -a

    x, y = pairs(t)
    out, flags = np.zeros((13, len(x)), t.np), np.zeros((6, len(x)), np.int32)
    run(x, y, out, flags)
    a, b = x.astype(np.int64), y.astype(np.int64)
    safe = np.where(b == 0, 1, b)
    total = wrapped(a + b, t).astype(np.int64)
    difference = wrapped(a - b, t)
    want = [a + b, a - b, a * b, np.where(b == 0, 0, a // safe), np.where(b == 0, 0, a % safe), a & b, a | b, a ^ b, np.minimum(a, b),
            np.maximum(a, b), a << (b & 7), a >> (b & 7), (a + b) * (a - b) - a]  # fmt: skip
    for row, expected in enumerate(want):
        np.testing.assert_array_equal(out[row], wrapped(expected, t), err_msg=f"row {row}")
    tests = [a < b, a <= b, total > a, difference == 0, total // 3, wrapped(-a, t)]
    for row, expected in enumerate(tests):
        np.testing.assert_array_equal(flags[row], expected.astype(np.int32), err_msg=f"flags {row}")


@pytest.mark.parametrize("t", NARROW, ids=str)
def test_unary_operators_and_bits(poor: Any, t: DType) -> None:
    other = {sg.i8: sg.u8, sg.u8: sg.i8, sg.i16: sg.u16, sg.u16: sg.i16}[t]

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 2), counts: sg.types.ndarray(sg.i32, 2), z: sg.types.ndarray(other, 1)):
        for i in range(x.shape[0]):
            a = x[i]
            out[0, i] = -a
            out[1, i] = ~a
            out[2, i] = abs(a)
            out[3, i] = a if a > 3 else -a
            negative, flipped = -a, ~a
            counts[0, i] = -negative
            counts[1, i] = ~flipped
            counts[2, i] = abs(a)
            z[i] = sg.bit_cast(a, other)

    x = np.arange(int(t.min), int(t.max) + 1, 1 if t.bits == 8 else 251).astype(t.np)
    x = np.concatenate([x, samples(t)])
    out, counts, z = np.zeros((4, len(x)), t.np), np.zeros((3, len(x)), np.int32), np.zeros(len(x), other.np)
    run(x, out, counts, z)
    a = x.astype(np.int64)
    for row, expected in enumerate([-a, ~a, np.abs(a), np.where(a > 3, a, -a)]):
        np.testing.assert_array_equal(out[row], wrapped(expected, t), err_msg=f"row {row}")
    np.testing.assert_array_equal(counts, [a, a, wrapped(np.abs(a), t)])
    np.testing.assert_array_equal(z, x.view(other.np))


@pytest.mark.parametrize("t", NARROW, ids=str)
def test_conversions(poor: Any, t: DType) -> None:
    """To every other type and back; from floats, saturating."""
    others = [s for s in (*NARROW, sg.i32, sg.u32, sg.i64, sg.u64, sg.f32, sg.f64, sg.u1) if s is not t]
    x = samples(t)
    edges = [0.9, -0.9, 127.5, -128.9, 129.0, 255.9, 256.0, 32768.0, -32769.0, 65535.5, 1e9, -1e9, np.inf, -np.inf, np.nan]
    floats = np.array(edges, np.float32)
    for s in others:

        @sg.kernel
        def run(x: sg.types.ndarray(t, 1), y: sg.types.ndarray(s, 1), back: sg.types.ndarray(t, 1)):
            for i in range(x.shape[0]):
                y[i] = sg.cast(x[i], s)
                back[i] = sg.cast(sg.cast(x[i], s), t)

        y, back = np.zeros(len(x), s.np), np.zeros(len(x), t.np)
        run(x, y, back)
        np.testing.assert_array_equal(y, x != 0 if s is sg.u1 else x.astype(s.np), err_msg=str(s))
        if not s.is_float:
            np.testing.assert_array_equal(back, y.astype(t.np), err_msg=str(s))

    @sg.kernel
    def saturate(x: sg.types.ndarray(sg.f32, 1), y: sg.types.ndarray(t, 1)):
        for i in range(x.shape[0]):
            y[i] = sg.cast(x[i], t)

    y = np.zeros(len(floats), t.np)
    saturate(floats, y)
    clipped = np.clip(np.trunc(np.nan_to_num(floats.astype(np.float64), nan=0.0)), int(t.min), int(t.max))
    np.testing.assert_array_equal(y, clipped.astype(t.np))


@pytest.mark.parametrize("t", NARROW, ids=str)
@pytest.mark.parametrize("n", by_day((1, 3, 5, 1003), lambda n: n != 3))
def test_neighbours_are_written_at_the_same_time(poor: Any, t: DType, n: int) -> None:
    """Each element by another invocation; what no invocation writes stays."""
    x = sg.field(t, shape=n)
    before = np.random.default_rng(n).integers(t.min, t.max + 1, n).astype(t.np)
    x.from_numpy(before)
    y = sg.ndarray(t, shape=n)
    y.from_numpy(before)

    @sg.kernel
    def thirds(y: sg.types.ndarray(t, 1)):
        for i in range(n):
            if i % 3 == 1:
                x[i] = i * 7
                y[n - 1 - i] = y[n - 1 - i] + 1

    @sg.kernel
    def all_(y: sg.types.ndarray(t, 1)):
        for i in range(n):
            x[i] = x[i] - 100
            y[i] = ~y[i]

    thirds(y)
    chosen = np.arange(n) % 3 == 1
    want_x = np.where(chosen, wrapped(np.arange(n) * 7, t), before)
    want_y = np.where(chosen[::-1], wrapped(before.astype(np.int64) + 1, t), before)
    np.testing.assert_array_equal(x.to_numpy(), want_x)
    np.testing.assert_array_equal(y.to_numpy(), want_y)
    all_(y)
    np.testing.assert_array_equal(x.to_numpy(), wrapped(want_x.astype(np.int64) - 100, t))
    np.testing.assert_array_equal(y.to_numpy(), ~want_y)


@pytest.mark.parametrize("layout", (sg.Layout.AOS, sg.Layout.SOA), ids=("aos", "soa"))
def test_members_of_structs(poor: Any, layout: Any) -> None:
    Mixed = sg.types.struct(a=sg.u8, b=sg.i16, c=sg.f32, d=sg.u1, e=sg.i8, f=sg.types.vector(3, sg.u16))
    n = 37
    x = Mixed.field(shape=n, layout=layout)

    @sg.kernel
    def fill():
        for i in x:
            x[i].a = i * 9
            x[i].b = -i * 1000
            x[i].c = i / 2
            x[i].d = i % 3 == 0
            x[i].e = 100 + i
            x[i].f = sg.Vector([i, -i, i * i * i])

    @sg.kernel
    def sum_up(k: sg.i32) -> sg.i32:
        p = x[k]
        p.e += p.a
        return p.a + p.b + p.d + p.e + p.f[0] + p.f[1] + p.f[2]

    fill()
    i = np.arange(n)
    found = x.to_numpy()
    np.testing.assert_array_equal(found["a"], wrapped(i * 9, sg.u8))
    np.testing.assert_array_equal(found["b"], wrapped(-i * 1000, sg.i16))
    np.testing.assert_array_equal(found["c"], (i / 2).astype(np.float32))
    np.testing.assert_array_equal(found["d"], i % 3 == 0)
    np.testing.assert_array_equal(found["e"], wrapped(100 + i, sg.i8))
    np.testing.assert_array_equal(found["f"], wrapped(np.stack([i, -i, i**3], 1), sg.u16))
    k = 31
    e = wrapped(int(found["e"][k]) + int(found["a"][k]), sg.i8)
    u16_sum = [int(v) for v in found["f"][k]]
    small = wrapped(int(found["a"][k]) + int(found["b"][k]) + int(found["d"][k]) + int(e), sg.i16)
    assert sum_up(k) == int(wrapped(int(small) + sum(u16_sum), sg.u16))


@pytest.mark.parametrize("t", NARROW, ids=str)
def test_arguments_results_and_locals(poor: Any, t: DType) -> None:
    """Values that loops carry, vectors with an index known only at run time, functions, branches."""
    vector = sg.types.vector(4, t)

    @sg.func
    def twice(a: t) -> t:
        return a + a

    @sg.kernel
    def run(a: t, v: vector, n: sg.i32) -> t:
        total = a
        w = v
        for k in range(n):
            w[k % 4] = w[(k + 1) % 4] * total + t(k)
            total = twice(total) + w[k % 4]
            if total > 50:
                total -= a
        count = t(0)
        while count < 5:
            count += 2
            total ^= count
        return total + w[n % 4]

    @sg.kernel
    def several(a: t) -> sg.types.vector(3, t):
        return sg.Vector([a, -a, a + 1])

    for a in (int(t.min), int(t.max), 3):
        for n in (0, 1, 7):
            v = [int(t.max), 1, int(t.min), 5]
            w, total = list(v), a
            for k in range(n):
                w[k % 4] = int(wrapped(w[(k + 1) % 4] * total + k, t))
                total = int(wrapped(2 * total + w[k % 4], t))
                if total > 50:
                    total = int(wrapped(total - a, t))
            for count in (2, 4, 6):
                total ^= count
            assert run(a, sg.Vector(v), n) == int(wrapped(total + w[n % 4], t)), (a, n)
        np.testing.assert_array_equal(several(a).to_numpy(), wrapped([a, -a, a + 1], t))


@pytest.mark.parametrize("t", NARROW, ids=str)
def test_atomics(poor: Any, t: DType) -> None:
    """Neighbouring elements, contended; extrema and sums that wrap; the old value."""
    n = 500
    x = sg.field(t, shape=7)
    seen = sg.ndarray(sg.i32, shape=n)

    @sg.kernel
    def run(y: sg.types.ndarray(t, 1), seen: sg.types.ndarray(sg.i32, 1)):
        for i in range(n):
            x[0] += y[i]
            sg.atomic_min(x[1], y[i])
            sg.atomic_max(x[2], y[i])
            x[3] ^= y[i]
            x[4] |= y[i]
            x[5] &= y[i]
            seen[i] = sg.atomic_add(x[6], 1)

    y = np.random.default_rng(5).integers(t.min // 2, t.max // 2 + 1, n).astype(t.np)
    start = np.array([3, 5, 5, 0, 0, -1 if t.is_signed else t.max, 0], t.np)
    x.from_numpy(start)
    run(y, seen)
    want = [wrapped(3 + y.sum(dtype=np.int64), t), min(5, y.min()), max(5, y.max()), np.bitwise_xor.reduce(y), np.bitwise_or.reduce(y),
            np.bitwise_and.reduce(y), wrapped(n, t)]  # fmt: skip
    np.testing.assert_array_equal(x.to_numpy(), np.array(want, t.np))
    np.testing.assert_array_equal(np.sort(seen.to_numpy()), np.sort(wrapped(np.arange(n), t)))


def test_prints(poorest: Any, capfd: pytest.CaptureFixture[str]) -> None:
    @sg.kernel
    def run(a: sg.i8, b: sg.u8, c: sg.i16, d: sg.u16):
        print(a, b, c, d)
        print(a - 1, b + 1, c - 1, d + 1)
        print(f"{a:05d}|{d}")

    run(-128, 255, -32768, 65535)
    sg.sync()
    # Whether a sum with a literal stays narrow is for the language to say: the interpreter knows.
    found = capfd.readouterr().out.splitlines()
    sg.init(arch="interpreter")
    run(-128, 255, -32768, 65535)
    sg.sync()
    assert found == capfd.readouterr().out.splitlines()
    assert found[0] == "-128 255 -32768 65535" and found[2] == "-0128|65535"


def test_half_floats_in_words(arch: str) -> None:
    """Memory of f16, and its bits, without 16-bit memory and integers: every value, to the bit but for NaN."""
    without(arch, **_LESS[0])
    needs.of_type(sg.f16)

    halves = sg.types.ndarray(sg.f16, 1)

    @sg.kernel
    def run(x: halves, y: halves, bits: sg.types.ndarray(sg.u16, 1), z: halves):
        for i in range(x.shape[0]):
            y[i] = x[i]
            bits[i] = sg.bit_cast(x[i], sg.u16)
            z[i] = sg.bit_cast(sg.u16(i), sg.f16)

    x = np.arange(65536).astype(np.uint16)
    y, bits, z = np.zeros(65536, np.float16), np.zeros(65536, np.uint16), np.zeros(65536, np.float16)
    run(x.view(np.float16), y, bits, z)
    nan = np.isnan(x.view(np.float16))
    for found in (y.view(np.uint16), bits, z.view(np.uint16)):
        np.testing.assert_array_equal(found[~nan], x[~nan])
        assert np.isnan(found[nan].view(np.float16)).all()


# --- a device with nothing optional ----------------------------------------------------------------------------------------

_OPTIONAL = (
    "int8", "int16", "int64", "float16", "float64", "storage8", "storage16", "storage_f16", "atomic_int64", "atomic_f32_add",
    "atomic_f32_minmax", "atomic_f64_add", "subgroup_arithmetic",
)  # fmt: skip


def test_typical_kernels_need_no_optional_ability(arch: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Floats and integers of 32 bits and less, u1, random numbers, checks and prints."""
    without(arch, **dict.fromkeys(_OPTIONAL, False))
    field, small = sg.field(sg.f32, shape=(4, 5)), sg.field(sg.u8, shape=9)
    flags = sg.field(sg.u1, shape=9)

    @sg.kernel
    def run(x: sg.types.ndarray(sg.i16, 1), y: sg.types.ndarray(sg.f32, 2), a: sg.i8, s: sg.f32) -> sg.i16:
        total = sg.i16(0)
        for i in x:
            x[i] += a
            sg.atomic_add(small[i % 9], a)
            flags[i % 9] = i % 9 > 3
            total += x[i]
        for i, j in field:
            field[i, j] = y[i, j] * s + sg.floor(sg.random())
        print(total, a)
        return total

    x = np.arange(-500, 500, dtype=np.int16) * 60
    y = np.arange(20, dtype=np.float32).reshape(4, 5)
    shifted = wrapped(x.astype(np.int64) - 77, sg.i16)
    found = run(x, y, -77, 0.5)
    sg.sync()
    assert found == wrapped(shifted.sum(dtype=np.int64), sg.i16)
    assert capfd.readouterr().out.split() == [str(found), "-77"]
    np.testing.assert_array_equal(x, shifted)
    np.testing.assert_array_equal(small.to_numpy(), wrapped(-77 * np.bincount(np.arange(1000) % 9), sg.u8))
    np.testing.assert_array_equal(flags.to_numpy(), np.arange(9) > 3)
    np.testing.assert_array_equal(field.to_numpy(), y / 2)


def test_what_is_impossible_is_refused_by_name(arch: str) -> None:
    without(arch, **dict.fromkeys(_OPTIONAL, False))

    @sg.kernel
    def double(x: sg.types.ndarray(sg.f64, 1)):
        x[0] = x[1] + x[2]

    with pytest.raises(sg.SpirogradUnsupportedError, match="64-bit floats"):
        double(np.zeros(3))

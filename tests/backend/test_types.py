"""Every scalar type as argument, element, local and result; promotion; conversions; literals; default types."""



import needs
import numpy as np
import pytest
from backend.twin import exact_division

import spirograd as sg
from spirograd.base import dtypes
from spirograd.base.dtypes import DType, promote

pytestmark = pytest.mark.usefixtures("session")

ALL = dtypes.ALL
INTEGERS = dtypes.INTEGERS
FLOATS = dtypes.FLOATS


def samples(t: DType) -> list[object]:
    """Values at the edges of a type, and some between."""
    if t is sg.u1:
        return [False, True]
    if t.is_float:
        big = {16: 60000.0, 32: 3e38, 64: 1e300}[t.bits]
        return [0.0, -0.0, 1.0, -2.5, 3.75, 1000.5, -big, big, np.inf, -np.inf, np.nan]
    return sorted({0, 1, 2, 7, int(t.max), int(t.max) - 3, int(t.min), 100} | ({-1, -7, int(t.min) + 1} if t.is_signed else set()))


@pytest.mark.parametrize("t", ALL, ids=str)
def test_argument_local_element_and_result(arch: str, t: DType) -> None:
    x = sg.field(t, shape=4)
    y = sg.ndarray(t, shape=4)

    @sg.kernel
    def through(a: t, z: sg.types.ndarray(t, 1)) -> t:
        local = a
        x[0] = local
        z[1] = x[0]
        other: t = z[1]
        return other

    for v in samples(t):
        got = through(v, y)
        want = t.np.type(v)
        np.testing.assert_array_equal(t.np.type(got), want)
        np.testing.assert_array_equal(x.to_numpy()[0], want)
        np.testing.assert_array_equal(y.to_numpy()[1], want)
        assert type(got) is (bool if t is sg.u1 else float if t.is_float else int)


def numpy_binary(symbol: str, a: object, b: object, t: DType) -> object:
    """The operator on two NumPy values of one type, by the semantics of the language."""
    with np.errstate(all="ignore"):
        if symbol == "+":
            return a + b  # type: ignore[operator]
        if symbol == "-":
            return a - b  # type: ignore[operator]
        if symbol == "*":
            return a * b  # type: ignore[operator]
        if symbol in ("//", "%") and t.is_float:
            quotient = np.floor(a / b)  # type: ignore[operator]
            return quotient if symbol == "//" else a - quotient * b  # type: ignore[operator]
        if symbol == "//":
            return np.where(b == 0, t.np.type(0), np.floor_divide(a, np.where(b == 0, t.np.type(1), b)))
        if symbol == "%":
            return np.where(b == 0, t.np.type(0), np.mod(a, np.where(b == 0, t.np.type(1), b)))
        if symbol == "&":
            return a & b  # type: ignore[operator]
        if symbol == "|":
            return a | b  # type: ignore[operator]
        return a ^ b  # type: ignore[operator]


def pairs(a: DType, b: DType) -> tuple[np.ndarray, np.ndarray]:
    x = np.array(samples(a), a.np)
    y = np.array(samples(b), b.np)
    return np.repeat(x, len(y)), np.tile(y, len(x))


def as_type(x: np.ndarray, t: DType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x.astype(t.np)


@pytest.mark.vulkan_or_wgpu
@pytest.mark.parametrize("a", ALL, ids=str)
def test_arithmetic_promotes(arch: str, a: DType) -> None:
    """Each operator on each pair of types: computed in the promoted type. Devices do each pair in one order: promotion is not theirs."""
    sg.init(arch=arch)
    needs.strict_floats()  # floors of quotients that are whole, remainders that are not fused
    for b in ALL if arch == "interpreter" else ALL[ALL.index(a) :]:
        t = promote(a, b)
        bits = not t.is_float

        @sg.kernel
        def run(x: sg.types.ndarray(a, 1), y: sg.types.ndarray(b, 1), out: sg.types.ndarray(t, 2), flags: sg.types.ndarray(sg.i32, 2)):
            for i in range(x.shape[0]):
                p, q = x[i], y[i]
                out[0, i] = p + q
                out[1, i] = p - q
                out[2, i] = p * q
                out[3, i] = p // q
                out[4, i] = p % q
                if sg.static(bits):
                    out[5, i] = p & q
                    out[6, i] = p | q
                    out[7, i] = p ^ q
                flags[0, i] = p == q
                flags[1, i] = p != q
                flags[2, i] = p < q
                flags[3, i] = p <= q
                flags[4, i] = p > q
                flags[5, i] = p >= q

        x, y = pairs(a, b)
        out = np.zeros((8, len(x)), t.np)
        flags = np.zeros((6, len(x)), np.int32)
        run(x, y, out, flags)
        p, q = as_type(x, t), as_type(y, t)
        for row, symbol in enumerate(["+", "-", "*", "//", "%", "&", "|", "^"][: 8 if bits else 5]):
            want = numpy_binary(symbol, p, q, t)
            if t.is_float and symbol in ("//", "%"):
                _close_division(out[row], want, p, q, f"{a} {symbol} {b}")
                continue
            np.testing.assert_array_equal(out[row], want, err_msg=f"{a} {symbol} {b}")
        compared = [p == q, p != q, p < q, p <= q, p > q, p >= q]
        for row, want in enumerate(compared):
            np.testing.assert_array_equal(flags[row], want.astype(np.int32), err_msg=f"{a} {['==', '!=', '<', '<=', '>', '>='][row]} {b}")


def _close_division(got: np.ndarray, want: object, p: np.ndarray, q: np.ndarray, what: str) -> None:
    """Floor division and modulo of floats where the quotient is an ordinary number: elsewhere rounding of the quotient decides."""
    eps = np.finfo(got.dtype).eps
    # Products may fuse: on GPUs, and where the processor itself has f16.
    slack = 0.0 if exact_division() and got.dtype != np.float16 else 2 * eps
    with np.errstate(all="ignore"):
        ordinary = np.isfinite(p) & np.isfinite(q) & (q != 0) & (np.abs(p / q) < 1000) & ((p == 0) | (np.abs(p / q) > 1e-3))
        if not exact_division():  # then floors of quotients near an integer may go either way
            ratio = p.astype(np.float64) / q
            ordinary &= (np.abs(ratio - np.rint(ratio)) > 4 * eps * np.abs(ratio)) & (np.abs(q) < 2.0**126)
    got, want, p = (np.asarray(x)[ordinary].astype(np.float64) for x in (got, want, p))
    with np.errstate(invalid="ignore"):  # of infinities
        wrong = (got != want) & ~(np.abs(got - want) <= 1e-6 * np.abs(want) + slack * np.abs(p))
    assert not wrong.any(), f"{what}: {got[wrong]}, not {want[wrong]}"


def reference_cast(v: object, a: DType, t: DType) -> object:
    """Conversion of one value: integers wrap, floats to integers truncate and saturate, NaN gives 0."""
    x = a.np.type(v)
    if t is sg.u1:
        return bool(x != 0)
    if t.is_float:
        with np.errstate(all="ignore"):
            return t.np.type(x)
    if a.is_float:
        if np.isnan(x):
            return 0
        if np.isinf(x):
            return t.max if x > 0 else t.min
        return min(max(int(x), int(t.min)), int(t.max))
    out = int(x) & ((1 << t.bits) - 1)
    return out - (1 << t.bits) if t.is_signed and out >> (t.bits - 1) else out


@pytest.mark.parametrize("a", ALL, ids=str)
def test_casts(arch: str, a: DType) -> None:
    """To every type: by `cast`, by the type as a function, by storing, by an annotated local."""
    values = samples(a)
    if a.is_float:
        values += [255.0, 256.5, -129.0, 32768.0, 65535.9, 0.9, -0.9]
        values += [2.0**31, -(2.0**31), 2.0**32, 2.0**63, 2.0**64, 1e19, -1e19] if a.bits > 16 else []
    with np.errstate(all="ignore"):
        x = np.array(values, a.np)
    outs = [np.zeros((4, len(x)), t.np) for t in ALL]

    for t, out in zip(ALL, outs):

        @sg.kernel
        def run(x: sg.types.ndarray(a, 1), out: sg.types.ndarray(t, 2)):
            for i in range(x.shape[0]):
                out[0, i] = sg.cast(x[i], t)
                out[1, i] = t(x[i])
                out[2, i] = x[i]
                y: t = x[i]
                out[3, i] = y

        run(x, out)
        want = np.array([reference_cast(v, a, t) for v in x], t.np)
        for row in range(4):
            np.testing.assert_array_equal(out[row], want, err_msg=f"{a} to {t}, way {row}")


FAR = [0.0, -0.9, 3.9, -3.9, 127.5, 255.0, 65535.9, -(2.0**31), 2.0**31, 2.0**32, 2.0**63, 2.0**64, 1e20, -1e20, np.inf, -np.inf, np.nan]


@pytest.mark.archs("interpreter")  # Python's scope is the same on all
@pytest.mark.parametrize("t", ALL, ids=str)
def test_casts_in_python_are_those_of_kernels(t: DType) -> None:
    """By `cast`, by the type as a function, of vectors; integers of any size wrap."""
    for v in [*FAR, *map(np.float32, FAR), True]:
        want = reference_cast(v, sg.f64, t)
        for got in (sg.cast(v, t), t(v), sg.cast(sg.Vector([v, 0]), t)[0]):
            np.testing.assert_equal(got, want, err_msg=f"{v!r} to {t}")
    for n in (-1, 300, -129, 2**31, 2**40 + 5, np.int64(-7), 2**70 + 9):
        if t.is_int:
            assert sg.cast(n, t) == t(n) == (int(n) - t.min) % 2**t.bits + t.min


@pytest.mark.parametrize("t", [sg.i8, sg.u16, sg.i32, sg.u64], ids=str)
def test_memory_is_written_from_python_as_from_kernels(t: DType) -> None:
    field, array, vectors = sg.field(t, len(FAR)), sg.ndarray(t, len(FAR)), sg.Vector.field(2, t, len(FAR))
    for k, v in enumerate(FAR):
        field[k] = array[k] = v
        vectors[k] = [v, v]
    want = np.array([reference_cast(v, sg.f64, t) for v in FAR], t.np)
    for got in (field.to_numpy(), array.to_numpy(), vectors.to_numpy()[:, 1]):
        np.testing.assert_array_equal(got, want)
    for source in (np.float64, np.float32):
        for memory in (field, array):
            memory.fill(0)
            memory.from_numpy(np.array(FAR, source))
            np.testing.assert_array_equal(memory.to_numpy(), want)
            memory.fill(1e20)
            np.testing.assert_array_equal(memory.to_numpy(), t.max)


def test_python_types_mean_the_defaults(arch: str) -> None:
    sg.init(arch=arch, default_fp=sg.f64, default_ip=sg.i64, offline_cache=False)

    @sg.kernel
    def run(a: int, b: float, out: sg.types.ndarray(sg.f64, 1), wide: sg.types.ndarray(sg.i64, 1)) -> float:
        out[0] = 0.1
        out[1] = a / 3
        out[2] = float(a)
        out[3] = sg.sqrt(a)
        out[4] = b
        wide[0] = 3000000000
        wide[1] = a + 1
        wide[2] = int(b)
        x = 1 << 40
        wide[3] = x
        return b * 0.1

    out, wide = np.zeros(5), np.zeros(4, np.int64)
    a, b = 2**40, 1e10 / 3
    assert run(a, b, out, wide) == b * 0.1
    np.testing.assert_allclose(out, [0.1, a / 3, a, np.sqrt(a), b], rtol=1e-15)
    np.testing.assert_array_equal(wide, [3000000000, a + 1, int(b), 1 << 40])


def test_literals(arch: str) -> None:
    """A literal takes the type of the other operand where that is wider, exactly; typed constants are exact."""

    @sg.kernel
    def run(x: sg.f64, n: sg.i64, u: sg.u64, out: sg.types.ndarray(sg.f64, 1), wide: sg.types.ndarray(sg.i64, 1)) -> sg.u64:
        out[0] = x * 0.1
        out[1] = sg.f64(0.1)
        out[2] = 0.1
        out[3] = sg.cast(0.1, sg.f64)
        wide[0] = n + 1
        wide[1] = sg.i64(1234567890123)
        wide[2] = sg.i32(-1)
        wide[3] = sg.u8(300) + 0
        wide[4] = 0xFF
        wide[5] = -2147483648
        wide[6] = True + True
        return u + sg.u64(18446744073709551610)

    out, wide = np.zeros(4), np.zeros(7, np.int64)
    assert run(3.0, 2**40, 5, out, wide) == 2**64 - 1
    np.testing.assert_array_equal(out, [3.0 * 0.1, 0.1, 0.1, 0.1])
    np.testing.assert_array_equal(wide, [2**40 + 1, 1234567890123, -1, 44, 255, -(2**31), 2])


def test_literal_that_is_too_large(arch: str) -> None:
    @sg.kernel
    def run() -> sg.i64:
        x = 3000000000
        return x

    with pytest.raises(sg.SpirogradTypeError, match="3000000000 does not fit i32"):
        run()


def test_literal_beside_a_wider_value(arch: str) -> None:
    """A literal may be as large as the type of the other operand, or of the memory it goes to; beyond both it is an error."""
    x = sg.field(sg.u64, shape=())

    @sg.kernel
    def fine(a: sg.u32, b: sg.i64) -> sg.i64:
        x[None] = 18446744073709551615
        x[None] -= 18446744073709551610
        return (a ^ 0x9E3779B9) + b * 3000000000 + (a + (-1)) + (b < 3000000000)

    @sg.kernel
    def compared(a: sg.i32) -> sg.i32:
        return a < 3000000000

    @sg.kernel
    def stored(f: sg.template()):
        f[None] = 3000000000

    assert fine(7, -2) == (7 ^ 0x9E3779B9) - 6000000000 + 6 + 1
    assert x[None] == 5
    with pytest.raises(sg.SpirogradTypeError, match="3000000000 does not fit i32"):
        compared(1)
    with pytest.raises(sg.SpirogradTypeError, match="3000000000 does not fit i32"):
        stored(sg.field(sg.i32, shape=()))


def test_argument_that_does_not_fit(arch: str) -> None:
    @sg.kernel
    def run(a: sg.i8) -> sg.i32:
        return a

    assert run(-128) == -128
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="128 does not fit i8"):
        run(128)
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="takes an integer"):
        run(1.5)


def test_variables_keep_their_first_type(arch: str) -> None:
    @sg.kernel
    def run(out: sg.types.ndarray(sg.f32, 1)):
        a = 1
        a = 2.9
        out[0] = a
        b = 1.5
        b = 3
        out[1] = b / 2
        c = sg.u8(200)
        c += 100
        out[2] = c
        d = 7
        d /= 2
        out[3] = d

    out = np.zeros(4, np.float32)
    run(out)
    np.testing.assert_array_equal(out, [2, 1.5, 44, 3])


def test_numpy_scalars_as_arguments(arch: str) -> None:
    @sg.kernel
    def run(a: sg.f32, b: sg.i64, c: sg.u1) -> sg.f64:
        return a + b + c

    assert run(np.float64(1.5), np.int8(-3), np.bool_(True)) == -0.5
    assert run(2, np.uint16(7), 1) == 10


def test_rounding_to_half(arch: str) -> None:
    """To the nearest, in the middle to even; infinities, NaN, subnormals, and what is too large."""
    sg.init(arch=arch)
    rng = np.random.default_rng(5)
    halves = rng.integers(0, 1 << 16, 3000).astype(np.uint16).view(np.float16).astype(np.float32)
    halves = halves[np.isfinite(halves)]
    middles = (halves.view(np.uint32) + np.uint32(0x1000)).view(np.float32)
    near = (middles.view(np.uint32) + rng.integers(-1, 2, len(middles)).astype(np.uint32)).view(np.float32)
    edges = [0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.99, 65520, -65536, 1e30, 2**-24, 2**-25, 1.5 * 2**-25, 2**-14, 3e-5, 1e-20]
    x = np.concatenate([halves, middles, near, np.array(edges, np.float32)])
    out = np.zeros(len(x), np.float16)

    @sg.kernel
    def run(x: sg.types.ndarray(sg.f32, 1), out: sg.types.ndarray(sg.f16, 1)):
        for i in x:
            out[i] = sg.cast(x[i], sg.f16)

    run(x, out)
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    if arch == "vulkan":  # which may take subnormal halves for zero, and on some cards does
        kept = np.abs(want) >= 2.0**-14
        out, want = out[kept | ~np.isfinite(want)], want[kept | ~np.isfinite(want)]
    np.testing.assert_array_equal(out, want)

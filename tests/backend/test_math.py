"""Elementary functions against NumPy in f64, with the error in units of the last place, and special values."""

import needs
import numpy as np
import pytest

import spirograd as sg
from spirograd.base.dtypes import DType

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.optimized]
RNG = np.random.default_rng(7)
N = 400


def around(*specials: float, low: float, high: float) -> np.ndarray:
    return np.concatenate([RNG.uniform(low, high, N), np.array(specials)])


SMALL = around(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1e-4, -1e-4, low=-1.0, high=1.0)
WIDE = around(0.0, -0.0, 1.0, -1.0, 3.14159265, 1.57079633, 1e-4, low=-30.0, high=30.0)
POSITIVE = around(1.0, 0.5, 2.0, 1e-4, 0.9999, 1.0001, low=1e-3, high=50.0)
# name: (function, NumPy's, points)
UNARY = {
    "sqrt": (sg.sqrt, np.sqrt, POSITIVE),
    "rsqrt": (sg.rsqrt, lambda x: 1 / np.sqrt(x), POSITIVE),
    "exp": (sg.exp, np.exp, around(0.0, 1.0, -1.0, low=-8.0, high=8.0)),
    "log": (sg.log, np.log, POSITIVE),
    "sin": (sg.sin, np.sin, WIDE),
    "cos": (sg.cos, np.cos, WIDE),
    "tan": (sg.tan, np.tan, around(0.0, low=-1.5, high=1.5)),
    "asin": (sg.asin, np.arcsin, SMALL),
    "acos": (sg.acos, np.arccos, SMALL),
    "tanh": (sg.tanh, np.tanh, WIDE / 6),
}
NAMES = list(UNARY)
SPECIAL = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, -1.0])
# Units of the last place of the result, or of 1 where the result is smaller: functions of the driver (f32 on Vulkan) are the loosest.
# f16 is computed in f32 or by the driver, and rounded.
ULPS = {16: 4.0, 32: 16.0, 64: 4.0}
# The Vulkan specification (Precision and Operation of SPIR-V Instructions) promises 2**-11 for sin and cos between -pi and pi, and for the
# inverse functions 4096 units; what drivers do is far better, but not 16 units.
DRIVER = {"sin", "cos", "tan", "asin", "acos", "exp", "log", "tanh", "atan2", "pow"}


def bound(name: str, want: np.ndarray, t: DType, arch: str) -> np.ndarray:
    """The error allowed, absolute."""
    ulps = ULPS[t.bits]
    if arch == "vulkan" and t.bits < 64 and name in DRIVER:
        ulps = 64.0 if t.bits == 16 else 4096.0
    return ulps * float(np.finfo(t.np).eps) * np.maximum(np.abs(want), 1.0 if name not in ("exp", "rsqrt", "pow") else 0.0)


def check(name: str, got: np.ndarray, want: np.ndarray, t: DType, arch: str) -> None:
    error = np.abs(got.astype(np.float64) - want)
    worst = int(np.argmax(error - bound(name, want, t, arch)))
    assert np.all(error <= bound(name, want, t, arch)), f"{name} {t}: {got[worst]} for {want[worst]}"


@pytest.mark.parametrize("t", [sg.f16, sg.f32, sg.f64], ids=str)
def test_functions_of_one_number(arch: str, t: DType) -> None:
    needs.strict_floats()
    functions = [UNARY[name][0] for name in NAMES]
    x = np.stack([np.resize(UNARY[name][2], N + 8) for name in NAMES]).astype(t.np)

    @sg.kernel
    def run(x: sg.types.ndarray(t, 2), out: sg.types.ndarray(t, 2)):
        for i in range(x.shape[1]):
            for k in sg.static(range(len(functions))):
                out[k, i] = functions[k](x[k, i])

    out = np.zeros_like(x)
    run(x, out)
    for k, name in enumerate(NAMES):
        check(name, out[k], UNARY[name][1](x[k].astype(np.float64)), t, arch)


@pytest.mark.parametrize("t", [sg.f32, sg.f64], ids=str)
def test_functions_of_two_numbers(arch: str, t: DType) -> None:
    x, y = RNG.uniform(0.05, 6.0, N).astype(t.np), RNG.uniform(-6.0, 6.0, N).astype(t.np)
    x[:4], y[:4] = [1, 2, 0.5, 4], [0, 3, -2, 0.5]

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), y: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 2)):
        for i in range(x.shape[0]):
            out[0, i] = sg.pow(x[i], y[i])
            out[1, i] = x[i] ** y[i]
            out[2, i] = sg.atan2(y[i], x[i])
            out[3, i] = sg.atan2(y[i], -x[i])

    out = np.zeros((4, N), t.np)
    run(x, y, out)
    p, q = x.astype(np.float64), y.astype(np.float64)
    for row, (name, want) in enumerate([("pow", p**q), ("pow", p**q), ("atan2", np.arctan2(q, p)), ("atan2", np.arctan2(q, -p))]):
        check(name, out[row], want, t, arch)


@pytest.mark.parametrize("t", [sg.f32, sg.f64], ids=str)
def test_special_values(arch: str, t: DType) -> None:
    """Infinities, NaN, signed zeros, and arguments outside of the domain, without fast math."""
    sg.init(arch=arch, fast_math=False)
    needs.strict_floats()
    names = ["sqrt", "rsqrt", "exp", "log", "sin", "cos", "asin", "acos", "tanh"]
    functions = [UNARY[name][0] for name in names]
    values = np.concatenate([SPECIAL, [2.0]]).astype(t.np)

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 2)):
        for i in range(x.shape[0]):
            for k in sg.static(range(len(functions))):
                out[k, i] = functions[k](x[i])

    out = np.zeros((len(names), len(values)), t.np)
    run(values, out)
    with np.errstate(all="ignore"):
        for k, name in enumerate(names):
            want = UNARY[name][1](values.astype(np.float64))
            tolerance = 1e-3 if arch == "vulkan" and t is sg.f32 else 1e-6
            np.testing.assert_allclose(out[k], want, rtol=tolerance, atol=tolerance, err_msg=f"{name} of {values.tolist()}")


def test_integers_go_to_the_default_float(arch: str) -> None:
    @sg.kernel
    def run(n: sg.i32, m: sg.u8, out: sg.types.ndarray(sg.f64, 1)):
        out[0] = sg.sqrt(n)
        out[1] = sg.exp(m)
        out[2] = sg.atan2(n, m)
        out[3] = sg.sin(True)
        out[4] = sg.sqrt(16)
        out[5] = sg.floor(n) + sg.ceil(m)

    out = np.zeros(6)
    run(9, 2, out)
    np.testing.assert_allclose(out, [3, np.exp(2), np.arctan2(9, 2), np.sin(1), 4, 11], rtol=2e-4)


def test_python_scope(arch: str) -> None:
    """The same names work on numbers outside of kernels."""
    assert sg.sqrt(4.0) == 2.0 and sg.floor(-1.5) == -2.0 and sg.round(2.5) == 3.0 and sg.round(-0.49) == 0.0
    assert sg.atan2(1.0, 1.0) == np.arctan2(1.0, 1.0) and sg.pow(2, 10) == 1024
    assert np.isnan(sg.log(-1.0)) and sg.exp(0.0) == 1.0

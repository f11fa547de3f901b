"""Pseudocode of the vendor as NumPy functions: against known results, and against what is written out by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from validation.rdna3 import alu, arithmetic, written_out
from validation.rdna3.pseudocode import NotPseudocode
from validation.rdna3.tables import tables
from validation.rdna3.translate import translate

pytestmark = pytest.mark.needs("tinygrad")
RANDOM = np.random.default_rng(3)
SIZES = {"S0": 32, "S1": 32, "S2": 32, "D0": 32, "SIMM16": 16, "SIMM32": 32, "EXEC": 32}


def run(text: str, **given: np.ndarray) -> dict[str, np.ndarray]:
    function = translate(text, {name: given[name].dtype.itemsize * 8 for name in given if given[name].dtype != bool} | {"D0": 32}, _none)
    given.setdefault("D0", words(0))
    with np.errstate(all="ignore"):
        return dict(zip(function.outputs, function.run(*[given[name] for name in function.inputs])))


def _none(name: str) -> None:
    raise NotPseudocode(name)


def words(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint32)


# --- the language ---


def test_conditions_are_of_each_lane() -> None:
    text = "if S0.u32 == 1U then\nD0.u32 = 10U\nelsif S0.i32 < 0 then\nD0.u32 = 20U\nelse\nD0.u32 = 30U\nendif"
    assert run(text, S0=words(1, 2, 0xFFFFFFFF))["D0"].tolist() == [10, 30, 20]


def test_a_loop_ends_for_each_lane() -> None:
    """A lane that has found its bit does not look further, while others do."""
    text = "D0.i32 = -1;\nfor i in 0 : 31 do\nif S0.u32[i] == 1'1U then\nD0.i32 = i;\nbreak\nendif\nendfor"
    assert run(text, S0=words(0, 1, 12, 0x80000000, 5))["D0"].view(np.int32).tolist() == [-1, 0, 2, 31, 0]


def test_parts_of_registers() -> None:
    text = "tmp[31 : 16].u16 = S0[15 : 0].u16;\ntmp[15 : 0].u16 = S0[31 : 16].u16;\nD0.b32 = tmp.b32"
    assert run(text, S0=words(0x12345678))["D0"].tolist() == [0x56781234]
    joined = run("D0.u32 = 32'U(({ S0.u32, S1.u32 } >> S2.u32[4 : 0].u32) & 0xffffffffLL)", S0=words(1), S1=words(0x80000000), S2=words(31))
    assert joined["D0"].tolist() == [3]


def test_nan_is_neither_less_nor_greater() -> None:
    x, y = (np.array(v, np.float32).view(np.uint32) for v in ([np.nan, 1, 1, 2], [0, np.nan, 1, 1]))
    assert run("D0.u64[laneId] = S0.f32 <> S1.f32;", S0=x, S1=y)["D0@lane"].tolist() == [False, False, False, True]


def test_bits_of_lanes() -> None:
    """A comparison gives a condition for each lane; a carry comes in and goes out as one."""
    assert run("D0.u64[laneId] = S0.f32 < S1.f32;", S0=words(0), S1=words(0x3F800000))["D0@lane"].tolist() == [True]
    carry = tables().pseudocode["VOP2", "V_ADD_CO_CI_U32_E32"]
    got = run(carry, S0=words(0xFFFFFFFF, 1), S1=words(0, 1), **{"VCC@lane": np.array([True, False])})
    assert (got["D0"].tolist(), got["VCC@lane"].tolist()) == ([0, 2], [True, False])


@pytest.mark.parametrize(
    "text", ["Wait for all instructions", "D0.f32 = frobnicate(S0.f32)", "D0.u32 = S0.u32 +", "D0.f32 = S0.u32 + S0.f32"]
)
def test_what_is_no_pseudocode(text: str) -> None:
    with pytest.raises(NotPseudocode):
        run(text, S0=words(0))


def test_most_instructions_have_pseudocode() -> None:
    """Of scalar and vector arithmetic, those that lack it are written out, exchange lanes, or are for graphics."""
    good = bad = 0
    for kind, name in tables().pseudocode:
        if kind in ("SOP1", "SOP2", "SOPC", "VOP1", "VOP2", "VOP3", "VOPC"):
            try:
                translate(tables().pseudocode[kind, name], SIZES, lambda name: _none)
                good += 1
            except NotPseudocode:
                bad += 1
    assert good > 850 and bad < 60


# --- what is written out ---

# Why the pseudocode of an instruction says something else.
DIFFERENT = {
    "V_RNDNE": "adds 0.5, which rounds, and fails for large numbers", "S_RNDNE": "the same",
    "V_DIV_FMAS": "multiplies by a constant", "V_RSQ": "rounds twice",
    "V_FREXP": "knows no subnormal numbers", "V_LDEXP": "has a power of two that overflows",
}  # fmt: skip
# Those whose pseudocode cannot be translated: `test_programs.py` and `test_assembly.py` have them.
WITHOUT = (
    "V_DIV_SCALE", "V_MAD_U64", "V_MAD_I64", "V_PERM_B32", "V_BFREV", "S_BREV", "V_SAT_PK", "V_CVT_PK_RTZ", "S_CVT_PK_RTZ", "V_FMA_MIX",
)  # fmt: skip


def operands(name: str) -> dict[str, np.ndarray]:
    bits = 64 if name.endswith("64") else 16 if "F16" in name or name.endswith("U16") else 32
    t = np.dtype(f"u{bits // 8}")
    given = {}
    for register in ("S0", "S1", "S2", "D0"):
        drawn = RANDOM.integers(0, np.iinfo(t).max, 400, dtype=t, endpoint=True)
        drawn[:40] = RANDOM.integers(0, 34, 40)
        drawn[40:44] = [0, np.iinfo(t).max, 1 << bits - 1, 1]
        given[register] = drawn[:, None]
    return given


@pytest.mark.parametrize("name", [name for name in written_out.FUNCTIONS if not name.startswith(tuple(DIFFERENT))])
def test_written_out_as_the_vendor_has_it(name: str) -> None:
    """Random bits, NaN of both kinds among them, zeros, and small numbers."""
    kind = next(k for k, n in tables().pseudocode if n.removesuffix("_E32").removesuffix("_E64") == name)
    full = next(n for k, n in tables().pseudocode if k == kind and n.removesuffix("_E32").removesuffix("_E64") == name)
    given = operands(name)
    if name.startswith("S_BCNT"):
        given["D0"] = given["D0"].astype(np.uint32)
    widths = {register: array.dtype.itemsize * 8 for register, array in given.items()}
    if name.startswith(("S_C", "S_BCNT", "V_CLZ", "V_CTZ", "V_CLS", "V_SAT")):
        widths["D0"] = 16 if "SAT" in name else 32
        given["S0"] = given["S0"].astype(f"u{(64 if '64' in name else 32) // 8}")
        widths["S0"] = given["S0"].dtype.itemsize * 8
    try:
        vendor = translate(tables().pseudocode[kind, full], widths, alu._as_function)
    except NotPseudocode:
        assert name.startswith(WITHOUT)
        return
    own = written_out.FUNCTIONS[name]
    given |= {"laneId": np.arange(32, dtype=np.uint32)[None, :]}
    with np.errstate(all="ignore"):
        want = dict(zip(vendor.outputs, vendor.run(*[given[register] for register in vendor.inputs])))
        got = dict(zip(own.outputs, own.run(*[given[register] for register in own.inputs])))
    for output in want:
        assert (got[output] == want[output]).all() or _zeros_apart(name, got[output], want[output])


def _zeros_apart(name: str, got: np.ndarray, want: np.ndarray) -> bool:
    """The pseudocode of floor and ceil adds to a truncated number, which loses the sign of zero."""
    if "CEIL" not in name and "FLOOR" not in name:
        return False
    t = f"f{got.dtype.itemsize}"
    return bool(np.array_equal(got.view(t), want.view(t), equal_nan=True))


# --- arithmetic ---


@pytest.mark.parametrize("t", ["f2", "f4", "f8"])
def test_fma_rounds_once(t: str) -> None:
    """Against exact fractions: sums that nearly cancel, subnormal results, the ends of the range."""
    info = np.finfo(t)
    exponents = RANDOM.integers(info.minexp, info.maxexp, (3, 3000)) // 2
    a, b, c = (np.ldexp(RANDOM.normal(size=3000), e).astype(t) for e in exponents)
    with np.errstate(all="ignore"):
        c[::2] = -(a * b)[::2]
        c[1::4] = (a * b * np.asarray(2.0 ** RANDOM.integers(-60, 60, 3000)).astype(t))[1::4]
        a[5::9], b[5::9] = np.ldexp(a, info.minexp // 3)[5::9], np.ldexp(b, info.minexp // 3)[5::9]
        got = arithmetic.fma(a, b, c)
    for x, y, z, result in zip(a, b, c, got):
        if all(map(math.isfinite, (x, y, z))):
            exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
            assert result == nearest(exact, t), (x, y, z)


def nearest(exact: Fraction, t: str) -> float:
    """Rounded to nearest, ties to even, by comparing with the neighbours."""
    try:
        near = np.dtype(t).type(float(exact))
    except OverflowError:
        return math.copysign(math.inf, exact)
    if not np.isfinite(near):
        return float(near)
    inf = np.dtype(t).type(np.inf)
    options = [near, np.nextafter(near, inf), np.nextafter(near, -inf)]
    distances = [abs(Fraction(float(option)) - exact) for option in options if np.isfinite(option)]
    best = [option for option, distance in zip(options, distances) if distance == min(distances)]
    even = [option for option in best if int(option.view(f"u{option.itemsize}")) % 2 == 0]
    return float((even if len(best) > 1 and even else best)[0])


def test_conversions_saturate() -> None:
    x = np.array([1e20, -1e20, np.nan, 2.9, -2.9, np.inf], np.float32)
    assert arithmetic.to_integer(x, np.int32).tolist() == [2**31 - 1, -(2**31), 0, 2, -2, 2**31 - 1]
    assert arithmetic.to_integer(x, np.uint32).tolist() == [2**32 - 1, 0, 0, 2, 0, 2**32 - 1]


def test_towards_zero() -> None:
    x = np.array([1.0009, -1.0009, 70000.0, 1e-9, 1.0], np.float32)
    with np.errstate(over="ignore"):
        got = arithmetic.to_half_towards_zero(x).astype(float)
    assert (np.abs(got) <= np.abs(x)).all()
    assert got.tolist() == [1.0, -1.0, 65504.0, 0.0, 1.0]

"""Fit the polynomials of the elementary functions, split their constants, and write ``spirograd/transforms/math/coefficients.py``.

Needs mpmath (development only). Every entry is a minimax fit by the Remez exchange algorithm in 60 digits, on a dense Chebyshev grid, of
``target(t)`` by a polynomial in ``t`` under ``weight(t)``, which turns the error of the polynomial into the relative error of the function.
Coefficients are rounded to the working type one by one, lowest first, and the others fitted anew each time (intervals that start at 0).

    python tools/fit_polynomials.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

try:
    import mpmath as mp
except ModuleNotFoundError:
    sys.exit("tools/fit_polynomials.py needs mpmath: pip install mpmath")

mp.mp.dps = 60
OUTPUT = Path(__file__).parent.parent / "spirograd" / "transforms" / "math" / "coefficients.py"
HALF_LN2 = mp.log(2) / 2 * mp.mpf("1.0005")
LOG_Z = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 * mp.mpf("1.0005")


@dataclass(frozen=True)
class Fit:
    """``terms`` coefficients of ``target`` over [low, high], in f32 or f64; ``doc`` goes into the generated file."""

    name: str
    doc: str
    target: Callable[[Any], Any]
    weight: Callable[[Any], Any]
    low: Any
    high: Any
    terms: int
    single: bool = False


def _odd(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return (f(x) - x) / x**3 as a function of z = x**2."""
    return lambda z: (function(mp.sqrt(z)) - mp.sqrt(z)) / (mp.sqrt(z) * z)


def _relative(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the weight for `_odd`: the error of the polynomial times x**3, relative to f(x)."""
    return lambda z: mp.sqrt(z) * z / function(mp.sqrt(z))


def _exp_tail(r: Any) -> Any:
    return (mp.exp(r) - 1 - r) / r**2


def _log_tail(z: Any) -> Any:
    """With s = sqrt(z): log((1 + s) / (1 - s)) = 2 s + s R, R = z * tail."""
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) - 2 * s) / (s * z)


def _log1p_tail(f: Any) -> Any:
    return (mp.log1p(f) - f + f**2 / 2) / f**3


def _log1p_weight(f: Any) -> Any:
    return f**3 / mp.log1p(f)


def _pow_tail(z: Any) -> Any:
    """With s = sqrt(z): 3 atanh(s) / s = 3 + z + z**2 tail."""
    s = mp.sqrt(z)
    return (3 * mp.atanh(s) / s - 3 - z) / z**2


LOG2 = mp.log(2)
SIN_Z = (mp.pi / 4) ** 2 * mp.mpf("1.001")
ATAN_Z = mp.tan(mp.pi / 8) ** 2 * mp.mpf("1.001")
QUARTER = mp.mpf("0.25")
THIRD = mp.mpf(1) / 3


def _log2_factor(z: Any) -> Any:
    s = mp.sqrt(z)
    return 2 * mp.atanh(s) / (s * LOG2)


def _cos_tail(z: Any) -> Any:
    return (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2


def _exp_weight(r: Any) -> Any:
    return r**2 / mp.exp(r)


def _one(z: Any) -> Any:
    return mp.mpf(1)


def _identity(z: Any) -> Any:
    return z


def _square(z: Any) -> Any:
    return z**2


FITS = (
    Fit("EXP_F32", "e**r = 1 + r + r**2 P(r), |r| <= ln(2)/2", _exp_tail, _exp_weight, -HALF_LN2, HALF_LN2, 5, True),
    Fit("LOG_F32", "log((1+s)/(1-s)) = 2 s + s z P(z), z = s**2", _log_tail, _identity, 0, LOG_Z, 3, True),
    Fit("LOG1P_F32", "log(1 + f) = f - f**2 / 2 + f**3 P(f), |f| <= 1/3", _log1p_tail, _log1p_weight, -THIRD, THIRD, 8, True),
    Fit("SIN_F32", "sin(r) = r + r z P(z), z = r**2, |r| <= pi/2", _odd(mp.sin), _relative(mp.sin), 0, (mp.pi / 2) ** 2, 4, True),
    Fit("TAN_F32", "tan(r) = r + r z P(z), |r| <= pi/4", _odd(mp.tan), _relative(mp.tan), 0, (mp.pi / 4) ** 2, 6, True),
    Fit("ASIN_F32", "asin(r) = r + r z P(z), |r| <= 1/2", _odd(mp.asin), _relative(mp.asin), 0, QUARTER, 5, True),
    Fit("ATAN_F32", "atan(r) = r + r z P(z), |r| <= 1", _odd(mp.atan), _relative(mp.atan), 0, 1, 8, True),
    Fit("TANH_F32", "tanh(r) = r + r z P(z), |r| <= 5/8", _odd(mp.tanh), _relative(mp.tanh), 0, mp.mpf("0.390625"), 5, True),
    Fit("LOG2_POW_F32", "log2((1+s)/(1-s)) = s P(z), in f64", _log2_factor, _one, 0, LOG_Z, 6),
    Fit("EXP_F64", "e**r = 1 + r + r**2 P(r), |r| <= ln(2)/2", _exp_tail, _exp_weight, -HALF_LN2, HALF_LN2, 11),
    Fit("LOG_F64", "log((1+s)/(1-s)) = 2 s + s z P(z), z = s**2", _log_tail, _identity, 0, LOG_Z, 7),
    Fit("LOG_POW_F64", "atanh(s) = s/3 (3 + z + z**2 P(z))", _pow_tail, _square, 0, LOG_Z, 8),
    Fit("SIN_F64", "sin(r) = r + r z P(z), |r| <= pi/4", _odd(mp.sin), _relative(mp.sin), 0, SIN_Z, 6),
    Fit("COS_F64", "cos(r) = 1 - z/2 + z**2 P(z), |r| <= pi/4", _cos_tail, _square, 0, SIN_Z, 6),
    Fit("ASIN_F64", "asin(r) = r + r z P(z), |r| <= 1/2", _odd(mp.asin), _relative(mp.asin), 0, QUARTER, 12),
    Fit("ATAN_F64", "atan(r) = r + r z P(z), |r| <= tan(pi/8)", _odd(mp.atan), _relative(mp.atan), 0, ATAN_Z, 11),
)


# A constant as an unevaluated sum: ``name_1`` ... with the given numbers of significant bits, and what remains as a full f64. Those with
# DOWN in their names are rounded down, so that all parts are positive.
SPLITS: tuple[tuple[str, Any, tuple[int, ...]], ...] = (
    ("LN2_15", mp.log(2), (15,)),
    ("LN2_21", mp.log(2), (21,)),
    ("LN2_33", mp.log(2), (33,)),
    ("PI_11_11", mp.pi, (11, 11)),
    ("PI_28", mp.pi, (28,)),
    ("HALF_PI_33", mp.pi / 2, (33, 33, 33)),
    ("HALF_PI", mp.pi / 2, (53,)),
    ("PI", mp.pi, (53,)),
    ("HALF_PI_24", mp.pi / 2, (24,)),
    ("PI_24", mp.pi, (24,)),
    ("PI_24_24", mp.pi, (24, 24)),
    ("PI_24_24_DOWN", mp.pi, (24, 24)),
    ("CP_21", 2 / (3 * mp.log(2)), (21,)),
)


def split(value: Any, bits: Sequence[int], down: bool) -> list[float]:
    """Split ``value`` into parts, each rounded (``down``: downwards) to that many bits, and the rest."""
    parts: list[float] = []
    rest = value
    for count in bits:
        unit = mp.mpf(2) ** (mp.floor(mp.log(abs(rest), 2)) - count + 1)
        parts.append(float((mp.floor if down else mp.nint)(rest / unit) * unit))
        rest = rest - mp.mpf(parts[-1])
    return [*parts, float(rest)]


def _horner(coefficients: Sequence[Any], t: Any) -> Any:
    value = mp.mpf(0)
    for c in reversed(coefficients):
        value = value * t + c
    return value


def _alternation(errors: Sequence[Any], count: int) -> list[int]:
    """Return the grid points of the largest error in each run of one sign: the ``count`` neighbouring ones with the largest errors."""
    peaks: list[int] = []
    for i, e in enumerate(errors):
        if peaks and (errors[peaks[-1]] > 0) == (e > 0):
            if abs(e) > abs(errors[peaks[-1]]):
                peaks[-1] = i
        else:
            peaks.append(i)
    while len(peaks) > count:
        peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
    return peaks


def remez(grid: Sequence[Any], values: Sequence[Any], weights: Sequence[Any], first: int, terms: int) -> tuple[list[Any], Any]:
    """Return the coefficients of t**first ... t**(first+terms-1), and the largest weighted error."""
    size = terms + 1
    points = [round((len(grid) - 1) * (k + 0.5) / size) for k in range(size)]
    best: tuple[list[Any], Any] | None = None
    for _ in range(12):
        rows = [[grid[p] ** (first + j) for j in range(terms)] + [(-1) ** i / weights[p]] for i, p in enumerate(points)]
        solution = list(mp.lu_solve(mp.matrix(rows), mp.matrix([values[p] for p in points])))
        coefficients = solution[:terms]
        errors = [w * (_horner(coefficients, t) * t**first - g) for t, g, w in zip(grid, values, weights)]
        worst = max(abs(e) for e in errors)
        if best is None or worst < best[1]:
            best = (coefficients, worst)
        peaks = _alternation(errors, size)
        if len(peaks) < size or peaks == points:
            break
        points = peaks
    assert best is not None
    return best


def fit(job: Fit) -> tuple[list[float], Any]:
    """Return the rounded coefficients, lowest first, and their weighted error on the grid."""
    count = 24 * job.terms
    grid = [job.low + (job.high - job.low) * (1 - mp.cos(mp.pi * (k + mp.mpf("0.5")) / count)) / 2 for k in range(count)]
    values = [job.target(t) for t in grid]
    weights = [job.weight(t) for t in grid]
    rest = list(values)
    rounded: list[float] = []
    solution, _ = remez(grid, rest, weights, 0, job.terms)
    for k in range(job.terms):
        c = float(np.float32(float(solution[0]))) if job.single else float(solution[0])
        rounded.append(c)
        rest = [g - c * t**k for g, t in zip(rest, grid)]
        if job.low == 0 and k + 1 < job.terms:
            solution, _ = remez(grid, rest, weights, k + 1, job.terms - k - 1)
        else:
            solution = solution[1:]
    error = max(abs(w * (_horner(rounded, t) - g)) for t, g, w in zip(grid, values, weights))
    return rounded, error


def main() -> None:
    lines = ['"""Minimax polynomials, lowest power first. Generated by tools/fit_polynomials.py: change that, not this."""', ""]
    for job in FITS:
        coefficients, error = fit(job)
        lines += [f"# {job.doc}: error 2**{float(mp.log(error, 2)):.1f}", f"{job.name} = ("]
        lines += [f"    {c!r}," for c in coefficients] + [")"]
        print(job.name, len(coefficients), f"2**{float(mp.log(error, 2)):.1f}", flush=True)
    for name, value, bits in SPLITS:
        lines += [f"# {', '.join(map(str, bits))} bits, and the rest", f"{name} = ("]
        lines += [f"    {part!r}," for part in split(value, bits, "DOWN" in name)] + [")"]
    OUTPUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

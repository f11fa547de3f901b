"""Elementary functions, against NumPy in double precision."""

from __future__ import annotations

import numpy as np

import spirograd as sg
from validation.case import Results, case, type_needs

FLOATS = (sg.f16, sg.f32, sg.f64)
# name -> (function of the language, of NumPy, from, to)
FUNCTIONS = {
    "sqrt": (sg.sqrt, np.sqrt, 0.01, 9),
    "rsqrt": (sg.rsqrt, lambda x: 1 / np.sqrt(x), 0.1, 9),
    "exp": (sg.exp, np.exp, -4, 4),
    "log": (sg.log, np.log, 0.05, 9),
    "sin": (sg.sin, np.sin, -6, 6),
    "cos": (sg.cos, np.cos, -6, 6),
    "tan": (sg.tan, np.tan, -1.2, 1.2),
    "asin": (sg.asin, np.arcsin, -0.99, 0.99),
    "acos": (sg.acos, np.arccos, -0.99, 0.99),
    "tanh": (sg.tanh, np.tanh, -3, 3),
    "floor": (sg.floor, np.floor, -4, 4),
    "ceil": (sg.ceil, np.ceil, -4, 4),
    "round": (sg.round, lambda x: np.trunc(x + np.copysign(0.5, x)), -4, 4),
}


def loose(_name, t):
    """Drivers may compute f32 functions with few bits; f16 rounds its argument first."""
    return {"f16": 1e-2, "f32": 1e-4, "f64": 1e-12}[t.name]


@case([(name, t) for name in FUNCTIONS for t in FLOATS], needs=lambda _name, t: type_needs(t), rtol=loose, atol=loose)
def function(name, t) -> Results:
    apply, reference, low, high = FUNCTIONS[name]
    x = np.linspace(low, high, 97).astype(t.np)
    out = np.zeros_like(x)

    @sg.kernel
    def run(x: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 1)):
        for i in x:
            out[i] = apply(x[i])

    run(x, out)
    return {name: (out.astype(np.float64), reference(x.astype(np.float64)))}


@case([("atan2", t) for t in FLOATS] + [("pow", t) for t in FLOATS], needs=lambda _name, t: type_needs(t), rtol=loose, atol=loose)
def function_of_two(name, t) -> Results:
    a, b = (grid.ravel().astype(t.np) for grid in np.meshgrid(np.linspace(0.1, 3, 9), np.linspace(-2.5, 2.5, 8)))
    out = np.zeros_like(a)

    @sg.kernel
    def run(a: sg.types.ndarray(t, 1), b: sg.types.ndarray(t, 1), out: sg.types.ndarray(t, 1)):
        for i in a:
            if sg.static(name == "pow"):
                out[i] = sg.pow(a[i], b[i])
            else:
                out[i] = sg.atan2(b[i], a[i])

    run(a, b, out)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    return {name: (out.astype(np.float64), wide_a**wide_b if name == "pow" else np.arctan2(wide_b, wide_a))}


@case(rtol=1e-4, atol=1e-5)
def shading_functions() -> Results:
    x = np.linspace(-1, 2, 50, dtype=np.float32)
    out = np.zeros((5, 50), np.float32)

    @sg.kernel
    def run(x: sg.types.ndarray(sg.f32, 1), out: sg.types.ndarray(sg.f32, 2)):
        for i in x:
            out[0, i] = sg.math.clamp(x[i], 0.0, 1.0)
            out[1, i] = sg.math.mix(2.0, 4.0, x[i])
            out[2, i] = sg.math.smoothstep(0.0, 1.0, x[i])
            out[3, i] = sg.math.fract(x[i])
            out[4, i] = sg.math.sign(x[i])

    run(x, out)
    t = np.clip(x, 0, 1)
    return {"out": (out, np.stack([t, 2 + 2 * x, t * t * (3 - 2 * t), x - np.floor(x), np.sign(x)]))}

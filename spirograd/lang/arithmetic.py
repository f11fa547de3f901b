"""The operations that users call: each works on numbers in Python, on values in kernels, and on matrices entry by entry."""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable
from typing import Any, Protocol, SupportsFloat, TypeVar, overload

import numpy as np

from spirograd.base import dtypes
from spirograd.base.dtypes import DType, i32, promote, u1
from spirograd.base.later import Later
from spirograd.ir import ops as ir
from spirograd.ir.ops import OpCode
from spirograd.lang import float_parts, scalar, traced_numbers
from spirograd.lang.context import current_trace, language_options
from spirograd.lang.scalar import Number, Scalar, Value, as_value, dtype_of, emit, is_scalar, type_error
from spirograd.lang.traced_numbers import TracedNumber

F = TypeVar("F", bound=Callable[..., object])
# A function of Python or NumPy that computes with plain numbers.
OfNumbers = Callable[..., Number]


class Elementwise(Protocol):
    """A function of numbers, vectors and matrices, in kernels or in Python; its result is one of these."""

    def __call__(self, *args: object) -> Any: ...


class Unary(Protocol):
    """A function of one number, vector or matrix."""

    def __call__(self, x: object, /) -> Any: ...


class Binary(Protocol):
    """A function of two numbers, vectors or matrices."""

    def __call__(self, a: object, b: object, /) -> Any: ...


class Ternary(Protocol):
    """A function of three numbers, vectors or matrices."""

    def __call__(self, a: object, b: object, c: object, /) -> Any: ...


class Rounding(Protocol):
    """A function that rounds a number, or the entries of a vector or matrix, to integers. ``dtype``: the type of the result."""

    def __call__(self, x: object, dtype: DType | None = None) -> Any: ...


@overload
def elementwise(function: Callable[[Scalar], object]) -> Unary: ...


@overload
def elementwise(function: Callable[[Scalar, Scalar], object]) -> Binary: ...


@overload
def elementwise(function: Callable[[Scalar, Scalar, Scalar], object]) -> Ternary: ...


def elementwise(function: Callable[..., object]) -> Elementwise:
    """Apply ``function`` to each entry where an argument is a matrix (anything with ``__sg_elementwise__``)."""

    @functools.wraps(function)
    def run(*args: object) -> object:
        for a in args:
            hook = getattr(a, "__sg_elementwise__", None)
            if hook is not None:
                return hook(run, args)
        for a in args:
            if not is_scalar(a):
                raise type_error(f"`{function.__name__}` takes numbers, vectors and matrices, not {scalar.describe(a)}")
        return function(*args)

    return traceable(run)


def traceable(function: F) -> F:
    """Mark a Python function that the front end may call while tracing, with run-time values as arguments."""
    function.__sg_traceable__ = True  # type: ignore[attr-defined]
    return function


def _unary_math(name: str, code: OpCode, python: OfNumbers, doc: str) -> Unary:
    def run(x: Scalar) -> Scalar:
        return emit(code, scalar.to_float(x)) if isinstance(x, Value) else _python(python, x)

    run.__name__ = run.__qualname__ = name
    run.__doc__ = doc
    return elementwise(run)


def _python(function: OfNumbers, *args: Number) -> Number:
    """Return the function in Python scope, with NaN and infinities as in kernels."""
    if any(isinstance(a, TracedNumber) for a in args):
        return traced_numbers.apply(function, args)
    with np.errstate(all="ignore"):
        value = function(*[np.float64(a) for a in args])
    number: Number = value.item() if isinstance(value, np.generic) else value
    return number


sqrt = _unary_math("sqrt", ir.sqrt, np.sqrt, "Return the square root of x: NaN below 0.")
rsqrt = _unary_math("rsqrt", ir.rsqrt, traced_numbers.rsqrt, "Return ``1 / sqrt(x)``: infinite at 0, NaN below.")
exp = _unary_math("exp", ir.exp, np.exp, "Return e to the power of x.")
log = _unary_math("log", ir.log, np.log, "Return the natural logarithm of x: -inf at 0, NaN below.")
sin = _unary_math("sin", ir.sin, np.sin, "Return the sine of x, an angle in radians.")
cos = _unary_math("cos", ir.cos, np.cos, "Return the cosine of x, an angle in radians.")
tan = _unary_math("tan", ir.tan, np.tan, "Return the tangent of x, an angle in radians.")
asin = _unary_math("asin", ir.asin, np.arcsin, "Return the angle in radians, from -pi/2 to pi/2, whose sine is x; NaN outside of -1 to 1.")
acos = _unary_math("acos", ir.acos, np.arccos, "Return the angle in radians, from 0 to pi, whose cosine is x; NaN outside of -1 to 1.")
tanh = _unary_math("tanh", ir.tanh, np.tanh, "Return the hyperbolic tangent of x.")


def _nearest(x: Value) -> Value:
    """Round to nearest, ties away from zero. The result is exact, because truncation cuts off an exact number."""
    truncated = emit(ir.trunc, x)
    far = scalar.greater_equal(builtins.abs(x - truncated), scalar.constant(0.5, x.dtype))
    away = scalar.select(x < 0, truncated - 1, truncated + 1)
    return scalar.select(far, away, truncated)


def _nearest_number(x: np.float64) -> np.float64:
    truncated = np.trunc(x)
    rounded: np.float64 = truncated + np.copysign(1.0, x) if builtins.abs(x - truncated) >= 0.5 else truncated
    return rounded


def _rounding(name: str, emit_value: Callable[[Value], Value], python: OfNumbers, doc: str) -> Rounding:
    def run(x: Scalar, dtype: DType | None) -> object:
        y = (emit_value(x) if x.dtype.is_float else x) if isinstance(x, Value) else _python(python, x)
        return y if dtype is None else cast(y, dtype)

    def entry(x: Any, dtype: DType | None = None) -> object:
        if isinstance(dtype, int):
            problem = f"the second argument of `{name}` is a type in kernels, not a number of digits"
            raise type_error(problem, f"write `{name}(x * {10.0**dtype}) / {10.0**dtype}`")
        hook = getattr(x, "__sg_elementwise__", None)
        return hook(lambda e: entry(e, dtype), (x,)) if hook is not None else run(x, dtype)

    entry.__name__ = entry.__qualname__ = name
    entry.__doc__ = doc
    return traceable(entry)


floor = _rounding("floor", lambda x: emit(ir.floor, x), np.floor, "Round down. ``dtype``: the type of the result, by default that of x.")
ceil = _rounding("ceil", lambda x: emit(ir.ceil, x), np.ceil, "Round up. ``dtype``: see `floor`.")
round = _rounding("round", _nearest, _nearest_number, "Round to nearest, ties away from zero. ``dtype``: see `floor`.")
trunc = _rounding("trunc", lambda x: emit(ir.trunc, x), np.trunc, "Round towards zero. ``dtype``: see `floor`.")


@elementwise
def atan2(y: Scalar, x: Scalar) -> Scalar:
    """Return the angle of the point (x, y), in radians, between -pi and pi."""
    if not isinstance(y, Value) and not isinstance(x, Value):
        return _python(np.arctan2, y, x)
    return _float_binary(ir.atan2, y, x)


def _float_binary(code: OpCode, a: Scalar, b: Scalar) -> Value:
    t = promote(dtype_of(a), dtype_of(b))
    t = t if t.is_float else scalar.trace_of().options.default_fp
    return emit(code, scalar.cast(a, t), scalar.cast(b, t))


@elementwise
def pow(x: Scalar, y: Scalar) -> Scalar:
    """Return ``x ** y``; for two integers an integer, truncated if the exponent is negative.

    A negative constant exponent raises SpirogradTypeError.
    """
    return scalar.power(x, y)


@elementwise
def abs(x: Scalar) -> Scalar:
    """Return the absolute value of x."""
    return builtins.abs(x)


@elementwise
def neg(x: Scalar) -> Scalar:
    """Return ``-x``."""
    return -x


@elementwise
def isnan(x: Scalar) -> Scalar:
    """Return whether x is NaN."""
    return _classify(ir.isnan, math.isnan, x)


@elementwise
def isinf(x: Scalar) -> Scalar:
    """Return whether x is infinite."""
    return _classify(ir.isinf, math.isinf, x)


def _classify(code: OpCode, python: Callable[[float], bool], x: Scalar) -> bool | Value:
    if not isinstance(x, Value):
        return python(traced_numbers.plain(x))
    return emit(code, x) if x.dtype.is_float else scalar.constant(False)


def _extremum(name: str, code: OpCode, python: Callable[[Number, Number], Number], doc: str) -> Elementwise:
    @elementwise
    def two(a: Scalar, b: Scalar) -> Scalar:
        if not isinstance(a, Value) and not isinstance(b, Value):
            return python(a, b)
        x, y, t = scalar.unify(a, b)
        if t is i32 and dtype_of(a) is u1 and dtype_of(b) is u1:
            return emit(ir.or_ if code is ir.max_ else ir.and_, as_value(a), as_value(b))
        return emit(code, x, y)

    def run(*args: object) -> object:
        if len(args) < 2:
            raise type_error(f"`{name}` takes two arguments or more, got {len(args)}", f"for the entries of a vector there is `v.{name}()`")
        return functools.reduce(two, args)

    run.__name__ = run.__qualname__ = name
    run.__doc__ = doc
    return traceable(run)


min = _extremum(
    "min", ir.min_, lambda a, b: a if a <= b or b != b else b, "Return the smallest of two or more. A NaN counts only if all are NaN."
)
max = _extremum(
    "max", ir.max_, lambda a, b: a if a >= b or b != b else b, "Return the largest of two or more. A NaN counts only if all are NaN."
)


def _operator(name: str, function: scalar.Operator, doc: str) -> Binary:
    def run(a: Scalar, b: Scalar) -> Scalar:
        return function(a, b)

    run.__name__ = run.__qualname__ = name
    run.__doc__ = doc
    return elementwise(run)


add = _operator("add", scalar.add, "Return ``a + b``.")
sub = _operator("sub", scalar.sub, "Return ``a - b``.")
mul = _operator("mul", scalar.mul, "Return ``a * b``.")
div = _operator("div", scalar.truediv, "Return ``a / b``, a float for integers.")
floor_div = _operator("floor_div", scalar.floordiv, "Return ``a // b``, rounded down.")
mod = _operator("mod", scalar.mod, "Return ``a % b``, with the sign of b.")
raw_div = _operator("raw_div", scalar.raw_div, "Return the division of C, which truncates integers.")
raw_mod = _operator("raw_mod", scalar.raw_mod, "Return the remainder of C, with the sign of a.")
bit_and = _operator("bit_and", scalar.bit_and, "Return ``a & b``.")
bit_or = _operator("bit_or", scalar.bit_or, "Return ``a | b``.")
bit_xor = _operator("bit_xor", scalar.bit_xor, "Return ``a ^ b``.")
bit_shl = _operator("bit_shl", scalar.shift_left, "Return ``a << b``.")
bit_sar = _operator("bit_sar", scalar.shift_right, "Return ``a >> b``, filled with the sign.")
bit_shr = _operator("bit_shr", scalar.shift_right_logical, "Shift right, filling with zeros.")
cmp_eq = _operator("cmp_eq", scalar.equal, "Return ``a == b``.")
cmp_ne = _operator("cmp_ne", scalar.not_equal, "Return ``a != b``.")
cmp_lt = _operator("cmp_lt", scalar.less, "Return ``a < b``.")
cmp_le = _operator("cmp_le", scalar.less_equal, "Return ``a <= b``.")
cmp_gt = _operator("cmp_gt", scalar.greater, "Return ``a > b``.")
cmp_ge = _operator("cmp_ge", scalar.greater_equal, "Return ``a >= b``.")


@elementwise
def bit_not(x: Scalar) -> Scalar:
    """Return ``~x``."""
    if isinstance(x, (float, TracedNumber)):
        raise type_error(f"`~` needs integers, not {scalar.describe(x)}")
    return ~x


@elementwise
def logical_not(x: Scalar) -> Scalar:
    """Return ``not x``."""
    return scalar.logical_not(x)


@elementwise
def logical_and(a: Scalar, b: Scalar) -> Scalar:
    """Return ``a and b``, evaluating both."""
    return scalar.bit_and(scalar.truth(a), scalar.truth(b))


@elementwise
def logical_or(a: Scalar, b: Scalar) -> Scalar:
    """Return ``a or b``, evaluating both."""
    return scalar.bit_or(scalar.truth(a), scalar.truth(b))


@elementwise
def select(condition: Scalar, a: Scalar, b: Scalar) -> Scalar:
    """Return ``a`` where ``condition`` holds, else ``b``, entry by entry; both are computed."""
    return scalar.select(condition, a, b)


@traceable
def cast(x: object, dtype: object) -> Any:
    """Convert a number, vector or matrix to ``dtype``. Floats become integers towards zero, saturating, and NaN becomes 0; integers that
    do not fit wrap.
    """
    t = as_dtype(dtype)
    hook = getattr(x, "__sg_elementwise__", None)
    if hook is not None:
        return hook(lambda e: cast(e, t), (x,))
    if not is_scalar(x):
        raise type_error(f"{scalar.describe(x)} cannot be cast to {t}")
    return scalar.cast(x, t) if isinstance(x, Value) else t(x)


@traceable
def bit_cast(x: object, dtype: object) -> Any:
    """Return the same bits as a value of ``dtype``. Raises SpirogradTypeError for another width."""
    t = as_dtype(dtype)
    hook = getattr(x, "__sg_elementwise__", None)
    if hook is not None:
        return hook(lambda e: bit_cast(e, t), (x,))
    if isinstance(x, Value) or _tracing():
        return scalar.bit_cast(x, t)
    raise type_error("bit_cast of a Python number: its width is not known", "use NumPy's `view` outside of kernels")


def _tracing() -> bool:
    return current_trace() is not None


def as_dtype(t: object) -> DType:
    """Return a dtype given as such, as Python's ``int``, ``float``, ``bool`` (the defaults of `init`), or as a NumPy dtype."""
    if isinstance(t, DType):
        return t
    if t is int or t is float:
        options = language_options()
        return options.default_ip if t is int else options.default_fp
    if t is bool:
        return u1
    if isinstance(t, Later):
        return t()
    try:
        if not isinstance(t, (str, type(None))):  # NumPy would take these too, and mean other types than we do
            return dtypes.from_numpy(t)
    except (TypeError, ValueError, KeyError):
        pass
    raise type_error(f"{scalar.describe(t)} is no data type", "types are sg.i32, sg.f32, ...; int and float mean the defaults")


def _bit_count(name: str, code: OpCode, python: Callable[[int], int], doc: str) -> Unary:
    def run(x: Scalar) -> Scalar:
        if not isinstance(x, Value):
            return python(int(x))
        scalar.need_integers(name, x)
        return scalar.cast(emit(code, scalar.cast(x, i32) if x.dtype is u1 else x), i32)

    run.__name__ = run.__qualname__ = name
    run.__doc__ = doc
    return elementwise(run)


popcnt = _bit_count("popcnt", ir.popcnt, lambda x: (x & 0xFFFFFFFF).bit_count(), "Return the number of one bits, an i32.")
clz = _bit_count("clz", ir.clz, lambda x: 32 - (x & 0xFFFFFFFF).bit_length(), "Return the number of leading zero bits, an i32.")


@elementwise
def ffs(x: Scalar) -> Scalar:
    """Return the position of the lowest one bit, counted from 1, an i32; 0 if there is none."""
    if not isinstance(x, Value):
        return (int(x) & -int(x)).bit_length()
    scalar.need_integers("ffs", x)
    position = scalar.add(scalar.cast(emit(ir.ctz, x), i32), 1)
    return scalar.select(scalar.equal(x, 0), 0, position)


@traceable
def frexp(x: object) -> tuple[Any, Any]:
    """Return the fraction and the exponent of x.

    ``x == fraction * 2 ** exponent``, where the magnitude of the fraction is in [0.5, 1) and the exponent is an i32. For vectors, the
    results are vectors. For 0, infinities and NaN the results are x and 0.
    """
    hook = getattr(x, "__sg_elementwise__", None)
    if hook is not None:
        return hook(lambda e: frexp(e)[0], (x,)), hook(lambda e: frexp(e)[1], (x,))
    if isinstance(x, Value):
        return float_parts.fraction_and_exponent(x)
    if not isinstance(x, SupportsFloat):
        raise type_error(f"`frexp` takes numbers, vectors and matrices, not {scalar.describe(x)}")
    return math.frexp(x)


@traceable
def zero(x: object) -> Any:
    """Return zero of the type and shape of x."""
    return _filled(x, 0)


@traceable
def one(x: object) -> Any:
    """Return one of the type and shape of x."""
    return _filled(x, 1)


def _filled(x: object, value: int) -> object:
    hook = getattr(x, "__sg_elementwise__", None)
    if hook is not None:
        return hook(lambda e: _filled(e, value), (x,))
    if not is_scalar(x):
        raise type_error(f"expected a number, vector or matrix, got {scalar.describe(x)}")
    return scalar.cast(value, x.dtype) if isinstance(x, Value) else type(traced_numbers.plain(x))(value)

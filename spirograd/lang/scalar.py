"""Scalars of a kernel being traced, and their arithmetic: promotion, literals, operators."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeGuard, TypeVar, Union, overload

import numpy as np

from spirograd.base import dtypes
from spirograd.base.artifact import FaultSite
from spirograd.base.dtypes import VOID, DType, Type, f64, i32, promote, u1
from spirograd.base.errors import SpirogradTypeError
from spirograd.base.wording import integer_text, with_article
from spirograd.ir import ops as ir
from spirograd.ir.builder import Builder, result_type
from spirograd.ir.nodes import Op
from spirograd.ir.ops import OpCode
from spirograd.lang.context import Trace, current_trace
from spirograd.lang.integer_powers import integer_power
from spirograd.lang.traced_numbers import Number as Number
from spirograd.lang.traced_numbers import TracedNumber

T = TypeVar("T")


class Value:
    """A scalar that the kernel computes at run time. Operators emit IR into the current trace."""

    __slots__ = ("op",)
    __array_ufunc__ = None  # NumPy scalars on the left leave the operation to this class.

    def __init__(self, op: Op) -> None:
        self.op = op

    @property
    def dtype(self) -> DType:
        assert isinstance(self.op.type, DType)
        return self.op.type

    def __repr__(self) -> str:
        return f"<value of type {self.dtype}>"

    def __bool__(self) -> bool:
        raise type_error(
            "the value of this expression is only known at run time, but is needed while compiling",
            "inside `sg.static(...)`, default arguments and Python calls only constants may decide",
        )

    __index__ = __int__ = __float__ = __bool__
    __hash__ = None  # type: ignore[assignment]

    def __sg_cast__(self, t: DType) -> Value:
        return cast(self, t)

    def __add__(self, o: Scalar) -> Value:
        return _forward(add, self, o)

    def __radd__(self, o: Scalar) -> Value:
        return _backward(add, o, self)

    def __sub__(self, o: Scalar) -> Value:
        return _forward(sub, self, o)

    def __rsub__(self, o: Scalar) -> Value:
        return _backward(sub, o, self)

    def __mul__(self, o: Scalar) -> Value:
        return _forward(mul, self, o)

    def __rmul__(self, o: Scalar) -> Value:
        return _backward(mul, o, self)

    def __truediv__(self, o: Scalar) -> Value:
        return _forward(truediv, self, o)

    def __rtruediv__(self, o: Scalar) -> Value:
        return _backward(truediv, o, self)

    def __floordiv__(self, o: Scalar) -> Value:
        return _forward(floordiv, self, o)

    def __rfloordiv__(self, o: Scalar) -> Value:
        return _backward(floordiv, o, self)

    def __mod__(self, o: Scalar) -> Value:
        return _forward(mod, self, o)

    def __rmod__(self, o: Scalar) -> Value:
        return _backward(mod, o, self)

    def __pow__(self, o: Scalar) -> Value:
        return _forward(power, self, o)

    def __rpow__(self, o: Scalar) -> Value:
        return _backward(power, o, self)

    def __and__(self, o: Scalar) -> Value:
        return _forward(bit_and, self, o)

    def __rand__(self, o: Scalar) -> Value:
        return _backward(bit_and, o, self)

    def __or__(self, o: Scalar) -> Value:
        return _forward(bit_or, self, o)

    def __ror__(self, o: Scalar) -> Value:
        return _backward(bit_or, o, self)

    def __xor__(self, o: Scalar) -> Value:
        return _forward(bit_xor, self, o)

    def __rxor__(self, o: Scalar) -> Value:
        return _backward(bit_xor, o, self)

    def __lshift__(self, o: Scalar) -> Value:
        return _forward(shift_left, self, o)

    def __rlshift__(self, o: Scalar) -> Value:
        return _backward(shift_left, o, self)

    def __rshift__(self, o: Scalar) -> Value:
        return _forward(shift_right, self, o)

    def __rrshift__(self, o: Scalar) -> Value:
        return _backward(shift_right, o, self)

    def __eq__(self, o: object) -> Value:  # type: ignore[override]
        return _forward(equal, self, o)

    def __ne__(self, o: object) -> Value:  # type: ignore[override]
        return _forward(not_equal, self, o)

    def __lt__(self, o: Scalar) -> Value:
        return _forward(less, self, o)

    def __le__(self, o: Scalar) -> Value:
        return _forward(less_equal, self, o)

    def __gt__(self, o: Scalar) -> Value:
        return _forward(greater, self, o)

    def __ge__(self, o: Scalar) -> Value:
        return _forward(greater_equal, self, o)

    def __neg__(self) -> Value:
        return emit(ir.neg, cast(self, i32) if self.dtype is u1 else self)

    def __pos__(self) -> Value:
        return self

    def __invert__(self) -> Value:
        need_integers("~", self)
        return emit(ir.not_, self)

    def __abs__(self) -> Value:
        return emit(ir.abs_, cast(self, i32) if self.dtype is u1 else self)


Scalar = Union[Value, Number]  # A `Number` is known while compiling.


class Operator(Protocol):
    """An operation on two scalars: computed by the kernel if an operand is a run-time value, otherwise by Python."""

    @overload
    def __call__(self, a: Value, b: Scalar) -> Value: ...
    @overload
    def __call__(self, a: Scalar, b: Value) -> Value: ...
    @overload
    def __call__(self, a: Number, b: Number) -> Number: ...
    @overload
    def __call__(self, a: Scalar, b: Scalar) -> Scalar: ...


def _operator(function: Callable[[Scalar, Scalar], Scalar]) -> Operator:
    """Return the function with the type `Operator`, for type checkers."""
    return function  # type: ignore[return-value]


def is_number(x: object) -> TypeGuard[Number]:
    """Return whether ``x`` is a compile-time scalar, of Python or of a NumPy type that the language has."""
    if isinstance(x, (bool, int, float, TracedNumber)):
        return True
    return isinstance(x, np.generic) and x.dtype.kind in "biuf" and x.dtype.itemsize <= 8


def is_scalar(x: object) -> TypeGuard[Scalar]:
    return isinstance(x, Value) or is_number(x)


def _forward(function: Operator, a: Value, b: object) -> Value:
    """Return ``function(a, b)``, or NotImplemented so that a matrix on the other side can take over."""
    return function(a, b) if is_scalar(b) else NotImplemented


def _backward(function: Operator, a: object, b: Value) -> Value:
    """Return the same for a value on the right."""
    return function(a, b) if is_scalar(a) else NotImplemented


def type_error(message: str, hint: str = "") -> SpirogradTypeError:
    """Return a type error at the place being traced."""
    trace = current_trace()
    return SpirogradTypeError(message, trace.b.loc if trace else None, hint)


def trace_of() -> Trace:
    trace = current_trace()
    if trace is None:
        raise type_error("a kernel's value was used outside of the kernel", "return it, or store it in a field or array")
    return trace


def builder() -> Builder:
    return trace_of().b


def literal_type(x: object) -> DType:
    """Return the type of a Python or NumPy number in a kernel: ``default_ip`` or ``default_fp``, u1, or the NumPy type."""
    if isinstance(x, (bool, np.bool_)):
        return u1
    if isinstance(x, np.generic):
        return dtypes.from_numpy(x.dtype)
    options = trace_of().options
    return options.default_fp if isinstance(x, (float, TracedNumber)) else options.default_ip


def constant(x: Number, t: DType | None = None) -> Value:
    """Return a number as a typed constant; an integer that does not fit its type is an error."""
    t = t or literal_type(x)
    x = _untraced(x)
    if t.is_int and isinstance(x, int) and not t.min <= x <= t.max:
        named = f"name a type that holds it, as in `sg.i64({x})` or `sg.u64({x})`"
        hint = named if x.bit_length() <= 64 else "no type has more than 64 bits"
        raise type_error(f"{integer_text(x)} does not fit {t}", hint)
    if t.is_float and isinstance(x, int) and abs(x) > f64.max:
        raise type_error(f"{integer_text(x)} does not fit {t}", "write it as a float")
    return Value(builder().const(x, t))


def _untraced(x: Number) -> bool | int | float:
    """Return a number of Python, without a history; raise an error if the history matters."""
    if isinstance(x, TracedNumber):
        return x.refuse("a constant of a kernel")
    return x.item() if isinstance(x, np.generic) else x


def as_value(x: object, what: str = "value") -> Value:
    """Return ``x`` as a run-time scalar."""
    if isinstance(x, Value):
        return x
    if is_number(x):
        return constant(x)
    raise type_error(f"expected a number for this {what}, got {describe(x)}")


def describe(x: object) -> str:
    """Return the description of an object of the language or of Python in messages."""
    text = getattr(x, "__sg_describe__", None)
    if text is not None and not isinstance(x, type):
        return str(text())
    if isinstance(x, Value):
        return f"a scalar of type {x.dtype}"
    for kinds, words in _WORDS:
        if isinstance(x, kinds):
            return words(x)
    return with_article(type(x).__name__)


_WORDS: tuple[tuple[type | tuple[type, ...], Callable[[Any], str]], ...] = (
    (type(None), lambda x: "None"),
    (str, lambda x: f"the string {x!r}"),
    ((bool, int, float, complex, np.number, np.bool_), lambda x: f"the number {x}"),
    (DType, lambda x: f"the type {x}"),
    (type, lambda x: f"the type `{x.__name__}`"),
    (types.ModuleType, lambda x: f"the module `{x.__name__}`"),
    ((types.FunctionType, types.BuiltinFunctionType, types.MethodType), lambda x: f"the function `{x.__name__}`"),
    ((list, tuple, dict, set), lambda x: f"a {type(x).__name__} of {len(x)}" if x else f"an empty {type(x).__name__}"),
    (np.ndarray, lambda x: f"a NumPy array of {x.dtype} of shape {x.shape}"),
)


def dtype_of(x: Scalar) -> DType:
    return x.dtype if isinstance(x, Value) else literal_type(x)


def cast(x: object, t: DType) -> Value:
    """Convert ``x`` to ``t``. A literal becomes a constant of that type directly, without rounding through the default type."""
    if isinstance(x, Value):
        return x if x.op.type is t else Value(builder().cast(x.op, t))
    if not is_number(x):
        raise type_error(f"expected a number of type {t}, got {describe(x)}")
    if t.is_float:
        return constant(x, t)
    if t is u1:
        return constant(bool(x), t)
    return constant(t.integer(_untraced(x)), t)


def emit(code: OpCode, *args: Value, t: Type | None = None, attr: object = None) -> Value:
    """Emit one operation. With constants, return its value: so ``m[j + 1]`` in an unrolled loop has a constant index."""
    operands = [a.op for a in args]
    b = builder()
    if attr is None and code.evaluate is not None and all(op.code is ir.const for op in operands):
        result = t or result_type(code, operands)
        if isinstance(result, DType):
            numbers = tuple(op.type.np.type(op.attr) for op in operands)  # type: ignore[union-attr]
            return Value(b.const(ir.evaluate(code, result, numbers).item(), result))
    return Value(b.emit(code, *operands, type=t, attr=attr))


def emit_select(condition: Value, a: Value, b: Value) -> Value:
    return emit(ir.select, condition, a, b)


def emit_check(kind: str, good: Value, message: str, operands: Sequence[Value] = (), most: int = 0) -> None:
    """Report ``message``, which names ``operands`` by their numbers, where ``good`` is false; see `FaultSite`."""
    b = builder()
    site = FaultSite(kind, message, tuple([v.dtype for v in operands]), b.loc, most)
    b.emit(ir.check, good.op, *[v.op for v in operands], attr=site, type=VOID)


def known(x: T) -> T | Number:
    """Return the number of a value that is a constant of the kernel, else ``x`` itself."""
    return x.op.attr if isinstance(x, Value) and x.op.code is ir.const else x


def unify(a: Scalar, b: Scalar) -> tuple[Value, Value, DType]:
    """Return both operands in their common type. A literal is made in that type at once, so ``x * 0.1`` with an f64 x is exact."""
    t = promote(dtype_of(a), dtype_of(b))
    return fitting(a, t), fitting(b, t), t


def fitting(x: Scalar, t: DType) -> Value:
    """Return ``x`` converted to ``t`` where the program does not ask for it.

    A literal too large for ``t`` and for its own type is an error.
    """
    if isinstance(x, Value):
        return cast(x, t)
    if t.is_int and isinstance(x, int) and not isinstance(x, bool) and not t.min <= x <= t.max:
        constant(x)
    return cast(x, t)


def _fold(function: Callable[[Number, Number], Number], a: Number, b: Number) -> Number:
    """Compute arithmetic on two compile-time numbers as Python does; on floats where Python has no result, as NumPy does, which warns: the
    quotient by zero is infinite or NaN."""
    try:
        return function(a, b)
    except (ZeroDivisionError, OverflowError) as error:
        if not isinstance(a, float) and not isinstance(b, float) and function is not operator.truediv:
            raise type_error(f"constant expression: {error}") from None
        return float(function(np.float64(a), np.float64(b)))
    except ValueError as error:
        raise type_error(f"constant expression: {error}") from None


def _arithmetic(code: OpCode, python: Callable[[Number, Number], Number]) -> Operator:
    def run(a: Scalar, b: Scalar) -> Scalar:
        if not isinstance(a, Value) and not isinstance(b, Value):
            return _fold(python, a, b)
        x, y, _ = unify(a, b)
        return emit(code, x, y)

    return _operator(run)


def _comparison(code: OpCode, python: Callable[[Number, Number], Number]) -> Operator:
    def run(a: Scalar, b: Scalar) -> Scalar:
        if not isinstance(a, Value) and not isinstance(b, Value):
            return bool(python(a, b))
        if dtype_of(a) is u1 and dtype_of(b) is u1 and code in (ir.eq, ir.ne):
            return emit(code, as_value(a), as_value(b))
        x, y, _ = unify(a, b)
        return emit(code, x, y)

    return _operator(run)


def _bitwise(code: OpCode, python: Callable[[Number, Number], Number], symbol: str) -> Operator:
    def run(a: Scalar, b: Scalar) -> Scalar:
        if not isinstance(a, Value) and not isinstance(b, Value):
            return _fold(python, a, b)
        need_integers(symbol, a, b)
        if dtype_of(a) is u1 and dtype_of(b) is u1:
            return emit(code, as_value(a), as_value(b))
        x, y, _ = unify(a, b)
        return emit(code, x, y)

    return _operator(run)


def need_integers(symbol: str, *operands: Scalar) -> None:
    for x in operands:
        if dtype_of(x).is_float:
            hint = "cast the operand first: `sg.cast(x, sg.i32)`"
            if symbol in _OF_CONDITIONS:
                hint += f"; conditions are joined with `{_OF_CONDITIONS[symbol]}`"
            raise type_error(f"`{symbol}` needs integers, got {dtype_of(x)}", hint)


_OF_CONDITIONS = {"&": "and", "|": "or", "~": "not"}


def _shift(code: OpCode, python: Callable[[Number, Number], Number], symbol: str) -> Operator:
    def run(a: Scalar, b: Scalar) -> Scalar:
        if not isinstance(a, Value) and not isinstance(b, Value):
            return _fold(python, a, b)
        need_integers(symbol, a, b)
        t = dtype_of(a) if dtype_of(a) is not u1 else i32
        return emit(code, cast(a, t), cast(b, t))

    return _operator(run)


add = _arithmetic(ir.add, operator.add)
sub = _arithmetic(ir.sub, operator.sub)
mul = _arithmetic(ir.mul, operator.mul)
equal = _comparison(ir.eq, operator.eq)
not_equal = _comparison(ir.ne, operator.ne)
less = _comparison(ir.lt, operator.lt)
less_equal = _comparison(ir.le, operator.le)
greater = _comparison(ir.gt, operator.gt)
greater_equal = _comparison(ir.ge, operator.ge)
bit_and = _bitwise(ir.and_, operator.and_, "&")
bit_or = _bitwise(ir.or_, operator.or_, "|")
bit_xor = _bitwise(ir.xor, operator.xor, "^")
shift_left = _shift(ir.shl, operator.lshift, "<<")
shift_right = _shift(ir.shr, operator.rshift, ">>")


@_operator
def shift_right_logical(a: Scalar, b: Scalar) -> Scalar:
    """Shift right, filling with zeros whatever the sign."""
    a = as_value(a)
    need_integers("bit_shr", a, b)
    if not a.dtype.is_signed:
        return shift_right(a, b)
    u = dtypes.unsigned(a.dtype)
    return bit_cast(shift_right(bit_cast(a, u), cast(b, u)), a.dtype)


def bit_cast(a: object, t: DType) -> Value:
    a = as_value(a)
    if a.dtype.bits != t.bits or t is u1:
        raise type_error(f"bit_cast needs types of one width, got {a.dtype} and {t}", "`sg.cast` converts values between any two types")
    return a if a.dtype is t else emit(ir.bitcast, a, t=t)


def to_float(x: Scalar) -> Value:
    """Return floats as they are, other numbers as ``default_fp``."""
    t = dtype_of(x)
    return cast(x, t if t.is_float else trace_of().options.default_fp)


@_operator
def truediv(a: Scalar, b: Scalar) -> Scalar:
    """Return ``a / b``. Integers become floats of the default type first."""
    if not isinstance(a, Value) and not isinstance(b, Value):
        return _fold(operator.truediv, a, b)
    t = promote(*[x if x.is_float else trace_of().options.default_fp for x in (dtype_of(a), dtype_of(b))])
    return emit(ir.div, cast(a, t), cast(b, t))


@_operator
def floordiv(a: Scalar, b: Scalar) -> Scalar:
    """Return ``a // b``, which rounds down, for integers and floats."""
    if not isinstance(a, Value) and not isinstance(b, Value):
        return _fold(operator.floordiv, a, b)
    x, y, t = unify(a, b)
    return emit(ir.floor, emit(ir.div, x, y)) if t.is_float else emit(ir.floordiv, x, y)


@_operator
def mod(a: Scalar, b: Scalar) -> Scalar:
    """Return ``a % b`` with the sign of the divisor, for integers and floats."""
    if not isinstance(a, Value) and not isinstance(b, Value):
        return _fold(operator.mod, a, b)
    x, y, t = unify(a, b)
    if not t.is_float:
        return emit(ir.floormod, x, y)
    return emit(ir.sub, x, emit(ir.mul, emit(ir.floor, emit(ir.div, x, y)), y))


@_operator
def raw_div(a: Scalar, b: Scalar) -> Scalar:
    """Return the quotient as in C, which truncates integers."""
    if not isinstance(a, Value) and not isinstance(b, Value):
        return _fold(lambda x, y: int(x / y) if isinstance(x, int) and isinstance(y, int) else x / y, a, b)
    x, y, t = unify(a, b)
    return emit(ir.div if t.is_float else ir.idiv, x, y)


@_operator
def raw_mod(a: Scalar, b: Scalar) -> Scalar:
    """Return the remainder as in C, with the sign of the dividend."""
    if not isinstance(a, Value) and not isinstance(b, Value):
        return _fold(lambda x, y: np.fmod(x, y).item(), a, b)
    x, y, t = unify(a, b)
    if not t.is_float:
        return emit(ir.irem, x, y)
    return emit(ir.sub, x, emit(ir.mul, emit(ir.trunc, emit(ir.div, x, y)), y))


_MAX_MULTIPLICATIONS = 64  # Constant exponents up to this limit become products.


@_operator
def power(a: Scalar, b: Scalar) -> Scalar:
    """Return ``a ** b``. Small constant integer exponents become products.

    If the base is an integer variable, the result has its type, and a negative exponent is an error or gives 0.
    """
    if not isinstance(a, Value) and not isinstance(b, Value):
        return _fold(operator.pow, a, b)
    t = promote(dtype_of(a), dtype_of(b))
    if isinstance(b, (int, np.integer)) and not isinstance(b, bool) and abs(int(b)) <= _MAX_MULTIPLICATIONS:
        base = as_value(a) if dtype_of(a) is not u1 else cast(a, i32)
        if b >= 0:
            return _product(base, int(b))
        if base.dtype.is_float:
            return truediv(cast(1.0, base.dtype), _product(base, -int(b)))
        raise type_error("an integer to a negative power is no integer", "cast the base to a float: `float(x) ** -1`")
    if t.is_float:
        return emit(ir.pow_, cast(a, t), cast(b, t))
    base = a if isinstance(a, Value) and a.dtype is not u1 else cast(a, t)
    exponent = as_value(b) if dtype_of(b) is not u1 else cast(b, i32)
    return Value(integer_power(builder(), trace_of().options, base.op, exponent.op))


def _product(base: Value, n: int) -> Value:
    """Return ``base ** n`` by squaring."""
    out: Value | None = None
    while n:
        if n & 1:
            out = base if out is None else emit(ir.mul, out, base)
        n >>= 1
        if n:
            base = emit(ir.mul, base, base)
    return out if out is not None else cast(1, base.dtype)


def truth(x: object) -> Value | bool:
    """Return ``x`` as a condition: a Python bool, or a value of type u1."""
    if isinstance(x, Value):
        return x if x.dtype is u1 else not_equal(x, 0)
    if is_number(x):
        return bool(x)
    raise type_error(f"{describe(x)} is no condition", "compare it, or reduce a vector with `.any()` or `.all()`")


def logical_not(x: object) -> Value | bool:
    x = truth(x)
    return emit(ir.not_, x) if isinstance(x, Value) else not x


@overload
def select(condition: Value, a: Scalar, b: Scalar) -> Value: ...
@overload
def select(condition: object, a: Scalar, b: Scalar) -> Scalar: ...


def select(condition: object, a: Scalar, b: Scalar) -> Scalar:
    """Return ``a`` where ``condition`` holds, else ``b``; both are computed."""
    condition = truth(condition)
    if not isinstance(condition, Value):
        return a if condition else b
    if dtype_of(a) is u1 and dtype_of(b) is u1:
        x, y = as_value(a), as_value(b)
    else:
        x, y, _ = unify(a, b)
    return emit(ir.select, condition, x, y)


def trace_literal(value: object, t: DType) -> Value | None:
    return cast(value, t) if current_trace() is not None and is_number(value) else None

"""Numbers that Python has read from memory with a gradient while a tape records: they remember their origin.

Arithmetic on them gives such numbers again, each with its derivatives with respect to its operands. Written to memory or passed to a kernel
they propagate their adjoints. If the history of one ends (as a plain float, an integer, an array, a condition), the user gets a warning
with the line that read it. Once the tape is closed they are ordinary numbers.
"""

from __future__ import annotations

import builtins
import dis
import logging
import math
import numbers
import operator
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, SupportsIndex, TypeGuard, TypeVar, Union, overload

import numpy as np

from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.base.loc import Loc
from spirograd.base.tracebacks import user_location
from spirograd.lang import context

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from spirograd.base.arrays import Array
    from spirograd.base.dtypes import DType
    from spirograd.base.protocols import Scalar
    from spirograd.lang.data.ndarray import Ndarray
    from spirograd.lang.data.scalar_field import ScalarField

logger = logging.getLogger("spirograd")
_HINT = "compute with it as it is, by operators and functions of `sg`; `sg.stop_grad(number)` gives a plain number on purpose"


class NumberRecord:
    """The numbers of a recorder, in the order of their computation.

    ``open``: whether it still records. ``refusal``: why they cannot be used, if they cannot. ``ends``: the uses that ended the history of
    some, each with the line that read the number.
    """

    def __init__(self, refusal: str = "") -> None:
        self.open = True
        self.refusal = refusal
        self.numbers: list[TracedNumber] = []
        self.ends: dict[tuple[Loc | None, str], None] = {}
        self._next = 0  # The numbers before it have not propagated their adjoints.

    def begin(self) -> None:
        """Return begin a reverse pass."""
        self._next = len(self.numbers)
        for number in self.numbers:
            number.adjoint = 0.0

    def settle(self, first: int) -> None:
        """Propagate the adjoints of all numbers from position ``first`` on, which no later work uses."""
        for number in reversed(self.numbers[first : self._next]):
            for operand, rate in number.operands:
                if number.adjoint:
                    operand.adjoint += number.adjoint * rate
        self._next = min(self._next, first)


class RefusedNumbers(NumberRecord):
    """The numbers that Python reads while ``recorder`` is set and follows none of them: they can only be inspected."""

    def __init__(self, recorder: object, refusal: str) -> None:
        super().__init__(refusal)
        self._recorder = recorder

    @property
    def open(self) -> bool:
        """Whether the recorder is set."""
        return context.recorder() is self._recorder

    @open.setter
    def open(self, value: bool) -> None:
        pass

    def of(self, values: Sequence[float], loc: Loc | None) -> Sequence[TracedNumber]:
        """Return ``values`` as numbers that cannot be used."""
        self.numbers.clear()
        return [TracedNumber(float(value), self, (), loc) for value in values]


class TracedNumber:
    """A float with its history.

    ``operands``: the numbers that it was computed from, and its derivatives with respect to them; ``loc``: the line that read the first of
    these.
    """

    __slots__ = ("adjoint", "loc", "operands", "position", "record", "value")
    __sg_traceable__ = True

    if TYPE_CHECKING:  # These are set below.

        def _operator(self, other: Number, /) -> Number: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _operator
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _operator

        def _comparison(self, other: Number, /) -> bool: ...

        __lt__ = __le__ = __gt__ = __ge__ = _comparison

    def __init__(self, value: float, record: NumberRecord, operands: Sequence[tuple[TracedNumber, float]], loc: Loc | None) -> None:
        self.value = value
        self.record = record
        self.operands = operands
        self.loc = loc
        self.adjoint = 0.0
        self.position = len(record.numbers)
        record.numbers.append(self)

    @property
    def is_open(self) -> bool:
        """Whether its adjoint is still needed."""
        return self.record.open

    def check_usable(self, where: str) -> None:
        """Raise an error if the recorder cannot follow it to ``where``."""
        if self.is_open and self.record.refusal:
            problem = f"a number that Python read from memory with a gradient is {where}: {self.record.refusal}"
            raise SpirogradRuntimeError(render(problem, self.loc, "have the kernel read the memory, or pass `sg.stop_grad(number)`"))

    def left(self, how: str) -> float:
        """Return the plain number for a use that ends its history, and warn the user, once for each line."""
        if self.is_open:
            self.record.ends[self.loc, how] = None
            session, about = context.session(), ("traced number", str(self.loc))
            if session.broken_chains != "ignore" and about not in session.warned:
                session.warned.add(about)
                problem = f"a number that Python read from memory with a gradient becomes {how}: no gradient flows back through that"
                logger.warning(render(problem, self.loc, _HINT))
        return self.value

    def stopped(self) -> float:
        """Return the plain number, on purpose."""
        if self.is_open:
            self.record.ends[self.loc, "a constant by `stop_grad`, on purpose"] = None
        return self.value

    def refuse(self, where: str) -> float:
        """Return the plain number for a use that would treat it as a constant; raise an error while its tape is open."""
        if self.is_open:
            why = self.record.refusal or "its gradient would be lost"
            problem = f"a number that Python read from memory with a gradient is {where}: {why}"
            raise SpirogradRuntimeError(render(problem, self.loc, "have the kernel read the memory, or pass `sg.stop_grad(number)`"))
        return self.value

    # --- uses that end the history ------------------------------------------------------------------------------------------

    def __float__(self) -> float:
        return self.left("a plain float")

    def __int__(self) -> int:
        return int(self.left("an integer"))

    def __trunc__(self) -> int:
        return math.trunc(self.left("an integer"))

    def __floor__(self) -> int:
        return math.floor(self.left("an integer"))

    def __ceil__(self) -> int:
        return math.ceil(self.left("an integer"))

    def __round__(self, digits: SupportsIndex | None = None) -> object:
        return builtins.round(self.left("a rounded number"), digits)

    def __complex__(self) -> complex:
        return complex(self.left("a complex number"))

    def __bool__(self) -> bool:
        return bool(self.left("a condition"))

    def __array__(self, dtype: DTypeLike | None = None, copy: object = None) -> Array:
        return np.array(self.left("an array of NumPy"), dtype)

    def item(self) -> float:
        """Return the plain number."""
        return self.left("a plain float")

    # --- uses that keep the history ----------------------------------------------------------------------------------------

    def __sg_cast__(self, t: DType) -> Number:
        number: Number = computed(t(self.value), ((self, 1.0),)) if t.is_float else t(self.left("an integer"))
        return number

    def __repr__(self) -> str:
        return repr(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def __hash__(self) -> int:
        return hash(self.value)

    def __reduce__(self) -> tuple[object, ...]:
        return float, (self.value,)

    def __sg_describe__(self) -> str:
        return f"the number {self.value}"

    @property
    def real(self) -> TracedNumber:
        """The number itself."""
        return self

    @property
    def imag(self) -> float:
        """The imaginary part, 0.0."""
        return 0.0

    def conjugate(self) -> TracedNumber:
        """Return the number itself."""
        return self

    def is_integer(self) -> bool:
        """Return whether it has no fraction."""
        return self.value.is_integer()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **kwargs: object) -> object:
        rates = RATES.get(ufunc)
        scalars = [x for x in inputs if _is_operand(x)]
        if method == "__call__" and rates is not None and len(scalars) == len(inputs) and not kwargs:
            return apply(ufunc, scalars)
        plain = [x.left("an operand of NumPy") if isinstance(x, TracedNumber) else x for x in inputs]
        return getattr(ufunc, method)(*plain, **kwargs)

    def __pos__(self) -> TracedNumber:
        return self

    def __neg__(self) -> Number:
        return computed(-self.value, ((self, -1.0),))

    def __abs__(self) -> Number:
        return apply(np.abs, (self,))


numbers.Real.register(TracedNumber)
T = TypeVar("T")
Number = Union[bool, int, float, TracedNumber]


@overload
def plain(x: Number) -> bool | int | float: ...


@overload
def plain(x: object) -> object: ...


def plain(x: object) -> object:
    """Return ``x``, or the value of a traced number, where no history is lost by that."""
    return x.value if isinstance(x, TracedNumber) else x


def computed(value: T, operands: Sequence[tuple[object, float]]) -> T | TracedNumber:
    """Return ``value`` with a history: ``operands`` come with the derivatives with respect to them."""
    traced = [(x, float(rate)) for x, rate in operands if isinstance(x, TracedNumber) and x.is_open]
    if not traced or not isinstance(value, (float, int, np.floating)):
        return value
    first = traced[0][0]
    return TracedNumber(float(value), first.record, [pair for pair in traced if pair[0].record is first.record], first.loc)


def apply(function: Callable[..., Number], args: Sequence[Number]) -> Number:
    """Return ``function`` of numbers, of which some are traced. Functions outside of `RATES` end the history."""
    values = [float(plain(x)) for x in args]
    with np.errstate(all="ignore"):
        result = function(*map(np.float64, values))
        value: Number = result.item() if isinstance(result, np.generic) else result
        rates = RATES.get(function)
        if rates is None:
            return function(
                *[np.float64(x.left(f"an argument of `{function.__name__}`") if isinstance(x, TracedNumber) else x) for x in args]
            )
        return computed(value, [*zip(args, rates(value, *map(np.float64, values)))])


def rsqrt(x: np.float64) -> np.float64:
    """Return ``1 / sqrt(x)``."""
    result: np.float64 = 1.0 / np.sqrt(x)
    return result


def _power_rates(y: float, a: np.float64, b: np.float64) -> tuple[float, float]:
    return (b * a ** (b - 1) if b else 0.0), (y * np.log(a) if a > 0 else 0.0)


# For each function, its derivatives, from its value and its arguments.
RATES: dict[object, Callable[..., Sequence[float]]] = {
    np.add: lambda y, a, b: (1.0, 1.0),
    np.subtract: lambda y, a, b: (1.0, -1.0),
    np.multiply: lambda y, a, b: (b, a),
    np.true_divide: lambda y, a, b: (1.0 / b, -y / b),
    np.power: _power_rates,
    np.remainder: lambda y, a, b: (1.0, -np.floor(a / b)),
    np.floor_divide: lambda y, a, b: (0.0, 0.0),
    np.negative: lambda y, a: (-1.0,),
    np.positive: lambda y, a: (1.0,),
    np.abs: lambda y, a: (np.sign(a),),
    np.square: lambda y, a: (2.0 * a,),
    np.sqrt: lambda y, a: (0.5 / y,),
    rsqrt: lambda y, a: (-0.5 * y / a,),
    np.exp: lambda y, a: (y,),
    np.log: lambda y, a: (1.0 / a,),
    np.sin: lambda y, a: (np.cos(a),),
    np.cos: lambda y, a: (-np.sin(a),),
    np.tan: lambda y, a: (1.0 + y * y,),
    np.arcsin: lambda y, a: (1.0 / np.sqrt(1.0 - a * a),),
    np.arccos: lambda y, a: (-1.0 / np.sqrt(1.0 - a * a),),
    np.arctan2: lambda y, a, b: (b / (a * a + b * b), -a / (a * a + b * b)),
    np.tanh: lambda y, a: (1.0 - y * y,),
    np.floor: lambda y, a: (0.0,),
    np.ceil: lambda y, a: (0.0,),
    np.trunc: lambda y, a: (0.0,),
}
_OPERATORS = {
    "add": (np.add, operator.add),
    "sub": (np.subtract, operator.sub),
    "mul": (np.multiply, operator.mul),
    "truediv": (np.true_divide, operator.truediv),
    "pow": (np.power, operator.pow),
    "mod": (np.remainder, operator.mod),
    "floordiv": (np.floor_divide, operator.floordiv),
}
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def _is_operand(x: object) -> TypeGuard[Number]:
    return isinstance(x, (TracedNumber, int, float, np.generic))


def _operator(rates_of: np.ufunc, python: Callable[[float, float], object], swapped: bool) -> Callable[[TracedNumber, object], object]:
    """Return one of Python's operators: value and errors are those of Python."""

    def run(self: TracedNumber, other: object) -> object:
        if not _is_operand(other):
            return NotImplemented
        a: Number = other if swapped else self
        b: Number = self if swapped else other
        x, y = plain(a), plain(b)
        value = python(x, y)
        if isinstance(value, complex):
            self.left("a complex number")
        with np.errstate(all="ignore"):
            return computed(value, [*zip((a, b), RATES[rates_of](value, np.float64(x), np.float64(y)))])

    return run


def _comparison(python: Callable[[object, object], bool]) -> Callable[[TracedNumber, object], object]:
    """Return a comparison.

    A comparison in the program itself decides what it does next, so the user gets a warning; `min`, `max` and `sorted` choose one of the
    numbers, which keeps its history.
    """

    def run(self: TracedNumber, other: object) -> object:
        if not _is_operand(other):
            return NotImplemented
        if self.is_open and _is_written(sys._getframe(1)):
            self.left("a condition")
        return bool(python(self.value, plain(other)))

    return run


def _is_written(frame: FrameType) -> bool:
    """Return whether the program in ``frame`` is at an operator of comparison."""
    if str(frame.f_globals.get("__name__", "")).startswith("spirograd."):
        return False
    return bool(dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("COMPARE"))


for _name, (_rates, _python) in _OPERATORS.items():
    setattr(TracedNumber, f"__{_name}__", _operator(_rates, _python, False))
    setattr(TracedNumber, f"__r{_name}__", _operator(_rates, _python, True))
for _name in _COMPARISONS:
    setattr(TracedNumber, f"__{_name}__", _comparison(getattr(operator, _name)))


# --- memory ------------------------------------------------------------------------------------------------------------------


def read(memory: ScalarField | Ndarray, key: object, values: Sequence[Scalar]) -> Sequence[Number]:
    """Return the numbers ``values`` of the element at ``key`` of a field or ndarray, as Python gets them."""
    recorder = context.recorder()
    return values if recorder is None else recorder.read_numbers(memory, key, values, user_location)


def entries_of(value: object) -> Sequence[object]:
    """Return the numbers that a number, a vector, a matrix or a nested list consists of."""
    if isinstance(value, (list, tuple)):
        return [number for part in value for number in entries_of(part)]
    entries = getattr(value, "entries", None)
    return entries if isinstance(entries, tuple) else (value,)


def are_traced(values: Sequence[object]) -> bool:
    """Return whether any of some numbers is traced, and its tape is open."""
    return any(isinstance(x, TracedNumber) and x.is_open for x in values)


def split(value: object, element_shape: Sequence[int]) -> tuple[object, Sequence[object]]:
    """Return the value to be written to an element without its history, and its numbers, one for each entry, if an open tape knows any of
    them."""
    if context.recorder() is None:
        return value, ()
    entries = entries_of(value)
    if not are_traced(entries):
        return value, ()
    if isinstance(value, TracedNumber):
        return value.value, [value] * math.prod(element_shape)
    return np.array([plain(x) for x in entries], np.float64).reshape(element_shape), entries

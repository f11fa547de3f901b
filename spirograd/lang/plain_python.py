"""Kernels as plain Python, on ``arch=sg.python``: the meaning of loops, atomic operations and random numbers while one runs.

Elements that are numbers know their place then, so that an atomic operation, which gets the number, finds the memory.
"""

from __future__ import annotations

import itertools
import operator
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from spirograd.base.errors import SpirogradTypeError, SpirogradUnsupportedError
from spirograd.lang import context

if TYPE_CHECKING:
    from spirograd.base.dtypes import DType
    from spirograd.lang.data.ndarray import Ndarray
    from spirograd.lang.data.scalar_field import ScalarField
    from spirograd.lang.traced_numbers import Number

_SEED_BITS = 64


class _State(threading.local):
    """The state of a thread: whether it is running a kernel, and its random numbers with their session."""

    running = False
    call: Callable[..., object]  # Calls a function of the kernel language.
    random: tuple[object, random.Random] | None = None


state = _State()
_COMBINED: dict[str, Callable[[Number, Number], Number]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "min": lambda a, b: a if a <= b or b != b else b, "max": lambda a, b: a if a >= b or b != b else b, "exchange": lambda a, b: b,
}  # fmt: skip


class IntegerElement(int):
    """An element that is an integer or a truth value, with its ``place``: the field or array, and the index."""

    place: tuple[ScalarField | Ndarray, object]


class FloatElement(float):
    """An element that is a float, with its ``place``."""

    place: tuple[ScalarField | Ndarray, object]


def placed(value: Number, memory: ScalarField | Ndarray, key: object) -> IntegerElement | FloatElement:
    """Return the number ``value`` of ``memory`` at ``key``, with its place."""
    element: IntegerElement | FloatElement = FloatElement(value) if isinstance(value, float) else IntegerElement(value)
    element.place = memory, key
    return element


def indices(shape: Sequence[int], origin: Sequence[int] = ()) -> Iterator[int] | Iterator[tuple[int, ...]]:
    """Return the indices of a field or an array, as loops of kernels have them: integers along one axis, else tuples."""
    ranges = [range(first, first + extent) for extent, first in zip(shape, origin or [0] * len(shape))]
    return iter(ranges[0]) if len(ranges) == 1 else itertools.product(*ranges)


def atomic(kind: str, x: Any, value: Any) -> object:
    """Combine ``x`` with ``value`` in memory, and return the old value. ``x``: an element of a field or an array; vectors are combined
    entry by entry."""
    combine = _COMBINED[kind]
    if isinstance(x, (IntegerElement, FloatElement)):
        memory, key = x.place
        old = memory[key]
        memory[key] = combine(old, value)
        return old
    if getattr(x, "_write", None) is not None and hasattr(x, "shape"):
        old = x * 1
        for k, entry in enumerate(old.entries):
            position = divmod(k, x.shape[1]) if len(x.shape) == 2 else k
            x[position] = combine(entry, value[position] if hasattr(value, "entries") else value)
        return old
    name = f"atomic_{kind}"
    problem = f"`{name}` of a variable has no meaning on `arch=sg.python`, where functions get its value and not its name"
    raise SpirogradTypeError(problem, None, "assign to the variable, or let it update an element of a field or an array")


def compare_and_swap(x: object, expected: object, desired: object) -> object:
    """Set the element ``x`` to ``desired`` if it is ``expected``, and return the old value."""
    return atomic("exchange", x, desired) if x == expected else atomic("exchange", x, x)


def generator() -> random.Random:
    """Return the random number generator of the session, from its `random_seed`."""
    session = context.session()
    if state.random is None or state.random[0] is not session:
        seed = session.cfg.random_seed
        state.random = session, random.Random(seed if seed >= 0 else None)
    return state.random[1]


def drawn(dtype: DType) -> int | float:
    """Return a random number as `forms.random` describes it."""
    if dtype.is_float:
        number: float = dtype(generator().random())
        return number
    return dtype.integer(generator().getrandbits(_SEED_BITS))


def refuse(name: str) -> NoReturn:
    """Raise SpirogradUnsupportedError for operations that plain Python cannot run."""
    problem = f"`{name}` does not work on `arch=sg.python`, where kernels run as plain Python"
    raise SpirogradUnsupportedError(problem, None, "`arch=sg.interpreter` runs every kernel, operation by operation")

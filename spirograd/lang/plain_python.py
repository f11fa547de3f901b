"""Kernels as plain Python, on ``arch=sg.python``: what loops, atomic operations and random numbers mean while one runs.

Elements that are numbers know their place then, so that an atomic operation, which is given the number, finds the memory.
"""

from __future__ import annotations

import itertools
import operator
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from spirograd.base.errors import SpirogradTypeError, SpirogradUnsupportedError
from spirograd.lang import context

_SEED_BITS = 64


class _State(threading.local):
    """Of a thread: whether it is running a kernel, and its random numbers with their session."""

    running = False
    call: Callable[..., Any]  # calls a function of the kernel language
    random: tuple[object, random.Random] | None = None


state = _State()
_COMBINED: dict[str, Callable[[Any, Any], object]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "min": lambda a, b: a if a <= b or b != b else b, "max": lambda a, b: a if a >= b or b != b else b, "exchange": lambda a, b: b,
}  # fmt: skip


class IntegerElement(int):
    """An element that is an integer or a truth value, with its ``place``: the field or array, and the index."""

    place: tuple[Any, Any]


class FloatElement(float):
    """An element that is a float, with its ``place``."""

    place: tuple[Any, Any]


def placed(value: Any, memory: object, key: object) -> Any:
    """The number ``value`` of ``memory`` at ``key``, with its place."""
    element = FloatElement(value) if isinstance(value, float) else IntegerElement(value)
    element.place = memory, key
    return element


def indices(shape: Sequence[int], origin: Sequence[int] = ()) -> Iterator[Any]:
    """The indices of a field or an array, as loops of kernels have them: integers along one axis, else tuples."""
    ranges = [range(first, first + extent) for extent, first in zip(shape, origin or [0] * len(shape))]
    return iter(ranges[0]) if len(ranges) == 1 else itertools.product(*ranges)


def atomic(kind: str, x: Any, value: Any) -> Any:
    """``x`` combined with ``value`` in memory; the old value. ``x``: an element of a field or an array; of a vector, entry by entry."""
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


def compare_and_swap(x: object, expected: object, desired: object) -> Any:
    """``x = desired`` if the element ``x`` is ``expected``; the old value."""
    return atomic("exchange", x, desired) if x == expected else atomic("exchange", x, x)


def generator() -> random.Random:
    """The random numbers of the session, from its `random_seed`."""
    session = context.session()
    if state.random is None or state.random[0] is not session:
        seed = session.cfg.random_seed
        state.random = session, random.Random(seed if seed >= 0 else None)
    return state.random[1]


def drawn(dtype: Any) -> Any:
    """A number as `forms.random` describes it."""
    if dtype.is_float:
        return dtype(generator().random())
    return dtype.integer(generator().getrandbits(_SEED_BITS))


def refuse(name: str) -> NoReturn:
    """Raise SpirogradUnsupportedError for what plain Python cannot do."""
    problem = f"`{name}` does not work on `arch=sg.python`, where kernels run as plain Python"
    raise SpirogradUnsupportedError(problem, None, "`arch=sg.interpreter` runs every kernel, operation by operation")

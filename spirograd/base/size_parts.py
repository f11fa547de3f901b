"""What size expressions are made of; see `sizes`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Union

Size = Union[int, tuple[Any, ...]]


def parts(size: Size) -> tuple[Size, ...]:
    """The sizes that ``size`` is made of directly; of a read of memory, its offset."""
    if isinstance(size, int):
        return ()
    return tuple([size[k] for k in _PARTS.get(size[0], (1, 2))])


def rebuilt(size: Size, change: Callable[[Size], Size]) -> Size:
    """``size`` with each of its parts changed (and of a read of memory also the indices)."""
    if isinstance(size, int):
        return size
    new = list(size)
    for k in _PARTS.get(size[0], (1, 2)):
        new[k] = change(size[k])
    if size[0] == "memory":
        new[6] = tuple([change(index) for index in size[6]])
    return tuple(new)


# Where in the tuple the parts are; of kinds that are not here, two operands.
_PARTS: dict[str, tuple[int, ...]] = {
    "arg": (),
    "shape": (),
    "bound": (),
    "memory": (3,),
    "if_less": (1, 2, 3),
    "max_over": (2, 3, 4),
}


def leaves(size: Size) -> tuple[Size, ...]:
    """Every argument, extent and read of memory in ``size``, each once, in order of appearance: those that no evaluation reaches, too."""
    return tuple(dict.fromkeys([part for part in walk(size) if not isinstance(part, int) and part[0] in ("arg", "shape", "memory")]))


def needs_memory(size: Size) -> bool:
    """Whether ``size`` reads memory."""
    return any(leaf[0] == "memory" for leaf in leaves(size) if not isinstance(leaf, int))


def needs_whole(size: Size) -> bool:
    """Whether `evaluate` takes ``whole``: a read of memory depends on the variable of a range."""
    return any(not isinstance(leaf, int) and leaf[0] == "memory" and variables(leaf) for leaf in leaves(size))


def variables(size: Size) -> frozenset[int]:
    """The bound variables that ``size`` depends on: those of the ranges in it aside."""
    if isinstance(size, int):
        return frozenset()
    if size[0] == "bound":
        return frozenset((size[1],))
    if size[0] == "max_over":
        return variables(size[2]) | variables(size[3]) | (variables(size[4]) - {size[1]})
    found: frozenset[int] = frozenset()
    for part in parts(size):
        found |= variables(part)
    return found


def walk(size: Size) -> Iterator[Size]:
    yield size
    for part in parts(size):
        yield from walk(part)


# --- limits --------------------------------------------------------------------------------------------------------------

# The least and the largest number that something can be: integers, or infinite.
Limits = tuple[Any, Any]
UNLIMITED: Limits = (-math.inf, math.inf)


def limits(kind: str, a: Limits, b: Limits) -> Limits:
    """Between which numbers the result of an operation lies, given those of its operands."""
    return _LIMITS[kind](a, b)


def _product_limits(a: Limits, b: Limits) -> Limits:
    corners = [0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(corners), max(corners)


def _quotient_limits(a: Limits, b: Limits) -> Limits:
    if b[0] > 0 and b[1] < math.inf and math.inf not in (-a[0], a[1]):
        return min(a[0] // b[0], a[0] // b[1]), max(a[1] // b[0], a[1] // b[1])
    # The result is no larger than the dividend. By positive numbers it does not change sides.
    most = max(-a[0], a[1])
    return (min(a[0], 0), max(a[1], 0)) if b[0] >= 0 else (-most, most)


def _remainder_limits(a: Limits, b: Limits) -> Limits:
    """It lies between 0 and the divisor."""
    return min(b[0] + 1, 0), max(b[1] - 1, 0)


_LIMITS: dict[str, Callable[[Limits, Limits], Limits]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product_limits,
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "floordiv": _quotient_limits,
    "mod": _remainder_limits,
}

"""Size expressions as Python text, for functions of a launch that are built once: of scalar arguments ``s`` and array arguments ``a``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from spirograd.base.artifact import CompiledKernel, SpaceLimit
from spirograd.base.sizes import Size, evaluate
from spirograd.runtime.diagnostics import fault_error

_BINARY = {"add": "({} + {})", "sub": "({} - {})", "mul": "({} * {})", "min": "min({}, {})", "max": "max({}, {})"}
_BINARY |= {"floordiv": "floordiv({}, {})", "mod": "mod({}, {})"}
# By a constant other than 0.
_DIVISIONS = {"floordiv": "//", "mod": "%"}
# A function (scalars, arrays) that raises SpirogradRuntimeError.
SpaceCheck = Callable[[Sequence[Any], Sequence[Any]], object]


def size_text(size: Size) -> str:
    """``size`` as an expression; it reads no memory. `OPERATIONS` are the names in it."""
    if isinstance(size, int):
        return f"({size})"
    kind = size[0]
    if kind == "arg":
        return f"s[{int(size[1])}]"
    if kind == "shape":
        return f"a[{int(size[1])}].shape[{int(size[2])}]"
    if kind in _DIVISIONS and isinstance(size[2], int) and size[2] > 0:
        return f"({size_text(size[1])} {_DIVISIONS[kind]} {size[2]})"
    return _BINARY[kind].format(size_text(size[1]), size_text(size[2]))


def _floordiv(a: int, b: int) -> int:
    return evaluate(("floordiv", a, b), int, lambda _i, _axis: 0)


def _mod(a: int, b: int) -> int:
    return evaluate(("mod", a, b), int, lambda _i, _axis: 0)


OPERATIONS: dict[str, Any] = {"floordiv": _floordiv, "mod": _mod, "min": min, "max": max}


def space_check(compiled: CompiledKernel) -> SpaceCheck | None:
    """What `CompiledKernel.space_limits` demand of the arguments of a launch; None if there are none.

    One expression that holds for all launches that are to be refused, and few others, decides whether to look closely.
    """
    limits = compiled.space_limits
    if not limits:
        return None

    def look(scalars: Sequence[Any], arrays: Sequence[Any]) -> None:
        for limit in limits:
            _check(limit, scalars, arrays, compiled.name)

    text = " or ".join([_suspicion(limit) for limit in limits])
    check: SpaceCheck = eval(f"lambda s, a: ({text}) and look(s, a)", {"__builtins__": {}, **OPERATIONS, "look": look})
    return check


def _suspicion(limit: SpaceLimit) -> str:
    """A condition that holds wherever ``limit`` is exceeded. The product of what extents are maxima of is theirs, if it is not 0."""
    factors, doubts = [], []
    for size, largest in zip(limit.sizes, limit.largest):
        if not isinstance(size, int) and size[0] == "if_less":
            continue
        if not isinstance(size, int) and size[0] == "max" and size[2] == 0:
            size = size[1]
        factors.append(size_text(size))
        # An extent that is an argument fits its type. Others are no larger than the product, unless that is 0.
        if largest < limit.most and (isinstance(size, int) or size[0] not in ("arg", "shape")):
            doubts.append(f"{factors[-1]} > {largest}")
    return " or ".join([f"{' * '.join(factors)} > {limit.most}", *doubts])


def _check(limit: SpaceLimit, scalars: Sequence[Any], arrays: Sequence[Any], kernel: str) -> None:
    sizes = [evaluate(size, lambda k: int(scalars[k]), lambda k, axis: int(arrays[k].shape[axis])) for size in limit.sizes]
    total = math.prod(sizes)
    if total > limit.most or (total and any(n > largest for n, largest in zip(sizes, limit.largest))):
        words = [word for n in sizes for word in (n & 0xFFFFFFFF, n >> 32 & 0xFFFFFFFF)]
        raise fault_error(limit.site, words, kernel)

"""Checks of the sizes of index spaces that the launcher makes before a launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from spirograd.base.artifact import CompiledKernel, SpaceLimit
from spirograd.base.sizes.evaluate import TEXT_NAMES, evaluate, python_text
from spirograd.base.sizes.size_nodes import Arg, Extent, IfLess, Max
from spirograd.runtime.faults_and_prints import fault_error

# A function (scalars, arrays) that raises SpirogradRuntimeError.
SpaceCheck = Callable[[Sequence[Any], Sequence[Any]], object]


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
    check: SpaceCheck = eval(f"lambda s, a: ({text}) and look(s, a)", {"__builtins__": {}, **TEXT_NAMES, "look": look})
    return check


def _suspicion(limit: SpaceLimit) -> str:
    """A condition that holds wherever ``limit`` is exceeded. The product of what extents are maxima of is theirs, if it is not 0."""
    factors, doubts = [], []
    for size, largest in zip(limit.sizes, limit.largest):
        if isinstance(size, IfLess):
            continue
        if isinstance(size, Max) and size.b == 0:
            size = size.a
        factors.append(python_text(size))
        # An extent that is an argument fits its type. Others are no larger than the product, unless that is 0.
        if largest < limit.most and not isinstance(size, (Arg, Extent)):
            doubts.append(f"{factors[-1]} > {largest}")
    return " or ".join([f"{' * '.join(factors)} > {limit.most}", *doubts])


def _check(limit: SpaceLimit, scalars: Sequence[Any], arrays: Sequence[Any], kernel: str) -> None:
    sizes = [evaluate(size, scalars, arrays) for size in limit.sizes]
    total = math.prod(sizes)
    if total > limit.most or (total and any(n > largest for n, largest in zip(sizes, limit.largest))):
        words = [word for n in sizes for word in (n & 0xFFFFFFFF, n >> 32 & 0xFFFFFFFF)]
        raise fault_error(limit.site, words, kernel)

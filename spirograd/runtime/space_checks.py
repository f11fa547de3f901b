"""Checks of the sizes of index spaces that the launcher makes before a launch."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Union

from spirograd.base.artifact import CompiledKernel, SpaceLimit
from spirograd.base.sizes import python_expressions as x
from spirograd.base.sizes.evaluate import evaluate
from spirograd.base.sizes.python_expressions import Expression, size_expression
from spirograd.base.sizes.size_nodes import Arg, Extent, IfLess, Max
from spirograd.runtime.faults_and_prints import fault_error

if TYPE_CHECKING:
    from spirograd.base.protocols import Place, Scalar

    # A function (scalars, arrays) that raises SpirogradRuntimeError.
    SpaceCheck = Callable[[Sequence[Scalar], Sequence[Union[Place, None]]], object]


def space_check(compiled: CompiledKernel) -> SpaceCheck | None:
    """Return a check that the arguments of a launch obey `CompiledKernel.space_limits`; None if there are none.

    One expression that is true for all launches that exceed a limit, and few others, decides whether to run the exact check.
    """
    limits = compiled.space_limits
    if not limits:
        return None

    def look(scalars: Sequence[Scalar], arrays: Sequence[Place | None]) -> None:
        for limit in limits:
            _check(limit, scalars, arrays, compiled.name)

    suspicion = x.either(*[doubt for limit in limits for doubt in _suspicion(limit)])
    return x.function(("s", "a"), x.both(suspicion, x.call("look", x.name("s"), x.name("a"))), {"look": look})


def _suspicion(limit: SpaceLimit) -> list[Expression]:
    """Return conditions of which one holds wherever ``limit`` is exceeded.

    The product of the arguments of a maximum replaces the maximum, if it is not 0.
    """
    product: Expression | None = None
    doubts = []
    for size, largest in zip(limit.sizes, limit.largest):
        if isinstance(size, IfLess):
            continue
        if isinstance(size, Max) and size.b == 0:
            size = size.a
        factor = size_expression(size)
        product = factor if product is None else x.binary(ast.Mult(), product, factor)
        # An extent that is an argument fits its type. Other extents are no larger than the product, unless that is 0.
        if largest < limit.most and not isinstance(size, (Arg, Extent)):
            doubts.append(x.compare(factor, ast.Gt(), x.number(largest)))
    return [x.compare(x.number(1) if product is None else product, ast.Gt(), x.number(limit.most)), *doubts]


def _check(limit: SpaceLimit, scalars: Sequence[Scalar], arrays: Sequence[Place | None], kernel: str) -> None:
    sizes = [evaluate(size, scalars, arrays) for size in limit.sizes]
    total = math.prod(sizes)
    if total > limit.most or (total and any(n > largest for n, largest in zip(sizes, limit.largest))):
        words = [word for n in sizes for word in (n & 0xFFFFFFFF, n >> 32 & 0xFFFFFFFF)]
        raise fault_error(limit.site, words, kernel)

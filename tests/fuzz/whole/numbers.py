"""Numbers with derivatives, for the reference: reverse mode over forward mode, one scalar at a time, in f64.

Each number has a value, a tangent, and edges to the numbers that it was computed from: the partial derivatives, with their tangents.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Edge = tuple["Number", float, float]  # the operand, the partial derivative, its tangent


class Number:
    __slots__ = ("adjoint", "adjoint_tangent", "edges", "order", "tangent", "value")
    count = 0

    def __init__(self, value: float, tangent: float = 0.0, edges: tuple[Edge, ...] = ()) -> None:
        self.value, self.tangent, self.edges = value, tangent, edges
        self.adjoint = self.adjoint_tangent = 0.0
        Number.count += 1
        self.order = Number.count


def number(x: Any) -> Number:
    return x if isinstance(x, Number) else Number(float(x))


def value(x: Any) -> Any:
    return x.value if isinstance(x, Number) else x


def add(a: Any, b: Any) -> Number:
    a, b = number(a), number(b)
    return Number(a.value + b.value, a.tangent + b.tangent, ((a, 1.0, 0.0), (b, 1.0, 0.0)))


def scaled(a: Any, factor: float) -> Number:
    a = number(a)
    return Number(a.value * factor, a.tangent * factor, ((a, factor, 0.0),))


def subtract(a: Any, b: Any) -> Number:
    return add(a, scaled(b, -1.0))


def multiply(a: Any, b: Any) -> Number:
    a, b = number(a), number(b)
    edges = ((a, b.value, b.tangent), (b, a.value, a.tangent))
    return Number(a.value * b.value, a.tangent * b.value + a.value * b.tangent, edges)


def unary(f: Callable[[float], tuple[float, float, float]]) -> Callable[[Any], Number]:
    """``f`` gives the function with its first and second derivative."""

    def apply(a: Any) -> Number:
        a = number(a)
        y, first, second = f(a.value)
        return Number(y, first * a.tangent, ((a, first, second * a.tangent),))

    return apply


def _tanh(x: float) -> tuple[float, float, float]:
    y = math.tanh(x)
    return y, 1 - y * y, -2 * y * (1 - y * y)


def _root(x: float) -> tuple[float, float, float]:
    y = math.sqrt(1 + x * x)
    return y, x / y, 1 / y**3


sin = unary(lambda x: (math.sin(x), math.cos(x), -math.sin(x)))
cos = unary(lambda x: (math.cos(x), -math.sin(x), -math.cos(x)))
tanh, root = unary(_tanh), unary(_root)


def pull(seeds: list[tuple[Number, float]], begin: int) -> None:
    """Leave the adjoints of the weighted sum of ``seeds`` in the numbers made since ``begin``."""
    reached: dict[int, Number] = {}
    stack = [n for n, _ in seeds]
    while stack:
        n = stack.pop()
        if n.order not in reached and n.order >= begin:
            reached[n.order] = n
            n.adjoint = n.adjoint_tangent = 0.0
            stack += [edge[0] for edge in n.edges]
    for n, weight in seeds:
        n.adjoint += weight
    for order in sorted(reached, reverse=True):
        n = reached[order]
        for operand, partial, tangent in n.edges:
            operand.adjoint += partial * n.adjoint
            operand.adjoint_tangent += partial * n.adjoint_tangent + tangent * n.adjoint

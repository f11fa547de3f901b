"""Kernels that take some of their numbers from memory with a gradient: from arrays of one element, called cells here.

Scalar arguments are constants of a launch and have no gradient. Where a tape follows the number that is passed, or torch does, the kernel
is compiled once more with a cell for the argument, and whatever computes gradients of arrays computes the gradient of the number.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import NamedTuple

from spirograd.base.dtypes import i32
from spirograd.lang import scalar
from spirograd.lang.annotations import NdarrayType
from spirograd.lang.data.ndarray import MatrixNdarray, Ndarray, ScalarNdarray, VectorNdarray
from spirograd.lang.frontend.array_proxy import ArrayProxy
from spirograd.lang.frontend.captures import Declarations
from spirograd.lang.frontend.guards import Path
from spirograd.lang.frontend.kernel import Kernel
from spirograd.lang.frontend.parameters import AggregateParameter, ArrayParameter, Parameter, ScalarParameter
from spirograd.lang.frontend.steps import Step
from spirograd.lang.language_options import LanguageOptions
from spirograd.lang.leaves import build
from spirograd.lang.scalar import Value
from spirograd.lang.traced_numbers import TracedNumber, are_traced, entries_of, plain


class Cell(NamedTuple):
    """A number that is followed, and the array that holds its value."""

    number: TracedNumber
    array: Ndarray


class CellParameter(ArrayParameter):
    """A number, taken from an array of one element."""

    def __init__(self, name: str, kernel: str, t: object) -> None:
        super().__init__(name, kernel, NdarrayType(t, 1))

    def declare(self, value: object, to: Declarations) -> Value:
        b = scalar.builder()
        proxy = super().declare(value, to)
        assert isinstance(proxy, ArrayProxy)
        return Value(b.load(proxy.ref, b.const(0, i32)))


class CellsParameter(Parameter):
    """A vector, matrix or struct, of which some leaves are taken from arrays of one element. ``which``: their positions."""

    def __init__(self, parameter: AggregateParameter, kernel: str, which: frozenset[int]) -> None:
        super().__init__(parameter.name, kernel)
        self.t = parameter.t
        self.leaves: list[ScalarParameter | CellParameter] = [
            CellParameter(leaf.name, kernel, leaf.t) if k in which else leaf for k, leaf in enumerate(parameter.leaves)
        ]

    def key(self, value: object) -> object:
        return tuple([leaf.key(part) for leaf, part in zip(self.leaves, _parts(value))])

    def declare(self, value: object, to: Declarations) -> object:
        return build(self.t, [leaf.declare(part, to) for leaf, part in zip(self.leaves, _parts(value))])

    def steps(self, value: object, path: Path) -> list[Step]:
        return [step for k, (leaf, part) in enumerate(zip(self.leaves, _parts(value))) for step in leaf.steps(part, path.then(k))]


def _parts(value: object) -> list[object]:
    """Return the arrays and numbers that `cells_of` passes for an aggregate."""
    assert isinstance(value, list)
    return value


class CellKernel(Kernel):
    """``kernel`` with cells. ``which``: by the position of an argument, the positions of the leaves that are cells."""

    def __init__(self, kernel: Kernel, which: dict[int, frozenset[int]]) -> None:
        super().__init__(kernel.function, kernel._unfused_by)
        self._text = kernel._text
        self._which = which

    def traced_part(self) -> None:
        """Return None: parameters are cells."""

    def _parameter(self, p: inspect.Parameter, position: int, options: LanguageOptions) -> Parameter:
        parameter, which = super()._parameter(p, position, options), self._which.get(position)
        if which is None:
            return parameter
        name = self.function.__name__
        if isinstance(parameter, AggregateParameter):
            return CellsParameter(parameter, name, which)
        return CellParameter(parameter.name, name, parameter.t)  # type: ignore[attr-defined]


# Types of arguments that no tape follows. Most launches have no others.
_UNTRACED = frozenset((int, float, bool, ScalarNdarray, VectorNdarray, MatrixNdarray))


def with_cells(kernel: Kernel, which: dict[int, frozenset[int]]) -> CellKernel:
    """Return ``kernel`` with cells at these places, the same one for each call."""
    key = tuple(sorted((position, tuple(sorted(leaves))) for position, leaves in which.items()))
    variant = kernel.variants.get(key)
    if not isinstance(variant, CellKernel):
        variant = kernel.variants[key] = CellKernel(kernel, which)
    return variant


def cells_of(kernel: Kernel, args: Sequence[object]) -> tuple[CellKernel, tuple[object, ...], list[Cell]] | None:
    """Return the kernel with cells for the numbers among ``args`` that a tape follows, its arguments, and the cells; None if there are no
    such numbers, or only where no cell can be, as in template arguments, which refuse them."""
    if type(kernel) is not Kernel or _UNTRACED.issuperset(map(type, args)):
        return None
    which: dict[int, frozenset[int]] = {}
    values, cells = list(args), list[Cell]()
    for position, (parameter, value) in enumerate(zip(kernel.parameters(), args)):
        if isinstance(parameter, ScalarParameter) and isinstance(value, TracedNumber) and value.is_open and parameter.t.is_float:
            which[position] = frozenset((0,))
            cells.append(_cell(value, parameter.t))
            values[position] = cells[-1].array
        elif isinstance(parameter, AggregateParameter) and are_traced(_entries(value)):
            numbers = parameter.t.numbers_of(value)
            leaves = [(k, n, parameter.leaves[k].t) for k, n in enumerate(numbers) if isinstance(n, TracedNumber) and n.is_open]
            cell_of = {k: _cell(n, t) for k, n, t in leaves if t.is_float}
            which[position] = frozenset(cell_of)
            cells += cell_of.values()
            values[position] = [cell_of[k].array if k in cell_of else number for k, number in enumerate(numbers)]
    return (with_cells(kernel, which), tuple(values), cells) if cells else None


def _entries(value: object) -> Sequence[object]:
    members = getattr(value, "entries", None)
    return [n for member in members.values() for n in _entries(member)] if isinstance(members, dict) else entries_of(value)


def _cell(number: TracedNumber, t: object) -> Cell:
    array = ScalarNdarray(t, 1, needs_grad=True)
    array[0] = plain(number)
    return Cell(number, array)

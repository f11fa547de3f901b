"""Refuses array arguments that alias: reverse mode assumes that they do not."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from math import prod
from typing import cast

from spirograd.base.arguments import Arguments
from spirograd.base.dtypes import storage
from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.base.loc import Loc
from spirograd.ir.array_layouts import in_program_order
from spirograd.ir.nodes import ArrayArg, ScalarArg
from spirograd.lang.data import slices


def refuse_shared(
    label: str,
    args: Sequence[ScalarArg | ArrayArg],
    arguments: Arguments,
    written: Mapping[int, Loc | None],
    accessed: Set[int],
) -> None:
    """Raise SpirogradRuntimeError if an array argument that the kernel writes shares memory with another one that it accesses.

    ``args``: the declarations of ``arguments``. ``written``: where the kernel writes to which argument, ``accessed``: which
    it reads or writes.
    """
    if not written:
        return
    spans = []
    for k in sorted(accessed):
        arg, binding = args[k], arguments.arrays[k]
        if isinstance(arg, ArrayArg) and binding is not None:
            nbytes = storage(arg.dtype).size * prod(binding.shape) * prod(arg.element_shape)
            spans.append((k, binding.address, binding.address + nbytes))
    if not _any_overlap(spans):
        return
    for k, loc in written.items():
        own = next((span for span in spans if span[0] == k), None)
        for other, start, end in spans:
            if own is not None and other != k and start < own[2] and own[1] < end and not _disjoint(k, other, args, arguments):
                problem = (
                    f"{label}: arguments `{args[k].name}` and `{args[other].name}` share memory, which the kernel writes; its gradient "
                    "would mix them up"
                )
                raise SpirogradRuntimeError(render(problem, loc, "pass a copy of one of them, or write a kernel that takes the array once"))


def _any_overlap(spans: Sequence[tuple[int, int, int]]) -> bool:
    """Return whether any two of many arguments, (number, start, end) of each, share an address."""
    places = sorted([span[1:] for span in spans])
    return any(following[0] < place[1] for place, following in itertools.pairwise(places))


def _disjoint(a: int, b: int, args: Sequence[ScalarArg | ArrayArg], arguments: Arguments) -> bool:
    """Return whether two arguments are views of one array without a common element."""
    one, other = arguments.arrays[a], arguments.arrays[b]
    assert one is not None
    assert other is not None
    alike = one.address == other.address and one.shape == other.shape
    numbers = cast("Sequence[int]", arguments.scalars)  # those of views are integers
    parts = []
    for k in (a, b):
        arg = args[k]
        assert isinstance(arg, ArrayArg)
        parts.append(slices.axes_of(arg.view, in_program_order(arg.layout, one.shape), numbers[k + 1 :]))
    return alike and slices.disjoint(*parts)

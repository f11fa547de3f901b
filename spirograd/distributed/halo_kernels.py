"""Kernels that copy between fields and messages to other processes, by tables of cells."""

from __future__ import annotations

from spirograd.lang import arithmetic
from spirograd.lang.frontend.decorators import kernel
from spirograd.types import template

# mypy: disable-error-code="no-untyped-def, valid-type"


@kernel
def copy_out(memory: template(), cells: template(), message: template(), n: int):
    """Copy the cell ``cells[k]`` to message element ``k``."""
    for k in range(n):
        message[k] = memory[cells[k]]


@kernel
def copy_in(memory: template(), cells: template(), kept: template(), message: template(), n: int, first: int):
    """Copy element ``k`` of ``kept`` before ``first``, else of ``message``, to the cell ``cells[k]``."""
    for k in range(n):
        if k < first:
            memory[cells[k]] = kept[k]
        else:
            memory[cells[k]] = message[k]


@kernel
def move_out(memory: template(), cells: template(), message: template(), n: int):
    """Copy as `copy_out`, and set the cells, which are distinct, to zero."""
    for k in range(n):
        message[k] = memory[cells[k]]
        memory[cells[k]] = arithmetic.zero(memory[cells[k]])


@kernel
def add_in(
    memory: template(),
    cells: template(),
    starts: template(),
    positions: template(),
    kept: template(),
    message: template(),
    n: int,
    first: int,
):
    """Add to each cell the elements for it, at ``positions[starts[c]]`` to ``positions[starts[c + 1]]``, in order."""
    for c in range(n):
        total = memory[cells[c]]
        for j in range(starts[c], starts[c + 1]):
            k = positions[j]
            if k < first:
                total += kept[k]
            else:
                total += message[k]
        memory[cells[c]] = total

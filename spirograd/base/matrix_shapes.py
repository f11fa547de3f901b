"""Small products of matrices that the 32 invocations of a subgroup compute together, and which entries each of them holds.

The distribution is that of the instructions ``mma`` of PTX (NVIDIA: PTX ISA, "Matrix multiply-accumulate operation using mma
instruction"); there is no other yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spirograd.base.dtypes import DType, f16, f32, f64
from spirograd.base.records import dataclass

LANES, _QUAD = 32, 4


@dataclass(frozen=True, slots=True)
class Place:
    """Row and column of an entry of a lane, each by factors of the number of its quad (lane // 4), of its number in that, and of 1."""

    row: tuple[int, int, int]
    column: tuple[int, int, int]

    def of_lane(self, lane: int) -> tuple[int, int]:
        quad, within = divmod(lane, _QUAD)
        (a, b, c), (d, e, f) = self.row, self.column
        return a * quad + b * within + c, d * quad + e * within + f


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """A product a @ b + c, of ``rows`` x ``depth``, ``depth`` x ``columns`` and ``rows`` x ``columns`` entries. ``factor``: the type of a
    and b; ``total``: of c and the result. ``a``, ``b``, ``c``: the places of the entries that a lane has of each."""

    factor: DType
    total: DType
    rows: int
    columns: int
    depth: int
    a: tuple[Place, ...]
    b: tuple[Place, ...]
    c: tuple[Place, ...]

    def split(self, values: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """The operands of a lane, by matrix."""
        first, second = len(self.a), len(self.a) + len(self.b)
        return values[:first], values[first:second], values[second:]

    def evaluate(self, operands: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
        """The entries of the result that each lane has, from the operands of all lanes."""
        a, b, c = (
            np.zeros(extents, self.total.np) for extents in ((self.rows, self.depth), (self.depth, self.columns), (self.rows, self.columns))
        )
        for lane, values in enumerate(operands):
            for matrix, places, entries in zip((a, b, c), (self.a, self.b, self.c), self.split(values)):
                for place, entry in zip(places, entries):
                    matrix[place.of_lane(lane)] = entry
        with np.errstate(all="ignore"):
            for k in range(self.depth):
                c = c + a[:, k : k + 1] * b[k : k + 1]
        return [tuple([c[place.of_lane(lane)] for place in self.c]) for lane in range(len(operands))]


SHAPES: dict[str, MatrixShape] = {
    "m8n8k4_f64": MatrixShape(
        f64, f64, 8, 8, 4,
        (Place((1, 0, 0), (0, 1, 0)),),
        (Place((0, 1, 0), (1, 0, 0)),),
        tuple([Place((1, 0, 0), (0, 2, k)) for k in range(2)]),
    ),
    "m16n8k16_f16": MatrixShape(
        f16, f32, 16, 8, 16,
        tuple([Place((1, 0, 8 * (k >> 1 & 1)), (0, 2, (k & 1) + 8 * (k >> 2))) for k in range(8)]),
        tuple([Place((0, 2, (k & 1) + 8 * (k >> 1)), (1, 0, 0)) for k in range(4)]),
        tuple([Place((1, 0, 8 * (k >> 1)), (0, 2, k & 1)) for k in range(4)]),
    ),
}  # fmt: skip

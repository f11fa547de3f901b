"""Products of small matrices that the invocations of a subgroup compute together by instructions of the device.

They compose a product a @ b + c of tiles of n x n entries, which 32 invocations compute. An invocation holds n * n / 32 entries of c, block
after block. PTX defines which ones (PTX ISA, "Matrix multiply-accumulate operation using mma instruction"); Vulkan leaves it to the driver
(SPV_KHR_cooperative_matrix).

If the 32 invocations are one subgroup, it holds n * n / 32 entries of a and b, too. If they are four subgroups of 8, each computes a
quarter of c, and holds the half of a, and the half of b, that it needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from spirograd.base.dtypes import DType, f16, f32, f64
from spirograd.base.records import dataclass

LANES = 32
# The operand that a tile is in a product; TRANSPOSED: its transpose is b.
A, B, TRANSPOSED, TOTAL = USES = ("a", "b", "transposed b", "total")
_QUAD = 4
# Rows of tiles in shared memory begin at multiples of 16 bytes, and those of neighbours in different banks.
_PADDING_ENTRIES, _PADDING_BYTES = 4, 16


@dataclass(frozen=True, slots=True)
class EntryIndex:
    """Row and column of an entry of a lane: each a sum of factors times (lane // 4, lane % 4, 1)."""

    row: tuple[int, int, int]
    column: tuple[int, int, int]

    def of_lane(self, lane: int) -> tuple[int, int]:
        quad, within = divmod(lane, _QUAD)
        (a, b, c), (d, e, f) = self.row, self.column
        return a * quad + b * within + c, d * quad + e * within + f


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """A product a @ b + c, of ``rows`` x ``depth``, ``depth`` x ``columns`` and ``rows`` x ``columns`` entries. ``factor``: the type of a
    and b; ``total``: of c and the result. ``a``, ``b``, ``c``: the places of the entries that a lane has of each; () where only the driver
    knows. ``lanes``: the invocations of a subgroup, 32 or 8."""

    factor: DType
    total: DType
    rows: int
    columns: int
    depth: int
    a: tuple[EntryIndex, ...] = ()
    b: tuple[EntryIndex, ...] = ()
    c: tuple[EntryIndex, ...] = ()
    lanes: int = LANES

    @property
    def divisions(self) -> int:
        """The number of parts into which the subgroups divide the rows, and the columns, of a tile."""
        return math.isqrt(LANES // self.lanes)

    def extents(self, use: str) -> tuple[int, int]:
        """Rows and columns of one of the matrices."""
        return {A: (self.rows, self.depth), TOTAL: (self.rows, self.columns)}.get(use, (self.depth, self.columns))

    def element(self, use: str) -> DType:
        """Return the type of the entries of one of the matrices."""
        return self.total if use == TOTAL else self.factor

    def held(self, use: str) -> int:
        """Return how many entries of one of the matrices an invocation holds."""
        rows, columns = self.extents(use)
        return rows * columns // self.lanes

    def blocks(self, n: int, use: str) -> list[tuple[int, int]]:
        """Return the first row and column of each block that a subgroup holds of a matrix of n x n entries, in the order in which
        invocations hold them. They count from the first row and column of the subgroup's part."""
        rows, columns = self.extents(use)
        part = n // self.divisions
        height, width = (part if use in (A, TOTAL) else n), (n if use == A else part)
        return [(row, column) for row in range(0, height, rows) for column in range(0, width, columns)]

    def held_of_tile(self, n: int, use: str) -> int:
        """Return how many entries of a matrix of n x n an invocation holds."""
        return len(self.blocks(n, use)) * self.held(use)


def held_entries(n: int) -> int:
    """Return how many entries of a total of n x n an invocation holds."""
    return n * n // LANES


def row_stride(n: int, t: DType) -> int:
    """Return the distance of rows of a tile of n x n in shared memory, in entries."""
    return n + max(_PADDING_ENTRIES, _PADDING_BYTES // t.size)


def shape_for(names: Iterable[str], total: DType) -> str | None:
    """Return the product among ``names``, those of a device, whose totals have the type ``total``; it determines the type of the
    factors."""
    return next((name for name in names if SHAPES[name].total is total), None)


def _mma(factor: DType, total: DType, rows: int, columns: int, depth: int) -> MatrixShape:
    """Return a product of PTX. A lane holds two neighbours of each 8 x 8 entries of a and b of f16, or one entry of each 8 x 4 of a and 4 x
    8 of b of f64, and two neighbours of each 8 x 8 entries of the total."""
    each = 2 if factor is f16 else 1
    across = each * _QUAD
    a = [
        EntryIndex((1, 0, row), (0, each, k + column))
        for column in range(0, depth, across)
        for row in range(0, rows, 8)
        for k in range(each)
    ]
    b = [EntryIndex((0, each, k + row), (1, 0, 0)) for row in range(0, depth, across) for k in range(each)]
    c = [EntryIndex((1, 0, row), (0, 2, k)) for row in range(0, rows, 8) for k in range(2)]
    return MatrixShape(factor, total, rows, columns, depth, tuple(a), tuple(b), tuple(c))


# In order of preference: the first one that the device has and that fits is used.
SHAPES: dict[str, MatrixShape] = {
    "m16n8k16_f16": _mma(f16, f32, 16, 8, 16),
    "m16n8k8_f16": _mma(f16, f32, 16, 8, 8),
    "m16n8k16_f64": _mma(f64, f64, 16, 8, 16),
    "m8n8k4_f64": _mma(f64, f64, 8, 8, 4),
    # Vulkan only.
    "m16n16k16_f16": MatrixShape(f16, f32, 16, 16, 16),
    "m16n16k8_f16": MatrixShape(f16, f32, 16, 16, 8),
    "m8n8k8_f16": MatrixShape(f16, f32, 8, 8, 8, lanes=8),
}

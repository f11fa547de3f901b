"""The entries of a sparse matrix, as kernels write them one by one: rows, columns and values in arrays, and their count."""

from __future__ import annotations

from typing import NoReturn

from spirograd.base.dtypes import DType, i32
from spirograd.base.errors import SpirogradTypeError
from spirograd.lang.data.ndarray import Ndarray, ScalarNdarray


class Triplets:
    """A list of up to ``capacity`` entries of a matrix with values of ``dtype``, in memory of the session.

    ``count``: the number of entries that kernels added; those beyond the capacity are counted and not stored.
    """

    def __init__(self, capacity: int, dtype: DType, needs_grad: bool = False) -> None:
        self.dtype = dtype
        self.count = ScalarNdarray(i32, 1)
        self.rows = ScalarNdarray(i32, capacity)
        self.columns = ScalarNdarray(i32, capacity)
        self.values = ScalarNdarray(dtype, capacity, needs_grad=needs_grad)

    def __getitem__(self, index: object) -> NoReturn:
        raise SpirogradTypeError("only kernels add to the builder of a matrix", None, "they take it as `A: sg.types.sparse_matrix_builder`")

    def __setitem__(self, index: object, value: object) -> None:
        self[index]

    def arrays(self) -> dict[str, Ndarray]:
        """Return the arrays that a kernel takes, by name."""
        return {"count": self.count, "rows": self.rows, "columns": self.columns, "values": self.values}

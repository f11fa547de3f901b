"""``A[i, j] += value`` on the builder of a sparse matrix: a triplet is appended to its arrays."""

from __future__ import annotations

from typing import NoReturn

from spirograd.base.dtypes import i32
from spirograd.lang import arithmetic, scalar
from spirograd.lang.frontend.array_proxy import TripletsProxy
from spirograd.lang.frontend.indices import index_values
from spirograd.lang.frontend.lvalues import Element, Lvalue
from spirograd.lang.frontend.runtime_values import where
from spirograd.lang.scalar import Value, describe, type_error

_HINT = "write `A[i, j] += value` or `A[i, j] -= value`; outside of kernels, `A.build()` makes the matrix, which can be read"


def _as_i32(index: Value) -> Value:
    """Return an index; -1, which is outside of every matrix, for one that no i32 holds."""
    narrow: Value = arithmetic.cast(index, i32)
    return narrow if index.dtype is i32 else arithmetic.select(arithmetic.cmp_eq(narrow, index), narrow, -1)


class TripletElement(Lvalue):
    """An entry of a matrix that is being built: it can be added to."""

    def __init__(self, builder: TripletsProxy, key: object) -> None:
        self.builder = builder
        self.what = f"an entry of {describe(builder)}"
        self._position = index_values(key, 2, builder.name)

    def load(self) -> NoReturn:
        raise type_error(f"{self.what} cannot be read", _HINT)

    def store(self, value: object) -> NoReturn:
        raise type_error(f"{self.what} cannot be assigned", _HINT)

    def atomic(self, kind: str, value: object) -> NoReturn:
        raise type_error(f"{self.what} has no old value", _HINT)

    def update(self, kind: str, value: object) -> None:
        if kind not in ("add", "sub"):
            raise type_error(f"{self.what} can be added to and subtracted from only", _HINT)
        if not scalar.is_scalar(value):
            raise type_error(f"{self.what} is a scalar, got {describe(value)}")
        arrays = self.builder.arrays
        place = scalar.as_value(Element(arrays["count"].ref, (scalar.builder().const(0, i32),)).atomic("add", 1))

        def put() -> None:
            for array, index in zip(("rows", "columns"), self._position):
                Element(arrays[array].ref, (place.op,)).store(_as_i32(Value(index)))
            # Converted before it is negated: a narrower unsigned value would wrap around.
            number = arithmetic.cast(value, arrays["values"].dtype)
            Element(arrays["values"].ref, (place.op,)).store(-number if kind == "sub" else number)

        where(place < arrays["values"].shape[0], put)

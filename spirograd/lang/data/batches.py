"""Batches: fields with an axis of environments, which kernels do not see.

A field of a batch is a dense field with one more axis: the first for the host, the innermost in memory, so that neighbouring invocations,
which run neighbouring environments, access neighbouring elements. A kernel that uses such fields runs once for each environment:
`frontend.environments`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast, overload

import numpy as np

from spirograd.base.dtypes import i32
from spirograd.base.errors import SpirogradCallError, SpirogradUnsupportedError, SpirogradValueError
from spirograd.lang import context, forms, scalar
from spirograd.lang.data.field import field

if TYPE_CHECKING:
    from spirograd.lang.data.field import MatrixField, MemberField, StructField
    from spirograd.lang.data.numpy_transfer import Array
    from spirograd.lang.data.scalar_field import ScalarField
    from spirograd.lang.leaves import ValueType
    from spirograd.lang.typed import AnyMatrixType, AnyStructType, ScalarType


class Batch:
    """A number of environments, for each of which the same kernels run.

    Fields that are made in a block ``with batch:``, or by `field`, have elements of their own for each environment. Kernels index them, and
    loop over them, without the axis of the environments. For the host it is the first axis: ``x.to_numpy()`` has the shape (n, ...).

    ``size``: the number of environments. Raises SpirogradCallError unless it is a positive integer, SpirogradUnsupportedError on
    ``arch=sg.python``, where kernels run as plain Python.
    """

    index = staticmethod(forms.environment)

    def __init__(self, size: int) -> None:
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise SpirogradCallError(f"a batch has one environment or more, got {size!r}")
        if context.has_session() and context.session().plain:
            problem = "on `arch=sg.python` kernels run as plain Python, for one environment"
            raise SpirogradUnsupportedError(problem, None, "use `arch=sg.interpreter`, or any other back end")
        self.size = int(size)
        self.masked = False  # Whether only some environments run; kernels are compiled for either.
        self._flags: ScalarField | None = None
        self._outer: list[Batch | None] = []

    def __repr__(self) -> str:
        return f"<batch of {self.size}>"

    def __enter__(self) -> Batch:
        self._outer.append(context.set_batch(self))
        return self

    def __exit__(self, *exception: object) -> None:
        context.set_batch(self._outer.pop())

    @overload
    def field(
        self,
        dtype: ScalarType,
        shape: object = (),
        order: str | None = None,
        name: str = "",
        needs_grad: bool = False,
        needs_dual: bool = False,
        *,
        fill: object = None,
    ) -> ScalarField: ...
    @overload
    def field(
        self,
        dtype: AnyMatrixType,
        shape: object = (),
        order: str | None = None,
        name: str = "",
        needs_grad: bool = False,
        needs_dual: bool = False,
        *,
        fill: object = None,
    ) -> MatrixField: ...
    @overload
    def field(
        self,
        dtype: AnyStructType,
        shape: object = (),
        order: str | None = None,
        name: str = "",
        needs_grad: bool = False,
        needs_dual: bool = False,
        *,
        fill: object = None,
    ) -> StructField: ...
    def field(
        self,
        dtype: object,
        shape: object = (),
        order: str | None = None,
        name: str = "",
        needs_grad: bool = False,
        needs_dual: bool = False,
        *,
        fill: object = None,
    ) -> MemberField:
        """Return a field of the batch; ``shape``: that of one environment, () by default; the other options are those of `field`."""
        with self:
            return field(dtype, shape, order, name, None, needs_grad, needs_dual, fill=fill)

    # --- masks -----------------------------------------------------------------------------------------------------------

    @property
    def mask(self) -> Array | None:
        """Which environments run, as an array of bools; None if all do. Assign an array, or None."""
        return self.flags.to_numpy() != 0 if self.masked else None

    @mask.setter
    def mask(self, mask: object) -> None:
        if mask is None:
            self.masked = False
            return
        array = np.asarray(mask)
        if array.shape != (self.size,) or array.dtype.kind != "b":
            given = f"{array.dtype} of shape {array.shape}" if array.dtype.kind != "O" else scalar.describe(mask)
            raise SpirogradValueError(f"a mask of a batch of {self.size} is an array of {self.size} bools, got {given}")
        self.flags.from_numpy(array.astype(np.int32))
        self.masked = True

    @contextmanager
    def only(self, mask: object) -> Iterator[None]:
        """Run kernels of the block only for those environments where ``mask``, an array of bools, is True."""
        before = self.mask
        self.mask = mask
        try:
            yield
        finally:
            self.mask = before

    @property
    def flags(self) -> ScalarField:
        """The flags of the mask in the memory of the device: 1 for each environment that runs."""
        if self._flags is None:
            before = context.set_batch(None)
            try:
                self._flags = cast("ScalarField", field(i32, self.size, name="mask_of_batch"))
            finally:
                context.set_batch(before)
        return self._flags


def of_each_environment(returns: ValueType | None, fields: Sequence[ScalarField], mask: Array | None) -> object:
    """Return the results of a kernel, which are in ``fields``, with the environments as the first axis: an array for a number, a vector or
    a matrix, else a list of an array for each number. Those of environments that ``mask`` leaves out are 0."""
    numbers = [field.to_numpy() if mask is None else np.where(mask, field.to_numpy(), 0) for field in fields]
    if len(numbers) == 1:
        return numbers[0]
    shape = getattr(returns, "shape", None)
    return numbers if shape is None else np.stack(numbers, -1).reshape(-1, *shape)

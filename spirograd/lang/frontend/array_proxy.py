"""Array arguments as the kernel sees them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from spirograd.base.artifact import NARROW
from spirograd.base.dtypes import DType, i32
from spirograd.base.errors import SpirogradRuntimeTypeError, SpirogradTypeError
from spirograd.ir import ops as ir
from spirograd.ir.array_layouts import in_program_order
from spirograd.ir.nodes import ArrayArg, ArrayRef
from spirograd.lang import scalar
from spirograd.lang.context import current_trace
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.scalar import Value

LONGEST_AXIS = 2**31 - 1  # extents are i32 in kernels; the number of elements may be larger


class ElementShape(tuple[int, ...]):
    """The extents of an element: ``x.element_shape``, and as the family writes it, ``x.element_shape()``, which is a list."""

    __sg_traceable__ = True

    def __call__(self) -> list[int]:
        return list(self)


P = TypeVar("P", bound="Proxy")
SHADOWS = {"grad": "gradient", "dual": "dual"}  # Attributes of memory, and what messages call them.


class Proxy:
    """Memory inside a kernel: an array, or a view. ``shape`` gives the extents as run-time values (element shape excluded)."""

    __sg_traceable__ = True

    @property
    def shape(self) -> tuple[Value, ...]:
        raise NotImplementedError

    @property
    def axes_in_memory(self) -> tuple[int, ...]:
        """The axes, slowest in memory first."""
        raise NotImplementedError

    @property
    def size(self) -> Value:
        """Number of elements."""
        return number_of(self.shape)

    @property
    def grad(self: P) -> P:
        return self._shadow("grad")

    @property
    def dual(self: P) -> P:
        return self._shadow("dual")

    def _shadow(self: P, role: str) -> P:
        raise NotImplementedError

    def fill(self, value: object) -> None:
        """Stand for the loop that a kernel runs; see `kernel_methods`."""
        raise AssertionError("kernels inline this")


class ArrayProxy(Proxy):
    """An array argument inside a kernel."""

    def __init__(self, arg: int, decl: ArrayArg, role: str = "primal") -> None:
        self.arg = arg
        self.decl = decl
        self.ref = ArrayRef(
            decl.name if role == "primal" else f"{decl.name}.{role}", arg, decl.dtype, decl.ndim, decl.element_shape, role, decl.wide,
            layout=decl.layout,
        )  # fmt: skip

    @property
    def shape(self) -> tuple[Value, ...]:
        b, places = scalar.builder(), in_program_order(self.decl.layout, range(self.decl.ndim))
        return tuple([Value(b.emit(ir.shape, attr=(self.arg, place), type=i32)) for place in places])

    @property
    def axes_in_memory(self) -> tuple[int, ...]:
        """The axes, slowest in memory first."""
        return self.decl.layout or tuple(range(self.decl.ndim))

    @property
    def offset(self) -> Value:
        """The offset of the first element: 0, as an array is not a part of another one."""
        if self.decl.ndim != 1:
            raise AttributeError("offset")
        return scalar.constant(0, i32)

    @property
    def dtype(self) -> DType:
        return self.decl.dtype

    @property
    def element_shape(self) -> ElementShape:
        return ElementShape(self.decl.element_shape)

    def subview(self, offset: object, size: object) -> object:
        """Return a view of some elements. Stands for what a kernel runs; see `kernel_methods`."""
        raise AssertionError("kernels inline this")

    def _shadow(self, role: str) -> ArrayProxy:
        if not (self.decl.needs_grad if role == "grad" else self.decl.needs_dual):
            trace = current_trace()
            loc = trace.b.loc if trace else None
            raise SpirogradTypeError(f"array `{self.decl.name}` has no {SHADOWS[role]}", loc, f"make it with `needs_{role}=True`")
        return ArrayProxy(self.arg, self.decl, role)

    def __sg_describe__(self) -> str:
        return f"the {self.decl.ndim}-d array `{self.decl.name}`"


def number_of(shape: Sequence[Value]) -> Value:
    """Return the product of extents."""
    total = scalar.constant(1, i32)
    for extent in shape:
        total = total * extent
    return total


class TripletsProxy:
    """The builder of a sparse matrix inside a kernel. ``arrays``: see `Triplets.arrays`."""

    __sg_traceable__ = True

    def __init__(self, name: str, arrays: dict[str, ArrayProxy]) -> None:
        self.name = name
        self.arrays = arrays

    def __sg_describe__(self) -> str:
        return f"the builder `{self.name}` of a sparse matrix"


def array_decl(name: str, array: Ndarray) -> ArrayArg:
    """Return how an ndarray is declared as an argument."""
    wide = is_wide(array.shape, array.element_shape)
    has_grad, layout = array.grad is not None, array.layout or ()
    return ArrayArg(name, array.dtype, len(array.shape), tuple(array.element_shape), has_grad, wide, array.needs_dual, layout=layout)


def is_wide(shape: Sequence[int], element_shape: Sequence[int]) -> bool:
    """Return whether elements need 64-bit indices; raises SpirogradRuntimeTypeError for an axis that is too long for a kernel."""
    if max(math.prod(shape) * math.prod(element_shape), *shape, 0) <= NARROW:
        return False
    if any(n > LONGEST_AXIS for n in shape):
        raise SpirogradRuntimeTypeError(f"an array of shape {tuple(shape)} has an axis of more than 2^31 - 1: give it another axis")
    return True

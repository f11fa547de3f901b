"""Access to single elements of fields in Python scope, without NumPy: addresses and bytes.

Each function is a fast path for the most common values, plain integers and floats that fit. It returns None for other values, which the
general path converts or refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING

from spirograd.base.dtypes import DType
from spirograd.base.records import dataclass
from spirograd.ir.nodes import Layout
from spirograd.lang import context
from spirograd.lang.data.slices import strides_in_memory

if TYPE_CHECKING:
    from spirograd.base.protocols import Allocation, Scalar

_EXACT = 1 << 53  # Integers up to this magnitude are exact in f64, from which they are rounded once.
_CHARACTERS = {
    "b1": "?",
    "i1": "b",
    "u1": "B",
    "i2": "h",
    "u2": "H",
    "i4": "i",
    "u4": "I",
    "i8": "q",
    "u8": "Q",
    "f2": "e",
    "f4": "f",
    "f8": "d",
}


@cache
def form_of(dtype: DType, count: int) -> Struct:
    """Return the struct format of ``count`` adjacent numbers of a type."""
    return Struct(f"={count}{_CHARACTERS[dtype.np.str[1:]]}")


def read(allocation: Allocation, dtype: DType, count: int, address: int) -> tuple[Scalar, ...]:
    """Return ``count`` numbers from ``address`` on, after waiting for launches. Raises errors that kernels have reported."""
    context.before_read(allocation)
    return allocation.unpack(form_of(dtype, count), address)


def packed(form: Struct, dtype: DType, values: Sequence[object]) -> bytes | None:
    """Return the bytes of Python numbers that ``dtype`` can represent."""
    for value in values:
        if not (dtype.is_float if type(value) is float else type(value) is int and (dtype.is_int or -_EXACT <= value <= _EXACT)):
            return None
    try:
        return form.pack(*values)
    except (StructError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class Places:
    """The addresses of elements of a field that is indexed from 0 and has one address term for each axis of more than one element.

    ``axes``: extent and stride of each; ``components``: byte offsets within a cell. ``form``: the format of all components, if they are
    adjacent.
    """

    axes: tuple[tuple[int, int], ...]
    components: tuple[int, ...]
    form: Struct | None

    def address(self, key: object) -> int | None:
        """Return the address of the first byte of an element."""
        parts = key if type(key) is tuple else () if key is None else (key,)
        if len(parts) != len(self.axes):
            return None
        at = self.components[0]
        for k, (extent, stride) in zip(parts, self.axes):
            if type(k) is not int or not 0 <= k < extent:
                return None
            at += k * stride
        return at


def places_of(dtype: DType, shape: tuple[int, ...], layout: Layout) -> Places | None:
    """Return the places of a field, if it has a layout of this kind."""
    strides = {term.axis: term.stride for term in layout.terms if term.div == 1 and not term.mod}
    if len(strides) != len(layout.terms) or any(layout.origin):
        return None
    first = layout.components[0]
    in_row = all(at == first + k * dtype.np.itemsize for k, at in enumerate(layout.components))
    axes = tuple((extent, strides.get(axis, 0)) for axis, extent in enumerate(shape))
    return Places(axes, tuple(layout.components), form_of(dtype, len(layout.components)) if in_row else None)


def places_in_array(dtype: DType, shape: tuple[int, ...], components: int, layout: Sequence[int] | None) -> Places:
    """Return the places of the elements of an array. ``layout``: see `Ndarray`."""
    form = form_of(dtype, components)
    strides = [stride * form.size for stride in strides_in_memory(shape, layout)]
    return Places(tuple(zip(shape, strides)), (0,), form)


def entries_of(value: object, element_shape: tuple[int, ...]) -> Sequence[object] | None:
    """Return the numbers of a vector, a matrix, or a list of plain numbers, of this shape."""
    if getattr(value, "shape", None) == element_shape and hasattr(value, "entries"):
        return tuple(value.entries)
    if type(value) is list and element_shape == (len(value),) and all(type(v) in (int, float) for v in value):
        return value
    return None

"""Arrays: dense data that is passed to kernels as an argument, compiled once for all shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from spirograd.base import validity
from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradBoundsError, SpirogradRuntimeError, SpirogradTypeError, SpirogradValueError
from spirograd.lang import arithmetic, context, plain_python, scalar, traced_numbers
from spirograd.lang.data import elements, numpy_transfer, shadows, slices
from spirograd.lang.data.contents import Contents, elements_text
from spirograd.lang.data.host_scope import HostScope
from spirograd.lang.data.numpy_transfer import Array
from spirograd.lang.data.scalar_field import BuildElement
from spirograd.lang.data.shapes import element_index, extents_of
from spirograd.lang.data.views import HostView, dense_view

if TYPE_CHECKING:
    from spirograd.base.arguments import ArrayBinding
    from spirograd.base.protocols import Allocation
    from spirograd.lang.scalar import Number

    # The arguments of the constructor, in order.
    MadeFrom = tuple[DType, tuple[int, ...], tuple[int, ...], bool, BuildElement | None, tuple[int, ...] | None, bool]

N = TypeVar("N", bound="Ndarray")


class Ndarray(Contents, HostScope):
    """A dense array on the device, made by `ndarray`. Its elements are zero at first.

    ``shape``: the extents of the index space; ``element_shape``: the extents of an element. ``allocation``: the memory. ``layout``: the
    axes as they lie in memory, slowest first; None for row-major.
    """

    shape: tuple[int, ...]
    view: HostView
    # Caches of launches: the state of the array that compiled code depends on, and its addresses; see `_forget_launches`.
    _sg_signature: tuple[object, ...] | None = None
    _sg_binding: ArrayBinding | None = None
    _sg_packed: tuple[object, ...] = ()
    # Numbers that launches pass in addition to the array: see `BufferView`.
    _sg_numbers: tuple[int, ...] = ()

    def __init__(
        self,
        dtype: object,
        shape: object,
        element_shape: tuple[int, ...] = (),
        needs_grad: bool = False,
        build: BuildElement | None = None,
        layout: tuple[int, ...] | None = None,
        needs_dual: bool = False,
    ) -> None:
        self.dtype: DType = arithmetic.as_dtype(dtype)
        self.shape = array_shape(shape)
        self.element_shape = element_shape
        self.layout = layout
        self._build = build
        if layout is None:
            self.view = dense_view(self.dtype, self.shape, element_shape)
        else:
            self.view = slices.view_of_axes(self.dtype, self.shape, element_shape, slices.whole_axes(self.shape), layout)
        self._places: elements.Places | None = None
        self._session = context.session()
        self._allocation = self._session.memory.allocate(max(self.nbytes, 1))
        if (needs_grad or needs_dual) and not self.dtype.is_float:
            raise SpirogradRuntimeError(
                f"only arrays of floats have gradients, not of {self.dtype}: omit `needs_grad` and `needs_dual`, or choose f32 or f64"
            )
        self.needs_dual = needs_dual
        self._grad: Ndarray | None = shadows.register(self._like(), "grad", self) if needs_grad else None
        self._dual: Ndarray | None = shadows.register(self._like(), "dual", self) if needs_dual else None

    def _like(self) -> Ndarray:
        return type(self)(self.dtype, self.shape, self.element_shape, False, self._build, self.layout)

    def is_of(self, session: object) -> bool:
        """Return whether the array was made in ``session``."""
        return self._session is session

    def has_memory(self) -> bool:
        """Return whether its memory belongs to the running session."""
        return context.has_session() and context.session() is self._session

    @property
    def allocation(self) -> Allocation:
        """The memory. Raises SpirogradRuntimeError if its session is closed."""
        if not context.has_session() or context.session() is not self._session:
            raise SpirogradRuntimeError("this ndarray belongs to an earlier session, whose memory is gone: make arrays after `sg.init`")
        return self._allocation

    @property
    def tree(self) -> Ndarray:
        """The owner of the memory, an object with ``allocation``, like the tree of a field."""
        return self

    @property
    def extents_in_memory(self) -> tuple[int, ...]:
        """The extents of the axes as they lie in memory, slowest first: what kernels take."""
        return self.shape if self.layout is None else tuple([self.shape[axis] for axis in self.layout])

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without those of gradients and tangents."""
        return self.view.count * self.dtype.size

    @property
    def ndim(self) -> int:
        """Number of axes of the index space."""
        return len(self.shape)

    @property
    def grad(self) -> Ndarray | Any:
        """The array of gradients, or None. It can be set to another array; raises SpirogradValueError for another type or shape."""
        return self._grad

    @grad.setter
    def grad(self, new: Ndarray | None) -> None:
        self._grad = self._corresponding(new, "grad")

    @property
    def dual(self) -> Ndarray | Any:
        """The array of tangents, which can be set like `grad`."""
        return self._dual

    @dual.setter
    def dual(self, new: Ndarray | None) -> None:
        self._dual = self._corresponding(new, "dual")
        self.needs_dual = new is not None

    def _corresponding(self, new: Ndarray | None, role: str) -> Ndarray | None:
        """Check an array that kernels may index like this one, and clear the caches of launches."""
        if new is not None and (not isinstance(new, Ndarray) or _type_of(new) != _type_of(self)):
            given = _type_of(new) if isinstance(new, Ndarray) else scalar.describe(new)
            wanted = _type_of(self)
            raise SpirogradValueError(f"`{role}` of an ndarray {wanted} must be an ndarray {wanted}, got {given}")
        if isinstance(new, BufferView):
            raise SpirogradTypeError(
                f"`{role}` of an ndarray is an ndarray with memory of its own, not a view", None, "copy it: `copy.copy(view)`"
            )
        self._forget_launches()
        return None if new is None else shadows.register(new, role, self)

    def _forget_launches(self) -> None:
        """Clear the caches of launches, which refer to its gradient and its tangents."""
        for name in ("_sg_binding", "_sg_packed", "_sg_signature"):
            self.__dict__.pop(name, None)
        validity.renew()

    def has_grad(self) -> bool:
        """Return whether there is memory for gradients."""
        return self._grad is not None

    def has_dual(self) -> bool:
        """Return whether there is memory for tangents."""
        return self._dual is not None

    def make_duals(self) -> None:
        """Allocate arrays of tangents of this array and of its gradient, whether or not they were requested; new ones are zero."""
        for array, role in ((self, "dual"), (self.grad, "grad_dual")):
            if array is not None and array.dual is None:
                array._dual = shadows.register(array._like(), role, array)
                self._forget_launches()

    def __repr__(self) -> str:
        elements = f"{elements_text(self.element_shape)} of " if self.element_shape else ""
        return f"<ndarray {self.shape} of {elements}{self.dtype}>"

    def __sg_describe__(self) -> str:
        return f"an ndarray of {self.dtype}"

    def __iter__(self) -> Iterator[Any]:
        if plain_python.state.running:
            return plain_python.indices(self.shape)
        raise SpirogradTypeError("a loop over an ndarray works inside kernels only", None, "`.to_numpy()` gives an array to iterate over")

    # --- elements ---

    def _address(self, key: object) -> int:
        if self._places is None:
            self._places = elements.places_in_array(self.dtype, self.shape, math.prod(self.element_shape), self.layout)
        address = self._places.address(key)
        if address is not None:
            return address
        address = self._places.address(tuple([int(k) for k in element_index(key, self.shape, (), "an ndarray")]))
        assert address is not None
        return address

    def _write_scalars(self, address: int, values: Sequence[object]) -> None:
        data = elements.packed(elements.form_of(self.dtype, len(values)), self.dtype, values)
        self.allocation.write(address, numpy_transfer.bytes_of(self.dtype.array(values)) if data is None else memoryview(data))

    def __getitem__(self, key: object) -> Any:
        """Return an element, or a view for slices: see `BufferView`."""
        if slices.is_slice(key):
            return BufferView(self, axes=slices.sliced(slices.whole_axes(self.shape), key, "an ndarray"))
        address = self._address(key)
        numbers = elements.read(self.allocation, self.dtype, math.prod(self.element_shape), address)
        values: Sequence[Number] = numbers if context.recorder() is None else tuple(traced_numbers.read(self, key, numbers))
        if self._build is None or not self.element_shape:
            return plain_python.placed(values[0], self, key) if plain_python.state.running else values[0]
        size = self.dtype.size

        def write(component: int, value: object) -> None:
            value, numbers = traced_numbers.split(value, ())
            shadows.host_write(self, key, component, numbers=numbers)
            self._write_scalars(address + component * size, (value,))

        return self._build(values, self.element_shape, write)

    def __setitem__(self, key: object, value: object) -> None:
        if slices.is_slice(key):
            self[key]._assign(value)
            return
        address = self._address(key)
        value, numbers = traced_numbers.split(value, self.element_shape)
        data = self._entries_of(value)
        shadows.host_write(self, key, numbers=numbers)
        self._write_scalars(address, data)

    def _entries_of(self, value: object) -> Sequence[object]:
        """Return the numbers that an element is set to."""
        if not self.element_shape and scalar.is_number(value):
            return (value,)
        short = elements.entries_of(value, self.element_shape)
        return np.broadcast_to(self._filling(value), self.element_shape).reshape(-1).tolist() if short is None else short

    def clear_element(self, key: object, component: int | None) -> None:
        """Set the element at index ``key``, or one component of it, to zero."""
        part = (0,) * (math.prod(self.element_shape) if component is None else 1)
        self._write_scalars(self._address(key) + (component or 0) * self.dtype.size, part)

    def __copy__(self) -> Ndarray:
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: object) -> Ndarray:
        new = self._like()
        new.copy_from(self)
        new.grad = None if self.grad is None else self.grad.__deepcopy__(memo)
        new.dual = None if self.dual is None else self.dual.__deepcopy__(memo)
        new.needs_dual = self.needs_dual
        return new

    def __reduce__(self) -> tuple[object, ...]:
        made_from = (self.dtype, self.shape, self.element_shape, self.grad is not None, self._build, self.layout, self.needs_dual)
        shadows = [p.to_numpy() if p is not None else None for p in (self.grad, self.dual if self.needs_dual else None)]
        return (_unpickle, (type(self), made_from, self.to_numpy(), shadows))


def _type_of(array: Ndarray) -> str:
    """Return what an array shares with its gradient, for messages."""
    layout = "" if array.layout is None else f", layout {array.layout}"
    return f"of {array.dtype} and shape {array.view.full_shape}{layout}"


def _unpickle(cls: type[Ndarray], made_from: MadeFrom, data: Array, shadows: list[Array | None]) -> Ndarray:
    """Return an array of the current session with pickled contents."""
    new = cls(*made_from)
    new.from_numpy(data)
    for shadow, contents in zip((new.grad, new.dual), shadows):
        if shadow is not None:
            shadow.from_numpy(contents)
    return new


class ScalarNdarray(Ndarray):
    """An array of scalars."""


class MatrixNdarray(Ndarray):
    """An array of n x m matrices."""

    @property
    def n(self) -> int:
        """The number of rows of an element, or of entries of a vector."""
        return self.element_shape[0]

    @property
    def m(self) -> int:
        """The number of columns of an element; 1 for vectors."""
        return self.element_shape[1] if len(self.element_shape) == 2 else 1


class VectorNdarray(MatrixNdarray):
    """An array of vectors of n."""


class BufferView(Ndarray):
    """A part of an ndarray, without a copy: ``a[2:8]``, ``a[::2]``, ``a[3, :]``, ``a[::-1, 1:]``, or one-dimensional ``BufferView(a,
    offset, size)``.

    Slices are those of Python: they end at the array, and negative bounds count from its end. A view supports every operation of an
    ndarray. A write to either is a write to the memory of both; `grad` is a view of the gradient. As the annotation of an argument,
    ``BufferView`` and ``BufferView[dtype]`` accept any one-dimensional array or view.

    ``arr``: the ndarray, which is never itself a view. ``axes``: the axes of slices, in place of ``offset`` and ``size``. Raises
    SpirogradBoundsError for a part outside of ``arr``.
    """

    arr: Ndarray

    def __init__(self, arr: Ndarray, offset: int = 0, size: int | None = None, *, axes: tuple[slices.Axis, ...] | None = None) -> None:
        if not isinstance(arr, Ndarray):
            raise SpirogradTypeError(f"a view needs an ndarray, got {scalar.describe(arr)}", None, "copy the elements to an `sg.ndarray`")
        if axes is None:
            axes = _subrange(arr, offset, size)
        if isinstance(arr, BufferView):
            arr = arr.arr
        self.arr = arr
        self._axes = axes
        self.dtype, self.element_shape, self.layout = arr.dtype, arr.element_shape, None
        self.view = slices.view_of_axes(arr.dtype, arr.shape, arr.element_shape, axes, arr.layout)
        self.shape = self.view.shape
        self._build, self._session = arr._build, arr._session
        kinds = [axis.kind(extent) for axis, extent in zip(axes, arr.shape)]
        self._sg_kinds = tuple(kinds)
        self._sg_numbers = tuple([n for axis, extent in zip(axes, arr.shape) for n in axis.numbers(extent)])

    def __class_getitem__(cls, dtype: object) -> BufferViewType:
        return BufferViewType(*dtype) if isinstance(dtype, tuple) else BufferViewType(dtype)

    @property
    def offset(self) -> int:
        """The index in ``arr`` of the first element of a one-dimensional view."""
        (axis,) = [axis for axis in self._axes if axis.extent is not None]
        return axis.first

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def subview(self, offset: int, size: int) -> BufferView:
        """Return ``size`` elements of a one-dimensional view from its element ``offset`` on."""
        return BufferView(self, offset, size)

    @property
    def allocation(self) -> Allocation:
        """The memory of the array."""
        return self.arr.allocation

    def _of(self, shadow: Ndarray | None) -> BufferView | None:
        return None if shadow is None else BufferView(shadow, axes=self._axes)

    @property
    def grad(self) -> BufferView | None:
        """The view of the array's gradient, or None. Gradients are set for the whole array."""
        return self._of(self.arr.grad)

    @grad.setter
    def grad(self, new: object) -> None:
        raise SpirogradTypeError("the gradient of a view is part of that of its array", None, "set `view.arr.grad`")

    @property
    def dual(self) -> BufferView | None:
        """The view of the array's tangents, which can be set like `grad`."""
        return self._of(self.arr.dual)

    @dual.setter
    def dual(self, new: object) -> None:
        raise SpirogradTypeError("the tangents of a view are part of those of its array", None, "set `view.arr.dual`")

    def has_grad(self) -> bool:
        return self.arr.has_grad()

    def has_dual(self) -> bool:
        return self.arr.has_dual()

    def make_duals(self) -> None:
        self.arr.make_duals()

    def _like(self) -> Ndarray:
        return self._plain()(self.dtype, self.shape, self.element_shape, False, self._build)

    def _plain(self) -> type[Ndarray]:
        return (ScalarNdarray, VectorNdarray, MatrixNdarray)[len(self.element_shape)]

    def __repr__(self) -> str:
        return f"<view {self.shape} of {self.arr!r}>"

    def __sg_describe__(self) -> str:
        return f"a view of {self.arr.__sg_describe__()}"

    def _index(self, key: object) -> tuple[int, ...]:
        """Return the index of an element in the array."""
        index = iter(element_index(key, self.shape, (), "a view"))
        return tuple(axis.first if axis.extent is None else axis.first + next(index) * axis.step for axis in self._axes)

    def __getitem__(self, key: object) -> Any:
        if slices.is_slice(key):
            return BufferView(self.arr, axes=slices.sliced(self._axes, key, "a view"))
        return self.arr[self._index(key)]

    def __setitem__(self, key: object, value: object) -> None:
        if slices.is_slice(key):
            self[key]._assign(value)
        else:
            self.arr[self._index(key)] = value

    def _assign(self, value: object) -> None:
        """Set all elements to one value, or to those of an array that broadcasts to this shape."""
        if hasattr(value, "view") and hasattr(value, "tree"):
            self.copy_from(value)
        elif scalar.is_number(value) or tuple(getattr(value, "shape", ())) == self.element_shape != ():
            self.fill(value)
        else:
            self.from_numpy(np.broadcast_to(np.asarray(value), self.view.full_shape))

    def __deepcopy__(self, memo: object) -> Ndarray:
        """Return a separate ndarray with its own gradients."""
        new = self._like()
        new.copy_from(self)
        for role in ("grad", "dual"):
            shadow = getattr(self, role)
            setattr(new, role, None if shadow is None else shadow.__deepcopy__(memo))
        return new

    def __reduce__(self) -> tuple[object, ...]:
        return self.__deepcopy__({}).__reduce__()


def _subrange(arr: Ndarray, offset: int, size: int | None) -> tuple[slices.Axis, ...]:
    """Return the axes of ``size`` elements of a one-dimensional array or view from element ``offset`` on."""
    if arr.ndim != 1:
        raise SpirogradTypeError(f"`BufferView` takes a range of a one-dimensional array, got {arr!r}", None, "slice it: `a[1:3, :]`")
    length = arr.shape[0]
    size = length - offset if size is None else size
    if offset < 0 or size < 0 or offset + size > length:
        raise SpirogradBoundsError(
            f"a view of {size} elements from index {offset} on exceeds {scalar.describe(arr)} with {length} elements"
        )
    axes = arr._axes if isinstance(arr, BufferView) else slices.whole_axes(arr.shape)
    return slices.sliced(axes, slice(offset, offset + size), "an ndarray")


def array_of(array: Ndarray) -> Ndarray:
    """Return ``array``, or the array of a view."""
    return array.arr if isinstance(array, BufferView) else array


class BufferViewType:
    """The annotation ``BufferView[dtype]``: a one-dimensional array or view. ``boundary``: the option of `types.NDArray`."""

    __slots__ = ("boundary", "dtype")

    def __init__(self, dtype: object = None, boundary: str = "unsafe") -> None:
        self.dtype, self.boundary = dtype, boundary

    def __repr__(self) -> str:
        return f"BufferView[{self.dtype}]"


def array_shape(shape: object) -> tuple[int, ...]:
    """Return a shape of an ndarray as a tuple; extents may be 0."""
    return extents_of(shape, 0, "extents of an ndarray are integers from 0 on")


def element_ndarray(
    element_shape: tuple[int, ...],
    dtype: object,
    build: BuildElement,
    shape: object,
    needs_grad: bool = False,
    needs_dual: bool = False,
    *,
    fill: object = None,
) -> MatrixNdarray:
    """Return an array of vectors or matrices; options as of `ndarray`."""
    cls = VectorNdarray if len(element_shape) == 1 else MatrixNdarray
    return filled(cls(dtype, shape, element_shape, needs_grad, build, None, needs_dual), fill)


def filled(array: N, value: object) -> N:
    """Return a new array, with all elements set to ``value`` unless that is None. Raises SpirogradUnsupportedError in a block of a
    batch."""
    context.refuse_batch("arrays have no environments", "`sg.field`")
    if value is not None:
        array.fill(value)
    return array


def ndarray(dtype: object, shape: object, needs_grad: bool = False, needs_dual: bool = False, *, fill: object = None) -> Ndarray:
    """Make an array of ``dtype``: a scalar, vector or matrix type. Its elements are zero at first, or ``fill``.

    ``shape``: an int or a sequence of extents, which may be 0. ``needs_grad``, ``needs_dual``: have arrays of gradients, of tangents.
    Raises SpirogradTypeError for types of other kinds, SpirogradRuntimeError for wrong shapes and without a session.
    """
    if hasattr(dtype, "leaf_dtypes"):
        if not hasattr(dtype, "ndarray"):
            raise SpirogradTypeError(f"an ndarray holds scalars, vectors or matrices, not {dtype!r}", None, "fields hold structs")
        out: Ndarray = dtype.ndarray(shape, needs_grad, needs_dual, fill=fill)
        return out
    return filled(ScalarNdarray(dtype, shape, (), needs_grad, None, None, needs_dual), fill)

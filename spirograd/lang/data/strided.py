"""Fills, copies and sums of memory with strides, by kernels: on GPUs, where the host would have to wait and to transfer all of it twice,
and in graphs, which repeat no work of the host.

A launch takes allocations as one-dimensional arrays, and processes elements ``k`` in the order of NumPy. Their positions follow from
`Axes`, whose numbers are arguments of the kernel. So one kernel serves all memory of a type with the same number of axes; contiguous memory
has none. Values that are not converted move as unsigned integers of at most 32 bits, where the device has memory of these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from spirograd.base.dtypes import DType, f32, i32, promote, u8, u16, u32
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayArg, ArrayRef, Kernel, LoopAttr, Op, ScalarArg
from spirograd.lang import context
from spirograd.lang.data.views import Block, HostView, same_bytes

if TYPE_CHECKING:
    from spirograd.base.arrays import Array
    from spirograd.base.protocols import Allocation

_UNITS = {1: u8, 2: u16, 4: u32, 8: u32}  # By bytes of an element.


@dataclass(frozen=True, slots=True)
class Axes:
    """The positions of elements in memory.

    Element ``k`` of ``count`` is at ``offset``, plus ``k // div % extent * stride`` for each (div, extent, stride) of ``digits``, innermost
    first; plus ``k`` if there are none. Offsets and strides are numbers of elements.
    """

    count: int
    offset: int
    digits: tuple[tuple[int, int, int], ...] = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the numbers that a kernel takes for it."""
        return (self.offset, *(number for digit in self.digits for number in digit))


def fill(allocation: Allocation, view: HostView, element: Array) -> bool:
    """Set every element to ``element``, an array of the element shape. Return False if the host has to do it."""
    if not _is_for_kernels(allocation):
        return False
    unit = _unit(view.dtype)
    if not _can(unit):
        return False
    data = np.ascontiguousarray(element).reshape(-1)
    words = (data if unit.is_float else data.view(unit.np)).tolist()
    if len(view.blocks) == 1 and len(set(words)) == 1:
        pieces = [_axes(view, unit.size)]
        words = words[:1]
    else:
        each = view.dtype.size // unit.size
        pieces = [_axes(view, unit.size, k // each, len(words) // each, k % each) for k in range(len(words))]
    for axes, word in zip(pieces, words):
        make = functools.partial(_fill, unit, len(axes.digits))
        _launch(("fill", unit, len(axes.digits)), make, [(allocation, unit)], view.part, (axes.count, word, *axes.numbers))
    return True


def copy(target: Allocation, target_view: HostView, source: Allocation, source_view: HostView) -> bool:
    """Copy the contents, converted as in kernels. Return False if the host has to do it."""
    return _combine("copy", target, target_view, source, source_view)


def add(target: Allocation, target_view: HostView, source: Allocation, source_view: HostView) -> bool:
    """Add the contents of one view to another. Return False if the host has to do it."""
    return _combine("add", target, target_view, source, source_view)


def _combine(kind: str, target: Allocation, target_view: HostView, source: Allocation, source_view: HostView) -> bool:
    if not _is_for_kernels(target) or source.freed:
        return False
    types = [target_view.dtype, source_view.dtype]
    if kind == "copy" and types[0] is types[1]:
        types = [_unit(types[0])] * 2
    if not _can(*types):
        return False
    for to, by in _pairs(target_view, source_view, types):
        make = functools.partial(_KERNELS[kind], types[0], types[1], len(to.digits), len(by.digits))
        arrays = list(zip((target, source), types))
        _launch((kind, *types, len(to.digits), len(by.digits)), make, arrays, target_view.part, (to.count, *to.numbers, *by.numbers))
    return True


def _unit(t: DType) -> DType:
    """Return the type as which values of type ``t`` move."""
    unit = _UNITS[t.size]
    return unit if context.session().device.caps.stores(unit) else t


def _is_for_kernels(allocation: Allocation) -> bool:
    return context.has_session() and bool(context.session().transfers_by_kernel(allocation))


def _can(*types: DType) -> bool:
    """Return whether the device has memory and arithmetic of these types."""
    caps = context.session().device.caps
    optional = {"f16": caps.float16, "f64": caps.float64, "i64": caps.int64, "u64": caps.int64}
    return all(caps.stores(t) and optional.get(str(t), True) for t in types)


def _launch(
    key: Hashable, make: Callable[[], Kernel], arrays: Sequence[tuple[Allocation, DType]], part: str, numbers: Sequence[int]
) -> None:
    context.session().launch_builtin(key, make, arrays, part, numbers)


# --- positions of elements ----------------------------------------------------------------------------------------------------


def _pairs(target: HostView, source: HostView, types: Sequence[DType]) -> list[tuple[Axes, Axes]]:
    """Return the positions of the elements on both sides: of all, or component by component if a side has no common stride."""
    if same_bytes(target, source):
        return [(_dense(a, types[0]), _dense(b, types[1])) for a, b in zip(target.blocks, source.blocks)]
    parts = max(len(target.blocks), len(source.blocks))
    return [(_axes(target, types[0].size, k, parts), _axes(source, types[1].size, k, parts)) for k in range(parts)]


def _dense(block: Block, t: DType) -> Axes:
    return Axes(block.span // t.size, block.offset // t.size)


def _axes(view: HostView, size: int, component: int = 0, components: int = 1, word: int | None = None) -> Axes:
    """Return the axes of one of ``components``, for one ``word`` of each element or for all, in units of ``size`` bytes.

    ``components``: 1, which stands for all elements of a view of one block, or the number of components of an element.
    """
    block = view.blocks[component % len(view.blocks)]
    dims, strides, offset = [*block.dims], [*block.strides], block.first
    if len(view.blocks) < components:  # The components are the innermost part of the last axis.
        offset += component * strides[-1]
        dims[-1] //= components
        strides[-1] *= components
    if word is None:
        dims.append(view.dtype.size // size)
        strides.append(size)
    else:
        offset += word * size
    return _merged(offset // size, dims, [stride // size for stride in strides])


def _merged(offset: int, dims: Sequence[int], strides: Sequence[int]) -> Axes:
    """Return axes in which neighbours with a common stride are merged."""
    axes: list[tuple[int, int]] = []  # (extent, stride), innermost first.
    for extent, stride in zip(reversed(dims), reversed(strides)):
        if axes and stride == axes[-1][0] * axes[-1][1]:
            axes[-1] = (axes[-1][0] * extent, axes[-1][1])
        elif extent > 1:
            axes.append((extent, stride))
    digits, count = [], 1
    for extent, stride in axes:
        digits.append((count, extent, stride))
        count *= extent
    contiguous = all(div == stride for div, _, stride in digits)
    return Axes(count, offset, () if contiguous else tuple(digits))


# --- kernels ------------------------------------------------------------------------------------------------------------------


class _Arguments:
    """The arguments of a kernel: arrays, then the number of elements, then other numbers in the order of their use."""

    def __init__(self, *arrays: DType) -> None:
        self.b = Builder()
        self.b.begin()
        self.arrays = [ArrayRef(f"array{k}", k, t, 1) for k, t in enumerate(arrays)]
        self._scalars: list[ScalarArg] = []
        self._begin, self._count = self.b.const(0), self.number()

    def number(self, t: DType = i32) -> Op:
        """Return the next number."""
        at = len(self.arrays) + len(self._scalars)
        self._scalars.append(ScalarArg(f"n{at}", t))
        return self.b.emit(ops.arg, attr=at, type=t)

    def index(self, k: Op, axes: int) -> Op:
        """Return the position of element ``k``: see `Axes`."""
        b, place = self.b, self.number()
        if not axes:
            return b.emit(ops.add, place, k)
        for axis in range(axes):
            div, extent, stride = self.number(), self.number(), self.number()
            digit = k if axis == 0 else b.emit(ops.idiv, k, div)  # The innermost axis divides by 1.
            if axis < axes - 1:  # The outermost axis has no multiples of its extent.
                digit = b.emit(ops.irem, digit, extent)
            place = b.emit(ops.add, place, b.emit(ops.mul, digit, stride))
        return place

    def loop(self, name: str, body: Callable[[Op], None]) -> Kernel:
        """Return the kernel that runs ``body`` for each element in parallel."""
        (k,) = self.b.begin(i32)
        body(k)
        self.b.for_(self._begin, self._count, (), self.b.end(), LoopAttr(parallel=True))
        arrays = [ArrayArg(ref.name, ref.dtype, 1) for ref in self.arrays]
        return Kernel(name, (*arrays, *self._scalars), self.b.end())


def _fill(t: DType, axes: int) -> Kernel:
    args = _Arguments(t)

    def body(k: Op) -> None:
        value = args.b.cast(args.number(f32 if t.is_float else u32), t)
        args.b.store(args.arrays[0], args.index(k, axes), value)

    return args.loop("fill", body)


def _copy(target: DType, source: DType, target_axes: int, source_axes: int) -> Kernel:
    args = _Arguments(target, source)

    def body(k: Op) -> None:
        there, here = args.index(k, target_axes), args.index(k, source_axes)
        args.b.store(args.arrays[0], there, args.b.cast(args.b.load(args.arrays[1], here), target))

    return args.loop("copy", body)


def _add(target: DType, source: DType, target_axes: int, source_axes: int) -> Kernel:
    args = _Arguments(target, source)
    wide = promote(target, source)

    def body(k: Op) -> None:
        b, there, here = args.b, args.index(k, target_axes), args.index(k, source_axes)
        total = b.emit(ops.add, b.cast(b.load(args.arrays[0], there), wide), b.cast(b.load(args.arrays[1], here), wide))
        b.store(args.arrays[0], there, b.cast(total, target))

    return args.loop("add", body)


_KERNELS: dict[str, Callable[[DType, DType, int, int], Kernel]] = {"copy": _copy, "add": _add}

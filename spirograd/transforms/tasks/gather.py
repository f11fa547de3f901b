"""Scatters become gathers: a loop that adds to elements around each iteration, by atomics, becomes two loops. The first runs over the
elements, and sums for each of them what the iterations around it would add; the second does everything else.

`analysis.scatters` decides where that is possible. Summands are computed once for each pair of an element and an iteration that adds to it,
instead of once for each iteration. This pays because atomics are slow: the derivative of a 5-point stencil in f32, 2048 x 2048, takes 1.5
ms instead of 8.4 on 2 CPU cores, and 34 us instead of 55 on an H200.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence

from spirograd.analysis.axes import Bound
from spirograd.analysis.compared_arrays import Array, array_of
from spirograd.analysis.loop_invariants import contents
from spirograd.analysis.scatters import Preimage, Preimages, Scatter, scatters
from spirograd.base.dtypes import i32, u1
from spirograd.base.targets import Target
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, LoopAttr, Op
from spirograd.ir.rewrite import Rewriter
from spirograd.ir.threaded import Cell, Threaded, restore
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.simplify import simplify
from spirograd.transforms.tasks.disjoint_arrays import fits, mark_disjoint

# The number of operations that may be recomputed for each atomic that is saved, by whether tasks run as invocations.
_WORTH = {False: 40, True: 128}
# The cost of some operations.
_HEAVY = dict.fromkeys((ops.div, ops.idiv, ops.irem, ops.floordiv, ops.floormod, ops.sqrt, ops.rsqrt), 6)
_HEAVY |= dict.fromkeys(ops.ELEMENTARY, 25)
# The number of iterations below which atomics cost less than another task (on an H200, with 5 to 10 atomics an iteration).
_FEWEST = {False: 1 << 12, True: 1 << 19}


def gather(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Turn scatters into gathers where that pays. The order of their sums then does not depend on threads."""
    if not ctx.options.optimize or ops.atomic not in kernel.codes:
        return kernel
    chosen: dict[Op, list[Scatter]] = {}
    disjoint: set[Array] = set()
    for loop in kernel.body.ops:
        for scatter in scatters(loop) if loop.code is ops.for_ and loop.attr.parallel else ():
            assumed = _assumed(scatter)
            if _pays(scatter, ctx) and not (assumed and ctx.options.overlapping) and fits(kernel, disjoint | assumed):
                chosen.setdefault(loop, []).append(scatter)
                disjoint |= assumed
    if not chosen:
        return kernel
    return simplify(mark_disjoint(_Gather(kernel, chosen).kernel(kernel), disjoint), ctx)


def _assumed(scatter: Scatter) -> set[Array]:
    """Return the arrays that must be disjoint for the gather: the array to which the loop adds, and those that may overlap it."""
    if not isinstance(scatter.ref, ArrayRef) or not scatter.overlaps:
        return set()
    return {array_of(ref) for ref in (scatter.ref, *scatter.overlaps)}


def _pays(scatter: Scatter, ctx: PassContext) -> bool:
    target = ctx.caps.target
    if _most_iterations(scatter, target) < _FEWEST[target.invocations]:
        return False
    conditions = len(scatter.axes) + 1
    work = conditions + sum(_HEAVY.get(op.code, op.code is not ops.const) for op in scatter.needed)
    return work * len(scatter.terms) <= _WORTH[target.invocations] * len(scatter.atomics)


def _most_iterations(scatter: Scatter, target: Target) -> int:
    """Return an upper bound of the number of iterations, from the bounds of the loop or from the field to which it adds. The length of an
    array is unknown: it counts as long, or as short where another task would cost more than the atomics of a short loop."""
    most = 1
    for axis, dim in zip(scatter.axes, scatter.dims):
        extent = axis.end.minus(axis.begin)
        if extent is None:
            extent = scatter.ref.shape[dim] if isinstance(scatter.ref, FieldRef) else 0 if target.invocations else 1 << 31
        most *= extent
    return most


class _Gather(Rewriter):
    def __init__(self, kernel: Kernel, chosen: Mapping[Op, Sequence[Scatter]]) -> None:
        super().__init__()
        self.name = kernel.name
        self.chosen = chosen
        self.dropped: set[Op] = set()  # atomics of the current loop that became gathers
        self.handlers = {ops.atomic: self._atomic}

    def _rewritten(self, kernel: Kernel) -> Kernel:
        self.b.begin()
        for op in kernel.body.ops[:-1]:
            gathered = self.chosen.get(op)
            if gathered:
                self._split(op, gathered)
            else:
                self.visit(op)
        self.b.loc = kernel.body.ops[-1].loc
        return kernel.with_body(self.b.end(self.args(kernel.body.ops[-1])))

    def _split(self, loop: Op, gathered: Sequence[Scatter]) -> None:
        """Emit the gathers, then the rest of the loop."""
        for scatter in gathered:
            self._gathered(loop, scatter)
        self.dropped = {op for scatter in gathered for op in scatter.atomics}
        self.b.at(loop)
        (index,) = self.b.begin(loop.regions[0].params[0].type)
        self.inline(loop.regions[0], (index,), clone=True)
        self.b.loc = loop.loc
        begin, end = self.args(loop)
        self.b.for_(begin, end, (), self.b.end(), loop.attr)
        self.dropped = set()

    def _atomic(self, op: Op) -> Op | None:
        return None if op in self.dropped else self.copy(op)

    # --- the loop over elements ------------------------------------------------------------------------------------------

    def _gathered(self, loop: Op, scatter: Scatter) -> None:
        b = self.b
        b.at(loop)
        firsts, lasts = zip(*[self._ends(scatter, axis) for axis in range(len(scatter.axes))])
        extents = [b.emit(ops.sub, last, first, attr="wrap") for first, last in zip(firsts, lasts)]
        begin, end = firsts[0], lasts[0]
        if len(extents) > 1:
            begin, end = b.const(0), functools.reduce(lambda x, y: b.emit(ops.mul, x, y, attr="wrap"), extents)
        (index,) = b.begin(i32)
        element = [index]
        if len(extents) > 1:
            left, element = index, []
            for extent in reversed(extents[1:]):
                element.insert(0, b.emit(ops.irem, left, extent))
                left = b.emit(ops.idiv, left, extent)
            element = [b.emit(ops.add, place, first, attr="nsw") for place, first in zip((left, *element), firsts)]
        _Element(self, loop, scatter, element).update()
        attr = LoopAttr(True, f"{loop.attr.name or self.name}_gather", loop.attr.group_size, loop.attr.apart)
        b.loc = loop.loc
        b.for_(begin, end, (), b.end(), attr)

    def _ends(self, scatter: Scatter, axis: int) -> tuple[Op, Op]:
        """Return the first element along an axis, and the end, within the bounds of the memory."""
        b, dim = self.b, scatter.dims[axis]
        (before, after), along = scatter.hull[axis], scatter.axes[axis]
        first, last = self._moved(along.begin, before, scatter.ref, dim), self._moved(along.end, after, scatter.ref, dim)
        _, end = self.extent(scatter.ref, dim)
        last = last if isinstance(end, int) else b.emit(ops.min_, last, end)
        return first, b.emit(ops.max_, last, first)

    def _moved(self, bound: Bound, by: int, ref: FieldRef | ArrayRef, dim: int) -> Op:
        """Return ``bound`` + ``by``, limited to the range of indices along ``dim`` (a constant may exceed the end of an array). No sum
        wraps around, for any ``bound``."""
        b, (origin, end) = self.b, self.extent(ref, dim)
        if bound.base is None:
            return b.const(min(max(bound.offset + by, origin), end if isinstance(end, int) else int(i32.max)))
        if isinstance(end, Op) and (bound.base.code, bound.base.attr) == (end.code, end.attr):
            distance = bound.offset + by
            return end if distance >= 0 else b.emit(ops.max_, b.emit(ops.add, end, b.const(distance)), b.const(origin))
        least, most = b.const(origin - by), b.const(end - by) if isinstance(end, int) else b.emit(ops.sub, end, b.const(by))
        return b.emit(ops.add, b.emit(ops.max_, b.emit(ops.min_, self.number(bound), most), least), b.const(by))

    def extent(self, ref: FieldRef | ArrayRef, dim: int) -> tuple[int, int | Op]:
        """Return the first index along an axis, and the end. The axes of entries follow those of elements."""
        axes = len(ref.shape) if isinstance(ref, FieldRef) else ref.ndim
        if dim >= axes:
            return 0, ref.element_shape[dim - axes]
        if isinstance(ref, FieldRef):
            origin = ref.layout.origin[dim] if ref.layout.origin else 0
            return origin, origin + ref.shape[dim]
        return 0, self.b.emit(ops.shape, attr=(ref.arg, dim), type=i32)

    def number(self, bound: Bound) -> Op:
        if bound.base is None:
            return self.b.const(bound.offset)
        base = self.value(bound.base)
        return self.b.emit(ops.add, base, self.b.const(bound.offset)) if bound.offset else base


class _Element(Threaded):
    """The code for one element, which adds its terms to it, if there are any. There is a cell for each element of the memory that has the
    same indices along the axes of the loop, such as the components of a vector. It holds the element, and whether the element has a
    term."""

    def __init__(self, around: _Gather, loop: Op, scatter: Scatter, element: Sequence[Op]) -> None:
        super().__init__()
        self.scatter = scatter
        self.loop = loop
        self.element = element
        self.around = around
        self.inside_loop = contents(*loop.regions)
        cells: dict[tuple[object, ...], Cell] = {}
        self.cell_of = {op: cells.setdefault(_others(op, scatter.dims), Cell()) for op in scatter.atomics}
        self.cells = [*cells.values()]
        self.b = around.b
        self.env = dict(around.env)
        self.known = {value for axis in scatter.axes for value in (axis.place, axis.digit)}
        self.handlers |= {ops.atomic: self._atomic, ops.store: lambda op: None}
        self.handlers |= dict.fromkeys((ops.add, ops.idiv, ops.irem), self._place_or_copy)

    def update(self) -> None:
        b, ref, place = self.b, self.scatter.ref, dict(zip(self.scatter.dims, self.element))
        elements = []
        for cell, atomic in {cell: op for op, cell in self.cell_of.items()}.items():
            indices = [place.get(dim) or self._invariant(value) for dim, value in enumerate(atomic.args[:-1])]
            elements.append((cell, indices))
            cell.values = [self._old(indices), b.const(False, u1)]
        for iteration, atomics in self.scatter.terms.items():
            self._add(iteration, atomics)
        for cell, indices in elements:
            total, some = cell.values
            b.begin()
            b.store(ref, *indices, total)
            then = b.end()
            b.begin()
            b.if_(some, then, b.end())

    def _old(self, indices: Sequence[Op]) -> Op:
        """Return the old element. If the loop does not access it, the indices that follow no axis may be out of range."""
        b, ref = self.b, self.scatter.ref
        inside = []
        for dim, index in enumerate(indices):
            first, end = self.around.extent(ref, dim)
            known = index.code is ops.const and isinstance(end, int) and first <= index.attr < end
            if dim not in self.scatter.dims and not known:
                inside.append(b.emit(ops.ge, index, b.const(first)))
                inside.append(b.emit(ops.lt, index, b.const(end) if isinstance(end, int) else end))
        if not inside:
            return b.load(ref, *indices)
        condition = functools.reduce(functools.partial(b.emit, ops.and_), inside)
        b.begin()
        then = b.end([b.load(ref, *indices)])
        b.begin()
        return b.if_(condition, then, b.end([b.const(0, ref.dtype)]))[0]

    def _add(self, iteration: Preimages, atomics: Collection[Op]) -> None:
        """Add the contributions of an iteration, if the loop has this iteration."""
        b = self.b
        located = [self._place(axis, preimage) for axis, preimage in enumerate(iteration)]
        conditions = [condition for _, some in located for condition in some]
        for cell in self.cells:
            cell.sites = {op for op in atomics if self.cell_of[op] is cell}
        changed = [cell for cell in self.cells if cell.sites]
        before = [value for cell in changed for value in cell.values]
        b.begin()
        flat = self._bind([place for place, _ in located])
        self.inline(self.loop.regions[0], (flat,), clone=True)
        then = b.end([value for cell in changed for value in cell.values])
        b.begin()
        orelse = b.end(before)
        holds = functools.reduce(functools.partial(b.emit, ops.and_), conditions) if conditions else b.const(True, u1)
        restore(changed, b.if_(holds, then, orelse))

    def _bind(self, places: Sequence[Op]) -> Op:
        """Map the coordinates in the body to those of the iteration at ``places``. Return the index of this iteration."""
        b, number, flat = self.b, self.around.number, places[0]
        for axis, place in zip(self.scatter.axes, places):
            self.env[axis.place] = place
            if axis.digit is None:
                continue
            digit = self.env[axis.digit] = place if axis.begin == (None, 0) else b.emit(ops.sub, place, number(axis.begin))
            first = axis is self.scatter.axes[0]
            flat = digit if first else b.emit(ops.add, b.emit(ops.mul, flat, number(axis.extent), attr="wrap"), digit, attr="wrap")
        return flat

    def _place(self, axis: int, preimage: Preimage) -> tuple[Op, list[Op]]:
        """Return the coordinate of an iteration along an axis, and the conditions under which the iteration exists. Conditions that always
        hold are omitted."""
        b, q, along, (before, after) = self.b, self.element[axis], self.scatter.axes[axis], self.scatter.hull[axis]
        begin, end = self.around.number(along.begin), self.around.number(along.end)
        if preimage.kind == "wrap":
            conditions = [b.emit(ops.ge, q, begin)] if before < 0 else []
            conditions += [b.emit(ops.lt, q, end)] if after > 0 else []
            place = self._shifted(q, preimage.number)
            beyond = b.emit(ops.lt, place, begin) if preimage.number > 0 else b.emit(ops.ge, place, end)
            back = b.emit(ops.add if preimage.number > 0 else ops.sub, place, end)
            return b.emit(ops.select, beyond, back, place, type=i32), conditions
        if preimage.kind == "first":
            assert preimage.low is not None
            place = b.emit(ops.add, begin, b.const(preimage.number))
            return place, [b.emit(ops.eq, q, b.emit(ops.add, begin, b.const(preimage.low))), b.emit(ops.lt, place, end)]
        if preimage.kind == "last":
            assert preimage.high is not None
            place = b.emit(ops.sub, end, b.const(1 + preimage.number))
            return place, [b.emit(ops.eq, q, b.emit(ops.add, end, b.const(preimage.high))), b.emit(ops.ge, place, begin)]
        place = self._shifted(q, preimage.number)
        conditions = [b.emit(ops.ge, place, begin)] if before < preimage.number else []
        conditions += [b.emit(ops.lt, place, end)] if after > preimage.number else []
        if preimage.low is not None and before < preimage.low:
            conditions.append(b.emit(ops.ge, q, b.emit(ops.add, begin, b.const(preimage.low))))
        if preimage.high is not None and after > preimage.high + 1:
            conditions.append(b.emit(ops.le, q, b.emit(ops.add, end, b.const(preimage.high))))
        return place, conditions

    def _shifted(self, element: Op, by: int) -> Op:
        return self.b.emit(ops.sub if by > 0 else ops.add, element, self.b.const(abs(by)), attr="nsw") if by else element

    def _atomic(self, op: Op) -> Op:
        cell = self.cell_of.get(op)
        if cell is not None and op in cell.sites:
            cell.values = [self.b.emit(ops.add, cell.values[0], self.args(op)[-1]), self.b.const(True, u1)]
        return self.b.const(0, op.attr[1].dtype)  # for uses of the old element whose value is not needed

    def _place_or_copy(self, op: Op) -> Op:
        return self.env[op] if op in self.known else self.copy(op)

    def _invariant(self, value: Op) -> Op:
        return self.around.rematerialised(value, self.inside_loop)


def _others(atomic: Op, dims: Collection[int]) -> tuple[object, ...]:
    """Return the indices that follow no axis. Atomics with equal ones update the same element."""
    values = [value for dim, value in enumerate(atomic.args[:-1]) if dim not in dims]
    return tuple([value.attr if value.code is ops.const else value for value in values])

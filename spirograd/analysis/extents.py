"""Upper bounds of values computed inside loops, as sizes that are known before the loops run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spirograd.analysis.sizes import size_of
from spirograd.base.dtypes import storage
from spirograd.base.sizes.simplify_sizes import simplify
from spirograd.base.sizes.size_nodes import (
    Add,
    Element,
    Extent,
    IfLess,
    Max,
    MaxOver,
    Mul,
    Size,
    Sub,
    Variable,
    needs_memory,
    variables,
)
from spirograd.ir import ops
from spirograd.ir.addresses import SIZES, cell_offset, component_number
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, Region, TempRef, ref_of
from spirograd.ir.temp_kinds import TempKind


def extent_of(update: Op, around: Sequence[Op]) -> Size | None:
    """Return an upper bound of 0 and all values of the last operand of ``update`` in one run of the loops and branches ``around`` it (outer
    before inner). The bound is exact if all of them are reached. None if only a run can tell.

    The kernel must not write the primal memory that it reads.

    The bound omits a loop or branch around ``update`` that does not change the operand, unless it distinguishes iterations of an outer
    loop, or guards a read at a computed index: memory that is not read could hold any number. It also keeps a branch that all iterations
    take or none, because the operand may be any number if none does.
    """
    return _Extent(around).of(update)


def extents(kernel: Kernel, kind: TempKind) -> tuple[Size | None, ...]:
    """Return `extent_of` all atomic maxima of ``kernel`` on temporaries of a kind, by number."""
    sizes: dict[int, Size | None] = {}
    for op, around in nested(kernel.body):
        ref = ref_of(op)
        if op.code is ops.atomic and isinstance(ref, TempRef) and ref.kind is kind:
            number, size = ref.number, extent_of(op, around)
            before = sizes.get(number, 0)
            sizes[number] = None if size is None or before is None else simplify(Max(before, size))
    return tuple([sizes.get(k) for k in range(max(sizes, default=-1) + 1)])


def nested(region: Region, around: tuple[Op, ...] = ()) -> Iterator[tuple[Op, tuple[Op, ...]]]:
    """Yield every operation, outer before inner, with the control operations around it."""
    for op in region.ops[:-1]:
        yield op, around
        for inner in op.regions:
            yield from nested(inner, (*around, op))


class _Extent:
    """The computation of one extent. Variable k of the size is the index of ``around[k]``."""

    def __init__(self, around: Sequence[Op]) -> None:
        self.around = around
        self.indices = {op.regions[0].params[0]: Variable(k) for k, op in enumerate(around) if op.code is ops.for_}
        self.computed: list[Op] = []  # loads whose element depends on loops or on memory

    def of(self, update: Op) -> Size | None:
        size = self.size(update.args[-1])
        inner = update
        for k in reversed(range(len(self.around))):
            if size is None:
                return None
            op = self.around[k]
            if k in variables(size):
                begin, end = self.size(op.args[0]), self.size(op.args[1])
                size = None if begin is None or end is None else MaxOver(k, begin, end, size)
            elif variables(size) or any(_holds(op, load) for load in self.computed):
                size = self.if_reached(op, inner, size)
            elif op.code is ops.if_:
                reached = self.if_reached(op, inner, size)
                size = size if reached is None or variables(reached) else reached
            inner = op
        return None if size is None else simplify(Max(size, 0))

    def size(self, value: Op) -> Size | None:
        return size_of(value, self.leaf)

    def leaf(self, op: Op) -> Size | None:
        if op.code is not ops.load:
            return self.indices.get(op)
        indices = [self.size(a) for a in op.args]
        element = None if None in indices else element_of(op, [i for i in indices if i is not None])
        if element is not None and (variables(element) or needs_memory(element.offset)):
            self.computed.append(op)
        return element

    def if_reached(self, op: Op, inner: Op, size: Size) -> Size | None:
        """Return ``size`` if ``op``, which is around ``inner``, reaches it, else 0."""
        if op.code is ops.for_:
            begin, end = self.size(op.args[0]), self.size(op.args[1])
            return None if begin is None or end is None else IfLess(begin, end, size)
        if op.code is ops.if_:
            return self.if_true(op.args[0], inner in op.regions[0].ops, size)
        return None

    def if_true(self, condition: Op, wanted: bool, size: Size) -> Size | None:
        """Return ``size`` if ``condition`` is ``wanted``, else 0."""
        code, args = condition.code, condition.args
        if code is ops.const:
            return size if bool(condition.attr) is wanted else 0
        if code is ops.not_:
            return self.if_true(args[0], not wanted, size)
        if code in (ops.and_, ops.or_):
            if (code is ops.and_) is wanted:
                first = self.if_true(args[0], wanted, size)
                return None if first is None else self.if_true(args[1], wanted, first)
            first, second = (self.if_true(a, wanted, size) for a in args)
            return None if first is None or second is None else Max(first, second)
        kind = _COMPARISONS.get((code, wanted))
        a, b = (self.size(x) for x in args) if kind is not None else (None, None)
        if a is None or b is None:
            return None
        below, above = IfLess(a, b, size), IfLess(b, a, size)
        up_to = IfLess(a, Add(b, 1), size)
        forms: dict[str | None, Size] = {
            "<": below,
            ">": above,
            "<=": up_to,
            ">=": IfLess(b, Add(a, 1), size),
            "==": IfLess(b, Add(a, 1), up_to),
            "!=": Max(below, above),
        }
        return forms[kind]


_COMPARISONS = {
    (ops.lt, True): "<",
    (ops.lt, False): ">=",
    (ops.le, True): "<=",
    (ops.le, False): ">",
    (ops.gt, True): ">",
    (ops.gt, False): "<=",
    (ops.ge, True): ">=",
    (ops.ge, False): "<",
    (ops.eq, True): "==",
    (ops.eq, False): "!=",
    (ops.ne, True): "!=",
    (ops.ne, False): "==",
}


def _holds(outer: Op, op: Op) -> bool:
    return any(inner is op for region in outer.regions for inner in region.walk())


# --- memory --------------------------------------------------------------------------------------------------------------


def element_of(load: Op, indices: Sequence[Size]) -> Element | None:
    """Return the element that ``load`` reads at ``indices``, or None unless it is an integer of primal memory that exists."""
    ref = ref_of(load)
    if not isinstance(ref, (FieldRef, ArrayRef)) or ref.role != "primal" or not ref.dtype.is_int:
        return None
    offset = _array_offset(ref, indices) if isinstance(ref, ArrayRef) else _field_offset(ref, indices)
    if offset is None:
        return None
    kind, number, key = ("array", ref.arg, 0) if isinstance(ref, ArrayRef) else ("tree", ref.tree, ref.key)
    return Element(kind, number, simplify(offset), ref.dtype, key, tuple([simplify(i) for i in indices]))


def _array_offset(ref: ArrayRef, indices: Sequence[Size]) -> Size | None:
    """Return the offset of an element in row-major order, with the extents of elements innermost."""
    if any(isinstance(i, int) and i < 0 for i in indices):
        return None
    extents: list[Size] = [Extent(ref.arg, axis) for axis in range(ref.ndim)]
    element: Size = 0
    for index, extent in zip(indices, (*extents, *ref.element_shape)):
        element = Add(Mul(element, extent), index)
    return Mul(element, storage(ref.dtype).size)


def _field_offset(ref: FieldRef, indices: Sequence[Size]) -> Size | None:
    axes, layout = len(ref.shape), ref.layout
    index: list[Size] = [simplify(Sub(i, o)) for i, o in zip(indices, layout.origin or (0,) * axes)]
    inner = [i for i, n in zip(indices[axes:], ref.element_shape) if isinstance(i, int) and 0 <= i < n]
    if len(inner) < len(ref.element_shape):
        return None
    if any(isinstance(i, int) and not 0 <= i < n for i, n in zip(index, ref.shape)):
        return None
    return Add(layout.components[component_number(inner, ref.element_shape)], cell_offset(layout, index, SIZES) or 0)

"""Exact sums: under `CompileOptions.deterministic`, atomic additions of floats become additions of integers to superaccumulators, whose
results do not depend on the order of the iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from functools import partial
from typing import Union

from spirograd.analysis.order import limbs_name
from spirograd.base.dtypes import VOID, DType, i64, u32
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, TaskAttr, TempRef
from spirograd.ir.rewrite import Rewriter
from spirograd.ir.temp_kinds import TempKind
from spirograd.transforms.checks.check_order import is_sum
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.tasks.superaccumulators import Format, Limbs, Range, format_of, new_range
from spirograd.transforms.tasks.updated_memory import Extents, length_of

_Summed = Union[FieldRef, ArrayRef, TempRef]
# The largest number of limbs of a field: their indices have 31 bits.
_MOST_LIMBS = 1 << 30


def exact_sums(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Replace the atomic additions of floats in parallel tasks, and add tasks that convert the sums, and add them to memory.

    Accumulators of `reductions` stay: their sums are exact from chunk to chunk, or workgroup to workgroup, whose division of the range does
    not depend on the launch. Elements to which nothing but zeros was added are not accessed.
    """
    return _ExactSums(ctx).kernel(kernel)


@dataclass(slots=True, eq=False)
class _Sum:
    """A superaccumulator for each element of ``ref``, or one for the element at ``indices``, which are values of the region after a
    reduction. ``memory``: its limbs; ``loc``: the first addition."""

    ref: _Summed
    form: Format
    memory: TempRef
    limits: Range
    loc: Loc | None
    indices: tuple[Op, ...] | None = None


@dataclass(slots=True)
class _Task:
    """The sums of a task, by memory, or by memory and indices; and a range for each format."""

    sums: dict[object, _Sum] = field(default_factory=dict)
    ranges: dict[Format, Range] = field(default_factory=dict)
    finishing: bool = False  # whether the region after a reduction is rewritten


class _ExactSums(Rewriter):
    def __init__(self, ctx: PassContext) -> None:
        super().__init__()
        self.caps = ctx.caps
        self.count = 0  # of memory for limbs
        self.ranges = 0
        self.task = _Task()
        self.handlers = {ops.task: self._task, ops.atomic: self._atomic}

    def _task(self, op: Op) -> Op | None:
        if op.attr.kind != "range_for" or not any(map(is_sum, _atomics(op))):
            return self.b.append(op)
        self.task = _Task()
        bounds, body, finish = op.regions
        body = self.region(body)
        self.task.finishing = True
        finish = self.region(finish)
        self.b.append(Op(ops.task, VOID, (), op.attr, (bounds, body, finish), op.loc))
        of_elements = [s for s in self.task.sums.values() if s.indices is None and _elements(s.ref) != 1]
        for number, target in enumerate(of_elements):
            self._add_all(target, f"{op.attr.name}_sums_{number}")
        self._add_single(op, [s for s in self.task.sums.values() if s not in of_elements])
        return None

    def _atomic(self, op: Op) -> Op | None:
        if not is_sum(op):
            return self.copy(op)
        b, ref = self.b, op.attr[1]
        *indices, value = self.args(op)
        target = self._target(ref, op)
        limbs, end = self._limbs(target)
        if target.indices is not None or isinstance(ref, TempRef):
            element = b.const(0)
        else:
            element = Extents(b, ref).number(tuple(indices), end)
        limbs.add(element, b.cast(value, target.form.dtype))
        return None

    def _target(self, ref: _Summed, op: Op) -> _Sum:
        """Return the sum for an addition, which is made for the first one."""
        if isinstance(ref, TempRef) and ref.shape:
            raise SpirogradUnsupportedError(
                f"`deterministic=True` has no ordered sums of vectors that parallel loops update, such as `{ref.name}`",
                op.loc,
                "use a field, or a variable for each component",
            )
        if isinstance(ref, ArrayRef) and ref.wide:
            message = f"`deterministic=True` has no ordered sums of arrays with more than 2^31 elements, such as `{ref.name}`"
            raise SpirogradUnsupportedError(message, op.loc, "divide the array")
        task, form = self.task, format_of(ref.dtype)
        single = task.finishing and not isinstance(ref, TempRef)
        key = (ref, op.args[:-1]) if single else ref
        if key not in task.sums:
            if form not in task.ranges:
                task.ranges[form] = new_range(self.ranges)
                self.ranges += 1
            indices = op.args[:-1] if single else None
            memory = self._memory(ref, form, single, op)
            task.sums[key] = _Sum(ref, form, memory, task.ranges[form], op.loc, indices)
        return task.sums[key]

    def _memory(self, ref: _Summed, form: Format, single: bool, op: Op) -> TempRef:
        """Return new memory for limbs."""
        number, self.count = self.count, self.count + 1
        words = form.all_limbs if self.caps.atomic_int64 else 2 * form.all_limbs
        t, array = i64 if self.caps.atomic_int64 else u32, -1
        if isinstance(ref, ArrayRef) and not single:
            array = ref.arg
            for extent in ref.element_shape:
                words *= extent
        elif not single and _elements(ref) != 1:
            words *= (_elements(ref) or 0) + 1
        if words > _MOST_LIMBS:
            message = f"`deterministic=True` needs {form.all_limbs} limbs for each element of `{ref.name}`, which has too many elements"
            raise SpirogradUnsupportedError(message, op.loc, "divide the field")
        return TempRef(limbs_name(ref.name), t, (words,), TempKind.LIMBS, number, array=array)

    def _limbs(self, target: _Sum) -> tuple[Limbs, int | Op]:
        """Return a builder for a sum here, and the number of elements."""
        b, ref = self.b, target.ref
        if target.indices is not None or isinstance(ref, TempRef) or _elements(ref) == 1:
            return Limbs(b, self.caps, target.form, target.memory, b.const(1), target.limits), 0
        count = length_of(ref) if isinstance(ref, FieldRef) else Extents(b, ref).total()
        pitch = b.const(count + 1) if isinstance(count, int) else b.emit(ops.add, count, b.const(_inner(ref)))
        return Limbs(b, self.caps, target.form, target.memory, pitch, target.limits), count

    # --- adding the sums to memory -------------------------------------------------------------------------------------------

    def _add_all(self, target: _Sum, name: str) -> None:
        """Append a task over the elements of ``target``."""
        b, ref = self.b, target.ref
        assert not isinstance(ref, TempRef)
        b.loc = target.loc
        b.begin()
        zero = b.const(0)
        bounds = b.end([zero, Extents(b, ref).total()])
        (element,) = b.begin(zero.type)
        limbs, _ = self._limbs(target)
        self._add_to(limbs, target, element, lambda: Extents(b, ref).indices(element))
        body = b.end()
        b.begin()
        b.append(Op(ops.task, VOID, (), TaskAttr("range_for", name), (bounds, body, b.end()), target.loc))

    def _add_single(self, op: Op, targets: list[_Sum]) -> None:
        """Append a serial task that adds sums of single elements, and empties the ranges of limbs of the task ``op``."""
        b = self.b
        b.loc = op.loc
        b.begin()
        for target in targets:
            b.loc = target.loc
            limbs, _ = self._limbs(target)
            self._add_to(limbs, target, b.const(0), partial(self._place, target))
        for limits in self.task.ranges.values():
            for ref in (limits.first, limits.last):
                b.store(ref, b.const(0))
        b.append(Op(ops.task, VOID, (), TaskAttr("serial", f"{op.attr.name}_sum"), (b.end(),), op.loc))

    def _place(self, target: _Sum) -> tuple[Op, ...]:
        """Return the indices of the only element of ``target``, computed here."""
        if target.indices is not None:
            return tuple([self._cloned(index) for index in target.indices])
        if isinstance(target.ref, TempRef):
            return ()
        return Extents(self.b, target.ref).indices(self.b.const(0))

    def _cloned(self, value: Op) -> Op:
        """Compute a value of another region here."""
        args = tuple([self._cloned(a) for a in value.args])
        return self.b.append(Op(value.code, value.type, args, value.attr, (), value.loc, value.primal))

    def _add_to(self, limbs: Limbs, target: _Sum, element: Op, place: Callable[[], tuple[Op, ...]]) -> None:
        """Emit the addition of a sum to its element of memory, if there were terms."""
        b, ref = self.b, target.ref
        total, there = limbs.take(element)
        b.begin()
        indices = place()
        assert isinstance(total.type, DType)
        value = b.emit(ops.add, b.cast(b.load(ref, *indices), total.type), total, attr="exact")
        b.store(ref, *indices, b.cast(value, ref.dtype))
        then = b.end()
        b.begin()
        b.if_(there, then, b.end())


def _atomics(task: Op) -> Iterator[Op]:
    for region in task.regions[1:]:
        yield from region.having((ops.atomic,))


def _elements(ref: _Summed) -> int | None:
    """Return the number of elements, or None if launches decide it."""
    if isinstance(ref, FieldRef):
        return length_of(ref)
    return None if isinstance(ref, ArrayRef) else 1


def _inner(ref: _Summed) -> int:
    """Return the number of scalars of an element of an array."""
    count = 1
    for extent in ref.element_shape if isinstance(ref, ArrayRef) else ():
        count *= extent
    return count

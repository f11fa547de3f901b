"""Atomics of a parallel loop at an address that does not change in it: accumulate first, then do one atomic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any

from spirograd.analysis.effects import place
from spirograd.base.dtypes import VOID, DType, f32, f64
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import FieldRef, Kernel, Op, Reduction, Ref, Region, TaskAttr, TempRef, accesses_of, rank
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.tasks.accumulating import Accumulating

_KINDS = ("add", "min", "max", "and", "or", "xor")
# Each accumulator takes a register, and shared memory on GPUs.
_MAX_REDUCTIONS = 8
_LEAVES = frozenset((ops.const, ops.arg, ops.shape, ops.seed))


def reductions(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Turn such atomics into accumulators of the task (TaskAttr.reductions).

    Needs: the result is unused, the indices depend on nothing that varies in the loop, and the loop has no other access that may touch the
    same element. An array argument is taken not to overlap other arguments here: a loop that both accumulates into an element and reads it
    through another argument has no defined result anyway. Sums of f32 are accumulated in f64 on CPUs, where a chunk may be long.
    """
    return _Reductions(ctx).kernel(kernel)


@dataclass(slots=True, eq=False)
class _Target:
    """One element that a task accumulates into."""

    kind: str
    ref: Ref
    indices: tuple[Op, ...]
    dtype: DType
    atomics: list[Op] = field(default_factory=list)

    @property
    def reduction(self) -> Reduction:
        return Reduction(self.kind, self.dtype)


class _Reductions(Rewriter):
    def __init__(self, ctx: PassContext) -> None:
        super().__init__()
        self.wide_sums = ctx.caps.target.wide_sums
        self.handlers[ops.task] = self._task

    def _task(self, op: Op) -> Op:
        if op.attr.kind != "range_for" or op.attr.grouped:
            return self.b.append(op)
        targets = _find(op.regions[1], self.wide_sums)
        if not targets:
            return self.b.append(op)
        bounds, body, finish = op.regions
        new_body = _Accumulate(targets).body(body)
        attr: TaskAttr = op.attr
        new_attr = TaskAttr(attr.kind, attr.name, attr.group_size, (*attr.reductions, *[t.reduction for t in targets]))
        new_finish = _Finish().region_for(finish, targets)
        return self.b.append(Op(ops.task, VOID, (), new_attr, (bounds, new_body, new_finish), op.loc))


# --- finding them --------------------------------------------------------------------------------------------------------


def _find(body: Region, wide_sums: bool) -> list[_Target]:
    """The elements that ``body`` may accumulate into."""
    if ops.atomic not in body.codes:
        return []
    accesses = [op for op in body.walk() if accesses_of(op)]
    candidates = [op for op in accesses if op.code is ops.atomic and op.attr[0] in _KINDS]
    if not candidates:
        return []
    used = {a for op in body.walk() for a in op.args}
    excluded = set(_in_conditions(body))
    written = {ref for op in accesses for effect, ref in accesses_of(op) if effect != "read"}
    number = _Invariance(body, written).number
    targets: dict[Any, _Target] = {}
    for op in candidates:
        kind, ref = op.attr
        if op in used or op in excluded or ref.dtype.bits < 32:
            continue
        indices = op.args[: rank(ref)]
        if any(i not in number for i in indices):
            continue
        dtype = f64 if wide_sums and ref.dtype is f32 and kind == "add" else ref.dtype
        target = targets.setdefault((kind, ref, *[number[i] for i in indices]), _Target(kind, ref, indices, dtype))
        target.atomics.append(op)
    found = [t for t in targets.values() if not any(_conflicts(t, op) for op in accesses)]
    return found[:_MAX_REDUCTIONS]


def _in_conditions(body: Region) -> Iterator[Op]:
    """What stands in the condition of a `while`, which yields nothing but the verdict."""
    for op in body.walk():
        if op.code is ops.while_:
            yield from op.regions[0].walk()


class _Invariance:
    """Numbers for the values that are the same in every iteration: equal for equal values."""

    def __init__(self, body: Region, written: set[Ref]) -> None:
        self.written = written
        self.number: dict[Op, int] = {}
        known: dict[Any, int] = {}
        for op in body.walk():
            key = self._key(op)
            if key is not None:
                self.number[op] = known.setdefault(key, len(known))

    def _key(self, op: Op) -> Any:
        if op.code is ops.const:
            return (op.code, op.type, repr(op.attr))
        if op.code not in _LEAVES:
            movable = (op.code.effect == "pure" and op.code is not ops.result) or self._steady_load(op)
            if not movable or any(a not in self.number for a in op.args):
                return None
        return (op.code, op.type, op.attr, *[self.number[a] for a in op.args])

    def _steady_load(self, op: Op) -> bool:
        """A load of a value from before the loop."""
        return op.code is ops.load and isinstance(op.attr, TempRef) and op.attr not in self.written


def _conflicts(target: _Target, op: Op) -> bool:
    """Whether ``op``, another access, may touch the element."""
    if op in target.atomics:
        return False
    indices = None if op.code is ops.call_memory else op.args
    return any(_is_same(target, ref) and not (indices and _apart(target.indices, indices[: rank(ref)])) for _, ref in accesses_of(op))


def _is_same(target: _Target, ref: Ref) -> bool:
    """Whether the element may lie in ``ref``."""
    if isinstance(target.ref, FieldRef) and isinstance(ref, FieldRef):
        same = target.ref.key == ref.key and target.ref.role == ref.role
    else:
        same = place(ref) == place(target.ref) and getattr(ref, "role", "") == getattr(target.ref, "role", "")
        same = same and not (isinstance(ref, TempRef) and ref != target.ref)
    return same


def _apart(a: tuple[Op, ...], b: tuple[Op, ...]) -> bool:
    """Whether some index differs for sure."""
    return any(x.code is ops.const and y.code is ops.const and x.attr != y.attr for x, y in zip(a, b))


# --- rewriting -----------------------------------------------------------------------------------------------------------


class _Accumulate(Accumulating):
    """Replaces the atomics by operations on accumulators."""

    def __init__(self, targets: list[_Target]) -> None:
        super().__init__([t.dtype for t in targets], {op: (k,) for k, t in enumerate(targets) for op in t.atomics})
        self.targets = targets
        self.handlers[ops.atomic] = self._atomic

    def body(self, region: Region) -> Region:
        numbers = list(range(len(self.targets)))
        return self.carrying(region, numbers, self.params(numbers))

    def _atomic(self, op: Op) -> Op | None:
        if op not in self.changes:
            return self.copy(op)
        (k,) = self.changes[op]
        target = self.targets[k]
        value = self.b.cast(self.args(op)[-1], target.dtype)
        self.current[k] = self.b.emit(ops.COMBINE[target.kind], self.current[k], value, attr="reassoc")
        return None


class _Finish(Rewriter):
    """The region that adds accumulators to memory."""

    def region_for(self, finish: Region, targets: list[_Target]) -> Region:
        params = tuple(Op(ops.param, t.dtype) for t in targets)
        self.b.begin()
        for op in finish.ops[:-1]:
            self.visit(op)
        for target, total in zip(targets, params):
            self.b.loc = target.atomics[0].loc
            indices = [self._clone(i) for i in target.indices]
            self.b.atomic(target.kind, target.ref, *indices, self.b.cast(total, target.ref.dtype))
        return Region((*finish.params, *params), self.b.end().ops)

    def _clone(self, value: Op) -> Op:
        """A value of the body, computed again here."""
        if value not in self.env:
            args = tuple([self._clone(a) for a in value.args])
            self.env[value] = self.b.append(Op(value.code, value.type, args, value.attr, (), value.loc))
        return self.env[value]

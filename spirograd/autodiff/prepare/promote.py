"""Promotes an element of memory that a serial loop reads and writes to a loop-carried value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from spirograd.autodiff.prepare.element_aliases import (
    Memory,
    Numbers,
    accesses,
    contents,
    in_range,
    indices_of,
    invariant,
    memory_of,
    owned,
    same_memory,
)
from spirograd.base.dtypes import u1
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region
from spirograd.ir.threaded import LOOPS, Cell, Threaded
from spirograd.transforms.pass_context import PassContext

# Atomics whose derivative depends on what is in memory.
_SELECTIVE = frozenset(("mul", "min", "max"))


def promote(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Let serial loops carry what they read and write at one and the same element: it is loaded before the loop and stored after it.

    The indices must be the same throughout the loop, and all other accesses in it surely to other elements (see `elements`). The load is
    made only where the loop would have accessed the element, and the store only if the loop did store. Atomics take part where nothing
    else updates the element: in serial code, and in parallel loops at elements that belong to one iteration. Left alone is what needs no
    value: loops that only read, only store, or only add and do not use the old value.
    """
    if LOOPS.isdisjoint(kernel.codes):
        return kernel
    return _Promote(kernel).kernel(kernel)


@dataclass(slots=True, eq=False)
class _Element(Cell):
    """An element to be carried. ``where`` are its indices before the loop; ``values``: what it holds now, and whether it was stored (left
    out if it is whenever the loop runs). ``always``: it may be loaded before the loop even if the loop then does not run."""

    ref: Memory = field(kw_only=True)
    indices: tuple[Op, ...] = field(kw_only=True)
    accesses: list[Op] = field(default_factory=list)
    always: bool = False
    where: tuple[Op, ...] = ()

    @property
    def writes(self) -> list[Op]:
        return [op for op in self.accesses if op.code is not ops.load]


class _Promote(Threaded):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.used = {a for op in kernel.walk() for a in op.args}
        self.numbers = Numbers()
        self.parallel: Op | None = None
        self.active: dict[Op, _Element] = {}  # access -> the element
        self.known: list[set[tuple[Memory, tuple[int, ...]]]] = []  # per open region: elements that were accessed in it
        self.handlers |= {ops.load: self._access, ops.store: self._access, ops.atomic: self._access}
        self.handlers |= {ops.for_: self._loop, ops.while_: self._loop}

    # --- operations ------------------------------------------------------------------------------------------------------

    def _access(self, op: Op) -> Op | None:
        element = self.active.get(op)
        if element is not None:
            return _ACCESS[op.code](self, op, element)
        ref = memory_of(op)
        if ref is not None:
            self.known[-1].add((ref, self.numbers.all(indices_of(op))))
        return self.copy(op)

    def _load(self, op: Op, element: _Element) -> Op | None:
        return element.values[0]

    def _store(self, op: Op, element: _Element) -> Op | None:
        self._set(element, self.value(op.args[-1]))
        return None

    def _atomic(self, op: Op, element: _Element) -> Op | None:
        old, value, kind = element.values[0], self.value(op.args[-1]), op.attr[0]
        self._set(element, self.b.combined(kind, old, value))
        return old

    def _set(self, element: _Element, value: Op) -> None:
        element.values = [value] if len(element.values) == 1 else [value, self.b.const(True, u1)]

    # --- regions ---------------------------------------------------------------------------------------------------------

    def _region(self, region: Region, params: tuple[Op, ...], yields: Sequence[Cell]) -> Region:
        self.known.append(set())
        new = super()._region(region, params, yields)
        self.known.pop()
        return new

    def _loop(self, op: Op) -> Op:
        if op.code is ops.for_ and op.attr.parallel:
            outer = self.parallel
            self.parallel = outer or op
            new = self.copy(op)
            self.parallel = outer
            return new
        inside = contents(op)
        elements = self._found(op, inside)
        for element in sorted(elements, key=lambda e: not e.always):
            self._begin(op, element, inside)
        new = self.threaded(op)
        for element in elements:
            self._finish(op, element)
        return new

    # --- which elements --------------------------------------------------------------------------------------------------

    def _found(self, loop: Op, inside: set[Op]) -> list[_Element]:
        """The elements that ``loop`` can carry."""
        found = [(op, ref) for op, ref in accesses(loop.regions) if op not in self.active]
        groups: dict[tuple[Memory, tuple[int, ...]], _Element] = {}
        for op, ref in found:
            indices = indices_of(op)
            if all(invariant(i, inside) for i in indices):
                groups.setdefault((ref, self.numbers.all(indices)), _Element(ref=ref, indices=indices)).accesses.append(op)
        out = []
        for element in groups.values():
            others = [op for op, ref in found if same_memory(ref, element.ref) and op not in element.accesses]
            apart = all(memory_of(o) == element.ref and self.numbers.distinct(element.indices, indices_of(o)) for o in others)
            if apart and self._wanted(element) and _allowed(loop, element) and self._own(element) and self._entered(loop, element):
                out.append(element)
        return out

    def _wanted(self, element: _Element) -> bool:
        """Whether the derivative needs what the element holds on the way."""
        valued = [op for op in element.accesses if op.code is ops.load or op in self.used]
        valued += [op for op in element.writes if op.code is ops.atomic and op.attr[0] in _SELECTIVE and element.ref.dtype.is_float]
        return bool(valued) and bool(element.writes)

    def _own(self, element: _Element) -> bool:
        """Whether atomics at the element need not be atomic."""
        if self.parallel is None or not any(op.code is ops.atomic for op in element.accesses):
            return True
        return owned(element.ref, element.indices, self.parallel, self.numbers)

    def _entered(self, loop: Op, element: _Element) -> bool:
        """Whether it is known when the element may be loaded; sets ``always``."""
        at = (element.ref, self.numbers.all(element.indices))
        first = loop.regions[0].ops
        element.always = in_range(element.ref, element.indices) or any(at in known for known in self.known)
        if loop.code is ops.while_:
            element.always = element.always or any(op in first for op in element.accesses)
            if not element.always and any(op.code.effect not in ("pure", "read") for op in first[:-1]):
                return False
        return element.always or any(op in loop.regions[-1].ops for op in element.accesses)

    # --- before and after the loop -----------------------------------------------------------------------------------------

    def _begin(self, loop: Op, element: _Element, inside: set[Op]) -> None:
        b = self.b
        b.loc = next((op.loc for op in element.accesses if op.code is not ops.store), element.accesses[0].loc)
        element.where = tuple([self._outside(i, inside) for i in element.indices])
        if element.always:
            element.values = [b.load(element.ref, *element.where)]
        else:
            runs = self._runs(loop)
            b.begin()
            then = b.end([b.load(element.ref, *element.where)])
            b.begin()
            element.values = [*b.if_(runs, then, b.end([b.const(0, element.ref.dtype)]))]
        if loop.code is ops.while_ or not any(op in loop.regions[0].ops for op in element.writes):
            element.values.append(b.const(False, u1))
        self.active.update((op, element) for op in element.accesses)
        element.sites = set(element.writes)
        self.cells.append(element)

    def _finish(self, loop: Op, element: _Element) -> None:
        b = self.b
        b.loc = element.writes[-1].loc
        self.cells.remove(element)
        value, *flag = element.values
        condition = flag[0] if flag else self._runs(loop)
        b.begin()
        b.store(element.ref, *element.where, value)
        then = b.end()
        b.begin()
        b.if_(condition, then, b.end())

    def _runs(self, loop: Op) -> Op:
        """Whether ``loop`` has an iteration."""
        if loop.code is ops.for_:
            return self.b.emit(ops.lt, *self.args(loop)[:2])
        # What the condition reads is the same before the loop; elements that it accesses are loaded already.
        env = dict(self.env)
        (condition,) = self.inline(loop.regions[0], self.args(loop), clone=True)
        self.env = env
        return condition

    def _outside(self, value: Op, inside: set[Op]) -> Op:
        """``value``, which is the same throughout the loop, made before the loop."""
        if value not in inside:
            return self.value(value)
        return self.b.append(Op(value.code, value.type, tuple([self._outside(a, inside) for a in value.args]), value.attr, (), value.loc))


_ACCESS: dict[ops.OpCode, Callable[[_Promote, Op, _Element], Op | None]] = {
    ops.load: _Promote._load,
    ops.store: _Promote._store,
    ops.atomic: _Promote._atomic,
}


def _allowed(loop: Op, element: _Element) -> bool:
    """Whether the accesses are of kinds, and at places, where the state can be passed on."""
    if any(op.code is ops.cas for op in element.accesses):
        return False
    mine = set(element.accesses)
    writes = set(element.writes)
    for op in [loop, *[inner for region in loop.regions for inner in region.walk() if inner.regions]]:
        if op.code is ops.while_ and not writes.isdisjoint(op.regions[0].walk()):
            return False  # a condition yields nothing but its verdict
        if op.code is ops.for_ and op.attr.parallel and not mine.isdisjoint(op.regions[0].walk()):
            return False
    return True

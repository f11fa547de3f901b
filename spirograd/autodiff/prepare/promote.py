"""Scalar promotion before differentiation: updates of an element by a serial loop become a chain of values."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.analysis.dependence import Dependence, accesses_in, iterations_of
from spirograd.analysis.effects import orders
from spirograd.analysis.existence import exists
from spirograd.base.dtypes import u1
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op
from spirograd.ir.threaded import LOOPS
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.simplification.scalar_promotion import Element, ScalarPromotion

# Atomics whose derivative depends on the contents of memory.
_SELECTIVE = frozenset(("mul", "min", "max"))


def promote(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Let serial loops carry an element that they read and write: it is loaded before the loop and stored after it.

    The indices must be loop-invariant, and all other accesses in the loop must provably access other elements; array arguments count as
    separate memory. The element is loaded only where the loop would have accessed it, and stored only if the loop has stored it. Atomics
    are promoted where nothing else updates the element: in serial code, and in parallel loops at elements that belong to one iteration.
    Loops that need no value stay unchanged: those that only read, only store, or only add and do not use the old value. Loops with
    barriers carry only elements that belong to one iteration of the parallel loop, because other threads may change others in between.
    """
    if LOOPS.isdisjoint(kernel.codes):
        return kernel
    return _Promote(kernel).kernel(kernel)


class _Promote(ScalarPromotion):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__(Dependence(separate_arrays=True))
        self.used = {a for op in kernel.walk() for a in op.args}
        self.parallel: Op | None = None

    def _loop(self, op: Op) -> Op:
        if op.code is not ops.for_ or not op.attr.parallel:
            return super()._loop(op)
        outer = self.parallel
        self.parallel = outer or op
        new = self.copy(op)
        self.parallel = outer
        return new

    # --- which elements --------------------------------------------------------------------------------------------------

    def chosen(self, loop: Op) -> list[Element]:
        waits = orders(loop)
        return [e for e in self.candidates(loop) if self._wanted(e) and self._own(e, waits) and self._entered(loop, e)]

    def _wanted(self, element: Element) -> bool:
        """Return whether the derivative needs values that the element has during the loop."""
        valued = [access.op for access in element.accesses if not access.writes or access.op in self.used]
        valued += [op for op in element.writes if op.code is ops.atomic and op.attr[0] in _SELECTIVE and element.ref.dtype.is_float]
        return bool(valued) and bool(element.writes)

    def _own(self, element: Element, waits: bool) -> bool:
        """Return whether no other iteration changes the element while the loop runs. ``waits``: whether it waits for other threads."""
        if self.parallel is None or not (waits or any(op.code is ops.atomic for op in element.writes)):
            return True
        writes = [access for access in accesses_in(self.parallel.regions) if access.writes]
        return self.query.is_private(element.accesses[0], writes, iterations_of(self.parallel))

    def _entered(self, loop: Op, element: Element) -> bool:
        """Return whether it is known when the element may be loaded, and set ``always``."""
        accesses, first = [access.op for access in element.accesses], loop.regions[0].ops
        element.always = exists(element.ref, element.indices, {}) or any(element.key in accessed for accessed in self.accessed)
        if loop.code is ops.while_:
            element.always = element.always or any(op in first for op in accesses)
            if not element.always and any(op.code.effect not in ("pure", "read") for op in first[:-1]):
                return False
        return element.always or any(op in loop.regions[-1].ops for op in accesses)

    # --- before and after the loop -----------------------------------------------------------------------------------------

    def values_before(self, loop: Op, element: Element) -> list[Op]:
        stored_if_run = loop.code is ops.for_ and any(op in loop.regions[0].ops for op in element.writes)
        return [self._loaded(loop, element), *([] if stored_if_run else [self.b.const(False, u1)])]

    def _loaded(self, loop: Op, element: Element) -> Op:
        b = self.b
        if element.always:
            return b.load(element.ref, *element.where)
        runs = self._runs(loop)
        b.begin()
        then = b.end([b.load(element.ref, *element.where)])
        b.begin()
        return b.if_(runs, then, b.end([b.const(0, element.ref.dtype)]))[0]

    def store_after(self, loop: Op, elements: Sequence[Element]) -> None:
        b = self.b
        for element in elements:
            b.loc = element.writes[-1].loc
            value, *flag = element.values
            condition = flag[0] if flag else self._runs(loop)
            b.begin()
            b.store(element.ref, *element.where, value)
            then = b.end()
            b.begin()
            b.if_(condition, then, b.end())

    def _runs(self, loop: Op) -> Op:
        """Return whether ``loop`` has an iteration, as a value."""
        if loop.code is ops.for_:
            return self.b.emit(ops.lt, *self.args(loop)[:2])
        # The condition reads the same values before the loop, and the elements that it accesses are already loaded.
        env = dict(self.env)
        (condition,) = self.inline(loop.regions[0], self.args(loop), clone=True)
        self.env = env
        return condition

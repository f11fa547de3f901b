"""Calls whose results the kernel leaves in memory become loads: a gradient runs after its kernel, and must not repeat their effects."""

from __future__ import annotations

from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, MemoryCall, Op, Ref, called, rank, ref_of
from spirograd.ir.rewrite import Rewriter


def load_stored_results(kernel: Kernel) -> Kernel:
    """Replace each call whose result the kernel leaves in memory (`MemoryCall.found_in`) by a load of the result.

    Raises SpirogradUnsupportedError if the kernel reads other memory that such a call changes, because the gradient would read its final
    state.
    """
    calls = _calls(kernel)
    if not calls:
        return kernel
    rewriter = _FoundResults()
    functions = [f.with_body(rewriter.region(f.body)) for f in kernel.functions]
    body = rewriter.region(kernel.body)
    loading = kernel.with_body(body, called(functions, (body,)))
    _refuse_reads(loading, {ref for call in calls for effect, ref in call.accesses if effect != "read" and ref != call.found_in})
    return loading


def refuse_saving(kernel: Kernel, value: Op) -> None:
    """Raise SpirogradUnsupportedError if ``kernel``, which would have to save ``value`` as it runs, has such calls. The saving kernel is
    derived from the kernel in which these calls are loads, so it would activate nothing."""
    if _calls(kernel):
        problem = "the gradient needs this value, which is overwritten later; a kernel that activates cells cannot save it"
        raise SpirogradUnsupportedError(problem, value.loc, "activate the cells, or append the entries, in a separate kernel")


def _calls(kernel: Kernel) -> list[MemoryCall]:
    return [op.attr for op in kernel.walk() if op.code is ops.call_memory and op.attr.found_in is not None]


def _refuse_reads(kernel: Kernel, changed: set[Ref]) -> None:
    for op in kernel.walk():
        if op.code is ops.load and ref_of(op) in changed:
            problem = (
                "the kernel depends here on which cells are active, and activates cells, so its gradient would find other cells active"
            )
            raise SpirogradUnsupportedError(problem, op.loc, "activate the cells in a separate kernel")


class _FoundResults(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self.handlers = {ops.call_memory: self._call}

    def _call(self, op: Op) -> Op:
        ref = op.attr.found_in
        return self.copy(op) if ref is None else self.b.load(ref, *self.args(op)[: rank(ref)])

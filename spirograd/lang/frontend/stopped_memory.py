"""`stop_grad` of a field or array: derivatives do not flow through what is read of it in the block where the call stands.

A block is the body of a loop, a branch or the kernel, from its begin to its end, with all blocks inside. The call leaves a marker, a
`stop_grad` whose attribute is the memory; here the markers are removed, and each read that they reach becomes a `stop_grad` of what is
read.
"""

from __future__ import annotations

from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, Region, accesses_of, ref_of
from spirograd.ir.rewrite import Rewriter


def apply_stops(kernel: Kernel) -> Kernel:
    """Return ``kernel`` without markers. Raises SpirogradUnsupportedError where one would have to reach into a function that is called."""
    return _Stops().kernel(kernel)


class _Stops(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self._stopped: list[object] = []
        self.handlers = {ops.stop_grad: self._marker, ops.load: self._read, ops.atomic: self._read, ops.call_memory: self._call}

    def region(self, region: Region) -> Region:
        """Rewrite a region, knowing the markers of all of it."""
        markers = [_memory(op.attr) for op in region.ops if op.code is ops.stop_grad and op.attr is not None]
        self._stopped += markers
        new = super().region(region)
        del self._stopped[len(self._stopped) - len(markers) :]
        return new

    def _marker(self, op: Op) -> Op | None:
        return self.copy(op) if op.attr is None else None

    def _read(self, op: Op) -> Op:
        new, ref = self.copy(op), ref_of(op)
        if ref is None or not ref.dtype.is_float or _memory(ref) not in self._stopped:
            return new
        return self.b.emit(ops.stop_grad, new)

    def _call(self, op: Op) -> Op:
        for effect, ref in accesses_of(op):
            if effect != "write" and _memory(ref) in self._stopped:
                problem = f"`stop_grad({ref.name})` does not reach into functions that are called"
                raise SpirogradUnsupportedError(problem, op.loc, "make it a function with `@sg.func`")
        return self.copy(op)


def _memory(ref: object) -> object:
    """Return what tells memory apart, gradients included."""
    if isinstance(ref, FieldRef):
        return ref.tree, ref.key, ref.role
    return (ref.arg, ref.role) if isinstance(ref, ArrayRef) else ref

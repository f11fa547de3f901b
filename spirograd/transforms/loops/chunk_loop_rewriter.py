"""The base class of passes that rewrite each loop over a chunk."""

from __future__ import annotations

from spirograd.ir import ops
from spirograd.ir.chunk_loops import ChunkLoop
from spirograd.ir.nodes import Kernel, Op
from spirograd.ir.rewrite import Rewriter


class ChunkLoopRewriter(Rewriter):
    """A rewriter that passes each loop over a chunk, with the loop over rows around it, to `chunk_loop`, and shares everything else:
    functions, serial tasks, serial loops."""

    def __init__(self) -> None:
        super().__init__()
        self._task: Op | None = None
        self._around: Op | None = None  # the original loop over rows that contains the current operation
        self.handlers = {ops.task: self.task, ops.for_: self._for}

    def chunk_loop(self, loop: ChunkLoop) -> Op | None:
        """Return the replacement of ``loop.loop``. Subclasses implement this."""
        raise NotImplementedError

    def chunk_task(self, op: Op) -> Op:
        """Return the replacement of a task of kind "chunks". Subclasses may override this."""
        return self.copy(op)

    def task(self, op: Op) -> Op:
        if op.attr.kind != "chunks":
            return self.b.append(op)
        self._task = op
        return self.chunk_task(op)

    def _for(self, op: Op) -> Op | None:
        if op.attr.over_chunk:
            assert self._task is not None
            return self.chunk_loop(ChunkLoop(self._task, op, self._around))
        if not op.attr.row:
            return self.keep(op)
        self._around = op
        new = self.copy(op)
        self._around = None
        return new

    def _rewritten(self, kernel: Kernel) -> Kernel:
        return kernel.with_body(self.region(kernel.body))

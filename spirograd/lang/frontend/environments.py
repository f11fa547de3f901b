"""The environments of a kernel that uses fields of a batch: what the trace knows of them.

The trace indexes such fields, first of all, by a value that nothing defines: the number of the environment. `environment_loops` defines it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spirograd.base.dtypes import i32
from spirograd.base.errors import SpirogradTypeError
from spirograd.ir import ops
from spirograd.ir.nodes import Op
from spirograd.lang import scalar

if TYPE_CHECKING:
    from spirograd.lang.data.batches import Batch


class Environments:
    """The environments that the kernel being traced runs for. ``batch``: None as long as it uses no field of one; ``index``: the number of
    the environment, None as long as nothing uses it."""

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.index: Op | None = None

    def index_in(self, batch: Batch | None) -> Op:
        """Return the number of the environment, to index a field of ``batch`` if one is given. Raises SpirogradTypeError in a kernel that
        uses fields of another batch."""
        if batch is not None and self.batch not in (None, batch):
            hint = "launch a kernel for each batch; memory that two batches share is a field of neither"
            raise SpirogradTypeError(f"this kernel uses fields of two batches, a {self.batch!r} and a {batch!r}", None, hint)
        self.batch = batch or self.batch
        if self.index is None:
            self.index = Op(ops.param, i32, loc=scalar.builder().loc)
        return self.index

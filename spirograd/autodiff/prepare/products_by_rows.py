"""Products of tiles by rows, in place of instructions for matrices, which have no derivatives of their own.

Thread i of a group has row i of each tile. Row i of c + a @ b is c[i] plus the sum of a[i, k] * b[k], whose factors b[k] it reads from
thread k. These operations have derivatives, which together are those of the product: the adjoint of a is that of the result times the
transpose of b, and the adjoint of b is the transpose of a times that of the result (M. Giles, "Collected matrix derivative results for
forward and reverse mode algorithmic differentiation", 2008).
"""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base.dtypes import DType
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.matrix_shapes import LANES, TRANSPOSED
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op
from spirograd.ir.rewrite import Rewriter
from spirograd.transforms.pass_context import PassContext


def products_by_rows(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Replace each product of tiles, with the conversions around it, by operations on rows. Raise SpirogradUnsupportedError where a
    subgroup has fewer threads than a tile may have rows."""
    if ops.tile_product not in kernel.codes:
        return kernel
    return _ByRows(ctx.caps.group_lanes).kernel(kernel)


class _ByRows(Rewriter):
    def __init__(self, lanes: int) -> None:
        super().__init__()
        self.lanes = lanes
        self.handlers = {ops.tile_rows: self._rows}

    def _rows(self, op: Op) -> Op:
        if self.lanes < LANES:
            problem = f"this product of tiles has no derivative on this device, whose subgroups have {self.lanes} threads"
            raise SpirogradUnsupportedError(problem, op.loc, "multiply rows in the kernel, or use another device")
        product = _source(op.args, ops.tile_product)
        held = len(op.args)
        factors = len(product.args) - held
        left, right, total = [
            _source(product.args[k:end], ops.tile_entries)
            for k, end in ((0, factors // 2), (factors // 2, factors), (factors, len(product.args)))
        ]
        return self.b.emit(ops.vec, *self._sums(self.args(left), self.args(right), self.args(total), right.attr == TRANSPOSED))

    def _sums(self, a: Sequence[Op], b: Sequence[Op], c: Sequence[Op], transposed: bool) -> list[Op]:
        """Return the row of this thread of c + a @ b, or c + a @ b.T, with sums in the order of the inner index."""
        t, out = c[0].type, list(c)
        assert isinstance(t, DType)
        rows = [self.b.cast(entry, t) for entry in b]
        for k, entry in enumerate(a):
            factor = self.b.cast(entry, t)
            for j in range(len(out)):
                other = self._read(rows[k], j) if transposed else self._read(rows[j], k)
                out[j] = self.b.emit(ops.fma, factor, other, out[j])
        return out

    def _read(self, value: Op, row: int) -> Op:
        return self.b.emit(ops.subgroup_read, value, self.b.const(row), type=value.type)


def _source(parts: Sequence[Op], code: ops.OpCode) -> Op:
    """Return the operation of which ``parts`` are the entries, in order, as the front end emits them."""
    vector = parts[0].args[0]
    assert vector.code is code, vector
    assert all(part.code is ops.extract and part.args[0] is vector and part.args[1].attr == k for k, part in enumerate(parts))
    return vector

"""The test whether the iterations of a loop fill groups of threads, so that no group lacks threads."""

from __future__ import annotations

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Op


def are_whole(begin: Op, end: Op, size: int) -> bool:
    """Return whether the number of iterations from ``begin`` to ``end`` is known to be a multiple of ``size``: both are constants, or the
    loop runs from 0 to the product of a number and a constant. A product that wraps is a multiple if ``size`` is a power of two."""
    if begin.code is not ops.const:
        return False
    if end.code is ops.const:
        return bool((end.attr - begin.attr) % size == 0)
    if begin.attr != 0 or size & (size - 1):
        return False
    if end.code is ops.mul:
        return any(factor.code is ops.const and factor.attr % size == 0 for factor in end.args)
    if end.code is not ops.shl or end.args[1].code is not ops.const:
        return False
    assert isinstance(end.type, DType)
    bits: int = end.args[1].attr
    return 0 <= bits < end.type.bits and (1 << bits) % size == 0  # Devices differ in shifts beyond the width.

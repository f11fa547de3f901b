"""Which loops fill groups of threads, and that none is taken for such a loop which does not."""

import pytest

from spirograd.base.dtypes import i32
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.whole_groups import are_whole

# What is done to an unknown number to get the end of the loop, by which constant; and whether that fills groups of 32.
_ENDS = [
    (ops.mul, 32, True), (ops.mul, 96, True), (ops.mul, 48, False), (ops.mul, 0, True), (ops.shl, 5, True), (ops.shl, 31, True),
    (ops.shl, 4, False), (ops.shl, 0, False), (ops.shl, 32, False), (ops.shl, 33, False), (ops.shl, 37, False), (ops.shl, -1, False),
    (ops.add, 32, False),
]  # fmt: skip


@pytest.mark.parametrize(("code", "by", "whole"), _ENDS)
def test_ends_that_are_computed(code: ops.OpCode, by: int, whole: bool) -> None:
    b = Builder()
    (unknown,) = b.begin(i32)
    end = b.emit(code, unknown, b.const(by, i32))
    assert are_whole(b.const(0, i32), end, 32) == whole
    assert not are_whole(b.const(32, i32), end, 32) and not are_whole(unknown, end, 32)


@pytest.mark.parametrize(("begin", "end", "whole"), [(0, 64, True), (3, 67, True), (0, 63, False), (5, 5, True), (-32, 0, True)])
def test_constants(begin: int, end: int, whole: bool) -> None:
    b = Builder()
    b.begin()
    assert are_whole(b.const(begin, i32), b.const(end, i32), 32) == whole

"""What differs between the iterations of a parallel loop: nests of serial loops whose values come to differ only in their innermost one."""

from __future__ import annotations

from unittest import mock

import pytest

from spirograd.analysis.uniformity import Uniformity
from spirograd.base.dtypes import f32, i32
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op, Region

pytestmark = pytest.mark.optimized


class _Nest:
    """Loops nested ``depth`` deep, each of which carries two values, from constants on. The innermost adds the index to the second one."""

    def __init__(self, depth: int) -> None:
        self.b = Builder()
        (self.index,) = self.b.begin(i32)
        self.begin, self.end, self.one = self.b.const(0), self.b.const(3), self.b.const(1.0, f32)
        self.carried: list[tuple[Op, ...]] = []
        self.results = self._level(depth, (self.one, self.one))
        self.region = self.b.end([])

    def _level(self, depth: int, values: tuple[Op, ...]) -> tuple[Op, ...]:
        if depth == 0:
            same, other = values
            return self.b.emit(ops.add, same, self.one), self.b.emit(ops.add, other, self.b.cast(self.index, f32))
        _, *params = self.b.begin(i32, f32, f32)
        self.carried.append(tuple(params))
        body = self.b.end(self._level(depth - 1, tuple(params)))
        return self.b.for_(self.begin, self.end, (self.one, self.one), body)


@pytest.mark.parametrize("depth", range(1, 9))
def test_nested_loops(depth: int) -> None:
    nest, visits = _Nest(depth), 0
    plain = Uniformity._region

    def counting(self: Uniformity, region: Region) -> list[bool]:
        nonlocal visits
        visits += 1
        return plain(self, region)

    with mock.patch.object(Uniformity, "_region", counting):
        found = Uniformity(nest.region)
    assert [found.varies(v) for v in nest.results] == [False, True]
    assert all([found.varies(p) for p in params] == [False, True] for params in nest.carried)
    assert visits <= (depth + 1) * (depth + 2)

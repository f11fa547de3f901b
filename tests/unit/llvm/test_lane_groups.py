"""Values that groups of lanes share: patterns hold for every vector, and where loops over blocks use them."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

import spirograd as sg
from spirograd.analysis.lane_groups import LaneGroups, WholeVectors
from spirograd.analysis.loop_costs import MASKED_LANES, MOST_GROUPS, has_masks
from spirograd.base.dtypes import i32
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Op
from spirograd.llvmgen.toolchain import host_caps

ROW = 64
LARGE = [3 << 20, 1 << 24, 10**9]  # products wrap around


def random_body(rng: random.Random) -> tuple[Any, Op]:
    """Operations on an index, on the first index of its row, and on numbers; returns the region, and that first index."""
    b = Builder()
    (first,) = b.begin(i32)
    (index,) = b.begin(i32)
    column = b.emit(ops.sub, index, first)
    values = [index, column, *[b.emit(code, column, b.const(4)) for code in (ops.idiv, ops.irem)]]
    for _ in range(40):
        code = rng.choice([ops.add, ops.sub, ops.mul, ops.idiv, ops.irem, ops.idiv, ops.irem, ops.max_, ops.and_])
        number = rng.choice(LARGE if rng.random() < 0.1 else [1, 2, 3, 4, 8, 16, 64])
        other = b.const(number) if code in (ops.mul, ops.idiv, ops.irem) else rng.choice(values)
        value = rng.choice(values[-8:])
        values.append(b.emit(code, value, b.const(rng.choice([1, 3, 7])) if code is ops.and_ or rng.random() < 0.3 else other))
    return b.end([]), first


def truncated(a: int, b: int) -> int:
    return abs(a) // b * (-1 if a < 0 else 1)


def wrapped(a: int) -> int:
    return (a + (1 << 31)) % (1 << 32) - (1 << 31)


MEANING = {
    ops.add: lambda a, b: a + b,
    ops.sub: lambda a, b: a - b,
    ops.mul: lambda a, b: a * b,
    ops.idiv: truncated,
    ops.irem: lambda a, b: a - b * truncated(a, b),
    ops.max_: max,
    ops.and_: lambda a, b: a & b,
}


def run(region: Any, first: Op, index: int) -> dict[Op, int]:
    values = {region.params[0]: index, first: index // ROW * ROW}
    for op in region.ops[:-1]:
        values[op] = op.attr if op.code is ops.const else wrapped(MEANING[op.code](*(values[a] for a in op.args)))
    return values


@pytest.mark.parametrize("seed", range(40))
def test_patterns_hold(seed: int) -> None:
    rng = random.Random(seed)
    region, first = random_body(rng)
    varying = {region.params[0]}
    for op in region.ops[:-1]:
        if any(a in varying for a in op.args):
            varying.add(op)
    lanes = MASKED_LANES
    last = rng.choice([1000 * lanes, (1 << 31) - lanes])
    known = LaneGroups(region, WholeVectors(lanes, last, {first: ROW}, MOST_GROUPS), varying, set())
    assert len(known.patterns) > 2
    for start in (0, lanes, 3 * lanes, 4 * lanes, 10 * lanes, 999 * lanes, last):
        found = [run(region, first, start + lane) for lane in range(lanes)]
        for op, pattern in known.patterns.items():
            bases = [wrapped(values[op] - offset) for values, offset in zip(found, pattern.offsets)]
            by_group = {g: {base for base, group in zip(bases, pattern.groups) if group == g} for g in pattern.groups}
            assert all(len(some) == 1 for some in by_group.values()), op
            if pattern.zero:
                assert set(bases) == {0}
            elif pattern.factor:
                assert set(bases) == {bases[0]} and 0 <= bases[0] <= pattern.most and bases[0] % pattern.factor == 0
                assert all(values[op] == bases[0] + offset for values, offset in zip(found, pattern.offsets))


@pytest.mark.optimized
@pytest.mark.archs("cpu")
@pytest.mark.skipif(not has_masks(host_caps()), reason="the CPU has no masked loads and stores")
@pytest.mark.parametrize(("cells", "gathered"), ((4, 0), (8, 1)), ids=str)
def test_neighbours_are_not_gathered(session: Any, cells: int, gathered: int) -> None:
    """Blocks are looked up for groups of lanes, and what lies in them is loaded at regular distances. Below the first cell of 8, the
    remainder of a number that could be negative is not known for each lane."""
    x, y = sg.field(sg.f32), sg.field(sg.f32)
    sg.root.pointer(sg.ijk, 4).dense(sg.ijk, cells).place(x, y)

    @sg.kernel
    def smooth():
        for i, j, k in x:
            if (i + j + k) % 2 == 0:
                sides = x[i + 1, j, k] + x[i - 1, j, k] + x[i, j + 1, k] + x[i, j - 1, k]
                x[i, j, k] = y[i, j, k] + sides + x[i, j, k + 1] + x[i, j, k - 1]

    smooth()
    text = smooth.llvm()
    assert "<16 x float>" in text
    assert len(re.findall(r"= call .*masked\.gather", text)) == gathered

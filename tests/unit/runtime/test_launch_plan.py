import itertools
import struct

import numpy as np
import pytest
from unit.runtime.calls import calls_of
from unit.runtime.fake_device import FakeDevice, kernel, slot

from spirograd.base.arguments import Arguments, ArrayBinding
from spirograd.base.artifact import DisjointArray, Effects, TaskInfo
from spirograd.base.dtypes import f32, f64, i32, u1, u8
from spirograd.base.errors import SpirogradRuntimeTypeError
from spirograd.base.records import replace
from spirograd.base.sizes.size_nodes import Add, Arg, Extent, FloorDiv, Max, Min, Mod, Mul, Sub
from spirograd.runtime.allocations import Memory
from spirograd.runtime.array_overlap import overlap_test
from spirograd.runtime.launcher import Launcher


def launcher(device=None, **options):
    device = device or FakeDevice()
    return Launcher(device, Memory(device), **options)


def test_block_holds_every_kind_of_slot():
    l = launcher(seed=5)
    tree = l.memory.allocate(64)
    slots = [
        slot("tree", 7),
        slot("array", 1),
        slot("array", 1, role="grad"),
        slot("array", 1, role="dual"),
        slot("scalar", 2, dtype=f64),
        slot("scalar", 0, dtype=i32),
        slot("shape", 1, axis=1),
        slot("seed"),
        slot("launch"),
        slot("scalar", 3, dtype=u1),
    ]
    plan = l.prepare(kernel(slots, "<4QdiiIII"))
    args = Arguments.of([-3, None, 2.5, True], [None, ArrayBinding(4096, (3, 11), 8192, 12288), None, None], {7: tree})
    plan.launch(args)
    plan.launch(args)
    first, second = (struct.unpack("<4QdiiIII", block) for _, block, _ in l.device.launches)
    assert first == (tree.address, 4096, 8192, 12288, 2.5, -3, 11, 5, 0, 1)
    assert second[8] == 1 and second[7] != first[7]


def test_counts_follow_begin_and_end():
    sizes = [
        (0, 10),
        (3, 1),
        (None, 5),
        (0, Arg(0)),
        (Arg(0), Mul(Extent(1, 0), Extent(1, 1))),
        (0, FloorDiv(Add(Arg(0), 7), 0)),
        (Min(2, Arg(0)), Max(Mod(Arg(0), 3), Sub(9, Arg(0)))),
    ]
    tasks = tuple(TaskInfo("t", "range_for", "main", 0, begin, end, 64) for begin, end in sizes)
    l = launcher()
    plan = l.prepare(kernel(tasks=tasks))
    plan.launch(Arguments.of([4, None], [None, ArrayBinding(0, (5, 6))], {}))
    assert l.device.launches[0][2] == (10, 0, None, 4, 26, 0, 3)


def test_writes_bump_generations():
    l = launcher()
    tree, other, data = (l.memory.allocate(16) for _ in range(3))
    plan = l.prepare(kernel(effects=Effects(frozenset({("tree", 1)}), frozenset({("tree", 0), ("array", 2)}))))
    plan.launch(Arguments.of([None] * 3, [None, None, ArrayBinding(data.address, (4,), allocation=data)], {0: tree, 1: other}))
    assert tree.generation > 0 and data.generation > 0 and other.generation == 0


def test_values_that_do_not_fit():
    l = launcher()
    slots = [slot("scalar", 0, dtype=i32), slot("scalar", 1, dtype=u8), slot("scalar", 2, dtype=f32)]
    plan = l.prepare(kernel(slots, "<iIf"))
    plan.launch(Arguments.of([1, 2, 1e300], [None] * 3, {}))
    assert struct.unpack("<iIf", l.device.launches[0][1])[2] == float("inf")
    with pytest.raises(SpirogradRuntimeTypeError, match="argument 0 of k is i32, which holds -2147483648 to 2147483647, not 2147483648"):
        plan.launch(Arguments.of([1 << 31, 2, 0.0], [None] * 3, {}))
    with pytest.raises(SpirogradRuntimeTypeError, match=r"argument 0 of k is i32, not float \(1.5\)"):
        plan.launch(Arguments.of([1.5, 2, 0.0], [None] * 3, {}))
    with pytest.raises(SpirogradRuntimeTypeError, match="argument 2 of k is f32"):
        plan.launch(Arguments.of([1, 2, "x"], [None] * 3, {}))


def test_missing_gradient_array_is_named():
    plan = launcher().prepare(kernel([slot("array", 0, role="grad")], "<Q"))
    with pytest.raises(SpirogradRuntimeTypeError, match="array argument 0 has no grad array"):
        plan.launch(Arguments.of([None], [ArrayBinding(256, (1,))], {}))


def test_returns_are_read_from_the_temporaries():
    def run(block, device):
        (address,) = struct.unpack("<Q", block)
        device.words(address).cast("B")[8:28] = struct.pack("<dIfB3x", 1.5, 7, -2.0, 1)

    l = launcher()
    plan = l.prepare(kernel([slot("temps")], "<Q", temps_size=64, returns=((f64, 8), (f32, 20), (i32, 16), (u1, 24)), run=run))
    result = plan.launch(Arguments.of([], [], {}))
    assert result == (1.5, -2.0, 7, True) and result[3] is True
    assert l.device.syncs > 0


def test_launch_is_lean():
    class Null(FakeDevice):
        def launch(self, executable, block, counts):
            pass

    l = launcher(Null())
    tree = l.memory.allocate(64)
    slots = [slot("tree", 0), slot("scalar", 0, dtype=i32), slot("scalar", 1, dtype=f32), slot("scalar", 2, dtype=i32)]
    plan = l.prepare(kernel(slots, "<QifI", effects=Effects(writes=frozenset({("tree", 0)}))))
    arguments = Arguments.of([1, 2.0, 3], [None] * 3, {0: tree})
    plan.launch(arguments)
    found = calls_of(lambda: plan.launch(arguments), 10)
    assert found < 8, found


def test_arrays_that_overlap_launch_the_sibling():
    """Arrays are compared by address and length, in their roles; two that the kernel only reads may overlap."""
    disjoint = (DisjointArray(0, "primal", 1, 4, True), DisjointArray(1, "grad", 2, 8, False), DisjointArray(2, "primal", 1, 4, False))
    l = launcher()
    slots = [slot("array", 0), slot("seed")]
    plan = l.prepare(replace(kernel(slots, "<QI4x"), disjoint=disjoint))
    other = replace(kernel(slots, "<QI4x"), name="other")
    made = []
    plan.make_sibling = lambda: made.append(l.prepare(other)) or made[-1]

    def launch(*addresses):
        a, b, c = addresses
        arrays = [ArrayBinding(a, (10,)), ArrayBinding(8, (2, 3), b), ArrayBinding(c, (4,))]
        plan.launch(Arguments.of([None] * 3, arrays, {}))
        return l.device.launches[-1][0] == plan.compiled.name

    assert launch(1000, 1040, 1088) and launch(1000, 952, 984) and launch(1000, 2000, 2000) and not made
    assert not launch(1000, 1039, 5000) and not launch(1000, 953, 5000) and not launch(1000, 5000, 1000) and len(made) == 1
    assert plan.launched is made[0] and plan.last_number == made[0].last_number
    assert launch(1000, 5000, 6000) and plan.launched is None and len(made) == 1


def test_many_arrays_are_compared_as_few_are():
    """More than eight arrays are sorted; the answer is that of all pairs."""
    random = np.random.default_rng(3)
    for count in (9, 12):
        for _ in range(60):
            written = random.integers(0, 3, count) == 0
            arrays = [DisjointArray(k, "primal", 1, 4, bool(w)) for k, w in enumerate(written)]
            starts = random.integers(1, 400, count) * 4
            bindings = [ArrayBinding(int(start), (int(random.integers(1, 12)),)) for start in starts]
            ends = [int(start) + 4 * binding.shape[0] for start, binding in zip(starts, bindings)]
            pairs = [(a, b) for a, b in itertools.combinations(range(count), 2) if written[a] or written[b]]
            expected = any(starts[a] < ends[b] and starts[b] < ends[a] for a, b in pairs)
            assert overlap_test(arrays)(bindings) == expected

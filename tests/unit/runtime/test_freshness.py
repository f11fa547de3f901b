"""Keys of what was found out for a launch: what they depend on, what they cost."""

import struct
import tracemalloc

import pytest
from unit.runtime.calls import calls_of
from unit.runtime.fake_device import FakeDevice, kernel, slot

from spirograd.base.arguments import Arguments, ArrayBinding
from spirograd.base.artifact import Effects, part_name
from spirograd.base.dtypes import f32, f64, i32
from spirograd.base.sizes.size_nodes import Add, Arg, Element, Extent, IfLess, Max, MaxOver, Mul, Variable
from spirograd.runtime.allocations import Memory
from spirograd.runtime.freshness import Freshness
from spirograd.runtime.launcher import Launcher


@pytest.fixture(name="memory")
def memory_of_a_fake_device():
    return Memory(FakeDevice())


def reading(*parts, slots=(), **fields):
    return kernel(slots, effects=Effects(frozenset([p[:2] for p in parts]), frozenset(), frozenset(parts)), **fields)


def bound(allocation, shape=(4,)):
    return ArrayBinding(allocation.address, shape, allocation=allocation)


def test_parts_of_a_tree_are_told_apart(memory):
    tree, other = memory.allocate(64), memory.allocate(64)
    assert [part_name(7, role) for role in ("primal", "grad", "grad_dual")] == ["7", "7.grad", "7.grad_dual"]
    fresh = Freshness([reading(("tree", 3, "7"), ("tree", 3, "8.grad"))], [])

    def key():
        return fresh.key(Arguments.of([], [], {3: tree, 4: other}))

    seen = [key()]
    for write in (
        lambda: tree.write(0, memoryview(b"abcd"), "9"),
        lambda: tree.fill(0, 4, 1, "8"),
        lambda: tree.copy_from(other, 4, part="7.grad"),
        lambda: tree.bump("70"),
        lambda: other.write(0, memoryview(b"abcd")),
    ):
        write()
        assert key() == seen[0]
    for write in (
        lambda: tree.write(0, memoryview(b"abcd"), "7"),
        lambda: tree.fill(0, 4, 1, "8.grad"),
        lambda: tree.copy_from(other, 4, part="7"),
        lambda: tree.bump("7"),
        lambda: tree.bump(),
        lambda: tree.write(0, memoryview(b"abcd")),
        lambda: tree.free(),
    ):
        write()
        seen.append(key())
    assert len(set(seen)) == len(seen)


def test_launches_bump_what_they_write(memory):
    tree, array, gradient = (memory.allocate(16) for _ in range(3))
    launcher = Launcher(memory.device, memory)
    binding = bound(array)
    binding.grad_allocation = gradient
    writes = {"7.grad": ("tree", 3, "7.grad"), "primal": ("array", 0, "primal"), "grad": ("array", 0, "grad")}
    keys = {name: Freshness([reading(part)], []).key for name, part in writes.items()}
    keys |= {"7": Freshness([reading(("tree", 3, "7"))], []).key}
    everything = Effects(frozenset(), frozenset({("tree", 3), ("array", 0)}))
    cases = [(Effects(frozenset(), frozenset([part[:2]]), frozenset(), frozenset([part])), {name}) for name, part in writes.items()]
    for effects, expected in [*cases, (everything, set(keys))]:
        plan = launcher.prepare(kernel(effects=effects))
        before = {name: key(Arguments.of([], [binding], {3: tree})) for name, key in keys.items()}
        plan.launch(Arguments.of([], [binding], {3: tree}))
        after = {name: key(Arguments.of([], [binding], {3: tree})) for name, key in keys.items()}
        assert {name for name in keys if before[name] != after[name]} == expected


def test_a_launch_that_fails_counts_as_a_write(memory):
    tree = memory.allocate(16)

    def run(block, device):
        raise RuntimeError("stopped half-way")

    effects = Effects(frozenset(), frozenset({("tree", 3)}), frozenset(), frozenset({("tree", 3, "7")}))
    plan = Launcher(memory.device, memory).prepare(kernel(effects=effects, run=run))
    key = Freshness([reading(("tree", 3, "7"))], []).key
    before = key(Arguments.of([], [], {3: tree}))
    with pytest.raises(RuntimeError, match="half-way"):
        plan.launch(Arguments.of([], [], {3: tree}))
    assert key(Arguments.of([], [], {3: tree})) != before


def test_scalars_and_extents():
    slots = [slot("scalar", 0, dtype=i32), slot("scalar", 1, dtype=f32), slot("scalar", 2, dtype=f64), slot("shape", 4, axis=1)]
    fresh = Freshness([kernel(slots, "<ifdI")], [Add(Arg(3), Max(Extent(4, 0), 5)), None, 7])

    def key(a=1, b=0.0, c=2, d=4, shape=(3, 5, 8), unused=0):
        return fresh.key(Arguments.of([a, b, c, d, None, unused], [None] * 4 + [ArrayBinding(0, shape)], {}))

    nan = [struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in (0x7FF8000000000000, 0x7FF8000000000000)]
    assert nan[0] != nan[1] and key(b=nan[0]) == key(b=nan[1])
    assert key() == key(c=2.0, unused=9) == key(shape=(3, 5, 9))
    others = [{"a": 2}, {"b": -0.0}, {"c": 2.5}, {"d": 5}, {"shape": (3, 6, 8)}, {"shape": (2, 5, 8)}, {"b": nan[0]}]
    assert len({key(), *(key(**other) for other in others)}) == len(others) + 1
    assert key(b="x") is None and key(c=10**400) is None
    assert Freshness([], []).key(Arguments.of([], [], {})) == ()


def test_reads_of_sizes_count_whether_or_not_they_are_reached(memory):
    tree, array = memory.allocate(64), memory.allocate(64)
    inner = Element("array", 0, Mul(4, Variable(1)), i32, 0, (Variable(1),))
    n = Element("tree", 3, 8, i32, 7, (2,))
    fresh = Freshness([], [MaxOver(1, 0, Arg(1), IfLess(5, 2, inner)), Mul(0, n)])

    def key(shape=(4,)):
        return fresh.key(Arguments.of([None, 0], [bound(array, shape)], {3: tree}))

    keys = [key()]
    array.bump()
    keys.append(key())
    tree.bump("7")
    keys.append(key())
    keys.append(key((2, 2)))
    assert len(set(keys)) == 4
    tree.bump("7.grad")
    assert key((2, 2)) == keys[-1]


def test_what_can_change_unseen_has_no_key(memory):
    tree, array, shared = (memory.allocate(64) for _ in range(3))
    fresh = Freshness([reading(("tree", 3, "7"), ("array", 0, "primal"), slots=[slot("shape", 1)])], [])
    plain = [bound(array), ArrayBinding(0, (3,))]
    before = fresh.key(Arguments.of([], plain, {3: tree}))
    tree.share("8")
    assert fresh.key(Arguments.of([], plain, {3: tree})) == before
    assert fresh.key(Arguments.of([], [ArrayBinding(array.address, (4,)), plain[1]], {3: tree})) is None
    tree.share("7")
    assert fresh.key(Arguments.of([], plain, {3: tree})) is None
    shared.share()
    assert fresh.key(Arguments.of([], plain, {3: shared})) is None
    assert fresh.key(Arguments.of([], [bound(shared), plain[1]], {3: memory.allocate(64)})) is None
    handed = memory.allocate(64)
    assert fresh.key(Arguments.of([], plain, {3: handed})) is not None
    assert handed.host_address is not None and fresh.key(Arguments.of([], plain, {3: handed})) is None
    for unknown in (Effects(frozenset({("tree", 3)})), Effects(frozenset({("array", 0)}))):
        assert Freshness([kernel(effects=unknown)], []).key(Arguments.of([], plain, {3: memory.allocate(64)})) is None


def test_wrapped_memory_is_shared():
    class Wrapping(FakeDevice):
        def wrap(self, address, nbytes):
            return self.allocate(nbytes)

    wrapped = Memory(Wrapping()).wrap(4096, 64, None)
    assert Freshness([reading(("tree", 3, "7"))], []).key(Arguments.of([], [], {3: wrapped})) is None


def test_gradients_of_arrays(memory):
    array, gradient = memory.allocate(64), memory.allocate(64)
    fresh = Freshness([reading(("array", 0, "grad"))], [])
    binding = bound(array)
    assert fresh.key(Arguments.of([], [binding], {})) is None  # of a torch tensor
    binding.grad_allocation = gradient
    before = fresh.key(Arguments.of([], [binding], {}))
    array.bump()
    assert fresh.key(Arguments.of([], [binding], {})) == before
    gradient.bump()
    assert fresh.key(Arguments.of([], [binding], {})) != before


def test_random_numbers():
    fresh = Freshness([kernel([slot("seed")], "<I")], [])
    assert fresh.key(Arguments.of([], [], {})) is None
    assert fresh.key(Arguments.of([], [], {}), 5) == fresh.key(Arguments.of([], [], {}), 5) != fresh.key(Arguments.of([], [], {}), 6)
    assert Freshness([kernel()], []).key(Arguments.of([], [], {}), 5) == Freshness([kernel()], []).key(Arguments.of([], [], {}))


def test_results_of_the_kernels_count_for_nothing(memory):
    user, result = memory.allocate(64), memory.allocate(64)
    parts = frozenset({("array", 0, "primal"), ("array", 1, "primal")})
    counting = kernel(
        effects=Effects(frozenset({("array", 0), ("array", 1)}), frozenset({("array", 1)}), parts, parts - {("array", 0, "primal")})
    )
    fresh = Freshness([counting], [])
    before = fresh.key(Arguments.of([], [bound(user), bound(result)], {}))
    result.bump()
    assert fresh.key(Arguments.of([], [bound(user), bound(result)], {})) == before == fresh.key(Arguments.of([], [bound(user)], {}))
    user.bump()
    assert fresh.key(Arguments.of([], [bound(user)], {})) != before


def test_two_kernels_that_share_arrays(memory):
    a, b = memory.allocate(64), memory.allocate(64)
    first = Freshness([reading(("array", 0, "primal"))], [])
    second = Freshness([reading(("array", 0, "primal"), ("array", 1, "primal"))], [])
    writer = kernel(effects=Effects(frozenset(), frozenset({("array", 1)}), frozenset(), frozenset({("array", 1, "primal")})))
    plan = Launcher(memory.device, memory).prepare(writer)

    def keys():
        return (
            first.key(Arguments.of([], [bound(a)], {})),
            first.key(Arguments.of([], [bound(b)], {})),
            second.key(Arguments.of([], [bound(a), bound(b)], {})),
        )

    before = keys()
    plan.launch(Arguments.of([], [bound(a), bound(b)], {}))
    after = keys()
    assert before[0] == after[0] and before[1] != after[1] and before[2] != after[2]
    # One launch writes both: as arguments of the other kernel in each other's place they are not taken for one another.
    both = frozenset({("array", 0, "primal"), ("array", 1, "primal")})
    all_written = Effects(frozenset(), frozenset([p[:2] for p in both]), frozenset(), both)
    Launcher(memory.device, memory).prepare(kernel(effects=all_written)).launch(Arguments.of([], [bound(a), bound(b)], {}))
    assert second.key(Arguments.of([], [bound(a), bound(b)], {})) != second.key(Arguments.of([], [bound(b), bound(a)], {}))


def test_memory_at_the_same_address_is_other_memory():
    class Same(FakeDevice):
        def allocate(self, nbytes, zeroed=True):
            if not self.live:
                self.kept = getattr(self, "kept", None) or super().allocate(nbytes)
                self.live = {self.kept.address: (self.kept, self.kept.handle)}
            return self.kept

    memory = Memory(Same())
    of_tree, of_array = (Freshness([reading(part)], []) for part in (("tree", 3, "7"), ("array", 0, "primal")))
    keys, addresses = set(), set()
    for _ in range(10):
        allocation = memory.allocate(64)
        addresses.add(allocation.address)
        keys |= {
            ("tree", of_tree.key(Arguments.of([], [], {3: allocation}))),
            ("array", of_array.key(Arguments.of([], [bound(allocation)], {}))),
        }
        del allocation
    assert len(addresses) == 1 and len(keys) == 20


def test_hits_take_no_memory(memory):
    tree, array = memory.allocate(64), memory.allocate(64)
    parts = [("tree", 3, str(k)) for k in range(4)]
    fresh = Freshness([reading(*parts, ("array", 1, "primal"), slots=[slot("scalar", 0, dtype=i32)])], [Extent(1, 0)])
    args = Arguments.of([5, None], [None, bound(array)], {3: tree})
    first = fresh.key(args)
    tracemalloc.start()
    try:
        assert sum(fresh.key(args) == first for _ in range(20_000)) == 20_000
        for _ in range(20_000):
            tree.bump("1")
            fresh.key(args)
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert grown < 10_000
    assert len(first) < 20


def test_a_key_is_cheap(memory):
    tree, array = memory.allocate(64), memory.allocate(64)
    parts = [("tree", 3, str(k)) for k in range(3)]
    slots = [slot("scalar", 0, dtype=i32), slot("scalar", 2, dtype=f32)]
    fresh = Freshness([reading(*parts, ("array", 1, "primal"), slots=slots)], [])
    args = Arguments.of([5, None, 2.0], [None, bound(array)], {3: tree})
    fresh.key(args)
    found = calls_of(lambda: fresh.key(args), 10)
    assert found < 9, found

"""Guards of adstacks: which condition decides whether an iteration has adstacks; the guard count; claims of thread slots, and their
layout."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from spirograd.analysis.adstacks import adstacks_of, counter, sizes_of
from spirograd.analysis.trial import run
from spirograd.autodiff.adstack_guards import adstack_guards
from spirograd.autodiff.sizing import sizing
from spirograd.autodiff.sweep import capacity_of
from spirograd.base.adstack_layout import ADSTACK_PADDING, AdstackWords
from spirograd.base.artifact import ArgBlock, CompiledKernel, TaskInfo
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import f32, f64, i32, i64
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import AdstackRef, ArrayArg, ArrayRef, Kernel, LoopAttr, Region, ScalarArg, ref_of
from spirograd.ir.rewrite import Rewriter
from spirograd.ir.spec import verify
from spirograd.runtime.adstack_heap import AdstackHeap, HeapPlan
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.tasks.offload import offload
from spirograd.transforms.tasks.place_adstacks import place_adstacks, word

CTX = PassContext(Capabilities("vulkan"), CompileOptions())
NUMBERS = ArrayRef("numbers", 0, i32, 1)
OUT = ArrayRef("out", 1, f32, 1)
ARGS = (ArrayArg("numbers", i32, 1), ArrayArg("out", f32, 1), ScalarArg("n", i32))


class Writer:
    """Gradient kernels by hand: one parallel loop with conditions and loops with adstacks."""

    def __init__(self, constant=None, wide=False):
        self.b = b = Builder()
        b.begin()
        self.n = b.emit(ops.arg, attr=2, type=i32) if constant is None else b.const(constant)
        self.wide = wide
        self.adstacks = []

    def recorded(self, count=None, dtype=i32):
        """A loop that notes its count and what it carries, then reads all that."""
        b = self.b
        k = len(self.adstacks)
        adstack = AdstackRef(f"adstack{k}", dtype, 1, k)
        self.adstacks.append(adstack)
        count = b.const(count) if isinstance(count, int) else b.load(NUMBERS, b.const(0))
        b.atomic("max", capacity_of(k), count)
        zero = b.const(0)
        for reading in (False, True):
            i, x = b.begin(i32, i32)
            if reading:
                x = b.emit(ops.add, x, b.cast(b.load(adstack, i, b.const(0)), i32), attr="wrap")
            else:
                b.store(adstack, i, b.const(0), b.cast(x, dtype))
            (total,) = b.for_(zero, count, (zero,), b.end((b.emit(ops.add, x, i, attr="wrap"),)))
        b.atomic("add", OUT, b.const(0), b.cast(total, f32))

    def when(self, condition, then, orelse=lambda: None):
        b = self.b
        b.begin()
        then()
        regions = [b.end()]
        b.begin()
        orelse()
        b.if_(condition, *regions, b.end())

    def loop(self, body):
        b = self.b
        bounds = b.const(0), b.const(3)
        (i,) = b.begin(i32)
        body(i)
        b.for_(*bounds, (), b.end())

    def positive(self, i):
        b = self.b
        return b.emit(ops.gt, b.load(NUMBERS, b.cast(i, i32)), b.const(0))

    def kernel(self, body):
        b = self.b
        t = i64 if self.wide else i32
        bounds = b.const(0, t), b.cast(self.n, t)
        (i,) = b.begin(t)
        body(i)
        b.for_(*bounds, (), b.end(), LoopAttr(parallel=True))
        kernel = Kernel("k", ARGS, b.end(), ())
        verify(kernel, "kernel")
        return kernel


def guards_of(writer, body, sizes=(None,) * 4):
    return adstack_guards(writer.kernel(body), sizes)


def test_the_innermost_branch_with_all_tapes():
    w = Writer()

    def body(i):
        def inner():
            w.when(w.positive(i), lambda: (w.recorded(), w.recorded()), lambda: w.b.store(OUT, w.b.const(1), w.b.const(1.0, f32)))

        w.when(w.positive(i), lambda: w.b.store(OUT, w.b.const(0), w.b.const(1.0, f32)), inner)

    (guard,) = guards_of(w, body)
    assert guard.adstacks == set(w.adstacks)
    inside = [op for op in guard.region.walk() if isinstance(op.attr, AdstackRef)]
    assert len(inside) == 4
    assert not [op for op in guard.region.walk() if op.code is ops.if_]


def test_each_branch_guards_its_own_tapes():
    """Also below another branch: a claim there is for the adstacks that are used in there only."""
    w = Writer()

    def body(i):
        def inner():
            w.recorded()
            w.when(w.positive(i), lambda: (w.recorded(), w.recorded()), w.recorded)

        w.when(w.positive(i), inner)
        w.when(w.positive(i), w.recorded)

    found = guards_of(w, body, (None,) * 5)
    t = w.adstacks
    assert {guard.adstacks for guard in found} == {frozenset(adstacks) for adstacks in ([t[0]], [t[1], t[2]], [t[3]], [t[4]])}
    for guard in found:
        used = {op.attr for op in guard.region.ops for op in (op, *(x for r in op.regions for x in r.walk()))}
        assert guard.adstacks <= used


def test_a_tape_of_two_branches_is_guarded_by_the_branch_around_both():
    w = Writer()

    def body(i):
        def inner():
            w.when(w.positive(i), w.recorded, lambda: w.b.load(w.adstacks[0], w.b.const(0), w.b.const(0)))

        w.when(w.positive(i), inner)

    (guard,) = guards_of(w, body)
    assert [op.code for op in guard.region.ops if op.regions] == [ops.if_]
    w = Writer()
    conditions = lambda i: w.when(w.positive(i), w.recorded, lambda: w.b.load(w.adstacks[0], w.b.const(0), w.b.const(0)))  # noqa: E731
    assert guards_of(w, conditions) == ()


def test_a_serial_loop_is_not_entered():
    w = Writer()
    (guard,) = guards_of(w, lambda i: w.when(w.positive(i), lambda: w.loop(lambda k: w.when(w.positive(k), w.recorded))))
    assert [op.code for op in guard.region.ops if op.regions] == [ops.for_]


@pytest.mark.parametrize(
    "body",
    [
        lambda w, i: w.recorded(),
        lambda w, i: w.loop(lambda k: w.when(w.positive(k), w.recorded)),
        lambda w, i: w.when(w.positive(i), lambda: None),
    ],
    ids=["bare", "loop outside", "no adstacks"],
)
def test_no_gate(body):
    w = Writer()
    assert guards_of(w, lambda i: body(w, i)) == ()


def test_tapes_elsewhere_leave_others_behind_their_guard():
    """Of floats and of integers."""
    w = Writer()
    (guard,) = guards_of(w, lambda i: (w.recorded(), w.when(w.positive(i), lambda: (w.recorded(dtype=f32), w.recorded())), w.recorded()))
    assert guard.adstacks == set(w.adstacks[1:3])
    w = Writer()
    (guard,) = guards_of(w, lambda i: (w.recorded(), w.when(w.positive(i), lambda: w.recorded(dtype=f32)), w.recorded(dtype=f32)))
    assert guard.adstacks == {w.adstacks[1]}


@pytest.mark.parametrize(
    ("n", "sizes", "guards"),
    [(1000, (200, 62), False), (1000, (200, 63), True), (1000, (200, None), True), (None, (1, 1), True), (100_000_000, (1, 1), True)],
)
def test_small_tapes_are_left_alone(n, sizes, guards):
    """1 MiB in all, if the compiler can tell."""
    w = Writer(n)
    assert len(guards_of(w, lambda i: w.when(w.positive(i), lambda: (w.recorded(), w.recorded())), sizes)) == guards


def test_no_gate_where_iterations_cannot_be_counted():
    w = Writer(wide=True)
    assert guards_of(w, lambda i: w.when(w.positive(i), w.recorded)) == ()


# --- what becomes of them --------------------------------------------------------------------------------------------------


def guarded(target="vulkan", counts=(None,)):
    w = Writer()
    kernel = w.kernel(lambda i: w.when(w.positive(i), lambda: [w.recorded(count) for count in counts]))
    return sizing(kernel, PassContext(Capabilities(target), CompileOptions()))


@pytest.mark.parametrize("numbers", [[3, -1, 0, 5, 7], [-2, -3], [4]], ids=str)
def test_all_iterations_are_counted(numbers):
    main, (stage,), sizes = guarded()
    assert sizes == (None, None)
    found = np.full(2, -7, np.int32)
    run(stage.kernel, [np.array(numbers, np.int32), np.zeros(1, np.float32), len(numbers), found], {})
    assert list(found) == [max(numbers[0], 1), sum(k > 0 for k in numbers)]
    verify(main, "kernel")
    (claim,) = [op for op in main.walk() if op.code is ops.claim]
    assert claim.attr == counter(1)


def test_lengths_that_are_known_are_handed_over_too():
    """Whether or not the host knows them: one place says what adstacks are placed by."""
    main, (stage,), sizes = guarded(counts=(5, 9))
    assert [size is None for size in sizes] == [False, False, True]
    assert sizes_of(main) is not None
    found = np.zeros(3, np.int32)
    run(stage.kernel, [np.array([1, 0, 1], np.int32), np.zeros(1, np.float32), 3, found], {})
    assert list(found) == [5, 9, 2]


def test_the_cpu_has_slots_for_workers():
    main, stages, sizes = guarded("cpu")
    assert len(sizes) == 1
    assert not [op for op in main.walk() if op.code is ops.claim]
    assert not [stage for stage in stages if len(stage.numbers) != 1]


class Given(Rewriter):
    """Numbers for what a launch says of its adstacks."""

    def __init__(self, words):
        super().__init__()
        self.words = words
        self.handlers = {ops.adstack_word: lambda op: self.b.const(self.words[op.attr[0]])}


def placed(heap_words, asked, capacity, guard):
    """Rows that take part, claims that have a thread slot, distance between entries; None where no thread slot fits."""
    tasks = place_adstacks(offload(guarded()[0], CTX), CTX)
    verify(tasks, "kernel")
    (adstack,) = adstacks_of(tasks).values()
    assert (adstack.slots, adstack.guard) == (1, 1)
    first, task = tasks.body.ops[:2]
    returns = (word("adstack_slots", 1), word("adstack_claims", 1), word("adstack_pitch", 0), counter(1))
    b = Builder()
    b.begin()
    b.store(counter(1), b.const(77))
    start = b.end().ops[:-1]
    body = Region((), (*start, *first.regions[0].ops))
    kernel = Kernel("place", tasks.args, body, returns)
    kernel = Given({"adstack_heap_words": heap_words, "adstack_slots": asked}).kernel(kernel)
    sizes = np.array([capacity, guard], np.int32)
    arguments = [np.zeros(1, np.int32), np.zeros(1, np.float32), 0, sizes]
    outcome = run(kernel, arguments, {})
    slots, claims, pitch, claimed = (int(v) for v in outcome.returns)
    assert claimed == 0, "the counter begins anew"
    assert (outcome.fault is not None) == (slots == 0)
    assert len(task.regions[0].results) == 3
    return slots, claims, pitch


@pytest.mark.parametrize("guard", [0, 1, 2, 31, 100, 101, 4095])
def test_all_take_part_if_there_is_a_slot_for_each_claim(guard):
    slots, claims, pitch = placed(5000 * 10, 4096, 10, guard)
    assert slots == 4096
    assert guard <= claims == pitch <= guard + 1 + ADSTACK_PADDING
    assert pitch % 2 == 0


@pytest.mark.parametrize("guard", [4096, 5000, 2**31 - 1, -5])
def test_no_more_slots_than_invocations(guard):
    """Also where so many pass that the count has wrapped."""
    slots, _, pitch = placed(5000 * 10, 4096, 10, guard)
    assert (slots, pitch) == (4096, 4096 + ADSTACK_PADDING)


@pytest.mark.parametrize("heap_words", [999, 1000, 1010, 1017, 640, 40, 20])
def test_else_as_many_as_there_are_slots(heap_words):
    slots, claims, pitch = placed(heap_words, 4096, 10, 1001)
    assert 2 <= slots <= claims == pitch
    assert pitch * 10 <= heap_words
    assert pitch > heap_words // 10 - 2


def test_a_tight_heap_is_enough():
    for guard in (1, 2, 33, 50, 51):
        padded = guard + ADSTACK_PADDING if guard > ADSTACK_PADDING else guard
        slots, claims, _ = placed((padded + 1 & -2) * 11, 4096, 11, guard)
        assert slots == 4096
        assert claims >= guard


def test_no_room_for_a_slot():
    assert placed(18, 4096, 10, 5)[:2] == (0, 0)


def test_claims_without_tapes_go():
    main, _, _ = guarded()

    class Bare(Rewriter):
        def __init__(self):
            super().__init__()
            self.handlers = dict.fromkeys((ops.load, ops.store), self._drop)

        def _drop(self, op):
            if not isinstance(ref_of(op), AdstackRef):
                return self.copy(op)
            return self.b.const(0) if op.code is ops.load else None

    tasks = place_adstacks(offload(Bare().kernel(replace(main)), CTX), CTX)
    assert not [op for op in tasks.walk() if op.code is ops.claim]


# --- two kinds of thread slots -----------------------------------------------------------------------------------------------------


def both_kinds(dtype=i64):
    """A task with adstacks of integers that all iterations use, and of ``dtype`` and integers that some do."""
    w = Writer()
    kernel = w.kernel(
        lambda i: (w.recorded(), w.when(w.positive(i), lambda: (w.recorded(dtype=dtype), w.recorded())), w.recorded(dtype=i64))
    )
    main, _, sizes = sizing(kernel, CTX)
    assert len(sizes) == 5
    tasks = place_adstacks(offload(main, CTX), CTX)
    verify(tasks, "kernel")
    return tasks


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("heap_words", [60, 61, 200, 1000, 5000, 20_000, 300_000])
def test_slots_of_both_kinds_lie_apart(heap_words, dtype):
    """And the host tells afterwards what the device did."""
    tasks = both_kinds(dtype)
    adstacks = list(adstacks_of(tasks).values())
    assert {(adstack.name, adstack.slots, adstack.guard) for adstack in adstacks} == {
        ("adstack0", None, None), ("adstack1", 4, 4), ("adstack2", 4, 4), ("adstack3", None, None)
    }  # fmt: skip
    order = tasks.body.ops[0]
    words = [word(kind, k) for k in range(len(adstacks)) for kind in ("adstack_base", "adstack_pitch")]
    kernel = Kernel("place", tasks.args, order.regions[0], (word("adstack_slots", 1), word("adstack_claims", 4), *words))
    infos = (TaskInfo("place.adstacks", "serial", "", 0, places=True), TaskInfo("k_0", "range_for", "", 0, None, None, 64))
    made = CompiledKernel("k", "vulkan", "", ArgBlock((), "", 0), infos, adstacks=tuple(adstacks))
    heap = AdstackHeap(SimpleNamespace(caps=Capabilities("vulkan")), SimpleNamespace())
    for sizes in ([3, 2, 5, 1, 7], [1, 1, 1, 1, 0], [3, 40, 1, 2, 300], [3, 40, 1, 2, 2**31 - 1], [9, 1, 1, 1, 33]):
        for asked in (1, 32, 33, 400):
            given = Given({"adstack_heap_words": heap_words, "adstack_slots": asked}).kernel(kernel)
            outcome = run(given, [np.zeros(1, np.int32), np.zeros(1, np.float32), 0, np.array(sizes, np.int32)], {})
            slots, claims, *placed = (int(v) for v in outcome.returns)
            used = heap.resolve(made, HeapPlan(AdstackWords(heap_words=(heap_words,), slots=(0, asked)), (None, None), (), 0), sizes)
            if outcome.fault is not None:
                assert slots == claims == 0
                assert sum(2 * adstack.words * max(sizes[adstack.capacity], 1) for adstack in adstacks) > heap_words
                continue
            taken = []
            for adstack, base, pitch in zip(adstacks, placed[::2], placed[1::2]):
                scale = adstack.dtype.size // 4
                assert pitch >= (slots if adstack.guard is None else claims)
                taken.append((base * scale, (base + pitch * sizes[adstack.capacity]) * scale))
            taken.sort()
            assert all(end <= begin for (_, end), (begin, _) in pairwise(taken)), (sizes, asked)
            assert taken[-1][1] <= heap_words
            dense, claimed = used.shares
            assert (dense.guard, claimed.guard) == (None, 4)
            pitches = {adstack.guard: pitch for adstack, pitch in zip(adstacks, placed[1::2])}
            assert (dense.pitch, claimed.pitch) == (pitches[None], pitches[4])
            assert 4 * taken[-1][1] <= used.nbytes <= 4 * heap_words
            assert slots >= min(asked, dense.slots)
            assert claims >= min(asked, sizes[4]) or slots < asked

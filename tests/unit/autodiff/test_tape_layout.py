"""Where tapes lie: the task that places them on the device and the host compute the same, and no two elements share a word."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from spirograd.analysis.tapes import SIZES, counter, tapes_of
from spirograd.analysis.trial import run
from spirograd.base.artifact import ArgBlock, CompiledKernel, TaskInfo
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import VOID, f32, f64, i32, i64
from spirograd.base.options import CompileOptions
from spirograd.base.tape_layout import ADDRESSING, TapeWord, TapeWords
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import Kernel, TapeRef, TaskAttr
from spirograd.ir.rewrite import Rewriter
from spirograd.ir.spec import verify
from spirograd.runtime.tape_heap import HeapPlan, TapeHeap
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.tasks.place_tapes import place_tapes, word

CTX = PassContext(Capabilities("vulkan"), CompileOptions())
CAPACITIES = 4


def tapes_with(*capacities):
    """Type, width and number of the capacity of each. Loops of serial tasks are not those of others, so their tapes share no capacity."""
    return st.lists(st.tuples(st.sampled_from((f32, f64, i32, i64)), st.integers(1, 3), st.sampled_from(capacities)), max_size=3)


SERIAL, TAPES = tapes_with(0, 1), tapes_with(2, 3)
COUNTS = st.one_of(st.integers(0, 300), st.sampled_from((2**31 - 1, -1, -(2**31))))
# Invocations asked for; tapes that all use, and how many these are unless all; of each guard, its tapes and how many claim a thread slot.
GUARDS = st.lists(st.tuples(TAPES, COUNTS), max_size=3)
RANGES = st.tuples(st.one_of(st.integers(0, 70), st.integers(100, 500)), TAPES, st.one_of(st.none(), COUNTS), GUARDS)
CAPACITY = st.integers(1, 30)


class Given(Rewriter):
    """Numbers for what a launch says of its tapes."""

    def __init__(self, words):
        super().__init__()
        self.handlers = {ops.tape_word: lambda op: self.b.const(words[op.attr])}


class Writer:
    """A kernel after `offload`, whose tasks use tapes; ``sizes`` are those that it finds on the device."""

    def __init__(self, capacities):
        self.b = Builder()
        self.b.begin()
        self.sizes = list(capacities)
        self.tapes = 0

    def use(self, tapes, slots=None):
        b = self.b
        for dtype, width, capacity in tapes:
            b.store(TapeRef(f"tape{self.tapes}", dtype, width, capacity, slots), b.const(0), b.const(0), b.const(0, dtype))
            self.tapes += 1

    def size(self, value):
        self.sizes.append(value)
        return len(self.sizes) - 1

    def serial(self, name, tapes):
        self.b.begin()
        self.use(tapes)
        self.b.emit(ops.task, attr=TaskAttr("serial", name), type=VOID, regions=(self.b.end(),))

    def range(self, name, dense, count, guards):
        b = self.b
        b.begin()
        bounds = b.end((b.const(0), b.const(9)))
        b.begin(i32)
        self.use(dense, None if count is None else self.size(count))
        for tapes, claims in guards:
            if tapes:
                guard = self.size(claims)
                b.emit(ops.claim, attr=counter(guard), type=i32)
                self.use(tapes, guard)
        body = b.end()
        b.begin()
        b.emit(ops.task, attr=TaskAttr("range_for", name), type=VOID, regions=(bounds, body, b.end()))

    def kernel(self):
        kernel = Kernel("k", (SIZES,), self.b.end(), ())
        verify(kernel, "kernel")
        return kernel


def placed_by_the_device(kernel: Kernel, heap_words: int, asked: list[int], sizes: list[int]):
    """The words that the task leaves for those after it, by kind and number; and whether it reports that there is too little heap_words."""
    tapes = tapes_of(kernel).values()
    wanted = [(kind, k) for k in range(len(tapes)) for kind in ADDRESSING]
    wanted += [(TapeWord.CLAIMS, k) for k in sorted({tape.guard for tape in tapes if tape.guard is not None})]
    used = {tape.task for tape in tapes}
    wanted += [(TapeWord.SLOTS, k) for k, op in enumerate(kernel.body.ops[:-1]) if op.attr.kind == "range_for" and op.attr.name in used]
    returns = tuple([word(*key) for key in wanted])
    order = Kernel("place", kernel.args, kernel.body.ops[0].regions[0], returns)
    known = {(TapeWord.HEAP_WORDS, 0): heap_words, **{(TapeWord.SLOTS, k): n for k, n in enumerate(asked)}}
    outcome = run(Given(known).kernel(order), [np.array(sizes, np.int64).astype(np.int32)], {})
    return dict(zip(wanted, map(int, outcome.returns))), outcome.fault is not None


def placed_by_the_host(kernel: Kernel, heap_words: int, asked: list[int], sizes: list[int]) -> HeapPlan:
    infos = tuple([TaskInfo(op.attr.name, op.attr.kind, "", 0, places=op.attr.places) for op in kernel.body.ops[:-1]])
    made = CompiledKernel("k", "vulkan", "", ArgBlock((), "", 0), infos, tapes=tuple(tapes_of(kernel).values()))
    heap = TapeHeap(SimpleNamespace(caps=Capabilities("vulkan")), SimpleNamespace())
    return heap.resolve(made, HeapPlan(TapeWords(heap_words=(heap_words,), slots=tuple(asked)), (), (), 0), sizes)


def check_words(kernel: Kernel, found: dict[tuple[TapeWord, int], int], plan: HeapPlan, failed: bool) -> None:
    """The host finds the same words."""
    pitches = {tape.guard: plan.words.pitches[k] for k, tape in enumerate(tapes_of(kernel).values())}
    for (kind, k), value in found.items():
        if kind is TapeWord.CLAIMS:
            assert value in ((pitches[k], 0) if failed else (pitches[k],))
        else:
            own = {TapeWord.BASE: plan.words.bases, TapeWord.PITCH: plan.words.pitches, TapeWord.SLOTS: plan.words.slots}[kind]
            assert value == own[k], (kind, k)


def check_elements(kernel: Kernel, found: dict[tuple[TapeWord, int], int], heap_words: int, sizes: list[int]) -> None:
    """Of a launch with enough heap_words: all elements are inside of it, and lie apart from those of the same task and of serial ones."""
    numbers = {op.attr.name: k for k, op in enumerate(kernel.body.ops[:-1])}
    tapes = list(enumerate(tapes_of(kernel).values()))
    taken = {None: np.zeros(heap_words, np.int32)}
    for k, tape in sorted(tapes, key=lambda item: item[1].task is not None):
        own = taken.setdefault(tape.task, taken[None].copy())
        base, pitch, scale = found[TapeWord.BASE, k], found[TapeWord.PITCH, k], tape.dtype.size // 4
        if tape.guard is not None:
            slots = found[TapeWord.CLAIMS, tape.guard]
        else:
            slots = 1 if tape.task is None else found[TapeWord.SLOTS, numbers[tape.task]]
        for entry in range(sizes[tape.capacity] * tape.width):
            begin = (base + entry * pitch if tape.task is not None else base + entry) * scale
            assert 0 <= begin <= begin + slots * scale <= heap_words, tape
            own[begin : begin + slots * scale] += 1
    assert all(words.max(initial=0) <= 1 for words in taken.values())


@settings(max_examples=100, deadline=None)
@given(st.lists(CAPACITY, min_size=CAPACITIES, max_size=CAPACITIES), SERIAL, st.lists(RANGES, max_size=3), st.data())
def test_the_host_places_tapes_as_the_device_does(capacities, serial, ranges, data):
    writer = Writer(capacities)
    writer.serial("before", serial[:1])
    for k, (_, *tapes) in enumerate(ranges):
        writer.range(f"task{k}", *tapes)
    writer.serial("after", serial[1:])
    kernel = place_tapes(writer.kernel(), CTX)
    asked = [0, 0, *[n for n, *_ in ranges], 0]
    if not writer.tapes:
        return
    verify(kernel, "kernel")
    needed = placed_by_the_host(kernel, 1 << 29, asked, writer.sizes).nbytes // 4
    heap_words = data.draw(st.one_of(st.integers(0, needed), st.integers(needed // 2, needed), st.integers(needed, needed + 100)))
    found, failed = placed_by_the_device(kernel, heap_words, asked, writer.sizes)
    plan = placed_by_the_host(kernel, heap_words, asked, writer.sizes)
    check_words(kernel, found, plan, failed)
    event("fails" if failed else "all thread slots" if heap_words >= needed else "fewer thread slots")
    assert not (failed and heap_words >= needed)
    if failed:
        return
    assert plan.nbytes <= 4 * heap_words
    check_elements(kernel, found, heap_words, writer.sizes)
    owners = [op.attr for op in kernel.body.ops[:-1]]
    for k, owner in enumerate(owners):
        if (TapeWord.SLOTS, k) in found and heap_words >= needed:
            dense = [tape for tape in tapes_of(kernel).values() if tape.task == owner.name and tape.guard is None]
            count = None if not dense or dense[0].slots is None else writer.sizes[dense[0].slots]
            all_slots = asked[k] if count is None or count < 0 else min(asked[k], count)
            assert all_slots <= found[TapeWord.SLOTS, k] <= asked[k]

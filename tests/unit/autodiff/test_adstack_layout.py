"""Where adstacks lie: the task that places them on the device and the host compute the same, and no two elements share a word."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from spirograd.analysis.adstacks import SIZES, adstacks_of, counter
from spirograd.analysis.trial import run
from spirograd.base.adstack_layout import ADDRESSING, AdstackWord, AdstackWords
from spirograd.base.artifact import ArgBlock, CompiledKernel, TaskInfo
from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import VOID, f32, f64, i32, i64
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import AdstackRef, Kernel, TaskAttr
from spirograd.ir.rewrite import Rewriter
from spirograd.ir.spec import verify
from spirograd.runtime.adstack_heap import AdstackHeap, HeapPlan
from spirograd.transforms.pass_context import PassContext
from spirograd.transforms.tasks.place_adstacks import place_adstacks, word

CTX = PassContext(Capabilities("vulkan"), CompileOptions())
CAPACITIES = 4


def tapes_with(*capacities):
    """Type, width and number of the capacity of each. Loops of serial tasks are not those of others, so their adstacks share no
    capacity."""
    return st.lists(st.tuples(st.sampled_from((f32, f64, i32, i64)), st.integers(1, 3), st.sampled_from(capacities)), max_size=3)


SERIAL, TAPES = tapes_with(0, 1), tapes_with(2, 3)
COUNTS = st.one_of(st.integers(0, 300), st.sampled_from((2**31 - 1, -1, -(2**31))))
# Invocations asked for; adstacks that all use, and how many these are unless all; of each guard, its adstacks and how many claim a thread
# slot.
GUARDS = st.lists(st.tuples(TAPES, COUNTS), max_size=3)
RANGES = st.tuples(st.one_of(st.integers(0, 70), st.integers(100, 500)), TAPES, st.one_of(st.none(), COUNTS), GUARDS)
CAPACITY = st.integers(1, 30)


class Given(Rewriter):
    """Numbers for what a launch says of its adstacks."""

    def __init__(self, words):
        super().__init__()
        self.handlers = {ops.adstack_word: lambda op: self.b.const(words[op.attr])}


class Writer:
    """A kernel after `offload`, whose tasks use adstacks; ``sizes`` are those that it finds on the device."""

    def __init__(self, capacities):
        self.b = Builder()
        self.b.begin()
        self.sizes = list(capacities)
        self.adstacks = 0

    def use(self, adstacks, slots=None):
        b = self.b
        for dtype, width, capacity in adstacks:
            b.store(AdstackRef(f"adstack{self.adstacks}", dtype, width, capacity, slots), b.const(0), b.const(0), b.const(0, dtype))
            self.adstacks += 1

    def size(self, value):
        self.sizes.append(value)
        return len(self.sizes) - 1

    def serial(self, name, adstacks):
        self.b.begin()
        self.use(adstacks)
        self.b.emit(ops.task, attr=TaskAttr("serial", name), type=VOID, regions=(self.b.end(),))

    def range(self, name, dense, count, guards):
        b = self.b
        b.begin()
        bounds = b.end((b.const(0), b.const(9)))
        b.begin(i32)
        self.use(dense, None if count is None else self.size(count))
        for adstacks, claims in guards:
            if adstacks:
                guard = self.size(claims)
                b.emit(ops.claim, attr=counter(guard), type=i32)
                self.use(adstacks, guard)
        body = b.end()
        b.begin()
        b.emit(ops.task, attr=TaskAttr("range_for", name), type=VOID, regions=(bounds, body, b.end()))

    def kernel(self):
        kernel = Kernel("k", (SIZES,), self.b.end(), ())
        verify(kernel, "kernel")
        return kernel


def placed_by_the_device(kernel: Kernel, heap_words: int, asked: list[int], sizes: list[int]):
    """The words that the task leaves for those after it, by kind and number; and whether it reports that there is too little heap_words."""
    adstacks = adstacks_of(kernel).values()
    wanted = [(kind, k) for k in range(len(adstacks)) for kind in ADDRESSING]
    wanted += [(AdstackWord.CLAIMS, k) for k in sorted({adstack.guard for adstack in adstacks if adstack.guard is not None})]
    used = {adstack.task for adstack in adstacks}
    wanted += [(AdstackWord.SLOTS, k) for k, op in enumerate(kernel.body.ops[:-1]) if op.attr.kind == "range_for" and op.attr.name in used]
    returns = tuple([word(*key) for key in wanted])
    order = Kernel("place", kernel.args, kernel.body.ops[0].regions[0], returns)
    known = {(AdstackWord.HEAP_WORDS, 0): heap_words, **{(AdstackWord.SLOTS, k): n for k, n in enumerate(asked)}}
    outcome = run(Given(known).kernel(order), [np.array(sizes, np.int64).astype(np.int32)], {})
    return dict(zip(wanted, map(int, outcome.returns))), outcome.fault is not None


def placed_by_the_host(kernel: Kernel, heap_words: int, asked: list[int], sizes: list[int]) -> HeapPlan:
    infos = tuple([TaskInfo(op.attr.name, op.attr.kind, "", 0, places=op.attr.places) for op in kernel.body.ops[:-1]])
    made = CompiledKernel("k", "vulkan", "", ArgBlock((), "", 0), infos, adstacks=tuple(adstacks_of(kernel).values()))
    heap = AdstackHeap(SimpleNamespace(caps=Capabilities("vulkan")), SimpleNamespace())
    return heap.resolve(made, HeapPlan(AdstackWords(heap_words=(heap_words,), slots=tuple(asked)), (), (), 0), sizes)


def check_words(kernel: Kernel, found: dict[tuple[AdstackWord, int], int], plan: HeapPlan, failed: bool) -> None:
    """The host finds the same words."""
    pitches = {adstack.guard: plan.words.pitches[k] for k, adstack in enumerate(adstacks_of(kernel).values())}
    for (kind, k), value in found.items():
        if kind is AdstackWord.CLAIMS:
            assert value in ((pitches[k], 0) if failed else (pitches[k],))
        else:
            own = {AdstackWord.BASE: plan.words.bases, AdstackWord.PITCH: plan.words.pitches, AdstackWord.SLOTS: plan.words.slots}[kind]
            assert value == own[k], (kind, k)


def check_elements(kernel: Kernel, found: dict[tuple[AdstackWord, int], int], heap_words: int, sizes: list[int]) -> None:
    """Of a launch with enough heap_words: all elements are inside of it, and lie apart from those of the same task and of serial ones."""
    numbers = {op.attr.name: k for k, op in enumerate(kernel.body.ops[:-1])}
    adstacks = list(enumerate(adstacks_of(kernel).values()))
    taken = {None: np.zeros(heap_words, np.int32)}
    for k, adstack in sorted(adstacks, key=lambda item: item[1].task is not None):
        own = taken.setdefault(adstack.task, taken[None].copy())
        base, pitch, scale = found[AdstackWord.BASE, k], found[AdstackWord.PITCH, k], adstack.dtype.size // 4
        if adstack.guard is not None:
            slots = found[AdstackWord.CLAIMS, adstack.guard]
        else:
            slots = 1 if adstack.task is None else found[AdstackWord.SLOTS, numbers[adstack.task]]
        for entry in range(sizes[adstack.capacity] * adstack.width):
            begin = (base + entry * pitch if adstack.task is not None else base + entry) * scale
            assert 0 <= begin <= begin + slots * scale <= heap_words, adstack
            own[begin : begin + slots * scale] += 1
    assert all(words.max(initial=0) <= 1 for words in taken.values())


@settings(max_examples=100, deadline=None)
@given(st.lists(CAPACITY, min_size=CAPACITIES, max_size=CAPACITIES), SERIAL, st.lists(RANGES, max_size=3), st.data())
def test_the_host_places_tapes_as_the_device_does(capacities, serial, ranges, data):
    writer = Writer(capacities)
    writer.serial("before", serial[:1])
    for k, (_, *adstacks) in enumerate(ranges):
        writer.range(f"task{k}", *adstacks)
    writer.serial("after", serial[1:])
    kernel = place_adstacks(writer.kernel(), CTX)
    asked = [0, 0, *[n for n, *_ in ranges], 0]
    if not writer.adstacks:
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
        if (AdstackWord.SLOTS, k) in found and heap_words >= needed:
            dense = [adstack for adstack in adstacks_of(kernel).values() if adstack.task == owner.name and adstack.guard is None]
            count = None if not dense or dense[0].slots is None else writer.sizes[dense[0].slots]
            all_slots = asked[k] if count is None or count < 0 else min(asked[k], count)
            assert all_slots <= found[AdstackWord.SLOTS, k] <= asked[k]

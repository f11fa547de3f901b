"""The memory of tapes: one heap for all launches, whose layout each launch computes anew (`HeapPlan`).

Where the thread slots of a launch lie is in `base.tape_layout`; how many there are is decided here.

On the CPU the thread slots of a thread lie one after the other, or side by side if it runs several iterations in lockstep. How many that
are, and how many threads take part, is up to the pool (see `llvmgen.pool`): it may divide the thread slots of a task as it likes. The
thread slot of serial tasks comes last.

Where only the device knows the sizes, it lays out the thread slots itself: see transforms/tasks/place_tapes.py.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter

import numpy as np

from spirograd.base import knobs, validity
from spirograd.base.artifact import CompiledKernel, TapeInfo, TaskInfo
from spirograd.base.errors import OutOfDeviceMemory
from spirograd.base.records import dataclass
from spirograd.base.tape_layout import NUMBERS, Group, Layout, TapeWords
from spirograd.base.wording import counted
from spirograd.runtime.allocations import Allocation, Memory
from spirograd.runtime.device import Device, Fetch

# Invocations that run a task with tapes at the same time. More hide latencies better, up to what large GPUs hold, as long as the tapes fit
# their caches: an eighth less time on an H200 with four times as many.
_SLOTS = 65536
_MOST_SLOTS = 1 << 18
_CACHED_BYTES = 1 << 25
_ENTRY_BYTES = 8  # at most
# Fewer where the driver is a CPU, for its caches; and thread slots enough that an invocation stays below the driver's limit of loop
# iterations.
_CPU_SLOTS = 4096
# The same limit if the host does not know the trip counts.
_CPU_MOST_SLOTS = 1 << 18
# If memory is short, a task has fewer thread slots, down to these (and those of whole workgroups), then refused.
_LEAST_SLOTS = 64
# Words of the heap, so that sums of two numbers of words are indices of 31 bits.
_MOST_WORDS = 2**30 - 4096
# How many times larger than a thread slot the heap must be for launches whose sizes the host learns later: bounds may grow that much at
# once.
_SLOTS_TO_SPARE = 16
_LEAST_HEAP = 1 << 20
# The heap for such launches: after bounds have grown by far, the first of them still has thread slots enough to be fast.
_LEAST_OFFER = 1 << 26
# A size that the host does not know.
UNKNOWN = -1
# Where that is the memory of the host, not more than this only to have it.
_CPU_MOST_SPARE = 1 << 28


class TapesTooLarge(OutOfDeviceMemory):
    """The tapes of a launch do not fit the heap. ``message``: kernel and bytes; ``tape``: the name of the one that takes most."""

    def __init__(self, message: str, tape: str) -> None:
        super().__init__(message)
        self.message = message
        self.tape = tape


@dataclass(frozen=True, slots=True)
class Share:
    """What a task (None: all serial ones) has of the heap for its tapes behind the guard with size ``guard``, or for those that all its
    invocations use. Lengths are words of 32 bits."""

    task: str | None
    slots: int
    floats: int
    integers: int
    pitch: int
    guard: int | None = None

    @property
    def nbytes(self) -> int:
        """Of all its thread slots."""
        return self.slab_bytes(self.floats + self.integers)

    def slab_bytes(self, words: int) -> int:
        """Of so many words in each of its thread slots."""
        return 4 * self.pitch * words


@dataclass(frozen=True, slots=True)
class TapeSizes:
    """How large the tapes of a launch must be. ``entries``: their capacities, by number of the size.

    Where the kernel places its tapes itself, the sizes on the device count, and ``entries`` are a hint. ``resized``: whether those may be
    others than at the last launch; ``certain``: whether ``entries`` are those.
    """

    entries: tuple[int, ...] = ()
    resized: bool = True
    certain: bool = True


@dataclass(frozen=True, slots=True)
class HeapPlan:
    """How a launch uses the heap: ``words`` for the argument block, ``counts`` the invocations of each task."""

    words: TapeWords
    counts: tuple[int | None, ...]
    shares: tuple[Share, ...]
    nbytes: int


class TapeHeap:
    """Grows to what the largest launch needs. Launches that share it must run one after the other, as they do on one queue.

    ``budget``: bytes that it may have, as far as that is up to the user. ``sized``: how many launches found their sizes in which way.
    ``epoch`` changes when a launch has turned out to be sized wrongly: what was found before is not to be used again.
    """

    def __init__(self, device: Device, memory: Memory, budget: int | None = None) -> None:
        self.device = device
        self.memory = memory
        self.most = min(device.caps.max_allocation, 4 * _MOST_WORDS, budget or 1 << 62)
        self.sized: Counter[str] = Counter()
        self.epoch = 0
        self.telling = knobs.flag("SG_DEBUG_ADSTACK") or knobs.flag("QD_DEBUG_ADSTACK")  # each launch says how it uses the heap
        self._heap: Allocation | None = None
        self._untold: list[tuple[CompiledKernel, HeapPlan, Fetch | None]] = []
        self._refused = self.most + 1  # the least that the device had no memory for, of what would have been good to have

    @property
    def nbytes(self) -> int:
        """The size of the heap, in bytes."""
        return 0 if self._heap is None else self._heap.nbytes

    @property
    def words(self) -> int:
        """The words of the heap that tapes may use."""
        return min(self.nbytes // 4, _MOST_WORDS)

    @property
    def address(self) -> int:
        """Where the heap begins; 0 before the first launch with tapes."""
        return 0 if self._heap is None else self._heap.address

    @property
    def backing(self) -> tuple[Allocation, ...]:
        """What owns its memory."""
        return () if self._heap is None else (self._heap,)

    # --- sizes that the host knows -----------------------------------------------------------------------------------------

    def reserve(self, kernel: CompiledKernel, counts: Sequence[int | None], capacities: Sequence[int]) -> HeapPlan:
        """Give each tape of a launch its place. ``counts``: iterations of each task, None where only the device knows; ``capacities``:
        entries of tapes, by number.

        Raises TapesTooLarge if not even few thread slots fit.
        """
        plan = self._backed(lambda most: self.plan(kernel, counts, capacities, most=most))
        self.report(kernel, plan, None)
        return plan

    def plan(
        self, kernel: CompiledKernel, counts: Sequence[int | None], capacities: Sequence[int], limit: int = 0, most: int | None = None
    ) -> HeapPlan:
        """As `reserve`, without touching the heap. ``limit``: thread slots of a task at most; 0: as many as are good.
        ``most``: bytes, if there are fewer than the heap may have."""
        most = self.most if most is None else most
        entries = _entries(capacities)
        while True:
            plan = self._placed(kernel, counts, entries, limit)
            if plan.nbytes <= most:
                return plan
            slots = max([share.slots for share in plan.shares if share.task is not None], default=0)
            limit = min(limit or slots, slots)  # there may be more thread slots than that: workgroups are whole
            if limit <= (1 if kernel.target.slots_by_thread else _LEAST_SLOTS):
                raise _too_large(kernel, plan, entries, most)
            limit //= 2  # fewer invocations at a time, each with more iterations

    def _placed(self, kernel: CompiledKernel, counts: Sequence[int | None], entries: Sequence[int], limit: int) -> HeapPlan:
        """Places with at most ``limit`` thread slots of a task."""
        if kernel.target.slots_by_thread:
            return self._placed_apart(kernel, counts, entries, limit)
        limited, slots = list(counts), []
        for k, task in enumerate(kernel.tasks):
            own = {tape.capacity for tape in kernel.tapes if tape.task == task.name}
            most = 0
            if own:
                most, limited[k] = self._slots(task, counts[k], [entries[n] for n in own], limit)
            slots.append(most)
        words, shares, nbytes = _lay_out(kernel, slots, entries, None)
        return HeapPlan(words, tuple(limited), shares, nbytes)

    def _placed_apart(self, kernel: CompiledKernel, counts: Sequence[int | None], entries: Sequence[int], limit: int) -> HeapPlan:
        """As `_placed`, for the CPU: where tapes begin in a thread slot, how long thread slots are, and how many."""
        bases, pitches, slots = [0] * len(kernel.tapes), [0] * len(kernel.tapes), [1] * len(kernel.tasks)
        layout = Layout(NUMBERS, None, entries.__getitem__, entries.__getitem__)
        shares, end = [], 0
        serial, *tasks = _tapes_of_tasks(kernel)
        for k, task, own in (*tasks, serial):
            if not own:
                continue
            group, number = layout.group(own, even=True), 1
            if task is not None:
                threads: int = self.device.threads  # type: ignore[attr-defined]
                most, count, size = threads * task.lanes, counts[k], group.counted
                count = count if size is None else entries[size]
                number = slots[k] = max(min(most, limit or most, most if count is None else count), 1)
            shares.append(_share(group, number, number))
            for n, base in layout.bases(group, 1, end if task is None else 0):
                bases[n], pitches[n] = base, group.words // (kernel.tapes[n].dtype.size // 4)
            length = number * group.words
            end = end + length if task is None else max(end, length)
        words = TapeWords(tuple(bases), tuple(pitches), tuple(entries[: kernel.capacities]), (), tuple(slots))
        return HeapPlan(words, tuple(counts), tuple(shares), 4 * end)

    def _slots(self, task: TaskInfo, count: int | None, entries: Sequence[int], limit: int) -> tuple[int, int | None]:
        """How many thread slots a task needs, and how many invocations to launch at most."""
        most = limit or self._good_slots(count, entries)
        asked = most if count is None else min(count, most)
        return _slots_of(asked, count, task), asked

    def _good_slots(self, count: int | None, entries: Sequence[int]) -> int:
        if not self.device.caps.loop_limit:
            cached = _CACHED_BYTES // (_ENTRY_BYTES * max(sum(entries), 1))
            return max(_SLOTS, min(_MOST_SLOTS, 1 << cached.bit_length() - 1 if cached else 0))
        # A nest runs at most the product of its trip counts, some times over.
        work = 4
        for n in entries:
            work *= n
        return _CPU_SLOTS if count is None else max(_CPU_SLOTS, -(-count * work // self.device.caps.loop_limit))

    # --- sizes that only the device knows ----------------------------------------------------------------------------------

    def offer(self, kernel: CompiledKernel, counts: Sequence[int | None], sizes: TapeSizes) -> HeapPlan:
        """Room for a launch that places its tapes itself.

        Raises TapesTooLarge if the device cannot have so much that few thread slots of such capacities fit.
        """
        capacities = sizes.entries
        asked, limit = self._asked(kernel, counts, sizes)
        bound = self.most
        to_spare: Callable[[HeapPlan], int] = self._to_spare
        if UNKNOWN in capacities:
            # The number of thread slots is not known yet, and may be small: allocate a moderate heap, and grow it once the number is known.
            if not self.device.caps.loop_limit:
                bound = max(_LEAST_OFFER, self.plan(kernel, asked, capacities, _LEAST_SLOTS).nbytes)
            to_spare = self._unknown_to_spare
        plan = self._backed(lambda most: self.plan(kernel, asked, capacities, limit, min(most, bound)), to_spare)
        words = TapeWords(heap_words=(self.words,), slots=_slots_asked(kernel, counts, asked))
        return HeapPlan(words, asked, plan.shares, plan.nbytes)

    def plan_offer(self, kernel: CompiledKernel, counts: Sequence[int | None], capacities: Sequence[int]) -> HeapPlan:
        """How a launch with these capacities would use an `offer`, without touching the heap."""
        asked, limit = self._asked(kernel, counts, TapeSizes(tuple(capacities)))
        plan = self.plan(kernel, asked, capacities, limit)
        heap_words = min(self._grown(plan.nbytes, self._to_spare(plan)) // 4, _MOST_WORDS)
        words = TapeWords(heap_words=(heap_words,), slots=_slots_asked(kernel, counts, asked))
        return self.used(kernel, HeapPlan(words, asked, (), 0), capacities)

    def used(self, kernel: CompiledKernel, offered: HeapPlan, capacities: Sequence[int]) -> HeapPlan:
        """``offered``, once the sizes are known: what the device did with it."""
        (heap_words,) = offered.words.heap_words
        words, shares, nbytes = _lay_out(kernel, offered.words.slots, _entries(capacities), heap_words)
        return HeapPlan(words, offered.counts, shares, nbytes)

    def _asked(self, kernel: CompiledKernel, counts: Sequence[int | None], sizes: TapeSizes) -> tuple[tuple[int | None, ...], int]:
        """How many invocations of each task to ask for, and how many thread slots a task may have."""
        most = _CPU_MOST_SLOTS if self.device.caps.loop_limit else _SLOTS
        asked = list(counts)
        for k, task in enumerate(kernel.tasks):
            own = {tape.capacity for tape in kernel.tapes if tape.task == task.name}
            if own:
                slots = min(most, self._good_slots(counts[k], [max(sizes.entries[n], 1) for n in own])) if sizes.certain else most
                asked[k] = slots if asked[k] is None else min(asked[k] or 0, slots)
        return tuple(asked), most

    def spares(self, plan: HeapPlan | None) -> bool:
        """Whether bounds may grow well beyond those of ``plan``, an earlier launch, before not even a thread slot fits."""
        return plan is not None and self.nbytes >= _SLOTS_TO_SPARE * self._slot_bytes(plan)

    def _to_spare(self, plan: HeapPlan) -> int:
        """The bytes that it is good to have for a launch like ``plan``."""
        most = min(self.most // 2, _CPU_MOST_SPARE if self.device.caps.loop_limit else self.most)
        return min(max(_SLOTS_TO_SPARE * self._slot_bytes(plan), _LEAST_OFFER), most)

    def _unknown_to_spare(self, _: HeapPlan) -> int:
        return min(_LEAST_OFFER, self.most // 2)

    def _slot_bytes(self, plan: HeapPlan) -> int:
        """Of one thread slot of each share; of as many as there are where the driver limits the iterations of an invocation."""
        if self.device.caps.loop_limit:
            return plan.nbytes
        return sum([4 * (share.floats + share.integers) for share in plan.shares])

    # --- the heap ----------------------------------------------------------------------------------------------------------

    def _backed(self, make: Callable[[int], HeapPlan], to_spare: Callable[[HeapPlan], int] | None = None) -> HeapPlan:
        """A plan that there is memory for. ``make`` makes one that takes so many bytes at most, ``to_spare`` says how many bytes it is good
        to have for it. Where fields and arrays have left less memory than the heap may have, the plan has fewer thread slots."""
        most = self.most
        while True:
            plan = make(most)
            try:
                self._grow(plan.nbytes, 0 if to_spare is None else to_spare(plan))
            except OutOfDeviceMemory:
                most = plan.nbytes // 2
            else:
                return plan

    def _grow(self, nbytes: int, good: int) -> None:
        """Have ``nbytes``, and ``good`` bytes unless there was no memory for as many before."""
        wanted, before = self._grown(nbytes, good), self.nbytes
        if wanted == before:
            return
        validity.renew()  # launches that were prepared name its address
        self._heap = None
        for size in sorted({wanted, self._needed(nbytes, good), max(before, nbytes)}, reverse=True):
            try:
                self._heap = self.memory.allocate(size, zeroed=False)
                return
            except OutOfDeviceMemory:
                if nbytes < size <= good:
                    self._refused = size
        self._heap = self.memory.allocate(nbytes, zeroed=False)

    def _grown(self, nbytes: int, good: int) -> int:
        """How large the heap is to be for that."""
        needed = self._needed(nbytes, good)
        return self.nbytes if 0 < needed <= self.nbytes else max(needed, min(2 * self.nbytes, self.most), min(_LEAST_HEAP, self.most))

    def _needed(self, nbytes: int, good: int) -> int:
        return max(nbytes, good if good < self._refused else 0)

    # --- what launches say -------------------------------------------------------------------------------------------------

    def report(self, kernel: CompiledKernel, plan: HeapPlan, sizes: Fetch | None) -> None:
        """Say how a launch uses the heap, if asked for; with ``sizes``, once these have come: ``plan`` is what was offered."""
        if self.telling:
            self._untold.append((kernel, plan, sizes))
            self.tell()

    def tell(self) -> None:
        """Say of earlier launches, in their order, what is known by now."""
        while self._untold:
            kernel, plan, sizes = self._untold[0]
            raw = None if sizes is None else sizes.take()
            if sizes is not None and raw is None:
                return
            del self._untold[0]
            if raw is not None:
                plan = self.used(kernel, plan, np.frombuffer(raw, np.int32).tolist())
            self._print(kernel, plan, "host" if sizes is None else "device")

    def _print(self, kernel: CompiledKernel, plan: HeapPlan, source: str) -> None:
        """One line for each slab of each task."""
        for share in plan.shares:
            for kind, stride in (("F", share.floats), ("I", share.integers)):
                if stride:
                    print(
                        f"[adstack_heap] arch={kernel.target_name} task='{share.task or kernel.name}' kind={kind} src={source} "
                        f"rows={share.slots} stride={4 * stride} required_bytes={share.slab_bytes(stride)}",
                        file=sys.stderr,
                    )


def _too_large(kernel: CompiledKernel, plan: HeapPlan, entries: Sequence[int], most: int) -> TapesTooLarge:
    slots = {(share.task, share.guard): share.slots for share in plan.shares}
    each = [(4 * tape.words * entries[tape.capacity] * slots[tape.task, tape.guard], tape) for tape in kernel.tapes]
    nbytes, tape = max(each, key=itemgetter(0))
    held = f"{counted(entries[tape.capacity], 'entry', 'entries')} of {counted(4 * tape.words, 'byte')}"
    return TapesTooLarge(
        f"the tapes of {kernel.name} need {plan.nbytes:,} bytes or more, and may have {most:,}: {nbytes:,} alone for one of this "
        f"loop, with {held} in each of {counted(slots[tape.task, tape.guard], 'thread slot')}",
        tape.name,
    )


def _entries(capacities: Sequence[int]) -> list[int]:
    # What counts more than 2^31 iterations that claim thread slots has wrapped.
    return [max(n & 0xFFFFFFFF, 1) for n in capacities]


def _tapes_of_tasks(kernel: CompiledKernel) -> list[tuple[int, TaskInfo | None, list[tuple[int, TapeInfo]]]]:
    """The tapes of serial tasks, then those of each other task; tasks and tapes with their numbers."""
    numbered = list(enumerate(kernel.tapes))
    serial = [item for item in numbered if item[1].task is None]
    return [(-1, None, serial), *[(k, t, [item for item in numbered if item[1].task == t.name]) for k, t in enumerate(kernel.tasks)]]


def _lay_out(
    kernel: CompiledKernel, asked: Sequence[int], entries: Sequence[int], heap_words: int | None
) -> tuple[TapeWords, tuple[Share, ...], int]:
    """Rows for ``asked`` invocations of each task: the words of a launch that the host places, the shares, the bytes in all. In
    ``heap_words`` words they are divided as the task of `transforms.tasks.place_tapes` does; None: they take as much as they need."""
    layout = Layout(NUMBERS, None, entries.__getitem__, entries.__getitem__)
    bases, pitches, limits = [0] * len(kernel.tapes), [0] * len(kernel.tapes), list(asked)
    shares, first, end = [], 0, 0
    for k, task, own in _tapes_of_tasks(kernel):
        if not own:
            continue
        if task is None:
            group = layout.group(own, even=True)
            fits = heap_words is None or group.words <= heap_words
            for n, base in layout.serial_bases(group, fits):
                bases[n] = base
            shares.append(_share(group, 1, 1))
            end, first = group.words, group.words if fits else 0
            continue
        groups, begin = layout.groups(own), first
        if heap_words is None:
            # A task without iterations has no thread slots.
            numbers, even = layout.wanted(groups, asked[k], least=0)
            apart: Sequence[int] = [layout.padded(n) for n in even]
        else:
            slots = layout.slots(groups, asked[k], heap_words - first)
            limits[k] = slots.limit if layout.fits(layout.slot_words(groups), heap_words - first) else 0
            numbers = list(slots.needed) if slots.enough else [slots.fewer] * len(groups)
            apart = slots.pitches
        for group, number, pitch in zip(groups, numbers, apart):
            for n, base in layout.bases(group, pitch, begin):
                bases[n], pitches[n] = base, pitch
            begin = layout.end(group, pitch, begin)
            shares.append(_share(group, number, pitch))
        end = max(end, begin)
    words = TapeWords(tuple(bases), tuple(pitches), tuple(entries[: kernel.capacities]), (), tuple(limits))
    return words, tuple(shares), 4 * end


def _share(group: Group[int], slots: int, pitch: int) -> Share:
    return Share(group.tapes[0][1].task, slots, group.floats, group.words - group.floats, pitch, group.guard)


def _slots_of(asked: int, count: int | None, task: TaskInfo) -> int:
    """The thread slots of ``asked`` invocations: workgroups are whole, but invocations without any of the ``count`` iterations need no
    thread slot."""
    slots = _whole_groups(asked, task)
    return slots if count is None else min(slots, max(count, 1))


def _slots_asked(kernel: CompiledKernel, counts: Sequence[int | None], asked: Sequence[int | None]) -> tuple[int, ...]:
    return tuple([0 if n is None else _slots_of(n, count, task) for n, count, task in zip(asked, counts, kernel.tasks)])


def _whole_groups(count: int, task: TaskInfo) -> int:
    size = max(task.group_size, 1)
    return -(-count // size) * size

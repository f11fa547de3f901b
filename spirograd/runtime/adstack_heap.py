"""The memory of adstacks: one heap for all launches. Each launch computes the layout of its part (`HeapPlan`).

This module decides how many thread slots a launch has; `base.adstack_layout` says where they lie. On the CPU, the thread slots of a thread
lie one after the other, or side by side if the thread runs a vectorised loop. The pool decides how many thread slots and
threads a task uses (see `llvmgen.pool`). The thread slot of serial tasks comes last. Where only the device knows the sizes, it lays out the
thread slots itself: see transforms/tasks/place_adstacks.py.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter

import numpy as np

from spirograd.base import knobs, validity
from spirograd.base.adstack_layout import NUMBERS, AdstackWords, Group, Layout
from spirograd.base.artifact import AdstackInfo, CompiledKernel, TaskInfo
from spirograd.base.device import Device, Readback
from spirograd.base.errors import OutOfDeviceMemory
from spirograd.base.records import dataclass
from spirograd.base.wording import counted
from spirograd.runtime.allocations import Allocation, Memory
from spirograd.runtime.null_device import refuse_null_device

# The most thread slots of a task. More thread slots hide latencies better, up to the number of invocations that a large GPU holds at a
# time, as long as the adstacks fit its caches: four times as many took an eighth less time on an H200.
_SLOTS = 65536
_MAX_SLOTS = 1 << 18
_CACHED_BYTES = 1 << 25
_MAX_ENTRY_BYTES = 8
# Thread slots where the driver is a CPU: fewer, to fit its caches, unless an invocation would exceed the driver's limit of loop iterations.
_CPU_SLOTS = 4096
# The same limit if the host does not know the trip counts.
_CPU_MAX_SLOTS = 1 << 18
# If memory is short, the thread slots of a task are halved down to this number (in whole workgroups); then the launch raises an error.
_MIN_SLOTS = 64
# A launch has ample memory if it gets more than this fraction of the thread slots that it prefers.
_AMPLE = 64
# The most words of the heap: the sum of two numbers of words must be an index of 31 bits.
_MAX_WORDS = 2**30 - 4096
# The preferred heap of launches whose sizes the host learns later, in thread slots: bounds may grow by this factor between launches.
_HEADROOM = 16
_MIN_HEAP = 1 << 20  # bytes
# The preferred heap of such launches, in bytes. After bounds have grown a lot, the next launch still has enough thread slots to be fast.
_PREFERRED_HEAP = 1 << 26
# Stands for a size that the host does not know.
UNKNOWN = -1
# The largest preferred heap in memory of the host, in bytes.
_CPU_PREFERRED_LIMIT = 1 << 28


class AdstacksTooLarge(OutOfDeviceMemory):
    """The error that the adstacks of a launch do not fit the heap.

    ``message`` names the kernel and the bytes; ``adstack`` names the largest adstack; ``share`` is the available fraction of the memory for
    all thread slots, from 0 to 1.
    """

    def __init__(self, message: str, adstack: str, share: float) -> None:
        super().__init__(message)
        self.message = message
        self.adstack = adstack
        self.share = share


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the heap for adstacks of one task (None: all serial tasks).

    ``guard`` is the size of the guard that the adstacks lie behind, None for adstacks that all invocations use. Lengths are words of 32
    bits.
    """

    task: str | None
    slots: int
    floats: int
    integers: int
    pitch: int
    guard: int | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of all thread slots."""
        return self.slab_bytes(self.floats + self.integers)

    def slab_bytes(self, words: int) -> int:
        """Return the bytes of a slab with ``words`` words per thread slot."""
        return 4 * self.pitch * words


@dataclass(frozen=True, slots=True)
class AdstackSizes:
    """The sizes of adstacks of a launch. ``entries``: their capacities, by number of the size.

    Where the kernel places its adstacks itself, the sizes on the device count, and ``entries`` are a hint. ``resized``: whether the sizes
    may differ from those of the last launch. ``certain``: whether ``entries`` are exact. ``ample``: whether to raise AdstacksTooLarge if
    only a small part of the thread slots is available.
    """

    entries: tuple[int, ...] = ()
    resized: bool = True
    certain: bool = True
    ample: bool = False


@dataclass(frozen=True, slots=True)
class HeapPlan:
    """The layout of the heap for one launch. ``words`` go to the argument block; ``counts`` are the invocations of each task."""

    words: AdstackWords
    counts: tuple[int | None, ...]
    shares: tuple[Share, ...]
    nbytes: int


class AdstackHeap:
    """The heap of adstacks, which grows to the size that the largest launch needs.

    Launches that share the heap must run one after the other, as they do on one queue. ``budget``: the user's limit in bytes.
    ``byte_limit``: the limit that follows from the budget, the device and indices of 31 bits. ``sized`` counts launches by how they found
    their sizes. ``epoch`` changes when a launch has failed because its sizes were outdated; sizes from before are not used again.
    """

    def __init__(self, device: Device, memory: Memory, budget: int | None = None) -> None:
        self.device = device
        self.memory = memory
        self.budget = budget
        self.byte_limit = min(device.caps.max_allocation, 4 * _MAX_WORDS, budget or 1 << 62)
        self.sized: Counter[str] = Counter()
        self.epoch = 0
        self.reports = knobs.flag("SG_DEBUG_ADSTACK") or knobs.flag("QD_DEBUG_ADSTACK")  # print how each launch uses the heap
        self._heap: Allocation | None = None
        self._pending_reports: list[tuple[CompiledKernel, HeapPlan, Readback | None]] = []
        self._refused = self.byte_limit + 1  # bytes; the smallest preferred heap for which there was no memory

    @property
    def nbytes(self) -> int:
        """The size of the heap, in bytes."""
        return 0 if self._heap is None else self._heap.nbytes

    @property
    def words(self) -> int:
        """The words of the heap that adstacks may use."""
        return min(self.nbytes // 4, _MAX_WORDS)

    @property
    def address(self) -> int:
        """Where the heap begins; 0 before the first launch with adstacks."""
        return 0 if self._heap is None else self._heap.address

    @property
    def backing(self) -> tuple[Allocation, ...]:
        """The owner of the heap's memory, None if there is no heap."""
        return () if self._heap is None else (self._heap,)

    # --- sizes that the host knows -----------------------------------------------------------------------------------------

    def reserve(self, kernel: CompiledKernel, counts: Sequence[int | None], sizes: AdstackSizes) -> HeapPlan:
        """Lay out the adstacks of a launch, and allocate the heap for them.

        ``counts``: iterations of each task, None where only the device knows the number. Raises AdstacksTooLarge if even few thread slots
        do not fit.
        """
        plan = self._allocate_for(lambda byte_limit: self.plan(kernel, counts, sizes.entries, byte_limit=byte_limit, ample=sizes.ample))
        self.report(kernel, plan, None)
        return plan

    def plan(
        self,
        kernel: CompiledKernel,
        counts: Sequence[int | None],
        capacities: Sequence[int],
        slot_limit: int = 0,
        byte_limit: int | None = None,
        ample: bool = False,
    ) -> HeapPlan:
        """Lay out the adstacks of a launch like `reserve`, without touching the heap.

        ``capacities``: entries of adstacks, by number of the size. ``slot_limit``: the most thread slots of a task, 0 for the preferred
        number. ``byte_limit``: the most bytes, None for the limit of the heap. ``ample``: see `AdstackSizes`. Raises AdstacksTooLarge, or
        SpirogradRuntimeError if the device executes nothing.
        """
        byte_limit = self.byte_limit if byte_limit is None else byte_limit
        entries = _entries(capacities)
        most, fewest = 0, 1 if kernel.target.slots_by_thread else _MIN_SLOTS
        while True:
            plan = self._place(kernel, counts, entries, slot_limit)
            if plan.nbytes <= byte_limit:
                return plan
            if not most:
                most = plan.nbytes
            slots = max([share.slots for share in plan.shares if share.task is not None], default=0)
            if ample:
                fewest, ample = max(fewest, slots // _AMPLE), False
            slot_limit = min(slot_limit or slots, slots)  # there may be more thread slots than that: workgroups are whole
            if slot_limit <= fewest:
                refuse_null_device(self.device)  # The entries may be numbers that the device was to write.
                raise _too_large(kernel, plan, entries, byte_limit, most)
            slot_limit //= 2  # fewer invocations at a time, each with more iterations

    def _place(self, kernel: CompiledKernel, counts: Sequence[int | None], entries: Sequence[int], slot_limit: int) -> HeapPlan:
        """Lay out the adstacks with at most ``slot_limit`` thread slots of a task."""
        if kernel.target.slots_by_thread:
            return self._place_by_thread(kernel, counts, entries, slot_limit)
        limited, slots = list(counts), []
        for k, task in enumerate(kernel.tasks):
            own = {adstack.capacity for adstack in kernel.adstacks if adstack.task == task.name}
            number = 0
            if own:
                number, limited[k] = self._slots(task, counts[k], [entries[n] for n in own], slot_limit)
            slots.append(number)
        words, shares, nbytes = _lay_out(kernel, slots, entries, None)
        return HeapPlan(words, tuple(limited), shares, nbytes)

    def _place_by_thread(self, kernel: CompiledKernel, counts: Sequence[int | None], entries: Sequence[int], slot_limit: int) -> HeapPlan:
        """Return where adstacks begin in a thread slot of the CPU, how long thread slots are, and how many there are."""
        bases, pitches, slots = [0] * len(kernel.adstacks), [0] * len(kernel.adstacks), [1] * len(kernel.tasks)
        layout = Layout(NUMBERS, None, entries.__getitem__, entries.__getitem__)
        shares, end = [], 0
        serial, *tasks = _adstacks_of_tasks(kernel)
        for k, task, own in (*tasks, serial):
            if not own:
                continue
            group, number = layout.group(own, even=True), 1
            if task is not None:
                threads: int = self.device.threads  # type: ignore[attr-defined]
                running, count, size = threads * task.lanes, counts[k], group.counted
                count = count if size is None else entries[size]
                number = slots[k] = max(min(running, slot_limit or running, running if count is None else count), 1)
            shares.append(_share(group, number, number))
            for n, base in layout.bases(group, 1, end if task is None else 0):
                bases[n], pitches[n] = base, group.words // (kernel.adstacks[n].dtype.size // 4)
            length = number * group.words
            end = end + length if task is None else max(end, length)
        words = AdstackWords(tuple(bases), tuple(pitches), tuple(entries[: kernel.capacities]), (), tuple(slots))
        return HeapPlan(words, tuple(counts), tuple(shares), 4 * end)

    def _slots(self, task: TaskInfo, count: int | None, entries: Sequence[int], slot_limit: int) -> tuple[int, int | None]:
        """Return how many thread slots a task needs, and how many invocations to launch at most."""
        slots = slot_limit or self._preferred_slots(count, entries)
        invocations = slots if count is None else min(count, slots)
        return _slots_of(invocations, count, task), invocations

    def _preferred_slots(self, count: int | None, entries: Sequence[int]) -> int:
        if not self.device.caps.loop_limit:
            cached = _CACHED_BYTES // (_MAX_ENTRY_BYTES * max(sum(entries), 1))
            return max(_SLOTS, min(_MAX_SLOTS, 1 << cached.bit_length() - 1 if cached else 0))
        # A nest runs at most the product of its trip counts, some times over.
        work = 4
        for n in entries:
            work *= n
        return _CPU_SLOTS if count is None else max(_CPU_SLOTS, -(-count * work // self.device.caps.loop_limit))

    # --- sizes that only the device knows ----------------------------------------------------------------------------------

    def reserve_on_device(self, kernel: CompiledKernel, counts: Sequence[int | None], sizes: AdstackSizes) -> HeapPlan:
        """Allocate the heap for a launch that lays out its adstacks itself.

        Raises AdstacksTooLarge if the device has too little memory for the least number of thread slots of such capacities.
        """
        capacities = sizes.entries
        invocations, slot_limit = self._invocations(kernel, counts, sizes)
        byte_limit, ample = self.byte_limit, sizes.ample and sizes.certain and UNKNOWN not in capacities
        preferred: Callable[[HeapPlan], int] = self._preferred
        if UNKNOWN in capacities:
            # The number of thread slots is not known yet, and may be small: allocate a moderate heap, and grow it once the number is known.
            if not self.device.caps.loop_limit:
                byte_limit = max(_PREFERRED_HEAP, self.plan(kernel, invocations, capacities, _MIN_SLOTS).nbytes)
            preferred = self._preferred_unknown
        plan = self._allocate_for(
            lambda available: self.plan(kernel, invocations, capacities, slot_limit, min(available, byte_limit), ample), preferred
        )
        words = AdstackWords(heap_words=(self.words,), slots=_slots_of_tasks(kernel, counts, invocations))
        return HeapPlan(words, invocations, plan.shares, plan.nbytes)

    def plan_on_device(self, kernel: CompiledKernel, counts: Sequence[int | None], sizes: AdstackSizes) -> HeapPlan:
        """Return the layout that a launch with these capacities would have after `reserve_on_device`, without touching the heap."""
        capacities = sizes.entries
        invocations, slot_limit = self._invocations(kernel, counts, sizes)
        plan = self.plan(kernel, invocations, capacities, slot_limit, ample=sizes.ample)
        heap_words = min(self._size_for(plan.nbytes, self._preferred(plan)) // 4, _MAX_WORDS)
        words = AdstackWords(heap_words=(heap_words,), slots=_slots_of_tasks(kernel, counts, invocations))
        return self.resolve(kernel, HeapPlan(words, invocations, (), 0), capacities)

    def resolve(self, kernel: CompiledKernel, reserved: HeapPlan, capacities: Sequence[int]) -> HeapPlan:
        """Return the layout that the device computed in the heap of ``reserved``, once the host knows the capacities."""
        (heap_words,) = reserved.words.heap_words
        words, shares, nbytes = _lay_out(kernel, reserved.words.slots, _entries(capacities), heap_words)
        return HeapPlan(words, reserved.counts, shares, nbytes)

    def _invocations(self, kernel: CompiledKernel, counts: Sequence[int | None], sizes: AdstackSizes) -> tuple[tuple[int | None, ...], int]:
        """Return how many invocations of each task to launch at most, and how many thread slots a task may have."""
        slot_limit = _CPU_MAX_SLOTS if self.device.caps.loop_limit else _SLOTS
        invocations = list(counts)
        for k, task in enumerate(kernel.tasks):
            own = {adstack.capacity for adstack in kernel.adstacks if adstack.task == task.name}
            if own:
                preferred = self._preferred_slots(counts[k], [max(sizes.entries[n], 1) for n in own])
                slots = min(slot_limit, preferred) if sizes.certain else slot_limit
                invocations[k] = slots if invocations[k] is None else min(invocations[k] or 0, slots)
        return tuple(invocations), slot_limit

    def has_headroom(self, plan: HeapPlan | None) -> bool:
        """Return whether thread slots still fit the heap if bounds grow well beyond those of ``plan``, an earlier launch."""
        return plan is not None and self.nbytes >= _HEADROOM * self._slot_bytes(plan)

    def _preferred(self, plan: HeapPlan) -> int:
        """Return the preferred heap for launches like ``plan``, in bytes."""
        limit = min(self.byte_limit // 2, _CPU_PREFERRED_LIMIT if self.device.caps.loop_limit else self.byte_limit)
        return min(max(_HEADROOM * self._slot_bytes(plan), _PREFERRED_HEAP), limit)

    def _preferred_unknown(self, _: HeapPlan) -> int:
        return min(_PREFERRED_HEAP, self.byte_limit // 2)

    def _slot_bytes(self, plan: HeapPlan) -> int:
        """Return the bytes of one thread slot of each share, or of all thread slots where the driver limits the iterations of an
        invocation."""
        if self.device.caps.loop_limit:
            return plan.nbytes
        return sum([4 * (share.floats + share.integers) for share in plan.shares])

    # --- the heap ----------------------------------------------------------------------------------------------------------

    def _allocate_for(self, make: Callable[[int], HeapPlan], preferred: Callable[[HeapPlan], int] | None = None) -> HeapPlan:
        """Return a plan whose heap is allocated.

        ``make`` returns a plan with at most a number of bytes; ``preferred`` returns the preferred heap for a plan, in bytes. If fields and
        arrays have left too little memory, the plan has fewer thread slots.
        """
        available = self.byte_limit
        while True:
            plan = make(available)
            try:
                self._grow(plan.nbytes, 0 if preferred is None else preferred(plan))
            except OutOfDeviceMemory:
                available = plan.nbytes // 2
            else:
                return plan

    def _grow(self, nbytes: int, preferred: int) -> None:
        """Allocate at least ``nbytes``, and ``preferred`` bytes unless an earlier attempt to allocate as many failed."""
        wanted, before = self._size_for(nbytes, preferred), self.nbytes
        if wanted == before:
            return
        validity.renew()  # launches that were prepared name its address
        self._heap = None
        for size in sorted({wanted, self._needed(nbytes, preferred), max(before, nbytes)}, reverse=True):
            try:
                self._heap = self.memory.allocate(size, zeroed=False)
                return
            except OutOfDeviceMemory:
                if nbytes < size <= preferred:
                    self._refused = size
        self._heap = self.memory.allocate(nbytes, zeroed=False)

    def _size_for(self, nbytes: int, preferred: int) -> int:
        """Return the size of the heap after it has grown to hold ``nbytes``."""
        needed = self._needed(nbytes, preferred)
        if 0 < needed <= self.nbytes:
            return self.nbytes
        return max(needed, min(2 * self.nbytes, self.byte_limit), min(_MIN_HEAP, self.byte_limit))

    def _needed(self, nbytes: int, preferred: int) -> int:
        return max(nbytes, preferred if preferred < self._refused else 0)

    # --- reports (SG_DEBUG_ADSTACK) -------------------------------------------------------------------------------------------------

    def report(self, kernel: CompiledKernel, plan: HeapPlan, sizes: Readback | None) -> None:
        """Print how a launch uses the heap, if reports are on.

        With ``sizes``, print once these have arrived; ``plan`` is the reserved layout.
        """
        if self.reports:
            self._pending_reports.append((kernel, plan, sizes))
            self.print_reports()

    def print_reports(self) -> None:
        """Print the reports of earlier launches in order, up to the first launch whose sizes have not arrived."""
        while self._pending_reports:
            kernel, plan, sizes = self._pending_reports[0]
            raw = None if sizes is None else sizes.take()
            if sizes is not None and raw is None:
                return
            del self._pending_reports[0]
            if raw is not None:
                plan = self.resolve(kernel, plan, np.frombuffer(raw, np.int32).tolist())
            self._print(kernel, plan, "host" if sizes is None else "device")

    def _print(self, kernel: CompiledKernel, plan: HeapPlan, source: str) -> None:
        """Print one line for each slab of each task."""
        for share in plan.shares:
            for kind, stride in (("F", share.floats), ("I", share.integers)):
                if stride:
                    print(
                        f"[adstack_heap] arch={kernel.target_name} task='{share.task or kernel.name}' kind={kind} src={source} "
                        f"rows={share.slots} stride={4 * stride} required_bytes={share.slab_bytes(stride)}",
                        file=sys.stderr,
                    )


def _too_large(kernel: CompiledKernel, plan: HeapPlan, entries: Sequence[int], byte_limit: int, most: int) -> AdstacksTooLarge:
    slots = {(share.task, share.guard): share.slots for share in plan.shares}
    each = [(4 * adstack.words * entries[adstack.capacity] * slots[adstack.task, adstack.guard], adstack) for adstack in kernel.adstacks]
    nbytes, adstack = max(each, key=itemgetter(0))
    held = f"{counted(entries[adstack.capacity], 'entry', 'entries')} of {counted(4 * adstack.words, 'byte')}"
    return AdstacksTooLarge(
        f"the adstacks of {kernel.name} need {plan.nbytes:,} bytes or more, and may have {byte_limit:,}: {nbytes:,} alone for one of this "
        f"loop, with {held} in each of {counted(slots[adstack.task, adstack.guard], 'thread slot')}",
        adstack.name,
        byte_limit / most,
    )


def _entries(capacities: Sequence[int]) -> list[int]:
    # A counter of more than 2^31 iterations that claim thread slots has wrapped.
    return [max(n & 0xFFFFFFFF, 1) for n in capacities]


def _adstacks_of_tasks(kernel: CompiledKernel) -> list[tuple[int, TaskInfo | None, list[tuple[int, AdstackInfo]]]]:
    """Return the adstacks of serial tasks, then those of each other task; tasks and adstacks come with their numbers."""
    numbered = list(enumerate(kernel.adstacks))
    serial = [item for item in numbered if item[1].task is None]
    return [(-1, None, serial), *[(k, t, [item for item in numbered if item[1].task == t.name]) for k, t in enumerate(kernel.tasks)]]


def _lay_out(
    kernel: CompiledKernel, invocations: Sequence[int], entries: Sequence[int], heap_words: int | None
) -> tuple[AdstackWords, tuple[Share, ...], int]:
    """Return the words of a launch that the host lays out, the shares, and the bytes in all.

    ``invocations``: of each task. With ``heap_words``, thread slots are divided as the task of `transforms.tasks.place_adstacks` divides
    them; with None, they take as much as they need.
    """
    layout = Layout(NUMBERS, None, entries.__getitem__, entries.__getitem__)
    bases, pitches, limits = [0] * len(kernel.adstacks), [0] * len(kernel.adstacks), list(invocations)
    shares, first, end = [], 0, 0
    for k, task, own in _adstacks_of_tasks(kernel):
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
            numbers, even = layout.wanted(groups, invocations[k], least=0)
            apart: Sequence[int] = [layout.padded(n) for n in even]
        else:
            slots = layout.slots(groups, invocations[k], heap_words - first)
            limits[k] = slots.limit if layout.fits(layout.slot_words(groups), heap_words - first) else 0
            numbers = list(slots.needed) if slots.enough else [slots.fewer] * len(groups)
            apart = slots.pitches
        for group, number, pitch in zip(groups, numbers, apart):
            for n, base in layout.bases(group, pitch, begin):
                bases[n], pitches[n] = base, pitch
            begin = layout.end(group, pitch, begin)
            shares.append(_share(group, number, pitch))
        end = max(end, begin)
    words = AdstackWords(tuple(bases), tuple(pitches), tuple(entries[: kernel.capacities]), (), tuple(limits))
    return words, tuple(shares), 4 * end


def _share(group: Group[int], slots: int, pitch: int) -> Share:
    return Share(group.adstacks[0][1].task, slots, group.floats, group.words - group.floats, pitch, group.guard)


def _slots_of(invocations: int, count: int | None, task: TaskInfo) -> int:
    """Return the number of thread slots for ``invocations``.

    Workgroups are whole, but invocations without any of the ``count`` iterations need no thread slot, unless groups of threads work
    together: then thread slots are counted in whole groups.
    """
    slots = _whole_groups(invocations, task)
    return slots if count is None or task.grouped else min(slots, max(count, 1))


def _slots_of_tasks(kernel: CompiledKernel, counts: Sequence[int | None], invocations: Sequence[int | None]) -> tuple[int, ...]:
    return tuple([0 if n is None else _slots_of(n, count, task) for n, count, task in zip(invocations, counts, kernel.tasks)])


def _whole_groups(count: int, task: TaskInfo) -> int:
    size = max(task.group_size, 1)
    return -(-count // size) * size

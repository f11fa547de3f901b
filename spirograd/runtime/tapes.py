"""The memory of tapes: one heap for all launches, cut anew for each.

A row is what one invocation of a task needs at a time: its tapes of floats, then its tapes of integers, and in both what has 64 bits
first. On GPUs rows lie side by side: an entry of all rows, then the next entry, so that neighbouring invocations touch neighbouring words;
all tapes of a task share one distance between entries, its pitch. Serial tasks share one row, which comes first. Tasks run one after the
other, so all others begin behind it.

On the CPU the rows of a thread lie one after the other, or as on GPUs if it runs several iterations in lockstep. How many that are, and how
many threads take part, is up to the pool (see `llvmgen.pool`): it may divide the rows of a task as it likes. The row of serial tasks comes
last.

Where only the device knows the sizes, it does the same: see transforms/tasks/place_tapes.py.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from spirograd.base import knobs
from spirograd.base.artifact import TAPE_PADDING, CompiledKernel, TapeInfo, TaskInfo
from spirograd.base.errors import OutOfDeviceMemory
from spirograd.base.wording import counted
from spirograd.runtime.allocations import Allocation, Memory
from spirograd.runtime.device import Device, Fetch

# Invocations that run a task with tapes at the same time: as many as large GPUs hold, so that more would only take memory.
_ROWS = 65536
# Fewer where the driver is a CPU, for its caches; and rows enough that an invocation stays below the driver's limit of loop iterations.
_CPU_ROWS = 4096
# As many where the host cannot tell how long the loops are.
_CPU_MOST_ROWS = 1 << 18
# A task that lacks memory is asked for fewer rows down to these (and those of whole workgroups), then refused.
_LEAST_ROWS = 64
# Words of the heap, so that sums of two numbers of words are indices of 31 bits.
_MOST_WORDS = 2**30 - 4096
# How many times larger than a row the heap must be for launches whose sizes the host learns later: bounds may grow that much at once.
_ROWS_TO_SPARE = 16
_LEAST_HEAP = 1 << 20
# The heap for such launches: after bounds have grown by far, the first of them still has rows enough to be fast.
_LEAST_OFFER = 1 << 26
# A size that the host has not heard of.
UNKNOWN = -1
# Where that is the memory of the host, not more than this only to have it.
_CPU_MOST_SPARE = 1 << 28


class TapesTooLarge(OutOfDeviceMemory):
    """The tapes of a launch have no room. ``message``: kernel and bytes; ``tape``: the name of the one that takes most."""

    def __init__(self, message: str, tape: str) -> None:
        super().__init__(message)
        self.message = message
        self.tape = tape


@dataclass(frozen=True, slots=True)
class Share:
    """What a task (None: all serial ones) has of the heap for its tapes, those that are ``claimed`` or the others. Lengths are words of 32
    bits."""

    task: str | None
    rows: int
    floats: int
    integers: int
    pitch: int
    claimed: bool = False

    @property
    def nbytes(self) -> int:
        """Of all its rows."""
        return self.slab_bytes(self.floats + self.integers)

    def slab_bytes(self, words: int) -> int:
        """Of so many words in each of its rows."""
        return 4 * self.pitch * words


@dataclass(frozen=True, slots=True)
class Cut:
    """How a launch uses the heap: ``words`` for the argument block (see `Launcher`), ``counts`` the invocations of each task."""

    words: tuple[int, ...]
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
        self._untold: list[tuple[CompiledKernel, Cut, Fetch | None]] = []
        self._refused = self.most + 1  # the least that the device had no memory for, of what would have been good to have

    @property
    def nbytes(self) -> int:
        """The size of the heap, in bytes."""
        return 0 if self._heap is None else self._heap.nbytes

    @property
    def room(self) -> int:
        """The words of the heap that tapes may use."""
        return min(self.nbytes // 4, _MOST_WORDS)

    @property
    def address(self) -> int:
        """Where the heap begins; 0 before the first launch with tapes."""
        return 0 if self._heap is None else self._heap.address

    # --- sizes that the host knows -----------------------------------------------------------------------------------------

    def cut(self, kernel: CompiledKernel, counts: Sequence[int | None], capacities: Sequence[int]) -> Cut:
        """Give each tape of a launch its place. ``counts``: iterations of each task, None where only the device knows; ``capacities``:
        entries of tapes, by number.

        Raises TapesTooLarge if not even few rows fit.
        """
        cut = self._backed(lambda most: self.plan(kernel, counts, capacities, most=most))
        self.note(kernel, cut, None)
        return Cut((self.address, *cut.words), cut.counts, cut.shares, cut.nbytes)

    def plan(
        self, kernel: CompiledKernel, counts: Sequence[int | None], capacities: Sequence[int], limit: int = 0, most: int | None = None
    ) -> Cut:
        """As `cut`, without touching the heap: the words lack its address. ``limit``: rows of a task at most; 0: as many as are good.
        ``most``: bytes, if there are fewer than the heap may have."""
        most = self.most if most is None else most
        # What counts more than 2^31 iterations that claim rows has wrapped.
        entries = [max(n & 0xFFFFFFFF, 1) for n in capacities]
        while True:
            cut = self._placed(kernel, counts, entries, limit)
            if cut.nbytes <= most:
                return cut
            rows = max([share.rows for share in cut.shares if share.task is not None], default=0)
            limit = min(limit or rows, rows)  # there may be more rows than that: workgroups are whole
            if limit <= (1 if kernel.target.rows_by_thread else _LEAST_ROWS):
                raise _too_large(kernel, cut, entries, most)
            limit //= 2  # fewer invocations at a time, each with more iterations

    def _placed(self, kernel: CompiledKernel, counts: Sequence[int | None], entries: Sequence[int], limit: int) -> Cut:
        """Places with at most ``limit`` rows of a task."""
        if kernel.target.rows_by_thread:
            return self._placed_apart(kernel, counts, entries, limit)
        limited = list(counts)
        bases, pitches = [0] * len(kernel.tapes), [0] * len(kernel.tapes)
        shares, first, end = [], 0, 0
        tasks: list[tuple[int, TaskInfo | None]] = [(-1, None), *enumerate(kernel.tasks)]
        for k, task in tasks:
            own = [(n, tape) for n, tape in enumerate(kernel.tapes) if tape.task == (task.name if task is not None else None)]
            if not own:
                continue
            most = 1
            if task is not None:
                most, limited[k] = self._rows(task, counts[k], [entries[n] for n in {tape.capacity for _, tape in own}], limit)
            last = first
            for group in _groups(own):
                offsets, floats, integers = _offsets(group, entries, even=task is None)
                number, claimed = group[0][1].rows, group[0][1].claimed
                rows = most if number is None else min(most, entries[number])
                pitch = rows if task is None else _pitch(rows)
                shares.append(Share(task.name if task is not None else None, rows, floats, integers, pitch, claimed))
                for n, tape in group:
                    # In elements of the tape; all of these numbers of words are even where it has 64 bits.
                    bases[n], pitches[n] = (last + pitch * offsets[n]) // (tape.dtype.size // 4), pitch
                last += pitch * (floats + integers)
            first = last if task is None else first
            end = max(end, last)
        words = [word for pair in zip(bases, pitches) for word in pair]
        return Cut((*words, *entries[: kernel.capacities]), tuple(limited), tuple(shares), 4 * end)

    def _placed_apart(self, kernel: CompiledKernel, counts: Sequence[int | None], entries: Sequence[int], limit: int) -> Cut:
        """As `_placed`, for the CPU: where tapes begin in a row, how long rows are, and how many."""
        bases, pitches, rows = [0] * len(kernel.tapes), [0] * len(kernel.tapes), [1] * len(kernel.tasks)
        shares, end = [], 0
        for k, task in [*enumerate(kernel.tasks), (-1, None)]:
            own = [(n, tape) for n, tape in enumerate(kernel.tapes) if tape.task == (task.name if task is not None else None)]
            if not own:
                continue
            offsets, floats, integers = _offsets(own, entries, even=True)
            number = 1
            if task is not None:
                threads: int = self.device.threads  # type: ignore[attr-defined]
                most, count, size = threads * task.lanes, counts[k], own[0][1].rows
                count = count if size is None else entries[size]
                number = rows[k] = max(min(most, limit or most, most if count is None else count), 1)
            shares.append(Share(task.name if task is not None else None, number, floats, integers, number))
            for n, tape in own:
                scale = tape.dtype.size // 4
                bases[n], pitches[n] = (offsets[n] + (end if task is None else 0)) // scale, (floats + integers) // scale
            length = number * (floats + integers)
            end = end + length if task is None else max(end, length)
        words = [word for pair in zip(bases, pitches) for word in pair]
        return Cut((*words, *entries[: kernel.capacities], *rows), tuple(counts), tuple(shares), 4 * end)

    def _rows(self, task: TaskInfo, count: int | None, entries: Sequence[int], limit: int) -> tuple[int, int | None]:
        """How many rows a task needs, and how many invocations to ask the device for."""
        most = limit or self._good_rows(count, entries)
        asked = most if count is None else min(count, most)
        return _rows_of(asked, count, task), asked

    def _good_rows(self, count: int | None, entries: Sequence[int]) -> int:
        if not self.device.caps.loop_limit:
            return _ROWS
        # A nest runs at most the product of its trip counts, some times over.
        work = 4
        for n in entries:
            work *= n
        return _CPU_ROWS if count is None else max(_CPU_ROWS, -(-count * work // self.device.caps.loop_limit))

    # --- sizes that only the device knows ----------------------------------------------------------------------------------

    def offer(self, kernel: CompiledKernel, counts: Sequence[int | None], capacities: Sequence[int], certain: bool) -> Cut:
        """Room for a launch that places its tapes itself. ``capacities``: by number; unless ``certain``, those of an earlier launch.

        Raises TapesTooLarge if the device cannot have so much that few rows of such capacities fit.
        """
        asked, limit = self._asked(kernel, counts, capacities, certain)
        bound = self.most
        to_spare: Callable[[Cut], int] = self._to_spare
        if UNKNOWN in capacities:
            # There may be few rows: have what is good to have, and ask for more once it is known how many there are.
            if not self.device.caps.loop_limit:
                bound = max(_LEAST_OFFER, self.plan(kernel, asked, capacities, _LEAST_ROWS).nbytes)
            to_spare = self._unknown_to_spare
        plan = self._backed(lambda most: self.plan(kernel, asked, capacities, limit, min(most, bound)), to_spare)
        return Cut((self.address, self.room, *_rows_asked(kernel, counts, asked)), asked, plan.shares, plan.nbytes)

    def plan_offer(self, kernel: CompiledKernel, counts: Sequence[int | None], capacities: Sequence[int]) -> Cut:
        """How a launch with these capacities would use an `offer`, without touching the heap."""
        asked, limit = self._asked(kernel, counts, capacities, certain=True)
        plan = self.plan(kernel, asked, capacities, limit)
        room = min(self._grown(plan.nbytes, self._to_spare(plan)) // 4, _MOST_WORDS)
        return self.used(kernel, Cut((0, room, *_rows_asked(kernel, counts, asked)), asked, (), 0), capacities)

    def used(self, kernel: CompiledKernel, offered: Cut, capacities: Sequence[int]) -> Cut:
        """``offered``, once the sizes are known: what the device did with it, in `transforms.tasks.place_tapes`."""
        _, room, *asked = offered.words
        entries = [max(n & 0xFFFFFFFF, 1) for n in capacities]
        shares, first, end = [], 0, 0
        tasks: list[tuple[int, TaskInfo | None]] = [(-1, None), *enumerate(kernel.tasks)]
        for k, task in tasks:
            own = [(n, tape) for n, tape in enumerate(kernel.tapes) if tape.task == (task.name if task is not None else None)]
            if not own:
                continue
            laid = [(group[0][1], *_offsets(group, entries, even=task is None)[1:]) for group in _groups(own)]
            if task is None:
                pitches = [(1, 1)]
            else:
                wanted = [asked[k] if tape.rows is None else min(asked[k], entries[tape.rows]) for tape, *_ in laid]
                pitches = _fitting([floats + integers for _, floats, integers in laid], wanted, room - first)
            made = [Share(tape.task, rows, f, i, pitch, tape.claimed) for (tape, f, i), (rows, pitch) in zip(laid, pitches)]
            shares += made
            end = max(end, first + sum([share.nbytes // 4 for share in made]))
            first = end if task is None else first
        return Cut(offered.words, offered.counts, tuple(shares), 4 * end)

    def _asked(
        self, kernel: CompiledKernel, counts: Sequence[int | None], capacities: Sequence[int], certain: bool
    ) -> tuple[tuple[int | None, ...], int]:
        """How many invocations of each task to ask for, and how many rows a task may have."""
        most = _CPU_MOST_ROWS if self.device.caps.loop_limit else _ROWS
        asked = list(counts)
        for k, task in enumerate(kernel.tasks):
            own = {tape.capacity for tape in kernel.tapes if tape.task == task.name}
            if own:
                rows = min(most, self._good_rows(counts[k], [max(capacities[n], 1) for n in own])) if certain else most
                asked[k] = rows if asked[k] is None else min(asked[k] or 0, rows)
        return tuple(asked), most

    def spares(self, cut: Cut | None) -> bool:
        """Whether bounds may grow well beyond those of ``cut``, an earlier launch, before not even a row fits."""
        return cut is not None and self.nbytes >= _ROWS_TO_SPARE * self._row_bytes(cut)

    def _to_spare(self, cut: Cut) -> int:
        """The bytes that it is good to have for a launch like ``cut``."""
        most = min(self.most // 2, _CPU_MOST_SPARE if self.device.caps.loop_limit else self.most)
        return min(max(_ROWS_TO_SPARE * self._row_bytes(cut), _LEAST_OFFER), most)

    def _unknown_to_spare(self, _: Cut) -> int:
        return min(_LEAST_OFFER, self.most // 2)

    def _row_bytes(self, cut: Cut) -> int:
        """Of one row of each share; of as many as there are where the driver limits the iterations of an invocation."""
        if self.device.caps.loop_limit:
            return cut.nbytes
        return sum([4 * (share.floats + share.integers) for share in cut.shares])

    # --- the heap ----------------------------------------------------------------------------------------------------------

    def _backed(self, plan: Callable[[int], Cut], to_spare: Callable[[Cut], int] | None = None) -> Cut:
        """A plan that there is memory for. ``plan`` makes one that takes so many bytes at most, ``to_spare`` says how many bytes it is good
        to have for it. Where fields and arrays have left less memory than the heap may have, the plan has fewer rows."""
        most = self.most
        while True:
            cut = plan(most)
            try:
                self._grow(cut.nbytes, 0 if to_spare is None else to_spare(cut))
            except OutOfDeviceMemory:
                most = cut.nbytes // 2
            else:
                return cut

    def _grow(self, nbytes: int, good: int) -> None:
        """Have ``nbytes``, and ``good`` bytes unless there was no memory for as many before."""
        wanted, before = self._grown(nbytes, good), self.nbytes
        if wanted == before:
            return
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

    def note(self, kernel: CompiledKernel, cut: Cut, sizes: Fetch | None) -> None:
        """Say how a launch uses the heap, if asked for; with ``sizes``, once these have come: ``cut`` is what was offered."""
        if self.telling:
            self._untold.append((kernel, cut, sizes))
            self.tell()

    def tell(self) -> None:
        """Say of earlier launches, in their order, what is known by now."""
        while self._untold:
            kernel, cut, sizes = self._untold[0]
            raw = None if sizes is None else sizes.take()
            if sizes is not None and raw is None:
                return
            del self._untold[0]
            if raw is not None:
                cut = self.used(kernel, cut, np.frombuffer(raw, np.int32).tolist())
            self._print(kernel, cut, "host" if sizes is None else "device")

    def _print(self, kernel: CompiledKernel, cut: Cut, source: str) -> None:
        """One line for each slab of each task."""
        for share in cut.shares:
            for kind, stride in (("F", share.floats), ("I", share.integers)):
                if stride:
                    print(
                        f"[adstack_heap] arch={kernel.profile} task='{share.task or kernel.name}' kind={kind} src={source} "
                        f"rows={share.rows} stride={4 * stride} required_bytes={share.slab_bytes(stride)}",
                        file=sys.stderr,
                    )


def _too_large(kernel: CompiledKernel, cut: Cut, entries: Sequence[int], most: int) -> TapesTooLarge:
    rows = {(share.task, share.claimed): share.rows for share in cut.shares}
    each = [(4 * tape.words * entries[tape.capacity] * rows[tape.task, tape.claimed], tape) for tape in kernel.tapes]
    nbytes, tape = max(each, key=itemgetter(0))
    held = f"{counted(entries[tape.capacity], 'entry', 'entries')} of {counted(4 * tape.words, 'byte')}"
    return TapesTooLarge(
        f"the tapes of {kernel.name} need {cut.nbytes:,} bytes or more, and may have {most:,}: {nbytes:,} alone for one of this "
        f"loop, with {held} in each of {counted(rows[tape.task, tape.claimed], 'row')}",
        tape.name,
    )


def _groups(tapes: Sequence[tuple[int, TapeInfo]]) -> list[list[tuple[int, TapeInfo]]]:
    """``tapes`` of a task, by number: those that all its invocations use, then those that they claim, if there are such."""
    groups = [[(n, tape) for n, tape in tapes if tape.claimed == claimed] for claimed in (False, True)]
    return [group for group in groups if group]


def _offsets(tapes: Sequence[tuple[int, TapeInfo]], entries: Sequence[int], even: bool) -> tuple[dict[int, int], int, int]:
    """Where in a row each tape begins, and how long its floats and its integers are. ``even``: both lengths."""
    offsets, lengths, end = {}, [], 0
    for slab in "FI":
        start = end
        for n, tape in sorted(tapes, key=lambda item: -item[1].dtype.size):
            if tape.slab == slab:
                offsets[n] = end
                end += entries[tape.capacity] * tape.words
        end += end % 2 if even else 0
        lengths.append(end - start)
    return offsets, lengths[0], lengths[1]


def _pitch(rows: int) -> int:
    """The distance of entries for so many rows: even, so that every tape begins at an even word."""
    return (rows + TAPE_PADDING if rows > TAPE_PADDING else rows) + 1 & -2


def _rows_of(asked: int, count: int | None, task: TaskInfo) -> int:
    """The rows of ``asked`` invocations: workgroups are whole, but who has none of ``count`` iterations needs no row."""
    rows = _whole_groups(asked, task)
    return rows if count is None else min(rows, max(count, 1))


def _rows_asked(kernel: CompiledKernel, counts: Sequence[int | None], asked: Sequence[int | None]) -> list[int]:
    return [0 if n is None else _rows_of(n, count, task) for n, count, task in zip(asked, counts, kernel.tasks)]


def _fitting(strides: Sequence[int], wanted: Sequence[int], left: int) -> list[tuple[int, int]]:
    """Of each group of rows, how many there are and the distance of entries: those ``wanted``, if ``left`` words are enough for all, else
    as many of each."""
    pitches = [_pitch(rows) for rows in wanted]
    if sum([pitch * stride for pitch, stride in zip(pitches, strides)]) <= left:
        return list(zip(wanted, pitches))
    shared = left // sum(strides) & -2
    rows = shared - TAPE_PADDING if shared > 2 * TAPE_PADDING else shared
    return [(rows, shared)] * len(strides)


def _whole_groups(count: int, task: TaskInfo) -> int:
    size = max(task.group_size, 1)
    return -(-count // size) * size

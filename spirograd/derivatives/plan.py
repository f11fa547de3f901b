"""Launches of derivatives: their adstacks are sized first, on the host if sizes follow from what it knows, else by counting kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from spirograd.base.arguments import Arguments, ArrayBinding
from spirograd.base.artifact import AdstackSizing
from spirograd.base.device import CallsNatively, Readback
from spirograd.base.dtypes import storage
from spirograd.base.errors import render
from spirograd.base.records import dataclass, replace
from spirograd.base.sizes.evaluate import evaluate
from spirograd.base.sizes.size_nodes import Element
from spirograd.base.validity import NotPrepared, Record
from spirograd.runtime import graph_recording
from spirograd.runtime.adstack_heap import UNKNOWN, AdstackSizes, AdstacksTooLarge, HeapPlan
from spirograd.runtime.allocations import Allocation
from spirograd.runtime.freshness import Freshness
from spirograd.runtime.graph_recording import GraphRecording
from spirograd.runtime.launcher import Launcher, LaunchPlan
from spirograd.runtime.native.launch_preparation import Prepared, Recording


@dataclass(frozen=True, slots=True)
class Forecast:
    """How a launch would use the heap of adstacks. ``entries`` of the adstacks of each capacity, by number, and in which way they were
    found ("known" to the host, "counted", "reused"); ``heap``: the bytes that it has by now, ``budget``: that it may have."""

    heap_plan: HeapPlan
    entries: tuple[int, ...]
    ways: tuple[str, ...]
    heap: int
    budget: int


@dataclass(frozen=True, slots=True)
class GrowingAdstacks:
    """The limit of adstacks that grow as they are written (the interpreter's): ``budget`` in bytes; ``adstacks``: the name of each, the
    bytes of an entry, the number of its capacity."""

    budget: int
    adstacks: tuple[tuple[str, int, int], ...]

    def error(self, kernel: str, entries: Sequence[int]) -> AdstacksTooLarge | None:
        """What to raise if adstacks with so many ``entries``, by number of the capacity, exceed the limit."""
        each = [(entry * entries[number], name) for name, entry, number in self.adstacks]
        nbytes = sum(size for size, _ in each)
        if nbytes <= self.budget:
            return None
        largest, name = max(each)
        message = f"the adstacks of {kernel} need {nbytes:,} bytes, and may have {self.budget:,}: {largest:,} alone for one of this loop"
        return AdstacksTooLarge(message, name, self.budget / nbytes)


class DerivativePlan:
    """A derivative ready to launch. ``main`` is its launch plan, ``sizing`` those of the kernels that count iterations, none if the host
    knows them all.

    Sizes that nothing has changed are used again: see `Freshness`. Devices that run on their own keep what they count to themselves, so
    that launches do not wait; the host hears of it later, and gives the next launch as much memory. Only the first launch waits, and those
    that could find too little memory because one thread slot takes a large part of it.

    ``growing``: the limit of adstacks that grow as they are written, see `GrowingAdstacks`; None if there is none.
    """

    def __init__(
        self,
        launcher: Launcher,
        adstacks: AdstackSizing,
        main: LaunchPlan,
        sizing: Sequence[LaunchPlan],
        growing: GrowingAdstacks | None = None,
    ) -> None:
        self.compiled = main.compiled
        self.main = main
        self.sizing = tuple(sizing)
        self.ample = False  # see `AdstackSizes`
        self.growing = growing
        self.capacities: tuple[int, ...] = ()  # by number: of the last launch, as far as the host knows
        self._sized = AdstackSizes()  # what the host found last
        self._launcher = launcher
        self._numbers = adstacks.counted
        self._sizes = adstacks.sizes
        self._exact = adstacks.exact
        self.loops = adstacks.loops
        self._freshness = Freshness([plan.compiled for plan in sizing], [size for size in self._sizes if size is not None])
        self._found: tuple[Any, ...] | None = None  # the state of what sizes depend on when they were found
        self._latest: dict[str, Any] = {}  # "launch": another object when the device may have other sizes, or adstacks elsewhere
        self._size_array: ArrayBinding | None = None  # where kernels leave sizes for each other
        if any(task.places for task in main.compiled.tasks):
            self._size_array = self._new_size_array()
        # Whether it is for the device to say how much memory a thread slot takes, not only how many there are.
        free = {adstack.slots for adstack in main.compiled.adstacks if not adstack.claimed}
        self._slot_size_unknown = any(size is None and k not in free for k, size in enumerate(self._sizes))
        self._draws = any(slot.kind == "seed" for slot in main.compiled.args.slots)
        self._epoch = 0
        self._certain = True  # whether ``capacities`` are those that are on the device now
        self._readback: Readback | None = None  # a pending readback of sizes
        self._outdated = False  # whether a launch has counted again since the readback was recorded

    @property
    def adstack_bytes(self) -> int:
        """The memory that the adstacks of the last launch took, in bytes. Waits for it where only the device knows."""
        if self._size_array is None or self.main.last_heap_plan is None:
            return self.main.adstack_bytes
        with self._launcher.lock:
            if not self._certain:
                self._wait_for_sizes()
            return self._launcher.adstacks.resolve(self.compiled, self.main.last_heap_plan, self.capacities).nbytes

    def launch(self, arguments: Arguments, drawn: int | None = None) -> None:
        """Run it. Arguments as of `LaunchPlan.launch`. Waits if iterations have to be counted on the host, else once."""
        if not self._sizes or not self.compiled.adstacks:
            self._check_growing(arguments, drawn)
            self.main.launch(arguments, drawn=drawn)
            return
        self.main.check_spaces(arguments)  # before their iterations are counted
        with self._launcher.lock:  # what a launch finds must not be that of another one
            if self._epoch != self._launcher.adstacks.epoch:
                self._forget()
            if drawn is None and self._draws:  # kernels that count see the numbers that the launch will
                drawn = self.main.last_number = self._launcher.next_number()
            recorder = graph_recording.active()
            try:
                if recorder is not None:
                    self._launch_recorded(recorder, arguments, drawn)
                else:
                    self._launch_now(arguments, drawn)
            except AdstacksTooLarge as error:
                raise self._located(error) from None

    def _launch_now(self, arguments: Arguments, drawn: int | None) -> None:
        state = self._freshness.key(arguments, drawn)
        resized = state is None or state != self._found
        if resized:
            self._latest["launch"] = object()
        self._found = None  # should anything fail
        if self._size_array is None:
            self._launch_known(arguments, drawn, resized)
        else:
            self._launch_counted(arguments.followed_by(self._size_array), drawn, resized)
        self._found = state

    def _launch_recorded(self, recorder: GraphRecording, arguments: Arguments, drawn: int | None) -> None:
        """Run it such that it can be repeated: the device counts each time, where it can; else sizes must be what they are now."""
        self._found, self._latest["launch"] = None, object()
        if self._size_array is not None:
            with graph_recording.paused():
                self.capacities = self._count_on_device(arguments, drawn)
            self._certain, self._readback = False, None
            sizes = AdstackSizes(self.capacities)
            for plan in (*self.sizing, self.main):
                plan.launch(arguments.followed_by(self._size_array), sizes, drawn)
            recorder.afterwards(self, self._forget_found)
            return
        state = self._freshness.key(arguments)  # none if numbers are drawn: others each time
        with graph_recording.paused():
            self.capacities = self._find(arguments, drawn)
        recorder.holds_while(lambda: state is not None and self._freshness.key(arguments) == state)
        self.main.launch(arguments, AdstackSizes(self._with_room(self.capacities)), drawn)

    def _forget_found(self) -> None:
        self._found, self._certain, self._latest["launch"] = None, False, object()

    def prepared(self, native: CallsNatively, arguments: Arguments, record: Record) -> Prepared:
        """As `LaunchPlan.prepared`, after a launch: for others whose adstacks have the sizes of that one."""
        if not self._sizes or not self.compiled.adstacks:
            return self.main.prepared(native, arguments, record)
        counted = self._size_array is not None
        if counted and (native.on_host or not self._certain or self._readback is not None):
            raise NotPrepared  # what the device has counted must have arrived

        def steps(into: Recording) -> None:
            into.keep_scalars(self._freshness.scalars)
            into.keep_arrays()
            record.steps(into)
            for generations, part in self._freshness.generations(arguments):
                into.item(generations, part)
            state = self._freshness.key(arguments)
            if state is None or state != self._found:
                raise NotPrepared
            if counted:
                into.unchanged()
                into.item(self._latest, "launch")
            into.called(self._count_reused)

        own = replace(record, steps=steps)
        with self._launcher.lock:
            if self._size_array is None:
                return self.main.prepared(native, arguments, own, self._sized)
            sizes = AdstackSizes(self.capacities, False, True, self.ample)
            return self.main.prepared(native, arguments.followed_by(self._size_array), own, sizes)

    def _count_reused(self) -> None:
        self._launcher.adstacks.sized["reused"] += 1

    def plan(self, arguments: Arguments, drawn: int | None = None) -> Forecast | None:
        """What a launch with these arguments would need for its adstacks, found in the same way but without launching it; None if it has
        none. Waits if iterations have to be counted. Raises AdstacksTooLarge if there is no room for the adstacks."""
        if not self._sizes or not self.compiled.adstacks:
            self._check_growing(arguments, drawn)
            return None
        with self._launcher.lock:
            heap = self._launcher.adstacks
            state = self._freshness.key(arguments, drawn)
            reused = state is not None and state == self._found and self._epoch == heap.epoch
            if self._size_array is not None:
                entries = self._read(self._size_array) if reused else self._count_on_device(arguments, drawn)
                arguments = arguments.followed_by(self._size_array)
            else:
                entries = self._with_room(self.capacities if reused else self._find(arguments, drawn))
            try:
                heap_plan = self.main.plan_adstacks(arguments, AdstackSizes(entries, ample=self.ample))
            except AdstacksTooLarge as error:
                raise self._located(error) from None
            ways = tuple(["reused" if reused else "known" if size is not None else "counted" for size in self._sizes])
            return Forecast(heap_plan, entries, ways, heap.nbytes, heap.byte_limit)

    def _located(self, error: AdstacksTooLarge) -> AdstacksTooLarge:
        """``error`` with the line of the loop."""
        hint = "run fewer iterations of it, or of the loop around it, in one launch"
        loc = next((loop.loc for loop in self.loops if loop.adstack == error.adstack), None)
        return AdstacksTooLarge(render(error.message, loc, hint), error.adstack, error.share)

    def _check_growing(self, arguments: Arguments, drawn: int | None) -> None:
        """Raise AdstacksTooLarge if adstacks that grow would exceed their limit."""
        if self.growing is not None and self._sizes:
            self.capacities = self._find(arguments, drawn)
            error = self.growing.error(self.compiled.name, self.capacities)
            if error is not None:
                raise self._located(error)

    def _forget(self) -> None:
        self._epoch = self._launcher.adstacks.epoch
        self._found, self._latest["launch"] = None, object()
        self.capacities = ()
        self._certain, self._readback = False, None

    # --- sizes that the host finds -----------------------------------------------------------------------------------------

    def _launch_known(self, arguments: Arguments, drawn: int | None, resized: bool) -> None:
        if resized:
            self.capacities = self._find(arguments, drawn)
        if resized or self._sized.ample is not self.ample:
            self._sized = AdstackSizes(self._with_room(self.capacities), ample=self.ample)
        self._launcher.adstacks.sized["reused" if not resized else "counted" if self.sizing else "known"] += 1
        self.main.launch(arguments, self._sized, drawn)

    def _with_room(self, capacities: Sequence[int]) -> tuple[int, ...]:
        """Capacities with room to spare, where only running the loop could tell them: a `while` may take a few iterations more in another
        kernel, whose functions round otherwise."""
        return tuple([n if k in self._exact else n + n // 4 + 16 for k, n in enumerate(capacities)])

    def _find(self, arguments: Arguments, drawn: int | None) -> tuple[int, ...]:
        found = self._evaluated(arguments, [0] * len(self._sizes))
        for plan, numbers in zip(self.sizing, self._numbers):
            self.capacities = tuple(found)  # for whom this fails
            for k, count in zip(numbers, plan.launch(arguments, AdstackSizes(self._with_room(found)), drawn) or ()):
                found[k] = int(count)
        return tuple(found)

    def _evaluated(self, arguments: Arguments, others: Sequence[int]) -> list[int]:
        """The sizes that expressions give, and ``others`` for the rest."""

        def read(element: Element, offset: int) -> int:
            raw = np.zeros(1, storage(element.dtype).np)
            out = raw.data.cast("B")
            if element.kind == "tree":
                if offset + raw.nbytes <= arguments.trees[element.number].nbytes:  # else the loop is not reached
                    arguments.trees[element.number].read_into(offset, out)
            elif (array := arguments.arrays[element.number]) is not None and offset + raw.nbytes <= raw.nbytes * math.prod(array.shape):
                array.read_into(offset, out)
            return int(raw[0])

        scalars, arrays = arguments.scalars, arguments.arrays
        return [other if size is None else evaluate(size, scalars, arrays, read) for size, other in zip(self._sizes, others)]

    # --- sizes that the device finds ---------------------------------------------------------------------------------------

    def _launch_counted(self, arguments: Arguments, drawn: int | None, resized: bool) -> None:
        """The device counts, if ``resized``, and places the adstacks."""
        heap, first = self._launcher.adstacks, not self.capacities
        self._poll_sizes()
        if resized:
            before = self.capacities or [UNKNOWN] * len(self._sizes)
            self.capacities = tuple(self._evaluated(arguments, before))
        heap.sized["counted" if resized else "reused"] += 1
        for plan in (*self.sizing, self.main) if resized else (self.main,):
            if resized and self._slot_size_unknown and plan.compiled.adstacks and (first or not heap.has_headroom(plan.last_heap_plan)):
                self._stall_for_sizes()
            if plan is self.main and not self._certain and self._readback is None:
                self._readback = self._start_readback()  # one readback at a time: more would cost time and give little information
                self._outdated = False
            ample = self.ample and plan is self.main
            sizes = AdstackSizes(self.capacities, resized, self._certain or not self._slot_size_unknown, ample)
            try:
                plan.launch(arguments, sizes, drawn)
            except AdstacksTooLarge:
                if sizes.certain:
                    raise
                self._stall_for_sizes()  # it may be an earlier launch that needed so much
                plan.launch(arguments, AdstackSizes(self.capacities, resized, self._certain, ample), drawn)
            if heap.reports and plan.last_heap_plan is not None:
                heap.report(plan.compiled, plan.last_heap_plan, self._start_readback())
            if plan is not self.main:
                self._certain, self._outdated = False, True

    def _count_on_device(self, arguments: Arguments, drawn: int | None) -> tuple[int, ...]:
        """Count on the device, for the host: the sizes that launches use are not written."""
        there = self._new_size_array()
        entries: tuple[int, ...] = ()
        for plan in self.sizing:
            plan.launch(arguments.followed_by(there), AdstackSizes(entries), drawn)
            entries = self._read(there)
        return entries

    def _new_size_array(self) -> ArrayBinding:
        allocation = self._launcher.memory.allocate(4 * len(self._sizes))
        return ArrayBinding(allocation.address, (len(self._sizes),), 0, 0, allocation)

    def _read(self, there: ArrayBinding) -> tuple[int, ...]:
        """The sizes that kernels left there; waits for them."""
        raw = np.zeros(len(self._sizes), np.int32)
        there.read_into(0, raw.data.cast("B"))
        return tuple(raw.tolist())

    def _start_readback(self) -> Readback:
        assert self._size_array is not None
        assert isinstance(self._size_array.allocation, Allocation)
        return self._size_array.allocation.read_async(0, 4 * len(self._sizes))

    def _stall_for_sizes(self) -> None:
        """Wait for the sizes, before a launch."""
        self._launcher.adstacks.sized["waited"] += 1
        self._wait_for_sizes()

    def _wait_for_sizes(self) -> None:
        """Wait for the sizes that the device counted last."""
        self._readback, self._outdated = None, False
        self._store_sizes(self._start_readback().wait())

    def _poll_sizes(self) -> None:
        """Store the sizes of the pending readback if they have arrived."""
        raw = None if self._readback is None else self._readback.take()
        if raw is not None:
            self._readback = None
            self._store_sizes(raw)

    def _store_sizes(self, raw: bytes) -> None:
        self.capacities = tuple(np.frombuffer(raw, np.int32).tolist())
        self._certain = not self._outdated

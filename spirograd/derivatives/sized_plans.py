"""Derivatives whose adstacks have planned memory: how large they are, the host knows, kernels count for the host, or for the device.

Sizes that nothing has changed are used again: see `Freshness`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from spirograd.base.arguments import Arguments, ArrayBinding, PreparedLaunch
from spirograd.base.artifact import AdstackSizing
from spirograd.base.device import CallsNatively, Readback
from spirograd.base.dtypes import storage
from spirograd.base.records import replace
from spirograd.base.sizes.evaluate import evaluate
from spirograd.base.sizes.size_nodes import Element
from spirograd.base.validity import NotPrepared, Record, StepRecorder
from spirograd.derivatives.plan import DerivativePlan, GrowthLimit, HeapForecast, UnplannedAdstacks, launched
from spirograd.runtime import graph_recording
from spirograd.runtime.adstack_heap import UNKNOWN, AdstackSizes, AdstacksTooLarge
from spirograd.runtime.allocations import Allocation
from spirograd.runtime.freshness import Freshness, Key
from spirograd.runtime.graph_recording import GraphRecording
from spirograd.runtime.launcher import Launcher, LaunchPlan


class SizedPlan(DerivativePlan):
    """A derivative with adstacks. ``counting``: plans of the kernels that count iterations."""

    _on_device = False  # whether the sizes are on the device

    def __init__(self, launcher: Launcher, adstacks: AdstackSizing, main: LaunchPlan, counting: Sequence[LaunchPlan]) -> None:
        super().__init__(main, adstacks.loops)
        self._launcher, self._counting = launcher, tuple(counting)
        self._sizes = adstacks.sizes
        self._freshness = Freshness([plan.compiled for plan in counting], [size for size in self._sizes if size is not None])
        self._state: Key | None = None  # what the sizes depended on when they were found
        self._latest: dict[str, object] = {}  # "launch": another object when the device may have other sizes, or adstacks elsewhere
        self._draws = any(slot.kind == "seed" for slot in main.compiled.args.slots)
        self._epoch = 0

    def _launch(self, arguments: Arguments, drawn: int | None) -> None:
        self.main.check_spaces(arguments)  # before their iterations are counted
        with self._launcher.lock:  # no other launch may change the sizes
            if self._epoch != self._launcher.adstacks.epoch:
                self._epoch = self._launcher.adstacks.epoch
                self._forget()
            if drawn is None and self._draws:  # kernels that count see the numbers that the launch will
                drawn = self.main.last_number = self._launcher.next_number()
            recorder = graph_recording.active()
            if recorder is not None:
                self._state, self._latest["launch"] = None, object()
                self._record(recorder, arguments, drawn)
                return
            state = self._freshness.key(arguments, drawn)
            resized = state is None or state != self._state
            if resized:
                self._latest["launch"] = object()
            self._state = None  # should anything fail
            self._launch_sized(arguments, drawn, resized)
            self._state = state

    def prepared(self, native: CallsNatively, arguments: Arguments, record: Record) -> PreparedLaunch:
        """See `DerivativePlan`."""

        def steps(into: StepRecorder) -> None:
            into.keep_scalars(self._freshness.scalars)
            into.keep_arrays()
            record.steps(into)
            for generations, part in self._freshness.generations(arguments):
                into.item(generations, part)
            state = self._freshness.key(arguments)
            if state is None or state != self._state:
                raise NotPrepared
            if self._on_device:
                into.unchanged()
                into.item(self._latest, "launch")
            into.called(self._note_reuse)

        with self._launcher.lock:
            return self.main.prepared(native, self._extended(arguments), replace(record, steps=steps), self._current_sizes())

    def _forecast(self, arguments: Arguments, drawn: int | None) -> HeapForecast:
        with self._launcher.lock:
            heap = self._launcher.adstacks
            state = self._freshness.key(arguments, drawn)
            reused = state is not None and state == self._state and self._epoch == heap.epoch
            entries = self._entries(arguments, drawn, reused)
            heap_plan = self.main.plan_adstacks(self._extended(arguments), AdstackSizes(entries, ample=self.ample))
            sources = tuple(["reused" if reused else "known" if size is not None else "counted" for size in self._sizes])
            return HeapForecast(heap_plan, entries, sources, heap.nbytes, heap.byte_limit)

    def _note_reuse(self) -> None:
        self._launcher.adstacks.sized["reused"] += 1

    def _forget(self) -> None:
        """Forget the sizes: the heap has moved."""
        self._state, self._latest["launch"] = None, object()
        self.capacities = ()

    def _evaluated(self, arguments: Arguments, others: Sequence[int]) -> list[int]:
        """Return the sizes that expressions give, and ``others`` for the rest."""

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

    def _extended(self, arguments: Arguments) -> Arguments:
        """Return the arguments of the kernels."""
        return arguments

    @abstractmethod
    def _launch_sized(self, arguments: Arguments, drawn: int | None, resized: bool) -> None:
        """Launch, and find sizes before if they may have changed (``resized``)."""

    @abstractmethod
    def _record(self, recorder: GraphRecording, arguments: Arguments, drawn: int | None) -> None:
        """Launch such that the launch can be repeated."""

    @abstractmethod
    def _entries(self, arguments: Arguments, drawn: int | None, reused: bool) -> tuple[int, ...]:
        """Return the capacities of a launch, or of the last one (``reused``)."""

    @abstractmethod
    def _current_sizes(self) -> AdstackSizes:
        """Return the sizes of the last launch."""


class HostSized(SizedPlan):
    """Sizes that the host computes from expressions, and those that kernels count for it, which it waits for."""

    def __init__(self, launcher: Launcher, adstacks: AdstackSizing, main: LaunchPlan, counting: Sequence[LaunchPlan]) -> None:
        super().__init__(launcher, adstacks, main, counting)
        self._numbers, self._exact = adstacks.counted, adstacks.exact
        self._source = "counted" if counting else "known"
        self._current = AdstackSizes()

    def find(self, arguments: Arguments, drawn: int | None) -> tuple[int, ...]:
        """Return the capacities for these arguments: those that expressions give, and then those of each kernel that counts."""
        capacities = self._evaluated(arguments, [0] * len(self._sizes))
        for plan, numbers in zip(self._counting, self._numbers):
            self.capacities = tuple(capacities)  # for nested checkpoints, should this raise
            for k, count in zip(numbers, plan.launch(arguments, AdstackSizes(self._with_room(capacities)), drawn) or ()):
                capacities[k] = int(count)
        return tuple(capacities)

    def _launch_sized(self, arguments: Arguments, drawn: int | None, resized: bool) -> None:
        if resized:
            self.capacities = self.find(arguments, drawn)
        if resized or self._current.ample is not self.ample:
            self._current = AdstackSizes(self._with_room(self.capacities), ample=self.ample)
        self._launcher.adstacks.sized[self._source if resized else "reused"] += 1
        self.main.launch(arguments, self._current, drawn)

    def _record(self, recorder: GraphRecording, arguments: Arguments, drawn: int | None) -> None:
        """Launch such that the launch can be repeated as long as the sizes are those of now."""
        state = self._freshness.key(arguments)  # None if random numbers are drawn: others each time
        with graph_recording.paused():
            self.capacities = self.find(arguments, drawn)
        recorder.holds_while(lambda: state is not None and self._freshness.key(arguments) == state)
        self.main.launch(arguments, AdstackSizes(self._with_room(self.capacities)), drawn)

    def _entries(self, arguments: Arguments, drawn: int | None, reused: bool) -> tuple[int, ...]:
        return self._with_room(self.capacities if reused else self.find(arguments, drawn))

    def _current_sizes(self) -> AdstackSizes:
        return self._current

    def _with_room(self, capacities: Sequence[int]) -> tuple[int, ...]:
        """Return capacities with room to spare, where only running the loop could tell them: a `while` may take a few iterations more in
        another kernel, whose functions round otherwise."""
        return tuple([n if k in self._exact else n + n // 4 + 16 for k, n in enumerate(capacities)])


class DeviceSized(SizedPlan):
    """Sizes that kernels count for the device, in an array there, so that launches do not wait. The host gets them later, and gives the
    next launch as much memory. Only the first launch waits, and those that could find too little memory because one thread slot takes a
    large part of it."""

    _on_device = True

    def __init__(self, launcher: Launcher, adstacks: AdstackSizing, main: LaunchPlan, counting: Sequence[LaunchPlan]) -> None:
        super().__init__(launcher, adstacks, main, counting)
        self._size_array = self._new_size_array()
        # Whether only the device knows the memory of a thread slot, not just how many there are.
        free = {adstack.slots for adstack in main.compiled.adstacks if not adstack.claimed}
        self._slot_size_unknown = any(size is None and k not in free for k, size in enumerate(self._sizes))
        self._certain = True  # whether ``capacities`` are those that are on the device now
        self._readback: Readback | None = None  # a pending readback of sizes
        self._outdated = False  # whether a launch has counted again since the readback was recorded

    @property
    def adstack_bytes(self) -> int:
        """See `DerivativePlan`."""
        main = launched(self.main)
        if main.last_heap_plan is None:
            return main.adstack_bytes
        with self._launcher.lock:
            if not self._certain:
                self._wait_for_sizes()
            return self._launcher.adstacks.resolve(main.compiled, main.last_heap_plan, self.capacities).nbytes

    def _extended(self, arguments: Arguments) -> Arguments:
        return arguments.followed_by(self._size_array)

    def _forget(self) -> None:
        super()._forget()
        self._certain, self._readback = False, None

    def _launch_sized(self, arguments: Arguments, drawn: int | None, resized: bool) -> None:
        """Launch; the device counts before, if ``resized``, and places the adstacks."""
        heap, first = self._launcher.adstacks, not self.capacities
        arguments = self._extended(arguments)
        self._poll_sizes()
        if resized:
            before = self.capacities or [UNKNOWN] * len(self._sizes)
            self.capacities = tuple(self._evaluated(arguments, before))
        heap.sized["counted" if resized else "reused"] += 1
        for plan in (*self._counting, self.main) if resized else (self.main,):
            last = launched(plan).last_heap_plan
            if resized and self._slot_size_unknown and plan.compiled.adstacks and (first or not heap.has_headroom(last)):
                self._stall_for_sizes()
            if plan is self.main and not self._certain and self._readback is None:
                self._readback = self._start_readback()  # one readback at a time: more would cost time and give little information
                self._outdated = False
            self._launch_plan(plan, arguments, drawn, resized)
            ran = launched(plan)
            if heap.reports and ran.last_heap_plan is not None:
                heap.report(ran.compiled, ran.last_heap_plan, self._start_readback())
            if plan is not self.main:
                self._certain, self._outdated = False, True

    def _launch_plan(self, plan: LaunchPlan, arguments: Arguments, drawn: int | None, resized: bool) -> None:
        ample = self.ample and plan is self.main
        sizes = AdstackSizes(self.capacities, resized, self._certain or not self._slot_size_unknown, ample)
        try:
            plan.launch(arguments, sizes, drawn)
        except AdstacksTooLarge:
            if sizes.certain:
                raise
            self._stall_for_sizes()  # it may be an earlier launch that needed so much
            plan.launch(arguments, AdstackSizes(self.capacities, resized, self._certain, ample), drawn)

    def _record(self, recorder: GraphRecording, arguments: Arguments, drawn: int | None) -> None:
        """Launch such that the launch can be repeated: the device counts each time."""
        with graph_recording.paused():
            self.capacities = self._count(arguments, drawn)
        self._certain, self._readback = False, None
        sizes = AdstackSizes(self.capacities)
        for plan in (*self._counting, self.main):
            plan.launch(self._extended(arguments), sizes, drawn)
        recorder.afterwards(self, self._forget_state)

    def _forget_state(self) -> None:
        self._state, self._certain, self._latest["launch"] = None, False, object()

    def _entries(self, arguments: Arguments, drawn: int | None, reused: bool) -> tuple[int, ...]:
        return self._read(self._size_array) if reused else self._count(arguments, drawn)

    def prepared(self, native: CallsNatively, arguments: Arguments, record: Record) -> PreparedLaunch:
        """See `DerivativePlan`. Raises NotPrepared unless the sizes have arrived at the host."""
        if native.on_host or not self._certain or self._readback is not None:
            raise NotPrepared
        return super().prepared(native, arguments, record)

    def _current_sizes(self) -> AdstackSizes:
        return AdstackSizes(self.capacities, False, True, self.ample)

    def _count(self, arguments: Arguments, drawn: int | None) -> tuple[int, ...]:
        """Count on the device, for the host: the sizes that launches use are not written."""
        array = self._new_size_array()
        entries: tuple[int, ...] = ()
        for plan in self._counting:
            plan.launch(arguments.followed_by(array), AdstackSizes(entries), drawn)
            entries = self._read(array)
        return entries

    def _new_size_array(self) -> ArrayBinding:
        allocation = self._launcher.memory.allocate(4 * len(self._sizes))
        return ArrayBinding(allocation.address, (len(self._sizes),), 0, 0, allocation)

    def _read(self, array: ArrayBinding) -> tuple[int, ...]:
        """Return the sizes that kernels left in an array; waits for them."""
        raw = np.zeros(len(self._sizes), np.int32)
        array.read_into(0, raw.data.cast("B"))
        return tuple(raw.tolist())

    def _start_readback(self) -> Readback:
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


def derivative_plan(
    launcher: Launcher, adstacks: AdstackSizing, main: LaunchPlan, counting: Sequence[LaunchPlan], limit: GrowthLimit | None = None
) -> DerivativePlan:
    """Return the plan of a derivative, compiled to ``main`` and to kernels that count iterations, none if the host knows them all.
    ``limit``: the limit of adstacks that grow as they are written."""
    if not adstacks.sizes or not main.compiled.adstacks:
        count = HostSized(launcher, adstacks, main, counting).find if adstacks.sizes and limit is not None else None
        return UnplannedAdstacks(main, adstacks.loops, limit, count)
    sized = DeviceSized if any(task.places for task in main.compiled.tasks) else HostSized
    return sized(launcher, adstacks, main, counting)

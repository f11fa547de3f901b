"""What the reverse of some steps of a program takes: their reverses, in order, and what they overwrote of the memory that these need.

`saving_rule` is the table of what is saved and when; `recording_check` compares with it what reverses find.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from spirograd.ad.copy_memory import CopyMemory, Purpose
from spirograd.ad.entries import DerivativeFootprint, Launch, LaunchAccess, TapeEvent, derivative_footprint_of, footprint_of
from spirograd.ad.exposed import wait_for_exposed
from spirograd.ad.memory_keys import FieldOrArray, Key, Part, Returned
from spirograd.ad.memory_report import MemoryReport, totals
from spirograd.ad.recording_check import check_if_wanted
from spirograd.ad.saving_rule import FUNCTION, Version
from spirograd.ad.undo_log import UndoLog, Written
from spirograd.ad.validation import kept
from spirograd.ad.versions import Saved, Versions
from spirograd.base.dtypes import DType
from spirograd.base.loc import Loc
from spirograd.base.protocols import Allocation, Place
from spirograd.derivatives.specialized import SpecializedDerivative
from spirograd.lang import context

if TYPE_CHECKING:
    from spirograd.ad.steps import Step, WriteStep
Parts = Mapping[tuple[Key, Part | None], tuple[str, FieldOrArray]]  # by key and slice (None: all of it)


class TapeRecording:
    """Steps that are run one after the other, then reversed: a `StepStore`. ``events``: what happened; ``versions``: of memory.

    ``copy_memory``: where the memory of copies comes from; None for memory that is freed with this object. ``keeps_all``: keep all memory
    that launches read, so that each of them can run again."""

    repeats = ""
    closed = False

    def __init__(self, copy_memory: CopyMemory | None = None, keeps_all: bool = False) -> None:
        self._keeps_all = keeps_all
        self._copy_memory = copy_memory
        self.versions = Versions(copy_memory)
        self.events: list[TapeEvent] = []
        self.check = check_if_wanted()
        self._scratched: list[Allocation] = []  # allocations for saved values
        self._report: MemoryReport | None = None  # of copies that the last replay has freed

    def add(self, step: Step) -> Returned:
        """Run a step of the program for the first time, and record it; returns what it returns. See `steps`."""
        return step.record(self)

    def host_write(self, step: WriteStep) -> None:
        """Record a write of the host, which comes next."""
        step.begin(self)

    def nested(self) -> TapeRecording | None:
        """See `StepStore`."""
        return self

    def launch(self, gradient: SpecializedDerivative, launch: Launch, returned: object) -> Returned:
        """Run a launch whose derivative is ``gradient``, and record it; returns what it returns. ``returned``: the adjoints of that."""
        memory = derivative_footprint_of(gradient)
        event = self._event()
        if self.check is not None:
            self.check.before_launch(event, gradient, launch)
        self._need_all(memory, launch, event, Version.BEFORE)
        if self._keeps_all:
            event.step = (launch, gradient)
            for access in memory.reads:
                self._need(access, launch, event, Version.BEFORE)
        for access in memory.writes:
            self._save(access, launch, event)
        if gradient.derivative.saving is not None and gradient.acts:
            scratch = functools.partial(self._scratch, gradient.label)
            values: Returned
            values, launch.number, launch.buffers = gradient.launch_saving(
                launch.packer, launch.number, scratch, kept(launch, launch.packer)
            )
            allocations = [buffer.allocation for buffer in launch.buffers]
            event.copies = [(f"values saved by {gradient.label}", memory.nbytes) for memory in allocations if memory is not None]
        else:
            values = launch.run()
        self._need_all(memory, launch, event, Version.AFTER)
        if self.check is not None:
            self.check.after_launch(event, gradient, launch)
        if gradient.acts:
            event.used, event.launches = (launch,), 1
            returned = returned if gradient.returned else None
            event.reverse = lambda: gradient.launch(launch.again(), returned, launch.number)
        return values

    def launch_aside(self, launch: Launch) -> Returned:
        """Run a launch that has no reverse. What it overwrites is saved all the same."""
        memory = footprint_of(launch.specialization)
        event = self._event()
        event.used = (launch,)
        for access in memory.writes:
            self._save(access, launch, event)
        return launch.run()

    def write(self, key: Key, at: Part | None, reverse: Callable[[], None] | None) -> None:
        """Save what the host is about to write: in the slice ``at``, or (None) all of it."""
        event = self._event()
        event.save(self.versions.write(key, lambda: at))
        event.reverse = reverse

    def unseen_write(self, key: Key, before: Saved, reverse: Callable[[], None] | None) -> None:
        """Record that the host has replaced the contents ``before``."""
        self.events.append(TapeEvent(saved=self.versions.replace(key, before), reverse=reverse))

    def call(self, reverse: Callable[[], None], used: Parts) -> None:
        """Record a gradient of Python's own, which reads the memory ``used`` as it is now."""
        event = self._event()
        event.reverse = reverse
        for (key, at), (name, storage) in used.items():
            self.need(event, key, name, storage, FUNCTION, at)

    def need(self, event: TapeEvent, key: Key, name: str, storage: FieldOrArray, version: Version, at: Part | None = None) -> None:
        """Note that the reverse of ``event`` reads ``storage`` as it is now, its ``version``, in a slice or (None) all of it."""
        self.versions.stored(key, name, storage)
        self.versions.need(key, at)
        if version is Version.BEFORE:
            event.before |= {key}
        if self.check is not None:
            self.check.expect(event, key, name, storage, at)

    def _event(self) -> TapeEvent:
        event = TapeEvent()
        self.events.append(event)
        return event

    def _need_all(self, memory: DerivativeFootprint, launch: Launch, event: TapeEvent, version: Version) -> None:
        """Note that the reverse of a launch reads the contents of memory now, its ``version`` of them."""
        for access, needed in memory.residuals:
            if needed is version:
                self._need(access, launch, event, version)

    def _need(self, access: LaunchAccess, launch: Launch, event: TapeEvent, version: Version) -> None:
        key, storage = launch.memory(access)
        if storage is None:
            event.keep(launch.snapshot(access))
            return
        self.versions.stored(key, access.name, storage)
        self.versions.need(key, launch.part(access.at))
        if version is Version.BEFORE:
            event.before |= {key}

    def _save(self, access: LaunchAccess, launch: Launch, event: TapeEvent) -> None:
        key = launch.key(access)
        if self.versions.is_wanted(key):
            event.save(self.versions.write(key, functools.partial(launch.part, access.at)))

    def used(self) -> Iterator[FieldOrArray]:
        """Yield the fields and ndarrays of the launches so far."""
        return (memory for event in self.events for launch in event.used for memory in launch.used())

    def wanted(self) -> Iterator[tuple[Key, str, FieldOrArray]]:
        """Yield the memory whose current contents the reverse reads: key, name, and field or ndarray."""
        return ((key, memory.name, memory.storage) for key, memory in self.versions.wanted())

    def replay(self, last: bool) -> None:
        """Run all reverses, each on memory as it was then; afterwards memory holds what it held. ``last``: the copies are freed on the way.
        Else they are exchanged for what memory holds, so that the reverses can run again."""
        if last:
            self._report = self.report()
            end = UndoLog()
            try:
                self.reverse_once(end.before)
            finally:
                changed = [saved.memory.storage for _, saved in end.saved]
                end.restore()
                wait_for_exposed(changed)
            return
        self.visit(self._run_reverse)

    def visit(self, function: Callable[[TapeEvent], None]) -> None:
        """Call ``function`` with each event, the last one first, on memory as its reverse finds it; then memory holds what it held."""
        swapped: list[Saved] = []
        try:
            for saved in self._visited(function):
                swapped.append(saved)
        finally:
            for saved in reversed(swapped):
                saved.swap()
            wait_for_exposed([saved.memory.storage for saved in swapped])

    def _visited(self, function: Callable[[TapeEvent], None]) -> Iterator[Saved]:
        """Do the same; yield the copies that were exchanged for the contents of memory, in order."""
        for event in reversed(self.events):
            yield from _swap([saved for key, saved in event.saved if key in event.before])
            function(event)
            yield from _swap([saved for key, saved in event.saved if key not in event.before])

    def _run_reverse(self, event: TapeEvent) -> None:
        if self.check is not None:
            self.check.compare(event)
        if event.reverse is not None:
            event.reverse()

    def reverse_once(self, before: Callable[[Iterable[Written]], None] | None = None) -> None:
        """Run all reverses, each on memory as it was then, and free the copies. Memory is not put back afterwards. ``before`` is told
        which memory is about to change: key, memory, and part."""
        while self.events:
            event = self.events[-1]  # taken away when it is done, so that `free` finds what is left
            if event.saved:
                if before is not None:
                    before([(key, saved.memory, saved.part) for key, saved in event.saved])
                _put([saved for key, saved in event.saved if key in event.before])
            self._run_reverse(event)
            if self._copy_memory is not None:
                self._free_buffers(event)
            if event.saved:
                _put([saved for key, saved in event.saved if key not in event.before])
            self.events.pop()

    def _free_buffers(self, event: TapeEvent) -> None:
        for launch in event.used:
            buffers, launch.buffers = launch.buffers, ()
            for buffer in buffers:
                assert buffer.allocation is not None
                self._give(buffer.allocation)

    def free(self) -> None:
        """Free the copies that are left after an error. The reverse cannot run any more."""
        while self.events:
            for _, saved in self.events.pop().saved:
                saved.free()
        while self._scratched:
            self._give(self._scratched[-1])

    def _give(self, allocation: Allocation) -> None:
        assert self._copy_memory is not None
        self._scratched.remove(allocation)
        self._copy_memory.give(allocation)

    def _scratch(self, label: str, dtype: DType, shape: tuple[int, ...], loc: Loc | None) -> Place:
        """Return an array of zeros for the values that a launch of the kernel ``label`` saves. ``loc``: the line of the first of them."""
        session = context.session()
        if self._copy_memory is None:
            return session.scratch(dtype, shape)
        nbytes = max(math.prod(shape) * dtype.size, 1)
        what = f"what one launch of {label} saves, values that it overwrites and its gradient needs,"
        allocation = self._copy_memory.allocate(nbytes, Purpose(what, loc, ", or run fewer iterations in one launch"))
        self._scratched.append(allocation)
        allocation.fill(0, -(-nbytes // 4) * 4, 0)
        return session.scratch(dtype, shape, allocation)

    def close(self) -> None:
        """Do nothing: the copies are freed with this object. See `StepStore`."""

    def report(self) -> MemoryReport:
        """Return the bytes of the copies; once the last replay has freed them, those that there were."""
        return self._report or MemoryReport(sum(event.launches for event in self.events), totals(self.copies()))

    def copies(self) -> Iterator[tuple[str, int]]:
        """Yield the name and bytes of each copy."""
        for event in self.events:
            yield from ((saved.memory.name, saved.nbytes) for _, saved in event.saved)
            yield from event.copies


def _put(saved: Sequence[Saved]) -> None:
    """Set memory to what it held before some writes, and free the copies."""
    for one in reversed(saved):
        one.put()
        one.free()


def _swap(saved: Iterable[Saved]) -> Iterator[Saved]:
    """Exchange what memory holds for what it held before some writes; yield the copies."""
    for one in reversed([*saved]):
        one.swap()
        yield one

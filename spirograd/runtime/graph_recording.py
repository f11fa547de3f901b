"""Recordings: what a block of Python had a device do, to be done again without that Python.

While a recording is open, launch plans and allocations tell it of each launch, fill, copy and upload of its thread, after they did it. To
repeat it, the device does the same again, with the same arguments in the same order. Runs of work that is the same each time go to a
device as one piece where its driver takes that (see `RecordsWork`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from itertools import pairwise
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from spirograd.base import validity
from spirograd.base.device import RecordsWork, Sections, Step, one_by_one
from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.base.records import dataclass
from spirograd.runtime import stream_order
from spirograd.runtime.generations import observe, tick

if TYPE_CHECKING:
    from spirograd.base.protocols import Allocation

_lock = threading.RLock()  # one recording at a time in a process
current: GraphRecording | None = None
_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()

Work = Callable[[Any], None]  # has a device do something


@dataclass(slots=True, eq=False)
class NumberedLaunch:
    """A launch that is told apart from others by its number: it draws random numbers, prints, or can fail.

    ``launch(number, drawn)`` does it again; ``drawn``: the number by which it drew random numbers."""

    launch: Callable[[int, int], None]
    drawn: int


@dataclass(slots=True, eq=False)
class Series:
    """Work that is the same each time. ``recorded``: the same as one piece for the driver, None if it takes none."""

    steps: list[Step | Sections] = field(default_factory=list)
    recorded: object = None

    @property
    def is_long(self) -> bool:
        """Whether it is more than one step."""
        return len(self.steps) > 1 or any(isinstance(step, Sections) for step in self.steps)

    def repeat(self, device: Any) -> None:
        """Have ``device`` do it."""
        if self.recorded is not None:
            device.repeat(self.recorded)
            return
        for step in one_by_one(self.steps):
            step.work(device)


class NotPlanned(Exception):
    """What was to be planned takes the host: see `GraphRecording.plans`."""


class GraphRecording:
    """See the head of this file. ``launcher``: whose device's work is recorded. ``launches``: how many there are of kernels. ``plans``:
    launches are noted, and not done; whatever else would be done raises NotPlanned."""

    plans = False

    def __init__(self, launcher: Any) -> None:
        self.launches = 0
        self._launcher = launcher
        self._thread = threading.get_ident()
        self._first = launcher.next_number()
        self._steps: list[Series | NumberedLaunch | Work] = []
        self._written: dict[tuple[int, str], tuple[dict[str, int], str]] = {}  # generations, and the parts of them that it changes
        self._kept: dict[int, object] = {}  # objects that own memory which the work uses
        self._trees: dict[int, tuple[Any, int]] = {}  # of these, those that users may destroy; where they were
        self._after: dict[int, Callable[[], None]] = {}
        self._guards: list[Callable[[], bool]] = []

    # --- recording -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def open(self) -> Iterator[GraphRecording]:
        """Record what this thread does in the block. Raises SpirogradRuntimeError inside of another recording."""
        global current
        with _lock:
            if current is not None:
                raise SpirogradRuntimeError("a graph cannot be recorded inside of another one: end that block first")
            current = self
            validity.suspend()  # launches without Python would not be noted
            try:
                yield self
            finally:
                validity.resume()
                current = None
        device = self._launcher.device
        for step in self._steps if isinstance(device, RecordsWork) else ():
            if isinstance(step, Series) and step.is_long:
                step.recorded = device.record(step.steps)
                if step.recorded is not None:
                    step.steps = []

    @property
    def here(self) -> bool:
        """Whether the calling thread is the one that is recorded."""
        return threading.get_ident() == self._thread

    def launched(self, launch: Step | NumberedLaunch) -> None:
        """Note a launch."""
        self.launches += 1
        if isinstance(launch, NumberedLaunch):
            self._steps.append(launch)
        else:
            self._add(launch)

    def sections(self, works: Sequence[Callable[[], None]]) -> None:
        """Do ``works``, and note that they may be done at the same time, if all of them is the same each time."""
        if not self._steps or not isinstance(self._steps[-1], Series):
            self._steps.append(Series())
        count, series = len(self._steps), self._steps[-1]
        assert isinstance(series, Series)
        ends = [len(series.steps)]
        for work in works:
            work()
            ends.append(len(series.steps))
        if len(self._steps) == count:
            sections = [list(one_by_one(series.steps[begin:end])) for begin, end in pairwise(ends) if begin < end]
            if len(sections) > 1:
                series.steps[ends[0] :] = [Sections(sections)]

    def uploaded(self, allocation: Allocation, offset: int, data: memoryview) -> None:
        """Note that the host wrote to an allocation."""
        self._kept[id(allocation)] = allocation
        self._steps.append(methodcaller("upload", allocation.buffer, offset, memoryview(bytes(data))))

    def filled(self, allocation: Allocation, offset: int, nbytes: int, word: int, part: str = "") -> None:
        """Note that a part of an allocation was filled."""
        self._kept[id(allocation)] = allocation
        self._add(Step(methodcaller("fill", allocation.buffer, offset, nbytes, word), (), [(allocation, part)]))

    def copied(self, target: Any, target_offset: int, source: Any, source_offset: int, nbytes: int, part: str = "") -> None:
        """Note a copy from an allocation to a part of another one."""
        self.keep(target, source)
        work = methodcaller("copy", target.buffer, target_offset, source.buffer, source_offset, nbytes)
        self._add(Step(work, [(source, "")], [(target, part)]))

    def _add(self, step: Step) -> None:
        if not self._steps or not isinstance(self._steps[-1], Series):
            self._steps.append(Series())
        last = self._steps[-1]
        assert isinstance(last, Series)
        last.steps.append(step)

    def wrote(self, generations: dict[str, int], part: str) -> None:
        """Note that the work changes a part of an allocation with these generations."""
        self._written[id(generations), part] = generations, part

    def keep(self, *owners: object) -> None:
        """Have objects live as long as the recording."""
        self._kept.update((id(owner), owner) for owner in owners)

    def uses_tree(self, allocation: Allocation) -> None:
        """Note an allocation that users may destroy."""
        self._trees[id(allocation)] = allocation, allocation.address

    def afterwards(self, about: object, forget: Callable[[], None]) -> None:
        """Call ``forget`` after each repetition: what the host knows ``about`` an object may no longer hold."""
        self._after[id(about)] = forget

    def holds_while(self, guard: Callable[[], bool]) -> None:
        """The recording is good for as long as ``guard`` says so."""
        self._guards.append(guard)

    # --- repeating -------------------------------------------------------------------------------------------------------

    def repeat(self) -> None:
        """Do it all again, in order with other launches. Raises SpirogradRuntimeError if memory that it uses was destroyed, or if what the
        adstacks of gradients were sized by has changed."""
        if active() is not None:
            raise SpirogradRuntimeError("a graph cannot be launched while another one is recorded: launch it outside of that block")
        if any(tree.freed for tree, _ in self._trees.values()):
            raise SpirogradRuntimeError("the graph uses a field whose tree was destroyed: record it anew, with fields that are there")
        if any(tree.address != address for tree, address in self._trees.values()):
            problem = "the graph uses a sparse field that has got memory for more cells since it was recorded"
            raise SpirogradRuntimeError(render(problem, None, "record it anew, or reserve memory for enough cells with `cells=`"))
        launcher = self._launcher
        with launcher.lock:
            if not all(guard() for guard in self._guards):
                problem = "what the adstacks of gradients in the graph were sized by may have changed since it was recorded"
                hint = "record it anew after bounds of loops have changed; here the graph itself may not change them, nor draw them"
                raise SpirogradRuntimeError(render(problem, None, hint))
            drawn: dict[int, int] = {}
            try:
                if stream_order.active is None:
                    self._repeat(drawn)
                else:
                    stream_order.active.after_all(lambda: self._repeat(drawn))
            finally:  # what fails may have written
                now = tick()
                for generations, part in self._written.values():
                    generations[part] = now
                observe(now)
                for forget in self._after.values():
                    forget()

    def _repeat(self, drawn: dict[int, int]) -> None:
        device = self._launcher.device
        for step in self._steps:
            if isinstance(step, Series):
                step.repeat(device)
            elif isinstance(step, NumberedLaunch):
                self._launch_numbered(step, drawn)
            else:
                step(device)

    def _launch_numbered(self, step: NumberedLaunch, drawn: dict[int, int]) -> None:
        """Launches that drew the same random numbers when they were recorded do so now: others than then, unless they were drawn before."""
        number = self._launcher.next_number()
        again = step.drawn
        if again >= self._first:
            again = drawn.setdefault(again, number)
        step.launch(number, again)


def active() -> GraphRecording | None:
    """What records the calling thread, or None."""
    return current if current is not None and current.here else None


def paused() -> AbstractContextManager[None]:
    """Do not record what the calling thread does in the block: it is the compiler's own business."""
    return _NOTHING if current is None else _paused()


@contextlib.contextmanager
def _paused() -> Iterator[None]:
    global current
    before = active()
    if before is not None:
        current = None
    try:
        yield
    finally:
        if before is not None:
            current = before


def refuse(what: str) -> None:
    """Raise SpirogradRuntimeError if the calling thread is recorded: ``what`` the host does has no place in a graph."""
    recorder = active()
    if recorder is not None:
        if recorder.plans:
            raise NotPlanned
        hint = "do that before or after the block: a graph repeats launches of kernels, fills, and copies between fields and ndarrays"
        raise SpirogradRuntimeError(render(f"a graph is being recorded, and {what}", None, hint))

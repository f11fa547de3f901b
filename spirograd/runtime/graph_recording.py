"""Recordings: the device work of a block of Python, to be repeated without that Python.

While a recording is open, launch plans and allocations report each launch, fill, copy and upload of its thread. To repeat it, the device
runs the same work with the same arguments in the same order. Series of work that is the same each time are given to a device as one piece
if its driver supports that (see `RecordsWork`).
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
from spirograd.base.device import Device, RecordsWork, Sections, Step, one_by_one
from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.base.records import dataclass
from spirograd.runtime import stream_order
from spirograd.runtime.generations import observe, tick

if TYPE_CHECKING:
    from spirograd.base.protocols import Allocation
    from spirograd.runtime.launcher import Launcher

_lock = threading.RLock()  # One recording at a time in a process.
current: GraphRecording | None = None
_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()

Work = Callable[[Device], None]  # Gives work to a device.


@dataclass(slots=True, eq=False)
class NumberedLaunch:
    """A launch with a number of its own: it draws random numbers, prints, or can fail.

    ``launch(number, drawn)`` repeats it; ``drawn``: the number by which it drew random numbers.
    """

    launch: Callable[[int, int], None]
    drawn: int


@dataclass(slots=True, eq=False)
class Series:
    """Work that is the same each time. ``recorded``: the work as one piece for the driver, None if the driver has none."""

    steps: list[Step | Sections] = field(default_factory=list)
    recorded: object = None

    @property
    def is_long(self) -> bool:
        """Whether it has more than one step."""
        return len(self.steps) > 1 or any(isinstance(step, Sections) for step in self.steps)

    def repeat(self, device: Any) -> None:
        """Have ``device`` run the work."""
        if self.recorded is not None:
            device.repeat(self.recorded)
            return
        for step in one_by_one(self.steps):
            step.work(device)


class NotPlanned(Exception):
    """The error that planned work needs the host: see `GraphRecording.plans`."""


class GraphRecording:
    """A recording, see the docstring of the module.

    ``launcher``: the launcher of the device whose work is recorded. ``launches``: the number of kernel launches. ``plans``: launches are
    recorded and do not run; other work raises NotPlanned.
    """

    plans = False

    def __init__(self, launcher: Launcher) -> None:
        self.launches = 0
        self._launcher = launcher
        self._thread = threading.get_ident()
        self._first = launcher.next_number()
        self._steps: list[Series | NumberedLaunch | Work] = []
        self._written: dict[tuple[int, str], tuple[dict[str, int], str]] = {}  # Generations, and the parts of them that it changes.
        self._kept: dict[int, object] = {}  # Objects that own memory which the work uses.
        self._trees: dict[int, tuple[Allocation, int]] = {}  # Those that users may destroy, and their addresses.
        self._after: dict[int, Callable[[], None]] = {}
        self._guards: list[Callable[[], bool]] = []

    # --- recording -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def open(self) -> Iterator[GraphRecording]:
        """Record the work of this thread in the block. Raises SpirogradRuntimeError inside of another recording."""
        global current
        with _lock:
            if current is not None:
                raise SpirogradRuntimeError("a graph cannot be recorded inside of another one: end that block first")
            current = self
            validity.suspend()  # Launches without Python would not be recorded.
            try:
                yield self
            finally:
                validity.resume()
                current = None
        device = self._launcher.device
        if not isinstance(device, RecordsWork):
            return
        for step in self._steps:
            if isinstance(step, Series) and step.is_long:
                step.recorded = device.record(step.steps)
                if step.recorded is not None:
                    step.steps = []

    @property
    def here(self) -> bool:
        """Whether the calling thread is being recorded."""
        return threading.get_ident() == self._thread

    def launched(self, launch: Step | NumberedLaunch) -> None:
        """Record a launch."""
        self.launches += 1
        if isinstance(launch, NumberedLaunch):
            self._steps.append(launch)
        else:
            self._add(launch)

    def sections(self, works: Sequence[Callable[[], None]]) -> None:
        """Run ``works``, and record that they may run at the same time, if all of them are the same each time."""
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
        """Record that the host wrote to an allocation."""
        self._kept[id(allocation)] = allocation
        self._steps.append(methodcaller("upload", allocation.buffer, offset, memoryview(bytes(data))))

    def filled(self, allocation: Allocation, offset: int, nbytes: int, word: int, part: str = "") -> None:
        """Record that a part of an allocation was filled."""
        self._kept[id(allocation)] = allocation
        self._add(Step(methodcaller("fill", allocation.buffer, offset, nbytes, word), (), [(allocation, part)]))

    def copied(self, target: Allocation, target_offset: int, source: Allocation, source_offset: int, nbytes: int, part: str = "") -> None:
        """Record a copy from an allocation to a part of another one."""
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
        """Record that the work changes a part of an allocation with these generations."""
        self._written[id(generations), part] = generations, part

    @property
    def written(self) -> list[tuple[dict[str, int], str]]:
        """The generations that the work changes, with the parts of them."""
        return list(self._written.values())

    def keep(self, *owners: object) -> None:
        """Keep objects alive as long as the recording."""
        self._kept.update((id(owner), owner) for owner in owners)

    def uses_tree(self, allocation: Allocation) -> None:
        """Record an allocation that users may destroy."""
        self._trees[id(allocation)] = allocation, allocation.address

    def afterwards(self, about: object, forget: Callable[[], None]) -> None:
        """Call ``forget`` after each repetition, because the host's facts ``about`` an object may no longer hold."""
        self._after[id(about)] = forget

    def holds_while(self, guard: Callable[[], bool]) -> None:
        """Record that the recording is valid only while ``guard`` returns True."""
        self._guards.append(guard)

    # --- repeating -------------------------------------------------------------------------------------------------------

    def repeat(self) -> None:
        """Repeat the work, in order with other launches.

        Raises SpirogradRuntimeError if memory that it uses was destroyed, or if the sizes of adstacks have changed.
        """
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
            finally:  # Failed work may have written.
                now = tick()
                for generations, part in self.written:
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
        """Launch with new random numbers; launches that shared random numbers when they were recorded share them again."""
        number = self._launcher.next_number()
        again = step.drawn
        if again >= self._first:
            again = drawn.setdefault(again, number)
        step.launch(number, again)


def active() -> GraphRecording | None:
    """Return the recording of the calling thread, or None."""
    return current if current is not None and current.here else None


def paused() -> AbstractContextManager[None]:
    """Do not record work of the calling thread in the block, because it is internal to the compiler."""
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
    """Raise SpirogradRuntimeError if the calling thread is recorded. ``what``: work of the host that a graph cannot contain."""
    recorder = active()
    if recorder is not None:
        if recorder.plans:
            raise NotPlanned
        hint = "do that before or after the block: a graph repeats launches of kernels, fills, and copies between fields and ndarrays"
        raise SpirogradRuntimeError(render(f"a graph is being recorded, and {what}", None, hint))

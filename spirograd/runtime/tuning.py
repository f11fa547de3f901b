"""Measured choices: launches of the program decide between the code of the cost model and alternatives to it, by their times.

Where the compiler was unsure, `TaskInfo.alternatives` names decisions to the contrary that change no bit of a result. Once a kernel has
run for as long as it is worth to compile it again, a thread compiles these alternatives. Then launches run the candidates in turn, each
launch one of them, since a launch has effects and cannot be repeated. The candidate with the shortest time stays for this class of extents,
and the offline cache remembers it. Kernels that take too little time to measure, or are launched a few times only, run as the cost model
has it.

A candidate is an executable of the same argument block, tasks and temporaries: a launch plan differs in nothing else. Where launches are
done when they return, the host times them, and chooses for the kernel as a whole. Asynchronous devices time each task, and a candidate is
chosen for each; their times arrive later, and launches never wait for them.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING

from spirograd.base.artifact import CompiledKernel
from spirograd.base.device import Device, Measurement, MeasuresLaunches, Stopwatch
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.records import dataclass
from spirograd.runtime.choices import NOTE, Choice, Counts, ExtentClass, decoded, encode, extent_class, parts_of
from spirograd.runtime.trials import Trial

if TYPE_CHECKING:
    from spirograd.runtime.launcher import Launcher, LaunchPlan
    from spirograd.runtime.offline_cache import Cache

logger = logging.getLogger("spirograd")

# The least time in a kernel, in nanoseconds, before its alternatives are compiled.
LEAST_SPENT = 50_000_000
# Classes of extents of a kernel. Launches with further ones run as the cost model has it.
MOST_CLASSES = 16


def worth_of(compilation: int, alternatives: int) -> int:
    """Return the time that launches of a kernel take before its alternatives are compiled. ``compilation``: the time that its own took."""
    return max(compilation * alternatives, LEAST_SPENT)


@dataclass(frozen=True, slots=True)
class HostMeasurement:
    """A `Measurement` by the clock of the host, of all tasks together."""

    times: Sequence[int]

    def take(self) -> Sequence[int]:
        return self.times


class HostStopwatch:
    """A `Stopwatch` of devices whose launches are done when they return."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def measure(self, executable: object, block: bytes | bytearray, counts: Counts) -> Measurement:
        begin = perf_counter_ns()
        self._device.launch(executable, block, counts)
        return HostMeasurement((perf_counter_ns() - begin,))

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class Tuning:
    """The choice between the candidates of one launch plan. ``compile``: compiles an alternative, given its name. ``worth``: the time that
    launches take before that is done, in nanoseconds."""

    def __init__(self, tuner: Tuner, plan: LaunchPlan, compile: Callable[[str], CompiledKernel], worth: int) -> None:
        self.compiled = plan.compiled
        self.trials: dict[ExtentClass, Trial[object]] = {}
        self._parts = parts_of(plan.compiled, tuner.by_task)
        self._tuner = tuner
        self._plan = weakref.ref(plan)
        self._worth = worth
        self._compile: Callable[[str], CompiledKernel] | None = compile
        self._base = plan.executable
        # The candidates by the names of their alternatives; None for those that are none.
        self._candidates: dict[str, object | None] = {"": plan.executable}
        self._requested: set[str] = set()
        self._lock = threading.Lock()  # Not held in calls of the device, which may hold its own lock while it calls.

    # --- launches ---------------------------------------------------------------------------------------------------------

    def launch(self, executable: object, block: bytes | bytearray, counts: Counts) -> None:
        """Launch a candidate as `Device.launch` launches ``executable``, and measure it unless the choice is made."""
        device = self._tuner.launcher.device
        trial = self.trials.get(extent_class(counts)) or self._begin(counts)
        if trial.chosen is not None:
            device.launch(trial.chosen, block, counts)
            return
        self._receive(trial)
        with self._lock:
            trial.launches += 1
            name = trial.next() if trial.chosen is None else None
            candidate = None if name is None else self._candidates[name]
            current, began = trial.chosen or trial.current, trial.begun
            if name is not None:
                trial.issued[name] += 1
        measurement = None if name is None else self._tuner.stopwatch.measure(candidate, block, counts)
        if measurement is None:
            device.launch(current, block, counts)
        with self._lock:
            if name is not None and began == trial.begun:
                if measurement is None:
                    trial.issued[name] -= 1
                else:
                    trial.pending.append((name, measurement))
        self._receive(trial)

    def chosen(self, counts: Counts) -> object | None:
        """Return the executable for launches with these numbers of iterations; None while the choice is open."""
        trial = self.trials.get(extent_class(counts))
        return None if trial is None else trial.chosen

    def current(self, counts: Counts) -> object:
        """Return the executable that launches with these numbers of iterations run now, if they measure nothing."""
        trial = self.trials.get(extent_class(counts))
        return self._base if trial is None else trial.chosen or trial.current

    def _begin(self, counts: Counts) -> Trial[object]:
        with self._lock:
            trial = self.trials.setdefault(extent_class(counts), Trial(counts, self._parts, self._base))
            if len(self.trials) > MOST_CLASSES:
                trial.chosen = self._base
            elif self._requested.issuperset(trial.wanted):
                self._enter(trial)
        return trial

    def _receive(self, trial: Trial[object]) -> None:
        """Take the times that have arrived, and what follows from them."""
        while trial.pending and not self._tuner.closed:
            with self._lock:
                item = trial.pending[0] if trial.pending else None
            if item is None:
                break
            name, measurement = item
            try:
                times = measurement.take()
            except SpirogradRuntimeError:  # The device is lost, which the next launch reports, or refuses to say.
                with self._lock:
                    trial.chosen = trial.current
                return
            if times is None:
                break
            with self._lock:
                if trial.pending and trial.pending[0] is item:
                    trial.pending.popleft()
                    self._timed(trial, name, times)
        if trial.chosen is None and not trial.left and not self._requested.issuperset(trial.wanted) and trial.launches > 2:
            with self._lock:
                if trial.spent() >= self._worth:
                    self._request(trial.wanted)

    def _timed(self, trial: Trial[object], name: str, times: Sequence[int]) -> None:
        if trial.chosen is not None:
            return
        trial.timed(name, times)
        if not trial.left:
            if trial.is_short():
                trial.chosen = trial.current
        elif name in trial.left and trial.drop():
            choice = trial.decide(time.time())
            trial.current = trial.chosen = self._combined(choice.names)
            self._tuner.remember(self)

    # --- candidates -------------------------------------------------------------------------------------------------------

    def recall(self, choices: tuple[Choice, ...]) -> None:
        """Use the choices of an earlier process."""
        now = time.time()
        for choice in choices[:MOST_CLASSES]:
            if not choice.fits(self._parts):
                continue
            trial = self.trials.setdefault(extent_class(choice.counts), Trial(choice.counts, self._parts, self._base))
            trial.choice = choice
            trial.names = None if choice.is_due(now) else choice.names
            trial.wanted = sorted(set(choice.names) - {""}) if trial.names else choice.contenders()
            if any(choice.names):
                self._request(trial.wanted)
            elif trial.names:
                trial.chosen = self._base

    def choices(self) -> tuple[Choice, ...]:
        """Return the choices that were made by measurement."""
        return tuple([trial.choice for trial in list(self.trials.values()) if trial.choice is not None])

    def lines(self) -> list[str]:
        """Return a sentence for each choice."""
        return [line for choice in self.choices() for line in choice.lines(self.compiled, self._parts)]

    def _request(self, names: Sequence[str]) -> None:
        self._requested.update(names)
        self._tuner.enqueue(self)

    def compile_candidates(self) -> None:
        """Compile and load the requested alternatives, and begin to measure them. The tuner's thread calls this."""
        for name in sorted(self._requested - set(self._candidates)):
            if self._tuner.closed:
                return
            executable = None
            try:
                assert self._compile is not None
                compiled = self._compile(name)
                if _is_exchangeable(compiled, self.compiled):
                    executable = self._tuner.load(compiled)
            except Exception:
                if self._tuner.closed:
                    return
                logger.warning(
                    "kernel %s: the alternative %r cannot be compiled and is not measured", self.compiled.name, name, exc_info=True
                )
            with self._lock:
                self._candidates[name] = self._registered(executable)
        with self._lock:
            for trial in list(self.trials.values()):
                if trial.chosen is None and not trial.left and self._requested.issuperset(trial.wanted):
                    self._enter(trial)
        if set(self._candidates).issuperset(self.compiled.alternatives):
            self._compile = None

    def _enter(self, trial: Trial[object]) -> None:
        """Begin to measure the candidates, unless it is known which one is best."""
        if not set(self._candidates).issuperset(trial.wanted):
            return
        if trial.choice is not None:
            trial.current = self._combined(trial.choice.names)
        names = [name for name in trial.wanted if self._candidates[name] is not None]
        if trial.names is not None or not names:
            trial.chosen = trial.current
        else:
            trial.begin(names)

    def _combined(self, names: Sequence[str]) -> object:
        """Return the executable whose parts are those of the candidates ``names``."""
        parts = [self._candidates.get(name) or self._base for name in names]
        different = {name for name, part in zip(names, self._parts) if part}
        if len(different) <= 1:
            return self._candidates.get("".join(different)) or self._base
        device: object = self._tuner.launcher.device
        assert isinstance(device, MeasuresLaunches)
        return self._registered(device.combine(parts))

    def _registered(self, executable: object) -> object:
        """Return ``executable``, after noting which plan launches it, for profiles."""
        plan = self._plan()
        if plan is not None and executable is not None:
            self._tuner.launcher.plans[id(executable)] = plan
        return executable


def _is_exchangeable(one: CompiledKernel, other: CompiledKernel) -> bool:
    """Return whether one launch plan launches both."""
    same = (one.args, one.temps_size, one.returns, one.adstacks, one.space_limits, tuple(one.faults), one.prints)
    tasks = [(task.name, task.begin, task.end, task.lanes) for task in one.tasks]
    return same == (
        other.args,
        other.temps_size,
        other.returns,
        other.adstacks,
        other.space_limits,
        tuple(other.faults),
        other.prints,
    ) and (tasks == [(task.name, task.begin, task.end, task.lanes) for task in other.tasks])


class Tuner:
    """The tunings of a session, and the thread that compiles their candidates.

    ``device``: a description of the device for the offline cache, ``cache``, where choices are remembered; None keeps them in this process.
    Raises SpirogradUnsupportedError if the device cannot time its work.
    """

    def __init__(self, launcher: Launcher, device: str, cache: Cache | None) -> None:
        self.launcher = launcher
        measures: object = launcher.device
        self.by_task = isinstance(measures, MeasuresLaunches)
        self.stopwatch: Stopwatch = measures.stopwatch() if isinstance(measures, MeasuresLaunches) else HostStopwatch(launcher.device)
        atexit.register(self.stopwatch.close)  # Before the device is closed.
        self.tunings: weakref.WeakSet[Tuning] = weakref.WeakSet()
        self.closed = False
        self._device = device
        self._cache = cache
        self._waiting: list[Tuning] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._loading = threading.Lock()  # Held while the device loads a candidate: it must not be closed meanwhile.

    def tune(self, plan: LaunchPlan, compile: Callable[[str], CompiledKernel], compilation: int) -> None:
        """Have launches of ``plan`` choose between the alternatives of its kernel. ``compile``: see `Tuning`; ``compilation``: the time
        that compiling the kernel took, in nanoseconds."""
        tuning = Tuning(self, plan, compile, worth_of(compilation, len(plan.compiled.alternatives)))
        kept = None if self._cache is None else self._cache.note(self._note(plan.compiled))
        if kept is not None:
            tuning.recall(decoded(kept))
        self.tunings.add(tuning)
        plan.tune(tuning)

    def load(self, compiled: CompiledKernel) -> object:
        """Load a candidate. Raises SpirogradRuntimeError if the device is closed, or about to be."""
        with self._loading:
            if self.closed:
                raise SpirogradRuntimeError("the session has ended")
            return self.launcher.device.load(compiled)

    def remember(self, tuning: Tuning) -> None:
        """Keep the choices of ``tuning`` for later processes."""
        if self._cache is not None:
            self._cache.keep_note(self._note(tuning.compiled), encode(tuning.choices()))

    def _note(self, compiled: CompiledKernel) -> str:
        return f"{NOTE}\0{compiled.key}\0{self._device}"

    # --- the thread -------------------------------------------------------------------------------------------------------

    def enqueue(self, tuning: Tuning) -> None:
        """Have the thread compile the candidates of ``tuning``."""
        with self._changed:
            if self.closed:
                return
            self._waiting.append(tuning)
            if self._thread is None or not self._thread.is_alive():  # A process that was forked has no thread.
                self._thread = threading.Thread(target=self._run, name="spirograd tuner", daemon=True)
                self._thread.start()
                atexit.register(self._end)
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until the candidates that launches have asked for are compiled."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or not (self._waiting or self._busy))

    def close(self) -> None:
        """Measure nothing more, and have the thread end after the kernel that it compiles. Waits until the device has loaded that, if it
        does, but not until it is compiled."""
        self.closed = True
        with self._loading, self._changed:
            self._waiting.clear()
            self._changed.notify_all()
        atexit.unregister(self.stopwatch.close)
        with contextlib.suppress(SpirogradRuntimeError):  # The device has reported it, or will.
            self.stopwatch.close()

    def _end(self) -> None:
        """End the thread before the process does: it may be inside of LLVM."""
        self.close()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self.closed or self._waiting)
                if self.closed:
                    break
                tuning = self._waiting.pop(0)
                self._busy = True
            tuning.compile_candidates()
            del tuning
        atexit.unregister(self._end)

"""Measured choices: launches of the program decide between the code of the cost model and alternatives to it, by their times.

Where the compiler was unsure, `TaskInfo.alternatives` names decisions to the contrary that change no bit of a result. Once a kernel has
run for as long as it is worth to compile it again, a thread compiles these alternatives. Then launches run the candidates in turn, each
launch one of them, since a launch has effects and cannot be repeated. The candidate with the shortest time stays for this class of extents,
and the offline cache remembers it. Kernels that take too little time to measure, or are launched a few times only, run as the cost model
has it.

A candidate is an executable of the same argument block, tasks and temporaries: a launch plan differs in nothing else.
"""

from __future__ import annotations

import atexit
import functools
import json
import logging
import math
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Annotated, cast

from spirograd.base.artifact import CompiledKernel
from spirograd.base.constraints import Count, one_of
from spirograd.base.options import LANES, NO_LANES
from spirograd.base.records import dataclass
from spirograd.runtime.encoding import encoded
from spirograd.runtime.typed_decoding import Damage, Decoder, Reader, loads

if TYPE_CHECKING:
    from spirograd.runtime.launcher import Launcher, LaunchPlan
    from spirograd.runtime.offline_cache import Cache

logger = logging.getLogger("spirograd")

# Times in nanoseconds. Kernels that take less are not tuned: calls cost as much, and differ as much.
SHORTEST = 20_000
# The launches after which a kernel that takes less than that is left as it is.
FEW = 8
# The least time in a kernel before its alternatives are compiled.
LEAST_SPENT = 50_000_000
# How often each candidate runs, if launches take LONG or more, and otherwise.
ROUNDS, MANY_ROUNDS = 4, 10
LONG = 1_000_000
# The part of the time of the cost model's code that an alternative must need at most: of the shortest time, while its median is no longer.
BETTER = 0.95
# Candidates that take this many times as long as the best one run no more, by the number of rounds so far. After one round, other work of
# the machine may be the cause.
DROPPED = {2: 4.0, 3: 1.5}
NOTE = "choices 1"  # The name of what the offline cache keeps, with a number for its form.
# Classes of extents of a kernel. Launches with further ones run as the cost model has it.
MOST_CLASSES = 16

# The number of iterations of each task, to a factor of four; -1 if only the task knows it.
ExtentClass = tuple[int, ...]
Counts = Sequence["int | None"]


def worth_of(compilation: int) -> int:
    """Return the time that launches of a kernel take before its alternatives are compiled. ``compilation``: the time that its own took."""
    return max(compilation, LEAST_SPENT)


def extent_class(counts: Counts) -> ExtentClass:
    """Return the class of launches with these numbers of iterations."""
    return tuple([-1 if count is None else count.bit_length() // 2 for count in counts])


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice by measurement, as the offline cache stores it. ``counts``: the numbers of iterations of the first launch, which stand for
    their class; ``name``: the alternative, "" for the code of the cost model; ``times``: the shortest time of each candidate."""

    counts: tuple[Count | None, ...]
    name: Annotated[str, one_of("", LANES, NO_LANES)]
    times: tuple[tuple[str, Count], ...]

    def __str__(self) -> str:
        extents = " and ".join(f"{count:,}" for count in self.counts if count is not None and count > 1)
        measured = ", ".join(f"{_called(name)} {time / 1e6:.3f} ms" for name, time in self.times)
        return f"measured{f' for about {extents} iterations' if extents else ''}: {_called(self.name)} chosen; {measured}"


def _called(name: str) -> str:
    return name or "the cost model's code"


@functools.cache
def _decoder() -> Decoder:
    return Reader({Choice.__name__: Choice}).decoder(tuple[Choice, ...])


def _decoded(data: bytes) -> tuple[Choice, ...]:
    """Return the choices in ``data``; none if the data are of another version."""
    try:
        return cast("tuple[Choice, ...]", _decoder()(loads(data), ()))
    except Damage:
        return ()


def _encoded(choices: tuple[Choice, ...]) -> bytes:
    return json.dumps(encoded(choices, [], {Choice.__name__: Choice})).encode()


@dataclass(slots=True, eq=False)
class Candidate:
    """An executable of a kernel. ``name``: the alternative; "" for the code of the cost model."""

    name: str
    executable: object


class Trial:
    """The launches of one class of extents. ``chosen``: the candidate that runs from now on; None while that is open. ``times``: the
    shortest time of each candidate that was measured, by name; ``runs``: all its times. ``counts``: the numbers of iterations of the first
    launch."""

    __slots__ = ("chosen", "counts", "launches", "left", "remembered", "runs", "shortest", "spent", "times")

    def __init__(self, counts: Counts) -> None:
        self.counts = tuple(counts)
        self.chosen: Candidate | None = None
        self.times: dict[str, int] = {}
        self.runs: defaultdict[str, list[int]] = defaultdict(list)
        self.left: list[Candidate] = []  # Candidates that may still be chosen, once they are compiled.
        self.launches = self.spent = 0
        self.shortest: float = math.inf
        self.remembered: str | None = None  # The choice of an earlier process.

    def next(self, base: Candidate) -> Candidate:
        """Return the candidate of the next launch."""
        return min(self.left, key=lambda candidate: len(self.runs[candidate.name]), default=base)

    def timed(self, candidate: Candidate, time: int) -> bool:
        """Note the time of a launch. Return whether this decides the trial."""
        name = candidate.name
        self.times[name] = min(time, self.times.get(name, time))
        self.runs[name].append(time)
        runs = [len(self.runs[other.name]) for other in self.left]
        rounds = min(runs)
        if rounds and rounds == max(runs):
            worst = DROPPED.get(rounds, math.inf) * min(self.times.values())
            self.left = [other for other in self.left if self.times[other.name] <= worst]
        enough = ROUNDS if self.shortest >= LONG else MANY_ROUNDS
        return rounds >= enough or len(self.left) == 1

    def best(self, base: Candidate) -> Candidate:
        """Return the fastest candidate that is left; the code of the cost model unless another one is faster by more than chance."""
        best = min(self.left, key=lambda candidate: self.times[candidate.name])
        shorter = self.times[best.name] <= BETTER * self.times[""]
        return best if shorter and median(self.runs[best.name]) <= median(self.runs[""]) else base


class Tuning:
    """The choice between the candidates of one launch plan. ``compile``: compiles an alternative, given its name. ``worth``: the time that
    launches take before that is done, in nanoseconds."""

    def __init__(self, tuner: Tuner, plan: LaunchPlan, compile: Callable[[str], CompiledKernel], worth: int) -> None:
        self.kernel = plan.compiled.name
        self.trials: dict[ExtentClass, Trial] = {}
        self._tuner = tuner
        self._compiled = plan.compiled
        self._plan = weakref.ref(plan)
        self._base = Candidate("", plan.executable)
        self._worth = worth
        self._compile: Callable[[str], CompiledKernel] | None = compile
        self._candidates: list[Candidate] | None = None  # None: not compiled yet.
        self._requested = False
        self._lock = threading.Lock()

    # --- launches ---------------------------------------------------------------------------------------------------------

    def launch(self, executable: object, block: bytes | bytearray, counts: Counts) -> None:
        """Launch a candidate as `Device.launch` launches ``executable``, and measure it unless the choice is made."""
        device = self._tuner.launcher.device
        trial = self.trials.get(extent_class(counts)) or self._begin(counts)
        chosen = trial.chosen
        if chosen is not None:
            device.launch(chosen.executable, block, counts)
            return
        with self._lock:
            candidate = trial.next(self._base)
        begin = perf_counter_ns()
        device.launch(candidate.executable, block, counts)
        self._timed(trial, candidate, perf_counter_ns() - begin)

    def chosen(self, counts: Counts) -> object | None:
        """Return the executable for launches with these numbers of iterations; None while the choice is open."""
        trial = self.trials.get(extent_class(counts))
        return None if trial is None or trial.chosen is None else trial.chosen.executable

    def _begin(self, counts: Counts) -> Trial:
        with self._lock:
            trial = self.trials.setdefault(extent_class(counts), Trial(counts))
            if len(self.trials) > MOST_CLASSES:
                trial.chosen = self._base
            elif self._candidates is not None:
                self._enter(trial)
        return trial

    def _timed(self, trial: Trial, candidate: Candidate, time: int) -> None:
        with self._lock:
            if trial.chosen is not None:
                return
            if not trial.left:
                self._count(trial, time)
            elif candidate in trial.left and trial.timed(candidate, time):
                trial.chosen = trial.best(self._base)
                self._tuner.remember(self)

    def _count(self, trial: Trial, time: int) -> None:
        """Note a launch before there are alternatives, and ask for these if they are worth their compile time."""
        trial.launches += 1
        trial.spent += time
        trial.shortest = min(time, trial.shortest)
        if trial.shortest < SHORTEST:
            trial.chosen = self._base if trial.launches >= FEW else None
        elif not self._requested and trial.launches > 2 and trial.spent >= self._worth:
            self._request()

    # --- candidates -------------------------------------------------------------------------------------------------------

    def recall(self, choices: tuple[Choice, ...]) -> None:
        """Use the choices of an earlier process."""
        for choice in choices[:MOST_CLASSES]:
            trial = self.trials.setdefault(extent_class(choice.counts), Trial(choice.counts))
            trial.remembered = choice.name
            trial.times = dict(choice.times)
            if not choice.name:
                trial.chosen = self._base
        if any(trial.remembered for trial in self.trials.values()):
            self._request()

    def choices(self) -> tuple[Choice, ...]:
        """Return the choices that were made by measurement."""
        trials = [(trial, trial.chosen) for trial in list(self.trials.values()) if trial.times]
        return tuple([Choice(trial.counts, chosen.name, tuple(sorted(trial.times.items()))) for trial, chosen in trials if chosen])

    def _request(self) -> None:
        self._requested = True
        self._tuner.enqueue(self)

    def compile_candidates(self) -> None:
        """Compile and load the alternatives, and begin to measure them. For the thread of the tuner."""
        assert self._compile is not None
        candidates = [self._base]
        device = self._tuner.launcher.device
        for name in self._compiled.alternatives:
            if self._tuner.closed:
                return
            try:
                compiled = self._compile(name)
                if _is_exchangeable(compiled, self._compiled):
                    candidates.append(Candidate(name, device.load(compiled)))
            except Exception:
                logger.warning("kernel %s: the alternative %r cannot be compiled and is not measured", self.kernel, name, exc_info=True)
        plan = self._plan()
        if plan is None:
            return
        for candidate in candidates:
            self._tuner.launcher.plans[id(candidate.executable)] = plan
        with self._lock:
            self._candidates, self._compile = candidates, None
            for trial in self.trials.values():
                if trial.chosen is None:
                    self._enter(trial)

    def _enter(self, trial: Trial) -> None:
        """Begin to measure the candidates, unless it is known which one is best."""
        assert self._candidates is not None
        if trial.remembered is not None:
            trial.chosen = next((c for c in self._candidates if c.name == trial.remembered), None)
        elif trial.launches:
            trial.times[""] = int(trial.shortest)
        if len(self._candidates) == 1:
            trial.chosen = self._base
        trial.left = list(self._candidates)


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
    """

    def __init__(self, launcher: Launcher, device: str, cache: Cache | None) -> None:
        self.launcher = launcher
        self.tunings: weakref.WeakSet[Tuning] = weakref.WeakSet()
        self.closed = False
        self._device = device
        self._cache = cache
        self._waiting: list[Tuning] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._busy = False

    def tune(self, plan: LaunchPlan, compile: Callable[[str], CompiledKernel], compilation: int) -> None:
        """Have launches of ``plan`` choose between the alternatives of its kernel. ``compile``: see `Tuning`; ``compilation``: the time
        that compiling the kernel took, in nanoseconds."""
        tuning = Tuning(self, plan, compile, worth_of(compilation))
        kept = None if self._cache is None else self._cache.note(self._note(plan.compiled))
        if kept is not None:
            tuning.recall(_decoded(kept))
        self.tunings.add(tuning)
        plan.tune(tuning)

    def remember(self, tuning: Tuning) -> None:
        """Keep the choices of ``tuning`` for later processes."""
        if self._cache is not None:
            self._cache.keep_note(self._note(tuning._compiled), _encoded(tuning.choices()))

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
        """Have the thread end after the kernel that it compiles. Does not wait for it."""
        with self._changed:
            self.closed = True
            self._waiting.clear()
            self._changed.notify_all()

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

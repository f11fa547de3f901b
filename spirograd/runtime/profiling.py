"""Profiles: the times of tasks of kernels, and of other work of the host and the device, while a profile measures.

A `Profile` replaces methods of a device: attributes of the instance hide them, and are removed when it stops, so that launches that are not
measured have no overhead. Meanwhile all launches go through Python, and graphs are repeated launch by launch.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter_ns
from typing import Any

from spirograd.base import spans, validity
from spirograd.base.device import ChunkTime, TaskTime, TaskTimer, TimesTasks
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass, replace
from spirograd.runtime.launcher import Launcher, LaunchPlan

# Launches whose times are collected at once: collecting waits for the device.
_PENDING = 4096
# The most records of a profile; totals continue.
RECORDS_KEPT = 1 << 20
# Methods of devices that move bytes -> the place of the number of bytes, or of the data, among their arguments.
_TRANSFERS = {"upload": 2, "download": 2, "read_async": 2, "fill": 2, "copy": 4}


@dataclass(frozen=True, slots=True)
class TaskKey:
    """A task of a kernel. ``number``: its index among the kernel's tasks. ``arch``: the name of the back end."""

    kernel: str
    name: str
    kind: str
    number: int
    loc: Loc | None
    arch: str


@dataclass(slots=True, eq=False)
class TaskRecord:
    """An execution of a task. Times are nanoseconds of `time.perf_counter_ns`; ``cpu`` is -1 if it is unknown.

    ``iterations`` is None if only the device knew the number. ``nbytes``, ``operations``: of all iterations, None if unknown; ``exact``
    False: at least this number. ``launch``: the number of the launch; ``first``: whether it is the first task of the launch that ran.
    ``kernel_id`` distinguishes kernels of one name. ``chunks``: see `TaskTime`.
    """

    key: TaskKey
    kernel_id: int
    launch: int
    first: bool
    begin: int
    end: int
    cpu: int
    iterations: int | None
    nbytes: int | None
    operations: int | None
    exact: bool
    chunks: tuple[ChunkTime, ...] = ()

    @property
    def duration(self) -> int:
        return self.end - self.begin


@dataclass(slots=True, eq=False)
class HostRecord:
    """A launch or a transfer as the host saw it. ``arch``: the back end. ``launch``: its number, -1 for transfers."""

    arch: str
    name: str
    category: str
    begin: int
    end: int
    thread: int
    nbytes: int = 0
    launch: int = -1


def _of_iterations(chunk: ChunkTime, size: int, count: int | None) -> ChunkTime:
    """Return a chunk of groups of ``size`` iterations as a chunk of iterations, counted from the first of the loop's ``count``."""
    end = chunk.high * size
    return replace(chunk, low=chunk.low * size, high=end if count is None else min(end, count))


@dataclass(slots=True, eq=False)
class _Launch:
    plan: LaunchPlan
    counts: Sequence[int | None]
    begin: int


class Sink:
    """A receiver of the records of all profiles of the process while it is among `spans.sinks`. ``started``: profiles that stop with it."""

    def __init__(self) -> None:
        self.tasks: list[TaskRecord] = []
        self.host: list[HostRecord] = []
        self.started: list[Profile] = []

    def measure(self, profile: Profile) -> None:
        """Have ``profile`` measure as long as this sink is registered."""
        profile.start()
        self.started.append(profile)


class Profile:
    """A profile of the launches of ``launcher`` from `start` to `stop`.

    ``arch``: the name of its back end. ``tells``: whether recordings of all sessions contain them. Raises SpirogradUnsupportedError if the
    device cannot measure tasks.
    """

    def __init__(self, launcher: Launcher, arch: str, tells: bool = True) -> None:
        device: object = launcher.device
        if not isinstance(device, TimesTasks):
            raise SpirogradUnsupportedError(f"the back end `{arch}` does not tell when tasks run", None, "profile on another one")
        self.arch = arch
        self._tells = tells
        self.records: list[TaskRecord] = []
        self.spans: list[spans.Span] = []
        self.dropped = 0  # Records beyond RECORDS_KEPT.
        self._launcher = launcher
        self._device: Any = device
        self._timer: TaskTimer | None = None
        self._lock = threading.RLock()
        self._numbers = itertools.count(1).__next__
        self._pending: dict[int, _Launch] = {}
        self._keys: weakref.WeakKeyDictionary[LaunchPlan, list[TaskKey]] = weakref.WeakKeyDictionary()
        self.users = 0

    def start(self) -> None:
        """Start measuring. Each call needs one call of `stop`."""
        with self._lock:
            self.users += 1
            if self._timer is not None:
                return
            self._timer = self._device.task_timer()
            validity.suspend()
            spans.listeners.append(self._span)
            self._device.launch = self._launch
            for name, place in _TRANSFERS.items():
                setattr(self._device, name, self._transfer(name, place))
            self._launcher.relay()
            atexit.register(self.end)  # Before the device is closed.

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pause measuring in the block."""
        users, self.users = self.users, 1
        self.stop()
        try:
            yield
        finally:
            self.users = users
            if users:
                self.users -= 1
                self.start()

    def end(self) -> None:
        """Stop, however often the profile was started, because the session ends."""
        with self._lock:
            self.users = min(self.users, 1)
            self.stop()

    def stop(self) -> None:
        """Stop measuring, see `start`. Does nothing after the end of the session."""
        with self._lock:
            self.users -= 1
            if self.users > 0 or self._timer is None:
                return
            try:
                self.collect()
            finally:
                atexit.unregister(self.end)
                spans.listeners.remove(self._span)
                for name in ("launch", *_TRANSFERS):
                    delattr(self._device, name)
                self._launcher.relay()
                validity.resume()
                timer, self._timer = self._timer, None
                if timer is not None:
                    timer.close()

    def _span(self, span: spans.Span) -> None:
        if len(self.spans) < RECORDS_KEPT:
            self.spans.append(span)

    def clear(self) -> None:
        """Clear all records and totals."""
        self.collect()
        self.records.clear()
        self.spans.clear()
        self.dropped = 0

    def collect(self) -> None:
        """Wait for the launches so far, and store their times."""
        with self._lock:
            if self._timer is None:
                return
            seen = -1
            for time in self._timer.collect():
                launch = self._pending.get(time.launch)
                if launch is not None:
                    self._keep(self._record(launch, time, time.launch != seen))
                    seen = time.launch
            self._pending.clear()

    def _keep(self, record: TaskRecord) -> None:
        if len(self.records) < RECORDS_KEPT:
            self.records.append(record)
        else:
            self.dropped += 1
        for sink in tuple(spans.sinks) if self._tells else ():
            sink.tasks.append(record)

    def _record(self, launch: _Launch, time: TaskTime, first: bool) -> TaskRecord:
        plan = launch.plan
        task = plan.compiled.tasks[time.task]
        count = 1 if task.kind == "serial" and plan.compiled.run is None else launch.counts[time.task]
        known = count is not None and plan.compiled.run is None  # The interpreter runs all loops as one task.
        work = task.work
        return TaskRecord(
            self._keys_of(plan)[time.task],
            id(plan.compiled),
            time.launch,
            first,
            time.begin,
            time.end,
            time.cpu,
            count if known else None,
            work.nbytes * count if known and count is not None else None,
            work.operations * count if known and count is not None else None,
            work.exact,
            tuple([_of_iterations(chunk, task.group_size, count) for chunk in time.chunks]) if task.grouped else time.chunks,
        )

    def _keys_of(self, plan: LaunchPlan) -> list[TaskKey]:
        keys = self._keys.get(plan)
        if keys is None:
            compiled = plan.compiled
            locs = plan.locations() if plan.locations is not None else [None] * len(compiled.tasks)
            tasks = zip(itertools.count(), compiled.tasks, locs)
            keys = self._keys[plan] = [TaskKey(compiled.name, task.name, task.kind, k, loc, self.arch) for k, task, loc in tasks]
        return keys

    # --- replaced methods of the device ----------------------------------------------------------------------------------

    def _launch(self, executable: object, block: bytes | bytearray, counts: Sequence[int | None]) -> None:
        """Launch and measure, see `Device.launch`."""
        plan = self._launcher.plans[id(executable)]
        with self._lock:
            number = self._numbers()
            begin = perf_counter_ns()
            self._pending[number] = _Launch(plan, counts, begin)
            assert self._timer is not None
            self._timer.launch(plan.compiled, executable, block, counts, number)
            self._tell(HostRecord(self.arch, plan.compiled.name, "launch", begin, perf_counter_ns(), threading.get_native_id(), 0, number))
            if len(self._pending) >= _PENDING:
                self.collect()

    def _transfer(self, name: str, place: int) -> Callable[..., object]:
        """Return the method ``name`` of the device with recording of the transfer. Its argument number ``place`` is the data, or its
        size."""
        method = getattr(self._device, name)

        def transfer(*args: object) -> object:
            begin = perf_counter_ns()
            result = method(*args)
            moved = args[place]
            nbytes = moved if isinstance(moved, int) else moved.nbytes if isinstance(moved, memoryview) else 0
            self._tell(HostRecord(self.arch, name, "transfer", begin, perf_counter_ns(), threading.get_native_id(), nbytes))
            return result

        return transfer

    def _tell(self, record: HostRecord) -> None:
        for sink in tuple(spans.sinks) if self._tells else ():
            sink.host.append(record)

"""Levels of memory for the copies that a tape with checkpoints keeps: of the device, of the host, and of files in a folder.

Checkpoints are a stack: the newest is used next, and the older ones less and less often (see `binomial`). So the newest copies lie on the
device, older ones on the host, the oldest in files; copies move before newer ones are made. They go to the host asynchronously: the
program waits for one only where the device cannot hold the next copy. A thread writes the files. `level_costs` says which levels
are used.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from spirograd.ad.copy_memory import CopyMemory
from spirograd.ad.level_costs import LevelCosts
from spirograd.ad.memory_report import LevelReport
from spirograd.ad.versions import Saved
from spirograd.base.device import Arrival
from spirograd.base.errors import SpirogradRuntimeError, SpirogradValueError, render
from spirograd.base.protocols import Allocation
from spirograd.base.records import dataclass
from spirograd.lang import context

NAMES = ("memory", "host", "disk")
T = TypeVar("T")

_DEVICE, _HOST, _DISK = range(3)
# Copies to the host begin when the device has less than this part of its limit left, or capacity for fewer than two such as the last.
_EARLY = 1 / 8
# So many files may wait to be written; what is in them takes memory of the host meanwhile.
_WAITING = 2
# Bytes of copies that may be under way to the host, in staging memory of the device: at most, and as a part of the limit of the host.
_UNDER_WAY = 64 << 20
_UNDER_WAY_PART = 1 / 8
# Copies of each size whose memory on the host is kept for the next ones.
_KEPT = 2


@dataclass(frozen=True, slots=True)
class LevelLimits:
    """Bytes that copies may take on each level, 0 where there is none; ``folder``: of the files."""

    memory: float
    host: float = 0
    disk: float = 0
    folder: str = ""

    @property
    def total(self) -> float:
        return self.memory + self.host + self.disk


class StagingMemory:
    """Memory of the host that copies of a tape take: where they lie, arrive, and wait to be written to files; all of it counts. What is
    read from a file, one copy at a time, does not.

    ``limit``: its bytes, 0 where the host is no level: there copies only pass through. ``share``: of these, the bytes that may be under way
    in staging memory of the device, ``left`` of which are free, in pieces of ``piece`` bytes. ``peak``: bytes of all at most at a time;
    ``extra``: of what is not a copy that stays on the host.

    Memory that was given back serves the next copy of the same size: the system takes longer to map new memory than to copy into it."""

    def __init__(self, limit: float = 0) -> None:
        self.limit = limit
        self.share = int(min(_UNDER_WAY, _UNDER_WAY_PART * limit)) if limit else _UNDER_WAY
        self.piece = max(self.share // 4 & ~3, 4)
        self._most = self.left = self.share - self.piece  # one piece more may be waited for
        self.held = self.peak = self.extra = 0
        self._staying = 0  # bytes of copies that are to stay on the host
        self._free: dict[int, list[memoryview]] = {}
        self._kept = 0
        self._passing: deque[weakref.ref[MovedCopy]] = deque()  # on their way to files
        self._writing: list[tuple[Future[int], memoryview]] = []

    def take(self, nbytes: int) -> memoryview:
        """Return ``nbytes`` bytes with any contents. Waits for files where the limit leaves too few."""
        self.make_room(nbytes)
        free = self._free.get(nbytes)
        if free:
            self._kept -= nbytes
        self.held += nbytes
        self._staying += nbytes
        data = free.pop() if free else np.empty(nbytes, np.uint8).data  # in large pages where there are some
        self.note()
        return data

    def give(self, data: memoryview | None, stayed: bool = True) -> None:
        """Give bytes back. Few are kept. ``stayed``: they were not on their way to a file."""
        if data is not None:
            self.drop(len(data), stayed)
            free = self._free.setdefault(len(data), [])
            if len(free) < _KEPT:
                free.append(data)
                self._kept += len(data)

    def drop(self, nbytes: int, stayed: bool) -> None:
        """Note that ``nbytes`` bytes are not used any more."""
        self.held -= nbytes
        self._staying -= nbytes * stayed

    def pass_on(self, copy: MovedCopy, nbytes: int) -> None:
        """Note that a copy is on its way to a file."""
        self._staying -= nbytes
        if self.limit:
            self._passing.append(weakref.ref(copy))
        self.note()

    def write(self, written: Future[int], data: memoryview) -> None:
        """Write ``data`` to a file, in a thread."""
        self._writing.append((written, data))

    def make_room(self, nbytes: int, reuse: bool = True) -> None:
        """Free memory, and wait for copies on their way to files, until the limit leaves ``nbytes``, or nothing else can be freed.
        ``reuse``: as many bytes that are kept will serve."""
        self._settle()
        if not self.limit:
            return
        same = reuse and bool(self._free.get(nbytes))
        while self.share + self.held + self._kept + nbytes * (not same) > self.limit:
            sizes = [size for size, free in self._free.items() if free and not (same and size == nbytes)]
            if sizes:
                self._free[max(sizes)].pop()
                self._kept -= max(sizes)
            elif self._passing:
                copy = self._passing.popleft()()
                if copy is not None:
                    copy.arrive_in_file()
                self._settle()
                same = reuse and bool(self._free.get(nbytes))
            else:
                return

    def _settle(self) -> None:
        """Take back the memory of files that are written."""
        for _, data in [entry for entry in self._writing if entry[0].done()]:
            self._writing = [entry for entry in self._writing if entry[1] is not data]
            self.give(data, stayed=False)

    def note(self) -> None:
        """Take down what is used now."""
        now = self.held + self._kept + self._most - self.left
        self.peak, self.extra = max(self.peak, now), max(self.extra, now - self._staying)


class MovedCopy:
    """The bytes of a copy that leaves its ``allocation``, for the host and then, by `to_disk`, for a file.

    They come piece by piece while asynchronous devices work; reading `level` takes the pieces that have arrived, and asks for more.
    """

    def __init__(self, allocation: Allocation, nbytes: int, release: Callable[[Allocation], None], staging: StagingMemory) -> None:
        """``release``: gets the allocation when the bytes are here. ``staging``: of all copies of a tape."""
        self._allocation: Allocation | None = allocation
        self._release = release
        self._staging = staging
        self._nbytes = nbytes
        self._pieces: deque[tuple[Arrival, int]] = deque()  # arrivals that are under way, and their bytes
        self._asked = self._taken = 0  # bytes of the pieces so far
        self._data: memoryview | None = staging.take(nbytes)
        self._files: Files | None = None  # where the bytes go on to
        self._file: _File | None = None
        if nbytes % 4:  # which readbacks cannot read
            allocation.read_into(0, self._data)
            self._give()
        else:
            self._ask()

    def arrive_in_file(self) -> None:
        """Wait until the bytes are in the file that they are to go to. Raises SpirogradRuntimeError if it cannot be written."""
        if self._data is not None:
            self.wait()
        if self._file is not None:
            self._file.wait()

    @property
    def level(self) -> int:
        """Where the copy counts: on the device as long as it takes memory there."""
        self._poll()
        return _DEVICE if self._allocation is not None else self.target

    @property
    def target(self) -> int:
        """Where the copy will be: the limit of that level counts it from the start, so that none depends on when the device is done."""
        return _HOST if self._files is None else _DISK

    def wait(self) -> None:
        """Wait until the bytes are on the host."""
        while self._allocation is not None:
            self._ask(1)
            self._pieces[0][0].wait()
            self._poll()

    def _poll(self) -> None:
        """Take the pieces that are here."""
        arrived = [piece.here() for piece, _ in self._pieces]  # asking them all has threads of the device work on all
        for here in arrived:
            if not here:
                break
            self._take()

    def _ask(self, least: int = 0) -> None:
        """Ask for pieces: as many as may be under way, but let ``least`` be under way."""
        assert self._data is not None and self._allocation is not None
        while self._asked < self._nbytes:
            size = min(self._allocation.readback_limit, self._staging.piece, self._nbytes - self._asked)
            if self._staging.left < size and len(self._pieces) >= least:
                break
            out = self._data[self._asked : self._asked + size]
            self._pieces.append((self._allocation.read_into_async(self._asked, out), size))
            self._asked += size
            self._staging.left -= size
        self._staging.note()

    def _take(self) -> None:
        """Take the next piece, which has arrived."""
        _, size = self._pieces.popleft()
        self._taken += size
        self._staging.left += size
        if self._taken < self._nbytes:
            self._ask()
            return
        self._give()
        if self._files is not None:
            self._write(self._files)

    def _give(self) -> None:
        allocation, self._allocation = self._allocation, None
        if allocation is not None:
            self._release(allocation)

    def free(self) -> None:
        """Free the bytes."""
        if self._data is not None:
            if self._pieces:  # a thread may write to the bytes still
                self._staging.drop(self._nbytes, self._files is None)
            else:
                self._staging.give(self._data, self._files is None)
        self._staging.left += sum(size for _, size in self._pieces)
        self._pieces.clear()
        self._give()
        self._data = self._file = None

    def to_disk(self, files: Files) -> None:
        """Move the bytes to a file, once they are here."""
        self._files = files
        self._staging.pass_on(self, self._nbytes)
        if self._allocation is None:
            self._write(files)

    def _write(self, files: Files) -> None:
        assert self._data is not None
        data, self._data = self._data, None
        self._file = files.write(data)
        self._staging.write(self._file.written, data)

    def data(self) -> memoryview:
        """Return the bytes, from the host or from a file."""
        self.wait()
        if self._file is not None:
            self._staging.make_room(self._nbytes, reuse=False)
            return memoryview(self._file.read())
        assert self._data is not None
        return self._data


class _File:
    """Bytes that a thread writes to a file, which goes with this object."""

    def __init__(self, path: Path, worker: ThreadPoolExecutor, data: memoryview) -> None:
        self.path = path
        self.written: Future[int] = worker.submit(path.write_bytes, data)
        weakref.finalize(self, _remove, path, self.written).atexit = False

    def wait(self) -> None:
        """Wait until the bytes are written. Raises SpirogradRuntimeError if that failed."""
        _checked(self.path, self.written.result)

    def read(self) -> bytes:
        """Return the bytes, once they are written. Raises SpirogradRuntimeError if that failed."""
        self.wait()
        return _checked(self.path, self.path.read_bytes)


def _remove(path: Path, written: Future[int]) -> None:
    written.add_done_callback(lambda _: path.unlink(missing_ok=True))


def _checked(path: Path, access: Callable[[], T]) -> T:
    try:
        return access()
    except OSError as error:
        problem = f"a tape cannot keep checkpoints in {path.parent.parent}: {error.strerror or error}"
        hint = "free memory there, lower `disk_GB`, or give another folder with `disk_folder=`"
        raise SpirogradRuntimeError(render(problem, None, hint)) from error


class Files:
    """Files in a folder of their own inside of ``folder``; all are deleted by `close`, and at the end of the program.

    Raises SpirogradValueError if there is no such folder, SpirogradRuntimeError if nothing can be written there.
    """

    def __init__(self, folder: str) -> None:
        if not Path(folder).is_dir():
            raise SpirogradValueError(f"`disk_folder` of a tape is a folder that exists, got {folder!r}")
        path = _checked(Path(folder, "x", "x"), lambda: tempfile.mkdtemp(prefix="spirograd-checkpoints-", dir=folder))
        self.path = Path(path).absolute()  # programs may change their working directory
        self._worker = ThreadPoolExecutor(1, "spirograd-checkpoints")
        self._number = 0
        self._waiting: list[tuple[Path, Future[int]]] = []  # not the files themselves: those that are not needed any more go at once
        self._end = weakref.finalize(self, _delete, self.path, self._worker)

    def write(self, data: memoryview) -> _File:
        """Return a file with ``data``, which a thread writes. Raises SpirogradRuntimeError if an earlier one could not be written."""
        while len(self._waiting) >= _WAITING:
            path, written = self._waiting.pop(0)
            _checked(path, written.result)
        self._number += 1
        file = _File(self.path / f"{self._number}", self._worker, data)
        self._waiting.append((file.path, file.written))
        return file

    def close(self) -> None:
        """Delete all files."""
        self._waiting.clear()
        self._end()


def _delete(path: Path, worker: ThreadPoolExecutor) -> None:
    worker.shutdown(wait=True, cancel_futures=True)
    shutil.rmtree(path, ignore_errors=True)


@dataclass(slots=True)
class _Used:
    """The use of a level: the peak of its bytes, the number of copies that were moved to it, and their bytes."""

    peak: int = 0
    copies: int = 0
    nbytes: int = 0


class CopyLevels:
    """The levels that hold copies of a tape: the device (``memory``), the host, files. ``used``: the use of each level but the first."""

    def __init__(self, limits: LevelLimits, memory: CopyMemory) -> None:
        self.limits = limits
        self._staging = StagingMemory(limits.host)
        self.sizes = (limits.memory, limits.host and limits.host - self._staging.share, limits.disk)
        self.memory = memory
        self.costs = LevelCosts()
        self.used = (_Used(), _Used(), _Used())
        self.files = Files(limits.folder) if limits.disk else None

    def waste(self, largest: int) -> int:
        """Return the bytes that may stay free on all levels although the next copy, of at most ``largest`` bytes, does not fit."""
        return largest * sum(size > 0 for size in self.sizes[1 : self.costs.used])

    @property
    def total(self) -> float:
        """Bytes of the levels that are used."""
        return sum(self.sizes[: self.costs.used])

    def more(self, steps: int, fixed: int, each: float, copies: Sequence[Saved]) -> bool:
        """Use more levels if that saves time. Return whether more are used. Arguments as of `LevelCosts.look`."""
        staying = [saved for saved in copies if not saved.leaving]
        if not staying:
            return False
        sample = max(staying, key=lambda saved: saved.nbytes)
        return self.costs.look(self.sizes, steps, fixed, each, lambda level: self._price(level, sample), self.used[_HOST].nbytes)

    def review(self, steps: int, fixed: int, each: float, copies: Callable[[], Sequence[Saved]]) -> None:
        """Leave a level whose copies cost more time than they save. Arguments as of `more`, but ``copies`` returns them."""

        def arrive() -> None:
            for saved in copies():
                if saved.leaving:
                    saved.arrive()

        self.costs.review(self.sizes, steps, fixed, each, self.used[_HOST].nbytes, arrive)

    def _price(self, level: int, sample: Saved) -> tuple[float, float]:
        """Return the seconds for each byte that goes to a level, and back, measured by a copy that goes the same way as others."""
        context.session().device.synchronize()
        begin = time.perf_counter()
        copy = sample.probe(lambda allocation, nbytes: MovedCopy(allocation, nbytes, lambda _: None, self._staging))
        if level == _DISK:
            assert self.files is not None
            copy.to_disk(self.files)
        data = copy.data()
        there = time.perf_counter()
        sample.overwrite(data)
        context.session().device.synchronize()
        back = time.perf_counter()
        nbytes = max(len(data), 1)
        copy.free()
        return (there - begin) / nbytes, (back - there) / nbytes

    def free_up(self, copies: Sequence[Saved], nbytes: int) -> bool:
        """Move the oldest of ``copies`` (`Saved`, the oldest first) from the device until it has ``nbytes`` left; whether it has.

        Waits for copies that are under way. Raises SpirogradRuntimeError if a file cannot be written."""
        there = self._sorted(copies)
        for saved in tuple(there[_DEVICE]):
            if self.memory.has_capacity(nbytes) or not (saved.leaving or self._leave(saved, there)):
                break
            saved.arrive()
            self._sort_again(there)
        return self.memory.has_capacity(nbytes)

    def ease(self, copies: Sequence[Saved]) -> None:
        """Have the oldest of ``copies`` begin to leave the device where it has little left, so that `free_up` need not wait."""
        if not copies or self.costs.used == 1:
            return
        aim = self.limits.memory - max(_EARLY * self.limits.memory, 2 * copies[-1].nbytes)
        staying = self.memory.used
        if staying <= aim:
            return
        there = self._sorted(copies)
        for saved in there[_DEVICE]:
            if staying <= aim or not (saved.leaving or self._leave(saved, there)):
                break
            staying -= saved.nbytes
        self._sort_again(there)

    def _sorted(self, copies: Sequence[Saved]) -> list[list[Saved]]:
        """Return the copies by level; those under way are on the device still."""
        there: list[list[Saved]] = [[*copies], [], []]
        self._sort_again(there)
        return there

    def _sort_again(self, there: list[list[Saved]]) -> None:
        """Sort copies anew that have left the device."""
        copies, there[_DEVICE] = there[_DEVICE], []
        for saved in copies:
            there[saved.level].append(saved)

    def _leave(self, saved: Saved, there: Sequence[list[Saved]]) -> bool:
        """Have a copy begin to leave the device, if there is capacity for it; whether it does. From now on it counts where it will be, and
        so do the oldest copies on the host, which go on to files where the host has too little capacity."""
        gone = [one for one in (*there[_DISK], *there[_HOST], *there[_DEVICE]) if one.leaving]
        coming = [*[one for one in gone if one.target == _HOST], saved]
        on_disk = _nbytes(one for one in gone if one.target == _DISK)
        excess, further = _nbytes(coming) - self.sizes[_HOST], 0
        while excess > 0:
            nbytes = coming[further].nbytes
            excess -= nbytes
            on_disk += nbytes
            further += 1
        if on_disk > self.limits.disk:
            return False
        for one in coming[:further]:
            if one is not saved:
                self._to_disk(one)
        saved.leave(lambda allocation, nbytes, release: MovedCopy(allocation, nbytes, release, self._staging))
        self._count(_HOST, saved)
        if further == len(coming):
            self._to_disk(saved)
        for level, nbytes in ((_HOST, _nbytes(coming[further:])), (_DISK, on_disk)):
            self.used[level].peak = max(self.used[level].peak, nbytes)
        return True

    def _to_disk(self, saved: Saved) -> None:
        assert self.files is not None
        saved.to_disk(self.files)
        self._count(_DISK, saved)

    def _count(self, level: int, saved: Saved) -> None:
        self.used[level].copies += 1
        self.used[level].nbytes += saved.nbytes

    def reports(self) -> tuple[LevelReport, ...]:
        """Return the limit, the use and the cost of each level."""
        self.used[_DEVICE].peak = self.memory.peak
        reports = []
        for k, (size, used) in enumerate(zip(self.sizes, self.used)):
            if size:
                now, cost = k < self.costs.used, self.costs.measured.get(k)
                left = not now and k in self.costs.left
                staging = self._staging.extra if k == _HOST else 0
                peak = self._staging.peak if k == _HOST else used.peak
                limit = int((self.limits.memory, self.limits.host, self.limits.disk)[k])
                reports.append(LevelReport(NAMES[k], limit, peak, used.copies, used.nbytes, cost, now or used.copies > 0, left, staging))
        return tuple(reports)

    def close(self) -> None:
        """Delete the files."""
        if self.files is not None:
            self.files.close()


def _nbytes(copies: Iterable[Saved]) -> int:
    return sum(saved.nbytes for saved in copies)

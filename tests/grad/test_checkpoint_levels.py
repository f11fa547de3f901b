"""Checkpoints of tapes in host memory and in files: the gradients are the same, and each level takes what it may."""

from __future__ import annotations

import os
import random
import weakref
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cases import rounding_of_sums

import spirograd as sg
from spirograd.ad.binomial import Limits, repetitions
from spirograd.ad.copy_levels import CopyLevels, LevelLimits
from spirograd.ad.copy_memory import CopyMemory
from spirograd.ad.level_costs import LevelCosts, fewest_repetitions
from spirograd.ad.versions import Saved
from spirograd.runtime.allocations import Allocation

pytestmark = pytest.mark.vulkan_or_wgpu

N = 256  # 1,024 bytes of a field
STEPS = 40
GB = 1e9


class Program:
    def __init__(self) -> None:
        self.a, self.b = (sg.field(sg.f32, shape=N, needs_grad=True) for _ in range(2))
        self.pair = sg.Vector.field(2, sg.f32, shape=33, needs_grad=True)  # whose elements lie side by side
        self.loss = sg.field(sg.f32, shape=(), needs_grad=True)

        @sg.kernel
        def step(t: sg.i32):
            for i in self.a:
                self.a[i] += 0.1 * sg.sin(self.b[i] * self.a[i] + t) * self.b[(i + 1) % N] if i % 2 == 0 else 0.05 * sg.random()
            for i in self.pair:
                self.pair[i] = self.pair[i] * 0.9 + 0.1 * sg.Vector([self.a[i], self.pair[i].x * self.pair[i].y])

        @sg.kernel
        def swap():
            for i in self.b:
                self.b[i] = sg.cos(self.b[i] * self.a[i]) + self.pair[i % 33].y

        @sg.kernel
        def total():
            for i in self.a:
                self.loss[None] += self.a[i] ** 2 + self.b[i]

        self.step, self.swap, self.total = step, swap, total

    def run(self, fail_at: int = -1, **options: Any) -> tuple[list[np.ndarray], Any]:
        self.a.from_numpy(np.linspace(0.1, 0.9, N, dtype=np.float32))
        self.b.from_numpy(np.linspace(0.9, 0.2, N, dtype=np.float32))
        self.pair.fill(0.3)
        with sg.ad.Tape(self.loss, **options) as tape:
            for t in range(STEPS):
                self.step(t)
                self.swap()
                if t == 20:
                    self.b[3] = 0.5
                if t == fail_at:
                    raise KeyError(t)
            self.total()
        memory = (self.a, self.b, self.pair, self.loss)
        return [x.to_numpy() for memory in memory for x in (memory, memory.grad)], tape.memory_report()


def start(arch: str) -> Program:
    sg.init(arch=arch, random_seed=4)
    return Program()


@pytest.fixture
def all_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """All levels are used at once, whatever their copies cost: what is tested is where copies go."""

    def look(costs: LevelCosts, *_: Any) -> bool:
        more, costs.used = costs.used < 3, 3
        return more

    monkeypatch.setattr(LevelCosts, "look", look)


OPTIONS: dict[str, dict[str, float]] = {
    "host": {"memory_GB": 14_000 / GB, "host_GB": 30_000 / GB},
    "disk": {"memory_GB": 14_000 / GB, "disk_GB": 50_000 / GB},
    "all": {"memory_GB": 14_000 / GB, "host_GB": 9_000 / GB, "disk_GB": 20_000 / GB},
    "count": {"memory_GB": 14_000 / GB, "host_GB": 30_000 / GB, "checkpoints": 5},
    "much": {"memory_GB": 14_000 / GB, "host_GB": 1, "disk_GB": 1},
}


@pytest.mark.usefixtures("all_levels")
@pytest.mark.parametrize("levels", OPTIONS)
def test_gradients_are_the_same(arch: str, levels: str, tmp_path: Path) -> None:
    program = start(arch)
    wanted, _ = program.run()
    sg.init(arch=arch, random_seed=4)
    program = Program()
    options: dict[str, Any] = dict(OPTIONS[levels])
    if "disk_GB" in options:
        options["disk_folder"] = tmp_path
    found, report = program.run(**options)
    tolerance = rounding_of_sums()
    for a, b in zip(wanted, found):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance / 10)
    facts = {level.name: level for level in report.repetitions.levels}
    for name, level in facts.items():
        assert 0 <= level.peak <= level.limit == int(options[f"{name}_GB"] * GB)
    assert facts["memory"].peak > 4 * N
    moved = "host" if "host_GB" in options else "disk"
    assert facts[moved].copies > 3 and facts[moved].nbytes >= facts[moved].peak - facts[moved].staging > 0
    if levels == "all":
        assert facts["disk"].copies > 1
    assert f"  {moved:<6}  at most {facts[moved].peak} bytes of " in str(report)
    assert not [*tmp_path.iterdir()]


class LateArrival:
    """Bytes that are not there yet when that is asked so many times, whatever came after them."""

    def __init__(self, times: int) -> None:
        self.times = times

    def here(self) -> bool:
        self.times -= 1
        return self.times < 0

    def wait(self) -> None:
        self.times = 0


class FakeAllocation:
    """Device memory whose bytes come some time later, each copy on its own."""

    device, readback_limit = None, 1 << 20

    def __init__(self, nbytes: int, rng: random.Random) -> None:
        self.nbytes, self.rng = nbytes, rng

    def free_up(self, nbytes: int, purpose: Any) -> None: ...

    def read_into_async(self, offset: int, out: memoryview) -> LateArrival:
        return LateArrival(self.rng.choice([0, 1, 5, 30]))


class Copy(Saved):
    """A copy of nothing."""

    def __init__(self, memory: CopyMemory, nbytes: int, rng: random.Random) -> None:
        self.nbytes, self._copy_memory, self._moved = nbytes, memory, None
        self._copy = FakeAllocation(nbytes, rng)
        memory.used += nbytes


class BytesAlive:
    """Bytes of the arrays that `copy_levels` makes: ``now``, and ``most`` at a time, until they are garbage."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.most = 0
        monkeypatch.setattr("spirograd.ad.copy_levels.np", SimpleNamespace(empty=self.empty, uint8=np.uint8))

    def empty(self, nbytes: int, dtype: Any) -> np.ndarray:
        made = np.empty(nbytes, dtype)
        weakref.finalize(made, self.add, -nbytes)
        self.add(nbytes)
        return made

    def add(self, nbytes: int) -> None:
        self.now += nbytes
        self.most = max(self.most, self.now)


@pytest.mark.archs("cpu")
@pytest.mark.parametrize("seed", range(30))
def test_limits_of_levels_hold(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of any sizes come, also between older ones, and go, while others are on their way: each level takes no more than it may, the
    host with what arrives there, waits for files and is kept for other copies."""
    on_host = BytesAlive(monkeypatch)
    rng = random.Random(seed)
    memory = CopyMemory(4_000, FakeAllocation(0, rng).free_up)
    levels = CopyLevels(LevelLimits(4_000, rng.choice([0, 1_500, 3_000]), 5_000, str(tmp_path)), memory)
    levels.costs.used = 3
    copies: list[Copy] = []
    full = 0
    for _ in range(300):
        nbytes = rng.choice([4, 264, 1024])
        action = rng.random()
        if action < 0.55:
            if levels.free_up(copies, nbytes):
                copies.insert(len(copies) if rng.random() < 0.7 else rng.randrange(len(copies) + 1), Copy(memory, nbytes, rng))
            else:
                full += 1
        elif copies and action < 0.8:
            levels.ease(copies)
        elif copies:
            copies.pop(rng.randrange(len(copies))).free()
        if action > 0.95:
            assert all(saved._moved.data().nbytes == saved.nbytes for saved in copies[:2] if saved.leaving)
        there = [sum(saved.nbytes for saved in copies if saved.level == level) for level in range(3)]
        assert all(nbytes <= size for nbytes, size in zip(there, levels.sizes))
        assert all(used.peak <= size for used, size in zip(levels.used[1:], levels.sizes[1:]))
        assert not levels.limits.host or on_host.now <= on_host.most <= levels.limits.host
        levels.files._worker.submit(int).result()  # files are written, or deleted, by then
        assert sum(file.stat().st_size for file in tmp_path.glob("*/*")) <= levels.sizes[2]
    assert full > 3 and levels.used[2].copies > 10
    for report in levels.reports():
        if report.name == "host":
            assert on_host.most <= report.peak <= report.limit and 0 < report.staging <= report.peak
            assert f", at most {report.staging} bytes for copies under way" in str(report)
    for saved in copies:
        assert saved._moved is None or saved._moved.data().nbytes == saved.nbytes
    levels.close()
    assert not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("all_levels")
def test_fewer_steps_are_repeated_with_more_levels(arch: str) -> None:
    program = start(arch)
    few = program.run(memory_GB=14_000 / GB)[1].repetitions
    more = program.run(memory_GB=14_000 / GB, host_GB=60_000 / GB)[1].repetitions
    assert more.repeated < 0.8 * few.repeated
    assert more.peak > few.peak


@pytest.mark.usefixtures("all_levels")
@pytest.mark.archs("cpu")
def test_the_plan_before_and_the_facts_after(arch: str) -> None:
    program = start(arch)
    with sg.ad.Tape(program.loss, memory_GB=14_000 / GB, host_GB=30_000 / GB) as tape:
        for t in range(STEPS):
            program.step(t)
        planned = tape.memory_report().repetitions
        program.total()
    done = tape.memory_report().repetitions
    assert planned is not None and done is not None
    assert not planned.ran and done.ran
    assert planned.levels[1].copies > 0
    assert done.levels[1].nbytes >= planned.levels[1].nbytes


@pytest.mark.archs("cpu", "vulkan")
def test_the_device_does_not_take_the_whole_program_at_the_end(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reverse puts memory back, and keeps what was there for another one: on the levels that have room."""
    sg.init(arch=arch)
    fields = [sg.field(sg.f32, shape=N, needs_grad=True) for _ in range(30)]
    loss = sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def step(x: sg.Template, y: sg.Template):
        for i in x:
            y[i] = sg.sin(x[i]) + 0.5 * y[i]

    @sg.kernel
    def total(x: sg.Template):
        for i in x:
            loss[None] += x[i]

    swap, swapped, most = Saved.swap, [], []

    def watched(saved: Saved) -> None:
        swap(saved)
        swapped.append(saved)
        most.append(sum(each.nbytes for each in swapped if each.level == 0))

    def run(**options: Any) -> list[np.ndarray]:
        loss.fill(0.0)
        for k, x in enumerate(fields):
            x.fill(0.1 * k)
        with sg.ad.Tape(loss, **options):
            for x, y in [*pairwise(fields)] * 2:
                step(x, y)
            total(fields[-1])
        return [part.to_numpy() for x in (*fields, loss) for part in (x, x.grad)]

    wanted = run()
    monkeypatch.setattr(Saved, "swap", watched)
    for a, b in zip(wanted, run(memory_GB=10_000 / GB, host_GB=80_000 / GB)):
        np.testing.assert_array_equal(a, b)
    assert len(swapped) == 30 and 0 < max(most) <= 10_000


@pytest.mark.usefixtures("all_levels")
@pytest.mark.archs("cpu")
def test_a_relative_folder_stays_the_same_one(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked up once: the program may change its working directory."""
    program = start(arch)
    (tmp_path / "files").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with sg.ad.Tape(program.loss, memory_GB=14_000 / GB, disk_GB=1, disk_folder="files"):
        monkeypatch.chdir(tmp_path / "elsewhere")
        for t in range(STEPS):
            program.step(t)
        assert [*(tmp_path / "files").iterdir()]
        program.total()
    assert not [*(tmp_path / "files").iterdir()]


@pytest.mark.usefixtures("all_levels")
@pytest.mark.archs("cpu", "vulkan")
def test_files_are_deleted_after_an_exception(arch: str, tmp_path: Path) -> None:
    program = start(arch)
    with pytest.raises(KeyError):
        program.run(fail_at=30, memory_GB=14_000 / GB, disk_GB=1, disk_folder=tmp_path)
    assert not [*tmp_path.iterdir()]
    tape = sg.ad.Tape(memory_GB=14_000 / GB, disk_GB=1, disk_folder=str(tmp_path))
    with tape:
        for t in range(STEPS):
            program.step(t)
    assert [*tmp_path.iterdir()]
    tape.grad()
    tape.grad()
    del tape
    assert not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("all_levels")
@pytest.mark.archs("cpu")
def test_a_full_disk(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = start(arch)

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(sg.SpirogradRuntimeError, match=r"cannot keep checkpoints in .*: No space left on device(.|\n)*`disk_folder=`"):
        program.run(memory_GB=14_000 / GB, disk_GB=1, disk_folder=tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.archs("cpu")
def test_folders_that_do_not_serve(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = start(arch)
    with pytest.raises(sg.SpirogradValueError, match="`disk_folder` of a tape is a folder that exists, got"):
        sg.ad.Tape(program.loss, memory_GB=1, disk_GB=1, disk_folder=tmp_path / "none")

    def refused(*_: Any, **__: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", refused)
    with pytest.raises(sg.SpirogradRuntimeError, match=r"cannot keep checkpoints in .*: Permission denied"):
        sg.ad.Tape(program.loss, memory_GB=1, disk_GB=1, disk_folder=tmp_path)


@pytest.mark.archs("cpu")
@pytest.mark.parametrize(
    "options, message",
    [
        ({"host_GB": 1}, "give that, too"),
        ({"memory_GB": 1, "disk_GB": 1}, "belong together"),
        ({"memory_GB": 1, "disk_folder": os.curdir}, "belong together"),
        ({"memory_GB": 1, "host_GB": -1}, "`host_GB` of a tape is a number above 0, got -1"),
        ({"memory_GB": 1, "host_GB": float("nan")}, "`host_GB` of a tape is a number above 0, got nan"),
        ({"memory_GB": 1, "disk_GB": True, "disk_folder": os.curdir}, "`disk_GB` of a tape is a number above 0, got True"),
    ],
)
def test_limits_that_are_none(arch: str, options: dict[str, Any], message: str) -> None:
    program = start(arch)
    with pytest.raises(sg.SpirogradValueError, match=message):
        sg.ad.Tape(program.loss, **options)


@pytest.mark.archs("cpu")
def test_too_little_on_the_device(arch: str) -> None:
    program = start(arch)
    with pytest.raises(sg.SpirogradRuntimeError, match=r"a tape with `memory_GB=1e-06` has too little memory(.|\n)*raise `memory_GB`"):
        program.run(memory_GB=1e-6, host_GB=1)


@pytest.mark.usefixtures("all_levels")
@pytest.mark.parametrize("n, dtype", [(20_000, sg.f32), (77, sg.f16)])
def test_copies_in_pieces(arch: str, n: int, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones, of which few pieces are under way at a time, and those that are no whole words."""
    monkeypatch.setattr(Allocation, "readback_limit", 1 << 14)
    monkeypatch.setattr("spirograd.ad.copy_levels._UNDER_WAY", 7 << 14)
    sg.init(arch=arch)
    x, loss = sg.field(dtype, shape=n, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def step():
        for i in x:
            x[i] = 0.9 * x[i] + 0.2 * x[i] * x[i]

    @sg.kernel
    def total():
        for i in x:
            loss[None] += x[i]

    found = []
    size = n * (4 if dtype is sg.f32 else 2)
    for limits in ({}, {"memory_GB": 5 * size / GB, "host_GB": 12 * size / GB}):
        x.from_numpy(np.linspace(0.1, 0.9, n))
        with sg.ad.Tape(loss, **limits) as tape:
            for _ in range(12):
                step()
            total()
        found.append(x.grad.to_numpy())
    np.testing.assert_array_equal(*found)
    levels = tape.memory_report().repetitions.levels
    assert levels[1].copies > 2


# --- which levels are used ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoints", [1, 2, 3, 7])
def test_fewest_repetitions(checkpoints: int) -> None:
    for steps in range(60):
        assert fewest_repetitions(steps, checkpoints) == repetitions([0], steps, Limits(checkpoints)) - steps


@pytest.mark.parametrize("steps, copy, used", [(300, 2e-3, 1), (300, 2e-5, 3), (30_000, 2e-3, 3), (20, 2e-5, 1)])
def test_a_level_is_used_where_its_copies_take_less_time(steps: int, copy: float, used: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 1 ms; ``copy``: seconds to move a checkpoint to the lower level and back."""
    sg.init(arch=sg.interpreter)
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    costs, sizes = LevelCosts(), (16e3, 0, 160e3)
    for step in range(1, steps + 1):
        now += 1e-3
        if step > 14:
            costs.look(sizes, step, 2_000, 1_000, lambda level: (copy / 2_000, copy / 2_000))
    assert costs.used == used
    assert not costs.measured or costs.measured[2].step == pytest.approx(1e-3, rel=0.1)


class Clock:
    """A program of steps of 1 ms, and a level of memory: probes say that a copy takes so many seconds there, and as many back; in the
    program, each copy takes ``delay`` seconds, which go by at once, or (``late``) when something waits for the copies."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, probes: list[float], delay: float, late: bool = False) -> None:
        sg.init(arch=sg.interpreter)
        self.now, self.pending, self.moved = 0.0, 0.0, 0
        self.probes, self.delay, self.late = probes, delay, late
        self.costs = LevelCosts()
        self.history: list[int] = []
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def probe(self, level: int) -> tuple[float, float]:
        seconds = self.probes.pop(0) if len(self.probes) > 1 else self.probes[0]
        self.now += 2 * seconds
        return seconds / 1_000, seconds / 1_000

    def arrive(self) -> None:
        self.now, self.pending = self.now + self.pending, 0.0

    def run(self, steps: int, slow: dict[int, float]) -> int:
        sizes = (16e3, 160e3, 0)
        for step in range(1, steps + 1):
            self.now += slow.get(step, 1e-3)
            if self.costs.used > 1:
                self.moved += 1_000
                self.pending += self.delay
                if not self.late:
                    self.arrive()
                self.costs.review(sizes, step, 2_000, 1_000, self.moved, self.arrive)
            elif step > 14:
                self.costs.look(sizes, step, 2_000, 1_000, self.probe, self.moved)
            self.history.append(self.costs.used)
        return self.costs.used


@pytest.mark.parametrize("late", [False, True])
def test_a_level_that_turns_out_slow_is_left(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes find a copy fast, the program finds it slow: at once, or where it waits for the copies under way."""
    clock = Clock(monkeypatch, [1e-5], 2e-2, late)
    assert clock.run(150, {}) == 1
    assert 4 <= sum(used > 1 for used in clock.history) < 30  # left soon, and not used again
    assert clock.costs.measured[1].copy == pytest.approx(2e-2, rel=0.1)


def test_a_level_beside_the_program_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, [1e-4], 1e-5)
    assert clock.run(300, {}) == 2
    assert clock.history[40:] == [2] * 260


def test_a_level_that_was_left_is_used_when_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long programs repeat steps more often."""
    clock = Clock(monkeypatch, [1e-4], 3e-3)
    assert clock.run(20_000, {}) == 2
    assert 1 in clock.history[clock.history.index(2) :]


@pytest.mark.parametrize("slow", [{1: 9.0}, {16: 9.0}, {18: 3.0, 22: 3.0}, {26: 9.0}])
def test_slow_steps_do_not_decide(slow: dict[int, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers run at the first launch of a kernel, which may be any step."""
    clock = Clock(monkeypatch, [2e-2], 2e-2)
    assert clock.run(60, slow) == 1
    assert clock.costs.measured[1].step == pytest.approx(1e-3, rel=0.1)


def test_a_slow_first_copy_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for memory that is new, or for a disk that wakes up."""
    clock = Clock(monkeypatch, [1.0, 1e-5], 1e-5)
    assert clock.run(300, {}) == 2
    assert clock.history.index(2) > 30


def timed(program: Program, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A list of the one number that the clock shows from now on: a step of ``program`` takes 1 ms, whatever else the machine does."""
    now, step = [0.0], program.step

    def slow_step(t: int) -> None:
        now[0] += 1e-3
        step(t)

    program.step = slow_step
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


@pytest.mark.archs("cpu", "vulkan")
def test_a_slow_host_is_left(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the probe does not show: the gradients are the same, and the report says why."""
    program = start(arch)
    wanted, _ = program.run()
    price, leave = (1e-12, 1e-12), Saved.leave

    def slow(saved: Saved, elsewhere: Any) -> None:
        now[0] += 0.01
        leave(saved, elsewhere)

    monkeypatch.setattr(CopyLevels, "_price", lambda *_: price)
    monkeypatch.setattr(Saved, "leave", slow)
    sg.init(arch=arch, random_seed=4)
    program = Program()
    now = timed(program, monkeypatch)
    found, report = program.run(memory_GB=14_000 / GB, host_GB=1)
    for a, b in zip(wanted, found):
        np.testing.assert_allclose(a, b, rtol=rounding_of_sums(), atol=rounding_of_sums() / 10)
    host = report.repetitions.levels[1]
    assert host.left and 3 < host.copies < 60
    assert f"left after {host.copies} copies: a checkpoint takes {1e3 * host.cost.copy:.3g} ms there" in str(report)


@pytest.mark.archs("cpu")
def test_a_slow_disk_is_not_used(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, write = start(arch), Path.write_bytes

    def slow(path: Path, data: bytes) -> int:
        now[0] += 0.2
        return write(path, data)

    wanted, _ = program.run()
    monkeypatch.setattr(Path, "write_bytes", slow)
    sg.init(arch=arch, random_seed=4)
    program = Program()
    now = timed(program, monkeypatch)
    found, report = program.run(memory_GB=14_000 / GB, disk_GB=1, disk_folder=tmp_path)
    assert now[0] < 20  # with copies on the disk: 40
    for a, b in zip(wanted, found):
        np.testing.assert_allclose(a, b, rtol=rounding_of_sums(), atol=rounding_of_sums() / 10)
    (disk,) = report.repetitions.levels[1:]
    assert not disk.used and disk.cost.copy > 0.2 > disk.cost.step > 0
    assert f"  disk    not used: a checkpoint takes {1e3 * disk.cost.copy:.3g} ms there, a step that runs again" in str(report)

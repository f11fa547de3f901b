"""Long runs of all fuzzers, or of those named: ``python -m tests.fuzz --seed 7 --minutes 60``, ``python -m tests.fuzz tapes --count 500``.

Program after program, each fuzzer in turn. Each failure is printed with the command that repeats it and with the program, shortened; and
appended to failures.txt in the folder of results. ``--resume`` goes on where the run before in that folder ended. If it ended in a crash,
of a driver say, the program of the crash counts as a failure. At the end a table says how many programs passed. ``--record`` appends to
results.jsonl beside this file, which `tools/fuzzing.py` makes the table in docs/fuzzing.md of. The exit status is 1 if a program failed.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("GALLIVM_PERF", "nopt")  # as tests/conftest.py says

import spirograd as sg
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.lang.context import session
from spirograd.runtime import loader

from . import (
    algorithm_programs,
    files,
    gradient_programs,
    gradients,
    group_programs,
    guarded_programs,
    lane_programs,
    matrix_programs,
    partitions,
    run,
    scatter_programs,
    sparse,
    sparse_gradients,
    sparse_programs,
    stored_traces,
    tape_programs,
    tapes,
    tile_programs,
)
from .evaluate import TooLong
from .expressions import Choices
from .kernel_programs import Program, write
from .shrink import shrunk
from .whole import check as whole
from .whole import write as whole_programs

RECORD = Path(__file__).with_name("results.jsonl")


@dataclass(frozen=True)
class Fuzzer:
    """``write``: the program of a seed. ``check``: raises what is wrong with it on back ends. ``failure``: that in one line, or "".
    ``shortened``: the program, as short as it can be and still fail. ``archs``: the back ends that it can test."""

    write: Callable[[int], Any]
    check: Callable[[Any, Sequence[str]], object]
    failure: Callable[[Any, Sequence[str]], str]
    shortened: Callable[[Any, Sequence[str]], Any]
    archs: tuple[str, ...]


def program_of(seed: int) -> Program:
    r = random.Random(seed)
    return write(Choices(r.randint))


def check(program: Program, archs: Sequence[str]) -> None:
    run.check(program, on=archs)


def failure(program: Program, archs: Sequence[str]) -> str:
    try:
        check(program, archs)
    except TooLong:
        return ""
    except run.Difference as error:
        return str(error).splitlines()[0]
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def kind(text: str, archs: Sequence[str]) -> str:
    """What must stay the same while shortening: the back end that differs, or the error."""
    return text.split(":")[0] if archs and text.startswith(tuple(archs)) else text[:45]


def shortened(program: Program, archs: Sequence[str]) -> Program:
    wanted = kind(failure(program, archs), archs)
    return shrunk(program, lambda p: kind(failure(p, archs), archs) == wanted)


def as_it_is(program: Any, _: Sequence[str]) -> Any:
    """Of programs that are not shortened."""
    return program


FUZZERS = {
    "programs": Fuzzer(
        whole_programs.program_of, whole.check, whole.failure, whole.shortened, ("interpreter", "cpu", "vulkan", "wgpu", "cuda")
    ),
    "kernels": Fuzzer(program_of, check, failure, shortened, ("interpreter", "cpu", "vulkan")),
    "gradients": Fuzzer(gradient_programs.write, gradients.check, gradients.failure, gradients.shortened, ("interpreter", "cpu", "vulkan")),
    "tapes": Fuzzer(tape_programs.write, tapes.check, tapes.failure, tapes.shortened, ("cpu", "vulkan", "wgpu")),
    "sparse": Fuzzer(sparse_programs.write, sparse.check, sparse.failure, sparse.shortened, ("interpreter", "cpu", "vulkan", "wgpu")),
    "sparse_gradients": Fuzzer(
        sparse_gradients.write, sparse_gradients.check, sparse_gradients.failure, sparse_gradients.shortened, ("cpu", "vulkan", "wgpu")
    ),
    "sparse_checkpoints": Fuzzer(
        sparse_gradients.write,
        sparse_gradients.check_checkpoints,
        sparse_gradients.failure_of_checkpoints,
        sparse_gradients.shortened_for_checkpoints,
        ("cpu", "vulkan", "wgpu"),
    ),
    "partitions": Fuzzer(partitions.write, partitions.check, partitions.failure, partitions.shortened, ("cpu",)),
    "algorithms": Fuzzer(
        algorithm_programs.write,
        algorithm_programs.check,
        algorithm_programs.failure,
        algorithm_programs.shortened,
        ("interpreter", "cpu", "vulkan", "wgpu", "cuda"),
    ),
    "groups": Fuzzer(group_programs.write, group_programs.check, group_programs.failure, as_it_is, ("cpu", "vulkan", "wgpu", "cuda")),
    "lanes": Fuzzer(lane_programs.Program, lane_programs.check, lane_programs.failure, as_it_is, ("cpu",)),
    "scatters": Fuzzer(
        scatter_programs.Program, scatter_programs.check, scatter_programs.failure, as_it_is, ("cpu", "vulkan", "wgpu", "cuda")
    ),
    "guards": Fuzzer(
        guarded_programs.Program, guarded_programs.check, guarded_programs.failure, as_it_is, ("cpu", "vulkan", "wgpu", "cuda")
    ),
    "sparse_matrices": Fuzzer(int, matrix_programs.check_matrices, matrix_programs.failure_of_matrices, as_it_is, ("cpu", "vulkan")),
    "tiles": Fuzzer(
        matrix_programs.tiles,
        matrix_programs.check_tiles,
        matrix_programs.failure_of_tiles,
        as_it_is,
        ("interpreter", "cpu", "vulkan", "wgpu", "cuda"),
    ),
    "files": Fuzzer(files.write, files.check, files.failure, as_it_is, ("cpu", "vulkan")),
    "stored_traces": Fuzzer(stored_traces.write, stored_traces.check, stored_traces.failure, as_it_is, ("cpu", "vulkan", "wgpu", "cuda")),
    "tile_products": Fuzzer(
        tile_programs.write, tile_programs.check, tile_programs.failure, as_it_is, ("interpreter", "cpu", "vulkan", "cuda")
    ),
}


class Results:
    """How far a run is, kept in a folder after every program."""

    def __init__(self, folder: Path, resume: bool, kinds: Sequence[str], seed: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.failures = folder / "state.json", folder / "failures.txt"
        state: dict[str, Any] = json.loads(self.file.read_text()) if resume and self.file.exists() else {}
        self.kinds: list[str] = state.get("kinds", list(kinds))
        self.next: int = state.get("next", seed * len(self.kinds))  # seed and kind in one number
        self.counts = Counter[str](state.get("counts", {}))
        self.programs = Counter[str](state.get("programs", {}))  # "kind, back end": that passed there
        self.comparisons = Counter[str](state.get("comparisons", {}))  # the same
        self.faults = Counter[str](state.get("faults", {}))  # "kind: what is wrong"
        self.recorded: dict[str, dict[str, int]] = state.get("recorded", {})  # what these were when they were recorded last
        self.running: str = state.get("running", "")

    def save(self, running: str = "") -> None:
        state = {"kinds": self.kinds, "next": self.next, "running": running, "recorded": self.recorded, **self.numbers()}
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(state))
        part.replace(self.file)

    def numbers(self) -> dict[str, dict[str, int]]:
        return {name: dict(getattr(self, name)) for name in ("counts", "programs", "comparisons", "faults")}

    def record(self, file: Path) -> None:
        """Append a line for each fuzzer: what it did since the last record."""
        now = self.numbers()
        new = {name: Counter(counts) - Counter(self.recorded.get(name, {})) for name, counts in now.items()}
        about = {"day": f"{datetime.date.today()}", "commit": commit(), "drivers": Path(os.environ.get("VK_DRIVER_FILES", "")).stem}
        with file.open("a", encoding="utf-8") as out:
            for kind in self.kinds:
                line: dict[str, Any] = {"fuzzer": kind, **about}
                line |= {how: new["counts"][f"{kind} {how}"] for how in ("passed", "skipped", "failed")}
                for what in ("programs", "comparisons"):
                    line[what] = {key.split(", ")[1]: n for key, n in new[what].items() if key.startswith(f"{kind}, ")}
                line["faults"] = {key.partition(": ")[2]: n for key, n in new["faults"].items() if key.startswith(f"{kind}: ")}
                if line["passed"] or line["failed"]:
                    out.write(json.dumps(line) + "\n")
        self.recorded = now
        self.save()

    def fail(self, kind: str, text: str, fault: str) -> None:
        self.counts[f"{kind} failed"] += 1
        self.faults[f"{kind}: {fault}"] += 1
        print(f"\n{text}", flush=True)
        with self.failures.open("a", encoding="utf-8") as out:
            out.write(text + "\n")

    @property
    def failed(self) -> int:
        return sum(self.counts[f"{kind} failed"] for kind in self.kinds)

    def table(self) -> str:
        """How many programs of each fuzzer ended how, since the run began that was resumed last."""
        outcomes = ("passed", "skipped", "failed")
        rows = [(kind, *[self.counts[f"{kind} {how}"] for how in outcomes]) for kind in self.kinds]
        rows.append(("all", *[sum(column) for column in zip(*[row[1:] for row in rows])]))
        lines = [("fuzzer", *outcomes, "programs"), *[(*row, sum(row[1:])) for row in rows]]
        return "\n".join("".join([f"{name:12}", *[f"{number:>10}" for number in numbers]]) for name, *numbers in lines)


def commit() -> str:
    """Which version of the sources this is, as far as it is known."""
    done = subprocess.run(["git", "describe", "--always"], cwd=RECORD.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip()


@functools.cache
def incomplete(arch: str) -> bool:
    """Whether the device of a back end lacks 64-bit numbers, or atomics of them, as SwiftShader does: it refuses programs with these."""
    sg.init(arch=arch)
    caps = session().device.caps
    return not (caps.int64 and caps.float64 and caps.atomic_int64)


def outcome(fuzzer: Fuzzer, program: Any, archs: Sequence[str]) -> tuple[str, Counter[str]]:
    """Of one program: "passed", "skipped" (the reference says nothing), or what is wrong with it; and how much each back end compared.

    There is no limit of time, because a signal that arrives inside of a callback of wgpu ends the process.
    """
    try:
        counts = fuzzer.check(program, archs)
    except (TooLong, gradients.Skipped, whole.Unclear):
        return "skipped", Counter()
    except SpirogradUnsupportedError as error:
        refused = "this device" in str(error) and any(map(incomplete, archs))
        return "skipped" if refused else fuzzer.failure(program, archs) or "skipped", Counter()
    except Exception:
        return fuzzer.failure(program, archs) or "skipped", Counter()  # `failure` knows which programs are no good
    if not isinstance(counts, Counter):
        return "passed", Counter(archs)
    compared = Counter[str]()
    for key, count in counts.items():
        if key.startswith("compared, "):
            compared[key.split(", ")[1]] += count
    return "passed", compared


def one(results: Results, name: str, seed: int, archs: Sequence[str], shorten: bool) -> None:
    fuzzer = FUZZERS[name]
    found = [arch for arch in fuzzer.archs if arch in archs]
    again = f"python -m tests.fuzz {name} --seed {seed} --count 1 --on {' '.join(found)}"
    results.save(again)
    program = fuzzer.write(seed)
    text, compared = outcome(fuzzer, program, found)
    if text in ("passed", "skipped"):
        results.counts[f"{name} {text}"] += 1
        results.programs.update(f"{name}, {arch}" for arch in compared)
        results.comparisons.update({f"{name}, {arch}": count for arch, count in compared.items()})
        return
    if shorten:
        program = fuzzer.shortened(program, found)
    results.fail(name, f"=== {again}\n{fuzzer.failure(program, found) or text}\n{program!r}", kind(text, found))


def show(results: Results, done: int, begin: float, total: int, seconds: float) -> None:
    """The progress, on one line of a terminal."""
    past = time.monotonic() - begin
    share = max(done / total if total else 0.0, past / seconds if seconds else 0.0)
    bar = f"[{'#' * int(30 * share):30}] {100 * share:3.0f} %  " if total or seconds else ""
    print(f"\r{bar}{done} programs, {results.failed} failed, {past:.0f} s ", end="", file=sys.stderr, flush=True)


def arguments(command: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(FUZZERS), metavar="kind", help=f"of {', '.join(FUZZERS)}; by default all")
    parser.add_argument("--seed", type=int, default=None, help="of the first program of each kind; by default any")
    parser.add_argument("--count", type=int, default=0, help="programs of each kind; by default no limit")
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no program after that; by default no limit")
    back_ends = ["interpreter", "cpu", "vulkan", "wgpu"]
    parser.add_argument("--on", nargs="+", default=back_ends, metavar="ARCH", help="back ends to test, where a fuzzer uses them")
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"), help="folder of results (%(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on where the run before ended")
    parser.add_argument("--keep", action="store_true", help="do not shorten")
    parser.add_argument("--record", action="store_true", help=f"append to {RECORD.name}")
    given = parser.parse_args(command)
    unknown = [name for name in given.kinds if name not in FUZZERS]
    if unknown:
        parser.error(f"there is no fuzzer {', '.join(unknown)}; there are {', '.join(FUZZERS)}")
    return given


def main(command: Sequence[str] | None = None) -> int:
    given = arguments(command)
    logging.getLogger("spirograd").setLevel(logging.ERROR)  # of warnings random programs give many
    archs = [name for name in given.on if loader.available(name) is None]
    given.kinds = [kind for kind in given.kinds if set(FUZZERS[kind].archs) & set(archs)]
    if not given.kinds:
        print(f"none of these fuzzers uses a back end that is here, of {', '.join(given.on)}")
        return 1
    seed = random.SystemRandom().randrange(10**9) if given.seed is None else given.seed
    results = Results(given.out, given.resume, given.kinds, seed)
    kinds = results.kinds
    print(f"{', '.join(kinds)} from seed {results.next // len(kinds)}, on {', '.join(archs)}", flush=True)
    if results.running:
        at, k = divmod(results.next, len(kinds))
        text = f"=== {results.running}\nthe process ended while it ran this program\n{FUZZERS[kinds[k]].write(at)!r}"
        results.fail(kinds[k], text, "crash")
        results.next += 1
    # A shell lets what runs in its background ignore SIGINT.
    handlers = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGINT)}
    begin, done, total, seconds = time.monotonic(), 0, given.count * len(kinds), given.minutes * 60
    while (not total or done < total) and (not seconds or time.monotonic() - begin < seconds):
        at, k = divmod(results.next, len(kinds))
        try:
            one(results, kinds[k], at, archs, not given.keep)
        except KeyboardInterrupt:
            results.save()
            break
        results.next, done = results.next + 1, done + 1
        results.save()
        if sys.stderr.isatty() or done % 100 == 0:
            show(results, done, begin, total, seconds)
    print(f"\n{done} programs in {time.monotonic() - begin:.0f} s; failures in {results.failures}\n{results.table()}")
    for number, handler in handlers.items():
        signal.signal(number, handler)
    if given.record:
        results.record(RECORD)
    run.close()
    gradients.close()
    whole.close()
    return 1 if results.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

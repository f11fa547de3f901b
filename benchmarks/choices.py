"""Measure how often the cost model chooses the fastest code, for the programs of `benchmarks/programs` and those of the validation corpus.

    python -m benchmarks.choices                        # the CPU: the choices that the model is unsure of
    python -m benchmarks.choices --all                  # those that it is sure of, too
    python -m benchmarks.choices --arch vulkan mpm88    # another back end, some programs; `corpus` names the corpus

A launch is repeated until the candidates are measured, as `docs/tuning.md` describes, however short it is. So programs compute other
results than usual, which nothing reads. The model is right about a kernel (a task, on GPUs) if no alternative takes less than 95 % of its
time.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import spirograd as sg
from benchmarks.measure import programs
from spirograd.analysis import loop_costs
from spirograd.lang import context
from spirograd.runtime import trials, tuning

_SHOWN = 18  # of the name of a kernel


@dataclass(frozen=True)
class Row:
    """A choice. ``times``: the shortest time of each candidate in nanoseconds, "" for the code of the model. ``chosen``: its name."""

    program: str
    kernel: str
    iterations: str
    times: dict[str, int]
    chosen: str

    @property
    def loss(self) -> float:
        """How many times as long as the chosen code that of the model takes."""
        return self.times[""] / self.times[self.chosen]


def rows(program: str) -> list[Row]:
    """Return the choices of the running session, in which ``program`` ran."""
    tuner = context.session().tuner  # type: ignore[attr-defined]
    found = []
    for tuned in [] if tuner is None else sorted(tuner.tunings, key=lambda tuned: tuned.compiled.name):
        parts = tuning.parts_of(tuned.compiled, tuner.by_task)
        for choice in tuned.choices():
            for k, (part, chosen) in enumerate(zip(parts, choice.names)):
                times = {name: of[k] for name, of in choice.times if of[k] and (not name or name in part)}
                if len(times) > 1 and "" in times:
                    task = tuned.compiled.tasks[k].name if len(parts) > 1 else tuned.compiled.name
                    counts = choice.counts[k : k + 1] if len(parts) > 1 else choice.counts
                    iterations = " + ".join(f"{count:,}" for count in counts if count is not None and count > 1)
                    found.append(Row(program, task, iterations or "?", times, chosen))
    return found


@contextlib.contextmanager
def decided_at_once(everything: bool = False) -> Iterator[None]:
    """Repeat each launch in this block until its choice is made. ``everything``: also where the model is sure."""
    launch = tuning.Tuning.launch

    def decided(tuned: tuning.Tuning, executable: object, block: bytes, counts: Any) -> None:
        launch(tuned, executable, block, counts)
        session: Any = context.session()
        for _ in range(1000):
            if tuned.chosen(counts) is not None:
                return
            session.device.synchronize()
            session.tuner.wait()
            launch(tuned, executable, block, counts)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(tuning.Tuning, "launch", decided))
        stack.enter_context(mock.patch.object(tuning, "worth_of", lambda compilation, alternatives: 0))
        stack.enter_context(mock.patch.object(trials, "SHORTEST", 0))
        if everything:
            stack.enter_context(mock.patch.object(loop_costs, "_UNSURE", 1 << 30))
        yield


def run_program(path: Path, arch: str) -> list[Row]:
    """Run the cases of a program of `benchmarks/programs`, but those that compile, and return its choices."""
    sg.init(arch=getattr(sg, arch), offline_cache=False, tune_gpu=True, ad_stack_experimental_enabled=True)
    spec = importlib.util.spec_from_file_location(f"choices_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = program
    spec.loader.exec_module(program)
    for name, (run, _) in program.CASES.items():
        if not name.startswith("compile"):
            with told(f"{path.stem}, {name}"):
                run()
                sg.sync()
    return rows(path.stem)


def run_corpus(arch: str) -> list[Row]:
    """Run the validation corpus, and return its choices."""
    from validation.case import load

    found = []
    for case in load():
        with told(f"corpus, {case.name}"):
            sg.init(arch=getattr(sg, arch), offline_cache=False, tune_gpu=True, **dict(case.options))
            case.run(*case.args)
            sg.sync()
            found += rows(f"corpus {case.name}")
    return found


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Report an error and go on: a launch that is repeated may exceed what a program has room for."""
    try:
        yield
    except Exception as error:
        print(f"{what}: {type(error).__name__}: {str(error)[:120]}", file=sys.stderr)


def table(found: Sequence[Row]) -> str:
    """Return the choices as a table in Markdown, those where the model is most wrong first."""
    lines = ["| program | kernel | iterations | the model's code, ms | alternatives, ms | chosen | model / chosen |", "|---" * 7 + "|"]
    for row in sorted(found, key=lambda row: -row.loss):
        others = ", ".join(f"{name} {time / 1e6:.3f}" for name, time in row.times.items() if name)
        kernel = row.kernel if len(row.kernel) <= _SHOWN else f"{row.kernel[:_SHOWN]}..."
        model = f"{row.times[''] / 1e6:.3f}"
        lines.append(f"| {row.program} | {kernel} | {row.iterations} | {model} | {others} | {row.chosen or 'model'} | {row.loss:.2f} |")
    return "\n".join(lines)


def summary(found: Sequence[Row]) -> str:
    """Return in words how often the model is right, and what it loses."""
    if not found:
        return "no choices"
    right = sum(not row.chosen for row in found)
    mean = math.exp(sum(math.log(row.loss) for row in found) / len(found))
    worst = max(row.loss for row in found)
    times = f"{mean:.3f} times as long as the best (geometric mean), at most {worst:.2f}"
    return f"the cost model is right in {right} of {len(found)} choices; its code takes {times}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.choices", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="programs to run, or `corpus`; by default all")
    parser.add_argument("--arch", default="cpu", help="back end (cpu, vulkan, wgpu ...)")
    parser.add_argument("--all", action="store_true", help="measure choices that the model is sure of, too")
    chosen = parser.parse_args()
    named = [name for name in chosen.names if name != "corpus"]
    found: list[Row] = []
    with decided_at_once(chosen.all):
        for path in programs(named) if named or not chosen.names else []:
            with told(path.stem):
                found += run_program(path, chosen.arch)
        if len(named) < len(chosen.names) or not chosen.names:
            found += run_corpus(chosen.arch)
        sg.reset()
    print(table(found), "", summary(found), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

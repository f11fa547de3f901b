"""Builds a scene of Genesis without caches in this process, and shows what each kernel takes to compile: stages, threads, the time line.

Without a card, `--driver` names the library that stands in for the driver: its compiler takes no time then.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spirograd.base import spans
from spirograd.base.spans import Span
from spirograd.profiler import chrome
from validation.clients.genesis.scenes import SCALED
from validation.clients.genesis.starting import LAST, start, start_without_card

_HEAD = ("kernel", "begins", "trace", "cache", "passes", "emit", "LLVM", "longest", "waits", "driver", "longest", "waits", "load", "in all")
# Categories of spans of threads that release Python's lock.
_LIBRARIES = ("llvm", "driver")


@dataclass
class Build:
    """The spans of the compilation of a kernel, by category. Times are seconds."""

    name: str
    begin: float
    end: float
    spans: dict[str, list[Span]] = field(default_factory=dict)

    def add(self, span: Span) -> None:
        self.spans.setdefault(span.category, []).append(span)

    def total(self, category: str, name: str = "") -> float:
        """The sum of the spans of a category whose names begin with ``name``."""
        return sum([_length(span) for span in self.spans.get(category, ()) if span.name.startswith(name)])

    def longest(self, category: str) -> float:
        """The most that one thread spent."""
        threads: dict[int, float] = {}
        for span in self.spans.get(category, ()):
            threads[span.thread] = threads.get(span.thread, 0.0) + _length(span)
        return max(threads.values(), default=0.0)

    def waits(self, category: str) -> float:
        """The time from the first span to the end of the last one, in which the program waits."""
        found = self.spans.get(category, ())
        return (max([span.end for span in found]) - min([span.begin for span in found])) / 1e9 if found else 0.0

    def cells(self, begin: int) -> list[str]:
        """The row of the table, after the name."""
        emission = self.total("compile", "generate") - self.waits("llvm")
        libraries = [value for kind in _LIBRARIES for value in (self.total(kind), self.longest(kind), self.waits(kind))]
        python = [self.total("compile", "trace"), self.total("cache"), self.total("pass"), max(emission, 0.0)]
        return [f"{value:.2f}" for value in (self.begin - begin / 1e9, *python, *libraries, self.total("load"), self.end - self.begin)]


def _length(span: Span) -> float:
    return (span.end - span.begin) / 1e9


def builds(found: Sequence[Span]) -> list[Build]:
    """The compilations, in order. Each begins with the trace of its kernel, or with its compilation if it is a kernel of spirograd."""
    out: list[Build] = []
    compiled = True  # whether the last kernel of ``out`` was, so that another one follows
    for span in sorted(found, key=lambda span: (span.begin, -span.end)):
        verb, _, name = span.name.partition(" ")
        if span.category == "compile" and (verb == "trace" or (verb == "compile" and compiled)):
            out.append(Build(name, span.begin / 1e9, span.end / 1e9))
        compiled = verb == "compile" if span.category == "compile" and verb in ("trace", "compile") else compiled
        if out:
            out[-1].add(span)
            out[-1].end = max(out[-1].end, span.end / 1e9)
    return out


def report(found: Sequence[Span], begin: int, end: int, least: float) -> str:
    """Tables of the kernels, and of the spans that last ``least`` seconds. ``begin``, ``end``: of the build, in nanoseconds."""
    kernels = builds(found)
    lines = [f"| {' | '.join(_HEAD)} |", "|---|" + "---|" * (len(_HEAD) - 1)]
    lines += [f"| {' | '.join([kernel.name, *kernel.cells(begin)])} |" for kernel in sorted(kernels, key=lambda k: k.begin - k.end)]
    whole = (end - begin) / 1e9
    waits = {kind: sum([kernel.waits(kind) for kernel in kernels]) for kind in _LIBRARIES}
    work = {kind: sum([kernel.total(kind) for kernel in kernels]) for kind in _LIBRARIES}
    python = sum([kernel.end - kernel.begin for kernel in kernels]) - sum(waits.values())
    chain = max([sum([kernel.longest(kind) for kind in _LIBRARIES]) for kernel in kernels], default=0.0)
    without, processors = whole - sum(waits.values()), os.cpu_count() or 1
    lines += [
        "",
        f"The build took {whole:.1f} s: {python:.1f} s of Python for {len(kernels)} kernels, {waits['llvm']:.1f} s of waits for LLVM, "
        f"{waits['driver']:.1f} s of waits for the driver's compiler, {without - python:.1f} s elsewhere.",
        f"LLVM worked {work['llvm']:.1f} s and the driver's compiler {work['driver']:.1f} s, in threads on {processors} processors; the "
        f"longest part of a kernel that no other thread can share takes {chain:.1f} s.",
        f"If nothing waited for them, the build would take {max(without, chain, sum(work.values()) / processors):.1f} s.",
        "",
        "| begins | ends | thread | category | span |",
        "|---|---|---|---|---|",
    ]
    threads: dict[int, int] = {}
    for span in sorted(found, key=lambda span: span.begin):
        number = threads.setdefault(span.thread, len(threads))
        if _length(span) >= least:
            times = f"{(span.begin - begin) / 1e9:.2f} | {(span.end - begin) / 1e9:.2f}"
            lines.append(f"| {times} | {number} | {span.category} | {'. ' * span.depth}{span.name} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scene", choices=SCALED)
    parser.add_argument("--environments", type=int, default=4096)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--driver", type=Path, help="the library that stands in for the driver of CUDA")
    parser.add_argument("--least", type=float, default=0.1, help="omit shorter spans from the time line (default 0.1 s)")
    parser.add_argument("--trace", type=Path, help="write the time line to this file, for https://ui.perfetto.dev")
    options = parser.parse_args()
    found: list[Span] = []
    cache = tempfile.TemporaryDirectory()
    os.environ.update(SG_CACHE_DIR=cache.name, QD_OFFLINE_CACHE_FILE_PATH=cache.name)
    gs = start(options.backend, "32") if options.driver is None else start_without_card(options.driver, "90")
    import quadrants
    from genesis.engine.solvers.rigid.rigid_solver import RigidSolver

    def show(*_: object) -> None:
        """Show the report once the kernels of a step have been launched, when Genesis asks for errors."""
        if not any(kernel.name.startswith(LAST) for kernel in builds(found)):
            return
        if options.driver is None:
            quadrants.sync()
        end = time.perf_counter_ns()
        print(report(found, begin, end, options.least))
        if options.trace is not None:
            chrome.write(options.trace, begin, found, (), ())
        sys.stdout.flush()
        cache.cleanup()
        os._exit(0)  # without a card, the simulation cannot go on, nor can the session end in order

    RigidSolver.check_errno = show
    scene = SCALED[options.scene]
    world = gs.Scene(show_viewer=False, **scene.options(gs))
    entities = scene.add(gs, world)
    spans.listeners.append(found.append)
    begin = time.perf_counter_ns()
    world.build(n_envs=options.environments)
    scene.before_step(entities, 0)
    world.step()
    sys.exit(f"a step has ended without a launch of {LAST}")


if __name__ == "__main__":
    main()

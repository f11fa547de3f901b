"""Measure the programs of `benchmarks/programs`, and beside them those of another back end or of a peer with the same language.

    python -m benchmarks                                            # all, on the CPU
    python -m benchmarks --peer quadrants --peer-python PATH        # beside quadrants, which that Python has
    python -m benchmarks --peer quadrants nbody launches            # some; SG_PEER_PYTHON names the Python
    python -m benchmarks --arch cuda --against vulkan gradients     # two back ends
    python -m benchmarks --peer numba --peer-python PATH nbody histogram fusion   # beside numba

Each column is a process of its own, and each measurement of one is followed by one of the other, so that whatever else the machine does
meets both. A time is the best of all rounds, waits included; medians are in results.json. Goals and limits are of the CPU:
docs/performance.md explains each figure. Results go to the folder of --out, and to a file of this machine, which `python -m
benchmarks.history` draws.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import history, machine
from benchmarks.goals import Limits, limits
from benchmarks.measure import Column, Measured, measure, programs, start
from benchmarks.processes import Failed
from benchmarks.report import Bar, Table, write_chart

_IMAGES = ("results.png", "history.png")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs to run, and `starting`, the import and first kernels; by default all")
    parser.add_argument("--arch", default="cpu", help="back end (cpu, vulkan, wgpu ...)")
    parser.add_argument("--against", metavar="ARCH", help="another back end of spirograd to compare with")
    parser.add_argument("--peer", metavar="MODULE", help="a package with the same language, such as quadrants or taichi, or numba")
    parser.add_argument(
        "--peer-python", metavar="PATH", default=os.environ.get("SG_PEER_PYTHON"), help="the Python that has the peer (or SG_PEER_PYTHON)"
    )
    parser.add_argument("--rounds", type=int, default=7, help="how many times each case is measured (default: 7)")
    parser.add_argument("--cpu-time", action="store_true", help="print seconds of the processor, all threads: for machines that are busy")
    parser.add_argument("--format", choices=["text", "markdown", "json"], default="text", help="what is printed (default: text)")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"), help="folder for results.json, results.md and pictures")
    parser.add_argument("--history", type=Path, metavar="FILE", default=machine.history_file(), help="where runs are added: %(default)s")
    parser.add_argument("--no-history", action="store_true", help="add nothing to that file")
    chosen = parser.parse_args()
    if chosen.rounds < 1:
        parser.error("--rounds must be at least 1")
    programs(chosen.names)
    if chosen.peer and not chosen.peer_python:
        parser.error(f"--peer {chosen.peer}: name the Python that has it, with --peer-python PATH or in SG_PEER_PYTHON")
    return chosen


def open_columns(chosen: argparse.Namespace, scratch: str) -> list[Column]:
    """A process for each column. One that cannot start ends the run: a table without it would not be what was asked for."""
    columns = [Column(chosen.arch, sys.executable, "spirograd", chosen.arch, scratch)]
    if chosen.against:
        columns.append(Column(chosen.against, sys.executable, "spirograd", chosen.against, scratch))
    if chosen.peer:
        columns.append(Column(chosen.peer, chosen.peer_python, chosen.peer, chosen.arch, scratch))
    for column in columns:
        try:
            column.version = column.ask(about=True)
        except Failed as error:
            sys.exit(f"{error}\ndoes `{column.module}` run in {column.python}, on `{column.arch}`?")
    return columns


def run_all(columns: list[Column], chosen: argparse.Namespace, table: Table) -> Measured:
    """All programs, each printed when it is done."""
    paths = programs(chosen.names)
    everything, bar = Measured(), Bar(len(paths) + 1)
    for k, path in enumerate(paths):
        total = 1

        def step(left: int, k: int = k, path: Path = path) -> None:
            nonlocal total
            total = max(total, left + 1)
            bar.show(k + 1 - left / total, path.stem)

        bar.show(k, path.stem)
        found = measure(columns, path, chosen.rounds, step)
        table.limits = table.limits.again()
        bar.clear()
        table.add(found)
        _merge(everything, found)
    if not chosen.names or "starting" in chosen.names:
        bar.show(len(paths), "starting")
        found = start(columns, chosen.rounds)
        bar.clear()
        table.add(found)
        _merge(everything, found)
    return everything


def _merge(everything: Measured, found: Measured) -> None:
    everything.times |= found.times
    everything.tapes |= found.tapes
    everything.ratios |= found.ratios


def summary(columns: list[Column], found: Measured, limit: Limits, peak_memory: list[float | None]) -> dict[str, Any]:
    """A run as JSON: what results.json holds, and a line of the history."""
    return {
        "machine": {"processor": machine.processor(), "cores": machine.cores(), "system": machine.system()},
        "commit": machine.commit(),
        "date": machine.date(),
        "columns": {column.name: f"{column.module} {column.version} on {column.arch}" for column in columns},
        "seconds": {case: {c.name: t.as_json() for c, t in zip(columns, times)} for case, times in found.times.items()},
        "tape_bytes": {name: dict(zip((c.name for c in columns), values)) for name, values in found.tapes.items()},
        "peak_memory_bytes": dict(zip((c.name for c in columns), peak_memory)),
        "limits": {case: seconds for case in found.times if columns[0].arch == "cpu" and (seconds := limit.seconds(case))},
        "bandwidth": limit.bandwidth,
        "estimated_peak": limit.peak,
    }


def head(columns: list[Column], limit: Limits) -> str:
    """What the table is of."""
    where = f"{machine.processor()}, {machine.cores()} cores, {machine.system()}; {machine.date()}, {machine.commit()}"
    versions = "; ".join(f"{column.name}: {column.module} {column.version}" for column in columns)
    return f"{where}\n{versions}\n{limit.text()}"


def main() -> int:
    chosen = options()
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        columns = open_columns(chosen, scratch)
        for column in columns:
            stack.callback(column.close)
        said = sys.stderr if chosen.format == "json" else sys.stdout
        with contextlib.redirect_stdout(said):
            limit = limits()
            print(head(columns, limit), end="\n\n")
            of = "cpu" if chosen.cpu_time else "wall"
            table = Table([column.name for column in columns], limit, bool(chosen.peer), of, chosen.format == "markdown")
            found = run_all(columns, chosen, table)
            memory = [column.peak_memory() for column in columns]
            table.numbers("peak memory", ["failed" if peak is None else f"{peak / 2**20:,.0f} MiB" for peak in memory])
    run = summary(columns, found, table.limits, memory)
    write(run, chosen, table, found)
    if chosen.format == "json":
        print(json.dumps(run, indent=1))
    return 0


def write(run: dict[str, Any], chosen: argparse.Namespace, table: Table, found: Measured) -> None:
    """The files of a run, and its line in the history."""
    out: Path = chosen.out
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(run, indent=1) + "\n")
    if chosen.format == "markdown":
        (out / "results.md").write_text("\n".join(table.lines) + "\n")
    names = list(run["columns"])
    if len(names) > 1:
        write_chart(found.times, names, lambda case: run["limits"].get(case), out / _IMAGES[0])
    if not chosen.no_history:
        history.append(chosen.history, run)
        try:
            runs = history.read(chosen.history)
        except ValueError as error:
            print(error, file=sys.stderr)
            return
        if len(runs) > 1 and not chosen.names:
            history.draw(runs, out / _IMAGES[1])


if __name__ == "__main__":
    sys.exit(main())

"""Figures of earlier runs on this machine, a line of JSON for each run, and pictures of how they changed.

python -m benchmarks.history                     # of this machine, to out/benchmarks/history.png
python -m benchmarks.history --file F --cases "saxpy 16M" "launch: empty"
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from benchmarks.machine import history_file
from benchmarks.report import plotting

_ACROSS = 4  # pictures side by side


def append(path: Path, run: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(run) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """All runs, oldest first. Raises ValueError with the number of a line that is not one."""
    runs = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            runs.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not a line of JSON ({error.msg}); remove it") from None
    return runs


def draw(runs: list[dict[str, Any]], path: Path, cases: list[str] | None = None) -> bool:
    """A picture of each case: the best time of each column by run, and the limit of the machine as a line. False if there is none."""
    known = list(dict.fromkeys(case for run in runs for case in run["seconds"]))
    chosen = [case for case in known if not cases or case in cases]
    pyplot = plotting("the history") if chosen else None
    if pyplot is None:
        return False
    rows = math.ceil(len(chosen) / _ACROSS)
    figure, grid = pyplot.subplots(rows, _ACROSS, figsize=(4 * _ACROSS, 2.4 * rows), squeeze=False)
    for axes in grid.flat[len(chosen) :]:
        axes.axis("off")
    for axes, case in zip(grid.flat, chosen):
        _draw_case(axes, runs, case)
    handles = {label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(list(handles.values()), list(handles), loc="upper center", ncols=len(handles))
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.4 / (2.4 * rows)))
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    return True


def _draw_case(axes: Any, runs: list[dict[str, Any]], case: str) -> None:
    columns = list(dict.fromkeys(column for run in runs for column in run["seconds"].get(case, ())))
    for column in columns:
        points = [(k, run["seconds"].get(case, {}).get(column, {}).get("wall_best")) for k, run in enumerate(runs)]
        points = [(k, seconds * 1e3) for k, seconds in points if seconds]
        axes.plot([k for k, _ in points], [ms for _, ms in points], marker="o", markersize=3, label=column)
    limits = [(k, run["limits"][case] * 1e3) for k, run in enumerate(runs) if case in run["limits"]]
    if limits:
        style = {"color": "black", "linestyle": "--", "linewidth": 1}
        axes.plot([k for k, _ in limits], [ms for _, ms in limits], marker=".", label="limit of the machine", **style)
    axes.set_title(case, fontsize=9)
    axes.set_yscale("log")
    axes.set_xticks(range(len(runs)), [f"{run['date'][5:10]} {run['commit'][:7]}" for run in runs], rotation=90, fontsize=6)
    axes.set_ylabel("ms", fontsize=7)
    axes.tick_params(axis="y", which="both", labelsize=6)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.history", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", type=Path, default=history_file(), help="by default this machine's: %(default)s")
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="only these")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks/history.png"))
    options = parser.parse_args()
    if not options.file.exists():
        sys.exit(f"there is no {options.file}; `python -m benchmarks` makes it")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        runs = read(options.file)
    except ValueError as error:
        sys.exit(str(error))
    if not draw(runs, options.out, options.cases):
        return 1
    print(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

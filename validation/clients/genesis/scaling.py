"""Time steps of scenes of Genesis in 1 to 30,000 environments on spirograd, beside Quadrants, and the tasks of a step of both."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validation.clients.genesis.scaling_worker import PROFILED
from validation.clients.genesis.scenes import SCALED

_ROOT = Path(__file__).parents[3]
_SIZES = (1, 64, 1024, 4096, 30_000)
# A line of a task that spirograd prints: percent, milliseconds in all, count; and the end of the line. One that Quadrants prints.
_OURS = re.compile(r"^ *[\d.]+% +(?P<total>[\d.]+) +(?P<count>\d+) +(?P<rest>.*)$", re.MULTILINE)
_THEIRS = re.compile(r"^\[ *[\d.]+% +[\d.]+ s +(?P<count>\d+)x \| +[\d.]+ +(?P<mean>[\d.]+) +[\d.]+ ms\] (?P<name>\S+)$", re.MULTILINE)
_NAME = re.compile(r"(?P<name>[A-Za-z_]\w*)(?: \(\w+\))?(?: (?P<place>\S+:\d+))?$")
# The names that Quadrants gives to loops with a name: the kernel with its number before, the kind of a task behind.
_NAMED = re.compile(r"^.*?_c\d+_\d+_kernel_\d+_(?P<name>\w+)_(?:range_for|serial|struct_for|mesh_for|listgen|gc)$")


@dataclass(frozen=True)
class Task:
    """``time``: milliseconds a step; ``count``: runs a step; ``place``: file and line, "" if they are not known."""

    name: str
    time: float
    count: float
    place: str = ""


def our_tasks(printed: str) -> list[Task]:
    """The tasks of the table that spirograd prints after `PROFILED` steps."""
    found = []
    for line in _OURS.finditer(printed):
        named = _NAME.search(line["rest"])
        name, place = (named["name"], named["place"] or "") if named else (line["rest"], "")
        found.append(Task(name, float(line["total"]) / PROFILED, int(line["count"]) / PROFILED, place))
    return found


def their_tasks(printed: str) -> list[Task]:
    """The tasks of the table that Quadrants prints after `PROFILED` steps."""
    found = []
    for line in _THEIRS.finditer(printed):
        named, count = _NAMED.search(line["name"]), int(line["count"]) / PROFILED
        found.append(Task(named["name"] if named else line["name"], float(line["mean"]) * count, count))
    return found


def _merged(tasks: list[Task]) -> dict[str, Task]:
    """Tasks by name, those of one name added up."""
    merged: dict[str, Task] = {}
    for task in tasks:
        before = merged.get(task.name, Task(task.name, 0.0, 0.0))
        place = before.place or task.place
        merged[task.name] = dataclasses.replace(before, time=before.time + task.time, count=before.count + task.count, place=place)
    return merged


def task_table(ours: list[Task], theirs: list[Task], most: int = 30) -> str:
    """A table of the ``most`` longest tasks of both. Tasks of a loop without a name have names of their own on each side."""
    mine, other = _merged(ours), _merged(theirs)
    names = sorted({*mine, *other}, key=lambda name: -max(side[name].time for side in (mine, other) if name in side))
    lines = ["| task | spirograd | Quadrants | ratio | place |", "|---|---|---|---|---|"]
    for name in names[:most]:
        cells = [f"{side[name].time:.4f} ms, {side[name].count:g} runs" if name in side else "" for side in (mine, other)]
        ratio = f"{other[name].time / mine[name].time:.2f}" if name in mine and name in other and mine[name].time else ""
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {ratio} | {mine[name].place if name in mine else ''} |")
    totals = [sum(task.time for task in side) for side in (ours, theirs)]
    lines.append(f"| all | {totals[0]:.4f} ms | {totals[1]:.4f} ms | {totals[1] / totals[0] if totals[0] else 0:.2f} | |")
    return "\n".join(lines) + "\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m validation.clients.genesis.scaling",
        description=__doc__,
        epilog="Without --peer only spirograd runs. The packages av and gs_madrona may be missing. The exit status is 1 if a run fails.",
    )
    parser.add_argument("--python", default=sys.executable, help="a python with Genesis and spirograd's requirements (default: this one)")
    parser.add_argument("--peer", help="a python with Genesis and quadrants")
    parser.add_argument("--backend", nargs="+", default=["cuda"], help="back ends of spirograd; Quadrants runs on the first (default cuda)")
    parser.add_argument("--scenes", nargs="+", default=list(SCALED), choices=SCALED, metavar="SCENE", help=f"of {', '.join(SCALED)}")
    parser.add_argument(
        "--environments", nargs="+", type=int, default=list(_SIZES), metavar="N", help=f"default {' '.join(map(str, _SIZES))}"
    )
    parser.add_argument(
        "--profile", nargs="*", type=int, default=[30_000], metavar="N", help="sizes whose tasks are timed, too (default 30000)"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="in which steps are timed (default 3)")
    parser.add_argument("--limit", type=float, default=900, help="seconds for one run (default 900)")
    parser.add_argument("--out", type=Path, default=Path("out/genesis-scaling"), help="folder of scaling.md, tasks.md, and of each run")
    parser.add_argument(
        "--cache", type=Path, help="folder of the offline caches of both (default: a new one, so that first builds are cold)"
    )
    return parser.parse_args()


def _run(scene: str, count: int, backend: str, options: argparse.Namespace, peer: bool = False, profile: bool = False) -> dict[str, Any]:
    """What one process said; with ``profile`` also what the engine printed, as "profile"."""
    side = "quadrants" if peer else "spirograd"
    out = options.out / f"{scene}-{count}-{side}-{backend}{'-profile' if profile else ''}"
    out.mkdir(parents=True, exist_ok=True)
    for name in ("result.json", "profile.txt"):
        (out / name).unlink(missing_ok=True)
    start = [options.peer] if peer else [options.python, "-m", "spirograd.compat.quadrants"]
    command = [*start, "-m", "validation.clients.genesis.scaling_worker", scene, "--environments", str(count), "--backend", backend]
    command += ["--seconds", str(options.seconds), "--out", str(out.resolve()), *(["--profile"] if profile else [])]
    cache = (options.cache / side).resolve()
    cache.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
    environment = {**os.environ, "PYTHONPATH": path, "SG_CACHE_DIR": str(cache), "QD_OFFLINE_CACHE_FILE_PATH": str(cache)}
    with (out / "log.txt").open("w") as log:
        try:
            subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=options.limit, check=False)
        except subprocess.TimeoutExpired:
            return {"failed": f"not done in {options.limit:.0f} s"}
    if not (out / "result.json").exists():
        return {"failed": f"the process died; see {out / 'log.txt'}"}
    said: dict[str, Any] = json.loads((out / "result.json").read_text())
    return {**said, "profile": (out / "profile.txt").read_text()} if (out / "profile.txt").exists() else said


def _cell(said: dict[str, Any], count: int) -> str:
    if "failed" in said:
        return said["failed"][:120].replace("|", "/")
    return f"{said['step'] * 1e3:.3f} ms, {count / said['step'] / 1e6:.3g} M/s"


def _scaling(options: argparse.Namespace) -> bool:
    """Write the table of steps, one row after the other. Returns whether all went well."""
    columns = [(backend, False) for backend in options.backend] + ([(options.backend[0], True)] if options.peer else [])
    names = [f"{'Quadrants' if peer else 'spirograd'}, {backend}" for backend, peer in columns]
    table = "A step, and millions of steps of environments a second; how many times longer Quadrants takes than spirograd.\n\n"
    table += f"| scene | environments | {' | '.join(names)} | ratio |\n|---|---|{'---|' * len(names)}---|\n"
    well = True
    for scene in options.scenes:
        for count in options.environments:
            said = [_run(scene, count, backend, options, peer) for backend, peer in columns]
            steps = [one.get("step") for one in said]
            ratio = f"{steps[-1] / steps[0]:.2f}" if options.peer and steps[0] and steps[-1] else ""
            row = f"| {scene} | {count:,} | {' | '.join([_cell(one, count) for one in said])} | {ratio} |"
            print(row, flush=True)
            table += row + "\n"
            (options.out / "scaling.md").write_text(table)  # now, because the run may be cut
            well = well and all("failed" not in one for one in said)
    return well


def _tasks(options: argparse.Namespace) -> bool:
    """Write the tables of tasks. Returns whether all went well."""
    text, well = "", True
    for scene in options.scenes:
        for count in options.profile:
            ours = _run(scene, count, options.backend[0], options, profile=True)
            theirs = _run(scene, count, options.backend[0], options, peer=True, profile=True) if options.peer else {}
            text += f"## {scene}, {count:,} environments, {options.backend[0]}\n\n"
            failed = [said["failed"] for said in (ours, theirs) if "failed" in said]
            well = well and not failed
            text += "".join([f"failed: {why}\n" for why in failed])
            text += task_table(our_tasks(ours.get("profile", "")), their_tasks(theirs.get("profile", ""))) + "\n"
            (options.out / "tasks.md").write_text(text)
    print(text)
    return well


def main() -> int:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        options.cache = options.cache or Path(folder)
        well = [_tasks(options), _scaling(options)]  # the tasks first: they say most if the run is cut
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())

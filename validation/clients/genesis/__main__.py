"""Run scenes of Genesis on Quadrants and on spirograd, compare where their bodies and particles end, and time building and stepping."""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from validation.clients.genesis.scenes import SCENES

_ROOT = Path(__file__).parents[3]
_BELOW = "## Results\n"  # of this heading of a page is the table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m validation.clients.genesis",
        description=__doc__,
        epilog="Environments: `pip install genesis-world==1.4.5 torch` for Quadrants; for spirograd the same without the package "
        "quadrants, with numpy, llvmlite and what else spirograd needs. The exit status is 1 if a scene fails or differs.",
    )
    parser.add_argument("--python", required=True, help="a python with Genesis, which need not have quadrants")
    parser.add_argument("--peer", help="a python with Genesis and quadrants 1.3.3; without it nothing is compared")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="scenes whose name fits (may be repeated)")
    parser.add_argument("--backend", default="cpu", help="back end of Genesis: cpu, cuda, vulkan ... (default cpu)")
    parser.add_argument("--precision", choices=("32", "64"), default="32", help="of floats (default 32)")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="largest difference that counts as equal (default 1e-4)")
    parser.add_argument("--seconds", type=float, default=600, help="limit of one run (default 600)")
    parser.add_argument("--out", type=Path, default=Path("out/genesis"), help="folder of table.md and of what each run printed")
    parser.add_argument("--page", type=Path, help="write the table into this page, too, like docs/how-to/genesis.md")
    parser.add_argument("--list", action="store_true", help="print the names of the scenes and end")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def _run(scene: str, side: str, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What one run said, and the arrays that it left."""
    out = options.out / scene.replace(" ", "_") / side
    out.mkdir(parents=True, exist_ok=True)
    python = options.peer if side == "quadrants" else options.python
    ours = ["-m", "spirograd.compat.quadrants"] if side == "spirograd" else []
    command = [python, *ours, "-m", "validation.clients.genesis.worker", "--backend", options.backend, "--precision", options.precision]
    (out / "result.json").unlink(missing_ok=True)
    with (out / "log.txt").open("w") as log:
        try:
            subprocess.run(
                [*command, "--out", str(out.resolve()), scene],
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=options.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"not done in {options.seconds:.0f} s"}, {}
    if not (out / "result.json").exists():
        return {"failed": f"the process died; see {out / 'log.txt'}"}, {}
    with np.load(out / "results.npz") as stored:
        return json.loads((out / "result.json").read_text()), {name: stored[name] for name in stored.files}


def _row(scene: str, options: argparse.Namespace) -> tuple[list[str], bool]:
    """The cells of a line of the table, and whether all is well."""
    said, found = _run(scene, "spirograd", options)
    if "failed" in said:
        return [said["failed"][:200].replace("|", "/"), "", "", ""], False
    if not options.peer:
        return ["runs", "", f"{said['build']:.1f} s", _step(said)], True
    peer, expected = _run(scene, "quadrants", options)
    if "failed" in peer:
        return [f"runs; Quadrants: {peer['failed'][:200].replace('|', '/')}", "", f"{said['build']:.1f} s", _step(said)], True
    apart = max([_apart(found[name], array) for name, array in expected.items()], default=0.0)
    return [
        "runs",
        f"{apart:.0e}",
        f"{said['build']:.1f} s, {peer['build']:.1f} s",
        f"{_step(said)}, {_step(peer)}: {peer['step'] / said['step']:.1f} times as fast",
    ], apart <= options.tolerance


def _apart(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference; infinite if anything is not finite."""
    difference = np.abs(found - expected)
    return float(difference.max(initial=0.0)) if np.isfinite(difference).all() else float("inf")


def _step(said: dict[str, Any]) -> str:
    """The median of the times of steps."""
    return f"{said['step'] * 1e3:.2f} ms"


def _table(rows: dict[str, list[str]], options: argparse.Namespace) -> str:
    head = (
        f"Rows were taken on the days that they name, on {os.cpu_count()} cores of a {platform.machine()} machine, back end "
        f"`{options.backend}`, in {options.precision} bits where the scene needs no others.\n\n"
        "| scene | spirograd | apart | build: spirograd, Quadrants | step: spirograd, Quadrants | taken |\n|---|---|---|---|---|---|\n"
    )
    return head + "".join(f"| {' | '.join([name, *cells])} |\n" for name, cells in rows.items())


def main() -> int:
    options = _options()
    names = [name for name in SCENES if not options.only or any(fnmatch.fnmatch(name, pattern) for pattern in options.only)]
    if options.list or not names:
        print("\n".join(names or ["no scene fits; there are:", *SCENES]))
        return 0 if names else 2
    kept = options.out / "rows.json"
    rows: dict[str, list[str]] = json.loads(kept.read_text()) if kept.exists() else {}
    well = True
    for name in names:
        cells, good = _row(name, options)
        print(f"| {' | '.join([name, *cells])} |", flush=True)
        rows[name] = [*cells, f"{datetime.date.today():%d %B %Y}"]
        kept.write_text(json.dumps(rows, indent=0))
        well = well and good
    table = _table({name: rows[name] for name in SCENES if name in rows}, options)
    (options.out / "table.md").write_text(table)
    if options.page:
        text = options.page.read_text()
        options.page.write_text(text[: text.index(_BELOW) + len(_BELOW)] + "\n" + table)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())

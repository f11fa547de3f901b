"""Run published packages that are made for Quadrants on Quadrants and on spirograd, compare results, and time them.

Install them into two folders, for the two Pythons: `pip install --no-deps --target FOLDER xuvdb immich-memories`, with what they import.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from validation.family.running import distance

DRIVERS = {"xuvdb: sparse voxels": "voxels", "immich-memories: titles of films": "titles"}
_ROOT = Path(__file__).parents[3]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m validation.clients.packages", description=__doc__)
    parser.add_argument("--peer", required=True, help="a python that has quadrants 1.4.0")
    parser.add_argument("--peer-packages", type=Path, required=True, help="the folder of the packages for that python")
    parser.add_argument("--packages", type=Path, required=True, help="the folder of the packages for this python")
    parser.add_argument("--seconds", type=float, default=900, help="limit of one run (default 900)")
    options = parser.parse_args()
    print("| package | results | first calls | later calls |\n|---|---|---|---|")
    for name, driver in DRIVERS.items():
        script = str(Path(__file__).parent / f"{driver}.py")
        theirs = _run([options.peer, script], options.peer_packages, options.seconds)
        ours = _run([sys.executable, "-m", "spirograd.compat.quadrants", script], options.packages, options.seconds)
        print(f"| {name} | {_row(theirs, ours)} |", flush=True)
    return 0


def _run(command: list[str], packages: Path, seconds: float) -> dict[str, np.ndarray] | str:
    """Return what the driver recorded, or the last line of what it printed if it failed."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "results.npz"
        # A home of its own: caches of compiled kernels are there.
        env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(_ROOT), str(packages))), "HOME": scratch}
        done = subprocess.run(
            [*command, str(out)], env=env, cwd=scratch, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
        if not out.exists():
            return (done.stderr.strip().splitlines() or ["nothing printed"])[-1]
        with np.load(out) as stored:
            return dict(stored)


def _row(theirs: dict[str, np.ndarray] | str, ours: dict[str, np.ndarray] | str) -> str:
    if isinstance(theirs, str) or isinstance(ours, str):
        return f"Quadrants: {theirs if isinstance(theirs, str) else 'runs'}; spirograd: {ours if isinstance(ours, str) else 'runs'} | |"
    largest = max(distance(theirs[name], ours[name]) for name in theirs.keys() - {"first", "later"})
    first, later = (f"{theirs[what]:.3g} / {ours[what]:.3g} s ({theirs[what] / ours[what]:.2f})" for what in ("first", "later"))
    return f"{len(theirs) - 2} equal to {largest:.0e} | {first} | {later}"


if __name__ == "__main__":
    sys.exit(main())

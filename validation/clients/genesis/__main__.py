"""Run scenes of Genesis on Quadrants and on spirograd, compare where their bodies and particles end, and time building and stepping."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from validation.clients.genesis.scenes import SCENES

_ROOT = Path(__file__).parents[3]


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
    parser.add_argument("--list", action="store_true", help="print the names of the scenes and end")
    return parser.parse_args()


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


def _row(scene: str, options: argparse.Namespace) -> tuple[str, bool]:
    """A line of the table, and whether all is well."""
    said, found = _run(scene, "spirograd", options)
    if "failed" in said:
        return f"| {scene} | {said['failed'][:200].replace('|', '/')} | | | |", False
    ours = f"{said['build']:.1f} s", f"{said['step'] * 1e3:.2f} ms"
    if not options.peer:
        return f"| {scene} | runs | | {ours[0]} | {ours[1]} |", True
    peer, expected = _run(scene, "quadrants", options)
    if "failed" in peer:
        return f"| {scene} | runs; Quadrants: {peer['failed'][:200]} | | {ours[0]} | {ours[1]} |", True
    apart = max((float(np.abs(found[name] - array).max()) for name, array in expected.items()), default=0.0)
    build, step = f"{ours[0]}, {peer['build']:.1f} s", f"{ours[1]}, {peer['step'] * 1e3:.2f} ms"
    return f"| {scene} | runs | {apart:.0e} | {build} | {step} |", apart <= options.tolerance


def main() -> int:
    options = _options()
    names = [name for name in SCENES if not options.only or any(fnmatch.fnmatch(name, pattern) for pattern in options.only)]
    if options.list or not names:
        print("\n".join(names or ["no scene fits; there are:", *SCENES]))
        return 0 if names else 2
    rows = ["| scene | spirograd | apart | build: spirograd, Quadrants | step: spirograd, Quadrants |", "|---|---|---|---|---|"]
    well = True
    for name in names:
        row, good = _row(name, options)
        print(row, flush=True)
        rows.append(row)
        well = well and good
    (options.out / "table.md").write_text("\n".join(rows) + "\n")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())

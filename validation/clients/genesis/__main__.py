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
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from validation.clients.genesis.scenes import SCENES

_ROOT = Path(__file__).parents[3]
_OTHER = "beside"  # the side that is spirograd on another back end
_BELOW = "## Results\n"  # of this heading of a page is the table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m validation.clients.genesis",
        description=__doc__,
        epilog="Environments: `pip install genesis-world==1.4.5 torch` for Quadrants; for spirograd the same without the package "
        "quadrants, with numpy, llvmlite and what else spirograd needs. The exit status is 1 if a scene fails or differs.",
    )
    parser.add_argument("--python", required=True, help="a python with Genesis, which need not have quadrants")
    parser.add_argument("--peer", help="a python with Genesis and quadrants 1.3.3; without it and --beside nothing is compared")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="scenes whose name fits (may be repeated)")
    parser.add_argument("--backend", default="cpu", help="back end of Genesis, like cpu and cuda, or of spirograd, vulkan (default cpu)")
    parser.add_argument("--beside", metavar="BACKEND", help="without --peer: compare with spirograd itself on this back end, like cpu")
    parser.add_argument("--jobs", type=int, default=1, help="scenes at a time; they take turns where steps are timed (default 1)")
    parser.add_argument("--timed", type=float, default=3.0, help="seconds in which steps are timed (default 3)")
    parser.add_argument("--precision", choices=("32", "64"), default="32", help="of floats (default 32)")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="largest difference that counts as equal (default 1e-4)")
    parser.add_argument("--seconds", type=float, default=600, help="limit of one run (default 600)")
    parser.add_argument("--out", type=Path, default=Path("out/genesis"), help="folder of table.md and of what each run printed")
    parser.add_argument("--keep", action="store_true", help="do not run Quadrants again where it left results in --out")
    parser.add_argument("--cache", type=Path, help="folder of offline caches that all scenes share; first builds are not timed then")
    parser.add_argument("--page", type=Path, help="write the table into this page, too, like docs/how-to/genesis.md")
    parser.add_argument("--list", action="store_true", help="print the names of the scenes and end")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def _run(scene: str, side: str, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What two runs said, of which the second one finds the kernels of the first in the offline cache, and the arrays that it left."""
    if options.keep and side == "quadrants" and (earlier := _left(scene, side, options)) and "step" in earlier[0]:
        return earlier
    if options.cache:
        (options.cache / side).mkdir(parents=True, exist_ok=True)
        return _run_once(scene, side, options, str((options.cache / side).resolve()))
    with tempfile.TemporaryDirectory() as cache:
        cold, _ = _run_once(scene, side, options, cache, "--build-only")
        if "failed" in cold:
            return cold, {}
        said, found = _run_once(scene, side, options, cache)
        said = {**said, "cold": cold["build"]}
        (_folder(scene, side, options) / "result.json").write_text(json.dumps(said))
        return said, found


def _folder(scene: str, side: str, options: argparse.Namespace) -> Path:
    """Where a run leaves what it says, prints and finds."""
    return options.out / scene.replace(" ", "_") / side


def _left(scene: str, side: str, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """What the last run said and the arrays that it left, if there was one."""
    folder = _folder(scene, side, options)
    if not (folder / "result.json").exists():
        return None
    with np.load(folder / "results.npz") as stored:
        return json.loads((folder / "result.json").read_text()), {name: stored[name] for name in stored.files}


def _run_once(
    scene: str, side: str, options: argparse.Namespace, cache: str, *arguments: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What one run said, and the arrays that it left. ``cache``: the folder of the offline cache."""
    out = _folder(scene, side, options)
    out.mkdir(parents=True, exist_ok=True)
    python = options.peer if side == "quadrants" else options.python
    ours = ["-m", "spirograd.compat.quadrants"] if side != "quadrants" else []
    backend = options.beside if side == _OTHER else options.backend
    command = [python, *ours, "-m", "validation.clients.genesis.worker", "--backend", backend, "--precision", options.precision]
    command += ["--timed", str(options.timed), "--turn", str((options.out / f"turn-{backend}").resolve())]
    path = os.pathsep.join([str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
    (out / "result.json").unlink(missing_ok=True)
    with (out / "log.txt").open("w") as log:
        try:
            subprocess.run(
                [*command, *arguments, "--out", str(out.resolve()), scene],
                env={**os.environ, "PYTHONPATH": path, "SG_CACHE_DIR": cache, "QD_OFFLINE_CACHE_FILE_PATH": cache},
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=options.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"not done in {options.seconds:.0f} s"}, {}
    return _left(scene, side, options) or ({"failed": f"the process died; see {out / 'log.txt'}"}, {})


def _row(scene: str, options: argparse.Namespace) -> tuple[list[str], bool]:
    """The cells of a line of the table, and whether all is well."""
    other = "quadrants" if options.peer else _OTHER if options.beside else ""
    with ThreadPoolExecutor(2 if options.jobs > 1 else 1) as pool:  # one at a time, the second one waits for the first one's end
        runs = [pool.submit(_run, scene, side, options) for side in ("spirograd", other) if side]
        (said, found), (peer, expected) = [run.result() for run in runs] + [({}, {})] * (2 - len(runs))
    if "failed" in said:
        return [said["failed"][:200].replace("|", "/"), "", "", "", ""], False
    if "step" not in peer:
        why = f"runs; {other}: {peer['failed'][:200].replace('|', '/')}" if peer else "runs"
        return [why, "", *[_beside(said.get(key), None) for key in ("cold", "build", "step")]], True
    apart = max([_apart(found[name], array) for name, array in expected.items()], default=0.0)
    times = [_beside(said.get(key), peer.get(key)) for key in ("cold", "build", "step")]
    return ["runs", f"{apart:.0e}", *times], apart <= options.tolerance


def _beside(ours: float | None, theirs: float | None) -> str:
    """Two times in seconds and their ratio, as far as they are known."""
    texts = [f"{time:.1f} s" if time >= 1 else f"{time * 1e3:#.3g} ms" for time in (ours, theirs) if time is not None]
    return ", ".join(texts) + (f": {theirs / ours:.1f}" if ours and theirs else "")


def _apart(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference; infinite if anything is not finite."""
    difference = np.abs(found - expected)
    return float(difference.max(initial=0.0)) if np.isfinite(difference).all() else float("inf")


def _table(rows: dict[str, list[str]], options: argparse.Namespace) -> str:
    other = f"spirograd on `{options.beside}`" if options.beside and not options.peer else "Quadrants"
    clock = "processor time" if options.backend == "cpu" else "time by the clock (processor time on the CPU)"
    head = (
        f"Rows were taken on the days that they name, on {os.cpu_count()} cores of a {platform.machine()} machine, back end "
        f"`{options.backend}`, in {options.precision} bits where the scene needs no others.\n\nTimes are those of spirograd, of {other}, "
        "and how many times the latter is longer: building a scene and its first step, with an empty offline cache and with what that left "
        f"in it; the {clock} of a step, or of a gradient, the median.\n\n"
        "| scene | spirograd | apart | first build | build again | step | taken |\n|---|---|---|---|---|---|---|\n"
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
    pool = ThreadPoolExecutor(options.jobs)
    running = {pool.submit(_row, name, options): name for name in names}
    for done in as_completed(running):
        name, (cells, good) = running[done], done.result()
        print(f"| {' | '.join([name, *cells])} |", flush=True)
        rows[name] = [*cells, f"{datetime.date.today():%d %B %Y}"]
        kept.write_text(json.dumps(rows, indent=0))
        table = _table({name: rows[name] for name in SCENES if name in rows}, options)
        (options.out / "table.md").write_text(table)  # now, because the run may be cut
        well = well and good
    if options.page:
        text = options.page.read_text()
        options.page.write_text(text[: text.index(_BELOW) + len(_BELOW)] + "\n" + table)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())

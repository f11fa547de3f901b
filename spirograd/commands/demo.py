"""Simulate a splash of 8,192 particles (MLS-MPM) on the best back end found, check that all back ends agree, draw a picture.

Written into the output folder: splash.png, and under dumps/ every stage of the kernel for each back end."""

from __future__ import annotations

import argparse
import importlib
import time
from pathlib import Path

import spirograd as sg
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.demo import compare
from spirograd.demo.mpm import Fluid
from spirograd.lang.context import session
from spirograd.runtime import loader

HELP = "simulate a fluid, compare all back ends, draw a picture"

_NEEDS = ("rich", "matplotlib")
_PANELS = 4
# The contents of a dump, by back end; for others see `_DUMPED_BY_LLVM`.
_DUMPED = {
    "cuda": "PTX, LLVM IR and IR",
    "amdgpu": "code objects, assembly, LLVM IR and IR",
    **dict.fromkeys(("vulkan", "wgpu", "metal"), "shaders (.spv, .spvasm) and IR"),
}
_DUMPED_BY_LLVM = "LLVM IR, assembly and IR"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add back end, steps, particles and output folder."""
    choices = [arch for arch in loader.DEVICES if arch != "interpreter"]
    parser.add_argument("--arch", choices=choices, help="back end for the simulation (default: the fastest one)")
    parser.add_argument("--steps", type=_positive, default=2400, help="steps of the simulation (default: %(default)s)")
    parser.add_argument("--particles", type=_positive, default=8192, help="particles (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("spirograd_demo"), metavar="DIR", help="output folder (default: %(default)s)")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def run(args: argparse.Namespace) -> int:
    """Run the demo. Exit status 0; 1 if back ends disagree, a package is missing, or ``--arch`` cannot be used."""
    missing = [name for name in _NEEDS if not _has(name)]
    if missing:
        print(f'The demo needs {" and ".join(missing)}: pip install "spirograd[demo]"')
        return 1
    console = importlib.import_module("rich.console").Console()
    present: list[str] = sorted(sg.available_archs(), key=lambda arch: arch != "cpu")
    if args.arch is not None and args.arch not in present:
        raise SpirogradRuntimeError(f"the back end {args.arch} cannot be used here; `spirograd doctor` says why")
    with console.status(f"Comparing {', '.join(present)} ..."):
        runs = compare.compare(present, args.particles)
    arch = args.arch or compare.best(runs)
    for run in runs:
        console.print(f"Found {run.arch}: {run.device.name}", highlight=False)
    console.print(f"Simulating {args.particles:,} particles, {args.steps:,} steps, on [bold]{arch}[/bold]")
    snapshots, seconds = _simulate(arch, args.particles, args.steps, console)
    picture = args.out / "splash.png"
    draw = importlib.import_module("spirograd.demo.picture").draw
    draw(snapshots, picture, f"MLS-MPM, {args.particles:,} particles, {arch}: {1e3 * seconds / args.steps:.2f} ms per step")
    folders = compare.dump([name for name in present if name != "interpreter"], args.out / "dumps")
    sg.reset()
    console.print(_times(runs, arch, args, seconds))
    console.print(f"Picture: {picture}")
    for folder in folders:
        console.print(f"Dumps: {folder}: {_DUMPED.get(folder.name, _DUMPED_BY_LLVM)}")
    wrong = [run.arch for run in runs if not run.agrees]
    if wrong:
        console.print(f"[bold red]{', '.join(wrong)} disagrees[/bold red] by more than {compare.TOLERANCE:g} box lengths")
        return 1
    if len(runs) > 1:
        console.print(f"All back ends present agree to {compare.TOLERANCE:g} box lengths.")
    return 0


def _has(package: str) -> bool:
    try:
        importlib.import_module(package)
    except ImportError:
        return False
    return True


def _simulate(arch: str, particles: int, steps: int, console: object) -> tuple[list[tuple[float, object, object]], float]:
    """Run the simulation. Return snapshots (seconds, positions, velocities) at the start and after each part of the steps, and the seconds
    that the steps took."""
    progress = importlib.import_module("rich.progress")
    sg.init(arch=arch, log_level="error")
    fluid = Fluid(particles)
    fluid.reset()
    snapshots: list[tuple[float, object, object]] = [(0.0, fluid.positions(), fluid.velocity.to_numpy())]
    marks = sorted({max(1, round(steps * (part + 1) / (_PANELS - 1))) for part in range(_PANELS - 1)})
    taken = 0.0
    columns = (
        *progress.Progress.get_default_columns(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[rate]}"),
    )
    with progress.Progress(*columns, console=console) as bar:
        task = bar.add_task("steps", total=steps, rate="")
        done = 0
        while done < steps:
            # up to 20 steps between readings of the clock: waiting for a GPU after each one would slow it down
            count = min(20, next(mark for mark in marks if mark > done) - done)
            begin = time.perf_counter()
            for _ in range(count):
                fluid.step()
            session().sync()
            taken += time.perf_counter() - begin
            done += count
            bar.update(task, completed=done, rate=f"{done / taken:,.0f} steps/s")
            if done in marks:
                snapshots.append((done * fluid.dt, fluid.positions(), fluid.velocity.to_numpy()))
    return snapshots, taken


def _times(runs: list[compare.Run], arch: str, args: argparse.Namespace, seconds: float) -> object:
    caption = "first: one step, compiling included; difference: of positions from the CPU's, in box lengths"
    out = importlib.import_module("rich.table").Table(title="Times", caption=caption)
    for name in ("back end", "particles", "steps", "first (s)", "ms/step", "difference"):
        out.add_column(name, justify="left" if name == "back end" else "right", no_wrap=True)
    for run in runs:
        cells = (run.arch, f"{run.particles:,}", f"{run.steps:,}", f"{run.first_seconds:.2f}")
        out.add_row(*cells, f"{run.step_milliseconds:.2f}", f"{run.difference:.1e}")
    out.add_section()
    out.add_row(f"{arch}, simulation", f"{args.particles:,}", f"{args.steps:,}", "", f"{1e3 * seconds / args.steps:.2f}", "")
    return out

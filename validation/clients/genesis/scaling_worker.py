"""Steps a scene in many environments in this process; writes what a step takes, or the table of its tasks that the engine prints."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from validation.clients.genesis.scenes import SCALED
from validation.clients.genesis.starting import start

# Steps before timing, which compile kernels, try variants of them and record launches; steps that are profiled.
_WARM_UP, PROFILED = 40, 20


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scene", choices=SCALED)
    parser.add_argument("--environments", type=int, required=True)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--seconds", type=float, default=3.0, help="in which steps are timed")
    parser.add_argument("--profile", action="store_true", help="print the times of tasks instead")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    return parser.parse_args()


def _timed(step: Callable[[], object], sync: Callable[[], object], seconds: float) -> list[float]:
    """What a step takes by the clock, without waits between steps, in several runs of as many steps as last ``seconds`` / 5."""
    sync()
    begin = time.perf_counter()
    step()
    sync()
    count = max(1, int(seconds / 5 / max(time.perf_counter() - begin, 1e-6)))
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(count):
            step()
        sync()
        times.append((time.perf_counter() - begin) / count)
    return times


def _run(options: argparse.Namespace) -> dict[str, Any]:
    gs = start(options.backend, "32", options.profile)
    import quadrants

    scene = SCALED[options.scene]
    world = gs.Scene(show_viewer=False, **scene.options(gs))
    entities = scene.add(gs, world)
    begin = time.perf_counter()
    world.build(n_envs=options.environments)
    scene.before_step(entities, 0)
    world.step()
    quadrants.sync()
    said: dict[str, Any] = {"build": time.perf_counter() - begin}
    for _ in range(_WARM_UP):
        world.step()
    if not options.profile:
        times = _timed(world.step, quadrants.sync, options.seconds)
        return {**said, "step": statistics.median(times), "least": min(times)}
    quadrants.sync()
    quadrants.profiler.clear_kernel_profiler_info()
    for _ in range(PROFILED):
        world.step()
    quadrants.sync()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        quadrants.profiler.print_kernel_profiler_info()
    (options.out / "profile.txt").write_text(printed.getvalue())
    return said


def main() -> None:
    options = _arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        said = _run(options)
    except Exception as error:
        traceback.print_exc()
        said = {"failed": f"{type(error).__name__}: {' / '.join(str(error).splitlines())}"[:400]}
    (options.out / "result.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main()

"""Runs one scene in this process, and writes times and results."""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from validation.clients.genesis.scenes import SCENES, Scene
from validation.clients.genesis.starting import start

# Steps before timing, which compile kernels, try variants of them and record launches; the least number of timed steps.
_WARM_UP, _LEAST = 25, 5


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-only", action="store_true", help="build the scene, take one step, and end")
    parser.add_argument("scene", choices=SCENES)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--precision", default="32")
    parser.add_argument("--timed", type=float, default=3.0, help="seconds")
    parser.add_argument("--turn", type=Path, help="a file that is locked while steps are timed, so that scenes take turns")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def _timed(step: Callable[[], Any], seconds: float, least: int, backend: str) -> list[float]:
    """What each step takes: on the CPU processor time, which other processes change little, else by the clock until the device is done."""
    clock, sync = time.process_time, lambda: None
    if backend != "cpu":
        import quadrants

        clock, sync = time.perf_counter, quadrants.sync
    sync()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        begin = clock()
        step()
        sync()
        times.append(clock() - begin)
    return times


@contextlib.contextmanager
def _turn(path: Path | None) -> Iterator[None]:
    """Waits until no other worker with this file times steps."""
    if path is None:
        yield
        return
    import fcntl

    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(scene: Scene, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    gs = start(options.backend, scene.precision or options.precision)
    world = gs.Scene(show_viewer=False, **scene.options(gs))
    entities = scene.add(gs, world)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    world.build(**({"n_envs": scene.environments} if scene.environments else {}))
    differentiate = scene.differentiate
    if differentiate is not None:
        looked_at = differentiate(gs, world, entities)
    else:
        scene.before_step(entities, 0)
        world.step()
    said = {"build": time.perf_counter() - begin, "build_cpu": time.process_time() - begin_cpu}
    if options.build_only:
        return said, {}
    step: Callable[[], Any] = world.step
    if differentiate is not None:
        found = _arrays(looked_at)
        step = partial(differentiate, gs, world, entities)
    else:
        for k in range(1, scene.steps):
            scene.before_step(entities, k)
            world.step()
        found = _arrays(scene.look(entities))
        for _ in range(scene.steps, _WARM_UP):
            step()
    with _turn(options.turn):
        steps = _timed(step, options.timed, _LEAST, options.backend)
    return {**said, "step": statistics.median(steps), "least": min(steps)}, found


def _arrays(found: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: array.detach().cpu().numpy().copy() if hasattr(array, "cpu") else np.array(array) for name, array in found.items()}


def main() -> None:
    options = _arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        said, found = _run(SCENES[options.scene], options)
    except Exception as error:
        traceback.print_exc()
        said, found = {"failed": f"{type(error).__name__}: {' / '.join(str(error).splitlines())}"[:400]}, {}
    np.savez(options.out / "results.npz", **found)
    (options.out / "result.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main()

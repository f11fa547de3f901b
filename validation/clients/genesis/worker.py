"""Runs one scene in this process, and writes times and results."""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from validation.clients.genesis.scenes import SCENES, Scene

_WARM_UP = 3  # steps that compile kernels, or tune them, and are not timed


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scene", choices=SCENES)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--precision", default="32")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def _run(scene: Scene, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    import genesis as gs

    gs.init(backend=getattr(gs, options.backend), precision=options.precision, logging_level="warning", seed=0)
    world = gs.Scene(show_viewer=False, **scene.options(gs))
    entities = scene.add(gs, world)
    begin = time.perf_counter()
    world.build(**({"n_envs": scene.environments} if scene.environments else {}))
    build = time.perf_counter() - begin
    steps = []
    for k in range(scene.steps):
        scene.before_step(entities, k)
        begin = time.perf_counter()
        world.step()
        steps.append(time.perf_counter() - begin)
    found = {name: np.asarray(array.cpu() if hasattr(array, "cpu") else array) for name, array in scene.look(entities).items()}
    return {"build": build, "first": steps[0], "step": statistics.median(steps[_WARM_UP:])}, found


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

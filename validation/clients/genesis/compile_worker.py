"""Compiles the kernels of a step of a scene for CUDA without a card: on a stand-in for the driver, which runs none of them."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from validation.clients.genesis.scenes import SCALED
from validation.clients.genesis.starting import LAST, start_without_card


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scene", choices=SCALED)
    parser.add_argument("--environments", type=int, default=64)
    parser.add_argument("--architecture", default="90", help="the number of an architecture (default 90)")
    parser.add_argument("--driver", type=Path, required=True, help="the library that stands in for the driver")
    parser.add_argument("--out", type=Path, required=True, help="a folder, which gets the stages of each kernel")
    return parser.parse_args()


def main() -> None:
    options = _arguments()
    os.environ.update(SG_OFFLINE_CACHE="0", SG_DUMP=str(options.out))
    gs = start_without_card(options.driver, options.architecture)
    from genesis.engine.solvers.rigid.rigid_solver import RigidSolver

    def end_if_complete(*_: object) -> None:
        if any(options.out.glob(f"{LAST}-*")):
            sys.stdout.flush()
            os._exit(0)  # The simulation cannot go on without results, nor can the session end in order.

    RigidSolver.check_errno = end_if_complete
    scene = SCALED[options.scene]
    world = gs.Scene(show_viewer=False, **scene.options(gs))
    entities = scene.add(gs, world)
    world.build(n_envs=options.environments)
    scene.before_step(entities, 0)
    world.step()
    sys.exit("a step has ended, and its last kernel was not found")


if __name__ == "__main__":
    main()

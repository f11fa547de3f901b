"""Compiles the kernels of a step of a scene for CUDA without a card: on a stand-in for the driver, which runs none of them."""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from pathlib import Path

from validation.clients.genesis.scenes import SCALED
from validation.clients.genesis.starting import stand_in

# Genesis asks for the error number of a step after it has launched all kernels of the step. The last of them has this name.
_LAST = "kernel_substep_post"


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
    library = ctypes.CDLL(str(options.driver))
    library.standin_machine.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
    library.standin_reset()
    library.standin_machine(1, options.architecture.encode(), 8 << 30)
    # The session is one of CUDA in place of that for the CPU, so that torch needs no card. Genesis then takes its kernels for CUDA.
    os.environ.update(
        SG_LIBCUDA=str(options.driver), SG_ARCH="cuda", SG_OFFLINE_CACHE="0", SG_DUMP=str(options.out), GS_ENABLE_ZEROCOPY="0"
    )
    stand_in()
    import genesis as gs
    from genesis.engine.solvers.rigid.rigid_solver import RigidSolver

    def end_if_complete(*_: object) -> None:
        if any(options.out.glob(f"{_LAST}-*")):
            sys.stdout.flush()
            os._exit(0)  # The simulation cannot go on without results, nor can the session end in order.

    gs.init(backend=gs.cpu, precision="32", logging_level="warning", seed=0)
    gs.backend = gs.cuda
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

"""How a process that runs Genesis begins: without a display, and without packages of which only films and renderers make use."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any

# Genesis asks for the error number of a step after it has launched all kernels of the step. The last of them has this name.
LAST = "kernel_substep_post"
_UNUSED = ("av", "gs_madrona")  # of the packages that Genesis requires


def stand_in() -> None:
    """Have empty modules take the place of packages that are missing and that no scene uses, and let Genesis start without a display."""
    for name in _UNUSED:
        if importlib.util.find_spec(name) is None:
            module = types.ModuleType(name)
            module.__dict__["VideoFrame"] = object
            sys.modules[name] = module
    if not os.environ.get("DISPLAY"):
        os.environ["PYGLET_HEADLESS"] = "true"


def start(backend: str, precision: str, profiled: bool = False) -> Any:
    """Initialise Genesis for a back end, and return it. ``profiled``: measure each task by the clock of the device."""
    if backend == "vulkan":  # Genesis does not know it: it is taken in place of the CPU, whose memory Genesis reads without waiting
        os.environ.update(SG_ARCH="vulkan", GS_ENABLE_ZEROCOPY="0")
    stand_in()
    import genesis as gs
    import quadrants

    if profiled:
        init = quadrants.init
        quadrants.init = lambda *args, **options: init(*args, **options, kernel_profiler=True)
    gs.init(backend=getattr(gs, backend, gs.cpu), precision=precision, logging_level="warning", seed=0)
    return gs


def start_without_card(driver: Path, architecture: str) -> Any:
    """Initialise Genesis for CUDA on a library that stands in for the driver, whose device has the ``architecture`` ("90")."""
    library = ctypes.CDLL(str(driver))
    library.standin_machine.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
    library.standin_reset()
    library.standin_machine(1, architecture.encode(), 8 << 30)
    # The session is one of CUDA in place of that for the CPU, so that torch needs no card. Genesis then takes its kernels for CUDA.
    os.environ.update(SG_LIBCUDA=str(driver), SG_ARCH="cuda", GS_ENABLE_ZEROCOPY="0")
    stand_in()
    import genesis as gs

    gs.init(backend=gs.cpu, precision="32", logging_level="warning", seed=0)
    gs.backend = gs.cuda
    return gs

"""How a process that runs Genesis begins: without a display, and without packages of which only films and renderers make use."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from typing import Any

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

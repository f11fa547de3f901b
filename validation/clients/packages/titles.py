"""Frames of animated titles of films, with the parts of the package immich-memories that run on Quadrants."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

from validation.clients.packages.recording import Recording

PACKAGE = "immich_memories"
PARTS = ("titles", "photos")


def _without_services() -> None:
    """Let the titles be imported alone: the package would import a web server, and what encodes films."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    for name, folder in ((PACKAGE, root), *((f"{PACKAGE}.{part}", root / part) for part in PARTS)):
        sys.modules[name] = module = ModuleType(name)
        module.__path__ = [str(folder)]
    for name in ("encoding_plan", "ffmpeg_runner", "ffmpeg_threads", "hardware_encode"):
        sys.modules[f"{PACKAGE}.processing.{name}"] = MagicMock()


def main() -> None:
    os.environ["IMMICH_FORCE_CPU"] = "1"
    _without_services()
    from immich_memories.titles import kernels
    from immich_memories.titles.kernel_thread import runs_on_kernel_thread
    from immich_memories.titles.renderer_kernels import KernelTitleConfig, KernelTitleRenderer

    recording = Recording()
    kernels.backend_dispatches = lambda *_: True  # no trial in another process, which would import Quadrants itself
    assert kernels.init_kernels() is not None

    @runs_on_kernel_thread
    def record(kind: str) -> None:
        renderer = KernelTitleRenderer(KernelTitleConfig(width=320, height=180, gradient_type=kind))
        for frame in (0, 7, 40):
            draw = functools.partial(renderer.render_frame, frame, "Hello world", "a subtitle")
            recording.time(f"{kind}, frame {frame}", draw)

    for kind in ("linear", "radial", "aurora"):
        record(kind)
    recording.write()
    os._exit(0)  # threads of the package wait for work


if __name__ == "__main__":
    main()

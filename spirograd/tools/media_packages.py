"""The packages of the extra `media`, imported when they are first used."""

from __future__ import annotations

import importlib
from types import ModuleType

from spirograd.base.errors import SpirogradRuntimeError, render

_PACKAGES = {"PIL": "pillow", "imageio_ffmpeg": "imageio-ffmpeg"}


def media_package(module: str, purpose: str) -> ModuleType:
    """Import a module. Raises SpirogradRuntimeError, which names the ``purpose``, if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        message = f"{purpose} needs the package {_PACKAGES[module.partition('.')[0]]}, which is not installed"
        raise SpirogradRuntimeError(render(message, None, "`pip install 'spirograd[media]'` installs it")) from None

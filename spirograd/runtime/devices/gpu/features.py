"""The features of a GPU as CUDA or HIP reports them."""

from __future__ import annotations

import re
from pathlib import Path

from spirograd.base.caps import Capabilities
from spirograd.base.device import DeviceInfo
from spirograd.base.records import dataclass


@dataclass(slots=True)
class Features:
    """The features of a device. ``total``: bytes of its memory. ``processors``: the number of multiprocessors (CUDA) or compute units
    (HIP)."""

    ordinal: int
    info: DeviceInfo
    caps: Capabilities
    total: int
    processors: int


def driver_version(file: Path, api: str) -> str:
    """Return the version of the kernel's driver, where Linux shows it in ``file``, and of the API that it implements."""
    try:
        version = re.search(r"\d+\.\d+(\.\d+)?", file.read_text(errors="replace"))
    except OSError:
        version = None
    return f"{version.group()}, {api}" if version else api

"""A GPU as CUDA or HIP describes it."""

from __future__ import annotations

import re
from pathlib import Path

from spirograd.base.caps import Capabilities
from spirograd.base.device import DeviceInfo
from spirograd.base.records import dataclass


@dataclass(slots=True)
class Features:
    """A device as the rest of this package sees it. ``total``: bytes of its memory. ``processors``: how many multiprocessors (CUDA) or
    compute units (HIP) it has."""

    ordinal: int
    info: DeviceInfo
    caps: Capabilities
    total: int
    processors: int


def driver_version(file: Path, api: str) -> str:
    """The version of the kernel's driver, where Linux tells it in ``file``, and of the API that it implements."""
    try:
        found = re.search(r"\d+\.\d+(\.\d+)?", file.read_text(errors="replace"))
    except OSError:
        found = None
    return f"{found.group()}, {api}" if found else api

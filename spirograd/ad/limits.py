"""The limits of the memory of a tape: what `Tape(checkpoints=, memory_GB=, host_GB=, disk_GB=, disk_folder=)` asks for."""

from __future__ import annotations

import os

from spirograd.ad.checkpoints import Checkpoints
from spirograd.ad.copy_levels import LevelLimits
from spirograd.base.errors import SpirogradValueError

_GB = 1e9


def limited(
    checkpoints: int | None,
    memory_GB: float | None,
    host_GB: float | None,
    disk_GB: float | None,
    disk_folder: str | os.PathLike[str] | None,
    nan_check: bool,
) -> Checkpoints | None:
    """Return the checkpoints that a tape asks for, None for a tape that saves everything.

    Raises SpirogradValueError for limits that are not positive numbers."""
    given = {"checkpoints": checkpoints, "memory_GB": memory_GB, "host_GB": host_GB, "disk_GB": disk_GB}
    for name, limit in given.items():
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0):
            raise SpirogradValueError(f"`{name}` of a tape is a number above 0, got {limit!r}")
    if checkpoints is not None and checkpoints != int(checkpoints):
        raise SpirogradValueError(f"`checkpoints` of a tape is an integer, got {checkpoints!r}")
    if memory_GB is None and (host_GB is not None or disk_GB is not None):
        raise SpirogradValueError("`host_GB` and `disk_GB` of a tape are for what exceeds `memory_GB`: give that, too")
    if (disk_GB is None) is not (disk_folder is None):
        raise SpirogradValueError("`disk_GB` and `disk_folder` of a tape belong together: give both")
    if checkpoints is None and memory_GB is None:
        return None
    if nan_check:
        raise SpirogradValueError("`nan_check` of a tape keeps what each launch overwrites, which `checkpoints` and `memory_GB` limit")
    if memory_GB is None:
        return Checkpoints(checkpoints, None)
    folder = "" if disk_folder is None else os.fspath(disk_folder)
    return Checkpoints(checkpoints, LevelLimits(memory_GB * _GB, (host_GB or 0) * _GB, (disk_GB or 0) * _GB, folder))

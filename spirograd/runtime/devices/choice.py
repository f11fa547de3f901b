"""The device that SG_DEVICE names, among those of one API."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base import knobs
from spirograd.base.errors import SpirogradRuntimeError


def listing(names: Sequence[str]) -> str:
    """Devices with their numbers, for messages."""
    return ", ".join(f"{i}: {name}" for i, name in enumerate(names))


def named_device(names: Sequence[str], what: str) -> int | None:
    """The index in ``names`` of the device that SG_DEVICE names, by its number or a part of its name; None if SG_DEVICE is not set.

    Raises SpirogradRuntimeError, listing what there is, if there is no such device. ``what``: a device of this API, for messages.
    """
    wanted = knobs.get("SG_DEVICE").strip()
    if not wanted:
        return None
    if wanted.isdigit():
        if int(wanted) >= len(names):
            raise SpirogradRuntimeError(f"SG_DEVICE={wanted}: there is no such {what}; there are {listing(names)}")
        return int(wanted)
    for index, name in enumerate(names):
        if wanted.lower() in name.lower():
            return index
    raise SpirogradRuntimeError(f"SG_DEVICE={wanted}: no {what} has this in its name; there are {listing(names)}")

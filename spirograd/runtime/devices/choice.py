"""The device that SG_DEVICE or the option `device` of `init` names, among those of one API."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base import knobs
from spirograd.base.errors import SpirogradRuntimeError


def listing(names: Sequence[str]) -> str:
    """Return the devices with their numbers, for messages."""
    return ", ".join(f"{i}: {name}" for i, name in enumerate(names))


def named_device(names: Sequence[str], what: str, requested: str = "") -> int | None:
    """Return the index in ``names`` of the device that SG_DEVICE names, or else ``requested``, the option of `init`.

    Both give a number or a part of the name. Returns None if neither is set. Raises SpirogradRuntimeError with a list of the devices if no
    device fits. ``what``: a device of this API, for messages.
    """
    knob = knobs.get("SG_DEVICE").strip()
    wanted = knob or requested.strip()
    if not wanted:
        return None
    if wanted.isdigit() and int(wanted) < len(names):
        return int(wanted)
    matches = [index for index, name in enumerate(names) if wanted.lower() in name.lower()]
    if matches and not wanted.isdigit():
        return matches[0]
    problem = f"there is no such {what}" if wanted.isdigit() else f"no {what} has this in its name"
    there = "there is" if len(names) == 1 else "there are"
    source = f"SG_DEVICE={wanted}" if knob else f"the option `device={wanted}`"
    raise SpirogradRuntimeError(f"{source}: {problem}; {there} {len(names)} ({listing(names)})")

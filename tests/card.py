"""Has lavapipe take the ways of a graphics card: what Vulkan decides by the device is decided as for a card.

Memory is not mapped, so all that host and device exchange is staged; loops have no limit, so nothing counts their iterations; tapes have as
many thread slots, tasks as many workgroups, histograms such copies as on a card. What stays is how lavapipe runs code: its loops end after
65,535 iterations, subgroups have 8 invocations, and it knows no memory barriers (`Capabilities.memory_barriers`).
"""

from __future__ import annotations

from typing import Any

import pytest

from spirograd.base.records import replace
from spirograd.runtime.devices.vulkan import device
from spirograd.runtime.devices.vulkan.features import Features


def like_a_card(patch: pytest.MonkeyPatch) -> None:
    """For sessions that start from now on. Cards stay what they are."""
    query = device.query

    def of_a_card(physical: Any) -> Features:
        found = query(physical)
        if found.kind != "cpu":
            return found
        # NVIDIA's cards have no minima and maxima of floats.
        caps = replace(found.caps, cpu_driver=False, loop_limit=0, atomic_f32_minmax=False)
        detail = tuple([(key, "discrete" if key == "kind" else value) for key, value in found.info.detail])
        return replace(found, kind="discrete", caps=caps, info=replace(found.info, detail=detail))

    patch.setattr(device, "query", of_a_card)

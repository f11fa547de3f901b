"""Use of lavapipe as if it were a graphics card: what Vulkan decides by the device is decided as for a card.

Memory is not mapped, so all that host and device exchange is staged; loops have no limit, so nothing counts their iterations; tapes have as
many thread slots, tasks as many workgroups, histograms such copies as on a card; subgroups reduce and scan
by one instruction. What stays is how lavapipe runs code: its loops end after 65,535 iterations, subgroups have 8 invocations, and it knows
no memory barriers (`Capabilities.memory_barriers`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from spirograd.base.records import replace
from spirograd.runtime.devices.vulkan import allocator, device
from spirograd.runtime.devices.vulkan.features import Features, combinations

# For all tests of a run. "1": no more than this; "fenced": arrays lie apart; "busy": work runs later than it is submitted; both with a
# comma: as ci/fenced.
_GIVEN = os.environ.get("SG_TEST_CARD", "")
CARD = {*filter(None, _GIVEN.split(","))}
if CARD.difference(("fenced", "busy")) and _GIVEN != "1":
    raise ValueError(f"SG_TEST_CARD={_GIVEN}: expected 1, or `fenced` and `busy` with a comma between them, or one of these")


def like_a_card(patch: Callable[[Any, str, Any], None]) -> None:
    """For sessions that start from now on. ``patch`` sets an attribute. Cards stay what they are."""
    query = device.query

    def of_a_card(physical: Any, instance: Any, profile: Any) -> Features:
        found = query(physical, instance, profile)
        if found.kind != "cpu":
            return found
        # NVIDIA's cards have no minima and maxima of floats.
        by_instruction = combinations("discrete", found.caps.subgroup_arithmetic)
        caps = replace(found.caps, cpu_driver=False, loop_limit=0, atomic_f32_minmax=False, **by_instruction)
        detail = tuple([(key, "discrete" if key == "kind" else value) for key, value in found.info.detail])
        return replace(found, kind="discrete", caps=caps, info=replace(found.info, detail=detail))

    patch(device, "query", of_a_card)


def apart(patch: Callable[[Any, str, Any], None]) -> None:
    """Have each array lie in memory of its own, which the driver is asked for: with ci/fence.c between pages that cannot be accessed."""

    def take(self: allocator.Allocator, nbytes: int) -> allocator.Range:
        size = max(allocator.ALIGNMENT, -(-nbytes // allocator.ALIGNMENT) * allocator.ALIGNMENT)
        self._check_limits(nbytes, size)
        block = self.create_block(size, dedicated=True)
        self.blocks.append(block)
        offset = block.take(size)
        assert offset == 0
        return self._range(block, offset, size)

    patch(allocator.Allocator, "take", take)


if CARD:
    like_a_card(setattr)
if "fenced" in CARD:
    apart(setattr)
if "busy" in CARD:
    import busy_queue

    busy_queue.delay(setattr)


def _leave_an_array() -> None:
    import spirograd as sg

    sg.init(arch=sg.vulkan)
    x = sg.ndarray(sg.i32, 1024)

    @sg.kernel
    def read(x: sg.types.ndarray(), n: sg.i32):  # type: ignore[no-untyped-def, valid-type]
        for i in range(1024):
            x[i] = x[i + n]

    read(x, 0)
    sg.sync()
    read(x, 1024)
    sg.sync()


if __name__ == "__main__":
    _leave_an_array()

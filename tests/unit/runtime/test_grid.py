"""The sizes of dispatches."""

from __future__ import annotations

import pytest

from spirograd.base.artifact import TaskInfo
from spirograd.base.caps import Capabilities
from spirograd.runtime.devices.grid_size import grid_limits

LARGEST = 2**31 - 1


@pytest.mark.parametrize("kind", ["discrete", "integrated", "cpu"])
@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("size", [1, 3, 32, 256, 1000, 1024])
@pytest.mark.parametrize("groups", [1, 65_535, LARGEST])
def test_invocations_are_numbered_in_32_bits(kind: str, loops: bool, size: int, groups: int) -> None:
    """With 2**32 of them the stride of a loop would be 0."""
    task = TaskInfo("t", "range_for", "t", 0, None, None, size, loops=loops)
    width, most, unknown = grid_limits(task, Capabilities("vulkan", max_groups=groups), kind)
    assert width == size and 1 <= unknown <= most <= groups and most * size < 2**31


def test_what_a_task_asks_for() -> None:
    task = TaskInfo("t", "range_for", "t", 0, None, None, 256, max_groups=512)
    assert grid_limits(task, Capabilities("vulkan", max_groups=LARGEST), "discrete")[:2] == (256, 512)

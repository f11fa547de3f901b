"""The size of subgroups that pipelines ask for, from what a device offers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spirograd.runtime import loader

if loader.available("vulkan") is not None:
    pytest.skip("missing vulkan", allow_module_level=True)

from spirograd.runtime.devices.vulkan import features
from spirograd.runtime.devices.vulkan.api import ffi

CONTROL = {("VkPhysicalDeviceSubgroupSizeControlFeatures", "subgroupSizeControl")}
COMPUTE, FRAGMENT = 0x20, 0x10


@pytest.mark.parametrize(
    ("default", "sizes", "stages", "enabled", "wanted"),
    [
        pytest.param(64, (32, 64), COMPUTE | FRAGMENT, CONTROL, 32, id="RADV, RDNA"),
        pytest.param(64, (64, 64), COMPUTE, CONTROL, 0, id="RADV, GCN"),
        pytest.param(128, (64, 128), COMPUTE, CONTROL, 0, id="Turnip"),
        pytest.param(8, (8, 8), COMPUTE, CONTROL, 0, id="lavapipe"),
        pytest.param(32, (8, 32), COMPUTE, CONTROL, 0, id="32 by default"),
        pytest.param(64, (32, 64), FRAGMENT, CONTROL, 0, id="not in this stage"),
        pytest.param(64, (32, 64), COMPUTE, set(), 0, id="no such feature"),
    ],
)
def test_wanted_size(
    monkeypatch: pytest.MonkeyPatch, default: int, sizes: tuple[int, int], stages: int, enabled: set[tuple[str, str]], wanted: int
) -> None:
    def tell(physical: object, chain: ffi.CData) -> None:
        offered = ffi.cast("VkPhysicalDeviceSubgroupSizeControlProperties*", chain.pNext)
        offered.minSubgroupSize, offered.maxSubgroupSize = sizes
        offered.requiredSubgroupSizeStages = stages

    monkeypatch.setattr(features, "lib", SimpleNamespace(vkGetPhysicalDeviceProperties2=tell))
    assert features._wanted_subgroup_size(None, SimpleNamespace(subgroupSize=default), enabled) == wanted

"""The profiles that every case is compiled for: those of `spirograd.base.profiles`, architectures of CUDA and AMD, and a Vulkan device and
an adapter of wgpu that offer nearly everything that the generator can use."""

from __future__ import annotations

from spirograd.base.caps import Capabilities
from spirograd.base.profiles import PROFILES as PROFILES_OF_INIT
from spirograd.base.records import replace
from spirograd.llvmgen import amdgpu, ptx

# Every optional feature that the generator knows how to use.
VULKAN = Capabilities(
    "vulkan",
    int8=True,
    int16=True,
    int64=True,
    float16=True,
    float64=True,
    storage8=True,
    storage16=True,
    atomic_int64=True,
    atomic_f32_add=True,
    atomic_f32_minmax=True,
    shared_f32_add=True,
    buffer_address=True,
    subgroup_size=32,
    subgroup_arithmetic=True,
    max_group_size=1024,
    exact_specials=(16, 32, 64),
    exact_subnormals=(16, 32, 64),
)
# A desktop adapter of wgpu: few bindings, so that kernels with many buffers have to share them.
WGPU = Capabilities(
    "wgpu",
    nearest_f16=False,
    int64=True,
    float16=True,
    float64=True,
    storage_f16=True,
    atomic_int64=True,
    atomic_f32_add=True,
    atomic_cas=False,
    max_buffers=32,
    max_group_size=1024,
)

_COLLECTED = 32768  # bytes of shared memory


def _capabilities(name: str, target: str) -> Capabilities:
    """Return the capabilities of a profile on a target that it describes, with the shared memory of the session that kernels are collected
    from, at least: algorithms choose smaller tiles in sessions on devices with less, which `--arch` runs."""
    caps = PROFILES_OF_INIT[name].on(target)
    assert caps is not None
    return replace(caps, shared_memory=max(caps.shared_memory, _COLLECTED))


# "vulkan-m1": the profiles of `init(profile=...)`, by target and name.
DEVICES = {f"{target}-{name}": _capabilities(name, target) for name, profile in PROFILES_OF_INIT.items() for target in profile.devices}
SPIRV = {"vulkan": VULKAN, "wgpu": WGPU, **DEVICES}
PTX = {f"cuda-{name}": ptx.capabilities(name) for name in ("sm_70", "sm_80", "sm_90", "sm_120")}
_GFX = ("gfx906", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1201")
AMDGPU = {f"amdgpu-{name}": amdgpu.capabilities(name) for name in _GFX}
PROFILES = {**SPIRV, **PTX, **AMDGPU}

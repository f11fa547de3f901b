"""The profiles that every case is compiled for: capability records that stand for classes of devices, several for one target."""

from __future__ import annotations

from spirograd.base.caps import Capabilities
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
# What Vulkan 1.2 with buffer addresses guarantees, and nothing more.
VULKAN_BARE = Capabilities("vulkan", buffer_address=True, max_group_size=128)
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
# What every adapter of wgpu offers: WebGPU's own limits.
WGPU_BARE = Capabilities("wgpu", nearest_f16=False, atomic_cas=False, max_buffers=8, max_push_constants=0, max_group_size=256)

SPIRV = {"vulkan": VULKAN, "vulkan-bare": VULKAN_BARE, "wgpu": WGPU, "wgpu-bare": WGPU_BARE}
PTX = {f"cuda-{name}": ptx.capabilities(name) for name in ("sm_70", "sm_80", "sm_90", "sm_120")}
_GFX = ("gfx906", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1151", "gfx1201")
AMDGPU = {f"amdgpu-{name}": amdgpu.capabilities(name) for name in _GFX}
PROFILES = {**SPIRV, **PTX, **AMDGPU}

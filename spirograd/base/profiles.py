"""Profiles: what classes of devices offer, in one table. `init(profile=...)` restricts a session to one; `validation` compiles its corpus
for each. Figures are those that makers and specifications publish, or that users' devices reported; a comment names the source."""

from __future__ import annotations

from collections.abc import Mapping

from spirograd.base.capability_rules import Value, rule_of
from spirograd.base.caps import COMBINATIONS, Capabilities
from spirograd.base.records import dataclass, fields

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_NARROW: dict[str, Value] = dict.fromkeys(("int8", "int16", "float16", "storage8", "storage16"), True)
_SUBGROUPS_OF_32: dict[str, Value] = {
    "subgroup_size": 32,
    "subgroup_arithmetic": True,
    "subgroup_reductions": COMBINATIONS,
    "subgroup_scans": COMBINATIONS,
    "subgroup_read": True,
    "subgroup_ballot": True,
}
# Vulkan 1.2, "Required Limits" (https://docs.vulkan.org/spec/latest/chapters/limits.html), with buffer addresses, which spirograd needs.
_BARE: dict[str, Value] = {"buffer_address": True, "shared_memory": 16 * _KIB, "max_group_size": 128, "max_allocation": _GIB}
# A desktop GPU of today.
_GPU: dict[str, Value] = {**_NARROW, **_SUBGROUPS_OF_32, "buffer_address": True, "int64": True, "max_group_size": 1024}
_INTEL: dict[str, Value] = {
    **_GPU,
    "atomic_int64": True,
    "atomic_f32_minmax": True,
    "shared_memory": 48 * _KIB,
    "max_groups": (1 << 31) - 1,
    "max_push_constants": 256,
    "max_allocation": 4 * _GIB,
    "shader_clock": "subgroup",
    "exact_specials": (16, 32, 64),
    "exact_subnormals": (16, 32, 64),
}
# WebGPU, "Limits", the defaults (https://www.w3.org/TR/webgpu/#limits), without optional features. "Encoder bind groups alias a writable
# resource" of the same document forbids that a task binds a buffer twice. WGSL, "Constant Expressions"
# (https://www.w3.org/TR/WGSL/#floating-point-evaluation): one that is infinite or NaN is an error.
_WEBGPU: dict[str, Value] = {
    "aliased_bindings": False,
    "special_constants": False,
    "nearest_f16": False,
    "atomic_cas": False,
    "shared_memory": 16 * _KIB,
    "max_group_size": 256,
    "max_buffers": 8,
    "max_push_constants": 0,
    "max_allocation": 128 * _MIB,
}


@dataclass(frozen=True, slots=True)
class Profile:
    """A class of devices. ``title``: what it stands for, in messages and tables; ``devices``: by target, the fields of its `Capabilities`
    that are not the defaults."""

    title: str
    devices: Mapping[str, Mapping[str, Value]]

    def on(self, target: str) -> Capabilities | None:
        """Return the capabilities on a target; None if the profile does not describe it."""
        given = self.devices.get(target)
        return None if given is None else Capabilities(target, **given)  # type: ignore[arg-type]


# Reports of devices to https://vulkan.gpuinfo.org are cited by their file in the folder profiles/LunarG/VP_LUNARG_desktop_baseline_2026 of
# https://github.com/KhronosGroup/Vulkan-Profiles.
PROFILES = {
    "m1": Profile(
        "Apple M1",
        {
            # MoltenVK 1.4.1: vp_gpuinfo_apple_m1_0_2_2209_macos_26_5_1.json.
            "vulkan": {
                **_GPU,
                "atomic_f32_add": True,
                "shared_f32_add": True,
                "max_groups": _GIB,
                "max_push_constants": 4096,
                "max_allocation": 4 * _GIB,
                "exact_specials": (16, 32, 64),
                "positive_zero_products": True,
            },
            # wgpu: SHADER_INT64, SHADER_FLOAT32_ATOMIC in https://docs.rs/wgpu/latest/wgpu/struct.FeaturesWGPU.html; 64-bit atomics begin
            # with Apple8, which is the M2. https://developer.apple.com/metal/Metal-Feature-Set-Tables.pdf: a function has 31 buffers, of
            # which wgpu takes one for immediates and one for the lengths of arrays; a group has 32 KiB of memory and 1024 threads.
            "wgpu": {
                **_WEBGPU,
                "aliased_bindings": True,
                "special_constants": True,
                "int64": True,
                "float16": True,
                "storage_f16": True,
                "atomic_f32_add": True,
                "shared_memory": 32 * _KIB,
                "max_group_size": 1024,
                "max_buffers": 29,
                "max_push_constants": 4096,
                "max_allocation": 4 * _GIB - 16,
            },
        },
    ),
    "m1-kosmickrisp": Profile(
        "Apple M1 with KosmicKrisp",
        {
            # KosmicKrisp of Mesa 26.2: vp_gpuinfo_apple_m1_26_1_99_macos_26_5_0.json.
            "vulkan": {
                **_GPU,
                "atomic_f32_add": True,
                "max_groups": (1 << 31) - 1,
                "max_push_constants": 256,
                "max_allocation": 9534832640,
            }
        },
    ),
    "browser": Profile("WebGPU in a browser", {"wgpu": _WEBGPU}),
    # VP_ANDROID_vulkan_profile_2022.json (16-bit integers, limits) and VP_ANDROID_15_minimums.json (the other types; Vulkan 1.3, which has
    # buffer addresses) of the same repository. Subgroups may have any size.
    "android": Profile("Android 15", {"vulkan": {**_BARE, **_NARROW}}),
    # Tiger Lake, Mesa 26.1: vp_gpuinfo_intel_r__iris_r__xe_graphics__tgl_gt2__26_1_3_void_unknown.json.
    "intel-xe": Profile("Intel Iris Xe", {"vulkan": _INTEL}),
    # Mesa 26.1: vp_gpuinfo_intel_r__arc_tm__a770_graphics__dg2__26_1_2_arch_unknown.json.
    "intel-arc": Profile("Intel Arc A770", {"vulkan": {**_INTEL, "atomic_f32_add": True}}),
    "bare": Profile("any device with Vulkan 1.2 and buffer addresses", {"vulkan": _BARE}),
}
# The targets of back ends whose devices have another one than their name.
_TARGETS = {"metal": "wgpu"}


def describes(profile: str, arch: str) -> bool:
    """Return whether a profile, a key of `PROFILES`, describes devices of a back end."""
    return _TARGETS.get(arch, arch) in PROFILES[profile].devices


def restricted(device: Capabilities, profile: str) -> Capabilities:
    """Return what a device and a profile, a key of `PROFILES` that describes its target, have in common; "" restricts nothing.

    If the device has subgroups of another size, it counts as one without: the compiler forms subgroups of 32 invocations instead.
    """
    other = PROFILES[profile].on(device.target_name) if profile else None
    if other is None:
        return device
    names = [f.name for f in fields(Capabilities) if f.name not in ("target_name", "profile")]
    common = {name: rule_of(name).common(getattr(device, name), getattr(other, name)) for name in names}
    if not common["subgroup_size"]:
        common = {name: value for name, value in common.items() if not name.startswith("subgroup_")}
    return Capabilities(device.target_name, profile=profile, **common)  # type: ignore[arg-type]


def owner(caps: Capabilities, capability: str) -> str:
    """Return the words for what lacks a capability, a field of ``caps``, in messages: the profile if it does, else the device."""
    profile = PROFILES.get(caps.profile)
    if profile is None or getattr(profile.on(caps.target_name), capability) != getattr(caps, capability):
        return f"this device (target {caps.target_name})"
    return f"the profile `{caps.profile}` ({profile.title}, target {caps.target_name})"

"""Profiles: a session restricted to what another device has refuses what that device lacks, by name and line, and runs the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import spirograd as sg
from spirograd.aot.requirements import problems
from spirograd.base.caps import Capabilities
from spirograd.base.profiles import PROFILES, describes, owner, restricted
from spirograd.base.records import fields, replace
from spirograd.lang.hints import extension

ON = [pytest.param(name, target, id=f"{target}-{name}") for name, profile in PROFILES.items() for target in profile.devices]
# Fields that say how the driver executes code, not what it offers.
_OF_DRIVER = {"memory_barriers", "loop_limit", "nesting_limit"}


@pytest.mark.parametrize("name,target", ON)
def test_restricted_code_runs_on_both(name: str, target: str, request: pytest.FixtureRequest) -> None:
    """The rules by which capabilities are restricted are those by which modules are checked before they are loaded."""
    most = PROFILES[name].on(target)
    assert most is not None
    rich = replace(most, subgroup_size=most.subgroup_size or 32, int64=True, float64=True, atomic_int64=True, max_push_constants=128)
    lavapipe = replace(rich, subgroup_size=8, loop_limit=65535, nesting_limit=77, memory_barriers=False, max_allocation=1 << 31)
    for device in (rich, lavapipe, Capabilities(target)):
        common = restricted(device, name)
        assert problems(common, device, []) == []
        assert {line.split("`")[1] for line in problems(common, most, [])} <= _OF_DRIVER
        assert restricted(common, name) == common
    assert restricted(most, name) == replace(most, profile=name)
    assert restricted(lavapipe, "") is lavapipe


def test_subgroups_of_another_size_are_formed_by_the_compiler() -> None:
    device = Capabilities("vulkan", subgroup_size=8, subgroup_read=True, subgroup_arithmetic=True, subgroup_ballot=True)
    common = restricted(device, "m1")
    assert (device.group_lanes, common.group_lanes) == (8, 32)
    assert not [f.name for f in fields(common) if f.name.startswith("subgroup_") and getattr(common, f.name)]
    assert restricted(replace(device, subgroup_size=32), "m1").subgroup_read


def test_the_owner_of_what_is_missing() -> None:
    device = Capabilities("vulkan", int64=True, shared_memory=16384)
    common = restricted(device, "m1")
    assert owner(device, "float64") == "this device (target vulkan)"
    assert owner(common, "float64") == "the profile `m1` (Apple M1, target vulkan)"
    assert owner(common, "shared_memory") == "this device (target vulkan)"  # which has less than an M1
    assert owner(common, "float16") == "this device (target vulkan)"


def test_every_profile_fits_spirograd() -> None:
    for name, profile in PROFILES.items():
        assert profile.title and profile.devices
        for target in profile.devices:
            caps = profile.on(target)
            assert caps is not None and describes(name, target)
            assert caps.buffer_address or caps.max_buffers
        assert profile.on("cpu") is None
    assert describes("m1", "metal") and not describes("m1", "cpu") and not describes("android", "wgpu")


@pytest.mark.parametrize("name,target", ON)
def test_sessions(name: str, target: str, request: pytest.FixtureRequest) -> None:
    import needs

    needs.need(target)
    sg.init(arch=target, profile=name)
    caps = sg.lang.context.session().device.caps
    assert caps.profile == name and not caps.float64 and not sg.is_extension_supported(target, extension.data64)
    x, loss = sg.field(sg.f32, 1000, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    small = sg.field(sg.i8, 1000)

    @sg.kernel
    def run(k: sg.i32):
        for i in x:
            v = x[i] * small[i]
            for _ in range(k):
                v = 0.5 * v * v
            loss[None] += v

    @sg.kernel
    def double(y: sg.types.ndarray()):
        for i in y:
            y[i] = i * 0.5

    values = np.linspace(-2, 2, 1000, dtype=np.float32)
    x.from_numpy(values)
    small.fill(1)
    run(2)
    loss.grad[None] = 1
    run.grad(2)
    np.testing.assert_allclose(loss[None], (values.astype(np.float64) ** 4 / 8).sum(), rtol=1e-4)
    np.testing.assert_allclose(x.grad.to_numpy(), values.astype(np.float64) ** 3 / 2, rtol=1e-4, atol=1e-6)
    with pytest.raises(sg.SpirogradUnsupportedError, match=rf"the profile `{name}` \(.*\) has no 64-bit floats[\s\S]*y\[i\] = i \* 0.5"):
        double(np.zeros(10))


def test_vulkan_enables_no_more_than_the_profile_has() -> None:
    import needs

    needs.need("vulkan")
    sg.init(arch="vulkan", profile="bare")
    enabled = {feature for _, feature in sg.lang.context.session().device._features.enabled}
    assert not enabled & {"shaderInt64", "shaderFloat64", "shaderInt8", "shaderBufferInt64Atomics", "shaderBufferFloat32AtomicAdd"}
    assert "bufferDeviceAddress" in enabled


def test_other_back_ends() -> None:
    with pytest.raises(sg.SpirogradRuntimeError, match=r"`m1` describes no devices of cpu: start with the back end `sg.vulkan` or"):
        sg.init(arch="cpu", profile="m1")
    with pytest.raises(sg.SpirogradRuntimeError, match=r"there is no profile 'andriod'; there are m1, .*did you mean `?android"):
        sg.init(arch="vulkan", profile="andriod")
    with pytest.raises(sg.SpirogradRuntimeError, match=r"`m1` describes no devices of cpu"):
        sg.init(arch="cpu", profile="m1", enable_fallback=True)


def test_the_environment_and_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    import needs

    needs.need("wgpu")
    monkeypatch.setenv("SG_PROFILE", "browser")
    sg.init(arch=["cpu", "cuda", "wgpu"])
    session = sg.lang.context.session()
    assert (session.arch, session.device.caps.max_buffers) == ("wgpu", 8)


def test_the_page_has_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "other-devices.md").read_text(encoding="utf-8")
    rows = []
    for name, profile in PROFILES.items():
        for caps in map(profile.on, profile.devices):
            assert caps is not None
            flags = [caps.int64, caps.float64, caps.atomic_int64, caps.atomic_f32_add]
            sizes = [str(caps.max_group_size), f"{caps.shared_memory >> 10} KiB", str(caps.max_buffers or "any")]
            cells = [f"`{name}`", profile.title, f"`sg.{caps.target_name}`", *["yes" if flag else "no" for flag in flags], *sizes]
            rows.append(f"| {' | '.join(cells)} |")
    assert [line for line in page.splitlines() if line.startswith("| `")] == rows


def test_algorithms_fit_small_groups() -> None:
    """Scans had groups of 256 threads, which neither Vulkan nor Android promises."""
    import needs

    needs.need("vulkan")
    sg.init(arch="vulkan", profile="android")
    values = np.random.default_rng(3).integers(-9, 9, 5000).astype(np.int32)
    x, places = sg.ndarray(sg.i32, len(values)), sg.ndarray(sg.i32, len(values))
    x.from_numpy(values)
    sg.algorithms.argsort(x, places)
    np.testing.assert_array_equal(places.to_numpy(), np.argsort(values, kind="stable"))
    total = sg.field(sg.i32, len(values))
    total.from_numpy(values)
    sg.algorithms.PrefixSumExecutor(len(values)).run(total)
    np.testing.assert_array_equal(total.to_numpy(), np.cumsum(values))

"""Profiles of `init` as devices: spirograd compiles for what the devices have, and no other compiler looks at the modules."""

from __future__ import annotations

from spirograd.base.artifact import CompiledKernel
from spirograd.base.caps import Capabilities
from spirograd.base.profiles import PROFILES
from spirograd.base.records import replace
from spirograd.survey.machine_code import OfflineCompiler
from spirograd.survey.results import Build


def profile_compiler(profile: str) -> OfflineCompiler:
    """Return spirograd itself, for a profile of `PROFILES` on the first target that it describes."""
    target = next(iter(PROFILES[profile].devices))
    return OfflineCompiler(f"SPIR-V for {target}, not compiled", profile_capabilities(profile, target), profile_builds)


def profile_capabilities(profile: str, target: str) -> Capabilities:
    """Return the capabilities of a profile on a target that it describes."""
    caps = PROFILES[profile].on(target)
    assert caps is not None
    return replace(caps, profile=profile)


def profile_builds(kernel: CompiledKernel, _: float) -> list[Build]:
    """Return that each task compiles: spirograd did not refuse it."""
    return [Build() for _ in kernel.tasks]

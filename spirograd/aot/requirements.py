"""Check whether a device can run code that was compiled for certain capabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from spirograd.base.artifact import CompiledKernel
from spirograd.base.caps import Capabilities
from spirograd.base.records import fields
from spirograd.base.targets import Generator

# A comparison of the value that the code was compiled for with that of the device: whether the code runs.
_Rule = Callable[[Any, Any], bool]


def _anything(code: object, device: object) -> bool:
    return True


def _ability(code: object, device: object) -> bool:
    return bool(device or not code)


def _equal_if_used(code: object, device: object) -> bool:
    return not code or bool(code == device)


def _limit(code: object, device: object) -> bool:
    """Compare a limit of the driver, 0 for none, which code must respect."""
    return not device or bool(code == device)


def _subset(code: Iterable[str], device: Iterable[str]) -> bool:
    return set(code) <= set(device)


def _features(code: str, device: str) -> bool:
    return {f for f in code.split(",") if f.startswith("+")} <= set(device.split(","))


# By fields of `Capabilities`; other fields are abilities.
_RULES: dict[str, _Rule] = {
    "subgroup_size": _equal_if_used,
    "shared_memory": lambda code, device: bool(code <= device),
    "max_buffers": lambda code, device: not device or 0 < code <= device,
    "loop_limit": _limit,
    "nesting_limit": _limit,
    "unmasked_uniform_loads": _limit,
    "memory_barriers": lambda code, device: bool(code == device),
    "exact_specials": _subset,
    **dict.fromkeys(("exact_subnormals", "subgroup_reductions", "subgroup_scans", "matrix_shapes"), _subset),
    "cpu_features": _features,
    **dict.fromkeys(("shader_clock", "vector_library"), _equal_if_used),
    **dict.fromkeys(
        ("coarse_sines", "cpu_driver", "cpu_name", "max_allocation", "max_groups", "max_group_size", "max_push_constants"), _anything
    ),
    "toolchain": _anything,  # implied by the architecture
}


def problems(code: Capabilities, device: Capabilities, kernels: Iterable[CompiledKernel]) -> list[str]:
    """Return the reasons why ``device`` cannot run ``kernels``, which were compiled for ``code``, in one line each."""
    reasons = []
    for f in fields(code):
        if f.name == "target_name":
            continue
        needed, available = getattr(code, f.name), getattr(device, f.name)
        if not _RULES.get(f.name, _ability)(needed, available):
            reasons.append(f"`{f.name}` is {needed!r} in the module and {available!r} on the device")
    if not _runs_architecture(code, device):
        reasons.append(f"the code is for {code.cpu_name}, and the device is {device.cpu_name}")
    for kernel in kernels:
        size = max([task.group_size for task in kernel.tasks], default=0)
        if size > device.max_group_size and device.target.invocations:
            reasons.append(f"kernel `{kernel.name}` has workgroups of {size} invocations, and the device takes {device.max_group_size}")
        direct = [kernel.args.size <= caps.max_push_constants for caps in (code, device)]
        if direct[0] != direct[1] and device.target.invocations:
            reasons.append(
                f"the arguments of kernel `{kernel.name}` take {kernel.args.size} bytes: the device has {device.max_push_constants} for "
                f"them, and the code was made for {code.max_push_constants}"
            )
    return reasons


def _runs_architecture(code: Capabilities, device: Capabilities) -> bool:
    generator = code.target.generator
    if generator is Generator.CODE_OBJECT:
        return code.cpu_name == device.cpu_name
    if generator is Generator.PTX:
        return _number(code.cpu_name) <= _number(device.cpu_name)
    return True


def _number(architecture: str) -> float:
    """Return the number of an architecture such as ``sm_90``; infinity for other names."""
    number = architecture.removeprefix("sm_").rstrip("af")
    return int(number) if number.isdecimal() and len(number) < 6 else math.inf

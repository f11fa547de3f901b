"""Check whether a device can run code that was compiled for certain capabilities."""

from __future__ import annotations

import math
from collections.abc import Iterable

from spirograd.base.artifact import CompiledKernel
from spirograd.base.capability_rules import rule_of
from spirograd.base.caps import Capabilities
from spirograd.base.records import fields
from spirograd.base.targets import Generator


def problems(code: Capabilities, device: Capabilities, kernels: Iterable[CompiledKernel]) -> list[str]:
    """Return the reasons why ``device`` cannot run ``kernels``, which were compiled for ``code``, in one line each."""
    reasons = []
    for f in fields(code):
        if f.name == "target_name":
            continue
        needed, available = getattr(code, f.name), getattr(device, f.name)
        if not rule_of(f.name).runs(needed, available):
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

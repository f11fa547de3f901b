"""How each field of `Capabilities` compares: whether code runs on a device, and what two devices have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

from spirograd.base.records import dataclass

# The value of a field of `Capabilities`.
Value: TypeAlias = "bool | int | str | tuple[str, ...] | tuple[int, ...]"


@dataclass(frozen=True, slots=True)
class Rule:
    """``runs(code, device)``: whether code that was compiled for the first value runs on a device with the second. ``common(device,
    other)``: the best value with which code runs on both; the first device executes it."""

    runs: Callable[[Value, Value], bool]
    common: Callable[[Value, Value], Value]


def _any(code: Value, device: Value) -> bool:
    return True


def _first(device: Value, other: Value) -> Value:
    return device


def _smaller(device: Value, other: Value) -> Value:
    return min(cast(int, device), cast(int, other))


def _ability(code: Value, device: Value) -> bool:
    return bool(device or not code)


def _equal_if_used(code: Value, device: Value) -> bool:
    return not code or code == device


def _limit_of_driver(code: Value, device: Value) -> bool:
    """Compare a limit of the driver, 0 for none, which code must respect."""
    return not device or code == device


def _subset(code: Value, device: Value) -> bool:
    return set(cast("tuple[str, ...]", code)) <= set(cast("tuple[str, ...]", device))


def _features(code: Value, device: Value) -> bool:
    return {f for f in str(code).split(",") if f.startswith("+")} <= set(str(device).split(","))


def _fewer_buffers(device: Value, other: Value) -> Value:
    limits = [limit for limit in (cast(int, device), cast(int, other)) if limit]
    return min(limits, default=0)


ABILITY = Rule(_ability, lambda device, other: bool(device and other))
_LIMIT = Rule(_any, _smaller)
_DRIVER_LIMIT = Rule(_limit_of_driver, _first)
_SUBSET = Rule(
    _subset, lambda device, other: cast(Value, tuple([x for x in cast("tuple[str, ...]", device) if x in cast("tuple[str, ...]", other)]))
)
_SIZE = Rule(_equal_if_used, lambda device, other: device if device == other else 0)
# A device without a clock cannot have the other one's; of two scopes, that of the device which executes the code counts.
_CLOCK = Rule(_equal_if_used, lambda device, other: device if other else "")
_OF_DEVICE = Rule(_any, _first)

# By fields of `Capabilities`; other fields are abilities.
_RULES = {
    "subgroup_size": _SIZE,
    "shared_memory": Rule(lambda code, device: cast(int, code) <= cast(int, device), _smaller),
    "max_buffers": Rule(lambda code, device: not device or 0 < cast(int, code) <= cast(int, device), _fewer_buffers),
    "unmasked_uniform_loads": _DRIVER_LIMIT,
    "loop_limit": _DRIVER_LIMIT,
    "nesting_limit": _DRIVER_LIMIT,
    "memory_barriers": Rule(lambda code, device: code == device, _first),
    **dict.fromkeys(("exact_specials", "exact_subnormals", "subgroup_reductions", "subgroup_scans", "matrix_shapes"), _SUBSET),
    "cpu_features": Rule(_features, _first),
    "vector_library": Rule(_equal_if_used, _first),
    "shader_clock": _CLOCK,
    **dict.fromkeys(("max_allocation", "max_groups", "max_group_size", "max_push_constants"), _LIMIT),
    **dict.fromkeys(("coarse_sines", "positive_zero_products", "cpu_driver", "cpu_name", "profile"), _OF_DEVICE),
    "toolchain": _OF_DEVICE,  # implied by the architecture
}


def rule_of(field: str) -> Rule:
    """Return the rule for a field of `Capabilities`."""
    return _RULES.get(field, ABILITY)

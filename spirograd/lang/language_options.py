"""The options of the front end: those of `init`, and those of the device."""

from __future__ import annotations

from typing import TypedDict

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, f32, i32
from spirograd.base.profiles import owner
from spirograd.base.records import dataclass


@dataclass(slots=True)
class LanguageOptions:
    """The options of `init` that the front end needs."""

    default_fp: DType = f32
    default_ip: DType = i32
    debug: bool = False
    check_bounds: bool = False  # of views: those of memory are for a pass
    short_circuit: bool = True
    unrolling_limit: int = 0
    prints_fixed: bool = False  # floats with 6 digits behind the point, vectors in Python as NumPy shows them
    ignores_sign_of_powers: bool = False  # an integer to a negative power is that to the positive one
    casts_float_bounds: bool = False  # floats as bounds of `range` lose their fraction, with a warning
    unfused_by: str = ""  # the option of the kernel by which its loops stay apart
    group_size: int = 0  # of loops without `block_dim`; 0: the default
    max_group_size: int = 1024
    device: str = "this device"  # in messages: what limits the size of groups
    subgroup_size: int = 32
    reads_subgroups: bool = False  # by an instruction, rather than through memory
    has_ballots: bool = False  # an instruction for votes of subgroups
    subgroup_reductions: tuple[str, ...] = ()  # see `Capabilities`
    subgroup_scans: tuple[str, ...] = ()
    matrix_shapes: tuple[str, ...] = ()  # products of matrices by one instruction of a subgroup
    detect_races: bool = False


class DeviceOptions(TypedDict):
    """The members of `LanguageOptions` that depend on the device."""

    max_group_size: int
    device: str
    subgroup_size: int
    reads_subgroups: bool
    has_ballots: bool
    subgroup_reductions: tuple[str, ...]
    subgroup_scans: tuple[str, ...]
    matrix_shapes: tuple[str, ...]


def options_of_device(caps: Capabilities) -> DeviceOptions:
    """Return the options for a device with these capabilities."""
    # Where the compiler forms subgroups for invocations of a device, the device's instructions are about other ones, of its own size.
    own = caps.subgroup_read or not caps.target.invocations
    return {
        "max_group_size": caps.group_limit,
        "device": owner(caps, "max_group_size"),
        "subgroup_size": caps.group_lanes,
        "reads_subgroups": caps.subgroup_read,
        "has_ballots": own and caps.subgroup_ballot,
        "subgroup_reductions": caps.subgroup_reductions if own else (),
        "subgroup_scans": caps.subgroup_scans if own else (),
        "matrix_shapes": caps.matrix_shapes,
    }

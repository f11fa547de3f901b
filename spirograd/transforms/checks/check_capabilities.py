"""A check of capabilities: rejects types, nesting and group memory that the device does not support."""

from __future__ import annotations

from spirograd.base.caps import Capabilities
from spirograd.base.dtypes import DType, Vec
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.profiles import owner
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region, SharedRef, callee_of
from spirograd.transforms.pass_context import PassContext

# The capability behind each type, and its name for users.
_TYPE_NEEDS = {
    "i64": ("int64", "64-bit integers"),
    "u64": ("int64", "64-bit integers"),
    "f64": ("float64", "64-bit floats"),
}

# Bytes of a CPU thread's stack that a group may use. The stack has 8 MiB on Linux, some of which callers already use.
_STACK = 4 << 20

_FLATTEN = "use separate `if`s or a loop over a table: each `elif` nests in the `else` before it, and each operand of `and` in an `if`"


def check_capabilities(kernel: Kernel, ctx: PassContext) -> Kernel:
    """Return ``kernel`` unchanged. Raise SpirogradUnsupportedError for the first type that the device lacks, for control flow that is
    nested deeper than the driver compiles correctly, and for groups whose memory exceeds that of the device.

    Numbers of 8 and 16 bits and accesses to narrow memory need no check: `widen_narrow_types` has removed those that the device lacks.
    """
    caps = ctx.caps
    if caps.nesting_limit:
        nesting = _Nesting(kernel, caps.nesting_limit)
        for task in kernel.body.ops[:-1]:
            for region in task.regions:
                nesting.check(region)
    for task in kernel.body.ops[:-1]:
        if task.attr.grouped:
            _check_memory(task, caps)
    if not (caps.target.addresses or caps.buffer_address):
        _refuse_addresses(kernel, caps)
    refuse_types(kernel, caps, *_TYPE_NEEDS)
    return kernel


def refuse_types(kernel: Kernel, caps: Capabilities, *names: str) -> None:
    """Raise SpirogradUnsupportedError for the first value whose type is one of ``names``, if the device lacks that."""
    missing = {name: _TYPE_NEEDS[name] for name in names if not getattr(caps, _TYPE_NEEDS[name][0])}
    for op in kernel.walk() if missing else ():
        t = op.type.elem if isinstance(op.type, Vec) else op.type
        if isinstance(t, DType) and t.name in missing:
            _refuse(caps, missing[t.name], f"a value of type {t}", op)


def _refuse_addresses(kernel: Kernel, caps: Capabilities) -> None:
    for op in kernel.walk():
        if op.code is ops.slot and op.attr.is_buffer:
            message = f"{owner(caps, 'buffer_address')} has no addresses of memory, which `get_addr` needs"
            raise SpirogradUnsupportedError(message, op.loc, "use another device")


def _check_memory(task: Op, caps: Capabilities) -> None:
    """Check the memory of a group. On the CPU it includes the values that threads keep across barriers, see `fission_groups`."""
    arrays = {ref for region in task.regions for _, ref in region.accesses if isinstance(ref, SharedRef)}
    taken = sum(ref.length * ref.dtype.size for ref in arrays)
    what, most = "the shared arrays of this loop take", caps.shared_memory
    if not caps.target.invocations:
        what, most = "the shared arrays of this loop and the values that its threads keep across barriers take", _STACK
    if taken > most:
        message = f"{what} {taken:,} bytes; {owner(caps, 'shared_memory')} has {most:,} for a group"
        raise SpirogradUnsupportedError(message, task.loc, "use smaller groups, or arrays of narrower numbers")


class _Nesting:
    """A check of the nesting of control flow. It rejects an `if` or a loop inside ``limit`` others. Those around a call of its function
    count, because drivers inline calls."""

    def __init__(self, kernel: Kernel, limit: int) -> None:
        self.limit = limit
        self.functions = {f.name: f for f in kernel.functions}
        self.checked: set[tuple[str, int]] = set()  # functions, with the depth of the call

    def check(self, region: Region, depth: int = 0) -> None:
        for op in region.ops:
            if op.regions and depth == self.limit:
                message = f"control flow is nested more than {self.limit} levels deep here, which this driver compiles to wrong code"
                raise SpirogradUnsupportedError(message, op.loc, _FLATTEN)
            for inner in op.regions:
                self.check(inner, depth + 1)
            called = callee_of(op)
            if called is not None and (called, depth) not in self.checked:
                self.checked.add((called, depth))
                self.check(self.functions[called].body, depth)


def _refuse(caps: Capabilities, need: tuple[str, str], what: str, op: Op) -> None:
    message = f"{owner(caps, need[0])} has no {need[1]}, which {what} needs"
    raise SpirogradUnsupportedError(message, op.loc, "use a wider or narrower type, or another device")

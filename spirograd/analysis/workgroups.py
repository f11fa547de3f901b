"""How the iterations of a task are shared among invocations: the size of a workgroup, and how many in a row an invocation takes."""

from __future__ import annotations

from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Region, SharedRef, ref_of

# One H100, 1 GiB saxpy: 1,265 GB/s in groups of 64, 2,049 of 128, 2,730 of 256, 2,581 of 1,024 (a copy: 3,000).
_DEFAULT = 256
# Longer bodies wait for arithmetic rather than for memory, and would take too many registers.
_LONGEST = 48
_MOST = 8


def group_size(task: Op, caps: Capabilities, options: CompileOptions) -> int:
    """Of a task: what its loop asks for, else what ``options`` say, else the default; at most what the device takes. 1 of serial tasks."""
    if task.attr.kind == "serial":
        return 1
    return max(1, min(task.attr.group_size or options.group_size or _DEFAULT, caps.max_group_size))


def coarsening_factor(task: Op, size: int, caps: Capabilities) -> int:
    """The thread coarsening of a range task (lowering IR) in workgroups of ``size``: how many consecutive iterations an invocation runs at
    a time. A power of two, more than 1 where short straight-line code accesses the elements of the index: accesses of several iterations
    are merged then."""
    bounds, body, *_ = task.regions
    # The first invocations take one each of what fills no block: a workgroup must have enough of them.
    if size < _MOST or not caps.target.access_bytes or len(bounds.results) > 2 or not _is_short(body):
        return 1
    sizes = [op.attr.dtype.size for op in body.ops if op.code in (ops.load, ops.store) and _is_element(op.args[0], body.params[0])]
    return max(1, min(caps.target.access_bytes // max(sizes), _MOST)) if sizes else 1


def _is_short(body: Region) -> bool:
    effects = {"shared" if isinstance(ref_of(op), SharedRef) else op.code.effect for op in body.ops[:-1]}
    return effects <= {"pure", "read", "write", "shared"} and sum(op.code not in (ops.const, ops.slot) for op in body.ops) <= _LONGEST


def _is_element(address: Op, index: Op) -> bool:
    """Whether ``address`` is the index, or a constant more."""
    if address.code is ops.add:
        a, b = address.args
        address = a if b.code is ops.const else b if a.code is ops.const else address
    return address is index

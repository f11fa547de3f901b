"""Member masks: the lanes of a subgroup that run a branch or an iteration with subgroup operations, from a vote over its condition before
it.

Instructions of NVIDIA's GPUs name the lanes that run them together (member masks). The lanes that are active at the same moment may be
fewer, since a warp that has diverged need not have reconverged. All invocations of a workgroup run its branches and loops with a barrier of
the workgroup, and those marked as uniform. There the mask is a constant, without which the assembler expands each instruction into a search
for lanes with equal masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Region
from spirograd.llvmgen.function import FunctionEmitter
from spirograd.llvmgen.module import type_name

# Operations at which lanes meet whose instructions name the lanes. The others need no votes: there is no instruction for scans, all lanes
# of a warp run a product of matrices, and shuffles are in code of the compiler that all lanes run.
_NAMING_LANES = frozenset((ops.subgroup_read, ops.subgroup_ballot, ops.subgroup_reduce, ops.subgroup_barrier))


class Votes(NamedTuple):
    """The code at begin and end of a region. ``members`` emits the mask of the lanes that run it; ``vote``, given its results, emits which
    lanes continue."""

    members: Callable[[], str]
    vote: Callable[[Sequence[str]], None] | None = None


def _meets(region: Region) -> bool:
    return not _NAMING_LANES.isdisjoint(region.codes)


def _is_uniform(op: Op) -> bool:
    """Return whether all lanes of the current region run the control operation the same way."""
    return bool(op.attr.uniform) if op.code is ops.for_ else op.attr == ops.UNIFORM


def votes_of(e: FunctionEmitter, op: Op, ballot: Callable[[str], str], members: str) -> dict[Region, Votes]:
    """Emit the begin of the control operation ``op`` if lanes meet in it, and return the votes of its regions. ``ballot`` emits a vote on
    an i1 by the lanes of the current region; ``members``: "" for all."""
    if _is_uniform(op) or not any(map(_meets, op.regions)) or any(ops.workgroup_barrier in region.codes for region in op.regions):
        return {}
    if op.code is ops.if_:
        takes = e.env[op.args[0]]
        conditions = zip(op.regions, (takes, e.value(f"xor i1 {takes}, true")))
        return {region: Votes(_constant(ballot(holds))) for region, holds in conditions if _meets(region)}
    return _of_for(e, op, ballot) if op.code is ops.for_ else _of_while(e, op, ballot, members)


def _constant(mask: str) -> Callable[[], str]:
    return lambda: mask


def _kept(e: FunctionEmitter, mask: str) -> tuple[Callable[[], str], Callable[[str], None]]:
    """Return functions that read and set a variable whose initial value is ``mask``."""
    place = e.name()
    e.entry.append(e.module.stack(place, "i32", 4))

    def keep(mask: str) -> None:
        e.line(f"store i32 {mask}, ptr {place}")

    keep(mask)
    return lambda: e.value(f"load i32, ptr {place}"), keep


def _of_for(e: FunctionEmitter, op: Op, ballot: Callable[[str], str]) -> dict[Region, Votes]:
    """Return the votes of a `for`. All lanes run loops between constants."""
    begin, end = op.args[:2]
    if begin.code is ops.const and end.code is ops.const:
        return {}
    (body,), t = op.regions, begin.type
    assert isinstance(t, DType)
    less, kind = "slt" if t.is_signed else "ult", type_name(t)
    last = e.env[end]
    members, keep = _kept(e, ballot(e.value(f"icmp {less} {kind} {e.env[begin]}, {last}")))

    def go_on(_: Sequence[str]) -> None:
        following = e.value(f"add {kind} {e.env[body.params[0]]}, 1")
        keep(ballot(e.value(f"icmp {less} {kind} {following}, {last}")))

    return {body: Votes(members, go_on)}


def _of_while(e: FunctionEmitter, op: Op, ballot: Callable[[str], str], outer: str) -> dict[Region, Votes]:
    condition, body = op.regions
    members, keep = _kept(e, outer or ballot("true"))
    return {condition: Votes(members, lambda values: keep(ballot(values[0]))), body: Votes(members)}

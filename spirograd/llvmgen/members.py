"""Which lanes of a subgroup run a branch or an iteration that contains subgroup operations: a vote before it, over its condition.

Instructions of NVIDIA's GPUs name the lanes that run them together (member masks). The lanes that are active at the same moment may be
fewer, since a warp that has diverged need not have reconverged. Branches and loops with a barrier of the workgroup are run by all of its
invocations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from spirograd.base.dtypes import DType
from spirograd.ir import ops
from spirograd.ir.nodes import Op, Region
from spirograd.llvmgen.module import type_name

if TYPE_CHECKING:
    from spirograd.llvmgen.gpu import GpuEmitter

_MEETING = frozenset((ops.subgroup_read, ops.subgroup_ballot, ops.subgroup_reduce, ops.subgroup_barrier))


class Votes(NamedTuple):
    """What a region begins and ends with: ``members`` emits the mask of the lanes that run it; ``vote``, given what it yields, says which
    lanes go on."""

    members: Callable[[], str]
    vote: Callable[[Sequence[str]], None] | None = None


def _meets(region: Region) -> bool:
    return not _MEETING.isdisjoint(region.codes)


def vote(e: GpuEmitter, op: Op) -> None:
    """Emit what the control operation ``op`` begins with, if lanes meet in it, and enter the votes of its regions in ``e.votes``."""
    if not any(map(_meets, op.regions)) or any(ops.workgroup_barrier in region.codes for region in op.regions):
        return
    if op.code is ops.if_:
        takes = e.env[op.args[0]]
        for region, holds in zip(op.regions, (takes, e.value(f"xor i1 {takes}, true"))):
            if _meets(region):
                taking = e.dialect.ballot(e, holds)
                e.votes[region] = Votes(lambda taking=taking: taking)  # type: ignore[misc]
    elif op.code is ops.for_:
        _vote_for(e, op)
    else:
        _vote_while(e, op)


def _kept(e: GpuEmitter, mask: str) -> tuple[Callable[[], str], Callable[[str], None]]:
    """How to read and to set a variable that is ``mask`` at first."""
    place = e.name()
    e.entry.append(e.module.stack(place, "i32", 4))

    def keep(mask: str) -> None:
        e.line(f"store i32 {mask}, ptr {place}")

    keep(mask)
    return lambda: e.value(f"load i32, ptr {place}"), keep


def _vote_for(e: GpuEmitter, op: Op) -> None:
    """Loops between constants are run by all."""
    begin, end = op.args[:2]
    if begin.code is ops.const and end.code is ops.const:
        return
    (body,), t = op.regions, begin.type
    assert isinstance(t, DType)
    less, kind = "slt" if t.is_signed else "ult", type_name(t)
    last = e.env[end]
    members, keep = _kept(e, e.dialect.ballot(e, e.value(f"icmp {less} {kind} {e.env[begin]}, {last}")))

    def go_on(_: Sequence[str]) -> None:
        following = e.value(f"add {kind} {e.env[body.params[0]]}, 1")
        keep(e.dialect.ballot(e, e.value(f"icmp {less} {kind} {following}, {last}")))

    e.votes[body] = Votes(members, go_on)


def _vote_while(e: GpuEmitter, op: Op) -> None:
    condition, body = op.regions
    members, keep = _kept(e, e.members or e.dialect.ballot(e, "true"))
    e.votes[condition] = Votes(members, lambda values: keep(e.dialect.ballot(e, values[0])))
    e.votes[body] = Votes(members)

"""The fault sites and print sites of a kernel, numbered."""

from __future__ import annotations

from spirograd.base.artifact import FaultSite, PrintSite
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op

_SITES = frozenset((ops.check, ops.print_))


def collect_sites(kernel: Kernel) -> tuple[tuple[FaultSite, ...], tuple[PrintSite, ...]]:
    """Return the fault and print sites of ``kernel`` in order of first appearance. The index in each tuple is the number of the site."""
    faults: dict[FaultSite, None] = {}
    prints: dict[PrintSite, None] = {}
    for op in kernel.walk() if not _SITES.isdisjoint(kernel.codes) else ():
        if op.code is ops.check:
            faults.setdefault(op.attr)
        elif op.code is ops.print_:
            prints.setdefault(op.attr)
    return tuple(faults), tuple(prints)


def is_space_check(op: Op) -> bool:
    """Return whether ``op`` checks the size of an index space."""
    return op.code is ops.check and op.attr.code == "space"

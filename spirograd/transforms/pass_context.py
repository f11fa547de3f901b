"""The inputs of a pass other than the kernel."""

from __future__ import annotations

from spirograd.base.artifact import ArgBlock, FaultSite, PrintSite
from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.base.records import dataclass


@dataclass(frozen=True, slots=True)
class PassContext:
    """The device, the options, and the results of earlier steps of the pipeline.

    ``block``: the argument block, from `layout.arg_block`, or None before the pipeline has fixed it (`layout` then computes it).
    ``faults``, ``prints``: the numbered sites that `diagnostics` refers to.
    """

    caps: Capabilities
    options: CompileOptions
    block: ArgBlock | None = None
    faults: tuple[FaultSite, ...] = ()
    prints: tuple[PrintSite, ...] = ()

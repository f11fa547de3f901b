"""At the end of a kernel that deactivates: the numbers of those cells become free."""

from __future__ import annotations

from spirograd.lang.annotations import template
from spirograd.lang.frontend.func import func
from spirograd.lang.frontend.inlining import inline
from spirograd.lang.frontend.tracer import Tracer


@func
def _collect(region: template()) -> None:  # type: ignore[valid-type]
    first = region.free_count[None]
    count = region.freed_count[None]
    for k in range(count):
        region.free[first + k] = region.freed[k]
    region.free_count[None] = first + count
    region.freed_count[None] = 0
    if first + count == region.used[None]:  # none is active: begin anew, so that loops have no iterations
        region.used[None] = 0
        region.free_count[None] = 0


def collect(t: Tracer) -> None:
    """Make the cells that the kernel has deactivated free for activation, at its end."""
    for region in t.freed_regions:
        assert t.b.loc is not None
        inline(t, _collect, {"region": region}, frozenset(("region",)), t.b.loc)

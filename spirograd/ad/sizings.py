"""Statistics of gradient launches: how the sizes of their adstacks were determined."""

from __future__ import annotations

from spirograd.base.records import dataclass
from spirograd.lang import context


@dataclass(frozen=True, slots=True)
class Sizings:
    """Launches of gradients with adstacks, by how the sizes of these were found.

    ``known``: computed by the host, from constants, arguments, shapes and (on the CPU) memory, without running anything. ``reused``:
    nothing that the sizes depend on has changed since the last launch of that kernel. ``counted``: kernels counted iterations. On devices
    that run on their own they leave the counts there, for the gradient right after; ``waited`` is how often the host waited for such
    counts, because it knew too little to set memory aside: mostly at the first launch, which is among those counted, too.
    """

    known: int
    reused: int
    counted: int
    waited: int


def sizings(reset: bool = False) -> Sizings:
    """Return how launches of gradients found the sizes of their adstacks, counted since `init`, or since the last ``sizings(reset=True)``.

    Plans (`kernel.grad.memory_plan`) and gradients without adstacks do not count, nor do those of the interpreter, whose adstacks grow.
    """
    sized = context.session().adstack_sizings(reset)
    return Sizings(*[sized.get(name, 0) for name in ("known", "reused", "counted", "waited")])

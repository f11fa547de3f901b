"""The result of differentiating a kernel: the derivative, the kernels that size its adstacks, and what is known about it."""

from __future__ import annotations

from spirograd.base.artifact import AdstackLoop, AdstackSizing
from spirograd.base.loc import Loc
from spirograd.base.nesting import Nesting
from spirograd.base.records import dataclass
from spirograd.base.sizes.size_nodes import Size
from spirograd.ir.nodes import AdstackRef, ArrayRef, FieldRef, Kernel

Outer = FieldRef | ArrayRef


@dataclass(frozen=True, slots=True)
class Slice:
    """The elements of memory at one ``index`` of one ``axis``, which the host can know at launch (usually a time step)."""

    axis: int
    index: Size


@dataclass(frozen=True, slots=True)
class Residual:
    """A residual: primal memory that a gradient kernel reads.

    ``when``: the state that it reads: "before" the primal runs (also for memory that the primal does not write), or "after" it. ``loc``:
    the location of a read. ``overwritten``: the location of the write by which the primal changes the memory afterwards, if there is one;
    then the state after the primal does not serve. ``at``: the slice that is read, or None if it may be any part of the memory.
    """

    ref: Outer
    when: str
    loc: Loc | None
    overwritten: Loc | None = None
    at: Slice | None = None


@dataclass(frozen=True, slots=True)
class PrimalAccess:
    """Memory that the primal reads or writes. ``at``: as in `Residual`."""

    ref: Outer
    loc: Loc | None
    at: Slice | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """A description of an adstack for users: its loop, its contents, its purpose. ``bytes``: the bytes of an entry; ``every``: the number
    of iterations that share one entry. ``entries``: the number of entries that it must hold, if an expression gives it. ``number``: the
    number of the loop, see `loop_numbers`. ``most``: the largest trip count of the loop, if it is part of a nest."""

    adstack: AdstackRef
    loop: Loc | None
    what: str
    why: str
    every: int = 1
    entries: Size | None = None
    number: int = 0
    most: int | None = None

    @property
    def bytes(self) -> int:
        return self.adstack.dtype.size * self.adstack.width


@dataclass(frozen=True, slots=True)
class Saving:
    """The kernel that saves values which the derivative needs and memory does not keep. ``kernel`` does what the primal does and saves the
    values. ``loads``: the locations of their reads, and where the memory is overwritten.

    ``buffers``: the saved-value buffers, which are array arguments of ``kernel`` and of the derivative, after the arguments of the primal.
    ``sizes``: rows and columns of each, or None where ``counting``, which runs before ``kernel``, returns them (both for each buffer, in
    order). ``counting_writes``: the memory that ``counting`` writes, as the primal does, and that must be restored.
    """

    kernel: Kernel
    counting: Kernel | None
    buffers: tuple[ArrayRef, ...]
    sizes: tuple[tuple[Size | None, Size | None], ...]
    loads: tuple[Residual, ...]
    counting_writes: bool = False


@dataclass(frozen=True, slots=True)
class Mention:
    """Memory, and the location of an access to it."""

    ref: Outer
    loc: Loc | None


@dataclass(frozen=True, slots=True)
class Counting:
    """A kernel with the arguments of a derivative that returns the capacities ``numbers`` of its adstacks, as i32. If it has the argument
    `analysis.adstacks.SIZES`, it stores them there by number. It may use adstacks itself, whose capacities are computed before it runs."""

    kernel: Kernel
    numbers: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Derivative:
    """A derivative as a kernel with the arguments of its primal.

    ``capacities``: by number (`AdstackRef.capacity`), the iterations that an adstack must hold: a size expression if the host can know it
    at launch, or None if a kernel of ``sizing`` counts it. These kernels run right before the derivative, in order. ``saving``: set if the
    derivative needs values that the primal must save, which only a tape allows. ``residuals``: primal memory that ``kernel`` and ``sizing``
    read; ``reads``, ``writes``: memory that the primal reads and writes. ``active_outputs``: memory whose gradient flows into ``kernel``;
    ``active_inputs``: memory to whose gradient it adds. ``inactive_writes``: memory without gradient to which the primal writes values that
    depend on active inputs; ``inactive_reads``: memory without gradient on which active outputs depend; ``relays``: pairs of memory
    without gradient, where the values of the second depend on those of the first; ``broken``: such memory that the primal writes and then
    reads (writing, reading). ``casts``: memory that depends on active inputs only through the conversion to an integer at this
    location; ``stops``: the locations of values that depend on active inputs and pass on no derivatives. ``recomputed``: the number of
    operations on floats of the primal that run again, by the line of the loop around them (None: in no serial loop). ``nesting``: the
    nested checkpoints, if there are any.
    """

    kernel: Kernel
    sizing: tuple[Counting, ...] = ()
    capacities: tuple[Size | None, ...] = ()
    saving: Saving | None = None
    residuals: tuple[Residual, ...] = ()
    reads: tuple[PrimalAccess, ...] = ()
    writes: tuple[PrimalAccess, ...] = ()
    records: tuple[Record, ...] = ()
    active_outputs: tuple[Mention, ...] = ()
    active_inputs: tuple[Mention, ...] = ()
    inactive_writes: tuple[Mention, ...] = ()
    inactive_reads: tuple[Mention, ...] = ()
    relays: tuple[tuple[Mention, Mention], ...] = ()
    broken: tuple[Mention, Mention] | None = None
    warnings: tuple[str, ...] = ()
    casts: tuple[Mention, ...] = ()
    stops: tuple[Loc, ...] = ()
    recomputed: tuple[tuple[Loc | None, int], ...] = ()
    nesting: Nesting | None = None

    @property
    def adstack_sizing(self) -> AdstackSizing:
        """Return the sizes and kernels that a launch needs to allocate adstacks."""
        # Expressions with integer values, independent of their evaluation.
        exact = {record.adstack.capacity for record in self.records if record.entries is not None}
        exact |= {k for k, size in enumerate(self.capacities) if size is not None}
        loops = tuple(
            [AdstackLoop(r.adstack.name, r.loop, r.number, r.bytes, r.every, r.adstack.capacity, r.most is not None) for r in self.records]
        )
        return AdstackSizing(self.capacities, tuple([counting.numbers for counting in self.sizing]), frozenset(exact), loops)

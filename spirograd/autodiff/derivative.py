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
class Residual:
    """Primal memory that a gradient kernel reads.

    ``when``: as it is "before" the primal runs (also of memory that the primal does not write), or as the primal leaves it ("after").
    ``loc``: of a read of it; ``overwritten``: of the write of the primal that comes in between, if there is one: then memory as it is
    after the primal does not do. ``first``: the first index of what is read, where the host can know it at launch (a time step, as a
    rule); None: any part of the memory.
    """

    ref: Outer
    when: str
    loc: Loc | None
    overwritten: Loc | None = None
    first: Size | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """Primal memory that the primal reads or writes. ``first``: as of `Residual`."""

    ref: Outer
    loc: Loc | None
    first: Size | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """An adstack of a gradient kernel, in words: which loop, what is in it, why. ``bytes``: of an entry; ``every``: so many
    iterations have one. ``entries``: how many it must hold, where an expression says that, wherever it is evaluated. ``number``: of the
    loop, see `loop_numbers`. ``most``: of a loop inside of a nest, how many iterations it has at most."""

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
    """How the primal has to be run so that its derivative can be had: some of what it reads no memory keeps (``loads``: where, and where
    it is overwritten), so ``kernel`` does what the primal does and saves it.

    ``buffers``: the saved-value buffers, which are array arguments of ``kernel`` and of the derivative behind those of the primal;
    ``sizes``: rows and columns of each; None where they are what ``counting`` returns (both for each buffer, in order), which runs before
    ``kernel``. ``counting_writes``: it writes what the primal writes, which is to be put back.
    """

    kernel: Kernel
    counting: Kernel | None
    buffers: tuple[ArrayRef, ...]
    sizes: tuple[tuple[Size | None, Size | None], ...]
    loads: tuple[Residual, ...]
    counting_writes: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Memory and where the source mentions it."""

    ref: Outer
    loc: Loc | None


@dataclass(frozen=True, slots=True)
class Counting:
    """A kernel with the arguments of a derivative that returns capacities of its adstacks, in i32: those of ``numbers``; or stores them, by
    number, to the argument `analysis.adstacks.SIZES` if it has that. It may use adstacks itself, whose capacities are found before."""

    kernel: Kernel
    numbers: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Derivative:
    """A derivative as a kernel with the arguments of its primal.

    ``capacities``: by number (`AdstackRef.capacity`), the iterations that an adstack must hold: a size expression where the host can know
    it at launch, None where one of ``sizing`` counts it, to run right before, in this order.
    ``saving``: set if the derivative needs values that the primal has to save, which only an Adstack lets it do.
    ``residuals``: primal memory that ``kernel`` and ``sizing`` read; ``reads``, ``writes``: what the primal reads and writes.
    ``active_outputs``: memory whose gradient flows into ``kernel``, ``active_inputs``: memory whose gradient it adds to.
    ``inactive_writes``: memory without gradient to which the primal writes values that depend on active inputs; ``inactive_reads``: memory
    without gradient on which active outputs depend; ``broken``: such memory that the primal writes, and reads after that (writing,
    reading). ``recomputed``: how many operations on floats of the primal run again, by the line of the loop around them (None: of no
    serial loop). ``nesting``: of its nested checkpoints, if it has any.
    """

    kernel: Kernel
    sizing: tuple[Counting, ...] = ()
    capacities: tuple[Size | None, ...] = ()
    saving: Saving | None = None
    residuals: tuple[Residual, ...] = ()
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    records: tuple[Record, ...] = ()
    active_outputs: tuple[Place, ...] = ()
    active_inputs: tuple[Place, ...] = ()
    inactive_writes: tuple[Place, ...] = ()
    inactive_reads: tuple[Place, ...] = ()
    broken: tuple[Place, Place] | None = None
    warnings: tuple[str, ...] = ()
    recomputed: tuple[tuple[Loc | None, int], ...] = ()
    nesting: Nesting | None = None

    @property
    def adstack_sizing(self) -> AdstackSizing:
        """What a launch needs to know of ``capacities`` and ``sizing``."""
        # Integers that an expression gives, whoever evaluates it.
        exact = {record.adstack.capacity for record in self.records if record.entries is not None}
        exact |= {k for k, size in enumerate(self.capacities) if size is not None}
        loops = tuple(
            [AdstackLoop(r.adstack.name, r.loop, r.number, r.bytes, r.every, r.adstack.capacity, r.most is not None) for r in self.records]
        )
        return AdstackSizing(self.capacities, tuple([counting.numbers for counting in self.sizing]), frozenset(exact), loops)

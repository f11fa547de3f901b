"""`CompiledKernel`, the result of the compiler: plain data that can be pickled, except for the interpreter's callable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Annotated, Union

from spirograd.base.constraints import Axis, Count, Index, NBytes, Role, Within, one_of
from spirograd.base.dtypes import DType
from spirograd.base.loc import Loc
from spirograd.base.options import Alternative
from spirograd.base.records import dataclass, replace
from spirograd.base.sizes.size_nodes import Size
from spirograd.base.targets import TARGETS, Target, TargetName

_BUFFERS = ("tree", "array", "temps", "adstacks", "fault", "print", "locks")
_ADSTACK_WORDS = ("adstack_base", "adstack_pitch", "adstack_capacity", "adstack_claims", "adstack_heap_words", "adstack_slots")
SlotKind = Annotated[str, one_of(*_BUFFERS, *_ADSTACK_WORDS, "scalar", "shape", "seed", "launch")]
BlockOffset = Annotated[int, Within(0, 1 << 20)]
GroupSize = Annotated[int, Within(1, 1 << 20)]


@dataclass(frozen=True, slots=True)
class Slot:
    """One entry of the argument block that every task of a kernel receives.

    ``kind`` is the meaning of the entry: ``"tree"`` address (u64) of the buffer of field tree ``index`` ``"array"`` address (u64) of array
    argument ``index``; ``role``: "primal", "grad", "dual", "grad_dual" ``"temps"`` address (u64) of the kernel's temporaries (cross-task
    values, return values) ``"fault"`` address (u64) of the fault record ``"print"`` address (u64) of the print ring ``"locks"`` address
    (u64) of `LOCK_WORDS` words, zero between launches, that guard atomics which the device lacks ``"scalar"`` scalar argument ``index``, of
    type ``dtype`` ``"shape"`` extent (i32) of axis ``axis`` of array argument ``index`` ``"adstacks"`` address (u64) of the memory of
    adstacks; what a launch says about them is in the kinds of `adstack_layout.AdstackWord`: ``"adstack_base"`` where adstack ``index``
    begins in it, in elements (i32) ``"adstack_pitch"`` elements (i32) from one entry of adstack ``index`` to the next, or, where thread
    slots lie one after the other, from one to the next ``"adstack_capacity"`` entries (i32, at least 1) of the adstacks with capacity
    number ``index`` ``"adstack_heap_words"`` 32-bit words (i32) of the memory of adstacks, for launches that place their adstacks on the
    device ``"adstack_slots"`` invocations (i32) of task number ``index``, for the same; where thread slots lie one after the other, its
    thread slots (at least 1) ``"seed"`` random seed of this launch (u32) ``"launch"`` number of this launch (u32), for prints and faults
    ``offset`` is the byte offset in the block (naturally aligned: 8-byte entries first).
    """

    kind: SlotKind
    index: Index = 0
    axis: Axis = 0
    role: Role = "primal"
    dtype: DType | None = None
    offset: BlockOffset = 0

    @property
    def is_buffer(self) -> bool:
        return self.kind in _BUFFERS


# Format characters of `struct` for scalars. Addresses are packed as u64.
STRUCT_CODES = {"i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f32": "f", "f64": "d"}


@dataclass(frozen=True, slots=True)
class ArgBlock:
    """The layout of the argument block: ``slots`` in order of offset, their ``struct`` format (little endian, padded), and the size in
    bytes."""

    slots: tuple[Slot, ...]
    format: str
    size: BlockOffset


@dataclass(frozen=True, slots=True)
class Work:
    """The work of code that runs once, counted in its IR. ``nbytes``: bytes of loads, stores and atomics; ``operations``: operations on
    floats (an addition, a multiplication and a function count 1 each). ``exact``: False if both are lower bounds."""

    nbytes: Count = 0
    operations: Count = 0
    exact: bool = True


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """One dispatch. ``begin`` and ``end`` are None if only the device knows them; the task then strides over bounds that it computes.

    ``places``: whether the task only places the adstacks of later tasks. The adstacks keep their places as long as their sizes do not
    change. ``coarsening``: iterations that an invocation runs at a time. ``strides`` (GPUs, by LLVM): see `analysis.workgroups.strides`.
    ``lanes``: the largest number of iterations that a thread runs as lanes of vectors, each with a thread slot. ``max_groups``: the
    largest number of workgroups to dispatch (0: the limit of the device). ``loops``: whether an iteration contains loops. ``bindings``
    (targets without addresses): for each storage buffer of descriptor set 0, the offsets of addresses in the argument block. With one
    offset, the buffer is bound to that allocation, from its first byte on. With several, one buffer holds all these allocations and is
    bound from its start; the argument block has the byte offset (u32) of each allocation in the buffer. ``work``: the work of an iteration.
    ``source``: the number, in the order of `Region.walk`, of the operation of kernel IR at the task's source location; -1 if there is none.
    ``grouped``: whether the task was a grouped loop; an iteration of native code is then a group. ``alternatives``: decisions contrary to
    those of the cost model that are worth a measurement.
    """

    name: str
    kind: Annotated[str, one_of("serial", "range_for")]
    entry: str  # symbol or entry point
    binary: Index  # index into CompiledKernel.binaries; 0 in native code
    begin: Size | None = 0
    end: Size | None = 1
    group_size: GroupSize = 1
    max_groups: Count = 0
    loops: bool = False
    places: bool = False
    lanes: GroupSize = 1
    coarsening: GroupSize = 1
    strides: bool = False
    bindings: tuple[tuple[BlockOffset, ...], ...] = ()
    work: Work = field(default_factory=Work)
    source: Annotated[int, Within(-1, 0x7FFFFFFF)] = -1
    grouped: bool = False
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class FaultSite:
    """A check that can fail: code 'assert' | 'bounds' | 'overflow' | 'adstack' | 'loop' | 'nan' | 'space' | 'cells', a template of the
    message, and the source location.

    The message may use ``{0}``, ``{1}`` ... for operands; ``dtypes`` are the types of the operand words. ``most``: for code 'space', which
    checks the size of an index space, the upper limit of the product of the operands.
    """

    code: str
    message: str
    dtypes: tuple[DType, ...]
    loc: Loc | None
    most: Count = 0

    def with_operands(self, dtypes: tuple[DType, ...]) -> FaultSite:
        """Return the same check with operands of these types."""
        return replace(self, dtypes=dtypes)


@dataclass(frozen=True, slots=True)
class SpaceLimit:
    """A limit of an index space, which the host checks before a launch. The space is allowed if one of its ``sizes``, none of which is
    negative, is 0, or if their product is at most ``most`` and each is at most its entry in ``largest``. ``site``: the fault to report
    otherwise."""

    sizes: tuple[Size, ...]
    largest: tuple[Count, ...]
    most: Count
    site: FaultSite


@dataclass(frozen=True, slots=True)
class DisjointArray:
    """An array argument in a role that the code assumes to overlap no other one of `CompiledKernel.disjoint`, unless the kernel writes
    neither.

    ``index``, ``role``: those of its `Slot`. ``ndim``: its axes; ``nbytes``: the bytes of an element, with all components. ``written``:
    whether the kernel writes it.
    """

    index: Index
    role: Role
    ndim: Axis
    nbytes: NBytes
    written: bool


@dataclass(frozen=True, slots=True)
class PrintSite:
    """A ``print``: ``parts`` are literal strings or pairs (index into ``dtypes``, format specification); ``dtypes`` are the types of the
    words written."""

    parts: tuple[str | tuple[Index, str], ...]
    dtypes: tuple[DType, ...]
    loc: Loc | None


@dataclass(frozen=True, slots=True)
class AdstackInfo:
    """An adstack: an entry of ``width`` elements of ``dtype`` for each iteration. The capacity with number ``capacity`` of a launch is the
    number of entries.

    Each concurrent invocation of the task named ``task`` has a thread slot of its own; if ``task`` is None, the serial tasks share one.
    ``slots``: the number of the size that counts the invocations that use the adstack, if the launch may have more. ``claimed``: whether
    these are the invocations that pass a guard, each of which claims a thread slot, and not the first ones. ``threads``: the number of
    threads of a group that share a thread slot, on the CPU, which runs them one after the other.
    """

    name: str
    dtype: DType
    width: GroupSize
    capacity: Index
    task: str | None
    slots: Index | None = None
    claimed: bool = False
    threads: GroupSize = 1

    @property
    def guard(self) -> int | None:
        """The number of the size that counts the iterations that pass the guard of this adstack; None if it has none."""
        return self.slots if self.claimed else None

    @property
    def words(self) -> int:
        """32-bit words of an entry."""
        return self.threads * self.width * self.dtype.size // 4


@dataclass(frozen=True, slots=True)
class AdstackLoop:
    """The loop of an adstack. ``adstack``: the name of the adstack; ``nbytes``: the bytes of an entry; ``every``: the number of iterations
    per entry; ``capacity``: the number of its capacity. ``number``: the number of the loop in the kernel; ``inner``: whether the loop is
    inside a nest of checkpoints, so that its iterations are not those of the source."""

    adstack: str
    loc: Loc | None
    number: Index
    nbytes: NBytes
    every: Annotated[int, Within(1, 1 << 62)]
    capacity: Index
    inner: bool = False


@dataclass(frozen=True, slots=True)
class AdstackSizing:
    """The computation of the capacities of a derivative's adstacks. ``sizes``: an expression for each number (`AdstackInfo.capacity`), or
    None if a kernel counts it; ``counted``: the numbers that each counting kernel returns, in the order in which these run. ``exact``: the
    numbers of sizes for which host and device get the same value. ``loops``: the loop of each adstack."""

    sizes: tuple[Size | None, ...] = ()
    counted: tuple[tuple[Index, ...], ...] = ()
    exact: frozenset[Index] = frozenset()
    loops: tuple[AdstackLoop, ...] = ()


MemoryKind = Annotated[str, one_of("tree", "array")]
Stage = Union[str, bytes]  # text, or the bytes of a module


def part_name(key: int, role: str) -> str:
    """Return the name of a field (`FieldRef.key`) among the parts of its tree, such as "7" or "7.grad". It is the same in all processes
    that share a cache, because keys are part of the cache key."""
    return str(key) if role == "primal" else f"{key}.{role}"


@dataclass(frozen=True, slots=True)
class Effects:
    """The memory that a kernel may read and write: ``("tree", id)`` or ``("array", argument)``, and the parts of it (the `part_name` of a
    field, or the role of an array). The runtime increases generations by it. Memory without parts may be read or written anywhere."""

    reads: frozenset[tuple[MemoryKind, Index]] = frozenset()
    writes: frozenset[tuple[MemoryKind, Index]] = frozenset()
    parts_read: frozenset[tuple[MemoryKind, Index, str]] = frozenset()
    parts_written: frozenset[tuple[MemoryKind, Index, str]] = frozenset()

    def all_read(self) -> list[tuple[str, int, str]]:
        """Return all memory that is read, in order, with "" for unknown parts."""
        return _with_parts(self.reads, self.parts_read)

    def all_written(self) -> list[tuple[str, int, str]]:
        """Return all memory that is written, in order, with "" for unknown parts."""
        return _with_parts(self.writes, self.parts_written)


def _with_parts(memory: frozenset[tuple[str, int]], parts: frozenset[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    named = {(kind, index) for kind, index, _ in parts}
    return sorted(parts | {(kind, index, "") for kind, index in memory - named})


@dataclass(slots=True, eq=False)
class CompiledKernel:
    """A kernel ready to load on one device.

    ``binaries``: SPIR-V modules, one per ``TaskInfo.binary`` index; or the files of one library of native code. ``returns``: (dtype, byte
    offset in temps) of each scalar returned. ``stages``: text or bytes of every stage by its name, for dumps and ``kernel.ir()``.
    ``stage_locs``: for stages of IR, the location of each line. ``run``: the interpreter's callable, ``run(block: bytes, memory)``.
    ``space_limits``: limits that the launcher checks before each launch. ``recursive``: whether functions call themselves. ``disjoint``:
    arrays that the launcher compares before each launch: if they overlap, it runs code that was compiled for arrays that do. Modules of
    `aot` contain that code as ``overlapping``; sessions compile it when it is first needed. ``temps_growth``: the bytes of temporaries
    after ``temps_size`` that a launch needs.
    """

    name: str
    target_name: TargetName
    key: str
    args: ArgBlock
    tasks: tuple[TaskInfo, ...]
    binaries: tuple[bytes, ...] = ()
    temps_size: NBytes = 0
    returns: tuple[tuple[DType, NBytes], ...] = ()
    faults: Sequence[FaultSite] = ()
    prints: tuple[PrintSite, ...] = ()
    effects: Effects = field(default_factory=Effects)
    adstacks: tuple[AdstackInfo, ...] = ()
    stages: dict[str, Stage] = field(default_factory=dict)
    run: Callable[..., None] | None = None
    stage_locs: dict[str, tuple[Loc | None, ...]] = field(default_factory=dict)
    space_limits: tuple[SpaceLimit, ...] = ()
    recursive: bool = False
    disjoint: tuple[DisjointArray, ...] = ()
    overlapping: CompiledKernel | None = None
    temps_growth: Size = 0

    @property
    def target(self) -> Target:
        return TARGETS[self.target_name]

    @property
    def alternatives(self) -> list[str]:
        """The alternatives of all tasks."""
        return sorted({name for task in self.tasks for name in task.alternatives})

    @property
    def capacities(self) -> int:
        """The number of different `AdstackInfo.capacity`. Other sizes follow them."""
        return max([adstack.capacity + 1 for adstack in self.adstacks], default=0)


# The fault record, in 32-bit words: 0 flag (exchanged to 1 by the first that fails), 1 site index, 2 launch number, 3 operand words
# written, 4... operands, each as two words (low, high), 32... a word for each of the first sites. Checks that a loop ran to its end write
# only that word: 1 + the number of the launch in which it did not (see `lower_diagnostics`).
FAULT_FLAG, FAULT_SITE, FAULT_LAUNCH, FAULT_OPERANDS, FAULT_LOOPS = 0, 1, 2, 4, 32
FAULT_LOOP_SITES = 1024
FAULT_WORDS = FAULT_LOOPS + FAULT_LOOP_SITES
# Bytes of stack for each thread of a GPU if functions call themselves: enough for 1,000 calls of a small one. The driver allocates them for
# all threads that run at the same time, 4 GiB on an H200.
GPU_STACK = 16 << 10
FAULT_MAX_OPERANDS = (FAULT_LOOPS - FAULT_OPERANDS) // 2
# The print ring, in 32-bit words: 0 words claimed so far (if more than the capacity, the rest was lost), 1 capacity in words, from 2 on
# records: site index, launch number, then each value as two words (low, high).
PRINT_WORDS = 1 << 18
PRINT_CURSOR, PRINT_CAPACITY, PRINT_DATA = 0, 1, 2
# The most scalars of an array whose indices have 32 bits: an index near the end can be offset by thousands of elements without an overflow.
NARROW = (1 << 31) - (1 << 16)
# Words of the lock table: a power of two. A lock is 1 while it is held.
LOCK_WORDS = 1 << 12

"""CompiledKernel: what the compiler hands to the runtime. Plain data, picklable (the interpreter's callable excepted)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, Union

from spirograd.base.constraints import Axis, Count, Index, NBytes, Role, Within, one_of
from spirograd.base.dtypes import DType
from spirograd.base.loc import Loc
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

    ``kind`` says what the launcher puts there:
    ``"tree"``   address (u64) of the buffer of field tree ``index``
    ``"array"``  address (u64) of array argument ``index``; ``role``: "primal", "grad", "dual", "grad_dual"
    ``"temps"``  address (u64) of the kernel's temporaries (cross-task values, return values)
    ``"fault"``  address (u64) of the fault record          ``"print"`` address (u64) of the print ring
    ``"locks"``  address (u64) of `LOCK_WORDS` words, zero between launches, that guard atomics which the device lacks
    ``"scalar"`` scalar argument ``index``, of type ``dtype``
    ``"shape"``  extent (i32) of axis ``axis`` of array argument ``index``
    ``"adstacks"``  address (u64) of the memory of adstacks; what a launch says about them is in the kinds of `adstack_layout.AdstackWord`:
    ``"adstack_base"`` where adstack ``index`` begins in it, in elements (i32)
    ``"adstack_pitch"`` elements (i32) from one entry of adstack ``index`` to the next, or, where thread slots lie one after the other, from
    one to the next
    ``"adstack_capacity"`` entries (i32, at least 1) of the adstacks with capacity number ``index``
    ``"adstack_heap_words"`` 32-bit words (i32) of the memory of adstacks, for launches that place their adstacks on the device
    ``"adstack_slots"`` invocations (i32) of task number ``index``, for the same; where thread slots lie one after the other, its thread
    slots (at least 1)
    ``"seed"``   random seed of this launch (u32)            ``"launch"`` number of this launch (u32), for prints and faults
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


# How scalars are packed, as of `struct`; addresses are of u64.
STRUCT_CODES = {"i32": "i", "u32": "I", "i64": "q", "u64": "Q", "f32": "f", "f64": "d"}


@dataclass(frozen=True, slots=True)
class ArgBlock:
    """The layout of the argument block: slots in order of offset, their ``struct`` format (little endian, padded), bytes in all."""

    slots: tuple[Slot, ...]
    format: str
    size: BlockOffset


@dataclass(frozen=True, slots=True)
class Work:
    """What runs once moves and computes, as far as its IR tells: ``nbytes`` of loads, stores and atomics, ``operations`` on floats (an
    addition, a multiplication and a function count 1 each). ``exact``: False for lower bounds."""

    nbytes: Count = 0
    operations: Count = 0
    exact: bool = True


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """One dispatch. ``begin``/``end`` are None where only the device can know them: then it strides over its own bounds.

    ``places``: it only places the adstacks of the tasks after it, which stay where they are while their sizes do.
    ``coarsening``: how many iterations an invocation runs at a time. ``operations`` (GPUs, by LLVM): of an invocation that does so once.
    ``lanes``: how many iterations a thread runs in lockstep at most, each with a thread slot.
    ``max_groups``: dispatch at most so many workgroups (0: as many as the device takes). ``loops``: whether an iteration has loops inside.
    ``bindings`` (targets without addresses): for each storage buffer of descriptor set 0, the offsets in the argument block of the
    addresses of what it holds. One: that allocation alone, from its first byte on. Several: one buffer that holds them all, bound from its
    start, and the code reads at each of these offsets of the block where in that buffer (in bytes, u32) the allocation begins.
    ``work``: of an iteration. ``source``: which operation of the kernel's IR, counted as `Region.walk` gives them, stands where the task
    does in the source; -1: none. ``grouped``: whether it comes from a grouped loop, of which an iteration of native code is a group.
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
    operations: Count = 0
    bindings: tuple[tuple[BlockOffset, ...], ...] = ()
    work: Work = field(default_factory=Work)
    source: Annotated[int, Within(-1, 0x7FFFFFFF)] = -1
    grouped: bool = False


@dataclass(frozen=True, slots=True)
class FaultSite:
    """A place that can fail: code 'assert' | 'bounds' | 'overflow' | 'adstack' | 'loop' | 'nan' | 'space' | 'cells', message template over
    the operands, where.

    The message may use ``{0}``, ``{1}`` ... for operands; ``dtypes`` says how to read each operand word. ``most``: of code 'space', which
    is about the size of an index space, what the product of the operands must not exceed.
    """

    code: str
    message: str
    dtypes: tuple[DType, ...]
    loc: Loc | None
    most: Count = 0

    def with_operands(self, dtypes: tuple[DType, ...]) -> FaultSite:
        """The same place with operands of these types."""
        return replace(self, dtypes=dtypes)


@dataclass(frozen=True, slots=True)
class SpaceLimit:
    """An index space that a launch must not exceed: the product of ``sizes``, none of them negative, is at most ``most``, and each is at
    most its entry in ``largest``; or one of them is 0. ``site``: what to say otherwise."""

    sizes: tuple[Size, ...]
    largest: tuple[Count, ...]
    most: Count
    site: FaultSite


@dataclass(frozen=True, slots=True)
class PrintSite:
    """A ``print``: parts are literal strings, or (dtype index into ``dtypes``, format spec) pairs; dtypes of the words written."""

    parts: tuple[str | tuple[Index, str], ...]
    dtypes: tuple[DType, ...]
    loc: Loc | None


@dataclass(frozen=True, slots=True)
class AdstackInfo:
    """An adstack: entries of ``width`` elements of ``dtype`` for each iteration, as many as capacity number ``capacity`` of a launch says.

    Each invocation of the task named ``task`` that runs at the same time has a thread slot of its own; ``task`` None: one, of serial tasks.
    ``slots``: the number of the size that says how many invocations use it, if the launch may have more. ``claimed``: a condition tells
    which these are, and each claims a thread slot; else they are the first ones.
    """

    name: str
    dtype: DType
    width: GroupSize
    capacity: Index
    task: str | None
    slots: Index | None = None
    claimed: bool = False

    @property
    def guard(self) -> int | None:
        """The number of the size that counts the iterations that pass the guard of this adstack; None if it has none."""
        return self.slots if self.claimed else None

    @property
    def words(self) -> int:
        """32-bit words of an entry."""
        return self.width * self.dtype.size // 4


@dataclass(frozen=True, slots=True)
class AdstackLoop:
    """The loop of an adstack. ``adstack``: its name; ``nbytes``: of an entry; ``every``: so many iterations have one; ``capacity``: the
    number of its capacity. ``number``: of the loop in the kernel; ``inner``: whether it is a loop inside of those with nested checkpoints,
    whose iterations are not those of the source."""

    adstack: str
    loc: Loc | None
    number: Index
    nbytes: NBytes
    every: Annotated[int, Within(1, 1 << 62)]
    capacity: Index
    inner: bool = False


@dataclass(frozen=True, slots=True)
class AdstackSizing:
    """How the capacities of the adstacks of a derivative are found. ``sizes``: by number (`AdstackInfo.capacity`), an expression, or None
    where a kernel counts; ``counted``: for each kernel that counts, in the order in which they run, the numbers of what it returns.
    ``exact``: the numbers of sizes that are the same, whoever finds them. ``loops``: for each adstack."""

    sizes: tuple[Size | None, ...] = ()
    counted: tuple[tuple[Index, ...], ...] = ()
    exact: frozenset[Index] = frozenset()
    loops: tuple[AdstackLoop, ...] = ()


MemoryKind = Annotated[str, one_of("tree", "array")]
# Text, or the bytes of a module: who asks for a stage knows which.
if TYPE_CHECKING:
    Stage = Any
else:
    Stage = Union[str, bytes]


def part_name(key: int, role: str) -> str:
    """What a field (`FieldRef.key`) goes by among the parts of its tree: "7", "7.grad". The same in all processes that share a cache,
    because keys are part of what is looked up there."""
    return str(key) if role == "primal" else f"{key}.{role}"


@dataclass(frozen=True, slots=True)
class Effects:
    """Which memory a kernel may read and write: ``("tree", id)``, ``("array", argument)``; and which parts of it, with the `part_name` of a
    field or the role of an array. The runtime bumps generations by it. Memory without parts is read or written anywhere."""

    reads: frozenset[tuple[MemoryKind, Index]] = frozenset()
    writes: frozenset[tuple[MemoryKind, Index]] = frozenset()
    parts_read: frozenset[tuple[MemoryKind, Index, str]] = frozenset()
    parts_written: frozenset[tuple[MemoryKind, Index, str]] = frozenset()

    def all_read(self) -> list[tuple[str, int, str]]:
        """What is read, in order, with "" for parts that are not known."""
        return _with_parts(self.reads, self.parts_read)

    def all_written(self) -> list[tuple[str, int, str]]:
        """What is written, in order, with "" for parts that are not known."""
        return _with_parts(self.writes, self.parts_written)


def _with_parts(memory: frozenset[tuple[str, int]], parts: frozenset[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    named = {(kind, index) for kind, index, _ in parts}
    return sorted(parts | {(kind, index, "") for kind, index in memory - named})


@dataclass(slots=True, eq=False)
class CompiledKernel:
    """A kernel ready to load on one device.

    ``binaries``: SPIR-V modules, one per ``TaskInfo.binary`` index; or the files of one library of native code. ``returns``: (dtype, byte
    offset in temps) of each scalar returned. ``stages``: name -> text or bytes of every stage, for dumps and ``kernel.ir()`` ...
    ``stage_locs``: for stages of IR, the location of each line. ``run``: the interpreter's callable, ``run(block: bytes, memory)``.
    ``space_limits``: what the launcher checks before each launch. ``recursive``: whether functions call themselves.
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

    @property
    def target(self) -> Target:
        return TARGETS[self.target_name]

    @property
    def capacities(self) -> int:
        """How many numbers `AdstackInfo.capacity` has; other sizes follow."""
        return max([adstack.capacity + 1 for adstack in self.adstacks], default=0)


# The fault record, in 32-bit words: 0 flag (exchanged to 1 by the first that fails), 1 site index, 2 launch number,
# 3 operand words written, 4... operands, each as two words (low, high), 32... a word for each of the first sites: of checks that a loop ran
# to its end, 1 + the launch number of one that did not, which is all that these write (see `lower_diagnostics`).
FAULT_FLAG, FAULT_SITE, FAULT_LAUNCH, FAULT_OPERANDS, FAULT_LOOPS = 0, 1, 2, 4, 32
FAULT_LOOP_SITES = 1024
FAULT_WORDS = FAULT_LOOPS + FAULT_LOOP_SITES
# Bytes of stack of each thread of a GPU for functions that call themselves: 1,000 calls of a small one. The driver allocates it for all
# threads that run at once: 4 GiB on an H200.
GPU_STACK = 16 << 10
FAULT_MAX_OPERANDS = (FAULT_LOOPS - FAULT_OPERANDS) // 2
# The print ring, in 32-bit words: 0 words claimed so far (may run past the capacity: the excess was lost), 1 capacity in words,
# from 2 on records: site index, launch number, then each value as two words (low, high).
PRINT_WORDS = 1 << 18
PRINT_CURSOR, PRINT_CAPACITY, PRINT_DATA = 0, 1, 2
# Words of the lock table: a power of two. A lock is 1 while it is held.
LOCK_WORDS = 1 << 12

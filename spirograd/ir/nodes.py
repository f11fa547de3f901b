"""The nodes of the IR: operations, regions, memory references, kernels. None is changed once built.

An operation is its own result: operands are operations. A region is a list of operations with parameters (operations of
code ``param``); its last operation is a ``yield``. Values are visible in the region that defines them and in those nested in
it, except that nothing crosses into a ``task``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import field
from enum import Enum
from itertools import chain
from typing import Annotated, Any, Union

from spirograd.base.adstack_layout import AdstackWord
from spirograd.base.artifact import Slot
from spirograd.base.constraints import Axis, Count, Index, NBytes, Within
from spirograd.base.dtypes import DType, Type
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.ops import OpCode

_LOOPS = frozenset((ops.for_, ops.while_))


@dataclass(slots=True, eq=False, repr=False)
class Op:
    """One operation. ``attr`` is hashable data whose form each entry of the op table states.

    ``primal``: in a gradient kernel, the operation of the primal that this one repeats, or whose memory it looks at. Copies keep it, as
    they keep ``loc``; neither changes what the operation computes, and the text of the IR leaves both out.
    """

    code: OpCode
    type: Type
    args: tuple[Op, ...] = ()
    attr: Any = None
    regions: tuple[Region, ...] = ()
    loc: Loc | None = None
    primal: Op | None = None

    def __repr__(self) -> str:
        return f"<{self.code.name} {self.attr if self.attr is not None else ''}: {self.type}>"


@dataclass(slots=True, eq=False)
class Region:
    """Parameters and operations; the last operation is the ``yield``."""

    params: tuple[Op, ...]
    ops: tuple[Op, ...]
    # Found once, since passes share regions that they do not change.
    _codes: frozenset[OpCode] | None = field(default=None, init=False)
    _live_ins: frozenset[Op] | None = field(default=None, init=False)
    _accesses: tuple[tuple[str, Ref], ...] | None = field(default=None, init=False)

    @property
    def codes(self) -> frozenset[OpCode]:
        """The codes of all operations in here, nested ones included."""
        if self._codes is None:
            nested = [region.codes for op in self.ops for region in op.regions]
            self._codes = frozenset([op.code for op in self.ops]).union(*nested)
        return self._codes

    @property
    def live_ins(self) -> frozenset[Op]:
        """The values that operations in here, nested ones included, take from outside. A set has no order: see `uses_from_outside`."""
        if self._live_ins is None:
            used: set[Op] = set()
            for op in self.ops:
                used.update(op.args)
                for region in op.regions:
                    used |= region.live_ins
            self._live_ins = frozenset(used.difference(self.ops, self.params))
        return self._live_ins

    @property
    def accesses(self) -> tuple[tuple[str, Ref], ...]:
        """The effects of the operations on elements of memory in here, nested ones included, each with its `ref_of`: in order of first
        appearance, once for each object that is a reference. (Hashing references is slow; equal ones may be several objects.) What calls of
        functions may do is not among them: see `accesses_of`."""
        if self._accesses is None:
            found: dict[tuple[str, int], tuple[str, Ref]] = {}
            for op in self.ops:
                if op.regions:
                    found.update([((effect, id(ref)), (effect, ref)) for region in op.regions for effect, ref in region.accesses])
                elif op.code.effect != "pure" and (ref := ref_of(op)) is not None:
                    found[op.code.effect, id(ref)] = op.code.effect, ref
            self._accesses = tuple(found.values())
        return self._accesses

    def uses_from_outside(self) -> Iterator[Op]:
        """`live_ins` in the order of their uses, once for each use: what is emitted for them must not depend on hashes."""
        outside = self.live_ins
        return (value for op in self.walk() for value in op.args if value in outside)

    @property
    def results(self) -> tuple[Op, ...]:
        """The operands of the terminator."""
        return self.ops[-1].args

    def having(self, codes: Collection[OpCode]) -> Iterator[Op]:
        """Every operation in here whose code is one of ``codes``, outer before inner, in order."""
        if not self.codes.isdisjoint(codes):
            for op in self.ops:
                if op.code in codes:
                    yield op
                for region in op.regions:
                    yield from region.having(codes)

    def walk(self) -> Iterator[Op]:
        """Every operation in here, outer before inner, in order."""
        pending = [iter(self.ops)]
        while pending:
            for op in pending[-1]:
                yield op
                if op.regions:
                    pending += [iter(region.ops) for region in reversed(op.regions)]
                    break
            else:
                pending.pop()


# --- memory references -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of an address: ``(index[axis] // div % mod) * stride`` bytes; ``mod`` 0 means no modulo."""

    axis: Axis
    div: Annotated[int, Within(1, 1 << 62)]
    mod: Count
    stride: Count


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of a field lie in the buffer of its tree.

    Byte address of element ``i``, component ``c`` (row-major number in the element shape):
    ``sum(term(i - origin)) + components[c]``. Every stride and offset is a multiple of the element's size.
    """

    terms: tuple[Term, ...]
    components: tuple[NBytes, ...] = (0,)
    origin: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FieldRef:
    """A field of tree ``tree``. Indices: one per axis of ``shape``, then one per axis of ``element_shape``. ``key`` is a number unique
    to the field, shared by all its roles: primal, grad, dual (its tangent) and grad_dual (the tangent of its grad).

    ``state``, of this and of other references: while a gradient kernel is being made, the state in which the memory has to be for a load
    that repeats one of the primal, such as "before" the primal or "after" it. References in different states differ, so that no pass takes
    one value for the other; see `autodiff.memory_states`.
    """

    name: str
    tree: int
    key: int
    dtype: DType
    shape: tuple[int, ...]
    element_shape: tuple[int, ...]
    layout: Layout
    role: str = "primal"
    state: str = ""


@dataclass(frozen=True, slots=True)
class ArrayRef:
    """Array argument ``arg``, dense and row-major, elements (of shape ``element_shape``) innermost. ``wide``: more than 2**31 - 1
    scalars, so addresses need 64 bits."""

    name: str
    arg: int
    dtype: DType
    ndim: int
    element_shape: tuple[int, ...] = ()
    role: str = "primal"
    wide: bool = False
    state: str = ""


class TempKind(Enum):
    """What a temporary is for; ``number`` of a `TempRef`: of what there are several."""

    VALUE = "value"  # what the program keeps there: variables, values that tasks share, return values
    ADJOINT = "adjoint"  # of another temporary
    CAPACITY = "capacity"  # entries that the adstacks with capacity ``number`` must hold
    GUARD_COUNT = "guard_count"  # iterations that pass the guard with size ``number``
    CLAIMS = "claims"  # thread slots claimed so far, of the guard with size ``number``
    OLD_VALUE = "old_value"  # stands for the old value of atomic ``number``, which is gone
    CHANGED = "changed"  # stands for a value of memory that has changed since
    # What the task that places adstacks finds out: of adstack, capacity, guard or task ``number``.
    ADSTACK_BASE = AdstackWord.BASE.value
    ADSTACK_PITCH = AdstackWord.PITCH.value
    ADSTACK_CAPACITY = AdstackWord.CAPACITY.value
    ADSTACK_CLAIMS = AdstackWord.CLAIMS.value
    ADSTACK_SLOTS = AdstackWord.SLOTS.value


@dataclass(frozen=True, slots=True)
class TempRef:
    """Memory of one launch: values that cross tasks, variables that parallel loops update, return values. Undefined until written.

    ``kind`` and ``number`` say what it is for. ``name`` is for readers only, and may be a name of the user's.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...] = ()
    kind: TempKind = TempKind.VALUE
    number: int = 0
    state: str = ""


@dataclass(frozen=True, slots=True)
class AdstackRef:
    """An adstack: what an invocation saves in each iteration of a loop, for the reverse of the loop. Indices: iteration (from 0), entry.

    Each invocation that runs at the same time has its own (serial code of a kernel: one, which lasts from task to task). ``capacity``:
    number of the loop among those of the kernel that have adstacks; what it means in iterations is known at launch. ``slots``: number of
    the size that says how many invocations use it, if that may be fewer than the launch has. Contents are undefined until written.
    """

    name: str
    dtype: DType
    width: int
    capacity: int
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class BufferRef:
    """Device IR: the buffer whose address is in ``slot``, seen as an array of ``dtype``. One index, in elements."""

    name: str
    slot: Slot
    dtype: DType


@dataclass(frozen=True, slots=True)
class SharedRef:
    """Memory that the invocations of a workgroup share while they run, ``length`` elements. Undefined until written."""

    name: str
    dtype: DType
    length: int


Ref = Union[FieldRef, ArrayRef, TempRef, AdstackRef, BufferRef, SharedRef]
# Memory of programs, as opposed to adstacks, shared memory, and buffers of devices.
VARIABLES = (FieldRef, ArrayRef, TempRef)
REFS = (FieldRef, ArrayRef, TempRef, AdstackRef, BufferRef, SharedRef)


def rank(ref: Ref) -> int:
    """How many indices an access to ``ref`` takes."""
    if isinstance(ref, FieldRef):
        return len(ref.shape) + len(ref.element_shape)
    if isinstance(ref, ArrayRef):
        return ref.ndim + len(ref.element_shape)
    if isinstance(ref, TempRef):
        return len(ref.shape)
    return 2 if isinstance(ref, AdstackRef) else 1


# --- attributes of operations ----------------------------------------------------------------------------------


class BuiltIn(Enum):
    """Numbers, from 0, and counts that say where an invocation stands; `thread_slot` is its number among all invocations of the
    dispatch."""

    LOCAL = "local"  # number of the invocation in its workgroup
    WORKGROUPS = "workgroups"  # how many there are in the dispatch
    LANE = "lane"  # number of the invocation in its subgroup
    SUBGROUP = "subgroup"  # number of the subgroup in its workgroup
    SUBGROUPS = "subgroups"  # how many there are in the workgroup


@dataclass(frozen=True, slots=True)
class LoopAttr:
    """Attributes of ``for``. A parallel loop carries nothing, and its iterations may run in any order; it becomes a task.

    ``grouped``: workgroups of ``group_size`` consecutive iterations, counted from the first, have barriers, shared memory or subgroups.
    ``deactivates``: it sets a cell of a sparse node to zeros, which ends the life of what derivatives would need.

    At the level "loops", a loop over the iterations of a chunk says in which order they may run: with ``any_order`` in any order, one after
    the other; with ``independent`` also at the same time, because no iteration accesses what another one writes, except by atomics and in
    memory of its thread. The loop carries one accumulator for each of ``reductions``.

    - ``vectorise``: "": LLVM may vectorise the loop; "no": it must not; "rest": it does not optimise the loop, which has few iterations;
      "vectors": the loop computes on vectors.
    - ``row``: the iterations are rows of ``row`` columns; -1: of a number that is known at launch; 0: they are no rows. The last
      loop-carried value is the first index of the chunk that lies in the row. In the loops over a chunk inside, the index less that of the
      first column (`chunk_loops.first_column`) is the number of a column.
    """

    parallel: bool = False
    name: str = ""
    group_size: int = 0  # 0: the device's default
    apart: str = ""  # the option by which it stays a task of its own; "" if it need not
    grouped: bool = False
    deactivates: bool = False
    any_order: bool = False
    independent: bool = False
    reductions: tuple[Reduction, ...] = ()
    vectorise: str = ""
    row: int = 0

    @property
    def over_chunk(self) -> bool:
        """Whether the iterations are those of a task, which may run in another order."""
        return self.any_order or self.independent


@dataclass(frozen=True, slots=True)
class Reduction:
    """A value accumulated over the iterations of a task: kind "add" | "min" | "max" | "and" | "or" | "xor" | "mul"."""

    kind: str
    dtype: DType

    @property
    def start(self) -> int | float:
        """What accumulators begin as, which changes no other operand: of sums -0.0, since 0.0 would make 0.0 of -0.0."""
        return -0.0 if self.kind == "add" and self.dtype.is_float else ops.identity(self.kind, self.dtype)


@dataclass(frozen=True, slots=True)
class PrivateCopy:
    """Memory that the iterations of a workgroup update by atomics of ``kind`` instead of what it stands for. Its last element stands for
    nothing: it takes what is out of range."""

    kind: str
    shared: SharedRef


@dataclass(frozen=True, slots=True)
class ChunkAttr:
    """What the pool of threads knows about a task whose range it cuts into chunks.

    ``work``: units of work of an iteration, estimated; ``uncontended_work``: the same without atomics, 0 if it has none. ``unit``:
    iterations that the pool hands out as one. ``lanes``: iterations that a thread runs at once, each of which has a thread slot.
    """

    work: int
    uncontended_work: int = 0
    unit: int = 1
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class TaskAttr:
    """Attributes of ``task``, one dispatch.

    The ``kind`` decides the regions:

    - "serial": (body,). One invocation runs it once.
    - "range_for": (bounds, body, finish, *flushes). ``bounds`` yields (begin, end) of the type of the index and, where adstacks limit how
      many invocations take part, the number of thread slots (i32). ``body`` takes the index and one accumulator for each entry of
      ``reductions``, and yields the next accumulators, which start at the identity. ``finish`` takes the accumulators of some iterations
      combined (of a thread, workgroup or chunk) and adds them to memory; it may run any number of times, not where there is no iteration,
      and counts no accumulator twice.
      Each entry of ``copies`` has a flush, which takes the number and the value of an element of the copy, and updates the memory that the
      copy stands for.
    - "chunks": (bounds, body) or (bounds, body, uncontended), of the level "loops" for the CPU, which a range_for task becomes. ``body``
      takes the bounds (i64) of a chunk and runs its iterations; ``uncontended`` does so without atomics, where no other thread runs any.
      ``chunks`` is its `ChunkAttr`.
    - "invocations": (body,), in device IR for GPUs, where serial and range_for tasks become this. Each invocation runs it, in workgroups of
      ``group_size``; ``coarsening`` is the number of iterations that an invocation runs at a time.

    ``places``: a serial task that only places the adstacks of the tasks after it. ``max_groups``: the task is dispatched as at most so many
    workgroups (0: any number). ``grouped``: as of `LoopAttr`. ``shares``: workgroups whose numbers have the same remainder by it run all
    iterations among them; the body does nothing twice then. At least so many workgroups are dispatched.
    """

    kind: str
    name: str
    group_size: int = 0
    reductions: tuple[Reduction, ...] = ()
    places: bool = False
    coarsening: int = 1
    copies: tuple[PrivateCopy, ...] = ()
    max_groups: int = 0
    grouped: bool = False
    shares: int = 1
    chunks: ChunkAttr | None = None


@dataclass(frozen=True, slots=True)
class MemoryCall:
    """Attribute of ``call_memory``: a function, and what it may do to which memory, at any of its elements: effects ("read", "write",
    "atomic") with references.

    ``found_in``: memory that holds the result once the kernel has run, in the element that the first operands index: derivatives, which
    run after the kernel, read it there."""

    name: str
    accesses: tuple[tuple[str, Ref], ...]
    found_in: Ref | None = None


@dataclass(frozen=True, slots=True)
class Label:
    """Attribute of ``label``: the memory to which the next ``count`` accesses are that it is about; None: it is about an iteration.
    ``atomic``: those accesses count as atomic, whatever they are, because all of them store the same value."""

    of: Ref | None = None
    count: int = 0
    atomic: bool = False


# --- kernels -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScalarArg:
    """``returned``: of a gradient kernel, the number of the returned value whose adjoint this is."""

    name: str
    dtype: DType
    returned: Index | None = None


@dataclass(frozen=True, slots=True)
class ArrayArg:
    name: str
    dtype: DType
    ndim: Axis
    element_shape: tuple[Index, ...] = ()
    needs_grad: bool = False
    wide: bool = False
    needs_dual: bool = False
    view: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Function:
    """A function that operations ``call`` of a kernel name: its body takes the operands of the call and yields the results.

    Of one that `call` names, the value depends on the operands alone: it accesses no memory, and uses no arguments of the kernel. One that
    `call_memory` names may have no results, may load, store and update fields and arrays (`accesses`), and use scalar arguments and
    extents. Neither has barriers or parallel loops. Functions may call themselves, directly or by way of others, and only those that do
    have diagnostics; apart from that, none calls a function that stands after it.
    """

    name: str
    body: Region

    @property
    def accesses(self) -> tuple[tuple[str, Ref], ...]:
        """See `MemoryCall.accesses`."""
        return tuple(dict.fromkeys([access for op in self.body.walk() for access in accesses_of(op)]))

    @property
    def result(self) -> Type:
        """The type of a call: that of the result; if there are several, a tuple of theirs, which `result` takes apart."""
        types = tuple([value.type for value in self.body.results])
        return types[0] if len(types) == 1 else types

    def with_body(self, body: Region) -> Function:
        return self if body is self.body else Function(self.name, body)


@dataclass(slots=True, eq=False)
class Kernel:
    """A kernel: flat arguments (aggregates are split by the front end), a body, and the TempRefs that hold its return values.

    Before ``offload`` the body is ordinary code whose outermost parallel ``for`` become tasks; after it the body holds only ``task``
    operations (and the terminator). ``functions``: what the body calls, callees before callers.
    """

    name: str
    args: tuple[ScalarArg | ArrayArg, ...]
    body: Region
    returns: tuple[TempRef, ...] = ()
    loc: Loc | None = None
    functions: tuple[Function, ...] = ()

    def with_body(self, body: Region, functions: tuple[Function, ...] | None = None) -> Kernel:
        """This kernel with another body, and other ``functions`` if any are given."""
        functions = self.functions if functions is None else functions
        if body is self.body and functions == self.functions:
            return self
        return Kernel(self.name, self.args, body, self.returns, self.loc, functions)

    def recursive(self) -> set[str]:
        """The functions that call themselves, directly or by way of others."""
        calls = {f.name: {name for op in f.body.walk() if (name := callee_of(op)) is not None} for f in self.functions}
        for reached in calls.values():
            while not reached >= (more := {callee for other in reached for callee in calls[other]}):
                reached |= more
        return {name for name, reached in calls.items() if name in reached}

    def looping(self) -> set[str]:
        """The functions that run loops or call themselves, or call others that do: for operands that no call has, they might not return."""
        found = self.recursive()
        for function in self.functions:
            if any(op.code in _LOOPS or callee_of(op) in found for op in function.body.walk()):
                found.add(function.name)
        return found

    @property
    def codes(self) -> frozenset[OpCode]:
        """The codes of all operations of the functions and of the body."""
        return self.body.codes.union(*[function.body.codes for function in self.functions]) if self.functions else self.body.codes

    @property
    def accesses(self) -> list[tuple[str, Ref]]:
        """The effects of the operations of the functions and of the body on elements of memory: see `Region.accesses`."""
        return [access for region in (*[f.body for f in self.functions], self.body) for access in region.accesses]

    def having(self, codes: Collection[OpCode]) -> Iterator[Op]:
        """Every operation of the functions and of the body whose code is one of ``codes``."""
        return chain.from_iterable([region.having(codes) for region in (*[f.body for f in self.functions], self.body)])

    def walk(self) -> Iterator[Op]:
        """Every operation of the functions and of the body."""
        return chain.from_iterable([region.walk() for region in (*[f.body for f in self.functions], self.body)])


def called(functions: Sequence[Function], regions: Sequence[Region]) -> tuple[Function, ...]:
    """Those of ``functions``, callees before callers, that ``regions`` call, or that those call."""
    names = {callee_of(op) for region in regions for op in region.walk()} if functions else set()
    before = -1
    while before < len(names):  # functions that call themselves may name some that stand after them
        before = len(names)
        for function in reversed(functions):
            if function.name in names:
                names.update([callee_of(op) for op in function.body.walk()])
    return tuple([function for function in functions if function.name in names])


def callee_of(op: Op) -> str | None:
    """The name of the function that ``op`` calls, if it is a call."""
    if op.code is ops.call:
        name: str = op.attr
        return name
    return op.attr.name if op.code is ops.call_memory else None


def accesses_of(op: Op) -> tuple[tuple[str, Ref], ...]:
    """What ``op`` itself, not what is in its regions, may do to memory: pairs of an effect ("read", "write", "atomic") and a reference.

    `ref_of` says the same of operations on one element; those of a call may be of any element.
    """
    if op.code is ops.call_memory:
        accesses: tuple[tuple[str, Ref], ...] = op.attr.accesses
        return accesses
    ref = ref_of(op)
    return () if ref is None else ((op.code.effect, ref),)


def ref_of(op: Op) -> Ref | None:
    """The memory whose element ``op`` accesses, if it is an operation on one element."""
    attr = op.attr
    if attr is None:
        return None
    if isinstance(attr, REFS):
        return attr
    if isinstance(attr, tuple) and len(attr) == 2 and isinstance(attr[1], REFS):
        return attr[1]
    return None

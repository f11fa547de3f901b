"""The nodes of the IR: operations, regions, memory references, kernels. Nodes are not changed once built.

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

from spirograd.base.artifact import Slot
from spirograd.base.constraints import Axis, Count, Index, NBytes, Within
from spirograd.base.dtypes import DType, Type
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.ops import OpCode
from spirograd.ir.temp_kinds import TempKind

_LOOPS = frozenset((ops.for_, ops.while_))


@dataclass(slots=True, eq=False, repr=False)
class Op:
    """One operation. ``attr`` is hashable data whose form each entry of the op table states.

    ``primal``: in a gradient kernel, the operation of the primal that this one repeats, or whose memory it accesses. Copies keep it, as
    they keep ``loc``. Neither changes what the operation computes, and the text of the IR omits both.
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
    # Properties computed once, since passes share regions that they do not change.
    _codes: frozenset[OpCode] | None = field(default=None, init=False)
    _live_ins: frozenset[Op] | None = field(default=None, init=False)
    _accesses: tuple[tuple[str, Ref], ...] | None = field(default=None, init=False)

    @property
    def codes(self) -> frozenset[OpCode]:
        """Return the codes of all operations in the region, nested ones included."""
        if self._codes is None:
            nested = [region.codes for op in self.ops for region in op.regions]
            self._codes = frozenset([op.code for op in self.ops]).union(*nested)
        return self._codes

    @property
    def live_ins(self) -> frozenset[Op]:
        """Return the live-ins: the values that operations in the region, nested ones included, take from outside. A set has no order: see
        `uses_from_outside`."""
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
        """Return the effects of the operations in the region, nested ones included, on elements of memory, each with its `ref_of`. They are
        in order of first appearance, once for each object that is a reference. (Hashing references is slow; equal ones may be several
        objects.) Effects of calls are not among them: see `accesses_of`."""
        if self._accesses is None:
            effects: dict[tuple[str, int], tuple[str, Ref]] = {}
            for op in self.ops:
                if op.regions:
                    effects.update([((effect, id(ref)), (effect, ref)) for region in op.regions for effect, ref in region.accesses])
                elif op.code.effect != "pure" and (ref := ref_of(op)) is not None:
                    effects[op.code.effect, id(ref)] = op.code.effect, ref
            self._accesses = tuple(effects.values())
        return self._accesses

    def uses_from_outside(self) -> Iterator[Op]:
        """Yield the live-ins in the order of their uses, once for each use, because code that is emitted for them must not depend on
        hashes."""
        outside = self.live_ins
        return (value for op in self.walk() for value in op.args if value in outside)

    @property
    def results(self) -> tuple[Op, ...]:
        """Return the operands of the terminator."""
        return self.ops[-1].args

    def having(self, codes: Collection[OpCode]) -> Iterator[Op]:
        """Yield every operation in the region whose code is one of ``codes``, outer before inner, in order."""
        if not self.codes.isdisjoint(codes):
            for op in self.ops:
                if op.code in codes:
                    yield op
                for region in op.regions:
                    yield from region.having(codes)

    def walk(self) -> Iterator[Op]:
        """Yield every operation in the region, outer before inner, in order."""
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
    """The placement of the elements of a field in the buffer of its tree.

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

    ``state``, of this and of other references: the state of memory that a load of the primal, repeated in a gradient kernel, must read,
    such as "before" the primal or "after" it. It is set while a gradient kernel is built. References in different states differ, so that no
    pass takes one value for the other; see `autodiff.memory_states`.
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

    def __hash__(self) -> int:
        """Return a hash of the members that distinguish the references of a kernel. Hashing all members takes five times as long."""
        return hash((self.key, self.role, self.state))


@dataclass(frozen=True, slots=True)
class ArrayRef:
    """Array argument ``arg``, dense and row-major, elements (of shape ``element_shape``) innermost. ``wide``, ``layout``: see `ArrayArg`.
    ``disjoint``: in every launch of the compiled kernel, the array overlaps no other array with this mark, unless the kernel writes
    neither."""

    name: str
    arg: int
    dtype: DType
    ndim: int
    element_shape: tuple[int, ...] = ()
    role: str = "primal"
    wide: bool = False
    state: str = ""
    disjoint: bool = False
    layout: tuple[Axis, ...] = ()

    def program_axis(self, axis: Axis) -> Axis:
        """Return the number that the program gives an axis of the index space."""
        return self.layout[axis] if self.layout else axis


@dataclass(frozen=True, slots=True)
class TempRef:
    """Memory of one launch: values that cross tasks, variables that parallel loops update, return values. Undefined until written.

    ``kind`` and ``number`` say what it is for. ``name`` is for readers only, and may be a name of the user's. ``array``: if it is not -1,
    launches allocate ``shape`` for each element of this array argument, and once more; the only index counts all of them.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...] = ()
    kind: TempKind = TempKind.VALUE
    number: int = 0
    state: str = ""
    array: int = -1


@dataclass(frozen=True, slots=True)
class AdstackRef:
    """An adstack: the values that an invocation saves in each iteration of a loop, for the reverse of the loop. Indices: iteration (from
    0), entry.

    Each invocation that runs at the same time has its own. (Serial code of a kernel has one, which lasts from task to task.) ``capacity``:
    the number of the loop among the loops of the kernel that have adstacks; its number of iterations is known at launch. ``slots``: the
    number of the size that counts the invocations that use the adstack, if these may be fewer than the launch has. Contents are undefined
    until written.
    """

    name: str
    dtype: DType
    width: int
    capacity: int
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class BufferRef:
    """Device IR: the buffer whose address is in ``slot``, seen as an array of ``dtype``. One index, in elements. ``disjoint``: see
    `ArrayRef`."""

    name: str
    slot: Slot
    dtype: DType
    disjoint: bool = False


@dataclass(frozen=True, slots=True)
class SharedRef:
    """Memory that the invocations of a workgroup share while they run, with ``length`` elements. Undefined until written."""

    name: str
    dtype: DType
    length: int


Ref = Union[FieldRef, ArrayRef, TempRef, AdstackRef, BufferRef, SharedRef]
# Memory of programs, as opposed to adstacks, shared memory, and buffers of devices.
VARIABLES = (FieldRef, ArrayRef, TempRef)
REFS = (FieldRef, ArrayRef, TempRef, AdstackRef, BufferRef, SharedRef)


def rank(ref: Ref) -> int:
    """Return the number of indices of an access to ``ref``."""
    if isinstance(ref, FieldRef):
        return len(ref.shape) + len(ref.element_shape)
    if isinstance(ref, ArrayRef):
        return ref.ndim + len(ref.element_shape)
    if isinstance(ref, TempRef):
        return len(ref.shape)
    return 2 if isinstance(ref, AdstackRef) else 1


# --- attributes of operations ----------------------------------------------------------------------------------


class BuiltIn(Enum):
    """Built-in variables of an invocation: numbers, from 0, and counts. `thread_slot` is the number of the invocation in the dispatch."""

    LOCAL = "local"  # number of the invocation in its workgroup
    WORKGROUPS = "workgroups"  # number of workgroups in the dispatch
    LANE = "lane"  # number of the invocation in its subgroup
    SUBGROUP = "subgroup"  # number of the subgroup in its workgroup
    SUBGROUPS = "subgroups"  # number of subgroups in the workgroup


@dataclass(frozen=True, slots=True)
class LoopAttr:
    """Attributes of ``for``. A parallel loop carries nothing, and its iterations may run in any order; it becomes a task.

    ``grouped``: workgroups of ``group_size`` consecutive iterations, counted from the first, have barriers, shared memory or subgroups.
    ``deactivates``: it sets a cell of a sparse node to zeros, which ends the life of what derivatives would need.
    ``uniform``: in a grouped task, all invocations of a group run the same iterations, see `ops.UNIFORM`.

    At the level "loops", a loop over the iterations of a chunk states how they may be ordered. With ``any_order`` they may run in any
    order, one after the other. With ``independent`` they may also run at the same time, because no iteration accesses what another one
    writes, except by atomics and in memory of its thread. The loop carries one accumulator for each of ``reductions``. Of the attributes
    below, only "rest" exists at other levels.

    - ``vectorise``: "": LLVM may vectorise the loop; "no": it must not; "rest": it does not optimise the loop, which has few iterations;
      "vectors": the loop computes on vectors.
    - ``row``: the iterations are rows of ``row`` columns; -1: of a number that is known at launch; 0: they are no rows. The last
      loop-carried value is the first index of the chunk that lies in the row. In the loops over a chunk inside, the index less that of the
      first column (`chunk_loops.first_column`) is the number of a column.
    """

    parallel: bool = False
    name: str = ""
    group_size: int = 0  # 0: the default of the device
    apart: str = ""  # the option that keeps the loop a task of its own; "" if none does
    grouped: bool = False
    deactivates: bool = False
    uniform: bool = False
    any_order: bool = False
    independent: bool = False
    reductions: tuple[Reduction, ...] = ()
    vectorise: str = ""
    row: int = 0

    @property
    def over_chunk(self) -> bool:
        """Return whether the iterations are iterations of a task, which may run in another order."""
        return self.any_order or self.independent


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction over the iterations of a task. ``kind``: "add" | "min" | "max" | "and" | "or" | "xor" | "mul"."""

    kind: str
    dtype: DType

    @property
    def start(self) -> int | float:
        """Return the initial value of accumulators, which changes no other operand. Sums begin with -0.0, since 0.0 would turn -0.0 into
        0.0."""
        return -0.0 if self.kind == "add" and self.dtype.is_float else ops.identity(self.kind, self.dtype)


@dataclass(frozen=True, slots=True)
class PrivateCopy:
    """A private copy of memory in a workgroup, whose iterations update it by atomics of ``kind`` in place of the original. The last element
    of the copy is a dummy for updates that are out of range."""

    kind: str
    shared: SharedRef


@dataclass(frozen=True, slots=True)
class ChunkAttr:
    """Attributes of a task whose range the pool of threads divides into chunks.

    ``work``: the estimated units of work of an iteration; ``uncontended_work``: the same without atomics, 0 if there is no uncontended
    variant. ``unit``: the number of iterations that the pool assigns as one. ``lanes``: the number of iterations that a thread runs at
    once, each of which has a thread slot. ``fixed``: see `fixed_chunks`.
    """

    work: int
    uncontended_work: int = 0
    unit: int = 1
    lanes: int = 1
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class TaskAttr:
    """Attributes of ``task``, which is one dispatch.

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

    ``places``: a serial task that only places the adstacks of the tasks after it. ``max_groups``: the largest number of workgroups of the
    task (0: any number). ``grouped``: as in `LoopAttr`. ``shares``: all workgroups whose numbers have the same remainder by it run the
    iterations together, and the body has no effect twice. The task is then dispatched as at least ``shares`` workgroups.
    ``alternatives``: see `TaskInfo`.
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
    alternatives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryCall:
    """Attribute of ``call_memory``: a function, and the memory that it may access at any element, as effects ("read", "write", "atomic")
    with references.

    ``found_in``: the memory that holds the result after the kernel has run, at the element that the first operands index. Derivatives,
    which run after the kernel, read it there."""

    name: str
    accesses: tuple[tuple[str, Ref], ...]
    found_in: Ref | None = None


@dataclass(frozen=True, slots=True)
class Label:
    """Attribute of ``label``: the memory that the next ``count`` accesses are about, or None for the label of an iteration. ``atomic``:
    those accesses count as atomic in any case, because all of them store the same value."""

    of: Ref | None = None
    count: int = 0
    atomic: bool = False


# --- kernels -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScalarArg:
    """A scalar argument. ``returned``: in a gradient kernel, the number of the returned value whose adjoint the argument is."""

    name: str
    dtype: DType
    returned: Index | None = None


@dataclass(frozen=True, slots=True)
class ArrayArg:
    """An array argument. ``wide``: it may have more than `NARROW` scalars, or an axis of more, so that addresses need 64 bits. ``layout``:
    if the program numbers axes otherwise than they lie in memory, its numbers of the axes, slowest first. Accesses and `shape` operations
    have the axes as they lie in memory."""

    name: str
    dtype: DType
    ndim: Axis
    element_shape: tuple[Index, ...] = ()
    needs_grad: bool = False
    wide: bool = False
    needs_dual: bool = False
    view: tuple[str, ...] = ()
    layout: tuple[Axis, ...] = ()


@dataclass(slots=True, eq=False)
class Function:
    """A function that `call` or `call_memory` operations name: its body takes the operands of the call and yields the results.

    The value of a function that `call` names depends on the operands alone: the function accesses no memory, and uses no arguments of the
    kernel. A function that `call_memory` names may have no results, may load, store and update fields and arrays (`accesses`), and may use
    scalar arguments and extents. Neither has barriers or parallel loops. Functions may call themselves, directly or through others, and
    only such functions have diagnostics. Apart from recursion, a function calls only functions that precede it.
    """

    name: str
    body: Region

    @property
    def accesses(self) -> tuple[tuple[str, Ref], ...]:
        """Return the accesses of the function, as `MemoryCall.accesses` holds them."""
        return tuple(dict.fromkeys([access for op in self.body.walk() for access in accesses_of(op)]))

    @property
    def result(self) -> Type:
        """Return the type of a call: the type of the result, or a tuple of types if there are several results, which `result` takes
        apart."""
        types = tuple([value.type for value in self.body.results])
        return types[0] if len(types) == 1 else types

    def with_body(self, body: Region) -> Function:
        return self if body is self.body else Function(self.name, body)


@dataclass(slots=True, eq=False)
class Kernel:
    """A kernel: flat arguments (aggregates are split by the front end), a body, and the TempRefs that hold its return values.

    Before ``offload`` the body is ordinary code whose outermost parallel ``for`` become tasks. After it the body holds only ``task``
    operations (and the terminator). ``functions``: the functions that the body calls, callees before callers.
    """

    name: str
    args: tuple[ScalarArg | ArrayArg, ...]
    body: Region
    returns: tuple[TempRef, ...] = ()
    loc: Loc | None = None
    functions: tuple[Function, ...] = ()

    def with_body(self, body: Region, functions: tuple[Function, ...] | None = None) -> Kernel:
        """Return this kernel with another body, and with other ``functions`` if any are given."""
        functions = self.functions if functions is None else functions
        if body is self.body and functions == self.functions:
            return self
        return Kernel(self.name, self.args, body, self.returns, self.loc, functions)

    def recursive(self) -> set[str]:
        """Return the functions that call themselves, directly or through others."""
        calls = {f.name: {name for op in f.body.walk() if (name := callee_of(op)) is not None} for f in self.functions}
        for reached in calls.values():
            while not reached >= (more := {callee for other in reached for callee in calls[other]}):
                reached |= more
        return {name for name, reached in calls.items() if name in reached}

    def looping(self) -> set[str]:
        """Return the functions that run loops, call themselves, or call such functions. For operands that no call has, they might not
        return."""
        names = self.recursive()
        for function in self.functions:
            if any(op.code in _LOOPS or callee_of(op) in names for op in function.body.walk()):
                names.add(function.name)
        return names

    @property
    def codes(self) -> frozenset[OpCode]:
        """Return the codes of all operations of the functions and of the body."""
        return self.body.codes.union(*[function.body.codes for function in self.functions]) if self.functions else self.body.codes

    @property
    def accesses(self) -> list[tuple[str, Ref]]:
        """Return the effects of the operations of the functions and of the body on elements of memory: see `Region.accesses`."""
        return [access for region in (*[f.body for f in self.functions], self.body) for access in region.accesses]

    def having(self, codes: Collection[OpCode]) -> Iterator[Op]:
        """Yield every operation of the functions and of the body whose code is one of ``codes``."""
        return chain.from_iterable([region.having(codes) for region in (*[f.body for f in self.functions], self.body)])

    def walk(self) -> Iterator[Op]:
        """Yield every operation of the functions and of the body."""
        return chain.from_iterable([region.walk() for region in (*[f.body for f in self.functions], self.body)])


def called(functions: Sequence[Function], regions: Sequence[Region]) -> tuple[Function, ...]:
    """Return those of ``functions``, callees before callers, that ``regions`` call directly or through others."""
    names = {callee_of(op) for region in regions for op in region.walk()} if functions else set()
    before = -1
    while before < len(names):  # Recursive functions may call functions that follow them.
        before = len(names)
        for function in reversed(functions):
            if function.name in names:
                names.update([callee_of(op) for op in function.body.walk()])
    return tuple([function for function in functions if function.name in names])


def callee_of(op: Op) -> str | None:
    """Return the name of the function that ``op`` calls, or None if it is no call."""
    if op.code is ops.call:
        name: str = op.attr
        return name
    return op.attr.name if op.code is ops.call_memory else None


def accesses_of(op: Op) -> tuple[tuple[str, Ref], ...]:
    """Return the effects of ``op`` itself, without its regions, on memory: pairs of an effect ("read", "write", "atomic") and a reference.

    `ref_of` returns the reference of operations on one element. Calls may access any element.
    """
    if op.code is ops.call_memory:
        accesses: tuple[tuple[str, Ref], ...] = op.attr.accesses
        return accesses
    ref = ref_of(op)
    return () if ref is None else ((op.code.effect, ref),)


def ref_of(op: Op) -> Ref | None:
    """Return the memory whose element ``op`` accesses, or None if it is no operation on one element."""
    attr = op.attr
    if attr is None:
        return None
    if isinstance(attr, REFS):
        return attr
    if isinstance(attr, tuple) and len(attr) == 2 and isinstance(attr[1], REFS):
        return attr[1]
    return None

"""The nodes of the IR: operations, regions, memory references, kernels. None is changed once built.

An operation is its own result: operands are operations. A region is a list of operations with parameters (operations of
code ``param``); its last operation is a ``yield``. Values are visible in the region that defines them and in those nested in
it, except that nothing crosses into a ``task``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from spirograd.base.artifact import Slot
from spirograd.base.dtypes import DType, Type
from spirograd.base.loc import Loc

if TYPE_CHECKING:
    from spirograd.ir.ops import OpCode


@dataclass(slots=True, eq=False, repr=False)
class Op:
    """One operation. ``attr`` is hashable data whose form each entry of the op table states."""

    code: OpCode
    type: Type
    args: tuple[Op, ...] = ()
    attr: Any = None
    regions: tuple[Region, ...] = ()
    loc: Loc | None = None

    def __repr__(self) -> str:
        return f"<{self.code.name} {self.attr if self.attr is not None else ''}: {self.type}>"


@dataclass(slots=True, eq=False)
class Region:
    """Parameters and operations; the last operation is the ``yield``."""

    params: tuple[Op, ...]
    ops: tuple[Op, ...]

    @property
    def results(self) -> tuple[Op, ...]:
        """The operands of the terminator."""
        return self.ops[-1].args

    def walk(self) -> Iterator[Op]:
        """Every operation in here, outer before inner, in order."""
        for op in self.ops:
            yield op
            for region in op.regions:
                yield from region.walk()


# --- memory references -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of an address: ``(index[axis] // div % mod) * stride`` bytes; ``mod`` 0 means no modulo."""

    axis: int
    div: int
    mod: int
    stride: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of a field lie in the buffer of its tree.

    Byte address of element ``i``, component ``c`` (row-major number in the element shape):
    ``sum(term(i - origin)) + components[c]``. Every stride and offset is a multiple of the element's size.
    """

    terms: tuple[Term, ...]
    components: tuple[int, ...] = (0,)
    origin: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FieldRef:
    """A field of tree ``tree``. Indices: one per axis of ``shape``, then one per axis of ``element_shape``. ``key`` is a number unique
    to the field, shared by all its roles: primal, grad, dual (its tangent) and grad_dual (the tangent of its grad)."""

    name: str
    tree: int
    key: int
    dtype: DType
    shape: tuple[int, ...]
    element_shape: tuple[int, ...]
    layout: Layout
    role: str = "primal"


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


@dataclass(frozen=True, slots=True)
class TempRef:
    """Memory of one launch: values that cross tasks, variables that parallel loops update, return values. Zeroed never."""

    name: str
    dtype: DType
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TapeRef:
    """A tape: what an invocation notes in each iteration of a loop, for the reverse of the loop. Indices: iteration (from 0), entry.

    Each invocation that runs at the same time has its own (serial code of a kernel: one, which lasts from task to task). ``capacity``:
    number of the loop among those of the kernel that have tapes; what it means in iterations is known at launch. ``rows``: number of the
    size that says how many invocations use it, if that may be fewer than the launch has. Contents are undefined until written.
    """

    name: str
    dtype: DType
    width: int
    capacity: int
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class BufferRef:
    """Device IR: the buffer whose address is in ``slot``, seen as an array of ``dtype``. One index, in elements."""

    name: str
    slot: Slot
    dtype: DType


Ref = Union[FieldRef, ArrayRef, TempRef, TapeRef, BufferRef]
_REFS = (FieldRef, ArrayRef, TempRef, TapeRef, BufferRef)


def rank(ref: Ref) -> int:
    """How many indices an access to ``ref`` takes."""
    if isinstance(ref, FieldRef):
        return len(ref.shape) + len(ref.element_shape)
    if isinstance(ref, ArrayRef):
        return ref.ndim + len(ref.element_shape)
    if isinstance(ref, TempRef):
        return len(ref.shape)
    return 2 if isinstance(ref, TapeRef) else 1


# --- attributes of control operations ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoopAttr:
    """Attributes of ``for``. A parallel loop carries nothing, and its iterations may run in any order; it becomes a task."""

    parallel: bool = False
    name: str = ""
    group_size: int = 0  # 0: the device's default


@dataclass(frozen=True, slots=True)
class Reduction:
    """A value accumulated over the iterations of a task: kind "add" | "min" | "max" | "and" | "or" | "xor" | "mul"."""

    kind: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class TaskAttr:
    """Attributes of ``task``, one dispatch.

    ``serial``: regions (body,), no parameters, run once by one invocation.
    ``range_for``: regions (bounds, body, finish). bounds yields (begin, end), of the index type, and where only so
    many invocations may take part, as tapes have rows, their number (i32). body takes the index and one accumulator
    per entry of ``reductions`` and yields the next accumulators. finish takes the accumulators of some iterations combined (of a thread,
    workgroup or chunk) and adds them to memory; it may run any number of times, and never runs with an accumulator counted twice.
    Accumulators start at the identity.
    """

    kind: str
    name: str
    group_size: int = 0
    reductions: tuple[Reduction, ...] = ()


# --- kernels -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScalarArg:
    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class ArrayArg:
    name: str
    dtype: DType
    ndim: int
    element_shape: tuple[int, ...] = ()
    needs_grad: bool = False
    wide: bool = False
    needs_dual: bool = False


@dataclass(slots=True, eq=False)
class Kernel:
    """A kernel: flat arguments (aggregates are split by the front end), a body, and the TempRefs that hold its return values.

    Before ``offload`` the body is ordinary code whose outermost parallel ``for`` become tasks; after it the body holds only ``task``
    operations (and the terminator).
    """

    name: str
    args: tuple[ScalarArg | ArrayArg, ...]
    body: Region
    returns: tuple[TempRef, ...] = ()
    loc: Loc | None = None

    def with_body(self, body: Region) -> Kernel:
        return self if body is self.body else Kernel(self.name, self.args, body, self.returns, self.loc)

    def walk(self) -> Iterator[Op]:
        return self.body.walk()


def ref_of(op: Op) -> Ref | None:
    """The memory that ``op`` touches, if it is a memory operation."""
    attr = op.attr
    if isinstance(attr, _REFS):
        return attr
    if isinstance(attr, tuple) and len(attr) == 2 and isinstance(attr[1], _REFS):
        return attr[1]
    return None

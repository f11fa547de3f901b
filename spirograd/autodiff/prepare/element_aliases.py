"""Alias analysis of elements of memory: which accesses are to one element, and which are certainly to different ones.

Two array arguments are assumed to be different memory, and no array to be the memory of a field. The primal makes no such assumption;
derivatives need it, because memory that two arguments share would have two gradients.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Sequence

from spirograd.analysis.effects import may_alias
from spirograd.analysis.injectivity import determines
from spirograd.base.dtypes import DType
from spirograd.base.records import dataclass
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Op, Ref, Region, TempRef, rank, ref_of

Memory = FieldRef | ArrayRef | TempRef
_MEMORY = (FieldRef, ArrayRef, TempRef)
# The number of an index, as a value plus a constant.
_Affine = tuple[int, int]
_ZERO = -1


def same_memory(a: Ref, b: Ref) -> bool:
    """Whether accesses to ``a`` and ``b`` may touch the same bytes."""
    if isinstance(a, ArrayRef) or isinstance(b, ArrayRef):
        return isinstance(a, ArrayRef) and isinstance(b, ArrayRef) and a.arg == b.arg and a.role == b.role
    return may_alias(a, b)


def memory_of(op: Op) -> Memory | None:
    """The memory that ``op`` accesses, if it is a field, an array or a temporary."""
    ref = ref_of(op)
    return ref if isinstance(ref, _MEMORY) else None


def indices_of(op: Op) -> tuple[Op, ...]:
    """The indices of an access."""
    ref = ref_of(op)
    assert ref is not None
    return op.args[: rank(ref)]


def accesses(regions: Iterable[Region]) -> Iterator[tuple[Op, Memory]]:
    """Every access to memory in ``regions``, in order."""
    for region in regions:
        for op in region.walk():
            ref = memory_of(op)
            if ref is not None:
                yield op, ref


def contents(op: Op) -> set[Op]:
    """All that the regions of ``op`` define."""
    inside = {p for region in op.regions for p in region.params}
    for region in op.regions:
        for inner in region.walk():
            inside.add(inner)
            inside.update(p for r in inner.regions for p in r.params)
    return inside


class Spans:
    """Where the values of a kernel stand: `contents` of all its operations, in time and memory that grow with its size alone."""

    def __init__(self, kernel: Kernel) -> None:
        self._spans: dict[Op, tuple[int, int]] = {}
        self._visit(kernel.body)

    def _visit(self, region: Region) -> None:
        for op in (*region.params, *region.ops):
            number = len(self._spans)
            self._spans[op] = (number, number)
            for inner in op.regions:
                self._visit(inner)
            self._spans[op] = (number, len(self._spans) - 1)

    def number(self, value: Op) -> int:
        """The number of a value, in the order of the kernel."""
        return self._spans[value][0]

    def inside(self, op: Op) -> Container[Op]:
        """All that the regions of ``op`` define."""
        return _Inside(self._spans, *self._spans[op])


@dataclass(frozen=True, slots=True)
class _Inside:
    spans: dict[Op, tuple[int, int]]
    start: int
    end: int

    def __contains__(self, value: object) -> bool:
        return isinstance(value, Op) and self.start < self.spans.get(value, (-1, -1))[0] <= self.end


def invariant(value: Op, inside: Container[Op]) -> bool:
    """Whether ``value`` is made of nothing but what is defined outside of ``inside``."""
    work, seen = [value], {value}
    while work:
        op = work.pop()
        if op not in inside:
            continue
        if op.code.effect != "pure" or op.code is ops.result:
            return False
        work += [a for a in op.args if a not in seen]
        seen.update(op.args)
    return True


class Numbers:
    """Numbers of values: equal for pure operations that compute the same from the same."""

    def __init__(self) -> None:
        self._numbers: dict[Op, int] = {}
        self._found: dict[object, int] = {}

    def __call__(self, op: Op) -> int:
        number = self._numbers.get(op)
        if number is None:
            number = self._numbers[op] = self._found.setdefault(self._key(op), len(self._found))
        return number

    def _key(self, op: Op) -> Hashable:
        if op.code.effect != "pure" or op.code is ops.result:
            return op
        # The text of a constant tells -0.0 from 0.0.
        attr = repr(op.attr) if op.code is ops.const else op.attr
        return (op.code, op.type, attr, tuple([self(a) for a in op.args]))

    def all(self, values: Iterable[Op]) -> tuple[int, ...]:
        return tuple([self(v) for v in values])

    def affine(self, op: Op) -> tuple[_Affine, Op | None]:
        """``op`` as the number of a value plus a constant, and that value (None if it is 0)."""
        constant = 0
        while True:
            if op.code is ops.const:
                return (_ZERO, constant + int(op.attr)), None
            if op.code not in (ops.add, ops.sub):
                return (self(op), constant), op
            a, c = op.args
            if a.code is ops.const and op.code is ops.add:
                a, c = c, a
            if c.code is not ops.const:
                return (self(op), constant), op
            constant += int(c.attr) if op.code is ops.add else -int(c.attr)
            op = a

    def distinct(self, a: Sequence[Op], b: Sequence[Op], varying: Container[Op] = ()) -> bool:
        """Whether accesses with the indices ``a`` and ``b`` to one memory never alias. What is in ``varying`` may differ between the
        two."""
        for x, y in zip(a, b):
            if x.type is not y.type or not isinstance(x.type, DType):
                continue
            (base, c), value = self.affine(x)
            (other, d), _ = self.affine(y)
            if base == other and (c - d) % (1 << x.type.bits) and (value is None or invariant(value, varying)):
                return True
        return False


def owned(ref: Memory, indices: Sequence[Op], loop: Op, numbers: Numbers) -> bool:
    """Whether only one iteration of the parallel ``loop`` changes the element of ``ref`` at ``indices`` (entries of it included)."""
    inner = len(ref.element_shape) if isinstance(ref, (FieldRef, ArrayRef)) else 0
    count = rank(ref) - inner
    where = numbers.all(indices[:count])
    for op, other in accesses(loop.regions):
        if op.code is ops.load or not same_memory(other, ref):
            continue
        if other != ref or numbers.all(indices_of(op)[:count]) != where:
            return False
    return fixes(indices[:count], loop)


def in_range(ref: Memory, indices: Sequence[Op]) -> bool:
    """Whether an access is surely to an element that there is."""
    shape = ref.shape + ref.element_shape if isinstance(ref, FieldRef) else ref.shape if isinstance(ref, TempRef) else None
    if shape is None:
        return False
    origin = ref.layout.origin if isinstance(ref, FieldRef) else ()
    starts = (*origin, *[0] * len(shape))
    return all(i.code is ops.const and 0 <= i.attr - start < n for i, n, start in zip(indices, shape, starts))


def fixes(indices: Sequence[Op], loop: Op) -> bool:
    """Whether accesses with ``indices`` in two iterations of the `for` ``loop`` never alias; what is outside of it is the same for both."""
    inside = contents(loop)
    constant: set[Op] = set()
    work, seen = list(indices), set(indices)
    while work:
        op = work.pop()
        if invariant(op, inside):
            constant.add(op)
        if op.code.effect == "pure" and op.code is not ops.result:
            work += [a for a in op.args if a not in seen]
            seen.update(op.args)
    return determines(indices, loop.regions[0].params[0], constant, loop.args[:2])

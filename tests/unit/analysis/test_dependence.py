"""Memory dependence: answers of the queries, each against all executions of random loops over small index spaces."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest

from spirograd.analysis.available_values import AvailableValues
from spirograd.analysis.dependence import Access, Alias, Dependence, Iterations, accesses_in, are_exclusive, iterations_of
from spirograd.analysis.value_numbers import ValueNumbers, affine
from spirograd.base import dtypes as dt
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayRef, FieldRef, Layout, Op, Ref, Region, TempRef, Term
from spirograd.ir.text import parse

LAYOUT = Layout((Term(0, 1, 0, 16), Term(1, 1, 0, 4)))
FIELDS: list[Ref] = [FieldRef("f", 0, 0, dt.f32, (4, 4), (), LAYOUT), FieldRef("g", 0, 1, dt.f32, (4, 4), (), LAYOUT)]
ARRAYS: list[Ref] = [ArrayRef("x", 0, dt.f32, 2), ArrayRef("y", 1, dt.f32, 2)]
# Values of an argument of the kernel, and of the index of an inner loop.
ARGUMENT, INNER = (-1, 0, 2), range(3)
CODES = (ops.add, ops.sub, ops.xor, ops.idiv, ops.irem, ops.mul, ops.min_)


class Loop:
    """A random loop over accesses with two indices, some in branches and in an inner loop."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.type = self.random.choice((dt.i32, dt.i32, dt.i8, dt.u8))
        self.refs = self.random.choice((FIELDS[:1], FIELDS, ARRAYS))
        b = self.b = Builder()
        b.begin()
        self.argument = b.emit(ops.arg, attr=0, type=self.type)
        self.extents = self.random.choice(((5,), (2, 3), (3, 2, 2)))
        first = self.random.choice((0, 0, 1)) if len(self.extents) == 1 else 0
        self.range = range(first, int(np.prod(self.extents)))
        self.bounds = (b.const(self.range.start, self.type), b.const(self.range.stop, self.type))
        (self.index,) = b.begin(self.type)
        self.values = [self.argument, self.index, self.index, b.const(1, self.type), b.const(0, self.type), b.const(3, self.type)]
        left = self.index
        for extent in reversed(self.extents):
            by = b.const(extent, self.type)
            self.values += [b.emit(ops.irem, left, by), left := b.emit(ops.idiv, left, by)]
        for _ in range(self.random.randrange(4)):
            self.values.append(self.expression())
        self.inner: Op | None = None
        self.used: list[list[Op]] = []
        self.statements(3)
        self.body = b.end()

    def expression(self) -> Op:
        code = self.random.choice(CODES)
        return self.b.emit(code, self.random.choice(self.values), self.random.choice(self.values))

    def access(self) -> None:
        again = [indices for indices in self.used if set(indices) <= set(self.values)]
        indices = [self.expression() if self.random.random() < 0.3 else self.random.choice(self.values) for _ in range(2)]
        indices = self.random.choice(again) if again and self.random.random() < 0.25 else indices
        self.used.append(indices)
        ref, b = self.random.choice(self.refs), self.b
        if self.random.random() < 0.4:
            b.load(ref, *indices)
        else:
            b.store(ref, *indices, b.const(1.0, dt.f32))

    def statements(self, depth: int) -> None:
        b = self.b
        for _ in range(self.random.randrange(1, 3)):
            kind = self.random.randrange(4) if depth else 0
            if kind == 1 and self.inner is None:
                bounds = b.const(0, self.type), b.const(len(INNER), self.type)
                (self.inner,) = b.begin(self.type)
                before = list(self.values)
                self.values += [self.inner, self.inner]
                self.statements(depth - 1)
                self.values = before
                b.for_(*bounds, (), b.end())
            elif kind == 2:
                condition = b.emit(ops.lt, self.random.choice(self.values), self.random.choice(self.values))
                regions: list[Region] = []
                for _ in range(2):
                    before = list(self.values)
                    b.begin()
                    self.statements(depth - 1)
                    self.values = before
                    regions.append(b.end())
                b.if_(condition, *regions)
            else:
                self.access()

    # --- every execution -------------------------------------------------------------------------------------------------

    def iterations(self) -> Iterator[tuple[int, int, int]]:
        """The argument, the index, and the index of the inner loop."""
        return itertools.product(ARGUMENT if self.type.is_signed else (0, 2), self.range, INNER)

    def value(self, op: Op, at: tuple[int, int, int]) -> int:
        leaves = {self.argument: at[0], self.index: at[1], self.inner: at[2]}
        if op in leaves:
            return leaves[op]
        if op.code is ops.const:
            return int(op.attr)
        assert op.code.evaluate is not None
        with np.errstate(over="ignore"):
            return int(op.code.evaluate(op.type, *[self.type.np.type(self.value(a, at)) for a in op.args]))

    def element(self, access: Access, at: tuple[int, int, int]) -> tuple[object, ...] | None:
        """The element of an access, by its memory and indices; None if its guards do not let it run."""
        for op, number in access.around:
            if op.code is ops.if_ and bool(self.value(op.args[0], at)) != (number == 0):
                return None
        assert access.indices is not None
        return (access.ref, *[self.value(index, at) for index in access.indices])


@pytest.mark.parametrize("part", range(10))
def test_answers_against_all_executions(part: int) -> None:
    certain = dict.fromkeys(("no", "must", "not carried", "exclusive", "private"), 0)
    for seed in range(60 * part, 60 * part + 60):
        _check(Loop(seed), certain)
    assert min(certain.values()) > 0, certain


def _check(loop: Loop, certain: dict[str, int]) -> None:
    accesses = list(accesses_in([loop.body]))
    query, space = Dependence(separate_arrays=True), Iterations([loop.body], loop.index, loop.bounds)
    elements = {a.op: {at: loop.element(a, at) for at in loop.iterations()} for a in accesses}
    for a, b in itertools.product(accesses, repeat=2):
        mine, other = elements[a.op], elements[b.op]
        within, across = query.alias(a, b), query.alias(a, b, space.invariant)
        carried, exclusive = query.carried(a, b, space), are_exclusive(a, b)
        pairs = [(p, q) for p, q in itertools.product(mine, other) if p[0] == q[0] and mine[p] is not None and other[q] is not None]
        same, different = ({mine[p] == other[q] for p, q in pairs if (p == q) is equal} for equal in (True, False))
        assert within is not Alias.NO or True not in same
        assert within is not Alias.MUST or False not in same
        assert across is not Alias.NO or True not in same | different
        assert across is not Alias.MUST or False not in same | different
        assert carried or not any(mine[p] == other[q] for p, q in pairs if p[1] != q[1])
        assert not exclusive or not same
        certain["no"] += within is Alias.NO and a.ref == b.ref
        certain["must"] += within is Alias.MUST and a is not b
        certain["not carried"] += not carried and a.ref == b.ref
        certain["exclusive"] += exclusive
    writes = [a for a in accesses if a.writes]
    for a in writes:
        if query.is_private(a, writes, space):
            certain["private"] += 1
            mine = elements[a.op]
            for b in writes:
                pairs = [(p, q) for p, q in itertools.product(mine, elements[b.op]) if p[0] == q[0] and p[1] != q[1]]
                assert not any(mine[p] is not None and mine[p] == elements[b.op][q] for p, q in pairs)


@pytest.mark.parametrize("part", range(3))
def test_available_values_agree(part: int) -> None:
    """A write ends what is known of an element unless the two accesses cannot be to one element."""
    for seed in range(60 * part, 60 * part + 60):
        accesses = list(accesses_in([Loop(seed).body]))
        query, known = Dependence(), AvailableValues(affine)
        for a, b in itertools.product(accesses, repeat=2):
            known.clear()
            assert a.indices is not None and b.indices is not None
            element = known.element(a.ref, a.indices)
            known.set(element, a.op, a.indices)
            known.clobber(known.element(b.ref, b.indices))
            assert (known.get(element) is not None) == (query.alias(a, b) is Alias.NO)


KERNEL = """kernel "k"
arg ArrayArg("x", f32, 2)
arg ArrayArg("y", f32, 2)
arg ScalarArg("t", i32)
ref x = ArrayRef("x", 0, f32, 2)
ref y = ArrayRef("y", 1, f32, 2)
ref s = TempRef("s", i32)
{
  %z = const[0]() : i32
  %n = shape[(0, 1)]() : i32
  %t = arg[2]() : i32
  %m = shape[(0, 1)]() : i32
  for[LoopAttr(parallel=True)](%z, %n) : () { (%i: i32)
    %o = const[1]() : i32
    %h = const[0.5]() : f32
    %u = add(%t, %o) : i32
    %j = add(%i, %o) : i32
    %k = add(%o, %i) : i32
    %q = idiv(%i, %m) : i32
    %r = irem(%i, %n) : i32
    %s = load[s]() : i32
    BODY
    yield()
  }
  yield()
}
"""


# First access, second access: within an iteration, and whether it is carried.
@pytest.mark.parametrize(
    ("first", "second", "within", "carried"),
    [
        ("x %t, %i", "x %t, %i", Alias.MUST, False),
        ("x %t, %i", "x %u, %i", Alias.NO, False),
        ("x %t, %i", "x %u, %q", Alias.NO, False),
        ("x %t, %i", "x %t, %j", Alias.NO, True),
        ("x %t, %j", "x %t, %k", Alias.MUST, False),
        ("x %t, %z", "x %t, %z", Alias.MUST, True),
        ("x %t, %z", "x %t, %o", Alias.NO, False),
        ("x %i, %t", "x %t, %i", Alias.MAY, True),
        ("x %q, %r", "x %q, %r", Alias.MUST, False),
        ("x %t, %q", "x %t, %q", Alias.MUST, True),
        ("x %s, %i", "x %s, %i", Alias.MUST, False),
        ("x %i, %z", "y %i, %z", Alias.MAY, True),
    ],
)
def test_answers(first: str, second: str, within: Alias, carried: bool) -> None:
    stores = "\n".join(f"store[{a[0]}]({a[2:]}, %h)" for a in (first, second))
    (loop,) = (op for op in parse(KERNEL.replace("BODY", stores)).walk() if op.code is ops.for_)
    a, b = (access for access in accesses_in(loop.regions) if access.writes)
    query, space = Dependence(), iterations_of(loop)
    assert (query.alias(a, b), query.alias(b, a)) == (within, within)
    assert (query.carried(a, b, space), query.carried(b, a, space)) == (carried, carried)
    separate = Dependence(separate_arrays=True)
    assert a.ref == b.ref or (separate.alias(a, b) is Alias.NO and not separate.carried(a, b, space))


def test_calls_may_access_any_element() -> None:
    x = TempRef("x", dt.f32, (4,))
    zero = Op(ops.const, dt.i32, (), 0)
    load = Op(ops.load, dt.f32, (zero,), x)
    a, b = Access(load, "read", x, (zero,)), Access(load, "write", x, None)
    assert Dependence().alias(a, b) is Alias.MAY


def test_numbers_of_values() -> None:
    """Equal for the same arithmetic in any order of commutative operands; loads are equal where their memory is steady."""
    i, j, t = Op(ops.param, dt.i32), Op(ops.param, dt.i32), TempRef("t", dt.i32)
    one, zero, minus = Op(ops.const, dt.i32, (), 1), Op(ops.const, dt.f32, (), 0.0), Op(ops.const, dt.f32, (), -0.0)
    sums = [Op(ops.add, dt.i32, args) for args in ((i, one), (one, i), (j, one))]
    differences = [Op(ops.sub, dt.i32, args) for args in ((i, one), (one, i))]
    loads = [Op(ops.load, dt.i32, (), t) for _ in range(2)]
    number = ValueNumbers()
    assert number(sums[0]) == number(sums[1]) != number(sums[2])
    assert number(differences[0]) != number(differences[1]) and number(zero) != number(minus) and number(loads[0]) != number(loads[1])
    assert number.affine(sums[0]) == (number(i), 1, i) and number.affine(differences[0]) == (number(i), -1, i)
    assert number.affine(one) == (-1, 1, None) and number.affine(differences[1])[:2] == (number(differences[1]), 0)
    assert ValueNumbers({j: i}).all(sums)[0] == ValueNumbers({j: i}).all(sums)[2]
    assert len(set(ValueNumbers(steady=[t]).all(loads))) == 1

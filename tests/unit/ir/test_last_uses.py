"""Last uses of vectors, against the definition: no path from the user reads the value again."""

from __future__ import annotations

from spirograd.base.dtypes import Vec, i32, u1
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.last_uses import LastUses
from spirograd.ir.nodes import Op

_T = Vec(8, i32)


class _Code:
    """A region in the making, with a vector, a condition and constants."""

    def __init__(self) -> None:
        self.b = Builder()
        self.vector, self.flag, self.count = self.b.begin(_T, u1, i32)
        self.zero = self.b.const(0)

    def read(self, vector: Op) -> Op:
        return self.b.emit(ops.extract, vector, self.zero)

    def write(self, vector: Op) -> Op:
        return self.b.emit(ops.insert, vector, self.zero, self.zero)

    def last_uses(self, *results: Op) -> LastUses:
        found = LastUses(lambda t: isinstance(t, Vec))
        found.scan(self.b.end(list(results)))
        return found


def test_in_a_sequence() -> None:
    code = _Code()
    first, second = code.write(code.vector), code.read(code.vector)
    found = code.last_uses(first)
    assert not found.is_last(first, code.vector)
    assert found.is_last(second, code.vector)


def test_in_the_arms_of_a_branch() -> None:
    """Each arm has its own last use; the `if` itself is one if nothing reads the vector after it."""
    code = _Code()
    other = code.b.emit(ops.vec, *[code.zero] * 8)
    code.b.begin()
    then = code.write(code.vector)
    kept = code.write(other)
    arm = code.b.end([then])
    code.b.begin()
    orelse = code.write(code.vector)
    (merged,) = code.b.if_(code.flag, arm, code.b.end([orelse]))
    found = code.last_uses(merged, other)
    branch = merged.args[0]
    assert found.is_last(then, code.vector) and found.is_last(orelse, code.vector) and found.is_last(branch, code.vector)
    assert not found.is_last(kept, other) and not found.is_last(branch, other)


def test_in_a_loop() -> None:
    """What comes from outside is read in the next iteration; what the loop carries is not."""
    code = _Code()
    initial = code.b.emit(ops.vec, *[code.zero] * 8)
    _, carried = code.b.begin(i32, _T)
    outside, inside = code.write(code.vector), code.write(carried)
    (final,) = code.b.for_(code.zero, code.count, [initial], code.b.end([inside]))
    found = code.last_uses(final)
    assert not found.is_last(outside, code.vector)
    assert found.is_last(inside, carried)


def test_in_the_condition_of_a_loop() -> None:
    """The body reads the loop-carried values after the condition."""
    code = _Code()
    (seen,) = code.b.begin(_T)
    changed = code.write(seen)
    condition = code.b.end([code.b.emit(ops.lt, code.read(changed), code.count)])
    (carried,) = code.b.begin(_T)
    step = code.write(carried)
    (final,) = code.b.while_([code.vector], condition, code.b.end([step]))
    found = code.last_uses(final)
    assert not found.is_last(changed, seen)
    assert found.is_last(step, carried)


def test_two_operations_for_one_result() -> None:
    code = _Code()
    code.b.begin()
    arm = code.b.end([code.vector])
    code.b.begin()
    (first,) = code.b.if_(code.flag, arm, code.b.end([code.vector]))
    second = code.b.emit(ops.result, first.args[0], attr=0, type=_T)
    written, read = code.write(first), code.read(second)
    found = code.last_uses(written)
    assert not found.is_last(written, first)
    assert found.is_last(read, second)

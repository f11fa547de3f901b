"""What `Rewriter` shares, and what regions know of their operations."""

from __future__ import annotations

import pytest

from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, Region
from spirograd.ir.rewrite import Rewriter
from spirograd.ir.text import parse, to_text

# The branch uses %0, a value from outside, and multiplies; the loop uses only its own values, and subtracts.
KERNEL = """\
kernel "k"
ref out = TempRef("out", i32)
{
  %0 = const[3]() : i32
  %1 = const[1]() : i32
  %2 = add(%0, %1) : i32
  %3 = lt(%1, %2) : u1
  if(%3) : () {
    %4 = mul(%2, %2) : i32
    store[out](%4)
    yield()
  } {
    yield()
  }
  for[LoopAttr()](%1, %0) : () { (%5: i32)
    %6 = sub(%5, %5) : i32
    store[out](%6)
    yield()
  }
  yield()
}
"""


class Visits(Rewriter):
    """Replaces operations of one code by their first operand, and lists what `copy` gets."""

    def __init__(self, code: ops.OpCode) -> None:
        super().__init__()
        self.handlers[code] = lambda op: self.value(op.args[0])
        self.handlers[ops.neg] = lambda op: pytest.fail("there is no such operation")


def controls(kernel: Kernel) -> list[Op]:
    return [op for op in kernel.body.ops if op.regions]


def test_codes_and_live_ins_of_regions() -> None:
    kernel = parse(KERNEL)
    branch, loop = controls(kernel)
    assert branch.regions[0].codes == {ops.mul, ops.store, ops.yield_}
    assert kernel.codes == {op.code for op in kernel.walk()}
    total = next(op for op in kernel.body.ops if op.code is ops.add)
    assert branch.regions[0].live_ins == {total}
    assert branch.regions[1].live_ins == loop.regions[0].live_ins == kernel.body.live_ins == frozenset()
    outer = Region((), (branch, Op(ops.yield_, ())))
    assert outer.codes == {ops.if_, ops.mul, ops.store, ops.yield_}
    assert outer.live_ins == {total, branch.args[0]}


@pytest.mark.parametrize(
    "code, same", [(ops.neg, (True, True)), (ops.mul, (False, True)), (ops.sub, (True, False)), (ops.add, (False, True))]
)
def test_regions_that_change_nothing_are_shared(code: ops.OpCode, same: tuple[bool, bool]) -> None:
    """A sum that is replaced changes the branch, which uses it, though nothing in there is handled."""
    kernel = parse(KERNEL)
    new = Visits(code).kernel(kernel)
    assert (new is kernel) == (code is ops.neg)
    shared = tuple([a.regions == b.regions for a, b in zip(controls(kernel), controls(new))])
    assert shared == same
    if code is not ops.neg:
        assert f"{code.name}(" not in to_text(new) and to_text(parse(to_text(new))) == to_text(new)


def test_overridden_hooks_see_every_operation() -> None:
    seen: list[Op] = []

    class Watching(Visits):
        def copy(self, op: Op) -> Op:
            seen.append(op)
            return super().copy(op)

    kernel = parse(KERNEL)
    Watching(ops.sub).kernel(kernel)
    assert seen == [op for op in kernel.walk() if op.code not in (ops.sub, ops.yield_)]


def test_clones_share_nothing() -> None:
    rewriter = Visits(ops.sub)
    branch = controls(parse(KERNEL))[0].regions[0]
    rewriter.b.begin()
    rewriter.inline(branch, (), clone=True)
    assert not set(rewriter.b.end().ops) & set(branch.ops)


def test_operations_that_are_kept() -> None:
    """Nothing inside of them is handled, but what they use from outside is rewritten."""

    class Keeps(Visits):
        def __init__(self, code: ops.OpCode) -> None:
            super().__init__(code)
            self.handlers |= {ops.if_: self.keep, ops.for_: self.keep}

    kernel = parse(KERNEL)
    branch, loop = controls(Keeps(ops.sub).kernel(kernel))
    assert [branch, loop] == controls(kernel)
    text = to_text(Keeps(ops.add).kernel(kernel))
    assert "add(" not in text and "mul(%0, %0)" in text and "sub(" in text

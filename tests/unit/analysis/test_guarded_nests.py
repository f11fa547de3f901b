"""Which nests of serial loops can list the iterations that pass their guard, and what they run then."""

from __future__ import annotations

import pytest

from spirograd.analysis.guarded_nests import GuardedNest, find_guarded_nest
from spirograd.ir import ops
from spirograd.ir.nodes import Region
from spirograd.ir.text import parse

REFS = """kernel "k"
ref x = BufferRef("x", Slot("tree"), f32)
ref y = BufferRef("y", Slot("tree"), f32)
ref n = BufferRef("n", Slot("tree"), i32)
ref v = BufferRef("v", Slot("array"), f32)
ref w = BufferRef("w", Slot("array", index=1), f32)
{
  task[TaskAttr("serial", "k_0")]() {
    %own = const[7]() : i32
    %zero = const[0]() : i32
    %some = const[27]() : i32
    %f = const[0.5]() : f32
    %mine = load[x](%own) : f32
"""
NEST = """
    %all = for[LoopAttr()](%zero, %some, %f) : (f32) { (%a: i32, %s: f32)
      %begin = load[n](%a) : i32
      %end = add(%begin, %some) : i32
      %cell = for[LoopAttr()](%begin, %end, %s) : (f32) { (%j: i32, %t: f32)
        BODY
      }
      %u = result[0](%cell) : f32
      yield(%u)
    }
    yield()
  }
  yield()
}
"""
SUM = """
%p = load[x](%j) : f32
%d = sub(%mine, %p) : f32
%near = lt(%d, %f) : u1
%b = if(%near) : (f32) {
  %q = mul(%d, %d) : f32
  %r = add(%t, %q) : f32
  yield(%r)
} {
  yield(%t)
}
%c = result[0](%b) : f32
yield(%c)
"""


def nest_of(body: str, nest: str = NEST, most_known: int = 6) -> GuardedNest | None:
    kernel = parse(REFS + nest.replace("BODY", body))
    region = kernel.body.ops[0].regions[0]
    k = next(k for k, op in enumerate(region.ops) if op.code is ops.for_)
    return find_guarded_nest(region.ops[k], region.ops[:k], most_known)


def codes(region: Region) -> list[str]:
    return [op.code.name for op in region.ops]


def test_guard_and_parts() -> None:
    nest = nest_of(SUM)
    assert nest is not None
    assert len(nest.levels) == 2 and nest.most_ranges == 27
    assert codes(nest.guard) == ["load", "sub", "lt", "yield"]
    assert [op.code.name for op in nest.fission.known] == ["sub"]  # the guard has computed it
    assert codes(nest.fission.independent) == ["mul", "yield"]
    assert [op.code.name for op in nest.fission.passed] == ["mul"]
    again = nest_of(SUM, most_known=0)
    assert again is not None and codes(again.fission.independent) == ["load", "sub", "mul", "yield"]


OTHERS = "%other = ne(%own, %j) : u1\n%o = if(%other) : (f32) {" + SUM + "} {\nyield(%t)\n}\n%e = result[0](%o) : f32\nyield(%e)"


def test_tests_are_joined_if_the_elements_exist() -> None:
    """The element of the excluded index has been loaded before."""
    nest = nest_of(OTHERS)
    assert nest is not None and codes(nest.guard) == ["ne", "load", "sub", "lt", "and", "yield"]
    nest = nest_of(OTHERS.replace("load[x](%j)", "load[y](%j)"))
    assert nest is not None and codes(nest.guard) == ["ne", "if", "result", "result", "yield"]


EFFECT = 'atomic[("add", {0})](%j, %q) : f32\n  %r = add'


@pytest.mark.parametrize(("written", "listed"), (("x", False), ("y", True), ("v", False)))
def test_memory_that_the_guard_reads(written: str, listed: bool) -> None:
    """Arrays may be the memory of fields."""
    nest = nest_of(SUM.replace("%r = add", "%z = " + EFFECT.format(written)))
    assert (nest is not None) is listed
    if nest is not None:
        assert {op.code.name for op in nest.fission.ordered} >= {"atomic", "add"}


def test_arrays_may_overlap() -> None:
    assert nest_of(SUM.replace("load[x]", "load[w]").replace("%r = add", "%z = " + EFFECT.format("v"))) is None


MIXED = SUM.replace(
    "%r = add(%t, %q) : f32",
    """%h = load[y](%j) : f32
  %small = lt(%h, %f) : u1
  %i = if(%small) : (f32, f32) {
    %k = mul(%h, %q) : f32
    %l = sub(%t, %k) : f32
    yield(%l, %h)
  } {
    yield(%t, %q)
  }
  %m = result[0](%i) : f32
  %g = result[1](%i) : f32
  %r = add(%m, %g) : f32""",
)


def test_branches_of_both_parts() -> None:
    nest = nest_of(MIXED)
    assert nest is not None and len(nest.fission.mixed) == 1
    assert sorted(op.code.name for op in nest.fission.passed) == ["lt", "mul", "result"]
    branch = next(op for op in nest.fission.independent.ops if op.code is ops.if_)
    assert [codes(region) for region in branch.regions] == [["mul", "yield"], ["const", "yield"]]
    assert [value.type.name for value in nest.fission.independent.results] == ["i32", "f32", "f32"]  # type: ignore[union-attr]


REFUSED = {
    "the guard depends on the sum": SUM.replace("lt(%d, %f)", "lt(%d, %t)"),
    "the sum changes outside of the guard": SUM.replace("yield(%c)\n", "%z = add(%c, %d) : f32\nyield(%z)\n"),
    "another sum if the guard fails": SUM.replace("} {\n  yield(%t)", "} {\n  yield(%d)"),
    "no guard": "%p = load[x](%j) : f32\n%r = add(%t, %p) : f32\nyield(%r)",
    "the sum of the outer loop is used": SUM.replace("mul(%d, %d)", "mul(%d, %s)"),
    "the outer index is used": SUM.replace("%q = mul(%d, %d)", "%h = cast(%a) : f32\n  %q = mul(%d, %h)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    assert nest_of(REFUSED[name]) is None


def test_guards_may_use_the_outer_index() -> None:
    """Then the ranges of the inner loop are not joined."""
    nest = nest_of(SUM.replace("lt(%d, %f)", "lt(%d, %h)").replace("%near", "%h = cast(%a) : f32\n%near", 1))
    assert nest is not None and nest.most_ranges == 0

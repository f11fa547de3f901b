"""The text form: round trips, stability, errors with line numbers."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import unit.ir.ir_zoo as zoo

from spirograd.base import dtypes as dt
from spirograd.base.loc import Loc
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import FieldRef, Kernel, Layout, Op, TempRef, Term
from spirograd.ir.spec import verify
from spirograd.ir.text import IRSyntaxError, parse, to_text

BOTH = [(zoo.KERNEL, "kernel"), (zoo.DEVICE, "device"), (zoo.LOOPS, "loops")]


def same(a: Op, b: Op, known: dict[Op, Op]) -> None:
    """``b`` is ``a``, operation for operation."""
    assert (a.code, a.type, a.loc) == (b.code, b.type, b.loc)
    assert a.attr == b.attr or (math.isnan(a.attr) and math.isnan(b.attr))
    assert [known[x] for x in a.args] == list(b.args)
    assert len(a.regions) == len(b.regions)
    for r, s in zip(a.regions, b.regions):
        assert [p.type for p in r.params] == [p.type for p in s.params]
        known.update(zip(r.params, s.params))
        assert len(r.ops) == len(s.ops)
        for x, y in zip(r.ops, s.ops):
            same(x, y, known)
    known[a] = b


def equal(a: Kernel, b: Kernel) -> None:
    assert (a.name, a.args, a.returns, a.loc) == (b.name, b.args, b.returns, b.loc)
    assert [f.name for f in a.functions] == [f.name for f in b.functions]
    known: dict[Op, Op] = {}
    for f, g in zip(a.functions, b.functions):
        known.update(zip(f.body.params, g.body.params))
        for x, y in zip(f.body.ops, g.body.ops, strict=True):
            same(x, y, known)
    for x, y in zip(a.body.ops, b.body.ops, strict=True):
        same(x, y, known)


@pytest.mark.parametrize(("text", "level"), BOTH)
def test_round_trip(text: str, level: str) -> None:
    kernel = parse(text)
    printed = to_text(kernel)
    again = parse(printed)
    equal(kernel, again)
    assert to_text(again) == printed
    verify(again, level)


def test_every_operation_is_covered() -> None:
    seen = {op.code for text, _ in BOTH for op in parse(text).walk()}
    assert seen | {ops.param} == set(ops.ALL)


def test_locations_and_numbers() -> None:
    b = Builder()
    b.begin()
    b.loc = Loc("a.py", 3, 4, caller=Loc("b \"q\".py", 7, function="f"))
    b.const(-0.0, dt.f32)
    for value, t in ((math.nan, dt.f32), (-math.inf, dt.f64), (True, dt.u1), (-128, dt.i8), (0.1, dt.f16), (1e300, dt.f64)):
        b.const(value, t)
    kernel = Kernel("k", (), b.end(), loc=Loc("c.py", 1))
    equal(kernel, parse(to_text(kernel, locs=True)))
    again = parse(to_text(kernel))
    assert again.loc is None and all(op.loc is None for op in again.walk())
    assert math.copysign(1.0, again.body.ops[0].attr) == -1.0


def test_locations_are_printed_once() -> None:
    """Operations of an inlined call share the location of the call, in whichever objects, and memory may have the name of a location."""
    b = Builder()
    b.begin()
    for line in (1, 2, 1, 1):
        b.loc = Loc("a.py", line, caller=Loc("b.py", 7))
        b.load(TempRef("loc0", dt.i32), *())
    kernel = Kernel("k", (), b.end())
    text = to_text(kernel, locs=True)
    declared = [line for line in text.splitlines() if line.startswith("loc ")]
    assert declared == ['loc loc0 = Loc("b.py", 7)', 'loc loc1 = Loc("a.py", 1, caller=loc0)', 'loc loc2 = Loc("a.py", 2, caller=loc0)']
    assert text.count("load[loc0_]() : i32 @ loc1") == 3
    equal(kernel, parse(text))
    shared = [op.loc for op in parse(text).walk()]
    assert shared[0] is shared[2] and to_text(parse(text), locs=True) == text


def test_names_of_memory_do_not_clash() -> None:
    layout = Layout((Term(0, 1, 0, 4),))
    refs = [FieldRef(name, 0, key, dt.f32, (4,), (), layout, role) for key, (name, role) in enumerate(
        [("x", "primal"), ("x", "grad"), ("x", "primal"), ("f32", "primal"), ("Slot", "primal"), ("for", "primal"), ("9.é", "primal")])]
    b = Builder()
    b.begin()
    zero = b.const(0)
    for ref in (*refs, TempRef("x", dt.f32, (4,))):
        b.load(ref, zero)
    kernel = Kernel("k", (), b.end())
    verify(kernel, "kernel")
    equal(kernel, parse(to_text(kernel)))


def test_literals_are_rounded_to_their_type() -> None:
    kernel = parse('kernel "k"\n{\n  %x = const[0.1]() : f32\n  %y = const[1]() : f64  # a comment\n  yield()\n}\n')
    assert kernel.body.ops[0].attr == float(dt.f32.np.type(0.1))
    assert isinstance(kernel.body.ops[1].attr, float)
    verify(kernel, "kernel")


def test_the_example_of_the_documentation() -> None:
    page = Path(__file__).parents[3] / "docs" / "ir.md"
    examples = re.findall(r"```ir\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert examples
    for text in examples:
        kernel = parse(text)
        verify(kernel, "kernel")
        assert to_text(kernel) == text


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        ("  %x = foo() : i32\n", 3, "foo is no operation"),
        ("  %x = const[1]() : i33\n", 3, "i33 is no type"),
        ("  %x = neg(%y) : i32\n", 3, "%y is not defined"),
        ("  %x = const[1]() : i32\n  %x = const[1]() : i32\n", 4, "%x is already defined"),
        ("  %x = const[1.5]() : i32\n", 3, "no constant of type i32"),
        ("  %x = const[True]() : i32\n", 3, "no constant of type i32"),
        ("  %x = load[x]() : i32\n", 3, "x is not declared"),
        ("  %x = const[__import__('os')]() : i32\n", 3, "is not allowed"),
        ("  %x = const[1() : i32\n", 3, "nothing closes the bracket"),
        ("  %x = const[1]() : i32 i32\n", 3, "unexpected text"),
        ("  for[LoopAttr(wrong=1)]() : ()\n", 3, "bad expression"),
        ("  }\n", 3, "a region ends with a yield"),
    ],
)
def test_errors_name_the_line(body: str, line: int, message: str) -> None:
    with pytest.raises(IRSyntaxError, match=f"line {line}: .*{re.escape(message)}"):
        parse('kernel "k"\n{\n' + body + "  yield()\n}\n")


INCOMPLETE = ["", 'kernel "k"', 'kernel "k"\n{\n', 'kernel "k"\n{\nyield()\n}\nmore', "kernel k\n", 'kernel "k"\nreturn x\n{']


@pytest.mark.parametrize("text", INCOMPLETE)
def test_incomplete_text(text: str) -> None:
    with pytest.raises(IRSyntaxError, match="line"):
        parse(text)

"""The verifier accepts what is legal and finds what is not."""

from __future__ import annotations

import re

import pytest
import unit.ir.ir_zoo as zoo

from spirograd.base.artifact import FaultSite
from spirograd.base.dtypes import VOID, f32, i32, i64, u1
from spirograd.ir import ops
from spirograd.ir.builder import Builder
from spirograd.ir.nodes import ArrayArg, ArrayRef, Kernel, LoopAttr, Op, Region, TaskAttr
from spirograd.ir.spec import SPEC, IRError, verify
from spirograd.ir.text import parse

HEADER = """kernel "k"
arg ScalarArg("n", i32)
arg ArrayArg("x", f32, 1)
ref x = ArrayRef("x", 1, f32, 1)
ref two = ArrayRef("x", 1, f32, 2)
ref t = TempRef("t", i32)
ref flag = TempRef("flag", u1)
ref notes = AdstackRef("notes", f32, 2, 0)
ref bad = FieldRef("bad", 0, 0, f32, (4,), (), Layout((Term(0, 1, 0, 3),)))
ref axis = FieldRef("axis", 0, 0, f32, (4,), (), Layout((Term(1, 1, 0, 4),)))
ref parts = FieldRef("parts", 0, 0, f32, (4,), (2,), Layout((Term(0, 1, 0, 8),)))
ref b = BufferRef("b", Slot("array", index=1), f32)
ref bu1 = BufferRef("b", Slot("array", index=1), u1)
ref bs = BufferRef("b", Slot("scalar", index=1), f32)
ref local = SharedRef("local", f32, 8)
ref words = BufferRef("b", Slot("array", index=1), u32)
"""
VALUES = """  %i = const[1]() : i32
  %l = const[1]() : i64
  %f = const[1.0]() : f32
  %c = const[True]() : u1
  %v = vec(%f, %f) : vec<2,f32>
"""


def check(body: str, level: str = "kernel") -> None:
    verify(parse(HEADER + "{\n" + body + "  yield()\n}\n"), level)


NEGATIVE = [
    ("%r = add(%i) : i32", "takes 2 operands"),
    ("%r = add(%i, %l) : i32", "different types"),
    ("%r = add(%i, %f) : i32", "different types"),
    ("%r = add(%i, %i) : i64", "type of its operands"),
    ("%r = add(%c, %c) : u1", "does not take u1"),
    ("%r = add(%v, %v) : vec<2,f32>", "takes scalars"),
    ("%r = div(%i, %i) : i32", "does not take i32"),
    ("%r = and(%f, %f) : f32", "does not take f32"),
    ("%r = lt(%c, %c) : u1", "does not take u1"),
    ("%r = lt(%i, %i) : i32", "its result is u1"),
    ('%r = add["nsw"](%f, %f) : f32', "for integers"),
    ('%r = add["exact"](%i, %i) : i32', "for floats"),
    ('%r = xor["nsw"](%i, %i) : i32', "attribute that it does not take"),
    ("%r = neg[3](%i) : i32", "attribute that it does not take"),
    ("%r = select(%i, %i, %i) : i32", "the condition is u1"),
    ("%r = select(%c, %i, %l) : i32", "one type"),
    ("%r = cast(%v) : f32", "converts scalars"),
    ("%r = bitcast(%f) : i64", "same width"),
    ("%r = bitcast(%c) : u1", "same width"),
    ("%r = vec(%f, %i) : vec<2,f32>", "different types"),
    ("%r = vec(%f) : vec<2,f32>", "its type is vec<1,f32>"),
    ("%r = extract(%f, %i) : f32", "takes a vector"),
    ("%r = extract(%v, %f) : f32", "its index is an integer"),
    ("%r = insert(%v, %i, %i) : vec<2,f32>", "new element is f32"),
    ("%r = const[300]() : u8", "out of the range"),
    ("%r = arg[5]() : i32", "no such argument"),
    ("%r = arg[1]() : i32", "no scalar"),
    ("%r = arg[0]() : f32", "that argument is i32"),
    ("%r = shape[(0, 0)]() : i32", "no array"),
    ("%r = shape[(1, 1)]() : i32", "has 1 axes"),
    ("%r = shape[(1, 0)]() : i64", "an extent is i32"),
    ("%r = seed() : i32", "is u32"),
    ("%r = load[x]() : f32", "takes 1 indices"),
    ("%r = load[notes](%i) : f32", "takes 2 indices"),
    ("%r = load[notes](%i, %i) : i32", "the memory holds f32"),
    ("%r = load[x](%f) : f32", "an index is i32 or i64"),
    ("%r = load[x](%i) : i32", "the memory holds f32"),
    ("%r = load[two](%i, %i) : f32", "does not fit the argument"),
    ("%r = load[bad](%i) : f32", "multiples of the size"),
    ("%r = load[axis](%i) : f32", "does not fit the field"),
    ("%r = load[parts](%i, %i) : f32", "one offset per component"),
    ("%r = load[b](%i) : f32", "does not access memory through BufferRef"),
    ("store[x](%i, %i)", "the memory holds f32"),
    ("%r = store[t](%i) : i32", "is void"),
    ('%r = atomic[("frob", t)](%i) : i32', "takes (kind, reference)"),
    ('%r = atomic[("and", x)](%i, %f) : f32', "and does not take f32"),
    ('%r = atomic[("add", flag)](%c) : u1', "add does not take u1"),
    ("%r = cas[t](%i) : i32", "takes 0 indices and 2 values"),
    ("%r = claim[x](%i) : f32", "counts in i32"),
    ("%r = claim[t](%i) : i32", "takes 0 indices"),
    ('check[FaultSite("assert", "", (i32,))](%c)', "the site has operands"),
    ('check[FaultSite("assert", "", ())](%i)', "the condition is u1"),
    ('print[PrintSite(("",), (f32,))](%i)', "the site has operands"),
    ("%r = result[0](%i) : i32", "results of a control operation"),
    ("%s = if(%c) : (i32) {\n yield(%i)\n} {\n yield(%l)\n}", "its region yields"),
    ("%s = if(%i) : (i32) {\n yield(%i)\n} {\n yield(%i)\n}", "the condition is u1"),
    ("%s = if(%c) : (i32) {\n yield(%i)\n}", "has two regions"),
    ("%s = if(%c) : (i32) {\n yield(%i)\n} {\n yield(%i)\n}\n%r = result[1](%s) : i32", "no such result"),
    ("%s = if(%c) : (i32) {\n yield(%i)\n} {\n yield(%i)\n}\n%r = neg(%s) : i32", "is no value"),
    ("for[LoopAttr()](%i, %l) : () { (%k: i32)\n yield()\n}", "one type"),
    ("for[LoopAttr()](%f, %f) : () { (%k: f32)\n yield()\n}", "it counts in i32, i64, u32 or u64"),
    ("for[LoopAttr()](%i, %i) : () { (%k: i64)\n yield()\n}", "its region takes"),
    ("for(%i, %i) : () { (%k: i32)\n yield()\n}", "LoopAttr"),
    ("%s = for[LoopAttr()](%i, %i, %f) : (f32) { (%k: i32, %g: f32)\n yield(%k)\n}", "its region yields"),
    ("%s = for[LoopAttr(parallel=True)](%i, %i, %f) : (f32) { (%k: i32, %g: f32)\n yield(%g)\n}", "without results"),
    ("%s = while(%i) : (i32) { (%a: i32)\n yield(%a)\n} { (%b: i32)\n yield(%b)\n}", "its region yields"),
    ('%r = slot[Slot("scalar")]() : i32', "is no operation of kernel IR"),
    ("%r = builtin[BuiltIn.LOCAL]() : i32", "is no operation of kernel IR"),
    ("%r = recall(%f, %i) : f32", "different types"),
    ("%r = neg(%i) : i32 {\n yield()\n}", "control operations have regions"),
    ('task[TaskAttr("serial", "a")]() {\n yield()\n}', "stands beside tasks"),
]


@pytest.mark.parametrize(("text", "rule"), NEGATIVE)
def test_mistakes_are_found(text: str, rule: str) -> None:
    with pytest.raises(IRError, match=re.escape(rule)):
        check(VALUES + text + "\n")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("%r = floordiv(%i, %i) : i32", "is no operation of device IR"),
        ("%r = arg[0]() : i32", "is no operation of device IR"),
        ("%r = load[x](%i) : f32", "does not access memory through ArrayRef"),
        ("%r = load[b](%i, %i) : f32", "takes 1 indices"),
        ("%r = load[bu1](%i) : u1", "no u1 in device IR"),
        ("%r = load[bs](%i) : f32", "is no buffer"),
        ("%r = cas[b](%i, %f, %f) : f32", "32-bit and 64-bit integers"),
        ("%r = thread_slot() : u32", "is i32"),
        ("%r = load[notes](%i, %i) : f32", "does not access memory through AdstackRef"),
        ("%r = stop_grad(%f) : f32", "is no operation of device IR"),
        ('%r = slot[Slot("adstack_base")]() : u32', "that slot is"),
        ('%r = slot[Slot("temps")]() : u64', "that slot is"),
        ('%r = slot[Slot("scalar", dtype=f32)]() : i32', "that slot is f32"),
        ("for[LoopAttr(parallel=True)](%i, %i) : () { (%k: i32)\n yield()\n}", "before offload"),
        ('task[TaskAttr("serial", "b")]() {\n yield()\n}', "directly in the body"),
    ],
)
def test_mistakes_in_device_ir(text: str, rule: str) -> None:
    with pytest.raises(IRError, match=re.escape(rule)):
        check('task[TaskAttr("serial", "a")]() {\n' + VALUES + text + "\n yield()\n}\n", "device")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('task[TaskAttr("serial", "a")]() {\n yield()\n} {\n yield()\n}', "one region"),
        ('task[TaskAttr("warp", "a")]() {\n yield()\n}', '"serial" or "range_for"'),
        ('task[TaskAttr("range_for", "a")]() {\n yield()\n}', "bounds, body and finish"),
        ('task[TaskAttr("serial", "a")](){\n %i = const[0]() : i32\n yield(%i)\n}', "its region yields"),
        ('task[TaskAttr("range_for", "a")]() {\n yield()\n} { (%i: i32)\n yield()\n} {\n yield()\n}', "its region yields"),
        ('task[TaskAttr("range_for", "a", reductions=(Reduction("xor", f32),))]() {\n yield()\n}', "is no reduction"),
        ("%i = const[0]() : i32", "stands beside tasks"),
    ],
)
def test_mistakes_in_tasks(text: str, rule: str) -> None:
    with pytest.raises(IRError, match=re.escape(rule)):
        check(text + "\n", "device")


def kernel_of(*body: Op) -> Kernel:
    return Kernel("k", (ArrayArg("x", f32, 1),), Region((), (*body, Op(ops.yield_, VOID))))


def test_nothing_crosses_into_a_task() -> None:
    zero = Op(ops.const, i32, (), 0)
    inner = Op(ops.task, VOID, (), TaskAttr("serial", "a"), (Region((), (Op(ops.neg, i32, (zero,)), Op(ops.yield_, VOID))),))
    with pytest.raises(IRError, match="is not visible here"):
        verify(kernel_of(zero, inner), "kernel")


def test_values_are_defined_before_use_once_and_in_reach() -> None:
    zero = Op(ops.const, i32, (), 0)
    with pytest.raises(IRError, match="is not visible here"):
        verify(kernel_of(Op(ops.neg, i32, (zero,)), zero), "kernel")
    with pytest.raises(IRError, match="is defined twice"):
        verify(kernel_of(zero, zero), "kernel")
    b = Builder()
    b.begin()
    inside = b.const(1)
    loop = Op(ops.for_, (), (zero, zero), LoopAttr(), (Region((Op(ops.param, i32),), b.end().ops),))
    verify(kernel_of(zero, loop), "kernel")
    with pytest.raises(IRError, match="is not visible here"):
        verify(kernel_of(zero, loop, Op(ops.neg, i32, (inside,))), "kernel")


def test_constants_fit_their_type() -> None:
    for t, value in ((i32, True), (i32, 1.0), (f32, 1), (f32, 0.1), (u1, 1), (i32, None)):
        with pytest.raises(IRError):
            verify(kernel_of(Op(ops.const, t, (), value)), "kernel")


def test_regions_end_with_a_yield() -> None:
    with pytest.raises(IRError, match="does not end with a yield"):
        verify(Kernel("k", (), Region((), ())), "kernel")
    with pytest.raises(IRError, match="nowhere else"):
        verify(kernel_of(Op(ops.yield_, VOID)), "kernel")
    with pytest.raises(IRError, match="its region is empty"):
        zero = Op(ops.const, i32, (), 0)
        verify(kernel_of(zero, Op(ops.for_, (), (zero, zero), LoopAttr(), (Region((Op(ops.param, i32),), ()),))), "kernel")


def test_references_name_array_arguments() -> None:
    zero = Op(ops.const, i64, (), 0)
    with pytest.raises(IRError, match="argument 3 is no array"):
        verify(kernel_of(zero, Op(ops.load, f32, (zero,), ArrayRef("x", 3, f32, 1))), "kernel")


FUNCTION = """function "half" { (%p: f32)
  %c = const[0.5]() : f32
  %r = mul(%p, %c) : f32
  yield(%r)
}
"""
TASK = """{
  task[TaskAttr("serial", "only")]() {
    %%f = const[1.0]() : f32
    %%i = const[1]() : i32
    %s
    yield()
  }
  yield()
}
"""


def functions_check(functions: str, line: str) -> None:
    verify(parse(HEADER + functions + TASK % line), "device")


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ('%r = call["third"](%f) : f32', "no such function"),
        ('%r = call["half"](%i) : f32', "the function takes"),
        ('%r = call["half"](%f, %f) : f32', "the function takes"),
        ('%r = call["half"](%f) : f64', "the function gives f32"),
    ],
)
def test_calls_fit_their_functions(line: str, rule: str) -> None:
    functions_check(FUNCTION, '%r = call["half"](%f) : f32')
    with pytest.raises(IRError, match=rule):
        functions_check(FUNCTION, line)


def test_functions_that_calls_may_name() -> None:
    writing = FUNCTION.replace("%r = mul", "%z = const[0]() : i32\n  store[b](%z, %p)\n  %r = mul")
    with pytest.raises(IRError, match="does more than compute"):
        functions_check(writing, '%r = call["half"](%f) : f32')
    with pytest.raises(IRError, match="or has another's name"):
        functions_check(FUNCTION + FUNCTION, "")
    for line in ("%n = thread_slot() : i32", "barrier()", "%n = builtin[BuiltIn.LOCAL]() : i32"):
        with pytest.raises(IRError, match="does what only kernels do"):
            functions_check(FUNCTION.replace("%r = mul", f"{line}\n  %r = mul"), "")
    calling = FUNCTION.replace("mul(%p, %c)", 'call["half"](%p)')
    functions_check(calling, "")  # itself
    with pytest.raises(IRError, match="stands further down"):
        functions_check(calling.replace('call["half"]', 'call["third"]') + FUNCTION.replace('"half"', '"third"'), "")


def test_calls_say_what_their_functions_access() -> None:
    writing = FUNCTION.replace("%r = mul", "%z = const[0]() : i32\n  store[b](%z, %p)\n  %r = mul")
    outer = writing.replace("half", "outer").replace("store[b](%z, %p)", '%s = call_memory[MemoryCall("half", (("write", b),))](%p) : f32')
    functions_check(writing + outer, '%r = call_memory[MemoryCall("outer", (("atomic", b),))](%f) : f32')
    for line, rule in (
        ('%r = call_memory["half"](%f) : f32', "takes a MemoryCall"),
        ('%r = call_memory[MemoryCall("half", ())](%f) : f32', "more than its calls say"),
        ('%r = call_memory[MemoryCall("half", (("read", b),))](%f) : f32', "more than its calls say"),
        ('%r = call_memory[MemoryCall("outer", (("read", b),))](%f) : f32', "more than its calls say"),
        ('%r = call_memory[MemoryCall("third", (("write", b),))](%f) : f32', "no such function"),
        ('%r = call_memory[MemoryCall("half", (("write", b),))](%i) : f32', "the function takes"),
    ):
        with pytest.raises(IRError, match=rule):
            functions_check(writing + outer, line)


def test_sites_are_sites() -> None:
    c = Op(ops.const, u1, (), True)
    verify(kernel_of(c, Op(ops.check, VOID, (c,), FaultSite("assert", "", (), None))), "kernel")
    with pytest.raises(IRError, match="takes a FaultSite"):
        verify(kernel_of(c, Op(ops.check, VOID, (c,), "assert")), "kernel")


def test_the_tables_cover_the_operations() -> None:
    assert set().union(*SPEC.values()) | {ops.param} == set(ops.ALL)
    for code in ops.ALL:
        if code is not ops.param:
            assert [level for level, table in SPEC.items() if code in table] == list(code.levels)


def test_in_the_middle_of_lowering() -> None:
    """Memory of the device, with operations that are still to be lowered."""

    def lowered(store: str, level: str) -> None:
        body = VALUES + "    %q = floordiv(%i, %i) : i32\n    " + store + "\n    yield()\n"
        check('  task[TaskAttr("serial", "t")]() {\n' + body + "  }\n", level)

    lowered("store[b](%i, %f)", "lowering")
    with pytest.raises(IRError, match=r"floordiv.* is no operation of device IR"):
        lowered("store[b](%i, %f)", "device")
    with pytest.raises(IRError, match="lowering IR does not access memory through ArrayRef"):
        lowered("store[x](%i, %f)", "lowering")


def test_levels_and_legal_kernels() -> None:
    verify(parse(zoo.KERNEL), "kernel")
    verify(parse(zoo.DEVICE), "device")
    with pytest.raises(IRError):
        verify(parse(zoo.DEVICE), "kernel")
    with pytest.raises(IRError):
        verify(parse(zoo.KERNEL), "device")
    with pytest.raises(ValueError, match="no such level"):
        verify(parse(zoo.KERNEL), "machine")


_CHUNKS = 'task[TaskAttr("chunks", "a", chunks=ChunkAttr(1))]()'
_BOUNDS = "{\n %z = const[0]() : i32\n yield(%z, %z)\n}"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", ""),
        ("%r = for[LoopAttr(independent=True)](%i, %i, %f) : (f32) { (%k: i32, %g: f32)\n yield(%g)\n}", "one accumulator"),
        ('for[LoopAttr(independent=True, vectorise="yes")](%i, %i) : () { (%k: i32)\n yield()\n}', "loops over chunks"),
        ("%r = outlined[1]() : (f32) {\n yield(%f)\n}", "a name"),
        ('%r = outlined["part"]() : (f32) {\n yield(%i)\n}', "its region yields"),
        ("stream[(local, words)](%i, %i)", "both hold one type"),
        ("stream[(local, b)](%i, %l)", "index and count"),
    ],
)
def test_mistakes_in_loops(text: str, rule: str) -> None:
    body = f"{_CHUNKS} {_BOUNDS} {{ (%begin: i64, %end: i64)\n{VALUES}{text}\n yield()\n}}\n"
    if not rule:
        check(body, "loops")
        return
    with pytest.raises(IRError, match=re.escape(rule)):
        check(body, "loops")


@pytest.mark.parametrize(
    ("text", "level", "rule"),
    [
        (f"{_CHUNKS} {_BOUNDS} {{ (%b: i64, %e: i64)\n yield()\n}}", "device", 'is of the level "loops"'),
        (f"{_CHUNKS} {_BOUNDS} {{ (%b: i64)\n yield()\n}}", "loops", "its region takes"),
        (f"{_CHUNKS} {_BOUNDS}", "loops", "has bounds, a body"),
        (f'task[TaskAttr("chunks", "a")]() {_BOUNDS} {{ (%b: i64, %e: i64)\n yield()\n}}', "loops", "with a ChunkAttr"),
        (f'task[TaskAttr("range_for", "a")]() {_BOUNDS} {{ (%i: i32)\n yield()\n}} {{\n yield()\n}}', "loops", '"chunks"'),
    ],
)
def test_mistakes_in_chunks(text: str, level: str, rule: str) -> None:
    with pytest.raises(IRError, match=re.escape(rule)):
        check(text + "\n", level)


LANES = """  %w = splat(%i) : lanes<8,i32>
  %g = splat(%f) : lanes<8,f32>
  %m = eq(%w, %w) : lanes<8,u1>
  %short = splat(%i) : lanes<4,i32>
"""
WRONG_LANES = [
    ("%r = splat(%i) : lanes<8,f32>", "is lanes of its operand"),
    ("%r = lane_const[(1, 2)]() : lanes<8,i32>", "a constant for each of 8 lanes"),
    ("%r = lane_const[(True, False)]() : lanes<2,i32>", "its constants are i32"),
    ("%r = add(%w, %i) : lanes<8,i32>", "different types"),
    ("%r = add(%w, %short) : lanes<8,i32>", "different types"),
    ("%r = lt(%w, %w) : u1", "its result is u1"),
    ("%r = select(%c, %w, %w) : lanes<8,i32>", "the condition is u1"),
    ("%r = cast(%w) : lanes<4,f32>", "converts each lane"),
    ("%r = extract(%w, %i) : f32", "its result is i32"),
    ("%r = load[b](%w) : lanes<4,f32>", "the memory holds f32"),
    ("%r = load[b](%g) : lanes<8,f32>", "an index is i32 or i64"),
    ("%r = load_lanes[b](%i) : lanes<8,f32>", "takes .stride, reference."),
    ("%r = load_lanes[(1, b)](%i) : lanes<8,i32>", "is lanes of the elements"),
    ("%r = load_lanes[(1, b)](%i, %i) : lanes<8,f32>", "a mask is lanes<8,u1>"),
    ("%r = load_lanes[(1, b)](%i, %m, %w) : lanes<8,f32>", "the others are lanes<8,f32>"),
    ("store_lanes[(1, b)](%i, %w)", "the memory holds f32"),
    ("store_lanes[(1, b)](%i, %g, %w)", "a mask is lanes<8,u1>"),
    ("store_compressed[b](%w, %g, %m)", "an index is i32 or i64"),
    ('%r = reduce_lanes["and"](%g) : f32', "and does not take f32"),
    ('%r = reduce_lanes["add"](%w) : i64', "its result is i32"),
    ("%r = ballot_lanes(%w) : i64", "takes lanes of u1"),
    ("%r = widen_mask(%m) : lanes<4,i32>", "gives i32"),
    ("%r = any_lane(%m) : u1", "takes lanes of i32"),
    ("%r = lanes_of_bits(%i) : lanes<8,u1>", "takes an i64"),
    ("%r = lane_slots() : i64", "is i32"),
    ("%r = each_lane(%m, %w) : (lanes<8,i32>) { (%p: f32)\n    yield(%i)\n  }", "one lane of each operand"),
    ("%r = each_lane(%m, %w) : (lanes<8,i32>) { (%p: i32)\n    yield(%f)\n  }", "its results are"),
]


@pytest.mark.parametrize(("line", "rule"), WRONG_LANES)
def test_lanes_that_are_wrong(line: str, rule: str) -> None:
    body = "  ".join(f"  {text}\n" for text in (VALUES + LANES).splitlines())
    with pytest.raises(IRError, match=rule):
        check('  task[TaskAttr("serial", "t")]() {\n' + body + f"  {line}\n" + "  yield()\n  }\n", "loops")


def test_lanes_are_for_loops() -> None:
    with pytest.raises(IRError, match=r"lane_slots.* is no operation of device IR"):
        verify(parse(zoo.LOOPS), "device")

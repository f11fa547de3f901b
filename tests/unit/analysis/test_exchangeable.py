"""Which loops give the same bits with lanes and without, and which tasks in other workgroups: one of each kind that does, or does not."""

from __future__ import annotations

import pytest

from spirograd.analysis.exchangeable import is_exact, is_exchangeable, is_exchangeable_task
from spirograd.ir import ops
from spirograd.ir.nodes import Op
from spirograd.ir.text import parse

_KERNEL = """kernel "k"
ref x = BufferRef("x", Slot("tree"), f32)
ref n = BufferRef("n", Slot("tree"), i32)
ref s = BufferRef("s", Slot("adstacks"), f32)
ref f = BufferRef("f", Slot("fault"), u32)
{
  task[TaskAttr("serial", "k_0")]() {
    %z = const[0]() : i32
    %one = const[1]() : i32
    %float = const[0.0]() : f32
    %double = const[0.0]() : f64
    %word = const[0]() : u32
    %l = for[LoopAttr()](%z, %one, BEGIN) : (TYPE) { (%i: i32, %c: TYPE)
      %a = load[x](%i) : f32
      %k = load[n](%i) : i32
      BODY
      yield(%c)
    }
    yield()
  }
  yield()
}
"""


def exchangeable(body: str, begin: str = "%z", type: str = "i32") -> bool:
    kernel = parse(_KERNEL.replace("BODY", body).replace("BEGIN", begin).replace("TYPE", type))
    (loop,) = [op for op in kernel.walk() if op.code is ops.for_]
    return is_exchangeable(loop.regions[0], {f.name: f.body for f in kernel.functions})


@pytest.mark.parametrize(
    "body",
    [
        "%b = add(%a, %a) : f32\n store[x](%i, %b)",
        '%b = add["reassoc"](%k, %k) : i32\n store[n](%i, %b)',
        '%b = atomic[("add", n)](%k, %k) : i32',
        "%b = sqrt(%double) : f64",
        "%b = div(%double, %double) : f64",
    ],
)
def test_same_bits(body: str) -> None:
    assert exchangeable(body)


@pytest.mark.parametrize(
    "body",
    [
        '%b = add["reassoc"](%a, %a) : f32\n store[x](%i, %b)',
        '%b = atomic[("add", x)](%k, %a) : f32',
        '%b = atomic[("add", n)](%k, %k) : i32\n store[n](%i, %b)',
        "%b = sin(%double) : f64",
        "%b = load[s](%i) : f32",
        '%b = atomic[("max", f)](%z, %word) : u32',
    ],
)
def test_other_bits(body: str) -> None:
    assert not exchangeable(body)


def test_reductions() -> None:
    assert exchangeable("")
    assert not exchangeable("", "%float", "f32")


_TASK = """kernel "k"
ref x = FieldRef("x", 0, 1, f32, (100,), (), Layout((Term(0, 1, 0, 4),)))
ref n = FieldRef("n", 0, 3, i32, (100,), (), Layout((Term(0, 1, 0, 4),)))
ref s = AdstackRef("s", f32, 1, 0)
{
  task[TaskAttr("range_for", "k_0"ATTR)]() {
    %z = const[0]() : i32
    %m = const[100]() : i32
    yield(%z, %m)
  } { (%i: i32PARAMS)
    %a = load[x](%i) : f32
    %k = load[n](%i) : i32
    %d = const[0.0]() : f64
    BODY
    yield(YIELDED)
  } FINISH
  yield()
}
"""


def task(body: str, attr: str = "", total: str = "", finish: str = "{\n yield()\n }") -> Op:
    params, yielded = (f", %t: {total}", "%r") if total else ("", "")
    finish = f"{{ (%t: {total})\n yield()\n }}" if total else finish
    text = _TASK.replace("BODY", body).replace("ATTR", attr).replace("PARAMS", params).replace("YIELDED", yielded)
    return parse(text.replace("FINISH", finish)).body.ops[0]


@pytest.mark.parametrize(
    ("body", "attr", "total"),
    [
        ("%b = add(%a, %a) : f32\n store[x](%i, %b)", "", ""),
        ("%b = sqrt(%d) : f64\n %c = sin(%a) : f32\n store[x](%i, %c)", "", ""),
        ('%b = atomic[("add", n)](%k, %k) : i32', "", ""),
        ('%b = atomic[("max", n)](%k, %k) : i32', "", ""),
        ("%r = add(%t, %k) : i32", ', reductions=(Reduction("add", i32),)', "i32"),
        ('%b = add["reassoc"](%a, %a) : f32\n store[x](%i, %b)', "", ""),
    ],
)
def test_same_bits_in_other_groups(body: str, attr: str, total: str) -> None:
    assert is_exchangeable_task(task(body, attr, total), {})


@pytest.mark.parametrize(
    ("body", "attr", "total"),
    [
        ('%b = atomic[("add", x)](%k, %a) : f32', "", ""),
        ('%b = atomic[("exchange", n)](%k, %k) : i32', "", ""),
        ('%b = atomic[("add", n)](%k, %k) : i32\n store[n](%i, %b)', "", ""),
        ("%b = cas[n](%k, %k, %k) : i32", "", ""),
        ("%b = clock() : i64", "", ""),
        ("%b = load[s](%k) : f32\n store[x](%i, %b)", "", ""),
        ("%b = thread_slot() : i32\n store[n](%i, %b)", "", ""),
        ('%c = lt(%k, %i) : u1\n check[FaultSite("assert", "no", ())](%c)', "", ""),
        ("%r = add(%t, %a) : f32", ', reductions=(Reduction("add", f32),)', "f32"),
        ("%b = add(%a, %a) : f32", ", group_size=64, grouped=True", ""),
        ("%b = add(%a, %a) : f32", ", shares=2", ""),
    ],
)
def test_other_bits_in_other_groups(body: str, attr: str, total: str) -> None:
    assert not is_exchangeable_task(task(body, attr, total), {})


def test_sums_that_may_be_reordered_are_not_exact() -> None:
    assert not is_exact(task('%b = add["reassoc"](%a, %a) : f32\n store[x](%i, %b)').regions[1])
    assert is_exact(task('%b = add["reassoc"](%k, %k) : i32\n store[n](%i, %b)').regions[1])

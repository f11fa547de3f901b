"""Which loops give the same bits with lanes and without: a loop of each kind that does, and of each that does not."""

from __future__ import annotations

import pytest

from spirograd.analysis.exchangeable import is_exchangeable
from spirograd.ir import ops
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

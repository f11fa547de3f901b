"""Effects, aliasing, sizes, temporaries, sites."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spirograd.analysis.available_values import AvailableValues
from spirograd.analysis.effects import effects, may_alias, reads, touches, writes
from spirograd.analysis.sites import collect_sites
from spirograd.analysis.sizes import size_of
from spirograd.analysis.temps import temp_offsets
from spirograd.analysis.value_numbers import affine
from spirograd.base import dtypes as dt
from spirograd.base.artifact import Effects, Slot
from spirograd.base.sizes.evaluate import evaluate
from spirograd.ir import ops
from spirograd.ir.nodes import AdstackRef, ArrayRef, BufferRef, FieldRef, Kernel, Layout, Op, Ref, SharedRef, TempRef, Term, accesses_of
from spirograd.ir.spec import verify
from spirograd.ir.text import parse

KERNEL = """kernel "k"
arg ArrayArg("x", f32, 1, needs_grad=True)
arg ArrayArg("y", f32, 1)
arg ScalarArg("n", i32)
ref x = ArrayRef("x", 0, f32, 1)
ref x_grad = ArrayRef("x", 0, f32, 1, role="grad")
ref y = ArrayRef("y", 1, f32, 1)
ref f = FieldRef("f", 3, 0, f32, (4,), (), Layout((Term(0, 1, 0, 4),)))
ref g = FieldRef("g", 4, 1, f32, (4,), (), Layout((Term(0, 1, 0, 4),)))
ref byte = TempRef("byte", u1, shape=(3,))
ref wide = TempRef("wide", f64)
ref half = TempRef("half", f16, shape=(2, 2))
return wide
{
  %z = const[0]() : i32
  %n = arg[2]() : i32
  %c = lt(%z, %n) : u1
  check[FaultSite("assert", "first", ())](%c)
  %loop = for[LoopAttr()](%z, %n, %z) : (i32) { (%i: i32, %s: i32)
    %t = add(%i, %s) : i32
    yield(%t)
  }
  %reading = for[LoopAttr()](%z, %n, %z) : (i32) { (%i: i32, %s: i32)
    %a = load[x](%i) : f32
    %t = cast(%a) : i32
    yield(%t)
  }
  for[LoopAttr(parallel=True)](%z, %n) : () { (%i: i32)
    if(%c) : () {
      %a = load[f](%i) : f32
      store[x_grad](%i, %a)
      check[FaultSite("assert", "second", ())](%c)
      check[FaultSite("assert", "first", ())](%c)
      yield()
    } {
      %b = const[1.0]() : f32
      %old = atomic[("add", g)](%i, %b) : f32
      yield()
    }
    print[PrintSite(("i",), ())]()
    yield()
  }
  store[byte](%z, %c)
  %h = const[1.0]() : f16
  store[half](%z, %z, %h)
  yield()
}
"""


@pytest.fixture(name="kernel")
def parsed() -> Kernel:
    kernel = parse(KERNEL)
    verify(kernel, "kernel")
    return kernel


def loops(kernel: Kernel) -> list[Op]:
    return [op for op in kernel.body.ops if op.code is ops.for_]


def test_effects(kernel: Kernel) -> None:
    reading = frozenset({("array", 0), ("tree", 3), ("tree", 4)})
    parts_read = frozenset({("array", 0, "primal"), ("tree", 3, "0"), ("tree", 4, "1")})
    parts_written = frozenset({("array", 0, "grad"), ("tree", 4, "1")})
    assert effects(kernel) == Effects(reading, frozenset({("array", 0), ("tree", 4)}), parts_read, parts_written)
    slot = Slot("array", index=1)
    device = parse(
        'kernel "d"\nref b = BufferRef("b", Slot("array", index=1), f32)\nref t = BufferRef("t", Slot("temps"), f32)\n{\n'
        '  task[TaskAttr("serial", "a")]() {\n    %i = const[0]() : i32\n    %v = load[b](%i) : f32\n    store[t](%i, %v)\n'
        "    yield()\n  }\n  yield()\n}\n"
    )
    assert slot.is_buffer and effects(device) == Effects(frozenset({("array", 1)}), frozenset(), frozenset({("array", 1, "primal")}))


def test_memory_of_an_operation(kernel: Kernel) -> None:
    pure, reading, writing = loops(kernel)
    assert not touches(pure)
    assert {r.name for r in reads(reading)} == {"x"} and not writes(reading)
    assert {(r.name, getattr(r, "role", "")) for r in writes(writing)} == {("x", "grad"), ("g", "primal")}
    assert {r.name for r in touches(writing)} == {"x", "f", "g"}


def test_accesses_of_regions(kernel: Kernel) -> None:
    """Those of all operations, once for each reference, in order."""
    each = [(effect, ref) for op in kernel.walk() for effect, ref in accesses_of(op)]
    assert kernel.accesses == list(dict.fromkeys(each)) and len(each) == 6
    branches = next(op for op in kernel.walk() if op.code is ops.if_).regions
    named = [[(effect, ref.name) for effect, ref in region.accesses] for region in branches]
    assert named == [[("read", "f"), ("write", "x")], [("atomic", "g")]]


def _references() -> tuple[list[Ref], list[Ref]]:
    """References of every kind, of kernel IR and of device IR; some are equal, but other objects."""
    layout = Layout((Term(0, 1, 0, 4),))
    roles = ("primal", "grad")
    fields = [FieldRef("f", tree, key, dt.f32, (4,), (), layout, role) for tree, key in ((0, 0), (0, 1), (1, 2)) for role in roles]
    arrays = [ArrayRef("x", arg, dt.f32, 1, role=role) for arg in (0, 1) for role in roles]
    own: list[Ref] = [TempRef("s", dt.f32), TempRef("t", dt.f32), AdstackRef("p", dt.f32, 1, 0), AdstackRef("q", dt.f32, 1, 0)]
    shared: list[Ref] = [SharedRef("a", dt.f32, 4), SharedRef("b", dt.f32, 4)]
    slots = [Slot("tree"), Slot("tree", index=1), Slot("array"), Slot("array", index=1), Slot("temps"), Slot("adstacks"), Slot("fault")]
    buffers = [BufferRef("b", slot, t) for slot in slots for t in (dt.f32, dt.u32)]
    again: list[Ref] = [ArrayRef("x", 1, dt.f32, 1), FieldRef("f", 0, 1, dt.f32, (4,), (), layout), TempRef("t", dt.f32)]
    return [*fields, *own, *arrays, *shared, *again], [*shared, *buffers, BufferRef("b", Slot("array"), dt.f32)]


@pytest.mark.parametrize("separate_arrays", [False, True])
@pytest.mark.parametrize("level", [0, 1])
def test_writes_to_what_may_alias(level: int, separate_arrays: bool) -> None:
    """A write ends what is known of references that may be the same memory, and of no others, while more references are added."""
    refs, known = _references()[level], AvailableValues(affine, separate_arrays)
    value = constant(0)
    for count in range(1, len(refs) + 1):
        seen = refs[:count]
        elements = [known.element(ref, ()) for ref in seen]
        assert [a == b for a in elements for b in elements] == [a == b for a in seen for b in seen]
        for a in seen:
            for element in elements:
                known.set(element, value, ())
            before = known.mark()
            known.clobber_all(a)
            assert [known.get(element) is None for element in elements] == [may_alias(a, b, separate_arrays) for b in seen]
            known.restore(before)
            assert all(known.get(element) is not None for element in elements)
        known.clear()
        assert not list(known.items())


def test_aliasing() -> None:
    layout = Layout((Term(0, 1, 0, 4),))
    f, g = (FieldRef(name, 0, key, dt.f32, (4,), (), layout) for key, name in enumerate("fg"))
    df = FieldRef("f", 0, 0, dt.f32, (4,), (), layout, "grad")
    x, y = (ArrayRef(name, k, dt.f32, 1) for k, name in enumerate("xy"))
    s, t = TempRef("s", dt.f32), TempRef("t", dt.f32)
    for a, b in ((f, f), (x, y), (x, f), (s, s)):
        assert may_alias(a, b) and may_alias(b, a)
    for a, b in ((f, g), (f, df), (s, t), (s, x), (s, f)):
        assert not may_alias(a, b) and not may_alias(b, a)
    tree, other, array = (BufferRef("b", slot, dt.f32) for slot in (Slot("tree"), Slot("tree", index=1), Slot("array")))
    view = BufferRef("b", Slot("tree"), dt.u32)
    temps, fault = BufferRef("t", Slot("temps"), dt.f32), BufferRef("e", Slot("fault"), dt.u32)
    assert may_alias(tree, view) and may_alias(tree, array) and not may_alias(tree, other)
    assert not may_alias(temps, array) and not may_alias(fault, temps) and not may_alias(fault, array)


def test_temporaries(kernel: Kernel) -> None:
    offsets, size = temp_offsets(kernel)
    assert {ref.name: at for ref, at in offsets.items()} == {"wide": 0, "byte": 8, "half": 12} and size == 24
    assert temp_offsets(parse('kernel "k"\n{\n  yield()\n}\n')) == ({}, 0)


def test_sites(kernel: Kernel) -> None:
    faults, prints = collect_sites(kernel)
    assert [site.message for site in faults] == ["first", "second"] and len(prints) == 1


def constant(value: int, t: dt.DType = dt.i32) -> Op:
    return Op(ops.const, t, (), value)


N, M = Op(ops.arg, dt.i32, (), 0), Op(ops.shape, dt.i32, (), (1, 2))
# |N|, whose bits are an unsigned number.
MAGNITUDE = Op(ops.select, dt.i32, (Op(ops.gt, dt.u1, (N, constant(0))), N, Op(ops.sub, dt.i32, (constant(0), N))))


@pytest.mark.parametrize(
    ("op", "want"),
    [
        (constant(7), 7),
        (N, 10),
        (M, 6),
        (Op(ops.add, dt.i32, (N, M)), 16),
        (Op(ops.sub, dt.i32, (M, N)), -4),
        (Op(ops.mul, dt.i32, (N, M)), 60),
        (Op(ops.min_, dt.i32, (N, M)), 6),
        (Op(ops.max_, dt.i32, (N, M)), 10),
        (Op(ops.floordiv, dt.i32, (Op(ops.neg, dt.i32, (N,)), M)), -2),
        (Op(ops.neg, dt.u32, (Op(ops.cast, dt.u32, (constant(3),)),)), None),
        (Op(ops.and_, dt.i32, (Op(ops.sub, dt.i32, (M, N)), constant(7))), 4),
        (Op(ops.and_, dt.i32, (constant(3), N)), 2),
        (Op(ops.and_, dt.i32, (N, constant(6))), None),
        (Op(ops.cast, dt.i16, (Op(ops.and_, dt.i32, (N, constant(7))),)), 2),
        (Op(ops.cast, dt.i8, (Op(ops.and_, dt.i32, (N, constant(255))),)), None),
        (Op(ops.param, dt.i32), None),
        (Op(ops.floordiv, dt.i32, (Op(ops.sub, dt.i32, (constant(0), N)), M)), -2),
        (Op(ops.floormod, dt.i32, (Op(ops.sub, dt.i32, (constant(0), N)), M)), 2),
        (Op(ops.floordiv, dt.i32, (N, constant(0))), 0),
        (Op(ops.select, dt.i32, (Op(ops.lt, dt.u1, (M, N)), N, M)), 10),
        (Op(ops.select, dt.i32, (Op(ops.lt, dt.u1, (N, N)), N, M)), 6),
        (Op(ops.select, dt.i32, (Op(ops.le, dt.u1, (N, N)), N, M)), 10),
        (Op(ops.select, dt.i32, (Op(ops.le, dt.u1, (N, M)), N, M)), 6),
        (Op(ops.select, dt.i32, (Op(ops.gt, dt.u1, (N, M)), N, M)), 10),
        (Op(ops.select, dt.i32, (Op(ops.gt, dt.u1, (M, M)), N, M)), 6),
        (Op(ops.select, dt.i32, (Op(ops.ge, dt.u1, (M, M)), N, M)), 10),
        (Op(ops.select, dt.i32, (Op(ops.ge, dt.u1, (M, N)), N, M)), 6),
        (Op(ops.select, dt.i32, (Op(ops.eq, dt.u1, (M, N)), N, M)), None),
        (Op(ops.cast, dt.u32, (MAGNITUDE,)), 10),
        (Op(ops.shl, dt.i32, (N, constant(3))), 80),
        (Op(ops.shr, dt.i32, (N, constant(1))), 5),
        (Op(ops.shr, dt.i32, (constant(1), N)), None),
        (Op(ops.cast, dt.i64, (N,)), 10),
        (Op(ops.cast, dt.i16, (N,)), None),
        (Op(ops.cast, dt.u64, (N,)), None),
        (Op(ops.cast, dt.i32, (Op(ops.const, dt.f32, (), 1.5),)), None),
        (Op(ops.load, dt.i32, (), TempRef("t", dt.i32)), None),
        (Op(ops.add, dt.f32, (Op(ops.const, dt.f32, (), 1.0),) * 2), None),
    ],
)
def test_sizes(op: Op, want: int | None) -> None:
    size = size_of(op)
    got = None if size is None else evaluate(size, (10,), (None, SimpleNamespace(shape=(4, 5, 6))))
    assert got == want

"""Which contents of shared arrays reverse mode saves, and which shared arrays and barriers of gradients are removed."""

from __future__ import annotations

import pytest

from spirograd.autodiff.residuals import residuals
from spirograd.autodiff.shared_contents import shared_contents
from spirograd.autodiff.unread_arrays import without_unread_arrays
from spirograd.base.caps import Capabilities
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.ir.spec import verify
from spirograd.ir.text import parse
from spirograd.transforms.pass_context import PassContext

HEAD = """kernel "k"
arg ArrayArg("x", f32, 1)
arg ScalarArg("n", i32)
ref x = ArrayRef("x", 0, f32, 1)
ref s = SharedRef("s", f32, 8)
ref r = SharedRef("r", f32, 8)
{
  %n = arg[1]() : i32
  %z = const[0]() : i32
  %h = const[0.5]() : f32
  for[LoopAttr(parallel=True, group_size=8, grouped=True)](%z, %n) : () { (%i: i32)
    %t = const[8]() : i32
    %me = irem(%i, %t) : i32
    %c = lt(%me, %n) : u1
"""
END = "yield()\n}\nyield()\n}\n"
BARRIER = "workgroup_barrier()\n"
STORE, LOAD = "store[s](%me, %h)\n", "%a = load[s](%z) : f32\nstore[x](%i, %a)\n"


def _loop(body: str, number: str = "k") -> str:
    return f"for[LoopAttr()](%z, %n) : () {{ (%{number}: i32)\n{body}yield()\n}}\n"


def _if(body: str) -> str:
    return f"if(%c) : () {{\n{body}yield()\n}} {{\nyield()\n}}\n"


MOVING = "%p = add(%me, %k) : i32\nstore[s](%p, %h)\n"
# Title -> (body, what is saved: how, by the code of which operation).
CASES = {
    "straight lines save nothing": (STORE + BARRIER + LOAD + BARRIER + STORE.replace("%h", "%h"), []),
    "read and not overwritten later": (STORE + BARRIER + _loop(LOAD), []),
    "overwritten later": (STORE + BARRIER + _loop(LOAD) + BARRIER + STORE, [("before", "for")]),
    "a branch, overwritten later": (STORE + BARRIER + _if(LOAD) + BARRIER + STORE, [("before", "if")]),
    "another array is overwritten later": (STORE + BARRIER + _loop(LOAD) + BARRIER + "store[r](%me, %h)\n", []),
    "each iteration writes the same elements first": (_loop(STORE + BARRIER + LOAD + BARRIER), []),
    "under a condition that no iteration changes": (_loop(_if(STORE) + BARRIER + LOAD + BARRIER), []),
    "each iteration writes other elements": (_loop(MOVING + BARRIER + LOAD + BARRIER), [("each", "for")]),
    "a loop fills the array first": (_loop(_loop("store[s](%l, %h)\n", "l") + BARRIER + LOAD + BARRIER), []),
    "written before the loop, too": (STORE + BARRIER + _loop(STORE + BARRIER + LOAD + BARRIER), [("each", "for")]),
    "read before it is written": (STORE + BARRIER + _loop(LOAD + BARRIER + STORE + BARRIER), [("each", "for")]),
    "updated by atomics": (_loop('%o = atomic[("add", s)](%me, %h) : f32\n' + BARRIER + LOAD + BARRIER), [("each", "for")]),
    "without barriers": (STORE + BARRIER + _loop(LOAD + MOVING), [("lost", "for")]),
    "in a branch of some threads": (STORE + BARRIER + _if(_loop(LOAD) + STORE) + BARRIER, [("before", "if"), ("lost", "for")]),
}


def _kernel(body: str):
    kernel = parse(HEAD + body + END)
    verify(kernel, "kernel")
    return kernel


@pytest.mark.parametrize("title", CASES)
def test_saved_contents(title):
    body, wanted = CASES[title]
    found = shared_contents(_kernel(body))
    saved = [(how, op.code.name) for how in ("before", "each", "lost") for op in getattr(found, how)]
    assert saved == wanted


def test_unread_arrays_and_barriers_go():
    ctx = PassContext(Capabilities("vulkan"), CompileOptions())
    kernel = without_unread_arrays(_kernel(STORE + BARRIER + BARRIER + "store[r](%me, %h)\n" + BARRIER + LOAD), ctx)
    codes = [op.code for op in kernel.walk()]
    assert codes.count(ops.workgroup_barrier) == 1
    assert not any(getattr(op.attr, "name", "") == "r" for op in kernel.walk())
    assert not any(op.code is ops.for_ for op in without_unread_arrays(_kernel(STORE + BARRIER), ctx).walk())


@pytest.mark.parametrize(("body", "when"), [
    ("%b = load[x](%me) : f32\nstore[s](%me, %b)\nworkgroup_barrier()\nstore[x](%i, %h)\n", ["before"]),
    ("store[x](%i, %h)\nworkgroup_barrier()\n%b = load[x](%me) : f32\nstore[s](%me, %b)\n", ["after"]),
    (_loop("%b = load[x](%me) : f32\nworkgroup_barrier()\nstore[x](%i, %b)\nworkgroup_barrier()\n"), []),
])  # fmt: skip
def test_memory_that_other_threads_write(body, when):
    """Accesses of different threads to an element are in the order of the program, because barriers separate them."""
    kernel = _kernel(body)
    served, _ = residuals(kernel, [op for op in kernel.walk() if op.code is ops.load])
    assert [residual.when for residual in served] == when

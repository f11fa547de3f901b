"""Which state of memory makes loads give again what they gave: one small kernel for each case."""

from __future__ import annotations

import pytest

from spirograd.autodiff.residuals import residuals
from spirograd.base.loc import Loc
from spirograd.ir import ops
from spirograd.ir.spec import verify
from spirograd.ir.text import parse

HEAD = """kernel "k"
arg ArrayArg("x", f32, 1)
arg ArrayArg("y", f32, 1)
arg ScalarArg("n", i32)
ref x = ArrayRef("x", 0, f32, 1)
ref y = ArrayRef("y", 1, f32, 1)
ref g = ArrayRef("x", 0, f32, 1, (), "grad")
ref v = FieldRef("v", 0, 0, f32, (4,), (2,), Layout((Term(0, 1, 0, 8),), (0, 4)))
ref m = FieldRef("m", 0, 1, f32, (4, 4), (), Layout((Term(0, 1, 0, 16), Term(1, 1, 0, 4)), (0,), ()))
ref t = TempRef("t", f32)
{
  %n = arg[2]() : i32
  %z = const[0]() : i32
  %o = const[1]() : i32
  %h = const[0.5]() : f32
"""
PARALLEL = "for[LoopAttr(parallel=True)](%z, %n) : () { (%i: i32)\n"
SERIAL = "for[LoopAttr()](%z, %n) : () { (%j: i32)\n"
END = "yield()\n}\n"
# Title -> (body, what is needed: memory, when, number of the load among the loads, of the write among the writes; conflicts: load, write).
CASES = {
    "nothing writes": (PARALLEL + "%a = load[x](%i) : f32\nstore[y](%i, %a)\n" + END, [("x", "before", 0, None)], []),
    "a later task writes": (
        PARALLEL + "%a = load[x](%i) : f32\n" + END + PARALLEL.replace("%i", "%k") + "store[x](%k, %h)\n" + END,
        [("x", "before", 0, 0)],
        [],
    ),
    "the iteration writes later": (PARALLEL + "%a = load[x](%i) : f32\nstore[x](%i, %h)\n" + END, [("x", "before", 0, 0)], []),
    "an earlier task writes": (
        PARALLEL + "store[x](%i, %h)\n" + END + PARALLEL.replace("%i", "%k") + "%a = load[x](%k) : f32\n" + END,
        [("x", "after", 0, None)],
        [],
    ),
    "the iteration writes earlier, atomically": (
        PARALLEL + '%b = atomic[("add", x)](%i, %h) : f32\n%a = load[x](%i) : f32\n' + END,
        [("x", "after", 0, None)],
        [],
    ),
    "written before and after": ("store[x](%z, %h)\n%a = load[x](%n) : f32\nstore[x](%o, %h)\n", [], [(0, 1)]),
    "written in the loop that reads": (SERIAL + "%a = load[x](%n) : f32\nstore[x](%z, %h)\n" + END, [], [(0, 0)]),
    "read in an inner loop": (
        PARALLEL + SERIAL + "%a = load[x](%j) : f32\n" + END + "store[x](%i, %h)\n" + END,
        [("x", "before", 0, 0)],
        [],
    ),
    "each iteration its own element": (SERIAL + "%a = load[x](%j) : f32\nstore[x](%j, %h)\n" + END, [("x", "before", 0, 0)], []),
    "each iteration of a nest its own element": (
        SERIAL + SERIAL.replace("%j", "%k") + "store[m](%k, %j, %h)\n%a = load[m](%k, %j) : f32\n" + END + END,
        [("m", "after", 0, None)],
        [],
    ),
    "the inner loop comes back": (
        SERIAL + SERIAL.replace("%j", "%k") + "store[m](%k, %k, %h)\n%a = load[m](%k, %k) : f32\n" + END + END,
        [],
        [(0, 0)],
    ),
    "a neighbour in a serial loop": (
        SERIAL + "%p = sub(%j, %o) : i32\n%a = load[x](%p) : f32\nstore[x](%j, %h)\n" + END,
        [],
        [(0, 0)],
    ),
    "a neighbour in a parallel loop": (
        PARALLEL + "%p = sub(%i, %o) : i32\n%a = load[x](%p) : f32\nstore[x](%i, %h)\n" + END,
        [("x", "before", 0, 0)],
        [],
    ),
    "another entry": (
        SERIAL + "%a = load[v](%j, %z) : f32\nstore[v](%z, %o, %h)\n" + END + "store[v](%z, %o, %h)\n",
        [("v", "before", 0, None)],
        [],
    ),
    "the other side of a branch": (
        "%c = gt(%n, %z) : u1\nif(%c) : () {\n%a = load[x](%z) : f32\n" + "yield()\n} {\nstore[x](%z, %h)\n" + END,
        [("x", "before", 0, None)],
        [],
    ),
    "the other side of a branch in a loop": (
        SERIAL + "%c = gt(%j, %o) : u1\nif(%c) : () {\n%a = load[x](%z) : f32\n" + "yield()\n} {\nstore[x](%z, %h)\n" + END + END,
        [],
        [(0, 0)],
    ),
    "a while loop": (
        "while() : () {\n%a = load[x](%z) : f32\n%c = gt(%a, %h) : u1\nyield(%c)\n} {\nstore[x](%z, %h)\n" + END,
        [],
        [(0, 0)],
    ),
    "both states of one memory": (
        "%a = load[x](%z) : f32\nstore[x](%n, %h)\n%b = load[x](%o) : f32\n%c = load[y](%o) : f32\n",
        [("x", "after", 1, None), ("y", "before", 2, None)],
        [(0, 0)],
    ),
    "other memory: another array, the gradient, a temporary": (
        "store[y](%z, %h)\n%a = load[x](%z) : f32\nstore[y](%z, %h)\nstore[g](%z, %h)\n%b = load[g](%z) : f32\n%c = load[t]() : f32\n",
        [("x", "before", 0, None)],
        [],
    ),
}


@pytest.mark.parametrize("title", CASES)
def test_needs(title):
    body, expected, refused = CASES[title]
    kernel = parse(HEAD + body + "yield()\n}\n")
    verify(kernel, "kernel")
    for line, op in enumerate(kernel.walk()):
        op.loc = Loc("k.py", line)
    loads = [op for op in kernel.walk() if op.code is ops.load]
    writes = [op for op in kernel.walk() if op.code.effect in ("write", "atomic")]
    found, conflicts = residuals(kernel, reversed(loads))
    assert [(n.ref.name, n.when, n.loc, n.overwritten) for n in found] == [
        (name, when, loads[k].loc, None if w is None else writes[w].loc) for name, when, k, w in expected
    ]
    assert [(c.load, c.load_loc, c.write_loc) for c in conflicts] == [(loads[k], loads[k].loc, writes[w].loc) for k, w in refused]


def test_old_values_of_atomics_are_nowhere():
    kernel = parse(HEAD + PARALLEL + '%b = atomic[("add", x)](%z, %h) : f32\nstore[y](%i, %b)\n' + END + "yield()\n}\n")
    (atomic,) = [op for op in kernel.walk() if op.code is ops.atomic]
    found, conflicts = residuals(kernel, [atomic])
    assert found == () and [c.load for c in conflicts] == [atomic]

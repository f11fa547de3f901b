"""What a tape must save, as a table of cells: of which memory a launch reads what, when, how it writes there, and what overwrites it later.

Each seed is a cell. `CELLS` seeds that follow each other, and begin anywhere, have them all: `LATER` of them share their kernels.
"""

from __future__ import annotations

import math

from .nodes import ALL, Const, For, If, Load, Memory, Name, Op, Over, Store, While

MEMORY = ("scalar field", "array", "vector field", "vector array", "matrix field", "struct field", "grid")
# What of the element is read, where component 0 of it (column 0 of the grid) is written, or an even element.
READ = ("same", "component", "element")
WHEN = ("before", "after", "around", "within")
WRITE = ("store", "add", "scale", "guarded", "guard off", "loop", "range(0)", "range(argument)", "while False", "whole")
LATER = (
    "kernel", "component kernel", "guarded kernel", "empty kernel", "same kernel", "fill", "fill component", "copy", "numpy", "torch",
    "element", "none",
)  # fmt: skip
KERNELS = len(MEMORY) * len(READ) * len(WHEN) * len(WRITE)
CELLS = KERNELS * len(LATER)
_STRIDE = 1009  # kernels that follow each other differ in all dimensions
assert math.gcd(_STRIDE, KERNELS) == 1


def cell(seed: int) -> tuple[str, str, str, str, str]:
    kernel, later = divmod(seed, len(LATER))
    at = kernel * _STRIDE % KERNELS
    found = []
    for dimension in (MEMORY, READ, WHEN, WRITE):
        at, k = divmod(at, len(dimension))
        found.append(dimension[k])
    return found[0], found[1], found[2], found[3], LATER[later]


def memory(kind: str, n: int) -> Memory:
    """The memory ``m`` of a cell."""
    place = "array" if "array" in kind else "field"
    first = {"array": "scalar", "grid": "scalar"}.get(kind, kind.split()[0])
    return Memory("m", first, (n, 2) if kind == "grid" else (n,), place)


def table_kernel(cell: tuple[str, ...], m: Memory, factor: float) -> tuple[object, ...]:
    """The body of the kernel: ``y[i] += f(m[...])`` and ``m[...] = ...``, from the fields ``u`` and ``b`` and the argument ``k``."""
    kind, read, when, write, _ = cell
    grid = kind == "grid"
    two = read == "element" or (read == "component" and m.kind == "scalar" and not grid)  # even elements are written, odd ones read
    i = Name("i")
    target = Op("*", (Const(2), i)) if two else i
    source = Op("+", (target, Const(1))) if two else i
    column = (Const(1 if read == "component" else 0),)
    written = (target, *((Const(0),) if grid else ()))
    seen = (source, *(column if grid else ()))
    first = m.components[0]
    other = m.components[-1] if read == "component" else first
    loaded = Load("m", seen, other)
    reading = Store("y", (i,), None, "+=", Op("*", (Const(factor), Op("square", (loaded,)))))
    again = Store("y", (i,), None, "+=", Op("sin", (loaded,)))
    writing = _write(write, m, written, first)
    body: tuple[object, ...] = {
        "before": (reading, *writing), "after": (*writing, reading), "around": (reading, *writing, again),
        "within": (For("t", Const(3), (reading, *writing)),),
    }[when]  # fmt: skip
    if two or grid:
        return (For("i", Const(m.shape[0] // 2 if two else m.shape[0]), body),)
    return (Over(("i",), "m", body),)


def _write(write: str, m: Memory, index: tuple[object, ...], component: object) -> tuple[object, ...]:
    new = Op("sin", (Op("*", (Const(1.3), Load("u", (Name("i"),)))),))
    store = Store("m", index, component, "=", new)
    add = Store("m", index, component, "+=", Op("*", (Const(0.5), new)))
    forms: dict[str, tuple[object, ...]] = {
        "store": (store,),
        "add": (Store("m", index, component, "-=", Op("*", (Const(0.3), new))),),
        "scale": (Store("m", index, component, "*=", Const(0.7)),),
        "guarded": (If(Op(">", (Load("b", (Name("i"),)), Const(1))), (store,)),),
        "guard off": (If(Op("<", (Name("k"), Const(0))), (store,)),),
        "loop": (For("j", Load("b", (Name("i"),)), (add,)),),
        "range(0)": (For("j", Const(0), (add,)),),
        "range(argument)": (For("j", Name("k"), (add,)),),
        "while False": (While("", None, (store,)),),
        "whole": (store,),
    }
    if write == "whole" and m.kind in ("vector", "matrix"):
        return (Store("m", index, ALL, "=", Op("*", (Op("cos", (Load("u", (Name("i"),)),)), Load("m", index, ALL)))),)
    return forms[write]

"""Rules of operations that the invocations of a group, or of a subgroup, run together."""

from __future__ import annotations

from typing import NoReturn, Protocol

from spirograd.base.dtypes import VOID, DType, Vec, i32, u1, u32, u64
from spirograd.base.matrix_shapes import SHAPES, TOTAL, USES, A, B, held_entries, row_stride
from spirograd.ir import ops
from spirograd.ir.nodes import Kernel, Op, SharedRef


class Verifier(Protocol):
    """The interface of the verifier that rules use, see `spec`. ``path``: the operations whose regions enclose the current one."""

    kernel: Kernel
    level: str
    path: list[Op]

    def need(self, holds: bool, op: Op, rule: str) -> None: ...

    def fail(self, op: Op, rule: str) -> NoReturn: ...


def letter(t: DType) -> str:
    """Return the letter of a type in domains of operations."""
    return "b" if t is u1 else "i" if t.is_int else "f"


def in_group(v: Verifier, op: Op) -> None:
    """Check that the operation is in code with groups of threads."""
    grouped = (outer.attr.grouped for outer in v.path if outer.code in (ops.for_, ops.task))
    v.need(op.code is ops.barrier or v.level != "kernel" or any(grouped), op, "stands in a grouped loop or task")


_FACTORS = {shape.total: shape.factor for shape in SHAPES.values()}
# How many times the entries of a total an invocation holds of a factor, at most.
_MOST_HELD = max(shape.divisions for shape in SHAPES.values())


def subgroup_barrier(v: Verifier, op: Op) -> None:
    """Check a barrier of a subgroup: no result, and at most one operand, a u32 mask of lanes."""
    in_group(v, op)
    v.need(op.type is VOID and tuple([a.type for a in op.args]) in ((), (u32,)), op, "is void, and takes at most a u32")


def subgroup(v: Verifier, op: Op) -> None:
    """Check an operation of a subgroup: its result has the type of the first operand, or is a mask of the lanes where that operand is
    true."""
    t = op.type
    in_group(v, op)
    if op.code is ops.subgroup_ballot:
        v.need(op.args[0].type is u1 and t in (u32, u64), op, "takes a u1 and makes a u32 or u64")
    elif not isinstance(t, DType) or op.args[0].type is not t:
        v.fail(op, "the result has the type of the operand")
    elif op.code is ops.subgroup_read:
        v.need(op.args[1].type is i32 and t is not u1, op, "reads numbers, of the invocation with an i32")
    elif op.code is ops.subgroup_shuffle:
        v.need(isinstance(op.attr, int) and op.attr > 0 and t is not u1, op, "its attribute is a mask, and it shuffles numbers")
    else:
        v.need(op.attr in ops.COMBINE and letter(t) in ops.COMBINE[op.attr].domain, op, f"{op.attr} is no reduction of {t}")


def tile(v: Verifier, op: Op) -> None:
    """Check an operation on rows or entries of whole tiles, whose types are those of a product."""
    in_group(v, op)
    vector, types = op.type, [a.type for a in op.args]
    if not isinstance(vector, Vec) or not types:
        v.fail(op, "makes a vector")
    t, held = vector.elem, vector.n
    if op.code is ops.tile_product:
        factors = len(types) - held
        known = t in _FACTORS and types == [_FACTORS[t]] * factors + [t] * held
        v.need(
            known and factors > 0 and factors % (2 * held) == 0, op, f"takes entries of two factors, {held} or more, and {held} of a total"
        )
    elif op.code is ops.tile_rows:
        v.need(types == [t] * held_entries(held), op, f"takes {held_entries(held)} values of {t}")
    else:
        most = 1 if op.attr == TOTAL else _MOST_HELD
        fits = held in [times * held_entries(len(types)) for times in range(1, most + 1)]
        v.need(types == [t] * len(types) and fits and op.attr in USES, op, f"takes a row of {t}, and says what the tile is")


def matrix(v: Verifier, op: Op) -> None:
    """Check an operation on the entries of a tile, and the shared memory of its rows."""
    in_group(v, op)
    (name, n, use), ref = ((*op.attr, TOTAL), None) if op.code is ops.matrix_product else op.attr
    shape = SHAPES.get(name)
    if shape is None or use not in USES:
        v.fail(op, f"there is no product {name!r} of matrices, or no {use!r} in it")
    t, held, types = shape.element(use), shape.held_of_tile(n, use), [a.type for a in op.args]
    if op.code is ops.matrix_product:
        factors = [shape.factor] * (shape.held_of_tile(n, A) + shape.held_of_tile(n, B))
        v.need(types == factors + [t] * held, op, f"takes {held} entries of two factors, and of a total")
    else:
        v.need(isinstance(ref, SharedRef) and ref.dtype is t and ref.length >= n * row_stride(n, t), op, f"the memory holds rows of {t}")
        v.need(types == [t] * (held if op.code is ops.matrix_store else 0), op, f"a store takes {held} entries of {t}")
    v.need(op.type == (VOID if op.code is ops.matrix_store else Vec(held, t)), op, "makes entries, except for a store")

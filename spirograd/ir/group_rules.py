"""What is legal of operations that the invocations of a group, or of a subgroup, run together."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from spirograd.base.dtypes import VOID, DType, Vec, i32, u1, u32, u64
from spirograd.base.matrix_shapes import SHAPES
from spirograd.ir import ops
from spirograd.ir.nodes import Op


class Verifier(Protocol):
    """What rules need of the verifier, see `spec`. ``path``: the operations in whose regions the current one stands."""

    level: str
    path: list[Op]

    def need(self, holds: Any, op: Op, rule: str) -> None: ...

    def fail(self, op: Op, rule: str) -> NoReturn: ...


def letter(t: DType) -> str:
    """The letter of a type in domains of operations."""
    return "b" if t is u1 else "i" if t.is_int else "f"


def in_group(v: Verifier, op: Op) -> None:
    """The operation stands where there are groups of threads."""
    grouped = (outer.attr.grouped for outer in v.path if outer.code in (ops.for_, ops.task))
    v.need(op.code is ops.barrier or v.level != "kernel" or any(grouped), op, "stands in a grouped loop or task")


_NAMES_LANES = (ops.subgroup_read, ops.subgroup_ballot)


def subgroup_barrier(v: Verifier, op: Op) -> None:
    """Void, of those that a u32 names, or of all."""
    in_group(v, op)
    v.need(op.type is VOID and tuple([a.type for a in op.args]) in ((), (u32,)), op, "is void, and takes at most a u32")


def subgroup(v: Verifier, op: Op) -> None:
    """A first operand, and a result of its type, or a mask of those where it is true."""
    t = op.type
    in_group(v, op)
    fixed = 2 if op.code is ops.subgroup_read else 1
    masks = tuple([a.type for a in op.args[fixed:]])
    v.need(not masks or (op.code in _NAMES_LANES and masks == (u32,)), op, "ends with its operands, or a u32")
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


def matrix_fma(v: Verifier, op: Op) -> None:
    """The entries of the factors, then those of the sum, and a result of as many as these."""
    in_group(v, op)
    shape = SHAPES.get(op.attr)
    if shape is None:
        v.fail(op, f"there is no product {op.attr!r} of matrices")
    types = (shape.factor,) * (len(shape.a) + len(shape.b)) + (shape.total,) * len(shape.c)
    v.need(tuple([a.type for a in op.args]) == types, op, f"takes {types}")
    v.need(op.type == Vec(len(shape.c), shape.total), op, f"its type is {Vec(len(shape.c), shape.total)}")

"""Copies of kernels that compute in f64, on memory of their own, because finite differences need this precision."""

from __future__ import annotations

from math import prod

from spirograd.base.artifact import FaultSite, PrintSite
from spirograd.base.dtypes import DType, Type, Vec, f64, storage
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.records import replace
from spirograd.ir import ops
from spirograd.ir.nodes import ArrayRef, FieldRef, Kernel, Layout, Op, Ref, Region, SharedRef, TempRef, Term
from spirograd.transforms.simplification.inline_calls import without_functions

# References to memory that get another type.
_MEMORY = (FieldRef, ArrayRef, TempRef, SharedRef)


def in_f64(kernel: Kernel) -> tuple[Kernel, dict[FieldRef, FieldRef]]:
    """Return ``kernel`` (kernel IR) with f64 for every float, and the replacement of each field, which lies densely in a tree of its own.

    Raises SpirogradUnsupportedError, with the line, for operations that depend on the width of floats.
    """
    kernel, widen = without_functions(kernel), _InF64()
    args = tuple([replace(a, dtype=_wide(a.dtype)) for a in kernel.args])
    body = widen.region(kernel.body)
    returns = tuple([widen.ref(ref) for ref in kernel.returns])
    return Kernel(kernel.name, args, body, returns, kernel.loc), widen.fields  # type: ignore[arg-type]


def field_memory(ref: FieldRef) -> int:
    """Return the number of elements in the tree of a field that `in_f64` created."""
    return prod(ref.shape) * prod(ref.element_shape)


def _wide(t: DType) -> DType:
    return f64 if t.is_float else t


def _type(t: Type | tuple[Type, ...]) -> Type | tuple[Type, ...]:
    return tuple([_wide_type(part) for part in t]) if isinstance(t, tuple) else _wide_type(t)


def _wide_type(t: Type) -> Type:
    return Vec(t.n, _wide(t.elem)) if isinstance(t, Vec) else _wide(t) if isinstance(t, DType) else t


class _InF64:
    def __init__(self) -> None:
        self.env: dict[Op, Op] = {}
        self.fields: dict[FieldRef, FieldRef] = {}

    def region(self, region: Region) -> Region:
        params = tuple([Op(ops.param, _type(p.type), loc=p.loc) for p in region.params])
        self.env.update(zip(region.params, params))
        return Region(params, tuple([self.op(op) for op in region.ops]))

    def op(self, op: Op) -> Op:
        if op.code is ops.bitcast and any(isinstance(t, DType) and t.is_float for t in (op.type, op.args[0].type)):
            raise SpirogradUnsupportedError(
                "the gradient of a kernel that reads the bits of a float cannot be checked: the check computes in f64, whose bits differ",
                op.loc,
            )
        args = tuple([self.env[a] for a in op.args])
        new = Op(op.code, _type(op.type), args, self.attr(op.attr), tuple([self.region(r) for r in op.regions]), op.loc)
        self.env[op] = new
        return new

    def attr(self, attr: object) -> object:
        if isinstance(attr, _MEMORY):
            return self.ref(attr)
        if isinstance(attr, tuple) and len(attr) == 2 and isinstance(attr[1], _MEMORY):
            return (attr[0], self.ref(attr[1]))
        if isinstance(attr, (FaultSite, PrintSite)):
            return replace(attr, dtypes=tuple([_wide(t) for t in attr.dtypes]))
        return attr

    def ref(self, ref: Ref) -> Ref:
        if not isinstance(ref, FieldRef):
            return replace(ref, dtype=_wide(ref.dtype))
        if ref not in self.fields:
            self.fields[ref] = _dense(ref, len(self.fields))
        return self.fields[ref]


def _dense(ref: FieldRef, tree: int) -> FieldRef:
    """Return a field of the same shape, row-major and alone in tree ``tree``."""
    t = _wide(ref.dtype)
    size, width = storage(t).size, prod(ref.element_shape)
    terms, stride = [], size * width
    for axis in reversed(range(len(ref.shape))):
        terms.append(Term(axis, 1, 0, stride))
        stride *= ref.shape[axis]
    layout = Layout(tuple(terms), tuple(range(0, size * width, size)), ref.layout.origin)
    return replace(ref, tree=tree, key=tree, dtype=t, layout=layout)

"""Emitters of products of tiles by cooperative matrices (SPV_KHR_cooperative_matrix).

Only the driver knows which invocation holds which entries. If subgroups are smaller than groups, each computes a part of the total, which
its number determines.

Invocations hold the entries of a total as scalars, in the order in which the matrix numbers its components. The specification leaves their
count to the driver: devices offer products only where it is known, see `runtime/devices/vulkan/features.py`. Factors stay matrices from the
load to the product, because some drivers store entries of them in several invocations: RADV does so on RDNA 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base.dtypes import u32
from spirograd.base.matrix_shapes import SHAPES, TOTAL, TRANSPOSED, A, B, MatrixShape, row_stride
from spirograd.ir import ops
from spirograd.ir.nodes import BuiltIn, Op, Region, SharedRef
from spirograd.spirvgen.emit_workgroup import builtin_word, shared_variable
from spirograd.spirvgen.emitter import Emitter
from spirograd.spirvgen.module import ModuleError, enumerant

CODES = frozenset((ops.matrix_load, ops.matrix_store, ops.matrix_product))
_SUBGROUP = enumerant("Scope", "Subgroup")
_NAMES = {A: "A", B: "B", TRANSPOSED: "B", TOTAL: "Accumulator"}
_USES = {use: enumerant("CooperativeMatrixUse", f"Matrix{name}KHR") for use, name in _NAMES.items()}
_BY_ROWS, _BY_COLUMNS = (enumerant("CooperativeMatrixLayout", f"{kind}MajorKHR") for kind in ("Row", "Column"))


def uses_matrices(regions: Sequence[Region]) -> bool:
    """Return whether code uses cooperative matrices, which require the memory model of Vulkan."""
    return any(not CODES.isdisjoint(region.codes) for region in regions)


class _Rows:
    """Rows of a tile in shared memory."""

    def __init__(self, e: Emitter, ref: SharedRef, n: int, shape: MatrixShape, use: str) -> None:
        self.e, self.type, self.stride = e, ref.dtype, row_stride(n, ref.dtype)
        self._array = shared_variable(e, ref)
        self._first = self._first_of_part(n // shape.divisions, use, shape.divisions) if shape.divisions > 1 else None

    def _first_of_part(self, size: int, use: str, divisions: int) -> int:
        """Return the index of the first entry of the part that the subgroup holds: rows and columns of the total, the same rows of a, the
        same columns of b."""
        e, word = self.e, self.e.type(u32)
        number, count = builtin_word(e, BuiltIn.SUBGROUP), e.m.constant_u32(divisions)
        row, column = (e.f.value(name, word, number, count) for name in ("UDiv", "UMod"))
        steps = {A: [(row, self.stride)], B: [(column, 1)], TRANSPOSED: [(column, self.stride)]}
        terms = [
            e.f.value("IMul", word, part, e.m.constant_u32(size * step)) for part, step in steps.get(use, [(row, self.stride), (column, 1)])
        ]
        return terms[0] if len(terms) == 1 else e.f.value("IAdd", word, *terms)

    def at(self, row: int, column: int) -> int:
        e = self.e
        pointer, index = e.m.pointer("Workgroup", e.type(self.type)), e.m.constant_u32(row * self.stride + column)
        if self._first is not None:
            index = e.f.value("IAdd", e.type(u32), self._first, index)
        return e.f.value("AccessChain", pointer, self._array, index)

    def load(self, matrix: int, row: int, column: int, layout: int = _BY_ROWS) -> int:
        e = self.e
        operands = (self.at(row, column), e.m.constant_u32(layout), e.m.constant_u32(self.stride))
        return e.f.value("CooperativeMatrixLoadKHR", matrix, *operands, e.f.shared_access)

    def store(self, matrix: int, row: int, column: int) -> None:
        e = self.e
        operands = (self.at(row, column), matrix, e.m.constant_u32(_BY_ROWS), e.m.constant_u32(self.stride))
        e.f.do("CooperativeMatrixStoreKHR", *operands, e.f.shared_access)


def _matrix(e: Emitter, shape: MatrixShape, use: str) -> int:
    """Return the type of a matrix of a product."""
    e.m.capability("CooperativeMatrixKHR")
    extents = [e.m.constant_u32(n) for n in (_SUBGROUP, *shape.extents(use), _USES[use])]
    return e.m.intern("TypeCooperativeMatrixKHR", e.type(shape.element(use)), *extents)


def _components(e: Emitter, shape: MatrixShape) -> tuple[int, list[int]]:
    """Create a variable for a matrix of a total, and return pointers to the components that the invocation holds."""
    variable = e.f.variable(_matrix(e, shape, TOTAL), "matrix")
    pointer = e.m.pointer("Function", e.type(shape.total))
    return variable, [e.f.value("AccessChain", pointer, variable, e.m.constant_u32(k)) for k in range(shape.held(TOTAL))]


def _taken_apart(e: Emitter, shape: MatrixShape, matrix: int) -> list[int]:
    variable, components = _components(e, shape)
    e.f.store(variable, matrix)
    return [e.f.load(e.type(shape.total), pointer) for pointer in components]


def _joined(e: Emitter, shape: MatrixShape, n: int, entries: Sequence[Op]) -> dict[tuple[int, int], int]:
    """Return the matrices of a total, by their first row and column."""
    matrices, held = {}, shape.held(TOTAL)
    for k, place in enumerate(shape.blocks(n, TOTAL)):
        variable, components = _components(e, shape)
        for pointer, entry in zip(components, entries[k * held : (k + 1) * held]):
            e.f.store(pointer, e.ids[entry])
        matrices[place] = e.f.load(_matrix(e, shape, TOTAL), variable)
    return matrices


def _factor(e: Emitter, entries: Sequence[Op]) -> dict[tuple[int, int], int]:
    """Return the matrices of a factor, by their first row and column. ``entries`` are those of one load, in their order."""
    load = entries[0].args[0]
    if load not in e.factors or any(entry.args[0] is not load or entry.args[1].attr != k for k, entry in enumerate(entries)):
        raise ModuleError("the entries of a factor are not those of one load")
    return e.factors[load]


def _define(e: Emitter, op: Op, entries: Sequence[int]) -> None:
    e.stack_slots.define(op, e.f.value("CompositeConstruct", e.type(op.type), *entries))


def emit_load(e: Emitter, op: Op) -> None:
    (name, n, use), ref = op.attr
    shape = SHAPES[name]
    rows = _Rows(e, ref, n, shape, use)
    matrices = {}
    for row, column in shape.blocks(n, use):
        place = (column, row, _BY_COLUMNS) if use == TRANSPOSED else (row, column, _BY_ROWS)
        matrices[row, column] = rows.load(_matrix(e, shape, use), *place)
    if use == TOTAL:
        _define(e, op, [entry for matrix in matrices.values() for entry in _taken_apart(e, shape, matrix)])
    else:
        e.factors[op] = matrices


def emit_store(e: Emitter, op: Op) -> None:
    (name, n, use), ref = op.attr
    shape = SHAPES[name]
    rows = _Rows(e, ref, n, shape, use)
    for (row, column), matrix in _joined(e, shape, n, op.args).items():
        rows.store(matrix, row, column)


def emit_product(e: Emitter, op: Op) -> None:
    name, n = op.attr
    shape = SHAPES[name]
    first, second = shape.held_of_tile(n, A), shape.held_of_tile(n, A) + shape.held_of_tile(n, B)
    a, b = _factor(e, op.args[:first]), _factor(e, op.args[first:second])
    total = _joined(e, shape, n, op.args[second:])
    for k in range(0, n, shape.depth):
        for row, column in total:
            operands = (a[row, k], b[k, column], total[row, column])
            total[row, column] = e.f.value("CooperativeMatrixMulAddKHR", _matrix(e, shape, TOTAL), *operands)
    _define(e, op, [entry for matrix in total.values() for entry in _taken_apart(e, shape, matrix)])

"""Emitters of products of tiles by the instructions ``mma`` and ``ldmatrix`` of PTX."""

from __future__ import annotations

from collections.abc import Sequence

from spirograd.base.dtypes import f16
from spirograd.base.matrix_shapes import SHAPES, TOTAL, TRANSPOSED, A, B, EntryIndex, MatrixShape, held_entries, row_stride
from spirograd.ir.nodes import Op, SharedRef
from spirograd.llvmgen.gpu import GpuEmitter
from spirograd.llvmgen.module import type_name

# Shape -> the first architecture that supports it.
_SINCE = {"m16n8k16_f16": 80, "m16n8k8_f16": 75, "m16n8k16_f64": 90, "m8n8k4_f64": 80}
_SHARED = "ptr addrspace(3)"
_PART, _BLOCK = 8, 16  # `ldmatrix` reads four parts of 8 x 8 entries, here always of a block of 16 x 16


def shapes(architecture: int) -> tuple[str, ...]:
    """Return the names of the products that an architecture has, better ones first."""
    return tuple([name for name in SHAPES if name in _SINCE and architecture >= _SINCE[name]])


class _Rows:
    """Rows of tiles in shared memory, with the coordinates of this lane."""

    def __init__(self, e: GpuEmitter, ref: SharedRef, n: int) -> None:
        self.e, self.type, self.stride = e, type_name(ref.dtype), row_stride(n, ref.dtype)
        self.size = ref.dtype.size
        self._array = e.module.shared(f"{ref.name}.{ref.length}", f"[{ref.length} x {self.type}]")
        self._lane = e.dialect.lane(e)
        self._starts: dict[tuple[str, int, int], str] = {}

    def at(self, place: EntryIndex, row: int, column: int, transposed: bool = False) -> str:
        """Return a pointer to the entry of the lane in the block that begins at a row and a column of the memory, or of its transpose."""
        pairs = zip(place.row, place.column)
        if transposed:
            pairs, row, column = zip(place.column, place.row), column, row
        quad, within, first = [down * self.stride + right for down, right in pairs]
        offset = row * self.stride + column + first
        return self._pointer(self._start(("quad", quad, within)), offset)

    def of_part(self, row: int, column: int, rows_first: bool) -> str:
        """Return the operand of `ldmatrix`: a pointer to a row of one of the parts of a block, whose order is given."""
        e = self.e
        key = ("part", int(rows_first), 0)
        if key not in self._starts:
            within = e.value(f"and i32 {self._lane}, {_PART - 1}")
            low, high = [e.value(f"and i32 {self._lane}, {bit}") for bit in (_PART, 2 * _PART)]
            high = e.value(f"lshr i32 {high}, 1")
            down, right = (low, high) if rows_first else (high, low)
            line = e.value(f"mul nuw nsw i32 {e.value(f'or disjoint i32 {within}, {down}')}, {self.stride}")
            self._starts[key] = e.value(f"add nuw nsw i32 {line}, {right}")
        return self._pointer(self._starts[key], row * self.stride + column)

    def _start(self, key: tuple[str, int, int]) -> str:
        if key not in self._starts:
            e, (_, quad, within) = self.e, key
            parts = [e.value(f"{code} i32 {self._lane}, {by}") for code, by in (("lshr", 2), ("and", 3))]
            terms = [e.value(f"mul nuw nsw i32 {part}, {factor}") for part, factor in zip(parts, (quad, within))]
            self._starts[key] = e.value(f"add nuw nsw i32 {terms[0]}, {terms[1]}")
        return self._starts[key]

    def _pointer(self, start: str, offset: int) -> str:
        e = self.e
        begin = e.value(f"getelementptr inbounds {self.type}, {_SHARED} {self._array}, i32 {start}")
        return f"{_SHARED} {e.value(f'getelementptr inbounds {self.type}, {_SHARED} {begin}, i32 {offset}')}"


def load(e: GpuEmitter, op: Op) -> list[str]:
    """Return the entries of `ops.matrix_load`, typed."""
    (name, n, use), ref = op.attr
    shape, rows = SHAPES[name], _Rows(e, ref, n)
    if ref.dtype is f16:
        return _read_parts(e, rows, n, use)
    return [f"{rows.type} {e.value(f'load {rows.type}, {at}, align {rows.size}')}" for at in _pointers(rows, shape, n, use)]


def store(e: GpuEmitter, op: Op) -> None:
    (name, n, use), ref = op.attr
    rows = _Rows(e, ref, n)
    for arg, pointer in zip(op.args, _pointers(rows, SHAPES[name], n, use)):
        e.line(f"store {e.typed(arg)}, {pointer}, align {rows.size}")


def _pointers(rows: _Rows, shape: MatrixShape, n: int, use: str) -> list[str]:
    """Return a pointer to each of the entries of the lane."""
    places = {A: shape.a, TOTAL: shape.c}.get(use, shape.b)
    return [rows.at(place, row, column, use == TRANSPOSED) for row, column in shape.blocks(n, use) for place in places]


def _read_parts(e: GpuEmitter, rows: _Rows, n: int, use: str) -> list[str]:
    """Return pairs of f16, by blocks of 16 x 16, with the parts of a block column by column: lanes need them in this order for the products
    of every shape."""
    four, pairs = "{ i32, i32, i32, i32 }", []
    target = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{'.trans' if use == B else ''}.b16.p3"
    for row in range(0, n, _BLOCK):
        for column in range(0, n, _BLOCK):
            pointer = rows.of_part(column, row, False) if use == TRANSPOSED else rows.of_part(row, column, True)
            words = e.value(f"call {four} {e.module.declare(target, four, _SHARED)}({pointer})")
            for k in range(4):
                pair = e.value(f"bitcast i32 {e.value(f'extractvalue {four} {words}, {k}')} to <2 x half>")
                pairs += [f"half {e.value(f'extractelement <2 x half> {pair}, i32 {side}')}" for side in range(2)]
    return pairs


# The operands for factors, by the row and column of a block.
_Factors = dict[tuple[int, int], list[str]]


def product(e: GpuEmitter, op: Op) -> list[str]:
    """Return the entries of `ops.matrix_product`, typed."""
    name, n = op.attr
    shape, held, kind = SHAPES[name], held_entries(n), type_name(SHAPES[name].total)
    factors = _pairs if shape.factor is f16 else _entries
    entries = [e.env[arg] for arg in op.args]
    a, b = factors(e, shape, n, A, entries[:held]), factors(e, shape, n, B, entries[held : 2 * held])
    blocks, each = shape.blocks(n, TOTAL), shape.held(TOTAL)
    totals = [entries[2 * held + k * each : 2 * held + (k + 1) * each] for k in range(len(blocks))]
    for k in range(0, n, shape.depth):
        for number, (row, column) in enumerate(blocks):
            totals[number] = _fma(e, shape, [*a[row, k], *b[k, column]], totals[number])
    return [f"{kind} {entry}" for entries in totals for entry in entries]


def _entries(e: GpuEmitter, shape: MatrixShape, n: int, use: str, entries: Sequence[str]) -> _Factors:
    kind, held = type_name(shape.factor), shape.held(use)
    blocks = enumerate(shape.blocks(n, use))
    return {place: [f"{kind} {entry}" for entry in entries[k * held : (k + 1) * held]] for k, place in blocks}


def _pairs(e: GpuEmitter, shape: MatrixShape, n: int, use: str, entries: Sequence[str]) -> _Factors:
    """Return factors from the results of `_read_parts`."""
    parts: dict[tuple[int, int], str] = {}
    at = iter(range(0, len(entries), 2))
    for row in range(0, n, _BLOCK):
        for column in range(0, n, _BLOCK):
            for right in (0, _PART):
                for down in (0, _PART):
                    k = next(at)
                    pair = e.value(f"insertelement <2 x half> poison, half {entries[k]}, i32 0")
                    pair = e.value(f"insertelement <2 x half> {pair}, half {entries[k + 1]}, i32 1")
                    parts[row + down, column + right] = f"<2 x half> {pair}"
    rows, columns = shape.extents(use)
    return {
        (row, column): [parts[row + down, column + right] for right in range(0, columns, _PART) for down in range(0, rows, _PART)]
        for row, column in shape.blocks(n, use)
    }


def _fma(e: GpuEmitter, shape: MatrixShape, factors: Sequence[str], totals: Sequence[str]) -> list[str]:
    total = type_name(shape.total)
    name = f"llvm.nvvm.mma.m{shape.rows}n{shape.columns}k{shape.depth}.row.col{'.f32.f32' if shape.factor is f16 else '.f64'}"
    operands = [*factors, *[f"{total} {entry}" for entry in totals]]
    types = ", ".join([operand.rpartition(" ")[0] for operand in operands])
    result = f"{{ {', '.join([total] * len(totals))} }}"
    # LLVM does not know that all lanes must run this instruction together: it might copy it into both regions of a branch.
    product = e.value(f"call {result} {e.module.declare(name, result, types)}({', '.join(operands)}) convergent")
    return [e.value(f"extractvalue {result} {product}, {k}") for k in range(len(totals))]

"""What the instructions for products of tiles compute: each is run for the 32 lanes of a warp when it is emitted.

Where the entries of matrices lie is written here as the PTX ISA has it ("Matrix Fragments for mma.m16n8k16" and others, "ldmatrix").
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spirograd.base.matrix_shapes import SHAPES, TOTAL, TRANSPOSED, A, B, row_stride
from spirograd.ir import ops
from spirograd.ir.nodes import Op, SharedRef
from spirograd.llvmgen import ptx_matrices
from spirograd.llvmgen.ptx import NVPTX

LANES = np.arange(32)
GROUP, WITHIN = LANES >> 2, LANES % 4  # groupID, threadID_in_group
Fragment = list[tuple[Any, Any]]


def halves(product: str) -> tuple[Fragment, Fragment]:
    """Row and column of each a_i and b_i of f16."""
    deep = product == "m16n8k16"
    a = [(GROUP + 8 * (i % 4 >= 2), WITHIN * 2 + (i & 1) + 8 * (i >= 4)) for i in range(8 if deep else 4)]
    b = [(WITHIN * 2 + (i & 1) + 8 * (i >= 2), GROUP) for i in range(4 if deep else 2)]
    return a, b


def doubles(product: str) -> tuple[Fragment, Fragment]:
    """Row and column of each a_i and b_i of f64."""
    if product == "m8n8k4":
        return [(GROUP, WITHIN)], [(WITHIN, GROUP)]
    a = [(GROUP + 8 * (i % 2), (i * 2 if i % 2 == 0 else i * 2 - 2) + WITHIN) for i in range(8)]
    return a, [(WITHIN + 4 * i, GROUP) for i in range(4)]


def totals(product: str) -> Fragment:
    """Row and column of each c_i, and of the result's."""
    rows = 2 if product == "m8n8k4" else 4
    return [(GROUP + 8 * (i >= 2), WITHIN * 2 + (i & 1)) for i in range(rows)]


def mma(product: str, operands: list[Any]) -> list[Any]:
    """The results of all lanes, from the operands of all lanes: pairs of f16, or f64."""
    m, n, k = (int(size) for size in re.findall(r"\d+", product))
    half = operands[0].ndim == 2
    (a_at, b_at), c_at = (halves if half else doubles)(product), totals(product)
    count = len(a_at) + len(b_at)
    factors = [pair[:, side] for pair in operands[: count // 2] for side in range(2)] if half else operands[:count]
    a, b, c = np.full((m, k), np.nan), np.full((k, n), np.nan), np.full((m, n), np.nan)
    for matrix, places, entries in (
        (a, a_at, factors[: len(a_at)]),
        (b, b_at, factors[len(a_at) :]),
        (c, c_at, operands[len(operands) - len(c_at) :]),
    ):
        for place, entry in zip(places, entries):
            matrix[place] = entry
    result = a @ b + c
    return [result[place] for place in c_at]


def ldmatrix(memory: Any, addresses: Any, transposed: bool) -> list[Any]:
    """Four matrices of 8 x 8 f16: lanes 8 k to 8 k + 7 have the addresses of the rows of the k-th."""
    found = []
    for first in range(0, 32, 8):
        starts = addresses[first : first + 8]
        assert (starts % 8 == 0).all(), "rows begin at multiples of 16 bytes"
        part = memory[starts[:, None] + np.arange(8)]
        part = part.T if transposed else part
        found.append(np.stack([part[GROUP, 2 * WITHIN + side] for side in range(2)], axis=1))
    return found


class Warp:
    """Stands for the emitter. Values are those of all lanes, and pointers are indices into the shared memory."""

    dialect = NVPTX

    def __init__(self, memory: dict[str, Any]) -> None:
        self.memory = memory
        self.values: dict[str, Any] = {}
        self.env: dict[Op, str] = {}
        self.module = SimpleNamespace(shared=lambda name, _: f"@{name}", declare=lambda name, *_: f"@{name}")

    def new(self, value: Any) -> str:
        name = f"%{len(self.values)}"
        self.values[name] = value
        return name

    def of(self, operand: str) -> Any:
        name = operand.split()[-1]
        return self.values[name] if name in self.values else (name[1:], 0) if name[0] == "@" else int(name)

    def typed(self, arg: Op) -> str:
        return f"{arg.type} {self.env[arg]}"

    def line(self, text: str) -> None:
        value, pointer, _ = text.removeprefix("store ").split(", ")
        name, index = self.of(pointer)
        assert len(np.unique(index)) == 32, "no two lanes have the same entry"
        self.memory[name][index] = self.of(value)

    def value(self, text: str) -> str:
        return self.new(self.result(text))

    def result(self, text: str) -> Any:
        code = text.split()[0]
        if code == "call":
            return self.call(*re.fullmatch(r"call .*?(@\S+?)\((.*)\)(.*)", text).groups())  # type: ignore[union-attr]
        parts = text.split(", ")
        if code == "extractvalue":
            value, number = text.rsplit(", ", 1)
            return self.of(value)[int(number)]
        if code in ("getelementptr", "load"):
            name, index = self.of(parts[1])
            return self.memory[name][index] if code == "load" else (name, index + self.of(parts[2]))
        if code == "insertelement":
            pair = np.full((32, 2), np.nan) if parts[0].endswith("poison") else self.of(parts[0]).copy()
            pair[:, self.of(parts[2])] = self.of(parts[1])
            return pair
        value = self.of(parts[0].partition(" to ")[0])
        if code == "bitcast":  # a word is a pair of f16
            return value
        if code == "extractelement":
            return value[:, self.of(parts[1])]
        second = self.of(parts[1])
        assert code != "or" or not np.any(value & second), "disjoint"
        return {"and": np.bitwise_and, "lshr": np.right_shift, "mul": np.multiply, "add": np.add, "or": np.add}[code](value, second)

    def call(self, target: str, arguments: str, attributes: str) -> Any:
        if "sreg.laneid" in target:
            return LANES
        operands = [self.of(argument) for argument in re.split(r", (?=\S+ %|<|ptr)", arguments)]
        if "ldmatrix" in target:
            name, index = operands[0]
            return ldmatrix(self.memory[name], index, ".trans" in target)
        assert attributes == " convergent", "all lanes run the same instruction, which LLVM does not know of this intrinsic"
        return mma(re.search(r"mma\.(m\d+n\d+k\d+)\.row\.col", target)[1], operands)  # type: ignore[index]


@pytest.mark.parametrize("use", [B, TRANSPOSED])
@pytest.mark.parametrize("n", [16, 32])
@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.a])
def test_products_of_tiles(name: str, n: int, use: str) -> None:
    shape, r = SHAPES[name], np.random.default_rng(n)
    a, b, c = r.integers(-4, 5, (3, n, n)).astype("f8")
    refs, memory = {}, {}
    for t, kind in ((shape.factor, "factor"), (shape.total, "total")):
        refs[kind] = SharedRef(kind, t, n * row_stride(n, t))
        memory[f"{kind}.{refs[kind].length}"] = np.full(refs[kind].length, np.nan)
    warp: Any = Warp(memory)

    def rows(kind: str) -> Any:
        return memory[f"{kind}.{refs[kind].length}"].reshape(n, -1)[:, :n]

    entries = []
    for matrix, what in ((a, A), (b.T if use == TRANSPOSED else b, use), (c, TOTAL)):
        kind = "total" if what == TOTAL else "factor"
        rows(kind)[:] = matrix
        load = Op(ops.matrix_load, refs[kind].dtype, (), ((name, n, what), refs[kind]))
        entries += ptx_matrices.load(warp, load)
    t = refs["total"].dtype
    args = []
    for entry in entries:
        args.append(Op(ops.const, t))
        warp.env[args[-1]] = entry.split()[-1]
    product = ptx_matrices.product(warp, Op(ops.matrix_product, t, tuple(args), (name, n)))
    results = []
    for entry in product:
        results.append(Op(ops.const, t))
        warp.env[results[-1]] = entry.split()[-1]
    rows("total")[:] = np.nan
    ptx_matrices.store(warp, Op(ops.matrix_store, t, tuple(results), ((name, n, TOTAL), refs["total"])))
    np.testing.assert_array_equal(rows("total"), a @ b + c)

"""The tables of the instruction set, read from the files that the package tinygrad generates out of AMD's ISA documents.

The files are parsed and not imported: importing them would load all of tinygrad, which takes seconds.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "tinygrad"
_FOLDER = "runtime/autogen/amd/rdna3"


class Missing(Exception):
    """The tables are not installed."""


@dataclass(frozen=True, slots=True)
class Field:
    """Bits ``low`` to ``high`` of an instruction. ``kind``: which registers or constants its numbers mean ("SrcField", "VGPRField" ...)."""

    kind: str
    high: int
    low: int

    def of(self, word: int) -> int:
        return word >> self.low & (1 << self.high - self.low + 1) - 1


@dataclass(frozen=True, slots=True)
class Format:
    """An encoding: ``fixed`` are bits with the value that tells it from others. ``ops``: the names of its operations by number."""

    name: str
    fixed: tuple[tuple[Field, int], ...]
    fields: dict[str, Field]
    ops: dict[int, str]

    def fits(self, word: int) -> bool:
        return all(field.of(word) == value for field, value in self.fixed)


@dataclass(frozen=True, slots=True)
class OperandType:
    """What an operand holds: "FMT_NUM_F64" and so on, and its size in bits."""

    content: str
    bits: int


@dataclass(frozen=True, slots=True)
class Tables:
    """``operands`` and ``pseudocode`` by kind and name of an operation: ("VOP1", "V_MOV_B32_E32")."""

    formats: dict[str, Format]
    operands: dict[tuple[str, str], dict[str, OperandType]]
    pseudocode: dict[tuple[str, str], str]


def folder() -> Path | None:
    """Where the tables are; None if they are not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        found = Path(place) / _FOLDER
        if (found / "str_pcode.py").exists():
            return found
    return None


@functools.cache
def tables() -> Tables:
    """Raises Missing."""
    found = folder()
    if found is None:
        raise Missing(f"the tables of the instruction set are not installed: pip install {PACKAGE}")
    trees = {name: ast.parse((found / f"{name}.py").read_text(encoding="utf-8")) for name in ("enum", "ins", "operands", "str_pcode")}
    names = _other_names(trees["enum"])
    operands = {(kind, names.get((kind, name), name)): value for (kind, name), value in _operands(trees["operands"]).items()}
    pseudocode = {(kind, names.get((kind, name), name)): value for (kind, name), value in _pseudocode(trees["str_pcode"]).items()}
    return Tables(_formats(trees["ins"], _enumerations(trees["enum"])), operands, pseudocode)


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in tree.body if isinstance(node, ast.ClassDef))


def _assignments(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    for line in node.body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            yield line.targets[0].id, line.value


def _enumerations(tree: ast.Module) -> dict[str, dict[str, int]]:
    """The numbers of the members of each enumeration; names that stand for others are left out."""
    return {
        node.name: {name: value.value for name, value in _assignments(node) if isinstance(value, ast.Constant)} for node in _classes(tree)
    }


def _other_names(tree: ast.Module) -> dict[tuple[str, str], str]:
    """Names that stand for others ("V_ADD_F32" for "V_ADD_F32_E32"), by kind and name."""
    return {
        (node.name.removesuffix("Op"), name): value.id
        for node in _classes(tree)
        for name, value in _assignments(node)
        if isinstance(value, ast.Name)
    }


def _formats(tree: ast.Module, numbers: dict[str, dict[str, int]]) -> dict[str, Format]:
    formats: dict[str, Format] = {}
    for node in _classes(tree):
        base = node.bases[0]
        above = formats.get(base.id) if isinstance(base, ast.Name) else None
        fixed = list(above.fixed) if above else []
        fields = dict(above.fields) if above else {}
        ops: dict[int, str] = dict(above.ops) if above else {}
        for name, value in _assignments(node):
            if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
                continue
            kind = value.func.id
            high, low = (part.value for part in value.args[:2] if isinstance(part, ast.Constant))
            field = Field(kind, high, low)
            if kind == "FixedBitField":
                fixed.append((field, value.args[2].value))  # type: ignore[attr-defined]
            fields[name] = field
            if kind == "EnumBitField":
                ops = {number: op for op, number in numbers[value.args[2].id].items()}  # type: ignore[attr-defined]
        formats[node.name] = Format(node.name, tuple(fixed), fields, ops)
    return formats


def _entries(tree: ast.Module, name: str) -> Iterator[tuple[tuple[str, str], ast.expr]]:
    """The members of the dictionary ``name``, whose keys are like `VOP1Op.V_MOV_B32_E32`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            assert isinstance(node.value, ast.Dict)
            for key, value in zip(node.value.keys, node.value.values):
                assert isinstance(key, ast.Attribute) and isinstance(key.value, ast.Name)
                yield (key.value.id.removesuffix("Op"), key.attr), value


def _operands(tree: ast.Module) -> dict[tuple[str, str], dict[str, OperandType]]:
    found: dict[tuple[str, str], dict[str, OperandType]] = {}
    for key, value in _entries(tree, "OPERANDS"):
        assert isinstance(value, ast.Dict)
        found[key] = {
            name.value: OperandType(about.elts[0].attr, about.elts[1].value)  # type: ignore[attr-defined,union-attr]
            for name, about in zip(value.keys, value.values)
        }
    return found


def _pseudocode(tree: ast.Module) -> dict[tuple[str, str], str]:
    return {key: value.value for key, value in _entries(tree, "PCODE")}  # type: ignore[attr-defined]

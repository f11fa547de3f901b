"""`print` and `assert` in kernels: text with holes for run-time values."""

from __future__ import annotations

from typing import Any

from spirograd.base.artifact import FAULT_MAX_OPERANDS, FaultSite, PrintSite
from spirograd.base.dtypes import VOID
from spirograd.ir import ops as ir
from spirograd.lang import scalar
from spirograd.lang.matrix import Matrix
from spirograd.lang.scalar import Value
from spirograd.lang.struct import Struct


def holes(value: Any, spec: str, operands: list[Value]) -> list[Any]:
    """The parts that show a run-time value, with each of its scalars appended to ``operands``."""
    if isinstance(value, Struct):
        out: list[Any] = ["{"]
        for k, (name, member) in enumerate(value.entries.items()):
            out += [f"{', ' if k else ''}{name}: ", *holes(member, spec, operands)]
        return [*out, "}"]
    if isinstance(value, Matrix):
        rows = [value[i] for i in range(value.n)]
        out = ["["]
        for k, row in enumerate(rows):
            out += [", "] if k else []
            out += holes(row, spec, operands)
        return [*out, "]"]
    operands.append(scalar.as_value(value))
    return [(len(operands) - 1, spec)]


def text_parts(parts: list[Any]) -> tuple[list[Any], list[Value]]:
    """Literal strings and (operand number, format spec) pairs for a list of strings and (value, spec) pairs."""
    operands: list[Value] = []
    out: list[Any] = []
    for part in parts:
        out += [part] if isinstance(part, str) else holes(part[0], part[1], operands)
    merged: list[Any] = []
    for part in out:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return merged, operands


def emit_print(parts: list[Any]) -> None:
    merged, operands = text_parts(parts)
    b = scalar.builder()
    site = PrintSite(tuple(merged), tuple(v.dtype for v in operands), b.loc)
    b.emit(ir.print_, *[v.op for v in operands], attr=site, type=VOID)


def emit_assert(condition: Value, parts: list[Any]) -> None:
    merged, operands = text_parts(parts)
    operands = operands[:FAULT_MAX_OPERANDS]
    message = ""
    for part in merged:
        if isinstance(part, str):
            message += part.replace("{", "{{").replace("}", "}}")
        else:
            index, spec = part
            message += "..." if index >= len(operands) else f"{{{index}:{spec}}}" if spec else f"{{{index}}}"
    b = scalar.builder()
    site = FaultSite("assert", message, tuple(v.dtype for v in operands), b.loc)
    b.emit(ir.check, condition.op, *[v.op for v in operands], attr=site, type=VOID)

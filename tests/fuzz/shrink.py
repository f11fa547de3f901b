"""Shortens a program that fails, in its source: drops statements, unwraps blocks, puts operands in the place of operations."""

from __future__ import annotations

import ast
import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from .kernel_programs import Program

Edit = Callable[[ast.Module], None]


def shrunk(program: Program, fails: Callable[[Program], bool], seconds: float = 60.0) -> Program:
    """The shortest program found within ``seconds`` for which ``fails`` holds."""
    end = time.time() + seconds
    changed = True
    while changed:
        changed = False
        at = 0
        while time.time() < end:
            tree = ast.parse(program.source)
            edits = list(_edits(tree))
            if at >= len(edits):
                break
            edits[at]()
            shorter = replace(program, source=ast.unparse(ast.fix_missing_locations(tree)) + "\n")
            if len(shorter.source) < len(program.source) and fails(shorter):
                program, changed = shorter, True
            else:
                at += 1
    return _without_unused(program, fails)


def _edits(tree: ast.Module) -> Iterator[Callable[[], None]]:
    """Changes to ``tree``, large ones first."""
    lists = [(node, name) for node in ast.walk(tree) for name in ("body", "orelse") if isinstance(getattr(node, name, None), list)]
    for node, name in lists:
        block = getattr(node, name)
        for k in range(len(block)):
            yield lambda node=node, name=name, k=k: _replace(node, name, k, [])
    for node, name in lists:
        for k, inner in enumerate(getattr(node, name)):
            for part in ("body", "orelse"):
                new = getattr(inner, part, None)
                if isinstance(inner, (ast.If, ast.For, ast.While)) and new:
                    yield lambda node=node, name=name, k=k, new=new: _replace(node, name, k, new)
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            for k, old in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(old, ast.expr) and field not in ("func", "annotation", "returns", "decorator_list", "target", "targets"):
                    for new in (*_operands(old), ast.Constant(0)):
                        yield lambda node=node, field=field, k=k, new=new: _put(node, field, k, copy.deepcopy(new))


def _replace(node: Any, name: str, k: int, new: list[ast.stmt]) -> None:
    block = getattr(node, name)
    block[k : k + 1] = new
    if not block and name == "body" and not isinstance(node, ast.Module):
        block.append(ast.Pass())


def _put(node: Any, field: str, k: int, new: ast.expr) -> None:
    if isinstance(getattr(node, field), list):
        getattr(node, field)[k] = new
    else:
        setattr(node, field, new)


def _operands(node: ast.expr) -> list[ast.expr]:
    found = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)]
    if isinstance(node, ast.Call):
        found = list(node.args)
    return [n for n in found if not (isinstance(n, ast.Attribute) or isinstance(node, (ast.Constant, ast.Name)))]


def _without_unused(program: Program, fails: Callable[[Program], bool]) -> Program:
    for name in [a.name for a in program.arrays] + [s[0] for s in program.scalars]:
        tree = ast.parse(program.source)
        kernel = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "k")
        if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(kernel)):
            continue
        kernel.args.args = [a for a in kernel.args.args if a.arg != name]
        shorter = replace(
            program,
            source=ast.unparse(tree) + "\n",
            arrays=[a for a in program.arrays if a.name != name],
            scalars=[s for s in program.scalars if s[0] != name],
        )
        if fails(shorter):
            program = shorter
    return program

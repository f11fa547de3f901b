"""Python syntax that kernels lack: how messages call it, and what to write instead."""

from __future__ import annotations

import ast

_WORDS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lambda: ("a lambda", "define a function with `@sg.func`"),
    ast.Await: ("`await`", ""),
    ast.Yield: ("`yield`", "kernels return values with `return`"),
    ast.YieldFrom: ("`yield from`", ""),
    ast.Set: ("a set", ""),
    ast.Starred: ("a starred expression", ""),
    ast.Try: ("`try`", "kernels raise nothing that could be caught"),
    ast.Raise: ("`raise`", "use `assert`, which is checked in debug mode"),
    ast.With: ("`with`", "enter the context around the call of the kernel"),
    ast.Global: ("`global`", "a kernel cannot rebind globals; store to a field, or return the value"),
    ast.Nonlocal: ("`nonlocal`", "a kernel cannot rebind variables outside; store to a field, or return the value"),
    ast.Import: ("`import`", "import at the top of the file"),
    ast.ImportFrom: ("`import`", "import at the top of the file"),
    ast.FunctionDef: ("a nested function", "define it outside of the kernel, with `@sg.func`"),
    ast.ClassDef: ("a class", "define it outside of the kernel"),
    ast.Delete: ("`del`", "variables end with their block"),
}
_KEYWORDS = {"AsyncFor": "async for", "AsyncWith": "async with", "AsyncFunctionDef": "async def", "TryStar": "except*", "TypeAlias": "type"}


def unsupported(node: ast.expr | ast.stmt) -> tuple[str, str]:
    """Return what kind of expression or statement ``node`` is, and the hint for it."""
    name = type(node).__name__
    by_name = f"the Python construct {name}" if isinstance(node, ast.expr) else f"`{_KEYWORDS.get(name, name.lower())}`"
    return _WORDS.get(type(node), (by_name, ""))

"""The syntax tree of a function, and the names that it can see."""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spirograd.base.errors import SpirogradSyntaxError
from spirograd.base.loc import Loc


@dataclass(slots=True, eq=False)
class Source:
    """A Python function as the front end sees it. ``line_offset`` maps lines of the tree to the file's."""

    function: Callable[..., Any]
    tree: ast.FunctionDef
    file: str
    line_offset: int
    name: str

    def loc(self, node: ast.AST, caller: Loc | None) -> Loc:
        """Where ``node`` stands in the user's file."""
        line = getattr(node, "lineno", 1)
        col = getattr(node, "col_offset", 0)
        end_line = getattr(node, "end_lineno", line) or line
        end_col = getattr(node, "end_col_offset", col) or col
        shift = self.line_offset
        return Loc(self.file, line + shift, col, end_line + shift, end_col, self.name, caller)

    def names(self) -> dict[str, Any]:
        """Everything that the function can see, but its own locals: closure, globals and builtins, as of now."""
        out = {**vars(builtins), **self.function.__globals__}
        code, cells = self.function.__code__, self.function.__closure__ or ()
        for name, cell in zip(code.co_freevars, cells):
            try:
                out[name] = cell.cell_contents
            except ValueError:  # not assigned yet: using it is the user's NameError
                out.pop(name, None)
        return out


def of(function: Callable[..., Any], kind: str) -> Source:
    """The source of ``function``; SpirogradSyntaxError if there is none to be had (``kind``: what the user called it)."""
    name = getattr(function, "__qualname__", repr(function))
    try:
        if function.__code__.co_filename == "<string>":  # of exec: what inspect finds under that name is something else
            raise OSError
        lines, first = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function) or "<unknown>"
    except (OSError, TypeError, AttributeError):
        raise SpirogradSyntaxError(
            f"the source code of {kind} `{name}` is not available",
            hint="define it in a file (the interactive prompt and exec keep no source)",
        ) from None
    text = "".join(lines)
    # A method or an inner function is parsed inside of a block, not dedented: comments and strings may start left of it.
    nested = text[:1] in " \t"
    try:
        module = ast.parse(f"if True:\n{text}" if nested else text)
    except SyntaxError as error:
        where = Loc(file, first + (error.lineno or 1) - 1 - nested)
        raise SpirogradSyntaxError(f"cannot parse {kind} `{name}`: {error.msg}", where) from None
    body = module.body[0].body if nested and isinstance(module.body[0], ast.If) else module.body
    tree = body[0] if body else None
    if not isinstance(tree, ast.FunctionDef):
        raise SpirogradSyntaxError(
            f"`{name}` is no plain function",
            Loc(file, first),
            f"a {kind} is a function defined with `def`; lambdas and async functions are not",
        )
    code = function.__code__
    parameters = [a.arg for a in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)]
    if tree.name != code.co_name or parameters != list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]):
        raise SpirogradSyntaxError(
            f"the source of {kind} `{name}` is not where it was",
            Loc(file, first),
            "the file has changed since it was imported: run the program again",
        )
    return Source(function, tree, file, first - 1 - nested, function.__name__)

"""The syntax tree of a function, and the names that it can see."""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Callable
from typing import cast

from spirograd.base.errors import SpirogradSyntaxError
from spirograd.base.loc import Loc
from spirograd.base.records import dataclass
from spirograd.lang.frontend.texts import Text, block_of, likely_block_of


@dataclass(slots=True, eq=False)
class Source:
    """A Python function as the front end sees it. ``line_offset`` maps lines of the tree to the file's."""

    function: Callable[..., object]
    tree: ast.FunctionDef
    file: str
    line_offset: int
    name: str
    of_library: bool = False  # a function of this package: what it does is shown at the line of the user's that calls it

    def loc(self, node: ast.AST, caller: Loc | None) -> Loc:
        """Return where ``node`` stands in the user's file."""
        if self.of_library and caller is not None:
            return caller
        shift = self.line_offset
        if not hasattr(node, "lineno"):  # such as an operator
            return Loc(self.file, 1 + shift, 0, 1 + shift, 0, self.name, caller)
        place = cast("ast.expr", node)
        line, col = place.lineno, place.col_offset
        end_line, end_col = place.end_lineno or line, place.end_col_offset or col
        return Loc(self.file, line + shift, col, end_line + shift, end_col, self.name, caller)

    def names(self) -> dict[str, object]:
        """Return everything that the function can see, but its own locals: closure, globals and builtins, as of now."""
        out = {**vars(builtins), **self.function.__globals__}
        code, cells = self.function.__code__, self.function.__closure__ or ()
        for name, cell in zip(code.co_freevars, cells):
            try:
                out[name] = cell.cell_contents
            except ValueError:  # not assigned yet: using it is the user's NameError
                out.pop(name, None)
        return out


_HOW = {
    "<stdin>": "save it to a file and run that; the prompts of IPython, Jupyter and Python 3.13 keep what is typed, too",
    "<console>": "save it to a file and run that; the prompts of IPython, Jupyter and Python 3.13 keep what is typed, too",
}
_HOW_OF_EXEC = (
    "save it to a file, or give the text a name of its own, and let Python know its lines: "
    "`linecache.cache[name] = (len(text), None, text.splitlines(True), name)`, then `exec(compile(text, name, 'exec'))`"
)


def of(function: Callable[..., object], text: Text | None, kind: str) -> Source:
    """Return the source of ``function``, which comes from ``text``; SpirogradSyntaxError if there is none (``kind``: what the user called
    it)."""
    name, code = function.__qualname__, function.__code__
    if code.co_name == "<lambda>" and text is not None and kind != "kernel":
        return _of_lambda(function, text)
    first = code.co_firstlineno
    rest = text.lines[first - 1 :] if text is not None else []
    if text is None or not rest:
        raise SpirogradSyntaxError(
            f"the source code of {kind} `{name}` is not available: it comes from `{code.co_filename}`",
            hint=_HOW.get(code.co_filename, _HOW_OF_EXEC),
        )
    # A method or an inner function is parsed inside of a block, not dedented: comments and strings may start left of it.
    nested = rest[0][:1] in " \t"
    try:
        module = parsed(rest, nested)
    except SyntaxError as error:
        where = Loc(text.file, first + (error.lineno or 1) - 1 - nested)
        raise SpirogradSyntaxError(f"cannot parse {kind} `{name}`: {error.msg}", where) from None
    body = module.body[0].body if nested and isinstance(module.body[0], ast.If) else module.body
    tree = body[0] if body else None
    if not isinstance(tree, ast.FunctionDef):
        raise SpirogradSyntaxError(
            f"`{name}` is not a plain function",
            Loc(text.file, first),
            f"a {kind} is a function defined with `def`; lambdas and async functions are not",
        )
    if tree.name != code.co_name or _names(tree.args) != list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]):
        raise SpirogradSyntaxError(
            f"the source of {kind} `{name}` is not where it was",
            Loc(text.file, first),
            "the file has changed since it was imported: run the program again",
        )
    return Source(function, tree, text.file, first - 1 - nested, function.__name__, getattr(function, "__sg_library__", False))


def _of_lambda(function: Callable[..., object], text: Text) -> Source:
    """Return the source of a lambda, rewritten as a function that returns its expression. Raises SpirogradSyntaxError if a line has
    several lambdas that cannot be told apart."""
    code = function.__code__
    try:
        module = _whole("".join(text.lines))
    except SyntaxError as error:
        raise SpirogradSyntaxError(f"cannot parse a lambda: {error.msg}", Loc(text.file, code.co_firstlineno)) from None
    parameters = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    lambdas = [n for n in ast.walk(module) if isinstance(n, ast.Lambda) and n.lineno == code.co_firstlineno]
    lambdas = [n for n in lambdas if _names(n.args) == parameters]
    if len(lambdas) > 1 and hasattr(code, "co_positions"):  # since Python 3.11
        positions = set(code.co_positions())
        lambdas = [n for n in lambdas if (n.body.lineno, n.body.end_lineno, n.body.col_offset, n.body.end_col_offset) in positions]
    if len({ast.dump(n) for n in lambdas}) != 1:
        problem = "it is not certain which lambda of this line a kernel calls" if lambdas else "the source of a lambda is not where it was"
        raise SpirogradSyntaxError(problem, Loc(text.file, code.co_firstlineno), "write it as a function, with `def`")
    node = lambdas[0]
    result = ast.copy_location(ast.Return(node.body), node.body)
    tree = ast.FunctionDef(name="<lambda>", args=node.args, body=[result], decorator_list=[], returns=None, type_comment=None)
    return Source(function, ast.copy_location(tree, node), text.file, 0, "<lambda>")


def _names(parameters: ast.arguments) -> list[str]:
    return [a.arg for a in (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs)]


@functools.lru_cache(maxsize=4)
def _whole(text: str) -> ast.Module:
    return ast.parse(text)


def parsed(lines: list[str], nested: bool) -> ast.Module:
    """Return the tree of the function that begins with the first of ``lines``; ``nested``: inside of an `if`. SyntaxError if there is
    none."""
    head = "if True:\n" if nested else ""
    try:
        return ast.parse(head + "".join(likely_block_of(lines)))
    except SyntaxError:
        return ast.parse(head + "".join(block_of(lines)))

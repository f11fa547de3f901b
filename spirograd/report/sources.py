"""The Python source of a kernel: of its function and of the functions inlined in it."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterable

from spirograd.base.loc import Loc
from spirograd.base.records import dataclass
from spirograd.report.places import Place


@dataclass(frozen=True, slots=True)
class Source:
    """Lines of a file, from line ``first`` on: a function with its decorators, or lines outside of functions."""

    name: str
    file: str
    first: int
    lines: tuple[str, ...]


def sources_of(kernel: Loc | None, places: Iterable[Place]) -> list[Source]:
    """Return the functions that contain the ``places``, that of the ``kernel`` first, then in order of file and line."""
    own = [] if kernel is None else [(kernel.file, kernel.line)]
    wanted = dict.fromkeys([*own, *sorted(places)])
    sources: dict[tuple[str, int], Source] = {}
    for file, line in wanted:
        if not any(s.file == file and s.first <= line < s.first + len(s.lines) for s in sources.values()):
            source = _around(file, line)
            sources.setdefault((source.file, source.first), source)
    return list(sources.values())


def _around(file: str, line: int) -> Source:
    """Return the innermost function around a line; the line alone if it is in none, or if the file cannot be read."""
    best: tuple[int, int, str] | None = None
    for first, last, name in _functions(file):
        if first <= line <= last and (best is None or first >= best[0]):
            best = (first, last, name)
    if best is None:
        text = linecache.getline(file, line).rstrip("\n")
        return Source("", file, line, (text or "(the source is not available)",))
    return Source(best[2], file, best[0], tuple(text.rstrip("\n") for text in linecache.getlines(file)[best[0] - 1 : best[1]]))


@functools.lru_cache(maxsize=64)
def _functions(file: str) -> tuple[tuple[int, int, str], ...]:
    """Return (first line, last line, name) of all functions of a file; none if the file cannot be parsed."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    functions = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            functions.append((first, node.end_lineno or node.lineno, node.name))
    return tuple(functions)

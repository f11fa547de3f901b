"""Symbolic sizes as text for users."""

from __future__ import annotations

from collections.abc import Mapping

from spirograd.base.sizes.size_nodes import (
    Add,
    Arg,
    Binary,
    Element,
    Extent,
    FloorDiv,
    IfLess,
    Max,
    MaxOver,
    Min,
    Mod,
    Mul,
    Size,
    Sub,
    Variable,
    flattened,
    variables,
)

_SIGNS: dict[type[Binary], tuple[str, int]] = {Add: ("+", 1), Sub: ("-", 1), Mul: ("*", 2), FloorDiv: ("//", 2), Mod: ("%", 2)}
_NAMES: dict[type, str] = {Min: "min", Max: "max"}
_LETTERS = "ijklmnopqrstuvwxyzabcdefgh"
_ATOM = 3  # the precedence of names and calls

# Names: of scalar arguments by ("arg", number), of arrays by ("array", number), of fields by ("field", key).
Names = Mapping[tuple[str, int], str]


def size_text(size: Size, names: Names) -> str:
    """Return ``size`` as text, such as ``n``, ``counts[3]``, ``x.shape[0]`` or ``max over i in [0, m) of counts[i]``."""
    return _Printer(names).text(size, {})[0]


def count_text(size: Size, names: Names) -> str:
    """Return the `size_text` of a count without an outer ``max(..., 0)``, because counts are never negative."""
    return size_text(size.a if isinstance(size, Max) and size.b == 0 else size, names)


class _Printer:
    def __init__(self, names: Names) -> None:
        self.names = names

    def text(self, size: Size, bound: Mapping[int, str]) -> tuple[str, int]:
        """Return the text and its precedence. ``bound``: the names of variables."""
        if isinstance(size, int):
            return str(size), _ATOM if size >= 0 else 0
        if isinstance(size, Arg):
            return self.names["arg", size.number], _ATOM
        if isinstance(size, Variable):
            return bound[size.number], _ATOM
        if isinstance(size, Extent):
            return f"{self.names['array', size.array]}.shape[{size.axis}]", _ATOM
        if isinstance(size, Element):
            name = self.names[("field", size.key) if size.kind == "tree" else ("array", size.number)]
            return f"{name}[{', '.join([self.text(i, bound)[0] for i in size.indices]) or 'None'}]", _ATOM
        if isinstance(size, IfLess):
            a, b, value = (self.text(part, bound)[0] for part in size.operands)
            return f"{value} if {a} < {b}, else 0", 0
        if isinstance(size, MaxOver):
            return self.range(size, bound), 0
        assert isinstance(size, Binary)
        return self.binary(size, bound)

    def binary(self, size: Binary, bound: Mapping[int, str]) -> tuple[str, int]:
        kind = type(size)
        if kind in _NAMES:
            operands = [self.tight(part, bound, 1) for part in flattened(kind, size)]
            return f"{_NAMES[kind]}({', '.join(operands)})", _ATOM
        sign, level = _SIGNS[kind]
        return f"{self.tight(size.a, bound, level)} {sign} {self.tight(size.b, bound, level + 1)}", level

    def range(self, size: MaxOver, bound: Mapping[int, str]) -> str:
        taken = {*bound.values(), *self.names.values()}
        letter = next((letter for letter in _LETTERS if letter not in taken), f"i{size.variable}")
        inner = {**bound, size.variable: letter} if size.variable in variables(size.body) else bound
        low, high = self.text(size.begin, bound)[0], self.text(size.end, bound)[0]
        return f"max over {letter} in [{low}, {high}) of {self.text(size.body, inner)[0]}"

    def tight(self, size: Size, bound: Mapping[int, str], level: int) -> str:
        """Return the text of an operand, in brackets if its precedence requires them."""
        text, precedence = self.text(size, bound)
        return text if precedence >= level else f"({text})"

"""Size expressions as people write them."""

from __future__ import annotations

from collections.abc import Mapping

from spirograd.base.sizes import Size, variables

_SIGNS = {"add": ("+", 1), "sub": ("-", 1), "mul": ("*", 2), "floordiv": ("//", 2), "mod": ("%", 2)}
_LETTERS = "ijklmnopqrstuvwxyzabcdefgh"
_ATOM = 3  # how tightly names and calls bind


def in_words(size: Size, names: Mapping[tuple[str, int], str]) -> str:
    """``n``, ``counts[3]``, ``shape of x, axis 0``, ``max over i in [0, m) of counts[i]`` ...: a number that is 0 or more, so that a
    ``max(..., 0)`` around the whole goes without saying.

    ``names``: of scalar arguments by ("arg", number), of arrays by ("array", number), of fields by ("field", key).
    """
    if not isinstance(size, int) and size[0] == "max" and size[2] == 0:
        size = size[1]
    return _Words(names).text(size, {})[0]


class _Words:
    def __init__(self, names: Mapping[tuple[str, int], str]) -> None:
        self.names = names

    def text(self, size: Size, bound: Mapping[int, str]) -> tuple[str, int]:
        """The words, and how tightly they bind. ``bound``: the names of variables."""
        if isinstance(size, int):
            return str(size), _ATOM if size >= 0 else 0
        kind = size[0]
        if kind == "arg":
            return self.names[kind, size[1]], _ATOM
        if kind == "bound":
            return bound[size[1]], _ATOM
        if kind == "shape":
            return f"shape of {self.names['array', size[1]]}, axis {size[2]}", 0
        if kind == "memory":
            name = self.names[("field", size[5]) if size[1] == "tree" else ("array", size[2])]
            return f"{name}[{', '.join([self.text(i, bound)[0] for i in size[6]]) or 'None'}]", _ATOM
        if kind == "if_less":
            a, b, x = (self.text(part, bound)[0] for part in size[1:])
            return f"{x} if {a} < {b}, else 0", 0
        if kind == "max_over":
            return self.range(size, bound), 0
        if kind in ("min", "max"):
            return f"{kind}({', '.join([self.tight(part, bound, 1) for part in _operands(kind, size)])})", _ATOM
        sign, level = _SIGNS[kind]
        return f"{self.tight(size[1], bound, level)} {sign} {self.tight(size[2], bound, level + 1)}", level

    def range(self, size: Size, bound: Mapping[int, str]) -> str:
        assert not isinstance(size, int)
        _, v, begin, end, body = size
        taken = {*bound.values(), *self.names.values()}
        letter = next((letter for letter in _LETTERS if letter not in taken), f"i{v}")
        inner = {**bound, v: letter} if v in variables(body) else bound
        low, high = self.text(begin, bound)[0], self.text(end, bound)[0]
        return f"max over {letter} in [{low}, {high}) of {self.text(body, inner)[0]}"

    def tight(self, size: Size, bound: Mapping[int, str], level: int) -> str:
        """In brackets if need be."""
        text, binds = self.text(size, bound)
        return text if binds >= level else f"({text})"


def _operands(kind: str, size: Size) -> list[Size]:
    if isinstance(size, int) or size[0] != kind:
        return [size]
    return [*_operands(kind, size[1]), *_operands(kind, size[2])]

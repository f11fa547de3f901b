"""The vendor's pseudocode of an instruction -> a tree of tuples.

The language has `if`/`elsif`/`else`, `for` over constant bounds, `break`, assignments to typed views of bits (`D0.f32`, `tmp[31 : 16].f16`,
`D0.u64[laneId]`), typed literals (`16'0.5`, `1ULL`), conversions (`64'U(x)`), concatenation in braces, and one-line lambdas.
"""

from __future__ import annotations

import re
from typing import Any

Node = tuple[Any, ...]

_TOKEN = re.compile(
    r"(?P<cast>\d+'[UIFB]\b)"
    r"|(?P<typed>\d+'(?:0x[0-9a-fA-F]+|\d+(?:\.\d+)?)(?:ULL|LL|U|F)?)"
    r"|(?P<number>0x[0-9a-fA-F]+(?:ULL|LL|U)?|\d+\.\d+F?|\d+(?:ULL|LL|U|F)?)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign><<|>>|<=|>=|==|!=|<>|&&|\|\||\+:|\*\*|\+=|-=|[-+*/&|^~!?:;,.()\[\]{}=<>])"
    r"|(?P<space>\s+)"
    r"|(?P<other>.)"
)
_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!=", "<>"),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/"),
    ("**",),
)
_SUFFIXES = {"ULL": ("u", 64), "LL": ("i", 64), "U": ("u", 32), "F": ("f", 32)}


class NotPseudocode(Exception):
    """The text is prose, or uses what this parser does not know."""


def parse(text: str) -> list[Node]:
    """The statements of ``text``. Raises NotPseudocode."""
    parser = _Parser(re.sub(r"//[^\n]*", "", text))
    statements = parser.block()
    if parser.kind != "end":
        raise NotPseudocode(f"unexpected {parser.text!r}")
    return statements


def _literal(text: str) -> Node:
    """("number", value, type): type None for integers without a suffix."""
    bits = None
    if "'" in text:
        size, text = text.split("'")
        bits = int(size)
    found = re.fullmatch(r"(0x[0-9a-fA-F]+|[\d.]+)(ULL|LL|U|F)?", text)
    if found is None:
        raise NotPseudocode(f"the literal {text}")
    digits, suffix = found.groups()
    if "." in digits or suffix == "F":
        return ("number", float(digits), ("f", bits or (32 if suffix else 64)))
    value = int(digits, 0)
    if bits is not None:
        return ("number", value, ("u" if suffix else "i", bits))
    return ("number", value, _SUFFIXES[suffix] if suffix else None)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [(m.lastgroup or "", m.group()) for m in _TOKEN.finditer(text) if m.lastgroup != "space"]
        self._tokens.append(("end", ""))
        self._at = 0

    @property
    def kind(self) -> str:
        return self._tokens[self._at][0]

    @property
    def text(self) -> str:
        return self._tokens[self._at][1]

    def next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1][1]

    def skip(self, text: str) -> bool:
        if self.text == text and self.kind != "end":
            self._at += 1
            return True
        return False

    def need(self, text: str) -> None:
        if not self.skip(text):
            raise NotPseudocode(f"expected {text!r}, got {self.text!r}")

    # --- statements ---

    def block(self) -> list[Node]:
        statements: list[Node] = []
        while True:
            while self.skip(";"):
                pass
            if self.kind == "end" or self.text in ("endif", "else", "elsif", "endfor", ")"):
                return statements
            statements.append(self.statement())

    def statement(self) -> Node:
        if self.skip("if"):
            return self._if()
        if self.skip("for"):
            return self._for()
        if self.skip("declare"):
            name = self.next()
            self.need(":")
            size, kind = self.next().split("'")
            length = None
            if self.skip("["):
                length = int(self.next())
                self.need("]")
            return ("declare", name, ("u" if kind == "B" else kind.lower(), int(size)), length)
        if self.skip("break"):
            return ("break",)
        if self.skip("return"):
            return ("return", self.expression())
        target = self._postfix()
        for sign in ("=", "+=", "-="):
            if self.skip(sign):
                if sign == "=" and self.text == "lambda":
                    return self._lambda(target)
                value = self.expression()
                return ("set", target, value if sign == "=" else ("binary", sign[0], target, value))
        if target[0] == "call":
            return ("do", target)
        raise NotPseudocode(f"expected an assignment at {self.text!r}")

    def _if(self) -> Node:
        branches = []
        condition = self.expression()
        self.need("then")
        branches.append((condition, self.block()))
        otherwise: list[Node] = []
        while True:
            if self.skip("elsif"):
                condition = self.expression()
                self.need("then")
                branches.append((condition, self.block()))
            elif self.skip("else"):
                otherwise = self.block()
            else:
                self.need("endif")
                return ("if", branches, otherwise)

    def _for(self) -> Node:
        name = self.next()
        self.need("in")
        first = self._binary(0)
        self.need(":")
        last = self.expression()
        self.need("do")
        body = self.block()
        self.need("endfor")
        return ("for", name, first, last, body)

    def _lambda(self, target: Node) -> Node:
        self.need("lambda")
        self.need("(")
        names = [self.next()]
        while self.skip(","):
            names.append(self.next())
        self.need(")")
        self.need("(")
        if self.text in ("declare", "if"):
            raise NotPseudocode("a lambda of several statements")
        value = self.expression()
        self.skip(";")
        self.need(")")
        return ("lambda", target[1], names, value)

    # --- expressions ---

    def expression(self) -> Node:
        condition = self._binary(0)
        if not self.skip("?"):
            return condition
        yes = self.expression()
        self.need(":")
        return ("choose", condition, yes, self.expression())

    def _binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self._unary()
        left = self._binary(level + 1)
        while self.kind == "sign" and self.text in _LEVELS[level]:
            sign, right = self.next(), self._binary(level + 1)
            if sign == "<>":  # less or greater, which NaN is not
                left = ("binary", "||", ("binary", "<", left, right), ("binary", ">", left, right))
            else:
                left = ("binary", sign, left, right)
        return left

    def _unary(self) -> Node:
        if self.kind == "sign" and self.text in ("-", "~", "!", "+"):
            sign = self.next()
            return ("unary", sign, self._unary()) if sign != "+" else self._unary()
        return self._postfix()

    def _postfix(self) -> Node:
        node = self._primary()
        while True:
            if self.skip("."):
                found = re.fullmatch(r"([uifb]|bf)(\d+)", self.next())
                if found is None:
                    raise NotPseudocode("an unknown type of view")
                kind, bits = found.groups()
                node = ("view", node, ("u" if kind in ("b", "bf") else kind, int(bits)))
            elif self.skip("["):
                node = self._subscript(node)
            else:
                return node

    def _subscript(self, node: Node) -> Node:
        first = self.expression()
        if self.skip(":"):
            node = ("slice", node, first, self.expression())
        elif self.skip("+:"):
            node = ("part", node, first, self.expression())
        else:
            node = ("index", node, first)
        self.need("]")
        return node

    def _primary(self) -> Node:
        kind = self.kind
        if kind in ("typed", "number"):
            return _literal(self.next())
        if kind == "cast":
            size, to = self.next().split("'")
            self.need("(")
            value = self.expression()
            self.need(")")
            return ("cast", ("u" if to == "B" else to.lower(), int(size)), value)
        if kind == "name":
            name = self.next()
            if name == "WAVE_MODE":
                self.need(".")
                return ("name", f"WAVE_MODE.{self.next()}")
            if not self.skip("("):
                return ("name", name)
            return ("call", name, self._list(")"))
        if self.skip("("):
            node = self.expression()
            self.need(")")
            return node
        if self.skip("{"):
            return ("join", self._list("}"))
        raise NotPseudocode(f"unexpected {self.text!r}")

    def _list(self, end: str) -> list[Node]:
        items: list[Node] = []
        if self.skip(end):
            return items
        items.append(self.expression())
        while self.skip(","):
            items.append(self.expression())
        self.need(end)
        return items

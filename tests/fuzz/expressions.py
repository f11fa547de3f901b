"""Random expressions, as text of a wanted type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from . import typed

T = TypeVar("T")
ALL_TYPES = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "u1", "f32", "f64")


class Choices:
    """Choices of one program. ``draw(low, high)`` gives an integer of that closed range; small ones make simple programs."""

    def __init__(self, draw: Callable[[int, int], int]) -> None:
        self.number = draw

    def pick(self, items: Sequence[T]) -> T:
        return items[self.number(0, len(items) - 1)]

    def chance(self, percent: int) -> bool:
        return self.number(0, 99) >= 100 - percent


@dataclass
class Variable:
    """``kind``: "local" (may be assigned), "fixed" (index, counter), "shared" (being reduced by the loop: not to be read)."""

    name: str
    type: str
    kind: str = "local"
    length: int = 0  # of a vector


@dataclass
class Array:
    """``use``: "read" anywhere, "own" element ``index`` only, "none" (others update it). ``place``: "arg", "field", "ndarray"."""

    name: str
    type: str
    shape: tuple[int, ...]
    place: str
    use: str = "read"


@dataclass
class Function:
    """``memory``: the arrays of its template parameters, used as there, and the elements of the iteration whose index comes before them.
    ``updates``: how it updates those of use "none"."""

    name: str
    parameters: list[str]
    result: str
    loops: bool  # contains `for`: not to be called where that would be parallel
    memory: list[Array] = field(default_factory=list)
    updates: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def stores(self) -> bool:
        return any(a.use != "read" for a in self.memory)


FLOAT_LITERALS = ("0.0", "1.0", "-1.5", "0.1", "3.0", "1e-3", "-0.0", "2.5", "1e10", "0.5", "16777217.0", "1e-40", "-7.25", "3e38")
INTEGER_LITERALS = ("0", "1", "2", "3", "-1", "7", "-3", "31", "8", "100", "255", "-128", "65535", "2147483647", "-2147483648", "12345678")


class Expressions:
    """Expressions over what is in scope."""

    def __init__(self, c: Choices, n: int, types: Sequence[str]) -> None:
        self.c = c
        self.n = n
        self.types = tuple(types)
        self.integers = [t for t in types if t in typed.INTEGERS]
        self.floats = [t for t in types if t in typed.FLOATS]
        self.vars: list[Variable] = []
        self.arrays: list[Array] = []
        self.functions: list[Function] = []
        self.updates: dict[str, tuple[str, ...]] = {}  # of what all iterations update: how
        self.index = ""  # of the parallel loop around, if any
        self.outermost = True
        self.fuel = 0

    def of(self, t: str, depth: int = 3) -> str:
        """An expression of type ``t``."""
        self.fuel -= 1
        if depth <= 0 or self.fuel <= 0 or not self.c.chance(85):
            return self.leaf(t)
        makers: list[Callable[[str, int], str]] = [self.arithmetic, self.arithmetic, self.conversion, self.choice, self.call]
        if t == "u1":
            makers = [self.condition, self.condition, self.condition, self.logic, self.conversion, self.choice, self.call]
        elif t in typed.INTEGERS:
            makers += [self.bitwise, self.shift, self.unary, self.special]
        else:
            makers += [self.unary, self.rounding, self.division]
        return self.c.pick(makers)(t, depth - 1)

    def leaf(self, t: str) -> str:
        found = [v for v in self.vars if v.type == t and v.kind != "shared"]
        if found and self.c.chance(70):
            v = found[-1 - min(self.c.number(0, len(found) - 1), len(found) - 1)]
            return f"{v.name}[{self.position(v.length)}]" if v.length else v.name
        arrays = [a for a in self.arrays if a.type == t and (a.use == "read" or (a.use == "own" and self.index))]
        if arrays and self.c.chance(70):
            return self.load(self.c.pick(arrays))
        return self.constant(t)

    def load(self, a: Array) -> str:
        here = self.index and a.shape[0] == self.n
        first = self.index if a.use == "own" or (here and self.c.chance(50)) else self.position(a.shape[0])
        return f"{a.name}[{', '.join([first, *[str(self.c.number(0, extent - 1)) for extent in a.shape[1:]]])}]"

    def position(self, length: int) -> str:
        """An index of a vector or array of ``length``."""
        if self.c.chance(40) or not self.integers:
            return str(self.c.number(0, length - 1))
        inner = self.leaf(self.c.pick(self.integers)) if self.c.chance(70) else self.of(self.c.pick(self.integers), 1)
        return f"{inner} % {length}"

    def constant(self, t: str) -> str:
        if t == "u1":
            return self.c.pick(["sg.u1(False)", "sg.u1(True)"])
        if t in typed.FLOATS:
            return f"sg.{t}({self.c.pick(FLOAT_LITERALS)})"
        low, high = typed.limits(t)
        return f"sg.{t}({self.c.pick([0, 1, 2, 3, 7, high, low, high // 3, high - 1, low // 2 + 1, typed.bits(t)])})"

    def literal(self, t: str) -> str | None:
        """A plain literal that leaves the type of an operation with ``t`` alone."""
        if t in ("f32", "f64"):
            return self.c.pick(FLOAT_LITERALS if self.c.chance(70) else INTEGER_LITERALS)
        return self.c.pick(INTEGER_LITERALS) if t in ("i32", "u32", "i64", "u64", "f16") else None

    def partner(self, t: str, depth: int) -> str:
        """An operand that ``t`` wins over in promotion, or equals."""
        if self.c.chance(20):
            text = self.literal(t)
            if text is not None:
                return text
        weaker = [s for s in self.types if typed.promoted(s, t) == t]
        return self.of(self.c.pick([t, *weaker]), depth)

    def pair(self, t: str, depth: int) -> tuple[str, str]:
        a, b = self.of(t, depth), self.partner(t, depth)
        return (a, b) if self.c.chance(60) else (b, a)

    def any(self, depth: int) -> str:
        return self.of(self.c.pick(self.types), depth)

    def integer(self, depth: int) -> str:
        return self.of(self.c.pick(self.integers), depth)

    # --- makers ----------------------------------------------------------------------------------------------------------

    def arithmetic(self, t: str, depth: int) -> str:
        a, b = self.pair(t, depth)
        if t == "i32" and "u1" in self.types and self.c.chance(10):
            a, b = self.of("u1", depth), self.of("u1", depth)
            return f"({a} {self.c.pick(['+', '-', '*'])} {b})"
        if t in typed.FLOATS and self.c.chance(20):
            return self.extremum(t, depth)
        if t in typed.INTEGERS and self.c.chance(15):
            return f"{self.c.pick(['sg.raw_div', 'sg.raw_mod', 'min', 'max', 'sg.min', 'sg.max'])}({a}, {b})"
        symbols = ["+", "-", "*", "//", "%"] if t in typed.INTEGERS else ["+", "-", "*"]
        return f"({a} {self.c.pick(symbols)} {b})"

    def extremum(self, t: str, depth: int) -> str:
        """Not of two zeros: which one they give is not said."""
        name = self.c.pick(["min", "max", "sg.min", "sg.max"])
        if self.c.chance(50):
            return f"{name}({self.of(t, depth)}, {self.c.pick(['1.0', '-2.5', '0.1', '100'])})"
        return f"{name}(abs({self.of(t, depth)}), abs({self.of(t, depth)}))"

    def division(self, t: str, depth: int) -> str:
        if t == "f32" and self.integers and self.c.chance(25):
            return f"({self.integer(depth)} / {self.integer(depth)})"
        if self.c.chance(15):
            return f"sg.sqrt({self.of(t, depth)})"
        a, b = self.pair(t, depth)
        return f"({a} {self.c.pick(['/', '/', '//', '%'])} {b})"

    def bitwise(self, t: str, depth: int) -> str:
        weaker = [s for s in self.types if s not in typed.FLOATS and typed.promoted(s, t) == t]
        literal = self.c.pick(INTEGER_LITERALS) if t in ("i32", "u32", "i64", "u64") and self.c.chance(25) else None
        b = literal if literal is not None else self.of(self.c.pick([t, *weaker]), depth)
        return f"({self.of(t, depth)} {self.c.pick(['&', '|', '^'])} {b})"

    def shift(self, t: str, depth: int) -> str:
        if self.c.chance(10):
            return f"sg.bit_shr({self.of(t, depth)}, {self.integer(depth)})"
        count = self.c.pick(["1", "0", "3", "31", "33", "64"]) if self.c.chance(40) else self.integer(depth)
        return f"({self.of(t, depth)} {self.c.pick(['<<', '>>'])} {count})"

    def unary(self, t: str, depth: int) -> str:
        x = self.of(t, depth)
        if t in typed.INTEGERS:
            return self.c.pick(["(-{})", "(~{})", "abs({})", "(+{})", "sg.abs({})"]).format(x)
        return self.c.pick(["(-{})", "abs({})", "(+{})"]).format(x)

    def special(self, t: str, depth: int) -> str:
        if t == "i32" and self.c.chance(50):
            return f"sg.{self.c.pick(['popcnt', 'clz'])}({self.integer(depth)})"
        if t in ("i32", "i64", "u32") and self.c.chance(40):
            return f"({self.of(t, depth)} ** {self.c.pick(['2', '0', '1', '3', '5'])})"
        same = [s for s in self.types if s != "u1" and typed.bits(s) == typed.bits(t)]
        s = self.c.pick(same)
        x = self.of(s, depth)
        if s in typed.FLOATS:  # the bits of a NaN are not said
            return f"sg.bit_cast(sg.select(sg.isnan({x}), sg.{s}(0.5), {x}), sg.{t})"
        return f"sg.bit_cast({x}, sg.{t})"

    def rounding(self, t: str, depth: int) -> str:
        if self.c.chance(20):
            same = [s for s in self.integers if typed.bits(s) == typed.bits(t)]
            if same:
                return f"sg.bit_cast({self.of(self.c.pick(same), depth)}, sg.{t})"
        return f"sg.{self.c.pick(['floor', 'ceil', 'round', 'trunc'])}({self.of(t, depth)})"

    def conversion(self, t: str, depth: int) -> str:
        x = self.any(depth)
        if t == "f32" and self.c.chance(10):
            return f"float({x})"
        if t == "i32" and self.c.chance(10):
            return f"int({x})"
        if t in typed.INTEGERS and self.floats and self.c.chance(15):
            return f"sg.{self.c.pick(['floor', 'ceil', 'round'])}({self.of(self.c.pick(self.floats), depth)}, sg.{t})"
        return f"sg.{t}({x})" if self.c.chance(60) else f"sg.cast({x}, sg.{t})"

    def choice(self, t: str, depth: int) -> str:
        a, b = self.of(t, depth), self.of(t, depth) if t == "u1" else self.partner(t, depth)
        if self.c.chance(50):
            a, b = b, a
        if self.c.chance(50):
            return f"sg.select({self.test(depth)}, {a}, {b})"
        return f"({a} if {self.test(depth)} else {b})"

    def call(self, t: str, depth: int) -> str:
        found = [f for f in self.callable(stores=False) if f.result == t]
        return self.call_of(self.c.pick(found), depth) if found else self.leaf(t)

    def callable(self, stores: bool) -> list[Function]:
        """What may be called here, with memory for its parameters. Calls that store are statements, so that their order is clear."""
        found = [f for f in self.functions if f.stores == stores and not (f.loops and self.outermost)]
        return [f for f in found if all(self.fitting(f, wanted) for wanted in f.memory)]

    def fitting(self, f: Function, wanted: Array) -> list[str]:
        """The arrays for a template parameter of ``f``."""
        same = [a for a in self.arrays if (a.type, a.shape) == (wanted.type, wanted.shape)]
        if wanted.use == "read":
            return [a.name for a in same if a.use == "read"]
        if not self.index:  # serial code does anything
            return [a.name for a in same if a.name[0] == wanted.name[0]]
        if wanted.use == "own":
            return [a.name for a in same if a.use == "own"]
        return [a.name for a in same if self.updates.get(a.name) == f.updates[wanted.name]]

    def call_of(self, f: Function, depth: int) -> str:
        memory = [self.c.pick(self.fitting(f, wanted)) for wanted in f.memory]
        index = [self.index or self.position(self.n)] if memory else []
        return f"{f.name}({', '.join([*index, *memory, *(self.of(p, depth - 1) for p in f.parameters)])})"

    # --- truth -----------------------------------------------------------------------------------------------------------

    def condition(self, t: str, depth: int) -> str:
        """A comparison, or a chain of them."""
        symbols = ["==", "!=", "<", "<=", ">", ">="]
        kind = self.c.pick(self.types)
        if kind in typed.FLOATS and self.c.chance(15):
            return f"sg.{self.c.pick(['isnan', 'isinf'])}({self.of(kind, depth)})"
        parts = [self.of(kind, depth), self.c.pick(symbols), self.partner(kind, depth) if kind != "u1" else self.any(depth)]
        if self.c.chance(20):
            parts += [self.c.pick(symbols), self.any(depth)]
        return f"({' '.join(parts)})"

    def logic(self, t: str, depth: int) -> str:
        if self.c.chance(30):
            return f"(not {self.test(depth)})"
        if self.c.chance(25):
            return f"({self.of('u1', depth)} {self.c.pick(['&', '|', '^'])} {self.of('u1', depth)})"
        if self.c.chance(10):
            return f"(~{self.of('u1', depth)})"
        word = self.c.pick(["and", "or"])
        if self.c.chance(50):
            return f"({self.of('u1', depth)} {word} {self.of('u1', depth)})"
        return f"bool({self.test(depth)} {word} {self.test(depth)})"

    def test(self, depth: int) -> str:
        """Anything that serves as a condition."""
        if self.c.chance(20):
            return self.any(depth)
        return self.condition("u1", depth - 1) if self.c.chance(60) else self.of("u1", depth)

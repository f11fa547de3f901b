"""Random programs: functions, which may access memory, and a kernel with parallel loops, whose result no order of iterations can change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import typed
from .expressions import ALL_TYPES, Array, Choices, Expressions, Function, Variable

WIDTH = 6  # results per iteration and type
# Updates that commute, as statements on an element or a shared variable.
REDUCTIONS = (
    ("{} += {}", "{} -= {}", "sg.atomic_add({}, {})", "sg.atomic_sub({}, {})"),
    ("{} &= {}", "sg.atomic_and({}, {})"),
    ("{} |= {}", "sg.atomic_or({}, {})"),
    ("{} ^= {}", "sg.atomic_xor({}, {})"),
    ("sg.atomic_min({}, {})",),
    ("sg.atomic_max({}, {})",),
    ("{} *= {}", "sg.atomic_mul({}, {})"),
)
IN_PLACE = ("+=", "-=", "*=", "//=", "%=", "&=", "|=", "^=", "<<=", ">>=")


@dataclass
class Program:
    """``scalars``: name, type and value of each; ``arrays`` as they are before, made from ``seed``."""

    source: str
    arrays: list[Array]
    scalars: list[tuple[str, str, Any]]
    seed: int
    whole: bool  # integers only, so that fast math must not matter

    def data(self) -> dict[str, Any]:
        rng = np.random.default_rng(self.seed)
        return {a.name: samples(rng, a.type, a.shape) for a in self.arrays}

    def __repr__(self) -> str:
        places = ", ".join(f"{a.name}: {a.place} {a.type}{list(a.shape)}" for a in self.arrays)
        return f"\n{self.source}\n# {places}\n# scalars {self.scalars}, seed {self.seed}\n"


def edges(t: str) -> list[Any]:
    if t == "u1":
        return [False, True]
    if t in typed.INTEGERS:
        low, high = typed.limits(t)
        return [0, 1, 2, 3, 5, 7, high, low, high - 1, low + 1, high // 2, low // 3, *([-1, -2, -7] if low else [])]
    tiny, small, big = {"f16": (6e-8, 6.2e-5, 65504.0), "f32": (1e-45, 1.2e-38, 3.4e38), "f64": (5e-324, 2.3e-308, 1.7e308)}[t]
    special = [0.0, -0.0, np.nan, np.inf, -np.inf, tiny, -small, small / 3, big]
    return [*special, 1.0, -1.0, 0.1, -2.5, 3.0, 1e3, 2.0**24 + 2, -(2.0**31), 2.0**32, 2.0**63, 0.5, 1.5]


def samples(rng: Any, t: str, shape: tuple[int, ...]) -> Any:
    """Edges of the type, small numbers, and anything."""
    count = int(np.prod(shape))
    out = []
    for _ in range(count):
        kind = rng.integers(0, 3)
        if t == "u1" or kind == 0:
            out.append(rng.choice(len(edges(t))))
            out[-1] = edges(t)[out[-1]]
        elif kind == 1:
            out.append(typed.cast(int(rng.integers(-20, 21)), t))
        elif t in typed.FLOATS:
            out.append(rng.normal() * 10.0 ** rng.integers(-3, 6))
        else:
            out.append(rng.integers(*typed.limits(t), dtype=typed.NUMPY[t], endpoint=True))
    with np.errstate(all="ignore"):
        return np.array(out).astype(typed.NUMPY[t]).reshape(shape) if t in typed.FLOATS else np.array(out, typed.NUMPY[t]).reshape(shape)


@dataclass
class Loop:
    """The innermost serial loop; ``jumps`` whether `break` and `continue` are allowed here."""

    jumps: bool = False


@dataclass
class Writer(Expressions):
    """Writes statements, with indentation and scopes."""

    c: Choices
    n: int
    types: tuple[str, ...]
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.c, self.n, self.types)
        self.indent = 0
        self.names = 0
        self.loop = Loop()
        self.budget = 0
        self.returns = ""  # the type that `return` gives in the function being written
        self.places: list[str] = []  # arguments that are indices behind a guard: most of their values are out of range

    def fresh(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    @contextmanager
    def scope(self, header: str, loop: Loop | None = None) -> Iterator[None]:
        """A block under ``header``; its variables end with it."""
        self.line(header)
        visible, around, outermost = len(self.vars), self.loop, self.outermost
        self.indent += 1
        self.outermost = False
        if loop is not None:
            self.loop = loop
        yield
        self.indent -= 1
        del self.vars[visible:]
        self.loop, self.outermost = around, outermost

    def text(self, t: str, depth: int = 3) -> str:
        self.fuel = 14
        return self.of(t, depth)

    def any_type(self) -> str:
        return self.c.pick(self.types)

    # --- statements ------------------------------------------------------------------------------------------------------

    def statements(self, count: int, depth: int) -> None:
        for _ in range(count):
            if self.budget <= 0:
                break
            self.budget -= 1
            makers = [self.declare, self.declare, self.assign, self.assign, self.update, self.vector, self.element]
            if depth > 0:
                makers += [self.branch, self.branch, self.counted, self.repeat, self.unrolled]
            if self.updates:
                makers += [self.reduce, self.reduce]
            if self.callable(stores=True):
                makers += [self.called] * 4
            if self.loop.jumps:
                makers.append(self.jump)
            if self.returns:
                makers.append(self.early)
            self.c.pick(makers)(depth)
        if not self.lines[-1].startswith("    " * self.indent) or self.lines[-1].endswith(":"):
            self.line("pass")

    def declare(self, depth: int) -> None:
        t, name = self.any_type(), self.fresh("v")
        if self.c.chance(15):
            self.line(f"{name}: sg.{t} = {self.text(self.any_type())}")
        elif self.c.chance(15) and t in ("i32", "f32"):
            self.line(f"{name} = {self.literal(t) if t == 'i32' else '0.5'}")
        else:
            self.line(f"{name} = {self.text(t)}")
        self.vars.append(Variable(name, t))

    def locals(self, vectors: bool = False) -> list[Variable]:
        return [v for v in self.vars if v.kind == "local" and bool(v.length) == vectors]

    def assign(self, depth: int) -> None:
        found = self.locals()
        if not found:
            return self.declare(depth)
        if len(found) > 1 and self.c.chance(10):
            a, b = self.c.pick(found), self.c.pick(found)
            if a is not b:
                return self.line(f"{a.name}, {b.name} = {self.text(self.any_type(), 2)}, {self.text(self.any_type(), 2)}")
        v = self.c.pick(found)
        t = v.type if self.c.chance(70) else self.any_type()
        return self.line(f"{v.name} = {self.text(t)}")

    def update(self, depth: int) -> None:
        found = [v for v in self.locals() if v.type in typed.INTEGERS]
        real = [v for v in self.locals() if v.type in typed.FLOATS]
        if real and self.c.chance(40):
            v = self.c.pick(real)
            return self.line(f"{v.name} {self.c.pick(IN_PLACE[:3])} {self.text(self.any_type(), 2)}")
        if not found:
            return self.declare(depth)
        return self.line(f"{self.c.pick(found).name} {self.c.pick(IN_PLACE)} {self.text(self.c.pick(self.integers), 2)}")

    def vector(self, depth: int) -> None:
        found = self.locals(vectors=True)
        if not found or self.c.chance(40):
            t, n, name = self.any_type(), self.c.pick([2, 3, 4, 7]), self.fresh("w")
            entries = [self.text(t, 1)] + [self.text(t, 1) if t == "u1" else self.leaf(t) for _ in range(n - 1)]
            self.line(f"{name} = sg.Vector([{', '.join(entries)}])")
            self.vars.append(Variable(name, t, "local", n))
            return
        v = self.c.pick(found)
        kind = self.c.number(0, 3)
        if kind == 0 and v.type in typed.INTEGERS:
            name = self.fresh("v")
            self.line(f"{name} = {v.name}.{self.c.pick(['sum', 'min', 'max'])}()")
            self.vars.append(Variable(name, v.type))
        elif kind == 1 and v.type != "u1":
            other = self.c.pick([w.name for w in found if w.length == v.length and w.type == v.type] + [self.leaf(v.type)])
            self.line(f"{v.name} = {v.name} {self.c.pick(['+', '-', '*'])} {other}")
        else:
            symbol = self.c.pick(["=", "=", "=", "+=", "*="]) if v.type != "u1" else "="
            self.line(f"{v.name}[{self.position(v.length)}] {symbol} {self.text(v.type if symbol != '=' else self.any_type(), 2)}")

    def element(self, depth: int) -> None:
        """A store to an element that is this iteration's, or of the serial code."""
        found = [a for a in self.arrays if (a.use == "own" and self.index) or (not self.index and a.use != "none" and a.name[0] in "pm")]
        if not found:
            return self.declare(depth)
        a = self.c.pick(found)
        first = self.index or self.position(a.shape[0])
        target = f"{a.name}[{', '.join([first, *[str(self.c.number(0, extent - 1)) for extent in a.shape[1:]]])}]"
        if a.type in typed.INTEGERS and self.c.chance(40):
            t = self.any_type()
            symbol = self.c.pick(IN_PLACE if t in typed.INTEGERS else IN_PLACE[:3])
            return self.line(f"{target} {symbol} {self.text(t, 2)}")
        if a.type in typed.INTEGERS and self.c.chance(20):
            name = self.fresh("v")
            kind = self.c.pick(["add", "sub", "mul", "min", "max", "and", "or", "xor", "exchange"])
            self.line(f"{name} = sg.atomic_{kind}({target}, {self.text(a.type, 2)})")
            self.vars.append(Variable(name, a.type))
            return None
        if a.type in typed.FLOATS and self.c.chance(20):
            return self.line(f"{target} {self.c.pick(IN_PLACE[:3])} {self.text(a.type, 2)}")
        return self.line(f"{target} = {self.text(a.type if self.c.chance(60) else self.any_type())}")

    def reduce(self, depth: int) -> None:
        name = self.c.pick(list(self.updates))
        if name[0] == "m" and self.places and self.c.chance(30):
            place = self.c.pick(self.places)
            value = self.text(self.c.pick(self.integers), 2)
            self.line(f"if {place} >= 0 and {place} < 4:")
            self.line(f"    {self.c.pick(self.updates[name]).format(f'{name}[{place}]', value)}")
            return
        target = f"{name}[{self.position(4)}]" if name[0] == "m" else name
        t = self.c.pick(self.integers) if name[0] == "m" else next(v.type for v in self.vars if v.name == name)
        real = name[0] == "m" and self.updates[name] in (REDUCTIONS[0], *REDUCTIONS[4:])  # bits of a float are no operand
        value = self.text(self.any_type() if real and self.c.chance(30) else t, 2)
        self.line(self.c.pick(self.updates[name]).format(target, value))

    def called(self, depth: int) -> None:
        f, name = self.c.pick(self.callable(stores=True)), self.fresh("v")
        self.fuel = 14
        self.line(f"{name} = {self.call_of(f, 2)}")
        self.vars.append(Variable(name, f.result))

    def branch(self, depth: int) -> None:
        arms = self.c.pick([1, 2, 2, 3])
        new = [(self.fresh("v"), self.any_type(), self.any_type())] if arms == 2 and self.c.chance(40) else []
        with self.scope(f"if {self.text_of_test()}:"):
            self.arm(depth, [(name, t) for name, t, _ in new])
        if arms == 3:
            with self.scope(f"elif {self.text_of_test()}:"):
                self.statements(self.c.number(1, 3), depth - 1)
        if arms >= 2:
            with self.scope("else:"):
                self.arm(depth, [(name, t) for name, _, t in new])
        for name, s, t in new:
            self.vars.append(Variable(name, s if s == t else typed.promoted(s, t)))

    def arm(self, depth: int, new: list[tuple[str, str]]) -> None:
        """A branch; one that introduces variables does not jump."""
        kept = self.loop, self.returns
        if new:
            self.loop, self.returns = Loop(), ""
        for name, t in new:
            self.line(f"{name} = {self.text(t)}")
        self.statements(self.c.number(0 if new else 1, 3), depth - 1)
        self.loop, self.returns = kept

    def text_of_test(self) -> str:
        self.fuel = 10
        return self.test(2)

    def counted(self, depth: int) -> None:
        """A serial loop over a range; at the outermost level it says that it is serial."""
        t = self.c.pick(self.integers)
        bound = f"{self.text(t, 2)} % 4"
        wide = t in ("u32", "i64", "u64")
        forms = [bound, "3", f"1, {bound}", f"-2, {bound}, 2", "3, -1, -1", f"{bound}, -3, -2"]
        bounds = self.c.pick(forms)
        if self.outermost:
            self.line("sg.loop_config(serialize=True)")
        name = self.fresh("j")
        with self.scope(f"for {name} in range({bounds}):", Loop(self.c.chance(60))):
            self.vars.append(Variable(name, "i64" if wide and "%" in bounds else "i32", "fixed"))
            self.statements(self.c.number(1, 4), depth - 1)

    def repeat(self, depth: int) -> None:
        """A while loop that a counter ends."""
        t, name = self.c.pick(self.integers), self.fresh("n")
        self.line(f"{name} = {self.text(t, 2)} % sg.{t}(5)")
        self.vars.append(Variable(name, t, "fixed"))
        endless = self.c.chance(25)
        more = f" {self.c.pick(['and', 'and', 'or'])} {self.text_of_test()}" if self.c.chance(40) else ""
        if " or " in more:
            more = ""
        with self.scope("while True:" if endless else f"while {name} > 0{more}:", Loop(self.c.chance(70))):
            if endless:
                self.line(f"if {name} <= 0:")
                self.line("    break")
            self.line(f"{name} -= 1")
            self.statements(self.c.number(1, 4), depth - 1)

    def unrolled(self, depth: int) -> None:
        if "i32" not in self.types:
            return self.counted(depth)
        name, inner = self.fresh("q"), self.fresh("v")
        outermost = self.outermost
        with self.scope(f"for {name} in sg.static(range({self.c.pick([2, 3])})):", Loop()):
            returns, self.returns = self.returns, ""
            self.outermost = outermost
            self.line(f"{inner} = sg.i32({name}) + {self.text('i32', 2)}")
            self.vars.append(Variable(inner, "i32"))
            self.statements(self.c.number(1, 2), 0)
            self.returns = returns
        return None

    def jump(self, depth: int) -> None:
        if self.c.chance(80):
            self.line(f"if {self.text_of_test()}:")
            self.line(f"    {self.c.pick(['break', 'continue'])}")
        else:
            self.line(self.c.pick(["break", "continue"]))

    def early(self, depth: int) -> None:
        with self.scope(f"if {self.text_of_test()}:"):
            self.line(f"return {self.text(self.returns)}")

    # --- functions and kernel --------------------------------------------------------------------------------------------

    def function(self, arrays: list[Array]) -> None:
        """A function that is inlined, or one that is called. ``arrays``: of the program."""
        name, result = self.fresh("f"), self.any_type()
        parameters = [(self.fresh("x"), self.any_type(), self.c.chance(40)) for _ in range(self.c.number(1, 3))]
        annotated = self.c.chance(40)
        memory = self.memory(arrays) if self.c.chance(60) else []
        index = self.fresh("i") if memory else ""
        signature = [f"{index}: sg.i32"] if index else []
        signature += [f"{a.name}: sg.template()" for a in memory]
        signature += [f"{p}: sg.{t}" if given else p for p, t, given in parameters]
        self.line(self.c.pick(["@sg.func", "@sg.real_func"]))
        start = len(self.lines)
        with self.scope(f"def {name}({', '.join(signature)}){f' -> sg.{result}' if annotated else ''}:"):
            self.vars = [Variable(p, t) for p, t, _ in parameters] + ([Variable(index, "i32", "fixed")] if index else [])
            self.updates = {a.name: self.c.pick(REDUCTIONS) for a in memory if a.use == "none"}
            self.arrays = memory + ([a for a in arrays if a.name[0] == "a" and a.place != "arg"] if memory else [])
            self.index, self.budget, self.returns = index, 7, result
            self.statements(self.c.number(0, 5), 2)
            if self.updates:
                self.reduce(1)
            if any(a.use == "own" for a in memory):
                self.element(1)
            self.returns = ""
            self.line(f"return {self.text(result)}")
        body = self.lines[start:]
        loops = any("for " in line and "static" not in line for line in body)
        loops |= any(f.loops and f.name + "(" in line for f in self.functions for line in body)
        self.functions.append(Function(name, [t for _, t, _ in parameters], result, loops, memory, self.updates))
        self.vars, self.arrays, self.updates, self.index = [], [], {}, ""

    def memory(self, arrays: list[Array]) -> list[Array]:
        """Template parameters for arrays of the program: to read, for elements of one iteration, and to be updated by all."""
        use = {"a": "read", "p": "own", "m": "none"}
        found = [a for a in arrays if a.name[0] in use]
        chosen = [self.c.pick(found) for _ in range(self.c.number(1, 3))]
        return [Array(self.fresh({"a": "g"}.get(a.name[0], a.name[0])), a.type, a.shape, "template", use[a.name[0]]) for a in chosen]

    def parallel(self, number: int) -> None:
        """A parallel loop. Its iterations store to elements of their own, and update others in ways that commute."""
        own = [a for a in self.arrays if a.name.startswith(f"p{number}")]
        meet = [a for a in self.arrays if a.name.startswith("m")]
        shared = [v for v in self.vars if v.kind == "local" and not v.length and v.type in self.integers and self.c.chance(40)][:2]
        for a in self.arrays:
            a.use = "own" if a in own else "read"
        ways = [*REDUCTIONS, *4 * [way for f in self.functions for way in f.updates.values()]]  # such that functions can be called
        self.updates = {x.name: self.c.pick(ways) for x in [*shared, *(a for a in meet if self.c.chance(50))]}
        for a in meet:
            a.use = "none" if a.name in self.updates else "read"
        kept = [(v, v.kind) for v in self.vars]
        for v in self.vars:
            v.kind = "shared" if v.name in self.updates else "fixed"
        self.index = self.fresh("i")
        whole = [a.name for a in self.arrays if a.shape == (self.n,)]
        spaces = [f"range({self.n})", f"range(1, {self.n})", f"range(0, {self.n}, 2)", *(f"range({a}.shape[0])" for a in whole), *whole]
        if self.c.chance(20):
            self.line(f"sg.loop_config(block_dim={self.c.pick([32, 64])})")
        with self.scope(f"for {self.index} in {self.c.pick(spaces)}:"):
            self.loop = Loop(False)
            self.vars.append(Variable(self.index, "i32", "fixed"))
            self.budget = 16
            self.statements(self.c.number(2, 9), 3)
            self.results(own)
        self.index, self.updates = "", {}
        for v, kind in kept:
            v.kind = kind
        for a in self.arrays:
            a.use = "read"

    def results(self, own: list[Array]) -> None:
        """Store the variables of the loop."""
        for a in own:
            found = [v for v in self.vars if v.type == a.type and v.kind != "shared" and v.name != self.index][-WIDTH:]
            for k, v in enumerate(found):
                self.line(f"{a.name}[{self.index}, {k}] = {f'{v.name}[{v.length - 1}]' if v.length else v.name}")

    def kernel(self, arrays: list[Array], scalars: list[tuple[str, str, Any]], loops: int) -> None:
        result = self.any_type() if self.c.chance(60) else ""
        parameters = [f"{a.name}: sg.types.ndarray(sg.{a.type}, {len(a.shape)})" for a in arrays if a.place == "arg"]
        parameters += [f"{name}: sg.{t}" for name, t, _ in scalars]
        self.arrays = arrays
        self.line("@sg.kernel")
        with self.scope(f"def k({', '.join(parameters)}){f' -> sg.{result}' if result else ''}:"):
            self.outermost = True
            self.vars = [Variable(name, t, "fixed") for name, t, _ in scalars]
            self.places = [name for name, t, _ in scalars if t in ("i8", "i16", "i32", "i64")]
            for number in range(loops):
                self.serial(3)
                self.parallel(number)
            self.serial(2)
            final = [a for a in arrays if a.name.startswith("z")]
            for a in final:
                for k, v in enumerate([v for v in self.vars if v.type == a.type and not v.length][-8:]):
                    self.line(f"{a.name}[{k}] = {v.name}")
            if result:
                self.line(f"return {self.text(result, 2)}")
            elif not final:
                self.line("pass")

    def serial(self, most: int) -> None:
        self.budget = 2 * most
        self.loop = Loop(False)
        self.statements(self.c.number(0, most), 2)


def write(c: Choices) -> Program:
    whole = c.chance(35)
    pool = [t for t in ALL_TYPES if not (whole and t in typed.FLOATS)]
    types = tuple(dict.fromkeys(["i32", *[c.pick(pool) for _ in range(c.number(1, 5))]]))
    n = c.pick([1, 5, 9, 17])
    w = Writer(c, n, types)
    loops = c.pick([1, 1, 2])
    places = lambda: c.pick(["arg", "arg", "field", "ndarray"])  # noqa: E731
    arrays = [Array(f"a{k}", c.pick(types), (n,), places()) for k in range(c.number(1, 3))]
    arrays += [Array(f"p{k}_{t}", t, (n, WIDTH), places()) for k in range(loops) for t in types]
    arrays += [Array(f"m_{t}", t, (4,), places()) for t in types if t in typed.INTEGERS and c.chance(60)]
    arrays += [Array(f"z_{t}", t, (8,), places()) for t in types]
    for _ in range(c.number(0, 2)):
        w.function(arrays)
    scalars = []
    for k in range(c.number(0, 2)):
        t = c.pick(types)
        scalars.append((f"s{k}", t, typed.cast(c.pick(edges(t)), t)))
    w.kernel(arrays, scalars, loops)
    return Program("\n".join(w.lines) + "\n", arrays, scalars, c.number(0, 999), whole)

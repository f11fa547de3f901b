"""Random differentiable kernels, as source: loops, branches, jumps, carried scalars, vectors, matrices and integers, memory in place.

All is f64 and bounded: what is assigned in loops goes through `tanh` or `sin` at times, so that finite differences mean something.
Parallel loops write elements of their own (``y``) or add (``z``), so that the order of iterations does not matter; serial code does
anything to memory. Functions, inlined or called, may read what parallel loops only read (``t`` is their template parameter), and add to
``z``.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

N = 5
# Memory of floats: shape of elements. All of it has gradients; `q` is an array argument, the others are fields.
MEMORY: dict[str, tuple[int, ...]] = {"x": (), "w": (), "y": (), "z": (), "q": (), "u": (2,)}
UNARY = (
    "sg.sin({})",
    "sg.cos({})",
    "sg.tanh({})",
    "sg.exp(-({0}) * ({0}))",
    "sg.sqrt(1.0 + ({0}) * ({0}))",
    "sg.log(1.5 + ({0}) * ({0}))",
    "sg.abs({})",
    "sg.rsqrt(1.0 + ({0}) ** 2)",
    "(1.0 + ({0}) * ({0})) ** 0.7",
    "sg.stop_grad(2.0) * ({})",
    "-({})",
)
BINARY = (
    "({} + {})",
    "({} - {})",
    "({} * {})",
    "({0} / (1.0 + {1} * {1}))",
    "sg.max({}, {})",
    "sg.min({}, {})",
    "sg.atan2({0}, 2.0 + {1} * {1})",
    "({} * {})",
)
SQUASH = ("sg.tanh({})", "sg.sin({})", "({}) * 0.3")


@dataclass(frozen=True)
class Program:
    """``arrays`` and ``scalars`` are empty: what `shrink` asks for."""

    source: str
    seed: int
    arrays: tuple[Any, ...] = ()
    scalars: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return f"\n{self.source}# seed {self.seed}\n"


@dataclass
class Writer:
    """Writes the source. ``vars``: kind ("f", "v", "m", "k", "c") and name of what is in scope."""

    r: random.Random
    lines: list[str] = field(default_factory=list)
    vars: list[tuple[str, str]] = field(default_factory=list)
    indices: list[str] = field(default_factory=list)  # in 0 .. N - 1
    functions: list[str] = field(default_factory=list)
    indent: int = 0
    loops: int = 0  # serial loops around
    parallel: bool = False  # in a parallel loop over `i`
    jumps: bool = False
    memory: bool = True
    inside: bool = False  # of a function
    numbers: int = 0
    budget: int = 0

    # --- expressions ---------------------------------------------------------------------------------------------------

    def pick(self, kind: str) -> str | None:
        found = [name for k, name in self.vars if k == kind]
        return self.r.choice(found) if found else None

    def index(self) -> str:
        choice = self.r.randrange(8)
        if choice < 4 and self.indices:
            return self.r.choice(self.indices)
        if choice == 4 and self.memory:
            return f"idx[{self.index()}]"
        if choice == 5 and self.pick("k"):
            return f"({self.pick('k')} % {N})"
        if choice == 6 and self.indices:
            return f"(({self.r.choice(self.indices)} + {self.r.randrange(1, N)}) % {N})"
        return str(self.r.randrange(N))

    def integer(self, depth: int = 1) -> str:
        """Small, not negative."""
        choice = self.r.randrange(7)
        if depth and choice == 0:
            return f"(({self.integer(0)} * {self.r.randrange(1, 5)} + {self.r.randrange(4)}) % {self.r.randrange(3, 8)})"
        if choice == 1:
            return "n"
        if choice == 2:
            return f"(sg.cast(sg.abs({self.float(1)}) * 3.0, sg.i32) % 5)"
        if choice == 3 and self.pick("k"):
            return f"({self.pick('k')} % 4)"
        return self.index()

    def read(self) -> str:
        names = ["x", "w", "u", "t"] if self.inside else ["x", "w", "q", "u", "y"] + ["z"] * (not self.parallel)
        name = self.r.choice(names)
        if name == "y":
            return f"y[{'i' if self.parallel else self.index()}]"
        return f"u[{self.index()}][{self.r.randrange(2)}]" if name == "u" else f"{name}[{self.index()}]"

    def leaf(self) -> str:
        choice = self.r.randrange(9)
        if choice < 4 and self.pick("f"):
            return str(self.pick("f"))
        if choice == 4 and self.pick("v"):
            return f"{self.pick('v')}[{self.r.choice(['0', '1', f'{self.index()} % 2'])}]"
        if choice == 5 and self.pick("m"):
            return f"{self.pick('m')}[{self.index()} % 2, {self.r.randrange(2)}]"
        if choice in (6, 7) and self.memory:
            return self.read()
        return f"{self.r.uniform(-1.5, 1.5):.3f}" if choice < 8 else f"sg.f64({self.integer(0)}) * 0.2"

    def float(self, depth: int) -> str:
        choice = self.r.randrange(12)
        if depth == 0 or choice < 2:
            return self.leaf()
        if choice < 5:
            return self.r.choice(UNARY).format(self.float(depth - 1))
        if choice < 9:
            return self.r.choice(BINARY).format(self.float(depth - 1), self.float(depth - 1))
        if choice == 9:
            form = self.r.choice(("({1} if {0} else {2})", "sg.select({0}, {1}, {2})"))
            return form.format(self.condition(), self.float(depth - 1), self.float(depth - 1))
        if choice == 10 and self.functions:
            values = f"{self.float(depth - 1)}, {self.float(0)}, {self.integer(0)}"
            return f"{self.r.choice(self.functions)}({values}, {self.r.choice('xwt' if self.inside else 'xwq')})"
        v, m = self.pick("v"), self.pick("m")
        if v and self.r.random() < 0.6:
            return self.r.choice(("{0}.dot({1})", "{0}.norm_sqr()", "{1}.norm(0.5)", "{0}.cross({1})")).format(v, self.vector(depth - 1))
        return self.r.choice(("{}.trace()", "{}.determinant()", "{}.sum()")).format(m) if m else self.leaf()

    def vector(self, depth: int) -> str:
        choice = self.r.randrange(7)
        v, m = self.pick("v"), self.pick("m")
        if choice == 0 and self.memory:
            return f"u[{self.index()}]"
        if choice < 3 and v:
            return v if depth == 0 else f"({v} {self.r.choice('+-*')} {self.vector(depth - 1)})"
        if choice == 3 and m and depth:
            return f"({m} @ {self.vector(depth - 1)})"
        if choice == 4 and v:
            return f"({v} * {self.float(0)})"
        return f"sg.Vector([{self.float(min(depth, 1))}, {self.float(0)}])"

    def matrix(self, depth: int) -> str:
        m = self.pick("m")
        if m and depth and self.r.random() < 0.6:
            return self.r.choice(("({0} @ {1})", "({0} + {1})", "({0}.transpose() @ {1})", "({0} * 0.5 - {1})")).format(
                m, self.matrix(depth - 1)
            )
        return f"sg.Matrix([[{self.float(0)}, {self.float(0)}], [{self.float(0)}, {self.float(0)}]])"

    def condition(self, depth: int = 1) -> str:
        choice = self.r.randrange(7)
        if depth and choice == 0:
            return f"({self.condition(0)} {self.r.choice(('and', 'or'))} {self.condition(0)})"
        if choice == 1 and self.pick("c"):
            return f"{self.r.choice(('', 'not '))}{self.pick('c')}"
        if choice < 4:
            return f"{self.integer(0)} {self.r.choice(('<', '>=', '=='))} {self.r.randrange(4)}"
        return f"{self.float(1)} {self.r.choice('<>')} {self.float(0)}"

    # --- statements ----------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def fresh(self, kind: str) -> str:
        self.numbers += 1
        return f"{kind}{self.numbers}"

    @contextmanager
    def scope(self, header: str, index: str | None = None, loop: bool = False) -> Iterator[None]:
        self.line(header)
        kept = (list(self.vars), list(self.indices), self.loops, self.jumps)
        self.indent += 1
        self.loops += loop
        self.jumps = self.jumps or loop
        if index is not None:
            self.indices.append(index)
        yield
        self.indent -= 1
        self.vars, self.indices, self.loops, self.jumps = kept

    def block(self, count: int) -> None:
        for _ in range(count):
            self.statement()
        if not self.lines[-1].strip() or self.lines[-1].endswith(":"):
            self.line("pass")

    def value(self, kind: str) -> str:
        if kind == "f":
            text = self.float(3)
            return self.r.choice(SQUASH).format(text) if self.loops and self.r.random() < 0.8 else text
        if kind == "v":
            return f"{'sg.tanh' if self.loops else ''}({self.vector(2)})"
        if kind == "m":
            return f"{'sg.sin' if self.loops else ''}({self.matrix(2)})"
        return self.integer() if kind == "k" else f"({self.condition()})"

    def assign(self) -> None:
        kind = self.r.choice("fffffvvmkkc")
        name = self.pick(kind)
        if name is None or self.r.random() < 0.25:
            name = self.fresh(kind)
            if kind == "c":
                self.line(f"{name} = {self.condition()}")
            else:
                self.line(f"{name} = {self.value(kind)}")
            self.vars.append((kind, name))
        elif kind == "v" and self.r.random() < 0.4:
            self.line(f"{name}[{self.index()} % 2] {self.r.choice(('=', '+='))} {self.value('f')}")
        elif kind == "m" and self.r.random() < 0.4:
            self.line(f"{name}[{self.index()} % 2, {self.index()} % 2] {self.r.choice(('=', '-='))} {self.value('f')}")
        elif kind == "f" and self.r.random() < 0.3:
            self.line(f"{name} {self.r.choice(('+=', '-=', '*='))} {self.value('f')}")
        else:
            self.line(f"{name} = {self.value(kind)}")

    def store(self) -> None:
        op = self.r.choice(("=", "+=", "-="))
        if self.inside:
            self.line(f"z[{self.index()}] {self.r.choice(('+=', '-='))} {self.value('f')}")
        elif self.parallel:
            if self.r.random() < 0.5:
                self.line(f"y[i] {op} {self.value('f')}")
            else:
                self.line(f"z[{self.index()}] {self.r.choice(('+=', '-='))} {self.value('f')}")
        elif self.r.random() < 0.15:
            self.line(f"u[{self.index()}] {op} {self.value('v')}")
        elif self.r.random() < 0.1:
            self.line(f"idx[{self.index()}] = {self.integer()} % {N}")
        else:
            self.line(f"{self.r.choice('xyzwq')}[{self.index()}] {op} {self.value('f')}")

    def loop(self) -> None:
        choice = self.r.randrange(5)
        if choice < 3:
            name = self.fresh("j")
            low = self.r.choice(("", "", "", "1, "))
            bound = self.r.choice((str(self.r.randrange(5)), "n", f"{self.integer()} % 4", f"int(sg.sqrt(sg.f64({self.integer(0)})))"))
            header = f"for {name} in range({low}{bound}):"
            if self.r.random() < 0.1:
                header = f"for {name} in sg.static(range({self.r.randrange(1, 3)})):"
            with self.scope(header, name, "static" not in header):
                if "static" in header:
                    self.jumps = False
                self.block(self.r.randrange(1, 4))
            return
        count = self.fresh("t")
        self.line(f"{count} = 0")
        limit = self.r.randrange(1, 5)
        with self.scope(f"while {self.condition()} and {count} < {limit}:" if choice == 3 else "while True:", None, True):
            self.line(f"{count} += 1")
            self.jumps = choice == 3  # a `continue` before the test would never end
            self.block(self.r.randrange(0, 3))
            self.jumps = True
            if choice == 4:
                with self.scope(f"if {count} > {limit} or {self.condition(0)}:"):
                    self.line("break")
                self.block(self.r.randrange(0, 2))

    def statement(self) -> None:
        self.budget -= 1
        choice = self.r.randrange(20)
        if choice < 9 or self.budget < 0:
            self.assign()
        elif choice < 12 and self.memory:
            self.store()
        elif choice < 15 and self.indent < 6 and self.loops < 3:
            self.loop()
        elif choice < 18 and self.indent < 6:
            with self.scope(f"if {self.condition()}:"):
                self.block(self.r.randrange(1, 3))
                if self.jumps and self.r.random() < 0.3:
                    self.line(self.r.choice(("break", "continue")))
            if self.r.random() < 0.5:
                with self.scope("else:"):
                    self.block(self.r.randrange(1, 3))
        else:
            self.assign()

    # --- the whole -----------------------------------------------------------------------------------------------------

    def function(self) -> None:
        name = self.fresh("g")
        self.lines.append(self.r.choice(("@sg.func", "@sg.real_func")))
        self.vars = [("f", "a"), ("f", "b"), ("k", "e")]
        self.memory, self.inside = self.r.random() < 0.6, True
        with self.scope(f"def {name}(a, b, e, t: sg.template()):"):
            self.budget = 3
            self.line("n = 2")
            self.block(self.r.randrange(1, 3))
            if self.r.random() < 0.6:
                with self.scope(f"if {self.condition()}:"):
                    self.line(f"return {self.float(2)}")
            if self.r.random() < 0.3:
                with self.scope("for j in range(3):", "j", True):
                    self.assign()
                    with self.scope(f"if {self.condition()}:"):
                        self.line(f"return {self.float(1)}")
            self.line(f"return {self.float(2)}")
        self.vars, self.memory, self.inside = [], True, False
        self.functions.append(name)

    def task(self) -> None:
        shared = [v for v in self.vars if v[0] == "f"]
        kind = self.r.randrange(10)
        if kind < 6:
            self.parallel = True
            with self.scope(f"for i in range({self.r.choice((str(N), str(N), 'n'))}):", "i"):
                self.line(f"f0 = {self.read()}")
                self.vars = [("f", "f0"), *shared]
                self.locals_only(shared)
            self.parallel = False
        elif kind < 8:
            with self.scope("for once in range(1):"):
                self.line(f"f0 = {self.read()}")
                self.vars = [("f", "f0")]
                self.block(self.r.randrange(3, 7))
                self.store()
        elif kind == 8:
            name = self.fresh("s")
            self.line(f"{name} = 0.0")
            self.parallel = True
            with self.scope(f"for i in range({N}):", "i"):
                self.line(f"{name} += {self.float(2)}")
            self.parallel = False
            self.vars.append(("f", name))
        else:
            functions, self.functions = self.functions, []  # their loops would be parallel here, and returns before those are refused
            self.line(f"{self.fresh('f')} = {self.float(2)}")
            self.vars.append(("f", f"f{self.numbers}"))
            self.functions = functions

    def locals_only(self, shared: list[tuple[str, str]]) -> None:
        """The body of a parallel loop, in which the variables of the kernel are read, never written."""
        for _, name in shared:
            self.line(f"h{name} = {name}")
        self.vars = [("f", "f0"), *((kind, f"h{name}") for kind, name in shared)]
        self.budget = 14
        self.block(self.r.randrange(2, 7))
        self.line(f"y[i] {self.r.choice(('=', '+='))} {self.float(2)}")


def write(seed: int) -> Program:
    w = Writer(random.Random(seed))
    for _ in range(w.r.choice((0, 0, 1, 2))):
        w.function()
    w.lines.append("@sg.kernel")
    w.line("def k(n: sg.i32, q: sg.types.ndarray(sg.f64, 1)):")
    w.indent = 1
    for _ in range(w.r.choice((1, 1, 2, 3))):
        w.budget = 14
        w.task()
    if w.lines[-1].startswith("    ") and not w.lines[-1].startswith("     ") and w.vars:
        w.line(f"z[0] += {w.vars[-1][1]}")
    return Program("\n".join(w.lines) + "\n", seed)


def ordered(source: str) -> bool:
    """Whether parallel iterations meet only in sums, as `Writer` has it: shortening must keep that."""
    kernel = next(f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef) and f.name == "k")
    return all(_ordered(loop) for loop in kernel.body if isinstance(loop, ast.For) and ast.unparse(loop.target) == "i")


def _ordered(loop: ast.For) -> bool:
    nodes = list(ast.walk(loop))
    added = {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}
    if sum(isinstance(node, ast.Name) and node.id == "i" and isinstance(node.ctx, ast.Store) for node in nodes) > 1:
        return False
    for node in nodes:
        if not isinstance(node, ast.Subscript):
            continue
        name, own = ast.unparse(node.value), ast.unparse(node.slice) == "i"
        if (name == "y" and not own) or (name == "z" and id(node) not in added):
            return False
        if name in ("x", "w", "q", "u", "idx") and isinstance(node.ctx, ast.Store):
            return False
    return True

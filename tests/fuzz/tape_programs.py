"""Random kernels with tapes of sizes that depend on memory, and the changes of that memory between launches of their gradients.

Bounds: read from fields and arrays, by indices that memory holds, ragged, clamped, from the values of outer loops, left behind by another
task of the kernel; guards around loops: compound, of the data, nearly never or nearly always true; ``while``; tapes of f64, f32, i32, i64,
u1. ``y[i]`` depends on ``x[i]`` and on ``w`` alone, so that one difference gives the derivatives of all ``y``.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

INTEGERS = ("b", "e", "c", "g", "off", "a", "t")  # `a` is an array argument, `t` what kernels write, the others are fields
LENGTHS = (1, 5, 5, 17, 17, 300, 300, 3000, 4097, 9000)
GUARDS = ("g[i] != 0", "g[c[i]] > 0", "x[i] > {cut}", "b[i] > {k}", "g[q % n] != 0", "e[i] == {k}", "i % {k2} == 0", "g[i] > 0", "m > {k}")
STARTS = {
    "h": "h = sg.cast(x[i] * 0.5, sg.f32)",
    "s": "s = sg.Vector([x[i], 0.5])",
    "k": "k = g[i] > 0",
    "l": "l = sg.cast(i + 1, sg.i64)",
}
WRITER = """@sg.kernel
def put(to: sg.template(), n: sg.i32, mul: sg.i32, add: sg.i32, mod: sg.i32):
    for i in range(n):
        to[i] = (i * mul + add) % mod
"""


@dataclass(frozen=True)
class Step:
    """What happens before a launch: ``writes`` as (memory, by, distribution, seed), by the host or by a kernel."""

    writes: tuple[tuple[str, str, str, int], ...]
    m: int
    taped: bool
    read: bool  # whether the host reads what this launch found before it goes on


@dataclass(frozen=True)
class Program:
    """``arrays`` and ``scalars`` are empty: what `shrink` asks for."""

    source: str
    seed: int
    n: int
    steps: tuple[Step, ...]
    arrays: tuple[Any, ...] = ()
    scalars: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        steps = "".join(f"#   {step}\n" for step in self.steps)
        return f"\n{self.source}# seed {self.seed}, n {self.n}\n{steps}"


@dataclass
class Writer:
    r: random.Random
    lines: list[str] = field(default_factory=list)
    indent: int = 0
    depth: int = 0  # serial loops around
    numbers: int = 0
    budget: int = 12
    counters: list[str] = field(default_factory=list)
    kinds: str = "v"

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    @contextmanager
    def scope(self, header: str, loop: bool = False) -> Iterator[None]:
        self.line(header)
        kept = list(self.counters)
        self.indent += 1
        self.depth += loop
        yield
        self.indent -= 1
        self.depth -= loop
        self.counters = kept

    def fresh(self, kind: str) -> str:
        self.numbers += 1
        return f"{kind}{self.numbers}"

    # --- expressions -----------------------------------------------------------------------------------------------------

    def index(self) -> str:
        forms = ["i", "i", "c[i]", "q % n", "(i + 1) % n", "c[q % n]", "c[c[i]]", "0"]
        forms += [f"{name} % n" for name in self.counters]
        return self.r.choice(forms)

    def bound(self) -> str:
        memory = self.r.choice("bbbeat")
        forms = [f"{memory}[i]", f"{memory}[i]", *(f"{memory}[{self.index()}]" for _ in range(2)), "RAGGED", "m", str(self.r.randrange(6))]
        forms += [f"sg.min({memory}[i], {self.r.randrange(1, 9)})", f"b[i] - e[{self.index()}]", f"b[{self.index()}] + a[i] // 2"]
        forms += ["q % 5", f"i % {self.r.randrange(2, 9)}", f"sg.max(e[i], a[{self.index()}])", f"(b[i] if {self.condition()} else 2)"]
        forms += [f"{memory}[{name} % n]" for name in self.counters] + [f"{name} % 4 + 1" for name in self.counters]
        return self.r.choice(forms)

    def condition(self, depth: int = 1) -> str:
        if depth and self.r.random() < 0.3:
            form = self.r.choice(("{} and {}", "{} or {}", "not ({0})", "({} and {}) or {}"))
            return "(" + form.format(*(self.condition(0) for _ in range(3))) + ")"
        forms = [*GUARDS, "{f} > {cut}", "{f} * {f} < {cut2}"]
        if "k" in self.kinds:
            forms.append("k")
        cut, k = f"{self.r.choice((-0.99, -0.5, 0.0, 0.3, 0.999)):.3f}", self.r.randrange(3)
        cut2, k2 = f"{self.r.uniform(0.01, 1):.3f}", self.r.choice((2, 7, 500))
        return self.r.choice(forms).format(cut=cut, cut2=cut2, k=k, k2=k2, f=self.leaf())

    def leaf(self) -> str:
        forms = ["v", "v", "v", "x[i]", f"w[{self.index()}]", f"w[{self.index()}]", "sg.f64(q % 7) * 0.15", f"{self.r.uniform(-1, 1):.2f}"]
        forms += [f"sg.f64({name} % 9) * 0.1" for name in self.counters]
        if "h" in self.kinds:
            forms += ["sg.f64(h)"] * 3
        if "s" in self.kinds:
            forms += ["s[0]", "s[q % 2]"]
        return self.r.choice(forms)

    def float(self, depth: int = 2) -> str:
        if depth == 0:
            return self.leaf()
        chosen = f"({{}} if {self.condition()} else {{}})"
        forms = ("sg.sin({})", "sg.tanh({})", "({} * {})", "({} + {})", "({} - {})", "sg.max({}, {})", chosen)
        return self.r.choice(forms).format(self.float(depth - 1), self.float(depth - 1))

    # --- statements ------------------------------------------------------------------------------------------------------

    def update(self) -> None:
        choice = self.r.randrange(12)
        inject = self.r.choice(("", " + 0.5 * x[i]", f" + 0.3 * w[{self.index()}]"))
        if choice < 5:
            self.line(f"v = sg.sin({self.float()}){inject}")
        elif choice < 7:
            self.line(f"v = 0.9 * v + 0.25 * {self.float(1)}{inject}")
        elif choice < 9:
            self.line(f"q = (q * {self.r.choice((5, 7, 13))} + {self.r.choice(['1', '3', 'i', 'b[i]', 'c[q % n]'])}) % 1009")
        elif choice == 9 and "h" in self.kinds:
            self.line(f"h = sg.sin(h * 0.9 + sg.cast({self.float(1)}, sg.f32))")
        elif choice == 10 and "s" in self.kinds:
            self.line(f"s[{self.r.choice('01')}] = sg.tanh({self.float(1)})")
        elif "k" in self.kinds:
            self.line(f"k = {self.condition()}")
        elif "l" in self.kinds:
            self.line("l = (l * sg.cast(6364136223, sg.i64) + q) % sg.cast(1000003, sg.i64)")
            self.line("v += sg.sin(v) * sg.f64(l % sg.cast(5, sg.i64)) * 0.1")
        else:
            self.line(f"v += 0.1 * sg.sin(v) * {self.float(1)}")

    def loop(self) -> None:
        bound, name = self.bound(), self.fresh("j")
        if self.depth:  # what is inside is short: the work must stay small
            bound = f"sg.min({bound}, {self.r.randrange(2, 6)})" if bound != "RAGGED" else "2"
        if self.r.random() < 0.25:
            bound = bound if bound != "RAGGED" else "b[i]"
            name = self.fresh("t")
            self.line(f"{name} = 0")
            more = f" and {self.condition()}" if self.r.random() < 0.5 else ""
            with self.scope(f"while {name} < {bound}{more}:", True):
                self.line(f"{name} += 1")
                self.counters.append(name)
                self.block(self.r.randrange(1, 4))
            return
        header = f"range({bound})" if bound != "RAGGED" else "range(off[i], off[i + 1])"
        with self.scope(f"for {name} in {header}:", True):
            self.counters.append(name)
            self.block(self.r.randrange(1, 4))

    def block(self, count: int) -> None:
        for _ in range(count):
            self.statement()

    def statement(self) -> None:
        self.budget -= 1
        choice = self.r.randrange(12)
        if choice < 4 and self.depth < 3 and self.budget > 0:
            self.loop()
        elif choice < 7 and self.indent < 7 and self.budget > 0:
            with self.scope(f"if {self.condition()}:"):
                self.block(self.r.randrange(1, 3))
                if self.depth and self.r.random() < 0.35:
                    self.line(self.r.choice(("break", "continue")))
            if self.r.random() < 0.3:
                with self.scope("else:"):
                    self.block(self.r.randrange(1, 3))
        else:
            self.update()

    def task(self, outermost: str) -> None:
        self.kinds = "v" + "".join(kind for kind in "hskl" if self.r.random() < 0.35)
        if self.r.random() < 0.2:
            self.line(f"sg.loop_config(block_dim={self.r.choice((32, 64, 256))})")
        with self.scope(outermost):
            self.counters = []
            guarded, inside = self.r.random() < 0.5, self.r.random() < 0.5
            for line in ("v = x[i]", "q = i % 13", *(STARTS[kind] for kind in self.kinds[1:])):
                self.line(line)
            if guarded:
                with self.scope(f"if {self.condition()}:"):
                    self.block(self.r.randrange(0, 3))
                    self.loop()
                    if inside:
                        self.line(f"y[i] += {self.float(1)} + v")
            else:
                self.block(self.r.randrange(1, 4))
                self.loop()
            if not (guarded and inside) or self.r.random() < 0.5:
                ends = {"h": " + sg.f64(h)", "s": " + s[0] * s[1]"}
                self.line(f"y[i] += v{''.join(ends.get(kind, '') for kind in self.kinds)}")


def write(seed: int) -> Program:
    r = random.Random(seed)
    w = Writer(r)
    w.lines = ["@sg.kernel", "def k(n: sg.i32, m: sg.i32, a: sg.types.ndarray(sg.i32, 1)):"]
    w.indent = 1
    if r.random() < 0.4:
        with w.scope(f"for i in range({r.choice(('n', 'n', 'n // 2'))}):"):
            w.line(f"t[i] = (b[{r.choice(('i', 'c[i]'))}] * 3 + {r.choice(('m', 'i', 'e[i]'))}) % {r.randrange(2, 9)}")
    for _ in range(r.choice((1, 1, 2))):
        w.budget = 11
        w.task(r.choice(("for i in range(n):", "for i in range(n):", "for i in x:", "for i in range(a.shape[0]):")))
    return Program("\n".join(w.lines) + "\n", seed, r.choice(LENGTHS), tuple(_step(r, k) for k in range(r.randrange(2, 6))))


DISTRIBUTIONS = ("zero", "same", "small", "small", "spike", "spike", "large", "growing", "negative")


def _step(r: random.Random, number: int) -> Step:
    names = INTEGERS if number == 0 else r.sample(INTEGERS, r.randrange(0, 3))
    writes = []
    for name in names:
        by = "host" if number == 0 or name == "off" else r.choice(("host", "kernel"))
        writes.append((name, by, r.choice(DISTRIBUTIONS), r.randrange(1 << 20)))
    return Step(tuple(writes), r.randrange(6), r.random() < 0.4, r.random() < 0.7)


def sound(source: str) -> bool:
    """Whether iterations are independent and loops end, as `Writer` has it: shortening must keep that."""
    kernel = next((f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef) and f.name == "k"), None)
    if kernel is None:
        return False
    nodes = list(ast.walk(kernel))
    outer = [node for node in kernel.body if isinstance(node, ast.For) and ast.unparse(node.target) == "i"]
    if len(outer) != sum(isinstance(node, (ast.For, ast.While)) for node in kernel.body):
        return False
    if any(isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("x", "y") and ast.unparse(node.slice) != "i" for node in nodes):
        return False
    return all(_ends(node) for node in nodes if isinstance(node, ast.While)) and "y[i] += " in source


def _ends(loop: ast.While) -> bool:
    first = loop.body[0]
    return isinstance(first, ast.AugAssign) and ast.unparse(loop.test).startswith(f"{ast.unparse(first.target)} < ")

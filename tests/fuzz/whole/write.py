"""Writes random programs: the kernels of a cell of `cells`, random kernels beside them, and what Python does with these.

Operations are smooth and their values bounded, so that rounding explains no difference. In a parallel loop each memory has a role: only
read, its own elements read and written, or only added to. Memory without a gradient gets nothing that depends on memory with one.
"""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from typing import Any

from .cells import LATER, cell, memory, table_kernel
from .nodes import (
    ALL,
    Call,
    Const,
    For,
    Function,
    If,
    Kernel,
    Launch,
    Let,
    Load,
    Memory,
    Name,
    Op,
    Over,
    Param,
    Part,
    Program,
    Store,
    While,
    memories_of,
    walk,
)
from .variants import VARIANTS

FAR = (-1, 1 << 28, -(1 << 28), 7)  # out of range of all memory, or just beyond


def program_of(seed: int) -> Program:
    """The program of a seed."""
    from .host import main  # which writes the part of Python

    base = kernels_of(seed // len(LATER))
    r = random.Random(f"main {seed}")
    return main(replace(base, cell=cell(seed)), r)


@functools.lru_cache(maxsize=4)
def kernels_of(number: int) -> Program:
    """Memory and kernels that ``len(LATER)`` programs share."""
    r = random.Random(f"kernels {number}")
    names = [*VARIANTS, *[""] * len(VARIANTS)]
    chosen = [(arch, r.choice(names)) for arch in ("interpreter", "cpu", "vulkan", "wgpu", "cuda")]
    # On Vulkan debug mode runs everything under the validation layer.
    variants = tuple((arch, name) for arch, name in chosen if name and (name != "debug" or arch in ("interpreter", "cpu")))
    return replace(Writer(r, cell(number * len(LATER))).program(), variants=variants)


class Writer:
    def __init__(self, r: random.Random, cell: tuple[str, ...]) -> None:
        self.r = r
        self.cell = cell
        self.n = r.choice((2, 4, 4, 6, 8)) if r.random() < 0.8 else r.choice((3, 5, 7, 9))
        self.memories = self.memory()
        self.by_name = {m.name: m for m in self.memories}
        self.functions: list[Function] = []
        self.numbers = 0

    # --- memory ------------------------------------------------------------------------------------------------------------------

    def memory(self) -> tuple[Memory, ...]:
        r, n = self.r, self.n
        m = replace(memory(self.cell[0], n), name="m")
        twin = replace(m, name="m2")
        found = [
            m, twin, Memory("u", "scalar", (n,)), Memory("y", "scalar", (n,)), Memory("z", "scalar", (n,)), Memory("loss", "scalar", ()),
            Memory("b", "scalar", (n,), values="small"), Memory("apart", "scalar", (n,)), Memory("loss_apart", "scalar", ()),
        ]  # fmt: skip
        more = [
            Memory("v", "vector", (n,), width=r.choice((2, 3))), Memory("s", "struct", (n,)), Memory("w", "matrix", (n,)),
            Memory("a", "scalar", (n,), "array"), Memory("q", "vector", (n,), "array"), Memory("g", "scalar", (n, 3)),
            Memory("c", "scalar", (n,), grad=False), Memory("p", "scalar", (n,), values="permutation"),
            Memory("e", "scalar", (n,), "array", values="small"), Memory("long", "scalar", (2 * n,), "array"),
            Memory("tensor", "scalar", (n,), "torch"), Memory("foreign", "scalar", (n,), "numpy", grad=False),
        ]  # fmt: skip
        found += r.sample(more, r.choice((1, 2, 3, 4)))
        return tuple(replace(memory, layout=self.layout(memory)) for memory in found)

    def layout(self, m: Memory) -> str:
        if m.place != "field" or not m.shape or self.r.random() < 0.5:
            return ""
        if m.kind == "struct":
            return "soa"
        choices = ["root", "together", *["soa"] * (m.kind == "vector")]
        choices += ["blocks"] if m.shape[0] % 2 == 0 else []
        choices += ["order"] if len(m.shape) == 2 else []
        return self.r.choice(choices)

    # --- the program -------------------------------------------------------------------------------------------------------------

    def program(self) -> Program:
        r = self.r
        for _ in range(r.randrange(3)):
            self.functions.append(self.function())
        factor = round(r.uniform(0.5, 1.5), 2)
        kernels = [self.kernel("table", table_kernel(self.cell, self.by_name["m"], factor)), *self.overwriting()]
        kernels += [self.kernel(f"work{k}", self.work()) for k in range(r.choice((1, 1, 2, 3)))]
        kernels.append(self.kernel("total", self.total()))
        kernels.append(self.kernel("guess", self.guess()))
        solve = Op("tanh", (Op("*", (Const(1.2), Load("u", (Name("i"),)))),))  # whose gradient may be `Replaced`
        old = Load("apart", (Name("i"),))
        moved = Store("apart", (Name("i"),), None, "=", Op("*", (Name("c0"), Op("sin", (Op("*", (Const(1.7), old)),)))))
        kernels.append(self.kernel("drift", (For("i", Const(self.n), (moved,)),)))
        kernels.append(self.kernel("total_apart", (Over(("i",), "apart", (Store("loss_apart", (), None, "+=", Op("square", (old,))),)),)))
        kernels.append(self.kernel("solve", (For("i", Const(self.n), (Store("z", (Name("i"),), None, "=", solve),)),)))
        options = [("offline_cache", False), ("opt_level", 3 if r.random() < 0.1 else 0)]
        if r.random() < 0.2:
            options.append(("fast_math", False))
        if r.random() < 0.2:
            options.append(("fuse_tasks", False))
        pulls = (("u", "z", self.n),)
        return Program(
            self.memories,
            tuple(self.functions),
            tuple(kernels),
            (),
            r.choice(("f64", "f64", "f32")),
            self.cell,
            pulls,
            tuple(options),
            r.random() < 0.25,
        )

    def kernel(self, name: str, body: tuple[Any, ...]) -> Kernel:
        """A kernel with the parameters that its body uses; some of its fields are parameters, too."""
        numbers = [Param(k, "int" if k == "k" else "float") for k in ("k", "c0") if any(node == Name(k) for node in walk(body))]
        used = sorted(memories_of(body))
        passed = [m for m in used if self.by_name[m].place != "field" or self.r.random() < 0.15]
        return Kernel(name, (*[Param(m, "memory", m) for m in passed], *numbers), body)

    def overwriting(self) -> list[Kernel]:
        """Kernels that overwrite ``m``, of all of `LATER` that are kernels."""
        m = self.by_name["m"]
        index = tuple(Name(name) for name in "ij"[: len(m.shape)])
        old = Load("m", index, ALL if m.kind in ("vector", "matrix") else m.components[0])
        whole: tuple[Any, ...] = (Store("m", index, old.component, "=", Op("*", (Const(0.5), old))),)
        if m.kind == "struct":
            whole = tuple(Store("m", index, c, "*=", Const(0.5)) for c in m.components)
        last = (Store("m", index, m.components[-1], "=", Op("cos", (Load("u", (Name("i"),)),))),)
        guard = Op("==", (Op("%", (Name("i"), Const(2))), Const(1)))
        names = tuple("ij"[: len(m.shape)])
        return [
            self.kernel("overwrite", (Over(names, "m", whole),)),
            self.kernel("overwrite_component", (Over(names, "m", last),)),
            self.kernel("overwrite_guarded", (Over(names, "m", (If(guard, whole),)),)),
            self.kernel("overwrite_empty", (Over(names, "m", (For("t", Name("k"), whole),)),)),
        ]

    def total(self) -> tuple[Any, ...]:
        """``loss`` gets weighted sums of memory with gradients."""
        body: list[Any] = []
        for m in self.memories:
            if (
                m.values != "floats"
                or not m.grad
                or m.foreign
                or m.name in ("loss", "long", "apart", "loss_apart")
                or (m.name not in "my" and self.r.random() < 0.4)
            ):
                continue
            index = tuple(Name(name) for name in "ij"[: len(m.shape)])
            terms = [Op("*", (Const(round(self.r.uniform(-1, 1), 2)), Load(m.name, index, c))) for c in m.components]
            terms[0] = Op("sin", (terms[0],)) if self.r.random() < 0.5 else Op("square", (terms[0],))
            added = tuple(Store("loss", (), None, "+=", term) for term in terms)
            body.append(Over(tuple("ij"[: len(m.shape)]), m.name, added))
        return tuple(body)

    def guess(self) -> tuple[Any, ...]:
        """Accesses at an argument that may be out of range, behind a guard."""
        k = Name("k")
        target = self.r.choice(("z", "y", "m"))
        m = self.by_name[target]
        index = (k, *(Const(1),) * (len(m.shape) - 1))
        value = Op("*", (Const(0.25), Op("sin", (Load("u", (Name("i"),)),))))
        op = self.r.choice(("+=", "+=", "-="))
        inner: tuple[Any, ...] = (Store(target, index, m.components[0], op, value),)
        if self.r.random() < 0.3:
            inner = (For("t", Const(2), inner),)
        guard = Op("and", (Op("<=", (Const(0), k)), Op("<", (k, Const(self.n)))))
        return (For("i", Const(self.n), (If(guard, inner),)),)

    def function(self) -> Function:
        params = ("x0", "x1")[: self.r.choice((1, 2))]
        names = [Name(p) for p in params]
        body = (Let("t0", Op(self.r.choice(("sin", "cos", "tanh")), (self.r.choice(names),))),)
        result = Op(self.r.choice(("*", "+", "-")), (Name("t0"), self.r.choice(names)))
        return Function(f"f{len(self.functions)}", params, body, result)

    def work(self) -> tuple[Any, ...]:
        """The tasks of a random kernel."""
        tasks = [Task(self).statements() for _ in range(self.r.choice((1, 1, 2)))]
        if self.r.random() < 0.15:  # what bounds and guards read
            i = Name("i")
            value = Op("%", (Op("+", (Load("b", (i,)), Const(self.r.randrange(1, 4)))), Const(4)))
            tasks.insert(self.r.randrange(len(tasks) + 1), (For("i", Const(self.n), (Store("b", (i,), None, "=", value),)),))
        return tuple(statement for task in tasks for statement in task)

    def fresh(self, kind: str) -> str:
        self.numbers += 1
        return f"{kind}{self.numbers}"


class Task:
    """One parallel loop, or serial statements. ``own``: memory read and written at the iteration's element; ``sums``: only added to."""

    def __init__(self, writer: Writer) -> None:
        self.w, self.r, self.n = writer, writer.r, writer.n
        self.serial = self.r.random() < 0.25
        usable = [m for m in writer.memories if m.name not in ("loss", "long", "apart", "loss_apart")]
        self.r.shuffle(usable)
        floats = [m for m in usable if m.values == "floats" and m.grad and not m.foreign]
        self.own = floats[: self.r.choice((1, 1, 2, 3))]
        rest = [m for m in floats if m not in self.own]
        self.sums = rest[: self.r.choice((0, 0, 1))]
        self.reads = [m for m in usable if m not in self.own and m not in self.sums and m.values == "floats"][:3]
        self.small = [m for m in usable if m.values == "small"]
        self.permutations = [m for m in usable if m.values == "permutation"]
        self.locals: list[str] = []
        self.counters: list[str] = []
        self.depth = 0

    def statements(self) -> tuple[Any, ...]:
        name = "i"
        if self.serial:
            self.counters = []
            if self.r.random() < 0.5:
                return tuple(self.store() for _ in range(self.r.choice((1, 2, 3))))
            outer = self.w.fresh("o")
            self.counters = ["i"]
            return (For(outer, Const(1), (For("i", Const(self.n - 1), self.block(3)),)),)
        self.counters = [name]
        over = next((m for m in self.own + self.reads if len(m.shape) == 1), None)
        body = self.block(self.r.choice((2, 3, 4)))
        if over is not None and self.r.random() < 0.4:
            return (Over((name,), over.name, body),)
        return (For(name, Const(self.n), body),)

    # --- expressions -------------------------------------------------------------------------------------------------------------

    def anywhere(self) -> Any:
        """An index in range."""
        choices: list[Any] = [Const(self.r.randrange(self.n))]
        for counter in self.counters:
            shifted = Op("+", (Name(counter), Const(self.r.randrange(1, 3))))
            choices += [Op("%", (shifted, Const(self.n))), Op("%", (Name(counter), Const(self.n)))]
            choices += [Load(m.name, (Op("%", (Name(counter), Const(self.n))),)) for m in self.permutations]
        return self.r.choice(choices)

    def index(self, m: Memory, own: bool) -> tuple[Any, ...]:
        first = Name("i") if own and not self.serial else self.anywhere()
        return (first, *[Const(self.r.randrange(extent)) for extent in m.shape[1:]])

    def load(self) -> Any:
        m = self.r.choice(self.own + self.reads)
        index = self.index(m, m in self.own)
        if m.kind in ("vector", "matrix") and self.r.random() < 0.3:
            return self.scalar_of(m, index)
        return Load(m.name, index, self.r.choice(m.components))

    def scalar_of(self, m: Memory, index: tuple[Any, ...]) -> Any:
        """A number from a whole vector, or a row of a product."""
        whole = Load(m.name, index, ALL)
        if m.kind == "matrix":
            return Op("dot", (Op("times", (whole, Op("vector", (Const(0.5), self.leaf())))), Op("vector", (Const(0.3), Const(-0.4)))))
        return Op("sin", (Op("norm", (whole,)),)) if self.r.random() < 0.5 else Op("dot", (whole, whole))

    def leaf(self) -> Any:
        choices = [self.load, self.load, lambda: Const(round(self.r.uniform(-1, 1), 2))]
        if self.locals:
            choices += [lambda: Name(self.r.choice(self.locals))] * 2
        choices.append(lambda: Name("c0"))
        if self.counters:
            choices.append(lambda: Op("*", (Const(0.1), Op("float", (Name(self.r.choice(self.counters)),)))))
        return self.r.choice(choices)()

    def number(self, depth: int = 2) -> Any:
        """An expression whose value may be large."""
        if depth == 0 or self.r.random() < 0.2:
            return self.leaf()
        op = self.r.choice(("+", "-", "*", "sin", "cos", "tanh", "root", "half", "square", "call", "if", "max"))
        if op in ("+", "-"):
            return Op(op, (self.number(depth - 1), self.number(depth - 1)))
        if op == "*":
            return Op("*", (self.number(depth - 1), Op("sin", (self.number(depth - 1),))))
        if op == "half":
            return Op("*", (Const(0.5), self.number(depth - 1)))
        if op == "call" and self.w.functions:
            f = self.r.choice(self.w.functions)
            return Call(f.name, tuple(self.number(depth - 1) for _ in f.params))
        if op == "if":
            return Op("if", (self.condition(), self.number(depth - 1), self.number(depth - 1)))
        if op == "max":
            return Op("max", (self.number(depth - 1), Const(round(self.r.uniform(-0.5, 0.5), 3))))
        return Op("sin" if op in ("square", "call") else op, (self.number(depth - 1),))

    def bounded(self, depth: int = 2) -> Any:
        return Op("*", (Const(round(self.r.uniform(-0.9, 0.9), 2)), Op(self.r.choice(("sin", "cos", "tanh")), (self.number(depth),))))

    def condition(self) -> Any:
        choices: list[Any] = [Op(">", (Name("k"), Const(self.r.randrange(3))))]
        if self.counters:
            choices.append(Op("==", (Op("%", (Name(self.r.choice(self.counters)), Const(2))), Const(self.r.randrange(2)))))
        choices += [Op(">", (Load(m.name, (self.anywhere(),)), Const(self.r.randrange(3)))) for m in self.small]
        choices.append(Op(">", (self.load(), Const(round(self.r.uniform(-0.5, 0.5), 3)))))
        return self.r.choice(choices)

    # --- statements --------------------------------------------------------------------------------------------------------------

    def block(self, count: int) -> tuple[Any, ...]:
        kept, counters = list(self.locals), list(self.counters)
        body = tuple(statement for _ in range(count) for statement in self.statement())
        self.locals, self.counters = kept, counters
        return body

    def statement(self) -> tuple[Any, ...]:
        choice = self.r.randrange(10)
        if choice < 2:
            return (self.let(),)
        if choice < 4 and self.depth < 2:
            self.depth += 1
            body = self.block(self.r.choice((1, 2)))
            orelse = self.block(1) if self.r.random() < 0.3 else ()
            self.depth -= 1
            return (If(self.condition(), body, orelse),)
        if choice < 6 and self.depth < 2:
            return (self.loop(),)
        return (self.store(),)

    def let(self) -> Any:
        if self.locals and self.r.random() < 0.5:  # perhaps a loop-carried value
            name = self.r.choice(self.locals)
            return Let(name, Op("+", (Op("*", (Const(0.5), Name(name))), self.bounded(1))))
        value = self.number()
        name = self.w.fresh("t")
        self.locals.append(name)
        return Let(name, Op("+", (value, Const(0.0))) if isinstance(value, Const) else value)

    def loop(self) -> Any:
        bounds = [Const(0), Const(self.r.choice((1, 2, 3))), Name("k"), *[Load(m.name, (self.anywhere(),)) for m in self.small] * 2]
        bound = self.r.choice(bounds)
        self.depth += 1
        name = self.w.fresh("j")
        kept = list(self.counters)
        self.counters.append(name)
        body = self.block(self.r.choice((1, 2)))
        until = self.condition() if self.r.random() < 0.3 else None
        self.counters = kept
        self.depth -= 1
        if isinstance(bound, Name):
            bound = Op("%", (Op("+", (Name("k"), Const(4))), Const(4)))
        if self.r.random() < 0.4:
            return While(name, None if bound == Const(0) else bound, body, None if bound == Const(0) else until)
        return For(name, bound, body)

    def store(self) -> Any:
        if self.sums and self.r.random() < 0.4:
            m = self.r.choice(self.sums)
            index = (self.anywhere(), *[Const(self.r.randrange(extent)) for extent in m.shape[1:]])
            return Store(m.name, index, self.r.choice(m.components), self.r.choice(("+=", "-=")), self.bounded())
        m = self.r.choice(self.own)
        index = self.index(m, True)
        if m.kind in ("vector", "matrix") and self.r.random() < 0.4:
            return self.whole(m, index)
        op = self.r.choice(("=", "=", "+=", "-=", "*="))
        value = self.bounded() if op != "*=" else Op("cos", (self.number(1),))
        return Store(m.name, index, self.r.choice(m.components), op, value)

    def whole(self, m: Memory, index: tuple[Any, ...]) -> Any:
        if self.r.random() < 0.5 or m.kind == "matrix":
            return Store(m.name, index, ALL, self.r.choice(("*=", "=")), Op("*", (Const(0.8), Load(m.name, index, ALL))))
        entries = Op("vector", tuple(self.bounded(1) for _ in m.components))
        return Store(m.name, index, ALL, self.r.choice(("=", "+=", "-=")), entries)


def launch(program: Program, kernel: Kernel, r: random.Random, far: bool = False, bound: dict[str, Any] | None = None) -> Launch:
    """A launch with arguments: its own memory, or other memory of the same type."""
    args: list[Any] = []
    for p in kernel.params:
        if p.kind == "memory":
            args.append((bound or {}).get(p.name, Part(p.like)))
        elif p.kind == "int":
            args.append(Const(r.choice(FAR) if far else r.choice((0, 0, 1, 2))))
        else:
            args.append(Const(round(r.uniform(-1, 1), 2)))
    return Launch(kernel.name, tuple(args))

"""Writes the part of Python of random programs: launches, other writes between them, tapes and other derivatives around them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .nodes import (
    AtOnce,
    Clear,
    Const,
    Copy,
    Data,
    Fill,
    Forward,
    Kernel,
    Look,
    Memory,
    Name,
    Nested,
    Op,
    Part,
    Program,
    Put,
    Read,
    Repeat,
    Replaced,
    Second,
    Store,
    Tape,
    Transfer,
    When,
    memories_of,
    walk,
)
from .write import launch

READS = True  # of memory with gradients, in tapes
ENDS = ("loss", "apart", "loss_apart")  # memory that is what it is
AT_ONCE = True  # tapes of several threads


def main(program: Program, r: random.Random) -> Program:
    return replace(program, main=Host(program, r).main())


class Host:
    def __init__(self, program: Program, r: random.Random) -> None:
        self.program, self.r = program, r
        self.kernels = {k.name: k for k in program.kernels}
        self.work = [k for k in program.kernels if k.name.startswith("work")]
        self.numbers = 0
        self.recorded = False  # as a graph: nothing is read, and no array of others passed
        self.foreign = any(m.foreign for m in program.memories)  # which no launch that runs again takes
        self.taped_before = False
        self.replacing = True
        self.reading = True
        self.known: list[str] = []  # numbers that Python has read, here

    def fresh(self, kind: str) -> str:
        self.numbers += 1
        return f"{kind}{self.numbers}"

    def main(self) -> tuple[Any, ...]:
        r = self.r
        before = self.block(r.choice((0, 0, 1, 2)))
        body = [*before, *self.section(), Look()]
        if r.random() < 0.3:
            self.taped_before = True
            body += [*self.block(r.choice((0, 1))), *self.section(), Look()]
        if r.random() < 0.15 and not self.foreign:
            self.replacing = False
            pure = [self.launch(k) for k in self.work if not self.overwrites(k)]
            body.append(
                Second(
                    "loss",
                    r.choice([m.name for m in self.floats(struct=False)]),
                    r.randrange(100),
                    (*pure, self.launch(self.kernels["total"])),
                )
            )
        return tuple(body)

    # --- derivatives of programs -------------------------------------------------------------------------------------------------

    def section(self) -> list[Any]:
        """A tape, or forward mode."""
        r = self.r
        if self.program.duals and r.random() < 0.5:
            return [self.forward()]
        if AT_ONCE and r.random() < 0.08:
            return [self.at_once()]
        again = () if self.foreign else ("checkpoints", "checkpoints", "budget", "graph")
        mode = r.choice(("plain", "plain", "plain", "thread", "seeds", "keep", *again))
        self.recorded, self.reading = mode == "graph", mode in ("plain", "seeds", "thread", "keep") and READS
        known = list(self.known)
        body = tuple(self.taped())
        self.recorded, self.reading, self.known = False, True, known
        tape = Tape("loss", body)
        if mode == "checkpoints":
            tape = replace(tape, options=(("checkpoints", r.choice((1, 2, 3))),), thread=r.random() < 0.15)
        elif mode == "budget":
            tape = replace(tape, options=(("memory_GB", r.choice((2e-7, 1e-6, 1.0))),))
        elif mode == "thread":
            tape = replace(tape, thread=True)
        elif mode == "graph":
            tape = replace(tape, graph=True, again=r.choice(("u", "m", "y")))
        elif mode == "seeds":
            names = r.sample([m.name for m in self.floats()], 2)
            tape = replace(tape, loss="", seeds=tuple((name, r.randrange(100)) for name in names), times=r.choice((1, 2)))
        elif mode == "keep":
            tape = replace(tape, options=(("clear_gradients", False),))
        if tape.thread and self.taped_before:  # a tape leaves the gradients that another thread's tape used last
            options = (*tape.options, ("clear_gradients", False)) if tape.loss else tape.options
            return [Clear(), replace(tape, options=options)]
        return [tape]

    def at_once(self) -> AtOnce:
        body = self.launch(self.kernels["table"]), *self.later(), self.launch(self.kernels["total"])
        drift = Repeat(self.fresh("t"), self.r.choice((1, 2, 5)), (self.launch(self.kernels["drift"]),))
        apart = (drift, Fill(Part("apart"), Const(0.25)), self.launch(self.kernels["drift"])) if self.r.random() < 0.3 else (drift,)
        options = (("clear_gradients", False),)
        both = Tape("loss", body, options), Tape("loss_apart", (*apart, self.launch(self.kernels["total_apart"])), options)
        return AtOnce(both if self.r.random() < 0.5 else both[::-1])

    def forward(self) -> Forward:
        """With respect to memory that Python does not write meanwhile."""
        self.replacing = self.reading = False
        known = list(self.known)
        body = tuple(self.taped())
        self.replacing, self.reading, self.known = True, True, known
        floats = [m.name for m in self.floats(struct=False)]
        x = self.r.choice([name for name in floats if name not in written(body)])
        return Forward(self.r.choice([name for name in floats if name != x]), x, self.r.randrange(100), body)

    def taped(self) -> list[Any]:
        """The launches of the cell, with what overwrites its memory, among others."""
        r = self.r
        before, known = self.block(r.choice((0, 1, 1, 2))), list(self.known)
        cell = [self.launch(self.kernels["table"]), *self.block(r.choice((0, 0, 1))), *self.later()]
        if r.random() < 0.3:
            cell = [self.repeated(cell)]
        elif r.random() < 0.2:
            cell = [self.nested(cell)]
            self.known = known
        body = [*before, *cell, *self.block(r.choice((0, 0, 1, 2)))]
        return [*body, self.launch(self.kernels["total"])]

    def later(self) -> list[Any]:
        """What overwrites `m` after the kernel that reads it."""
        m, r = self.program.memory("m"), self.r
        kernels = {
            "kernel": "overwrite",
            "component kernel": "overwrite_component",
            "guarded kernel": "overwrite_guarded",
            "empty kernel": "overwrite_empty",
            "same kernel": "table",
        }
        how = self.program.cell[-1]
        if how in kernels:
            return [self.launch(self.kernels[kernels[how]])]
        return {
            "fill": [Fill(Part("m"), Const(0.5))],
            "fill component": [self.fill_part(m)],
            "copy": [Copy(Part("m"), Part("m2"))],
            "numpy": [Data("m", r.randrange(100))],
            "torch": [Data("m", r.randrange(100), "numpy" if m.kind == "struct" or self.recorded else "torch")],
            "element": [Put("m", index, r.choice(m.components), Const(0.25)) for index in r.sample(m.indices, 2)],
            "none": [],
        }[how]

    def overwrites(self, kernel: Kernel) -> bool:
        """Whether a kernel writes what it or `total` also reads, but for sums."""
        stores = [node for node in walk(kernel.body) if isinstance(node, Store)]
        return any(node.op != "+=" for node in stores)

    # --- statements --------------------------------------------------------------------------------------------------------------

    def block(self, count: int) -> list[Any]:
        return [self.statement() for _ in range(count)]

    def statement(self, depth: int = 0) -> Any:
        r = self.r
        choices: list[tuple[int, Callable[[], Any]]] = [
            (6, lambda: self.launch(r.choice(self.work))),
            (1, lambda: self.launch(self.kernels["guess"], far=True)),
            (1, lambda: self.launch(self.kernels["guess"])),
            (1, self.fill), (1, self.copy), (1, self.put), (1, self.data),
        ]  # fmt: skip
        if depth < 2:
            inner = lambda n: [self.statement(depth + 1) for _ in range(n)]  # noqa: E731
            choices += [(1, lambda: self.repeated(inner(r.choice((1, 2))))), (1, lambda: self.nested(inner(r.choice((1, 2)))))]
            choices += [(1, lambda: self.when(inner(1), inner(1)))]
        if not self.recorded:
            choices.append((1, self.transfer))
            if depth == 0:
                choices.append((2, self.read))
        if self.replacing:
            choices.append((1, self.replaced))
        return r.choices([f for _, f in choices], [weight for weight, _ in choices])[0]()

    def floats(self, struct: bool = True) -> list[Memory]:
        found = [m for m in self.program.memories if m.values == "floats" and m.grad and m.name not in ENDS and not m.foreign]
        return [m for m in found if struct or m.kind != "struct"]

    def launch(self, kernel: Kernel, far: bool = False) -> Any:
        bound = {}
        used = memories_of(kernel.body)
        for p in kernel.params:
            if p.kind != "memory" or p.like in ENDS or self.r.random() < 0.5:
                continue
            like = self.program.memory(p.like)
            twins = [Part(m.name) for m in self.program.memories if m.alike(like) and m.name not in used and m.name not in ENDS]
            n = like.shape[0] if like.shape else 0
            free = any(m.name == "long" for m in self.program.memories) and "long" not in used
            if free and (like.place, like.kind, like.values) == ("array", "scalar", "floats"):
                twins += [Part("long", cut) for cut in ((0, n, 1), (n, 2 * n, 1), (0, 2 * n, 2))]
            if twins:
                bound[p.name] = self.r.choice(twins)
                used |= {bound[p.name].memory}
        launched = launch(self.program, kernel, self.r, far, bound)
        args = tuple(self.value() if p.kind == "float" and self.known else a for p, a in zip(kernel.params, launched.args))
        return replace(launched, args=args)

    def repeated(self, body: list[Any]) -> Repeat:
        return Repeat(self.fresh("t"), self.r.choice((2, 2, 3)), tuple(body))

    def nested(self, body: list[Any]) -> Nested:
        return Nested(self.fresh("step"), tuple(body), not self.recorded and not self.foreign and self.r.random() < 0.5)

    def when(self, body: list[Any], orelse: list[Any]) -> When:
        return When(Op(">", (Const(self.r.randrange(3)), Const(1))), tuple(body), tuple(orelse))

    def fill(self) -> Any:
        m = self.r.choice(self.floats())
        return Fill(Part(m.name), self.value()) if self.r.random() < 0.5 else self.fill_part(m)

    def fill_part(self, m: Memory) -> Fill:
        value = self.value()
        if m.place == "field":
            component = self.r.choice([c for c in m.components if m.kind == "vector" or c == ("a", None)] or [None])
            return Fill(Part(m.name), value, component)
        return Fill(Part(m.name, self.cut(m)), value)

    def cut(self, m: Memory) -> tuple[int, int, int] | None:
        n = m.shape[0]
        return self.r.choice(((0, n, 2), (1, n, 1), (0, n - 1, 1))) if len(m.shape) == 1 else None

    def copy(self) -> Any:
        pairs = [(a, b) for a in self.floats() for b in self.floats() if a.alike(b)]
        if not pairs:
            return self.fill()
        a, b = self.r.choice(pairs)
        if a.place == "array" and len(a.shape) == 1 and self.r.random() < 0.5:
            n = a.shape[0]
            source, target = self.r.sample([(0, n - 1, 1), (1, n, 1)], 2)
            return Copy(Part(a.name, target), Part(self.r.choice((a.name, b.name)), source))
        return Copy(Part(a.name), Part(b.name))

    def put(self) -> Put:
        small = [m for m in self.program.memories if m.values == "small"]
        if self.r.random() < 0.3:
            m = self.r.choice(small)
            return Put(m.name, self.r.choice(m.indices), None, Const(self.r.randrange(4)))
        m = self.r.choice(self.floats())
        return Put(m.name, self.r.choice(m.indices), self.r.choice(m.components), self.value())

    def data(self) -> Data:
        m = self.r.choice([m for m in self.program.memories if m.name not in ("loss", "loss_apart") and not m.foreign])
        by = "torch" if m.kind != "struct" and not self.recorded and self.r.random() < 0.3 else "numpy"
        return Data(m.name, self.r.randrange(100), by)

    def read(self) -> Any:
        """A number that Python reads; `value` may use it."""
        constant = [m for m in self.program.memories if not m.grad and m.values == "floats" and not m.foreign]
        floats = self.floats() if self.reading else constant
        if not floats:
            return self.put()
        m = self.r.choice(floats)
        name = self.fresh("r")
        self.known.append(name)
        return Read(name, m.name, self.r.choice(m.indices), self.r.choice(m.components))

    def value(self) -> Any:
        if self.known and self.r.random() < 0.5:
            known = Name(self.r.choice(self.known))
            return self.r.choice(
                (known, Op("*", (Const(0.5), known)), Op("-", (Const(0.3), known)), Op("*", (known, known)), Op("sin", (known,)))
            )
        return Const(round(self.r.uniform(-1, 1), 2))

    def transfer(self) -> Transfer:
        pairs = [
            (a, b)
            for a in self.floats(struct=False)
            for b in self.floats(struct=False)
            if (a.shape, a.kind, a.width) == (b.shape, b.kind, b.width)
        ]
        a, b = self.r.choice(pairs)
        return Transfer(a.name, b.name, 0.5, self.r.choice(("numpy", "numpy", "torch")))

    def replaced(self) -> Any:
        source, target, _ = self.program.pulls[0]
        kernel = self.kernels["solve"]
        return Replaced(launch(self.program, kernel, self.r), source, target, self.r.choice((None, 0.5, -1.5)))


def written(body: Any) -> set[str]:
    """Names of the memory that Python writes."""
    found = {node.memory for node in walk(body) if isinstance(node, (Put, Data))}
    found |= {node.target for node in walk(body) if isinstance(node, Transfer)}
    found |= {node.target.memory for node in walk(body) if isinstance(node, Copy)}
    return found | {node.part.memory for node in walk(body) if isinstance(node, Fill)}

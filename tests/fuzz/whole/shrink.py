"""Shortens a program that fails: drops statements, puts bodies in the place of loops and branches, operands in that of operations.

What remains is still a program whose iterations are independent: outermost loops of kernels and all indices stay as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from . import nodes
from .nodes import Call, Const, Kernel, Launch, Load, Name, Op, Over, Part, Program, Replaced, Tape, mapped, memories_of, walk

_STATEMENTS = ("Let", "Store", "If", "For", "Over", "While", "Launch", "Repeat", "When", "Fill", "Copy", "Put", "Read", "Data", "Transfer",
               "Nested", "AtOnce", "Clear", "Replaced", "Tape", "Second", "Forward", "Look")  # fmt: skip
STATEMENTS = tuple(getattr(nodes, name) for name in _STATEMENTS)


def shrunk(program: Program, fails: Callable[[Program], bool], seconds: float = 60.0) -> Program:
    """The shortest program found within ``seconds`` for which ``fails`` holds."""
    end = time.monotonic() + seconds
    for steps in (_of_memory, _of_main, _of_kernels, _of_main, _of_memory):
        program = _greedy(program, fails, steps, end)
    return program


def _greedy(program: Program, fails: Callable[[Program], bool], steps: Callable[[Program], Iterator[Program]], end: float) -> Program:
    changed = True
    while changed:
        changed, at = False, 0
        while time.monotonic() < end:
            candidate = next((c for k, c in enumerate(steps(program)) if k == at), None)
            if candidate is None:
                break
            candidate = pruned(candidate)
            if candidate != program and fails(candidate):
                program, changed = candidate, True
            else:
                at += 1
    return program


def _of_main(program: Program) -> Iterator[Program]:
    for body in _bodies(program.main, False):
        yield replace(program, main=body)


def _of_kernels(program: Program) -> Iterator[Program]:
    for k, kernel in enumerate(program.kernels):
        for body in _bodies(kernel.body, True):
            yield replace(program, kernels=(*program.kernels[:k], replace(kernel, body=body), *program.kernels[k + 1 :]))


def _of_memory(program: Program) -> Iterator[Program]:
    """Plainer memory, arguments and options."""
    if program.variants:
        yield replace(program, variants=())
    for k, m in enumerate(program.memories):
        if m.layout:
            yield replace(program, memories=(*program.memories[:k], replace(m, layout=""), *program.memories[k + 1 :]))
    for option in program.options:
        if option[0] != "offline_cache":
            yield replace(program, options=tuple(other for other in program.options if other != option))
    if program.duals:
        yield replace(program, duals=False)
    for k, kernel in enumerate(program.kernels):
        for p in kernel.params:
            if p.kind == "memory" and program.memory(p.like).place == "field":
                yield _without_parameter(program, k, p.name)


def _without_parameter(program: Program, k: int, name: str) -> Program:
    """Kernel ``k`` uses its own memory in place of a parameter."""
    kernel = program.kernels[k]
    at = [p.name for p in kernel.params].index(name)
    shorter = replace(kernel, params=(*kernel.params[:at], *kernel.params[at + 1 :]))

    def relaunched(node: Any) -> Any:
        if isinstance(node, Launch) and node.kernel == kernel.name:
            return replace(node, args=(*node.args[:at], *node.args[at + 1 :]))
        return node

    return replace(program, kernels=(*program.kernels[:k], shorter, *program.kernels[k + 1 :]), main=mapped(program.main, relaunched))


# --- statements and expressions ----------------------------------------------------------------------------------------------------


def _bodies(body: tuple[Any, ...], outermost: bool) -> Iterator[tuple[Any, ...]]:
    """Shorter statements in the place of ``body``. ``outermost``: its loops are parallel, and stay."""
    if len(body) > 3:
        half = len(body) // 2
        yield body[half:]
        yield body[:half]
    for k in range(len(body)):
        yield body[:k] + body[k + 1 :]
    for k, s in enumerate(body):
        parallel = outermost and type(s).__name__ in ("For", "Over")
        for inner in () if parallel else (getattr(s, "body", ()), getattr(s, "orelse", ())):
            if inner:
                yield body[:k] + inner + body[k + 1 :]
    for k, s in enumerate(body):
        for shorter in _statements(s):
            yield (*body[:k], shorter, *body[k + 1 :])


def _statements(s: Any) -> Iterator[Any]:
    for name in ("body", "orelse"):
        inner = getattr(s, name, None)
        if inner:
            for shorter in _bodies(inner, False):
                if shorter or name == "orelse":
                    yield replace(s, **{name: shorter})
    if isinstance(s, Tape):
        for plain in ({"thread": False}, {"graph": False}, {"options": ()}, {"times": 1}):
            if replace(s, **plain) != s:
                yield replace(s, **plain)
    if type(s).__name__ == "Nested" and s.checkpoint:
        yield replace(s, checkpoint=False)
    if getattr(s, "by", "numpy") == "torch":
        yield replace(s, by="numpy")
    if getattr(s, "count", 0) > 1:
        yield replace(s, count=s.count - 1)
    for name in ("value", "condition", "bound"):
        value = getattr(s, name, None)
        if isinstance(value, (Op, Call, Load, Name)):
            for shorter in _expressions(value):
                yield replace(s, **{name: shorter})
    if getattr(s, "until", None) is not None:
        yield replace(s, until=None)


def _expressions(e: Any) -> Iterator[Any]:
    if isinstance(e, (Op, Call)):
        yield from e.args
        for k, a in enumerate(e.args):
            for shorter in _expressions(a):
                yield replace(e, args=(*e.args[:k], shorter, *e.args[k + 1 :]))
    if not isinstance(e, Const):
        yield Const(0.5)


# --- what is not used --------------------------------------------------------------------------------------------------------------


def pruned(program: Program) -> Program:
    """The program without kernels, functions, parameters and memory that it does not use."""
    launched = {node.kernel for node in walk(program.main) if isinstance(node, Launch)}
    program = replace(program, kernels=tuple(k for k in program.kernels if k.name in launched))
    for k in range(len(program.kernels)):
        for p in program.kernels[k].params:
            if not _uses(program.kernels[k], p.name):
                program = _without_parameter(program, k, p.name)
    called: set[str] = set()
    bodies: list[Any] = [k.body for k in program.kernels]
    while new := {node.function for node in walk(tuple(bodies)) if isinstance(node, Call)} - called:
        called |= new
        bodies += [(f.body, f.result) for f in program.functions if f.name in new]
    pulls = program.pulls if any(isinstance(node, Replaced) and node.factor is not None for node in walk(program.main)) else ()
    program = replace(program, functions=tuple(f for f in program.functions if f.name in called), pulls=pulls)
    used = _used(program)
    return replace(program, memories=tuple(m for m in program.memories if m.name in used))


def _uses(kernel: Kernel, name: str) -> bool:
    found = any(isinstance(node, (Load, nodes.Store, Over)) and node.memory == name for node in walk(kernel.body))
    return found or any(node == Name(name) for node in walk(kernel.body))


def _used(program: Program) -> set[str]:
    used = {name for pull in program.pulls for name in pull[:2]}
    for kernel in program.kernels:
        used |= memories_of(kernel.body) | {p.like for p in kernel.params}
    for node in walk(program.main):
        if isinstance(node, Part):
            used.add(node.memory)
        for name in ("memory", "target", "source", "loss", "x", "result", "again"):
            value = getattr(node, name, None)
            if isinstance(value, str):
                used.add(value)
        if isinstance(node, Tape):
            used |= {name for name, _ in node.seeds}
    return used

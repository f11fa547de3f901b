"""Other forms of a program that compute the same: what a back end runs in the place of the program, compared with the same reference."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .nodes import (
    Call,
    Copy,
    Data,
    Fill,
    For,
    Kernel,
    Launch,
    Let,
    Memory,
    Name,
    Over,
    Param,
    Part,
    Program,
    Put,
    Transfer,
    While,
    mapped,
    memories_of,
    walk,
)


def varied(program: Program, name: str) -> Program:
    """The variant of that name; "" is the program itself."""
    return VARIANTS[name](program) if name else program


def _layouts(program: Program) -> Program:
    """Other layouts, by the name of the memory, so that programs with the same kernels have the same."""

    def other(m: Memory) -> Memory:
        if m.place != "field" or not m.shape:
            return m
        choices = ["", "soa"] if m.kind == "struct" else ["", "root", "together", *["soa"] * (m.kind == "vector")]
        choices += ["blocks"] * (m.shape[0] % 2 == 0 and m.kind != "struct") + ["order"] * (len(m.shape) == 2)
        return replace(m, layout=random.Random(m.name + m.layout).choice([c for c in choices if c != m.layout]))

    return replace(program, memories=tuple(map(other, program.memories)))


def _padded(program: Program) -> Program:
    """Memory that nothing uses between the rest, which comes in another order."""
    memories: list[Memory] = []
    for k, m in enumerate(reversed(program.memories)):
        memories += [m, Memory(f"pad{k}", "vector", m.shape, layout="together" if m.layout == "together" else "", width=3)]
    return replace(program, memories=tuple(memories))


def _fusing(program: Program) -> Program:
    return _option(program, "fuse_tasks", not dict(program.options).get("fuse_tasks", True))


def _optimised(program: Program) -> Program:
    return _option(program, "opt_level", 3 - dict(program.options).get("opt_level", 3))


def _checked(program: Program) -> Program:
    """Debug mode: bounds and overflow are checked, the IR is verified, and what tapes save."""
    return _option(program, "debug", True)


def _cached(program: Program) -> Program:
    return _option(_option(program, "offline_cache", True), "offline_cache_file_path", _cache_folder())


def _option(program: Program, name: str, value: Any) -> Program:
    return replace(program, options=(*[option for option in program.options if option[0] != name], (name, value)))


_folders: list[tempfile.TemporaryDirectory[str]] = []


def _cache_folder() -> str:
    if not _folders:
        _folders.append(tempfile.TemporaryDirectory())
    return _folders[0].name


def _renamed(program: Program) -> Program:
    """Other names of kernels, functions, loops and variables."""
    functions = {f.name for f in program.functions}

    def local(name: str) -> str:
        return f"{name}_" if name not in ("k", "c0") and name else name

    def inside(node: Any) -> Any:
        if isinstance(node, Name):
            return Name(local(node.name))
        if isinstance(node, (Let, For, While)):
            return replace(node, name=local(node.name))
        if isinstance(node, Over):
            return replace(node, names=tuple(map(local, node.names)))
        return replace(node, function=f"{node.function}_other") if isinstance(node, Call) and node.function in functions else node

    def launches(node: Any) -> Any:
        return replace(node, kernel=f"{node.kernel}_other") if isinstance(node, Launch) else node

    written = tuple(
        replace(f, name=f"{f.name}_other", params=tuple(map(local, f.params)), body=mapped(f.body, inside), result=mapped(f.result, inside))
        for f in program.functions
    )
    kernels = tuple(replace(k, name=f"{k.name}_other", body=mapped(k.body, inside)) for k in program.kernels)
    return replace(program, functions=written, kernels=kernels, main=mapped(program.main, launches))


def _split(program: Program) -> Program:
    """Each task is a kernel of its own."""
    parts = {k.name: [_with_parameters(f"{k.name}_part{n}", k, (task,)) for n, task in enumerate(k.body)] for k in program.kernels}
    whole = {k.name: k for k in program.kernels}

    def launches(s: Any) -> tuple[Any, ...]:
        if not isinstance(s, Launch) or len(parts[s.kernel]) < 2:
            return (s,)
        given = dict(zip([p.name for p in whole[s.kernel].params], s.args))
        return tuple(Launch(part.name, tuple(given[p.name] for p in part.params)) for part in parts[s.kernel])

    kernels = tuple(kernel for k in program.kernels for kernel in (k, *(parts[k.name] if len(parts[k.name]) > 1 else ())))
    return replace(program, kernels=kernels, main=_spread(program.main, launches))


def _with_parameters(name: str, kernel: Kernel, body: tuple[Any, ...]) -> Kernel:
    """A kernel that has those parameters that its body uses."""
    used = memories_of(body) | {node.name for node in walk(body) if isinstance(node, Name)}
    return Kernel(name, tuple(p for p in kernel.params if p.name in used), body)


def _spread(body: Any, change: Callable[[Any], tuple[Any, ...]]) -> Any:
    """``body`` with several statements in the place of some, in its blocks, too."""
    spread: list[Any] = []
    for s in body:
        inner = {name: _spread(getattr(s, name), change) for name in ("body", "orelse") if hasattr(s, name)}
        spread += change(replace(s, **inner) if inner else s)
    return tuple(spread)


def _merged(program: Program) -> Program:
    """Each two launches that follow each other, with arguments of their own, are one kernel's."""
    kernels = {k.name: k for k in program.kernels}
    made: dict[str, Kernel] = {}

    def own(s: Any) -> bool:
        if not isinstance(s, Launch):
            return False
        return all(a == Part(p.like) for p, a in zip(kernels[s.kernel].params, s.args) if p.kind == "memory")

    def block(body: tuple[Any, ...]) -> tuple[Any, ...]:
        found: list[Any] = []
        for s in body:
            inner = {name: block(getattr(s, name)) for name in ("body", "orelse") if hasattr(s, name)}
            s = replace(s, **inner) if inner else s
            if found and own(s) and own(found[-1]) and found[-1].kernel in kernels:
                kernel, args = _pair(kernels[found[-1].kernel], kernels[s.kernel], found[-1].args, s.args)
                made[kernel.name] = kernel
                found[-1] = Launch(kernel.name, args)
            else:
                found.append(s)
            if found and isinstance(found[-1], Launch) and found[-1].kernel in made:
                found.append(None)  # no third one
        return tuple(s for s in found if s is not None)

    main = block(program.main)
    return replace(program, kernels=(*program.kernels, *made.values()), main=main)


def _pair(a: Kernel, b: Kernel, a_args: tuple[Any, ...], b_args: tuple[Any, ...]) -> tuple[Kernel, tuple[Any, ...]]:
    def second(node: Any) -> Any:
        return Name(f"{node.name}_second") if isinstance(node, Name) and node.name in ("k", "c0") else node

    params, args = list(a.params), list(a_args)
    for p, argument in zip(b.params, b_args):
        if p.kind != "memory":
            p = Param(f"{p.name}_second", p.kind)
        elif p.name in [other.name for other in params]:
            continue
        params.append(p)
        args.append(argument)
    return Kernel(f"{a.name}_and_{b.name}", tuple(params), (*a.body, *mapped(b.body, second))), tuple(args)


def _reordered(program: Program) -> Program:
    """Statements of Python that follow each other, and tasks of kernels, change places where they use different memory."""
    kernels = {k.name: k for k in program.kernels}

    def touched(s: Any) -> set[str] | None:
        if isinstance(s, Launch):
            given = dict(zip([p.name for p in kernels[s.kernel].params], s.args))
            names = memories_of(kernels[s.kernel].body)
            return {given[name].memory if isinstance(given.get(name), Part) else name for name in names}
        if isinstance(s, (Put, Data)):
            return {s.memory}
        if isinstance(s, Transfer):
            return {s.target, s.source}
        if isinstance(s, Copy):
            return {s.target.memory, s.source.memory}
        return {s.part.memory} if isinstance(s, Fill) else None

    def block(body: tuple[Any, ...]) -> tuple[Any, ...]:
        found = [replace(s, body=block(s.body)) if hasattr(s, "body") else s for s in body]
        return tuple(_swapped(found, touched))

    changed = tuple(replace(k, body=tuple(_swapped(list(k.body), memories_of))) for k in program.kernels)
    return replace(program, main=block(program.main), kernels=changed)


def _swapped(body: list[Any], touched: Callable[[Any], set[str] | None]) -> list[Any]:
    k = 0
    while k + 1 < len(body):
        a, b = touched(body[k]), touched(body[k + 1])
        if a is not None and b is not None and not a & b:
            body[k], body[k + 1] = body[k + 1], body[k]
            k += 1
        k += 1
    return body


VARIANTS: dict[str, Callable[[Program], Program]] = {
    "layouts": _layouts, "padding": _padded, "fuse_tasks": _fusing, "opt_level": _optimised, "cache": _cached, "debug": _checked,
    "names": _renamed, "split": _split, "merged": _merged, "order": _reordered,
}  # fmt: skip

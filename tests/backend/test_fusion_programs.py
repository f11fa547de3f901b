"""Random programs of adjacent parallel loops: whether they run as one dispatch changes no bit of any result."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
from backend.test_fusion import ARCHS, tasks
from cases import seeds
from fuzz.run import load

import spirograd as sg

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.archs(*ARCHS)]

FIELDS = {"x": "f32", "y": "f32", "z": "f32", "a": "i32", "b": "i32"}
INDICES = ("i", "i", "i", "n - 1 - i", "i ^ 1", "(i + 1) % n", "i // 2", "p[i]")


def expression(rng: random.Random, kind: str, depth: int = 2) -> str:
    if depth == 0 or rng.random() < 0.3:
        choices = [f"{name}[{rng.choice(INDICES)}]" for name, t in FIELDS.items() if t == kind]
        return rng.choice([*choices, *(["0.7", "1.3", "-0.4"] if kind == "f32" else ["3", "7", "i"])])
    operators = ("+", "-", "*") if kind == "f32" else ("+", "-", "*", "^", "&", "|")
    return f"({expression(rng, kind, depth - 1)} {rng.choice(operators)} {expression(rng, kind, depth - 1)})"


def statement(rng: random.Random) -> str:
    name = rng.choice(list(FIELDS))
    value = expression(rng, FIELDS[name])
    # Two iterations must not write one element, nor one read what the other writes: the loop itself would have no defined result.
    value = re.sub(rf"\b{name}\[[^]]*\]+", f"{name}[i]", value)
    form = rng.random()
    if form < 0.1:
        return f"c[None] += {expression(rng, 'i32')}" if rng.random() < 0.5 else f"sg.atomic_max(c[None], {expression(rng, 'i32')})"
    if form < 0.2:
        return f"if a[i] > 3:\n            {name}[i] = {value}"
    return f"{name}[i] {rng.choice(('=', '=', '+=', '-='))} {value}"


def effect(rng: random.Random) -> str:
    """Sums of floats into shared elements, prints, inner loops that carry floats, and reads of the sums."""
    value = expression(rng, "f32", 1)
    name = rng.choice("xyz")
    own = re.sub(rf"\b{name}\[[^]]*\]+", f"{name}[i]", value)
    inner = f"v = 0.5\n        for j in range(5):\n            v = v * 0.7 + {own} * j\n        {name}[i] = v"
    read = f"{name}[i] = {own} * {rng.choice(('t[None]', 'h[i // 2]', 'h[n - 1 - i]'))}"
    return rng.choice((f"t[None] += {value}", f"h[i // 2] += {value}", f"h[n - 1 - i] -= {value}", "print(i, a[i])", inner, inner, read))


def program(seed: int, effects: bool = False) -> str:
    """A kernel of loops, each of which has one statement."""
    rng = random.Random(seed)
    lines = ["@sg.kernel", "def k():"]
    for _ in range(rng.randint(3, 7)):
        text = effect(rng) if effects and rng.random() < 0.5 else statement(rng)
        lines += [f"    for i in range({rng.choice(('n', 'n', 'n', 'n - 2'))}):", f"        {text}"]
        if rng.random() < 0.15:
            lines.append(f"    s[None] = {rng.choice('xyz')}[{rng.randrange(8)}]")
    return "\n".join(lines) + "\n"


def outcome(source: str, n: int, arch: str, **options: Any) -> tuple[list[Any], int]:
    """The memory after two launches, and the number of tasks."""
    sg.init(arch=arch, offline_cache=False, **options)
    rng = np.random.default_rng(5)
    names: dict[str, Any] = {"sg": sg, "n": n, "c": sg.field(sg.i32, shape=()), "s": sg.field(sg.f32, shape=())}
    names |= {"t": sg.field(sg.f32, shape=()), "h": sg.field(sg.f32, shape=n)}
    for name, t in (*FIELDS.items(), ("p", "i32")):
        names[name] = sg.field(getattr(sg, t), shape=n + 1)
        values = rng.normal(size=n + 1).astype(np.float32) if t == "f32" else rng.integers(-9, 9, n + 1).astype(np.int32)
        names[name].from_numpy(values if name != "p" else np.append(rng.permutation(n), 0).astype(np.int32))
    kernel = load(source, names)
    kernel()
    kernel()
    sg.sync()
    memory = [names[name].to_numpy() for name in (*FIELDS, "c", "s", "t", "h")]
    return memory, tasks(kernel) if arch != "interpreter" else 0


@pytest.mark.parametrize("seed", seeds(6, 60))
def test_random_programs(arch: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fusion on, off, and on for disjoint memory only: the same bits. The interpreter, which never fuses, gives the numbers."""
    source, n = program(seed), random.Random(seed).choice((8, 9, 30, 1023))
    alone = source.replace("@sg.kernel", "@sg.kernel(fuse=False)")
    fused, count = outcome(source, n, arch)
    apart, most = outcome(source, n, arch, fuse_tasks=False)
    monkeypatch.setenv("SG_FUSE_TASKS_RAW", "0")
    some, between = outcome(source, n, arch)
    assert count <= between <= most
    for mine, theirs, others, last in zip(fused, apart, some, outcome(alone, n, arch)[0]):
        assert mine.tobytes() == theirs.tobytes() == others.tobytes() == last.tobytes(), source
    for mine, want in zip(fused, outcome(source, n, "interpreter")[0]):
        np.testing.assert_allclose(mine, want, rtol=2e-4, atol=2e-4, err_msg=source)


@pytest.mark.parametrize("seed", seeds(6, 60))
def test_random_programs_with_effects(arch: str, seed: int, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """The same for what depends on the order of iterations. Of few iterations, which all back ends run in one order."""
    source, n = program(seed, effects=True), random.Random(seed).choice((8, 9, 30, 200))
    found = []
    for raw, options in (("1", {}), ("1", {"fuse_tasks": False}), ("0", {})):
        monkeypatch.setenv("SG_FUSE_TASKS_RAW", raw)
        memory, count = outcome(source, n, arch, **options)
        printed = capfd.readouterr().out.splitlines()  # GPUs print in any order
        found.append(([values.tobytes() for values in memory], sorted(printed), count))
    assert found[0][:2] == found[1][:2] == found[2][:2], source
    assert found[0][2] <= found[2][2] <= found[1][2]


@pytest.mark.parametrize("seed", range(4))
def test_gradients_of_random_chains(arch: str, seed: int) -> None:
    rng = random.Random(seed)
    lines = ["@sg.kernel", "def k():"]
    for _ in range(4):
        name, other = rng.sample("xyz", 2)
        lines += ["    for i in range(n):", f"        {name}[i] += {other}[i] * {rng.choice(('0.5', 'w[i]', 'sg.sin(w[i])'))}"]
    source = "\n".join(lines) + "\n"

    def gradient(**options: Any) -> list[Any]:
        sg.init(arch=arch, offline_cache=False, **options)
        n = 33
        values = np.random.default_rng(seed).normal(size=(4, n)).astype(np.float32)
        fields = {name: sg.field(sg.f32, shape=n, needs_grad=True) for name in "xyzw"}
        for name, value in zip(fields, values):
            fields[name].from_numpy(value)
        kernel = load(source, {"sg": sg, "n": n, **fields})
        loss = sg.field(sg.f32, shape=(), needs_grad=True)
        x, y, z = (fields[name] for name in "xyz")

        @sg.kernel
        def total():
            for i in x:
                loss[None] += x[i] * y[i] - z[i]

        with sg.ad.Tape(loss):
            kernel()
            total()
        return [fields[name].grad.to_numpy() for name in fields]

    for mine, theirs in zip(gradient(), gradient(fuse_tasks=False)):
        assert mine.tobytes() == theirs.tobytes(), source

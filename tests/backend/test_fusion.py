"""Parallel loops that run as one dispatch: which do, which must not, and that no bit of any result depends on it."""

from __future__ import annotations

import gc
import re
from typing import Any

import numpy as np
import pytest
from fuzz.run import load

import spirograd as sg
from spirograd import compiler
from spirograd.base.targets import Generator
from spirograd.lang import context
from spirograd.transforms.tasks import fuse

ARCHS = ("cpu", "vulkan", "wgpu", "cuda", "amdgpu")  # the interpreter never fuses
pytestmark = [pytest.mark.archs(*ARCHS), pytest.mark.vulkan_or_wgpu]


def decisions(kernel: Any) -> list[str]:
    """What was decided about each pair of neighbours: "fused", or why not."""
    return [line.split(": ", 1)[1].removeprefix("not fused: ") for line in kernel.explain().splitlines() if " and " in line.split(": ")[0]]


def tasks(kernel: Any) -> int:
    return sum(line.startswith("task") for line in kernel.explain().splitlines())


def filled(n: int, t: Any = sg.f32) -> Any:
    x = sg.field(t, shape=n)
    x.from_numpy((np.arange(n) % 17 + 1).astype(np.float32 if t is sg.f32 else np.int32))
    return x


@pytest.mark.parametrize("n", [0, 1, 5, 1000])
def test_a_chain(session, n: int) -> None:
    x, y, z = (filled(n) if n else sg.field(sg.f32, shape=1) for _ in range(3))

    @sg.kernel
    def chain(n: sg.i32):
        for i in range(n):
            x[i] = x[i] * 2.0 + 1.0
        for i in range(n):
            y[i] = x[i] * x[i]
        for i in range(n):
            z[i] += y[i] - x[i]
        for i in range(n):
            x[i] = z[i]

    chain(n)
    a = (np.arange(n) % 17 + 1).astype(np.float64)
    v = a * 2 + 1
    np.testing.assert_allclose(x.to_numpy()[:n], a + v * v - v, rtol=1e-6)
    np.testing.assert_allclose(y.to_numpy()[:n], v * v, rtol=1e-6)
    assert decisions(chain) == ["fused"] * 3 and tasks(chain) == 1


def test_intermediate_values_stay_in_registers(session) -> None:
    """Each field is read and written once."""
    x, y = filled(100), filled(100)

    @sg.kernel
    def steps():
        for i in x:
            y[i] = x[i] + 1.0
        for i in x:
            x[i] = y[i] * 3.0
        for i in x:
            y[i] += x[i]
        for i in x:
            x[i] -= y[i]

    steps()
    text = steps.ir("offload")
    assert text.count("load[") == 1 and text.count("store[") == 2
    a = np.arange(100) % 17 + 1.0
    np.testing.assert_array_equal(y.to_numpy(), a + 1 + 3 * (a + 1))
    np.testing.assert_array_equal(x.to_numpy(), -(a + 1))


# What the second loop does after the first wrote x[i], and whether they may become one.
BODIES = [
    ("y[i] = x[i]", "fused"),
    ("where[n - 1 - i] = i", "fused"),
    ("y[n - 1 - i] = x[i]", "an iteration of one may access"),
    ("y[i] = x[n - 1 - i]", "an iteration of one may access"),
    ("y[i] = x[max(i - 1, 0)]", "an iteration of one may access"),
    ("y[i] = x[i // 2]", "an iteration of one may access"),
    ("y[i] = x[i % 2]", "an iteration of one may access"),
    ("y[i] = x[i & 1]", "an iteration of one may access"),
    ("y[i] = x[min(i, 3)]", "an iteration of one may access"),
    ("y[i] = x[where[i]]", "an iteration of one may access"),
    ("y[i] = x[0]", "an iteration of one may access"),
    ("x[where[i]] = y[i]", "an iteration of one may access"),
    ("x[i] = y[i]", "fused"),
    ("x[i] += y[i]", "fused"),
    ("total[None] += y[i]", {**dict.fromkeys(("cpu", "cuda", "amdgpu"), "the second sums floats into one element")}),
    ("halves[i // 2] += y[i]", "fused"),
    ("halves[i // 2] += y[i]; halves[i // 3] += x[i]", dict.fromkeys(("cpu", "cuda", "amdgpu"), "the second adds floats to shared")),
    ("count[None] += where[i]", "fused"),
    ("sg.atomic_max(top[None], y[i])", "fused"),
    ("sg.atomic_max(count[None], x[i])", "fused"),
    ("assert x[i] > 0", "both have checks"),
    ("print(x[i])", "fused"),
]


@pytest.mark.parametrize(("body", "verdict"), BODIES, ids=[body for body, _ in BODIES])
def test_what_may_become_one(arch: str, body: str, verdict: str | dict[str, str], capfd: Any) -> None:
    """``verdict``: where it depends on the back end, by that; fused elsewhere."""
    sg.init(arch=arch, debug=body.startswith("assert"))
    n = 12
    names = {"sg": sg, "n": n, "x": filled(n), "y": filled(n), "where": filled(n, sg.i32), "total": sg.field(sg.f32, shape=())}
    names |= {"count": sg.field(sg.i32, shape=()), "top": sg.field(sg.f32, shape=()), "halves": sg.field(sg.f32, shape=n // 2)}
    names["where"].from_numpy(np.arange(n, dtype=np.int32)[::-1].copy())
    source = f"@sg.kernel\ndef k():\n    for i in range(n):\n        x[i] = y[i] * 2.0\n    for i in range(n):\n        {body}\n"
    kernel = load(source, names)
    kernel()
    sg.sync()
    (found,) = decisions(kernel)
    if body.startswith("total") and not context.session().device.caps.cpu_driver:
        verdict = "the second sums floats into one element"  # so do graphics cards, whatever the API
    assert found.startswith(verdict if isinstance(verdict, str) else verdict.get(arch, "fused"))
    a = np.arange(n) % 17 + 1.0
    x, y, where = 2 * a, a.copy(), np.arange(n)[::-1]
    scope = {"n": n, "x": x, "y": y, "where": where, "total": [0.0], "count": [0], "top": [0.0], "halves": np.zeros(6)}
    expected(body, scope)
    for name in ("x", "y", "halves"):
        np.testing.assert_array_equal(names[name].to_numpy(), scope[name])
    for name in ("total", "count", "top"):
        assert names[name][None] == scope[name][0]


def expected(body: str, scope: dict[str, Any]) -> None:
    """The same in Python, an iteration after the other."""
    text = body.replace("[None]", "[0]")
    text = re.sub(r"sg\.atomic_max\((.*?), (.*)\)$", r"\1 = max(\1, \2)", text)
    code = compile(text, "body", "exec")
    for i in range(scope["n"]):
        exec(code, {"print": lambda *values: None}, scope | {"i": i, "max": max, "min": min})


def test_explaining_generates_no_code(session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes most of the time of compiling, and says nothing about tasks."""
    x = filled(8)

    @sg.kernel
    def pair():
        for i in x:
            x[i] += 1.0
        for i in x:
            x[i] *= 2.0

    pair()
    whole = pair.stages()

    def generate(*_: Any) -> Any:
        raise AssertionError("code was generated")

    monkeypatch.setattr(compiler, "_GENERATORS", dict.fromkeys(Generator, generate))
    assert pair.explain() == whole["tasks.txt"] and tasks(pair) == 1
    for stage in ("kernel", "offload", "device"):
        assert pair.ir(stage) == whole[f"{stage}.ir"]


def test_index_spaces_that_differ(session) -> None:
    x, n = filled(20), sg.field(sg.i32, shape=())
    n[None] = 7

    @sg.kernel
    def loops(m: sg.i32):
        for i in range(20):
            x[i] = i
        for i in range(19):
            x[i] += 1
        for i in range(m):
            x[i] += 2
        for i in range(m):
            x[i] *= 3
        for i in range(n[None]):
            x[i] += 5
        for i in range(n[None]):
            n[None] = 4
        for i in range(n[None]):
            x[i] += 7

    loops(9)
    want = np.arange(20.0)
    for count, f in ((19, lambda v: v + 1), (9, lambda v: (v + 2) * 3), (7, lambda v: v + 5), (4, lambda v: v + 7)):
        want[:count] = f(want[:count])
    np.testing.assert_array_equal(x.to_numpy(), want)
    found = decisions(loops)
    assert [text == "fused" for text in found[:4]] == [False, False, True, False]
    assert found[-1] != "fused", "the number of iterations changes before the last loop"


def test_several_axes_and_components(session) -> None:
    u, v = sg.field(sg.f32, shape=(7, 5)), sg.Vector.field(2, sg.f32, shape=(7, 5))

    @sg.kernel
    def planes():
        for i, j in u:
            u[i, j] = i * 10.0 + j
        for i, j in u:
            v[i, j][0] = u[i, j] * 2.0
        for i, j in v:
            v[i, j][1] = v[i, j][0] + 1.0
        for i, j in u:
            u[i, j] = v[j, i % 5][1]

    planes()
    i, j = np.mgrid[:7, :5]
    first = (i * 10.0 + j) * 2
    np.testing.assert_array_equal(v.to_numpy()[..., 0], first)
    np.testing.assert_array_equal(v.to_numpy()[..., 1], first + 1)
    assert [text == "fused" for text in decisions(planes)] == [True, True, False]


@pytest.mark.parametrize("divisor", [0, 3])
def test_quotients_and_remainders_by_what_may_be_zero(session, divisor: int) -> None:
    """By zero, all of them are zero, so that all iterations share one element."""
    n = 1000
    x, y = sg.field(sg.i32, shape=(n, 3)), sg.field(sg.i32, shape=n)

    @sg.kernel
    def count(d: sg.i32):
        for i in range(n):
            x[sg.raw_div(i, d), sg.raw_mod(i, d)] += 1
        for i in range(n):
            y[i] = x[sg.raw_div(i, d), sg.raw_mod(i, d)]

    count(divisor)
    np.testing.assert_array_equal(y.to_numpy(), np.full(n, 1 if divisor else n))
    assert tasks(count) == 2


def test_updates_of_one_element_are_no_atomics(session) -> None:
    """Each loop has its own arithmetic for the index, which is the same element all the same."""
    x, y = filled(101), filled(101)

    @sg.kernel
    def updates():
        for i in range(100):
            x[i + 1] += 1.0
        for i in range(100):
            x[i + 1] += y[i + 1]

    updates()
    a = np.arange(101) % 17 + 1.0
    np.testing.assert_array_equal(x.to_numpy(), np.append(a[:1], 2 * a[1:] + 1))
    text = updates.ir("offload")
    assert tasks(updates) == 1 and "atomic[" not in text and text.count("store[") == 1


def test_extents_of_the_launch(session) -> None:
    """They are not zero in any iteration."""
    u = sg.field(sg.i32, shape=(8, 9))

    @sg.kernel
    def planes(rows: sg.i32, columns: sg.i32):
        for i, j in sg.ndrange(rows, (-1, columns)):
            u[i, j + 1] = i * 10 + j
        for i, j in sg.ndrange(rows, (-1, columns)):
            u[i, j + 1] += u[i, j + 1] * i

    for rows, columns in ((0, 4), (3, -1), (7, 8)):
        u.fill(0)
        planes(rows, columns)
        i, j = np.mgrid[:8, -1:8]
        want = np.where((i < rows) & (j < columns), (i * 10 + j) * (i + 1), 0)
        np.testing.assert_array_equal(u.to_numpy(), want)
    assert decisions(planes) == ["fused"]


def test_loops_that_are_not_neighbours(session) -> None:
    x, y, z = filled(30), filled(30), sg.field(sg.f32, shape=())

    @sg.kernel
    def work():
        for i in x:
            x[i] += 1.0
        z[None] = 3.0
        for i in range(10):
            y[i] = 2.0
        for i in x:
            x[i] *= 2.0

    @sg.kernel
    def ordered():
        for i in x:
            x[i] += 1.0
        z[None] = x[29]
        for i in x:
            x[i] *= 2.0

    work()
    ordered()
    a = (np.arange(30) % 17 + 2.0) * 2 + 1
    np.testing.assert_array_equal(x.to_numpy(), a * 2)
    assert z[None] == a[29]
    assert tasks(work) == 3 and "the code between them" in ordered.explain()


def test_it_can_be_switched_off(arch: str, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    def counted(**options: Any) -> str:
        sg.init(arch=arch, **options)
        x, y = filled(10), filled(10)

        def pair():
            for i in x:
                x[i] = 1.0
            for i in x:
                y[i] = x[i]

        kernels = [sg.kernel(pair), sg.kernel(fuse=False)(pair), sg.kernel(graph=True)(pair)]
        for kernel in kernels:
            kernel()
        assert [tasks(kernel) for kernel in kernels[1:]] == [2, 2]
        by = ["`kernel(fuse=False)`", "`kernel(graph=True)`"]
        if "advanced_optimization" not in options:
            assert [decisions(kernel) for kernel in kernels[1:]] == [[f"{option} keeps the loops of this kernel apart"] for option in by]
        (decision,) = decisions(kernels[0])
        assert tasks(kernels[0]) == (1 if decision == "fused" else 2)
        return decision

    assert counted() == "fused"
    assert counted(fuse_tasks=False) == "`init(fuse_tasks=False)` switches fusion off"
    assert counted(cfg_optimization=False) == "fused"  # LLVM alone does less
    assert counted(advanced_optimization=False) == "optimisation is switched off"
    raw = "both access `x`, which one of them writes, and `{}=0` keeps such loops apart"
    for name in ("SG_FUSE_TASKS", "QD_AGGRESSIVE_KERNEL_FUSION", "SG_FUSE_TASKS_RAW", "QD_AGGRESSIVE_KERNEL_FUSION_RAW"):
        with monkeypatch.context() as changed:
            changed.setenv(name, "0")
            assert counted() == (raw.format(name) if name.endswith("RAW") else f"`{name}=0` switches fusion off")
    capfd.readouterr()
    monkeypatch.setenv("SG_FUSE_TASKS_DIAG", "1")
    counted()
    assert re.search(r"test_fusion\.py:\d+ and .*test_fusion\.py:\d+: fused", capfd.readouterr().err)
    counted(fuse_tasks=False)
    assert re.search(r"test_fusion\.py:\d+: not fused: `init\(fuse_tasks=False\)` switches", capfd.readouterr().err)


@pytest.mark.parametrize("taped", [False, True])
def test_random_numbers(arch: str, taped: bool) -> None:
    """The same fused and apart, in the derivative, too."""

    def drawn(fuse: bool) -> list[Any]:
        sg.init(arch=arch, fuse_tasks=fuse, random_seed=7, offline_cache=False)
        n = 100
        x, y, loss = (sg.field(sg.f32, shape=shape, needs_grad=True) for shape in (n, n, ()))
        k = sg.field(sg.i32, shape=n)
        x.fill(1.5)

        @sg.kernel
        def draw():
            for i in x:
                y[i] += x[i] * sg.random()
            for i in x:
                y[i] *= x[i]
            for i in x:
                k[i] = sg.random(sg.i32)
            for i in x:
                k[i] += 1

        @sg.kernel
        def total():
            for i in y:
                loss[None] += y[i]

        if taped:
            with sg.ad.Tape(loss):
                draw()
                total()
        else:
            draw()
            draw()
        if fuse:
            assert decisions(draw)[::2] == ["fused", "fused"]
        assert fuse or tasks(draw) == 4
        return [field.to_numpy() for field in (x.grad, y, k)]

    fused, apart = drawn(True), drawn(False)
    for mine, theirs in zip(fused, apart):
        assert mine.tobytes() == theirs.tobytes()
    assert len(np.unique(fused[1])) > 90 and len(np.unique(fused[2])) > 90
    assert not taped or len(np.unique(fused[0])) > 90


def test_sums_before_and_after_fused_loops(session) -> None:
    """Each of them of the whole index space, whatever the loops beside them became."""
    n = 300
    x, t, k = filled(n), sg.field(sg.f32, shape=()), sg.field(sg.i32, shape=n)

    @sg.kernel
    def sums():
        for i in range(n):
            t[None] += x[i]
        for i in range(n):
            k[i] += 2 * i
        for i in range(n):
            t[None] += 2.0 * x[i]
        for i in range(n):
            t[None] += 1.0

    sums()
    total = 3.0 * (np.arange(n) % 17 + 1).sum() + n
    assert t[None] == total
    sums()
    assert t[None] == 2 * total
    np.testing.assert_array_equal(k.to_numpy(), 4 * np.arange(n))


def test_long_inner_loops(session) -> None:
    """Apart, each of them has few enough iterations for every driver."""
    n = 4
    x, y = sg.field(sg.i32, shape=n), sg.field(sg.i32, shape=n)

    @sg.kernel
    def count(m: sg.i32):
        for i in range(n):
            for j in range(m):
                x[i] += j & i
        for i in range(n):
            for j in range(m):
                y[i] += j ^ i

    count(40000)
    j, i = np.arange(40000), np.arange(n)[:, None]
    np.testing.assert_array_equal(x.to_numpy(), (j & i).sum(1))
    np.testing.assert_array_equal(y.to_numpy(), (j ^ i).sum(1))


@pytest.mark.parametrize("fast_math", [True, False])
@pytest.mark.parametrize(
    ("step", "ordered"),
    [("v * 0.5 + x[i]", True), ("v + x[j]", False), ("x[j] - v + j", False), ("v * x[j]", False), ("v if j > 2 else v + x[i]", True)],
)
def test_inner_loops_that_carry_floats(arch: str, step: str, ordered: bool, fast_math: bool) -> None:
    """LLVM takes sums and products in any order with fast math, everything else as it is written."""

    def results(fuse: bool) -> list[bytes]:
        sg.init(arch=arch, fast_math=fast_math, fuse_tasks=fuse, offline_cache=False)
        x, y, z = filled(101), filled(101), filled(101)
        loop = f"    for i in x:\n        v = 1.25\n        for j in range(9):\n            v = {step}\n"
        source = f"@sg.kernel\ndef k():\n{loop}        y[i] = v\n{loop}        z[i] += v * y[i]\n"
        kernel = load(source, {"sg": sg, "x": x, "y": y, "z": z})
        kernel()
        (found,) = decisions(kernel)
        if fuse and (ordered or not fast_math or arch in ("vulkan", "wgpu")):
            assert found == "fused"
        elif fuse:
            assert found.startswith("the first has an inner loop that sums floats")
        return [field.to_numpy().tobytes() for field in (y, z)]

    assert results(True) == results(False)


def test_the_first_fault_and_all_prints(arch: str, capfd: Any) -> None:
    """Loops of which only one reports are fused; loops that both do report in their order."""
    sg.init(arch=arch, check_out_of_bound=True)
    x, y = sg.field(sg.i32, shape=8), sg.field(sg.i32, shape=8)

    @sg.kernel
    def both(m: sg.i32):
        for i in range(8):
            x[i + (m if i == 7 else 0)] = i
        for i in range(8):
            y[i + m] = 2 * i

    with pytest.raises(sg.SpirogradAssertionError, match="field `x`"):
        both(5)
        sg.sync()
    assert decisions(both) == ["both have checks, those of the first come first"]
    np.testing.assert_array_equal(y.to_numpy(), [0] * 5 + [0, 2, 4])

    sg.init(arch=arch)
    z = sg.field(sg.i32, shape=8)

    @sg.kernel
    def printing():
        for i in range(8):
            z[i] = 3 * i
        for i in range(8):
            print("z", z[i])
        for i in range(8):
            z[i] += 1
        for i in range(8):
            print("then", z[i])

    printing()
    sg.sync()
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines[:8]) == sorted(f"z {3 * i}" for i in range(8))
    assert sorted(lines[8:]) == sorted(f"then {3 * i + 1}" for i in range(8))
    assert decisions(printing) == ["fused", "fused", "both have prints, those of the first come first"]


def test_what_builds_fused_loops_is_freed_at_once(session: Any) -> None:
    """Not by the cycle collector, because it refers to all operations of the kernel."""
    x, y = sg.field(sg.f32, 8), sg.field(sg.f32, 8)

    @sg.kernel
    def run():
        for i in x:
            x[i] = 2.0 * i
        for i in x:
            y[i] = x[i] + 1.0

    gc.collect()
    gc.disable()
    try:
        run()
        left = [one for one in gc.get_objects() if isinstance(one, fuse._Build)]
    finally:
        gc.enable()
    assert not left
    np.testing.assert_array_equal(y.to_numpy(), 2.0 * np.arange(8) + 1)

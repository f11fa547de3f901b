"""Names of the user's mean nothing to the compiler: programs that use all those that it uses itself, for everything that has a name."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.adstack_layout import AdstackWord
from spirograd.ir import ops
from spirograd.ir.temp_kinds import TempKind

pytestmark = pytest.mark.vulkan_or_wgpu

# What the compiler calls temporaries, tapes, saved-value buffers, tasks, arguments and symbols of its own, with and without a number.
STEMS = ["tape", "saved", "adjoint", "live_in", "result", "returned", "old", "final", "lost", "place", "row", "sizes", "state", "grad"]
KINDS = [*TempKind, *AdstackWord]
WORDS = sorted({*STEMS, "dual", *[kind.value for kind in KINDS], "capacity_left", "before", "after", "late", "temps", "main"})
NAMES = [name for word in WORDS for name in (word, f"{word}0")]
# With what no identifier has in it, for what takes a string.
STRINGS = ["x%before", "capacity%0", "%old", "claims%final0", "place.adstacks", "x.grad", "", "../x y", "llvm.memcpy.p0.p0.i64"]
KERNELS = ["main", "llvm", "sin", "sg_kernel", "entry", "void"]


def module(tmp_path: Any, source: str) -> Any:
    path = tmp_path / "named.py"
    path.write_text("import spirograd as sg\n" + source)
    spec = importlib.util.spec_from_file_location("named", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def block(lines: list[str], depth: int) -> str:
    return "\n".join(" " * depth + line for line in lines)


def test_variables(session: Any, tmp_path: Any) -> None:
    """Each name is a variable that a parallel loop accumulates, with a loop that has a tape below a condition beside it."""
    source = f"""
@sg.kernel
def k(x: sg.template(), n: sg.template(), y: sg.template()):
{block([f"{name} = 0.0" for name in NAMES], 4)}
    for i in range(4):
        if x[i] > 0.0:
            v = x[i]
            for _ in range(n[None]):
                v = sg.sin(v) + 0.5
{block([f"{name} += {k + 1} * v" for k, name in enumerate(NAMES)], 12)}
{block([f"y[None] += {name}" for name in NAMES], 4)}
"""
    x, y = sg.field(sg.f32, shape=4, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)
    n = sg.field(sg.i32, shape=())
    x.from_numpy(np.float32([0.3, -1.0, 0.7, 0.9]))
    k = module(tmp_path, source).k
    for trips in (3, 0, 20):
        n[None], y[None], y.grad[None] = trips, 0.0, 1.0
        x.grad.fill(0.0)
        k(x, n, y)
        k.grad(x, n, y)
        v, slope = x.to_numpy().astype(np.float64), np.ones(4)
        for _ in range(trips):
            slope *= np.cos(v)
            v = np.sin(v) + 0.5
        weight, taken = sum(range(1, len(NAMES) + 1)), x.to_numpy() > 0
        np.testing.assert_allclose(y[None], weight * v[taken].sum(), rtol=1e-5)
        np.testing.assert_allclose(x.grad.to_numpy(), weight * slope * taken, rtol=1e-4)


def test_arguments_and_functions(session: Any, tmp_path: Any) -> None:
    source = f"""
{
        "".join(
            [
                f'''
@sg.func
def f_{name}({name}, x):
    {name} = {name} * x
    return {name}
'''
                for name in NAMES
            ]
        )
    }
{"".join([f"{name} = f_{name}" + chr(10) for name in NAMES])}
@sg.kernel
def k({", ".join(f"{name}: sg.f32" for name in NAMES)}) -> sg.f32:
    total = 0.0
    for i in range(3):
{block([f"total += sg.cast(i, sg.f32) * {name}" for name in NAMES], 8)}
    return total

@sg.kernel
def called(x: sg.template()) -> sg.f32:
    total = 0.0
    for i in range(3):
{block([f"total += {name}({n + 1}.0, x[i])" for n, name in enumerate(NAMES)], 8)}
    return total
"""
    made = module(tmp_path, source)
    numbers = np.arange(len(NAMES), dtype=np.float64) + 1
    assert made.k(*numbers) == 3 * numbers.sum()
    x = sg.field(sg.f32, shape=3, needs_grad=True)
    x.from_numpy(np.float32([1, 2, 3]))
    assert made.called(x) == 6 * numbers.sum()
    made.called.grad(x, returned=2.0)
    np.testing.assert_allclose(x.grad.to_numpy(), 2 * numbers.sum())


def test_arrays(session: Any, tmp_path: Any) -> None:
    names = NAMES[::4]
    source = f"""
@sg.kernel
def k({", ".join(f"{name}: sg.types.ndarray(sg.f32, 1, needs_grad=True)" for name in names)}, y: sg.template()):
    for i in range(3):
{block([f"y[None] += {n + 1} * {name}[i] * {name}[i]" for n, name in enumerate(names)], 8)}
"""
    y = sg.field(sg.f32, shape=(), needs_grad=True)
    arrays = [sg.ndarray(sg.f32, 3, needs_grad=True) for _ in names]
    for n, array in enumerate(arrays):
        array.from_numpy(np.float32([n, 1, 2]))
    y.grad[None] = 1.0
    k = module(tmp_path, source).k
    k(*arrays, y)
    k.grad(*arrays, y)
    for n, array in enumerate(arrays):
        np.testing.assert_allclose(array.grad.to_numpy(), 2 * (n + 1) * np.float32([n, 1, 2]))


@pytest.mark.parametrize("name", STRINGS)
def test_fields_and_loops(session: Any, name: str) -> None:
    """Names given as strings: of fields, and of the tasks that loops become. One is read as it was before the kernel."""
    x = sg.field(sg.f32, shape=4, name=name, needs_grad=True)
    n = sg.field(sg.i32, shape=(), name=name)
    y = sg.field(sg.f32, shape=(), name=name, needs_grad=True)

    @sg.kernel
    def k():
        sg.loop_config(name=name)
        for i in x:
            if x[i] > 0.0:
                v = x[i]
                for _ in range(n[None]):
                    v = v * v
                y[None] += v
        sg.loop_config(name=name)
        for i in x:
            x[i] = 2.0 * x[i]
        sg.loop_config(name=f"{name}_2")
        for i in x:
            x[i] += 1.0

    start = np.float32([0.5, -1.0, 2.0, 1.5])
    x.from_numpy(start)
    n[None] = 2
    with sg.ad.Tape(y):
        k()
    np.testing.assert_allclose(x.grad.to_numpy(), np.where(start > 0, 4 * start**3, 0), rtol=1e-5)
    np.testing.assert_array_equal(x.to_numpy(), 2 * start + 1)


def test_loops_with_the_names_of_tasks(session: Any) -> None:
    x = sg.field(sg.i32, shape=5)

    @sg.kernel
    def k():
        sg.loop_config(name="a_2")
        for i in x:
            x[i] += i
        sg.loop_config(name="a")
        for i in range(3):
            x[i] *= 2
        sg.loop_config(name="a")
        for i in range(4):
            x[i] += 1
        sg.loop_config(name="k_4")
        for i in range(2):
            x[i] *= 3
        for i in range(1):
            x[i] += 7

    k()
    assert x.to_numpy().tolist() == [10, 9, 5, 4, 4]


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(session: Any, tmp_path: Any, name: str) -> None:
    source = f"""
@sg.kernel
def {name}(x: sg.template()):
    for i in x:
        x[i] = sg.sin(x[i])
    for i in range(2):
        x[i] += 1.0
"""
    x = sg.field(sg.f32, shape=3, needs_grad=True)
    x.fill(0.5)
    kernel = getattr(module(tmp_path, source), name)
    kernel(x)
    np.testing.assert_allclose(x.to_numpy(), np.sin(0.5) + np.array([1, 1, 0]), rtol=1e-5)


def test_operations_as_names(session: Any, tmp_path: Any) -> None:
    """The names of the IR: operations, types, classes of attributes."""
    names = sorted(
        {code.name for code in vars(ops).values() if isinstance(code, ops.OpCode)} - {"for", "if", "while", "yield", "and", "or", "not"}
    )
    names += [
        "i32",
        "f32",
        "u1",
        "vec3",
        "void",
        "nan",
        "inf",
        "TempRef",
        "FieldRef",
        "ArrayRef",
        "AdstackRef",
        "Slot",
        "Loc",
        "Kernel",
        "ref",
    ]
    source = f"""
@sg.kernel
def k(x: sg.template(), y: sg.template()):
{block([f"{name} = 0.0" for name in names], 4)}
    for i in range(2):
{block([f"{name} += {n} * x[i]" for n, name in enumerate(names)], 8)}
{block([f"y[None] += {name}" for name in names], 4)}
"""
    x, y = sg.field(sg.f32, shape=2, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)
    x.fill(1.0)
    y.grad[None] = 1.0
    k = module(tmp_path, source).k
    k(x, y)
    k.grad(x, y)
    total = sum(range(len(names)))
    assert y[None] == 2 * total
    assert x.grad.to_numpy().tolist() == [total, total]


@pytest.mark.archs("vulkan")  # one stage for each task
def test_stages_of_named_tasks(arch: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SG_DUMP", str(tmp_path / "stages"))
    sg.init(arch=arch)
    x = sg.field(sg.i32, shape=4)

    @sg.kernel
    def k():
        sg.loop_config(name="../x y")
        for i in x:
            x[i] = i

    k()
    assert [path.name.endswith(".._x_y.spv") for path in (tmp_path / "stages").iterdir() if path.suffix == ".spv"] == [True]
    assert [path.name for path in tmp_path.iterdir()] == ["stages"]

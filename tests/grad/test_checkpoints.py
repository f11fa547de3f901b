"""Tapes that run steps again: gradients and memory are those of a tape that saves everything, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.vulkan_or_wgpu

torch = needs.package("torch")

N = 7


class Program:
    """Fields, an ndarray, and kernels that overwrite what their gradients read."""

    def __init__(self, dtype: Any = sg.f32) -> None:
        self.a, self.b, self.c = (sg.field(dtype, shape=N, needs_grad=True) for _ in range(3))
        self.rows = sg.field(dtype, shape=(5, N), needs_grad=True)
        self.array = sg.ndarray(dtype, N, needs_grad=True)
        self.count = sg.field(sg.i32, shape=())
        self.loss = sg.field(dtype, shape=(), needs_grad=True)

        @sg.kernel
        def step(x: sg.template(), y: sg.template(), scale: sg.f32):
            for i in x:
                y[i] += scale * sg.sin(x[i]) * x[(i + 1) % N] - 0.1 * y[i] * y[i]

        @sg.kernel
        def into_row(x: sg.template(), t: sg.i32):
            for i in x:
                self.rows[t, i] = x[i] * self.rows[(t + 4) % 5, i] + 0.5 * x[i]

        @sg.kernel
        def of_array(array: sg.types.NDArray[dtype, 1], x: sg.template()):
            for i in x:
                array[i] = 0.8 * array[i] + x[i] * x[i]
                x[i] = 0.9 * sg.cos(array[i]) + self.rows[i % 5, i]

        @sg.kernel
        def counted(x: sg.template()) -> sg.i32:
            self.count[None] += 1
            for i in x:
                if i < self.count[None] % N:
                    x[i] *= 1.0 + 0.05 * self.count[None]
            return self.count[None]

        @sg.kernel
        def total(x: sg.template()):
            for i in x:
                self.loss[None] += x[i] * x[i] + 0.3 * self.rows[i % 5, i] + self.array[i]

        self.step, self.into_row, self.of_array, self.counted, self.total = step, into_row, of_array, counted, total

    @property
    def memory(self) -> list[Any]:
        return [self.a, self.b, self.c, self.rows, self.array, self.count, self.loss]

    def start(self) -> None:
        for k, x in enumerate((self.a, self.b, self.c, self.array)):
            x.from_numpy(np.linspace(0.2 + 0.1 * k, 0.9, N))
        self.rows.from_numpy(np.linspace(0.1, 0.6, 5 * N).reshape(5, N))
        self.count.fill(0)

    def gradients(self, run: Callable[[], None], **options: Any) -> tuple[list[np.ndarray], list[np.ndarray], Any]:
        """All gradients, all memory, and the report of the tape."""
        self.start()
        with sg.ad.Tape(self.loss, **options) as tape:
            run()
        gradients = [x.grad.to_numpy() for x in self.memory if x is not self.count]
        return gradients, [x.to_numpy() for x in self.memory], tape.memory_report()

    def check(self, run: Callable[[], None], **options: Any) -> Any:
        """Compare a tape with ``options`` with one that saves everything; gives the report."""
        wanted, memory, _ = self.gradients(run)
        assert any(gradient.any() for gradient in wanted)
        found, after, report = self.gradients(run, **options)
        for a, b in zip([*wanted, *memory], [*found, *after]):
            np.testing.assert_array_equal(a, b)
        return report


@pytest.fixture
def program(session: Any) -> Program:
    return Program()


@pytest.mark.parametrize("checkpoints", [1, 2, 3, 100])
def test_gradients_are_the_same(program: Program, checkpoints: int) -> None:
    p = program

    def run() -> None:
        for t in range(7):
            p.step(p.a, p.b, 0.3)
            p.step(p.b, p.c, 0.1 * t)
            p.into_row(p.c, t % 5)
            p.of_array(p.array, p.a)
        p.total(p.a)

    report = p.check(run, checkpoints=checkpoints)
    assert report.launches == report.repetitions.steps == 29
    assert report.repetitions.ran and report.repetitions.repeated >= 29
    if checkpoints == 100:
        assert report.repetitions.repeated == report.repetitions.checkpoints == 29


@pytest.mark.needs("torch")
def test_gradients_are_those_of_torch(arch: str) -> None:
    sg.init(arch=arch)
    x, c = (sg.field(sg.f32, shape=N, needs_grad=True) for _ in range(2))
    loss = sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def step():
        for i in x:
            x[i] = c[i] * x[i] * (1.5 - x[i])

    @sg.kernel
    def total():
        for i in x:
            loss[None] += x[i] ** 2

    start, factors = np.linspace(0.2, 1.2, N), np.linspace(1.2, 1.7, N)
    x.from_numpy(start)
    c.from_numpy(factors)
    with sg.ad.Tape(loss, checkpoints=3):
        for _ in range(20):
            step()
        total()
    tx, tc = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (start, factors))
    value = tx
    for _ in range(20):
        value = tc * value * (1.5 - value)
    (value**2).sum().backward()
    np.testing.assert_allclose(x.to_numpy(), value.detach().numpy(), rtol=1e-4)
    np.testing.assert_allclose(x.grad.to_numpy(), tx.grad.numpy(), rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(c.grad.to_numpy(), tc.grad.numpy(), rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("checkpoints", [1, 3])
def test_writes_of_python_are_repeated(program: Program, checkpoints: int) -> None:
    """Elements, whole contents, copies, fills by arrays that change later, values that Python read from memory."""
    p, element = program, np.array([0.25] * N)

    def run() -> None:
        for t in range(4):
            p.step(p.a, p.b, 0.3)
            p.b[t] = 0.1 * t
            p.a[2] += 0.5
            p.c.copy_from(p.b)
            p.step(p.c, p.a, float(p.c[1]))
            p.rows[t, 3] = 0.7
            p.c.fill(0.25 * t)
            p.step(p.a, p.c, 0.01 * p.counted(p.a))
            element[:] = t
            p.b.from_numpy(element * 0.1)
            p.array.copy_from(p.c)
            p.array[t] = 3.0
            p.of_array(p.array, p.b)
        p.total(p.b)

    report = p.check(run, checkpoints=checkpoints)
    assert report.repetitions.steps == 4 * 15 + 1  # of 15 in a turn, two are reads of memory with a gradient


def test_a_fill_repeats_the_numbers_that_it_had(arch: str) -> None:
    sg.init(arch=arch)
    v = sg.Vector.field(2, sg.f32, shape=3, needs_grad=True)
    w = sg.Vector.ndarray(2, sg.f32, 3, needs_grad=True)
    x, loss = sg.field(sg.f32, shape=3, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def add(w: sg.types.NDArray[sg.types.Vector[2, sg.f32], 1]):
        for i in x:
            loss[None] += x[i] * (v[i][0] + 10 * v[i][1] + 100 * w[i][1])

    element = np.zeros(2, np.float32)
    with sg.ad.Tape(loss, checkpoints=1):
        for t in range(3):
            element[:] = t, t + 1
            v.fill(element)
            w.fill(element)
            add(w)
    assert x.grad.to_numpy().tolist() == [(0 + 1 + 2) + 110 * (1 + 2 + 3)] * 3


@pytest.mark.parametrize("checkpoints", [1, 4])
def test_random_numbers_are_repeated(arch: str, checkpoints: int) -> None:
    sg.init(arch=arch)
    x, loss = sg.field(sg.f32, shape=N, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def scale():
        for i in x:
            x[i] = x[i] * (0.5 + sg.random(sg.f32))

    @sg.kernel
    def total():
        for i in x:
            loss[None] += x[i]

    x.fill(1.0)
    with sg.ad.Tape(loss, checkpoints=checkpoints):
        for _ in range(9):
            scale()
        total()
    np.testing.assert_allclose(x.grad.to_numpy(), x.to_numpy(), rtol=1e-5)  # both are the product of the factors


def test_prints_are_not_repeated(arch: str, capfd: pytest.CaptureFixture[str]) -> None:
    sg.init(arch=arch)
    x, loss = sg.field(sg.f32, shape=2, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def step(t: sg.i32):
        for i in x:
            x[i] = x[i] * x[i] + 0.1
            if i == 0:
                print("step", t)

    @sg.kernel
    def total():
        for i in x:
            loss[None] += x[i]

    with sg.ad.Tape(loss, checkpoints=1):
        for t in range(4):
            step(t)
        total()
    step(4)
    sg.sync()
    assert capfd.readouterr().out == "".join(f"step {t}\n" for t in range(5))


def test_gradients_of_pythons_own(program: Program) -> None:
    """`no_grad` and `grad_replaced` functions lie between checkpoints."""
    p = program

    @sg.ad.no_grad
    def aside() -> None:
        p.step(p.a, p.c, 0.2)
        p.count[None] = 3

    @sg.ad.grad_replaced
    def doubled() -> None:
        p.into_row(p.b, 1)
        p.step(p.b, p.a, 0.5)

    @sg.kernel
    def back():
        for i in p.a:
            p.b.grad[i] += p.a[i] * p.a.grad[i] + p.rows[1, i]

    @sg.ad.grad_for(doubled)
    def doubled_back() -> None:
        back()

    def run() -> None:
        for t in range(5):
            p.step(p.a, p.b, 0.3)
            aside()
            doubled()
            p.into_row(p.a, t)
        p.total(p.b)

    for checkpoints in (1, 3, 50):
        p.check(run, checkpoints=checkpoints)


def test_the_reverse_runs_any_number_of_times(program: Program) -> None:
    p = program

    def run() -> None:
        for t in range(6):
            p.step(p.a, p.b, 0.3)
            p.step(p.b, p.a, 0.2)
            p.into_row(p.a, t % 5)
        p.total(p.a)

    wanted = p.gradients(run)[0]
    p.start()
    p.loss.fill(0.0)
    with sg.ad.Tape(checkpoints=3) as tape:
        run()
    after = [x.to_numpy() for x in p.memory]
    for _ in range(3):
        sg.ad.clear_all_gradients()
        p.loss.grad.fill(1.0)
        tape.grad()
        for x, gradient in zip((p.a, p.b), wanted):
            np.testing.assert_array_equal(x.grad.to_numpy(), gradient)
        for x, values in zip(p.memory, after):
            np.testing.assert_array_equal(x.to_numpy(), values)
    p.b[3] = 1.0
    with pytest.raises(sg.SpirogradRuntimeError, match="was written after the tape was closed"):
        tape.grad()


@pytest.mark.parametrize("steps", [0, 1])
def test_few_steps(program: Program, steps: int) -> None:
    p = program
    p.start()
    with sg.ad.Tape(p.loss, checkpoints=2) as tape:
        for _ in range(steps):
            p.total(p.a)
    assert (p.a.grad.to_numpy() == (2 * p.a.to_numpy() if steps else 0)).all()
    assert tape.memory_report().repetitions.repeated == steps


def test_a_budget_is_kept(arch: str) -> None:
    """The copies take what they may; with more memory, less is repeated."""
    sg.init(arch=arch)
    x, y = (sg.field(sg.f32, shape=64, needs_grad=True) for _ in range(2))
    loss = sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def step(a: sg.template(), b: sg.template()):
        for i in a:
            b[i] += 0.1 * sg.sin(a[i]) * b[i]

    @sg.kernel
    def total():
        for i in x:
            loss[None] += x[i] * y[i]

    def gradient(**options: Any) -> tuple[np.ndarray, Any]:
        x.fill(0.5)
        y.fill(0.7)
        with sg.ad.Tape(loss, **options) as tape:
            for t in range(40):
                step(*((x, y) if t % 2 else (y, x)))
            total()
        return x.grad.to_numpy(), tape.memory_report()

    wanted, plain = gradient()
    assert plain.total == 40 * 256 + plain.nbytes.get("loss", 0)
    repeated = []
    for nbytes in (12 * 256, 20 * 256, 100 * 256):
        found, report = gradient(memory_GB=nbytes / 1e9)
        np.testing.assert_array_equal(found, wanted)
        assert report.repetitions.peak <= nbytes
        repeated.append(report.repetitions.repeated)
    assert repeated[0] > repeated[1] > repeated[2] == 41
    too_little = r"`memory_GB=2e-07` has too little memory\n.*one step take .* GB: raise `memory_GB`"
    with pytest.raises(sg.SpirogradRuntimeError, match=too_little):
        gradient(memory_GB=200 / 1e9)


def test_report(program: Program) -> None:
    """What it is planned to take, and what it took."""
    p = program
    p.start()
    with sg.ad.Tape(checkpoints=2) as tape:
        for _ in range(9):
            p.step(p.a, p.b, 0.3)
            p.step(p.b, p.a, 0.3)
        p.total(p.a)
        planned = tape.memory_report()
    assert not planned.repetitions.ran and planned.repetitions.checkpoints == 2
    p.loss.grad.fill(1.0)
    tape.grad()
    ran = tape.memory_report()
    assert (ran.repetitions.ran, ran.repetitions.repeated) == (True, planned.repetitions.repeated)
    text = str(ran).splitlines()
    assert text[0] == f"tape of 19 launches: {ran.total} bytes saved, at most {ran.repetitions.peak} bytes at a time"
    again = f"{ran.repetitions.repeated} steps again, {ran.repetitions.repeated / 19:.2f} times the program"
    assert text[1] == f"  2 checkpoints in 19 steps; the reverse pass ran {again}"
    assert "the reverse pass will run" in str(planned)


@pytest.mark.parametrize(
    "options", [{"checkpoints": 0}, {"checkpoints": 1.5}, {"checkpoints": "3"}, {"memory_GB": -1.0}, {"memory_GB": True}]
)
def test_wrong_limits(options: dict[str, Any]) -> None:
    sg.init(arch=sg.interpreter)
    loss = sg.field(sg.f32, shape=(), needs_grad=True)
    with pytest.raises(sg.SpirogradValueError, match=f"`{next(iter(options))}` of a tape is a"):
        sg.ad.Tape(loss, **options)


def test_what_cannot_be_repeated(arch: str) -> None:
    sg.init(arch=arch)
    x, loss = sg.field(sg.f32, shape=4, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)
    sparse = sg.field(sg.f32)
    sg.root.pointer(sg.i, 4).place(sparse)

    @sg.kernel
    def of_array(a: sg.types.NDArray[sg.f32, 1]):
        for i in x:
            loss[None] += a[i] * x[i]

    @sg.kernel
    def of_gradient():
        for i in x:
            x.grad[i] = 0.0

    @sg.kernel
    def of_sparse():
        for i in x:
            loss[None] += sparse[i] * x[i]

    @sg.kernel
    def of_field():
        for i in x:
            loss[None] += x[i] * x[i]

    cases: list[tuple[Callable[[], None], str]] = [
        (lambda: of_array(np.ones(4, np.float32)), "`of_array` takes an array of NumPy or torch(.|\n)*of_array.*(.|\n)*pass an ndarray"),
        (of_gradient, "`of_gradient` writes `x.grad`, which the reverse pass adds to"),
        (of_sparse, "`of_sparse` uses the sparse field `sparse`"),
    ]
    for run, message in cases:
        for options in ({"checkpoints": 2}, {}):
            with pytest.raises(sg.SpirogradUnsupportedError, match=message), sg.ad.Tape(loss, **options):
                sg.ad.checkpoint(run)
    if arch in ("cpu", "interpreter"):
        with sg.ad.Tape(checkpoints=2) as tape:
            of_field()
        shared = x.to_numpy(copy=False)
        with pytest.raises(sg.SpirogradUnsupportedError, match="they use `x`, which was handed out"):
            tape.grad()
        with pytest.raises(sg.SpirogradUnsupportedError, match="uses `x`, which was handed out"), sg.ad.Tape(loss, checkpoints=2):
            of_field()
        del shared


# --- checkpoint -----------------------------------------------------------------------------------------------------------------


def test_checkpoint_of_a_function(program: Program) -> None:
    p = program

    def block(t: int, *, scale: float) -> int:
        p.step(p.a, p.b, scale)
        p.b[t] = 0.3
        p.c.copy_from(p.b)
        p.step(p.c, p.a, 0.2)
        p.into_row(p.a, t)
        return t + 1

    def run_with(call: Callable[..., Any]) -> Callable[[], None]:
        def run() -> None:
            for t in range(5):
                assert call(block, t, scale=0.1 * t) == t + 1
                p.step(p.b, p.c, 0.1)
            call(lambda: None)
            p.total(p.a)

        return run

    def plainly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def nested(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return sg.ad.checkpoint(lambda: sg.ad.checkpoint(function, *args, **kwargs))

    wanted, memory, plain = p.gradients(run_with(plainly))
    for call, options in ((sg.ad.checkpoint, {}), (nested, {}), (sg.ad.checkpoint, {"checkpoints": 3})):
        found, after, report = p.gradients(run_with(call), **options)
        for a, b in zip([*wanted, *memory], [*found, *after]):
            np.testing.assert_array_equal(a, b)
        assert report.launches == plain.launches == 21
    p.start()
    assert sg.ad.checkpoint(block, 2, scale=0.1) == 3  # without a tape


def test_checkpoint_saves_memory(arch: str) -> None:
    """Of each call, what its memory held before it."""
    sg.init(arch=arch)
    x, loss = sg.field(sg.f32, shape=64, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def step():
        for i in x:
            x[i] = x[i] * x[i] * 0.9 + 0.2

    @sg.kernel
    def total():
        for i in x:
            loss[None] += x[i]

    def ten() -> None:
        for _ in range(10):
            step()

    found = []
    for call in (lambda f: f(), sg.ad.checkpoint):
        x.fill(0.4)
        with sg.ad.Tape(loss) as tape:
            for _ in range(5):
                call(ten)
            total()
        found.append((tape.memory_report().nbytes["x"], x.grad.to_numpy()))
    assert (found[0][0], found[1][0]) == (50 * 256, 5 * 256)
    np.testing.assert_array_equal(found[0][1], found[1][1])


# --- random programs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(program: Program, seed: int, tmp_path: Path) -> None:
    p, rng = program, random.Random(seed)
    fields = [p.a, p.b, p.c]

    def one() -> Callable[[], None]:
        x, y = rng.sample(fields, 2)
        t, scale = rng.randrange(5), rng.uniform(-0.3, 0.3)
        values = np.array([rng.uniform(0, 1) for _ in range(N)])
        block = [lambda: p.step(x, y, scale), lambda: p.into_row(x, t), lambda: p.of_array(p.array, x)]
        return rng.choice(
            [
                *block,
                *block,
                lambda: p.counted(x) and None,
                lambda: x.fill(scale),
                lambda: x.copy_from(y),
                lambda: x.from_numpy(values),
                lambda: x.__setitem__(t, scale),
                lambda: p.rows.__setitem__((t, 1), scale),
                lambda: sg.ad.checkpoint(lambda: [f() for f in block]) and None,
            ]
        )

    steps = [one() for _ in range(rng.choice([2, 9, 25]))]

    def run() -> None:
        for step in steps:
            step()
        p.total(p.a)

    limits: dict[str, Any] = {"memory_GB": rng.randrange(1500, 6000) / 1e9}
    if seed >= 3:
        limits |= {"memory_GB": 1500 / 1e9, "host_GB": rng.randrange(300, 2000) / 1e9}
    if seed >= 4:
        limits |= {"disk_GB": rng.randrange(300, 3000) / 1e9, "disk_folder": tmp_path}
    p.check(run, **rng.choice([{"checkpoints": rng.randrange(1, 8)}, limits] if seed < 3 else [limits]))
    assert not [*tmp_path.iterdir()]

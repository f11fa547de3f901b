"""What a tape saves of memory that is overwritten: what gradients need, once, and nothing else; and all is put back."""

from __future__ import annotations

from functools import cache
from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg
from spirograd.ad.versions import Wanted

pytestmark = pytest.mark.vulkan_or_wgpu

torch = needs.package("torch")

N, STEPS = 6, 4
START = np.linspace(0.2, 1.4, N)
BYTES = 4 * N


def torch_gradient(function: Any, start: Any = START) -> np.ndarray:
    x = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    function(x).sum().backward()
    return x.grad.numpy()


def close(found: Any, wanted: Any, rtol: float = 5e-5) -> None:
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=rtol, atol=1e-6)


def repeated(function: Any, times: int = STEPS) -> Any:
    def run(x: Any) -> Any:
        for _ in range(times):
            x = function(x)
        return x**2

    return run


def logistic(x: Any) -> Any:
    return 1.7 * x * (1.5 - x)


@cache
def logistic_gradient() -> np.ndarray:
    return torch_gradient(repeated(logistic))


def final() -> np.ndarray:
    x = START
    for _ in range(STEPS):
        x = logistic(x)
    return x


@sg.func
def logistic_of(x: sg.f32):
    return 1.7 * x * (1.5 - x)


@sg.kernel
def in_place(x: sg.template()):
    for i in x:
        x[i] = logistic_of(x[i])


@sg.kernel
def total(x: sg.template(), loss: sg.template()):
    for i in x:
        loss[None] += x[i] ** 2


def dense() -> Any:
    return sg.field(sg.f32, N, needs_grad=True, name="x")


def interleaved() -> Any:
    """A field that shares its cells with its gradient and with another field."""
    x, other = sg.field(sg.f32, name="x"), sg.field(sg.f32, name="other")
    sg.root.dense(sg.i, N).place(x, other)
    sg.root.lazy_grad()
    return x


def blocked() -> Any:
    """A field of two levels."""
    x = sg.field(sg.f32, name="x", needs_grad=True)
    for f in (x, x.grad):
        sg.root.dense(sg.i, 3).dense(sg.i, 2).place(f)
    return x


def array() -> Any:
    return sg.ndarray(sg.f32, N, needs_grad=True)


def shifted() -> Any:
    return sg.field(sg.f32, N, needs_grad=True, offset=-3)


@pytest.mark.parametrize("make", [dense, interleaved, blocked, array, shifted])
def test_in_place(session: Any, make: Any) -> None:
    x, loss = make(), sg.field(sg.f32, (), needs_grad=True)
    x.from_numpy(START)
    with sg.ad.Tape(loss) as tape:
        for _ in range(STEPS):
            in_place(x)
        total(x, loss)
    close(x.grad.to_numpy(), logistic_gradient())
    close(x.to_numpy(), final())  # what it was after the last launch
    assert tape.memory_report().total == STEPS * BYTES


def test_neighbours_are_left_alone(session: Any) -> None:
    x, other = sg.field(sg.f32, name="x"), sg.field(sg.f32, name="other")
    sg.root.dense(sg.i, N).place(x, other)
    sg.root.lazy_grad()
    loss = sg.field(sg.f32, (), needs_grad=True)
    x.from_numpy(START)

    @sg.kernel
    def both():
        for i in x:
            x[i] = logistic_of(x[i])
            other[i] += 1.0

    with sg.ad.Tape(loss):
        for _ in range(STEPS):
            both()
        total(x, loss)
    close(x.grad.to_numpy(), logistic_gradient())
    assert (other.to_numpy() == STEPS).all()
    close(x.to_numpy(), final())


@pytest.mark.parametrize("kind", ["field", "ndarray"])
def test_steps_in_memory_of_their_own_save_nothing(session: Any, kind: str) -> None:
    shape = (STEPS + 1, N)
    x = sg.field(sg.f32, shape, needs_grad=True) if kind == "field" else sg.ndarray(sg.f32, shape, needs_grad=True)
    loss = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def step(x: sg.template(), t: sg.i32):
        for i in range(N):
            x[t + 1, i] = logistic_of(x[t, i])

    @sg.kernel
    def last(x: sg.template()):
        for i in range(N):
            loss[None] += x[STEPS, i] ** 2

    start = np.zeros(shape, np.float32)
    start[0] = START
    x.from_numpy(start)
    with sg.ad.Tape(loss) as tape:
        for t in range(STEPS):
            step(x, t)
        last(x)
    close(x.grad.to_numpy()[0], logistic_gradient())
    assert tape.memory_report().total == 0


def test_two_buffers_in_turn(session: Any) -> None:
    """x[t % 2]: only what the next step overwrites is saved, one row a step, not the array."""
    x = sg.field(sg.f32, (2, N), needs_grad=True, name="x")
    loss = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def step(a: sg.i32, b: sg.i32):
        for i in range(N):
            x[b, i] = logistic_of(x[a, i])

    @sg.kernel
    def last(a: sg.i32):
        for i in range(N):
            loss[None] += x[a, i] ** 2

    x.from_numpy(np.stack([START, START]))
    with sg.ad.Tape(loss) as tape:
        for t in range(STEPS):
            step(t % 2, (t + 1) % 2)
        last(STEPS % 2)
    close(x.grad.to_numpy()[0], logistic_gradient())
    assert tape.memory_report().nbytes == {"x": (STEPS - 1) * BYTES}


def test_saved_once(session: Any) -> None:
    """Memory that the reverse pass no longer reads may be overwritten freely."""
    x, y, loss = dense(), dense(), sg.field(sg.f32, (), needs_grad=True)
    x.from_numpy(START)

    @sg.kernel
    def square():
        for i in x:
            y[i] = x[i] ** 2

    @sg.kernel
    def count(k: sg.f32):
        for i in x:
            x[i] = k

    @sg.kernel
    def add():
        for i in y:
            loss[None] += y[i]

    with sg.ad.Tape(loss) as tape:
        square()
        square()
        add()
        for k in range(5):
            count(k)
    close(y.to_numpy(), START**2)
    close(x.to_numpy(), np.full(N, 4.0))
    assert tape.memory_report().nbytes == {"x": BYTES}
    close(x.grad.to_numpy(), 2 * START)  # the first squares were overwritten


def test_gradient_before_an_overwrite(session: Any) -> None:
    x, y, loss = dense(), dense(), sg.field(sg.f32, (), needs_grad=True)
    x.from_numpy(START)

    @sg.kernel
    def square():
        for i in x:
            y[i] = x[i] ** 2

    @sg.kernel
    def clear():
        for i in y:
            y[i] = 3.0

    with sg.ad.Tape(loss):
        square()
        total(y, loss)
        clear()
        total(y, loss)
    close(x.grad.to_numpy(), 4 * START**3)
    assert loss[None] == pytest.approx((START**4).sum() + 9 * N, rel=1e-5)


WRITES = {
    "element": (lambda x: x.__setitem__(2, 5.0), [2]),
    "fill": (lambda x: x.fill(5.0), range(N)),
    "numpy": (lambda x: x.from_numpy(np.full(N, 5.0)), range(N)),
    "copy": (lambda x: x.copy_from(constants(x)), range(N)),
    "torch": (lambda x: x.from_torch(torch.full((N,), 5.0)), range(N)),
}


def constants(x: Any) -> Any:
    new = sg.ndarray(sg.f32, N)
    new.from_numpy(np.full(N, 5.0))
    return new


@pytest.mark.parametrize("kind", [dense, interleaved, array])
@pytest.mark.parametrize("write", WRITES)
def test_writes_by_the_host(session: Any, write: str, kind: Any) -> None:
    """They count as writes: what was there is saved, and its gradient does not come from what came later."""
    x, loss = kind(), sg.field(sg.f32, (), needs_grad=True)
    x.from_numpy(START)
    run, where = WRITES[write]
    with sg.ad.Tape(loss):
        total(x, loss)
        run(x)
        total(x, loss)
    wanted = 2 * START
    before = np.array([0.0 if i in where else v for i, v in enumerate(2 * START)])
    close(x.grad.to_numpy(), wanted + before)
    after = START.copy()
    after[list(where)] = 5.0
    close(x.to_numpy(), after)


def test_components_written_by_the_host(session: Any) -> None:
    x = sg.Vector.field(2, sg.f32, 3, needs_grad=True)
    loss = sg.field(sg.f32, (), needs_grad=True)
    start = np.arange(1.0, 7.0).reshape(3, 2)

    @sg.kernel
    def norm():
        for i in x:
            loss[None] += x[i].norm_sqr()

    x.from_numpy(start)
    with sg.ad.Tape(loss):
        norm()
        x[1][0] = 7.0
        x[2] = [8.0, 9.0]
        norm()
    wanted = 4 * start
    wanted[1, 0] /= 2
    wanted[2] /= 2
    close(x.grad.to_numpy(), wanted)
    assert x[1][0] == 7.0
    assert x[2][1] == 9.0


def test_an_exception_in_the_reverse_puts_memory_back(session: Any) -> None:
    x, loss = dense(), sg.field(sg.f32, (), needs_grad=True)
    x.from_numpy(START)

    @sg.ad.grad_replaced
    def nothing() -> None:
        pass

    @sg.ad.grad_for(nothing)
    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), sg.ad.Tape(loss):
        in_place(x)
        nothing()
        in_place(x)
        in_place(x)
        total(x, loss)
    x_now = START
    for _ in range(3):
        x_now = logistic(x_now)
    close(x.to_numpy(), x_now)


def test_the_report(session: Any) -> None:
    x, loss = dense(), sg.field(sg.f32, (), needs_grad=True)
    with sg.ad.Tape(loss) as tape:
        in_place(x)
        assert tape.memory_report().total == BYTES
        in_place(x)
        total(x, loss)
    assert str(tape.memory_report()) == f"tape of 3 launches: {2 * BYTES} bytes saved\n  x            {2 * BYTES} bytes in 2 copies"


def test_half_precision_rows(session: Any) -> None:
    """Rows of three halves are no whole words."""
    needs.of_type(sg.f16)
    x = sg.field(sg.f16, (3, 3), needs_grad=True)
    loss = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def row(t: sg.i32):
        for i in range(3):
            x[t, i] = x[t, i] * x[t, i]

    @sg.kernel
    def add():
        for i, j in x:
            loss[None] += sg.cast(x[i, j], sg.f32)

    start = np.arange(1, 10).reshape(3, 3) / 4
    x.from_numpy(start)
    with sg.ad.Tape(loss) as tape:
        row(1)
        row(2)
        add()
    close(x.grad.to_numpy(), [[1] * 3, 2 * start[1], 2 * start[2]])
    assert tape.memory_report().total == 12


@pytest.mark.parametrize("axes", [(0,), (0, 1)], ids=["one-axis", "two-axes"])
def test_parts_that_are_wanted(axes: tuple[int, ...]) -> None:
    """Compare with sets of the indices of an array of two axes. If all parts are wanted, a write to all of them takes one part. Slices
    along two axes overlap: then more parts than necessary may be taken or stay wanted, but never fewer."""
    rng = np.random.default_rng(0)

    def elements(part: Any) -> set[tuple[int, int]]:
        return {at for at in np.ndindex(5, 5) if part is None or at[part[0]] == part[1]}

    for _ in range(200):
        wanted, model, whole = Wanted(), set(), False
        for _ in range(12):
            part = None if rng.random() < 0.25 else (int(rng.choice(axes)), int(rng.integers(5)))
            if rng.random() < 0.5:
                wanted.add(part)
                model |= elements(part)
                whole = whole or part is None
                continue
            assert wanted.has(part) or not model & elements(part)
            taken = wanted.take(part)
            found = set().union(*map(elements, taken))
            assert found >= model & elements(part)
            if len(axes) == 1:
                assert whole if None in taken else found == model & elements(part)
            model -= elements(part) | found
            whole = whole and part is not None


def _grid(kind: str) -> Any:
    """Memory of ``N`` x ``STEPS`` numbers with a gradient, whose second axis is time."""
    if kind == "ndarray":
        return sg.ndarray(sg.f32, (N, STEPS), needs_grad=True)
    if kind == "by-step":
        x = sg.field(sg.f32, needs_grad=True)
        sg.root.dense(sg.j, STEPS).dense(sg.i, N).place(x, x.grad)
        return x
    if kind == "blocks":
        x = sg.field(sg.f32, needs_grad=True)
        sg.root.dense(sg.ij, (N // 2, STEPS // 2)).dense(sg.ij, (2, 2)).place(x, x.grad)
        return x
    return sg.field(sg.f32, (N, STEPS), needs_grad=True, **({"offset": (2, -3)} if kind == "offset" else {}))


@pytest.mark.parametrize("kind", ["field", "ndarray", "by-step", "blocks", "offset"])
def test_time_may_be_any_axis(session: Any, kind: str) -> None:
    """Steps that write the next column save nothing, and those that overwrite one save it alone."""
    x = _grid(kind)
    first, then = (2, -3) if kind == "offset" else (0, 0)
    loss = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def step(x: sg.Template, t: sg.i32):
        for i in range(N):
            x[first + i, then + t + 1] = sg.sin(x[first + i, then + t]) * 1.5

    @sg.kernel
    def last(x: sg.Template):
        for i in range(N):
            loss[None] += x[first + i, then + STEPS - 1] ** 2

    @sg.kernel
    def again(x: sg.Template):
        for i in range(N):
            x[first + i, then + 1] = sg.sin(x[first + i, then + 1])

    def wanted(x: Any) -> Any:
        for _ in range(STEPS - 1):
            x = torch.sin(x) * 1.5
        return x**2

    for overwrites in (False, True):
        x.fill(0.0)
        grid = np.zeros((N, STEPS), np.float32)
        grid[:, 0] = START
        x.from_numpy(grid)
        with sg.ad.Tape(loss) as tape:
            for t in range(STEPS - 1):
                step(x, t)
            if overwrites:
                again(x)  # nothing reads it afterwards, but the step from column 1 has
            last(x)
        close(x.grad.to_numpy()[:, 0], torch_gradient(wanted))
        assert tape.memory_report().total == (BYTES if overwrites else 0)


@pytest.mark.parametrize("kind", ["field", "ndarray", "by-step", "blocks"])
def test_rows_and_columns_of_one_memory(session: Any, kind: str) -> None:
    """Random sequences of updates along both axes, against torch."""
    x = _grid(kind)
    loss = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def row(x: sg.Template, i: sg.i32):
        for j in range(STEPS):
            x[i, j] = sg.sin(x[i, j]) + 0.1 * x[i, j] ** 2

    @sg.kernel
    def column(x: sg.Template, j: sg.i32):
        for i in range(N):
            x[i, j] = sg.cos(x[i, j]) * x[i, j]

    @sg.kernel
    def everything(x: sg.Template):
        for i in range(N):
            for j in range(STEPS):
                x[i, j] = 0.9 * x[i, j] + 0.1 * x[i, j] ** 2

    @sg.kernel
    def add(x: sg.Template, i: sg.i32):
        for j in range(STEPS):
            loss[None] += x[i, j] ** 2

    rng = np.random.default_rng(1)
    start = rng.random((N, STEPS))
    for _ in range(6):
        program = [(int(rng.integers(9)), int(rng.integers(STEPS))) for _ in range(10)]

        def wanted(x: Any, program: Any = program) -> Any:
            total = 0.0
            for what, k in program:
                at = torch.zeros(N, STEPS, dtype=torch.float64)
                if what < 3:
                    at[k] = 1
                    x = torch.where(at > 0, torch.sin(x) + 0.1 * x**2, x)
                elif what < 6:
                    at[:, k] = 1
                    x = torch.where(at > 0, torch.cos(x) * x, x)
                elif what < 7:
                    x = 0.9 * x + 0.1 * x**2
                elif what < 8:
                    total = total + (x[k] ** 2).sum()
                else:
                    at[k, 2] = 1
                    x = torch.where(at > 0, torch.full_like(x, 0.5), x)
            return total + (x[0] ** 2).sum()

        x.from_numpy(start.astype(np.float32))
        with sg.ad.Tape(loss):
            for what, k in program:
                if what == 8:
                    x[k, 2] = 0.5
                else:
                    (row, column, (lambda x, k: everything(x)), add)[(0, 0, 0, 1, 1, 1, 2, 3)[what]](x, k)
            add(x, 0)
        close(x.grad.to_numpy(), torch_gradient(wanted, start), rtol=2e-4)


def test_only_the_needed_row_is_saved(session: Any) -> None:
    x = sg.field(sg.f32, (5, N), needs_grad=True, name="x")
    loss = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def add(t: sg.i32):
        for i in range(N):
            loss[None] += x[t, i] ** 2

    x.fill(3.0)
    with sg.ad.Tape(loss) as tape:
        add(3)
        x.fill(1.0)
        x.fill(2.0)
    assert tape.memory_report().nbytes == {"x": BYTES}
    wanted = np.zeros((5, N))
    wanted[3] = 6.0
    close(x.grad.to_numpy(), wanted)
    assert (x.to_numpy() == 2.0).all()


@pytest.mark.parametrize("step", [1, 2])
def test_bounds_in_arrays_of_numpy_that_are_overwritten(session: Any, step: int) -> None:
    """Tapes are sized by what was saved: an array that does not lie dense is copied for each launch, as it is by then."""
    x = sg.field(sg.f32, N, needs_grad=True)
    loss = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def add(n: sg.types.ndarray(sg.i32, 1)):
        for i in x:
            v = x[i]
            for _ in range(n[1]):
                v = sg.sin(v) * 1.1
            loss[None] += v

    @sg.kernel
    def overwrite(n: sg.types.ndarray(sg.i32, 1)):
        for i in n:
            n[i] = 3

    def expected(x: Any) -> Any:
        for _ in range(20):
            x = torch.sin(x) * 1.1
        return x

    x.from_numpy(START)
    bounds = np.full(4 * step, 20, np.int32)[::step]
    with sg.ad.Tape(loss):
        add(bounds)
        overwrite(bounds)
    close(x.grad.to_numpy(), torch_gradient(expected))
    assert bounds.tolist() == [3] * 4

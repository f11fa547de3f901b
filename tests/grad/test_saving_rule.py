"""The table of `spirograd/ad/saving_rule.py`: launches that read some elements of memory and write others, before memory is overwritten.

The program: ``b += 0.3; y = a ** 2 + y`` for two entries a and b of each element of some memory, then a later write to all of it, then
``loss = sum(y) + sum(w * memory)``. Its gradient is known in closed form. All tapes of the tests are checked against the table, see
`conftest.py`; here are programs for each of its rows, with all kinds of memory and of later writes.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import needs
import numpy as np
import pytest

import spirograd as sg
from spirograd.ad.recording import TapeRecording
from spirograd.ad.saving_rule import Version

torch = needs.package("torch")

N = 4
START = np.stack([np.linspace(0.5, 2.0, N), np.linspace(3.0, 1.5, N)], 1)  # b, a
WEIGHTS = np.array([0.25, 0.75])


@sg.kernel
def entries(m: sg.template(), y: sg.template()):
    for i in y:
        m[i][0] += 0.3
        y[i] += m[i][1] * m[i][1]


@sg.kernel
def matrix_entries(m: sg.template(), y: sg.template()):
    for i in y:
        m[i][1, 0] += 0.3
        y[i] += m[i][0, 1] * m[i][0, 1]


@sg.kernel
def elements(m: sg.template(), y: sg.template()):
    for i in y:
        m[i, 0] += 0.3
        y[i] += m[i, 1] * m[i, 1]


@sg.kernel
def guarded(m: sg.template(), y: sg.template()):
    for i in y:
        if m[i, 1] > 0.0:
            m[i, 0] += 0.3
        y[i] += m[i, 1] * m[i, 1]


@sg.kernel
def halve(m: sg.template()):
    for I in sg.grouped(m):
        m[I] *= 0.5


@sg.kernel
def weigh_entries(m: sg.template(), y: sg.template(), loss: sg.template()):
    for i in y:
        loss[None] += y[i] + 0.25 * m[i][0] + 0.75 * m[i][1]


@sg.kernel
def weigh_matrix_entries(m: sg.template(), y: sg.template(), loss: sg.template()):
    for i in y:
        loss[None] += y[i] + 0.25 * m[i][1, 0] + 0.75 * m[i][0, 1]


@sg.kernel
def weigh_elements(m: sg.template(), y: sg.template(), loss: sg.template()):
    for i in y:
        loss[None] += y[i] + 0.25 * m[i, 0] + 0.75 * m[i, 1]


def as_matrices(values: np.ndarray) -> np.ndarray:
    out = np.ones((len(values), 2, 2))
    out[:, 1, 0], out[:, 0, 1] = values[:, 0], values[:, 1]
    return out


def from_matrices(values: np.ndarray) -> np.ndarray:
    return np.stack([values[:, 1, 0], values[:, 0, 1]], 1)


def same(values: np.ndarray) -> np.ndarray:
    return values


def program(make: Callable[[], Any], step: Any, weigh: Any, put: Any = same, get: Any = same) -> SimpleNamespace:
    return SimpleNamespace(make=make, step=step, weigh=weigh, put=put, get=get)


def view() -> Any:
    return sg.ndarray(sg.f32, (N + 2, 2), needs_grad=True)[1 : N + 1]


PROGRAMS = {
    "vectors": program(lambda: sg.Vector.field(2, sg.f32, N, needs_grad=True), entries, weigh_entries),
    "matrices": program(
        lambda: sg.Matrix.field(2, 2, sg.f32, N, needs_grad=True), matrix_entries, weigh_matrix_entries, as_matrices, from_matrices
    ),
    "array of vectors": program(lambda: sg.Vector.ndarray(2, sg.f32, N, needs_grad=True), entries, weigh_entries),
    "field of two axes": program(lambda: sg.field(sg.f32, (N, 2), needs_grad=True), elements, weigh_elements),
    "guard": program(lambda: sg.field(sg.f32, (N, 2), needs_grad=True), guarded, weigh_elements),
    "ndarray of two axes": program(lambda: sg.ndarray(sg.f32, (N, 2), needs_grad=True), elements, weigh_elements),
    "view": program(view, elements, weigh_elements),
}


def element_writes(m: Any, put: Any) -> None:
    values = put(np.full((N, 2), 7.0))
    for i in range(N):
        if len(m.shape) == 2:
            for k in range(2):
                m[i, k] = 7.0
        else:
            m[i] = sg.Matrix(values[i].tolist()) if values.ndim == 3 else sg.Vector(values[i].tolist())


# A later write of all memory: what it makes the gradient of the weights go through.
LATER: dict[str, tuple[Callable[[Any, Any, Any], None], float]] = {
    "nothing": (lambda p, m, other: None, 1.0),
    "kernel": (lambda p, m, other: halve(m), 0.5),
    "fill": (lambda p, m, other: m.fill(7.0), 0.0),
    "copy_from": (lambda p, m, other: m.copy_from(other), 0.0),
    "from_numpy": (lambda p, m, other: m.from_numpy(p.put(np.full((N, 2), 7.0)).astype(np.float32)), 0.0),
    "elements": (lambda p, m, other: element_writes(m, p.put), 0.0),
    "twice": (lambda p, m, other: (halve(m), m.fill(7.0)), 0.0),
}


def recorded(run: Callable[[], None], loss: Any) -> None:
    with sg.ad.Tape(loss):
        run()


def again(run: Callable[[], None], loss: Any) -> None:
    with sg.ad.Tape() as tape:
        loss.fill(0.0)
        run()
    loss.grad.fill(1.0)
    tape.grad()


def with_checkpoints(run: Callable[[], None], loss: Any) -> None:
    with sg.ad.Tape(loss, checkpoints=2):
        run()


def run_again(run: Callable[[], None], loss: Any) -> None:
    with sg.ad.Tape(loss):
        sg.ad.checkpoint(run)


TAPES = {"tape": recorded, "without loss": again, "checkpoints": with_checkpoints, "checkpoint": run_again}


@pytest.mark.parametrize("name", PROGRAMS)
def test_entries(session: Any, name: str) -> None:
    p = PROGRAMS[name]
    for kind, tape in TAPES.items():
        for later, (write, factor) in LATER.items():
            m, other = p.make(), p.make()
            y, loss = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
            m.from_numpy(p.put(START).astype(np.float32))
            other.from_numpy(p.put(np.full((N, 2), 7.0)).astype(np.float32))

            def run(write: Any = write, m: Any = m, y: Any = y, loss: Any = loss, other: Any = other) -> None:
                p.step(m, y)
                p.step(m, y)
                write(p, m, other)
                p.weigh(m, y, loss)

            tape(run, loss)
            wanted = np.tile(factor * WEIGHTS, (N, 1))
            wanted[:, 1] += 4 * START[:, 1]
            np.testing.assert_allclose(p.get(m.grad.to_numpy()), wanted, rtol=1e-5, atol=1e-6, err_msg=f"{kind}, {later}")
            np.testing.assert_allclose(y.to_numpy(), 2 * START[:, 1] ** 2, rtol=1e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_repeat_right_values(session: Any, name: str) -> None:
    p = PROGRAMS[name]
    m = p.make()
    y, loss = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    m.from_numpy(p.put(START).astype(np.float32))
    with sg.Graph() as graph, sg.ad.Tape(loss):
        y.fill(0.0)
        p.step(m, y)
        halve(m)
        p.step(m, y)
        m.fill(7.0)
        p.weigh(m, y, loss)
    for scale in (1.0, 3.0):
        if scale != 1.0:
            m.from_numpy(p.put(scale * START).astype(np.float32))
            graph.launch()
        np.testing.assert_allclose(p.get(m.grad.to_numpy())[:, 1], 2.5 * scale * START[:, 1], rtol=1e-5)


def test_members_of_structs(session: Any) -> None:
    pair = sg.types.struct(b=sg.f32, a=sg.f32)
    m = pair.field(shape=N, needs_grad=True)
    y, loss = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def step():
        for i in m:
            m[i].b += 0.3
            y[i] = m[i].a * m[i].a

    @sg.kernel
    def total():
        for i in m:
            loss[None] += y[i] + m[i].b

    for later in ("fill", "struct", "member"):
        m.b.fill(0.5)
        m.a.from_numpy(START[:, 1].astype(np.float32))
        with sg.ad.Tape(loss):
            step()
            if later == "fill":
                m.fill(7.0)
            elif later == "struct":
                for i in range(N):
                    m[i] = pair(b=7.0, a=7.0)
            else:
                m.a[1] = 7.0
            total()
        np.testing.assert_allclose(m.a.grad.to_numpy(), 2 * START[:, 1], rtol=1e-5, err_msg=later)
        np.testing.assert_allclose(m.b.grad.to_numpy(), float(later == "member"), err_msg=later)


def test_loops_that_write_and_are_empty(session: Any) -> None:
    m, y, loss = (sg.field(sg.f32, shape, needs_grad=True) for shape in (N, N, ()))

    @sg.kernel
    def constant():
        for i in m:
            y[i] = m[i] * m[i]
            for _ in range(0):
                m[i] = 5.0

    @sg.kernel
    def named():
        n = 0
        for i in m:
            for _ in range(n):
                m[i] += 5.0
            y[i] = m[i] * m[i]

    @sg.kernel
    def argument(n: sg.i32):
        for i in m:
            for _ in range(n):
                m[i] *= 5.0
            y[i] = m[i] * m[i]

    @sg.kernel
    def loop():
        for i in m:
            while False:
                m[i] = 5.0
            y[i] = m[i] * m[i]

    @sg.kernel
    def branch():
        for i in m:
            y[i] = m[i] * m[i]
            if False:
                m[i] = 5.0

    @sg.kernel
    def total():
        for i in m:
            loss[None] += y[i]

    for step in (constant, named, lambda: argument(0), loop, branch):
        for write in (lambda: halve(m), lambda: m.fill(0.0)):
            m.from_numpy(START[:, 1].astype(np.float32))
            with sg.ad.Tape(loss):
                step()
                write()
                total()
            np.testing.assert_allclose(m.grad.to_numpy(), 2 * START[:, 1], rtol=1e-5)


@pytest.mark.needs("torch")
def test_tensors(session: Any) -> None:
    @sg.kernel
    def step(m: sg.types.NDArray, y: sg.types.NDArray):
        for i in y:
            m[i, 0] += 0.3
            y[i] += m[i, 1] * m[i, 1]

    @sg.kernel
    def halve_tensor(m: sg.types.NDArray):
        for i, k in m:
            m[i, k] *= 0.5

    @sg.kernel
    def total(y: sg.types.NDArray, loss: sg.types.NDArray):
        for i in y:
            loss[0] += y[i]

    for by_torch in (False, True):
        m = torch.tensor(START, dtype=torch.float32, requires_grad=True)
        y, loss = torch.zeros(N, requires_grad=True), torch.zeros(1, requires_grad=True)
        with sg.ad.Tape(loss):
            step(m, y)
            if by_torch:
                with torch.no_grad():
                    m.mul_(0.5)
            else:
                halve_tensor(m)
                step(m, y)
            total(y, loss)
        found = m.grad[:, 1].numpy()
        wanted = 2 * START[:, 1] * (1.0 if by_torch else 1.25)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
        assert not m.grad[:, 0].any()


def test_function_with_its_own_gradient(session: Any) -> None:
    """A launch that is not recorded overwrites entries that an earlier one read, and a later one entries that `grad_for` reads."""
    m = sg.Vector.field(2, sg.f32, N, needs_grad=True)
    y, loss = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    seen = []

    @sg.kernel
    def scale_one():
        for i in m:
            m[i][1] *= 3.0

    @sg.kernel
    def scale_one_grad():
        for i in m:
            m.grad[i][1] *= 3.0

    @sg.ad.grad_replaced
    def scale():
        scale_one()

    @sg.ad.grad_for(scale)
    def scale_grad():
        seen.append(m.to_numpy())
        m.fill(9.0)  # is put back
        scale_one_grad()

    m.from_numpy(START.astype(np.float32))
    with sg.ad.Tape(loss):
        entries(m, y)
        scale()
        entries(m, y)
        m.fill(7.0)
        weigh_entries(m, y, loss)
    np.testing.assert_allclose(m.grad.to_numpy()[:, 1], 2 * START[:, 1] * (1 + 9), rtol=1e-5)
    np.testing.assert_allclose(seen[0], START * [1, 3] + [0.3, 0], rtol=1e-5)
    assert (m.to_numpy() == 7.0).all()


def test_second_order(session: Any) -> None:
    m = sg.Vector.field(2, sg.f32, N, needs_grad=True)
    y, loss = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)
    v = np.arange(2.0 * N).reshape(N, 2)

    def program() -> None:
        loss.fill(0.0)
        y.fill(0.0)
        entries(m, y)
        weigh_entries(m, y, loss)

    def overwritten() -> None:
        loss.fill(0.0)
        y.fill(0.0)
        entries(m, y)
        halve(m)
        weigh_entries(m, y, loss)

    m.from_numpy(START)
    np.testing.assert_allclose(sg.ad.hvp(program, loss, m, v), v * [0, 2], rtol=1e-5, atol=1e-6)
    m.from_numpy(START)
    np.testing.assert_allclose(sg.ad.hvp(overwritten, loss, m, v), v * [0, 2], rtol=1e-5, atol=1e-6)


def test_second_derivatives_of_kernels_that_save_values(session: Any) -> None:
    """An array is read between two of its updates: an error that names it, and not the buffer of saved values."""
    a = sg.ndarray(sg.f32, N, needs_grad=True)
    loss = sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def twice(a: sg.types.NDArray[sg.f32, 1]):
        for i in a:
            a[i] += 0.3
            a[i] += 0.64 * sg.cos(a[i])

    @sg.kernel
    def total(a: sg.types.NDArray[sg.f32, 1]):
        for i in a:
            loss[None] += a[i]

    def program() -> None:
        loss.fill(0.0)
        twice(a)
        total(a)

    with pytest.raises(sg.SpirogradRuntimeError, match="overwrites `a` more than once"):
        sg.ad.hvp(program, loss, a, np.ones(N, np.float32))


def test_forward_mode(session: Any) -> None:
    m = sg.Vector.field(2, sg.f32, N, needs_dual=True)
    y = sg.field(sg.f32, N, needs_dual=True)
    seed = np.arange(2.0 * N).reshape(N, 2)
    m.from_numpy(START.astype(np.float32))
    with sg.ad.FwdMode(loss=y, param=m, seed=seed):
        entries(m, y)
        halve(m)
        entries(m, y)
    np.testing.assert_allclose(y.dual.to_numpy(), 2.5 * START[:, 1] * seed[:, 1], rtol=1e-5)


def test_an_element_of_a_view(session: Any) -> None:
    """Indices of a view are not those of its array."""
    x = sg.ndarray(sg.f32, 6, needs_grad=True)
    y, loss = sg.field(sg.f32, 6, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def square(x: sg.types.NDArray):
        for i in y:
            y[i] = x[i] * x[i]

    @sg.kernel
    def total():
        for i in y:
            loss[None] += y[i]

    start = np.arange(1.0, 7.0, dtype=np.float32)
    for write in (lambda: x[2:].__setitem__(1, 50.0), lambda: x[::-1].__setitem__(2, 50.0), lambda: x[3:5].fill(50.0)):
        x.from_numpy(start)
        with sg.ad.Tape(loss):
            square(x)
            write()
            total()
        np.testing.assert_allclose(x.grad.to_numpy(), 2 * start)


def test_the_check_finds_what_is_not_saved(arch: str, monkeypatch: Any) -> None:
    """The check does not follow the recording: one that takes the earlier version where a launch changes nothing that is read is caught."""
    sg.init(arch=arch, debug=True)
    m = sg.Vector.field(2, sg.f32, N, needs_grad=True)
    y, loss = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

    def need_all(self: Any, memory: Any, launch: Any, event: Any, version: Version) -> None:
        for access, _ in memory.residuals if version is Version.BEFORE else ():
            self._need(access, launch, event, Version.AFTER)

    monkeypatch.setattr(TapeRecording, "_need_all", need_all)
    with pytest.raises(sg.SpirogradAssertionError, match=r"does not have `\w+` as the reverse of `entries` needs it"), sg.ad.Tape(loss):
        entries(m, y)
        halve(m)
        weigh_entries(m, y, loss)

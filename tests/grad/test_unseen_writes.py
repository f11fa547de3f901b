"""Memory that was handed out may be written at any time: gradients are those of the same program with writes by `from_numpy`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import needs
import numpy as np
import pytest
from cases import by_day
from grad.unseen import KINDS, SQUARES, WEIGHTED, N, memory_of, view_of

import spirograd as sg

pytestmark = [pytest.mark.vulkan_or_wgpu, pytest.mark.usefixtures("session")]
S = np.linspace(0.5, 1.5, N)
W = np.linspace(-1.0, 2.0, N)


def by_dlpack(memory: Any) -> Any:
    view_of(memory)
    array = np.from_dlpack(memory)
    if array.flags.writeable:
        return array
    torch = needs.package("torch")  # NumPy 1 takes DLPack as read-only
    return torch.from_dlpack(memory).numpy()


def by_capsule(memory: Any) -> Any:
    torch = needs.package("torch")
    view_of(memory)
    return torch.utils.dlpack.from_dlpack(memory.to_dlpack()).numpy()


EXPORTS = [view_of, by_dlpack, by_capsule]


@sg.kernel
def in_place_field(x: sg.template(), factor: sg.f32):
    for i in x:
        x[i] = factor * x[i] * x[i]


@sg.kernel
def in_place_array(x: sg.types.ndarray(), factor: sg.f32):
    for i in range(x.shape[0]):
        x[i] = factor * x[i] * x[i]


@KINDS
@pytest.mark.parametrize("export", EXPORTS)
@pytest.mark.parametrize("when", ["before the tape", "before the launch", "after the launch"])
def test_write_after_the_launch(kind: str, export: Callable[[Any], Any], when: str) -> None:
    w, s, loss = memory_of(kind, needs_grad=False), memory_of(kind), memory_of(kind, ())
    w.fill(3.0)
    view = export(w) if when == "before the tape" else None
    with sg.ad.Tape(loss):
        view = export(w) if when == "before the launch" else view
        WEIGHTED[kind](w, s, loss)
        sg.sync()
        view = export(w) if when == "after the launch" else view
        view[:] = 100.0
    np.testing.assert_array_equal(s.grad.to_numpy(), 3.0)
    np.testing.assert_array_equal(view, 100.0)
    np.testing.assert_array_equal(w.to_numpy(), 100.0)


@KINDS
def test_each_launch_has_its_own_values(kind: str) -> None:
    w, s, loss = memory_of(kind, needs_grad=False), memory_of(kind), memory_of(kind, ())
    view = view_of(w)
    with sg.ad.Tape(loss) as tape:
        for k in range(5):
            view[:] = 10.0**k
            WEIGHTED[kind](w, s, loss)
            WEIGHTED[kind](w, s, loss)
            sg.sync()
    np.testing.assert_array_equal(s.grad.to_numpy(), 22222.0)
    np.testing.assert_array_equal(view, 10000.0)
    assert sum(tape.memory_report().nbytes.values()) == 4 * 4 * N  # what was overwritten, not what was handed out


@KINDS
@pytest.mark.parametrize("which", [slice(None), slice(1, 3), slice(0, 0)])
@pytest.mark.parametrize("handed", ["before", "between"])
def test_the_host_replaces_what_a_kernel_computed(kind: str, which: slice, handed: str) -> None:
    """What the host writes depends on nothing: its gradient ends there."""
    found = []
    for seen in (True, False):
        x, y, z, loss = (memory_of(kind) for _ in range(3)), None, None, memory_of(kind, ())
        x, y, z = x
        x.from_numpy(S.astype(np.float32))
        view = view_of(y) if handed == "before" else None
        with sg.ad.Tape(loss):
            SQUARES[kind](x, y, 1.0)
            sg.sync()
            values = y.to_numpy()
            values[which] = 7.0
            if seen:
                for i in range(N)[which]:
                    y[i] = 7.0
            else:
                view = view_of(y) if view is None else view
                view[which] = 7.0
            SQUARES[kind](y, z, 2.0)
            WEIGHTED[kind](z, y, loss)
        found.append([x.grad.to_numpy(), y.grad.to_numpy(), loss.to_numpy()])
        wanted = 2 * S * 6 * S**4
        wanted[which] = 0.0
        np.testing.assert_allclose(found[-1][0], wanted, rtol=1e-5)
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other)


def test_linear_reads() -> None:
    """No reverse needs the values, but the gradient must not flow through what the host replaced."""
    x, y, loss = memory_of("field"), memory_of("field"), memory_of("field", ())

    @sg.kernel
    def doubled():
        for i in x:
            y[i] = 2.0 * x[i]

    @sg.kernel
    def total():
        for i in y:
            loss[None] += y[i]

    with sg.ad.Tape(loss):
        doubled()
        sg.sync()
        view_of(y)[1:] = 5.0
        total()
    np.testing.assert_array_equal(x.grad.to_numpy(), [2, 0, 0, 0, 0])


def test_the_loss_itself() -> None:
    x, loss = memory_of("field"), memory_of("field", ())
    x.fill(2.0)
    view = view_of(loss)

    @sg.kernel
    def total():
        for i in x:
            loss[None] += x[i] * x[i]

    for expected in (4.0, 0.0):
        with sg.ad.Tape(loss):
            total()
            sg.sync()
            view[()] = 0.0
            if expected:
                total()
        np.testing.assert_array_equal(x.grad.to_numpy(), expected)


@KINDS
def test_loop_bounds(kind: str) -> None:
    n, x, loss = memory_of(kind, dtype=sg.i32, needs_grad=False), memory_of(kind), memory_of(kind, ())
    counts = np.array([3, 0, 7, 1, 4], np.int32)

    @sg.kernel
    def field_powers(n: sg.template(), x: sg.template(), loss: sg.template()):
        for i in x:
            v = x[i]
            for _ in range(n[i]):
                v = v * x[i]
            loss[None] += v

    @sg.kernel
    def array_powers(n: sg.types.ndarray(), x: sg.types.ndarray(), loss: sg.types.ndarray()):
        for i in range(x.shape[0]):
            v = x[i]
            for _ in range(n[i]):
                v = v * x[i]
            loss[None] += v

    powers = field_powers if kind == "field" else array_powers
    n.from_numpy(counts)
    x.from_numpy(S.astype(np.float32))
    view = view_of(n)
    for after in (500, 0, 1):
        view[:] = counts
        with sg.ad.Tape(loss):
            powers(n, x, loss)
            sg.sync()
            view[:] = after
        np.testing.assert_allclose(x.grad.to_numpy(), (counts + 1) * S**counts, rtol=1e-5)
        np.testing.assert_array_equal(n.to_numpy(), after)


def test_fields_that_lie_between_each_other() -> None:
    """Who holds the memory of one component, or of one field of a struct, can reach the others."""
    particle = sg.types.struct(p=sg.types.vector(2, sg.f32), q=sg.f32)
    a = particle.field()
    loss = memory_of("field", ())
    sg.root.dense(sg.i, N).place(a)
    w = memory_of("field")

    @sg.kernel
    def run():
        for i in a:
            loss[None] += (a[i].p[1] + a[i].q) * w[i]

    a.p.from_numpy(np.stack([W, W + 1], 1).astype(np.float32))
    a.q.from_numpy(W.astype(np.float32))
    view = view_of(a.p)
    beside = np.lib.stride_tricks.as_strided(view[:, 1:], shape=(N, 2), strides=view.strides)  # `p[1]` and `q`
    with sg.ad.Tape(loss):
        run()
        sg.sync()
        beside[:] = 100.0
    np.testing.assert_allclose(w.grad.to_numpy(), 2 * W + 1, rtol=1e-5)
    np.testing.assert_array_equal(a.q.to_numpy(), 100.0)
    np.testing.assert_array_equal(a.p.to_numpy()[:, 1], 100.0)


def test_components() -> None:
    x, loss, w = sg.Vector.field(2, sg.f32, N, needs_grad=True), memory_of("field", ()), memory_of("field")
    x.fill(3.0)
    view = view_of(x.get_scalar_field(1))

    @sg.kernel
    def run():
        for i in x:
            loss[None] += x[i].norm_sqr() * w[i]

    with sg.ad.Tape(loss):
        run()
        sg.sync()
        view[:] = 100.0
        run()
        sg.sync()
        view[:] = 5.0
    np.testing.assert_array_equal(w.grad.to_numpy(), 18.0 + 10009.0)
    np.testing.assert_array_equal(x.to_numpy(), np.tile([3.0, 5.0], (N, 1)))


def test_arrays_of_numpy() -> None:
    """Passed to a kernel, and changed afterwards."""
    s, loss = memory_of("field"), memory_of("field", ())

    @sg.kernel
    def weighted(w: sg.types.ndarray(sg.f32, 1)):
        for i in s:
            loss[None] += w[i] * s[i] * s[i]

    def run() -> None:
        loss[None] = 0.0
        w = np.full(N, 3.0, np.float32)
        weighted(w)
        w[:] = 100.0

    s.fill(1.0)
    with sg.ad.Tape(loss):
        run()
    np.testing.assert_array_equal(s.grad.to_numpy(), 6.0)
    np.testing.assert_array_equal(sg.ad.hvp(run, loss, s, np.ones(N)), 6.0)


@pytest.mark.parametrize("first", by_day(range(0, 40, 5), lambda first: first < 10))
def test_random_programs(first: int) -> None:
    """The same programs with writes through views and by elements: the same gradients, and the same contents.

    Programs in a row share memory and kernels: compiling them takes much longer than running them.
    """
    results = []
    for seen in (False, True):
        memories = [memory_of(kind) for kind in ("field", "array", "field", "field")], memory_of("field", ())
        kernels = _adder(sg.template()), _mixed()
        results.append([_random_program(seed, seen, *memories, *kernels) for seed in range(first, first + 5)])
    for k, (one, other) in enumerate(zip(*results)):
        for x, y in zip(one, other):
            np.testing.assert_allclose(x, y, rtol=2e-4, atol=1e-6, err_msg=f"seed {first + k}")


def _random_program(seed: int, seen: bool, memories: list[Any], loss: Any, add: Any, mix: Any) -> list[np.ndarray]:
    """The loss, contents and gradients. ``memories``: a field, an array, two fields; the last one is only read."""
    rng = np.random.default_rng(seed)
    *fields, s = memories
    loss.fill(0.0)
    for memory in memories:
        memory.from_numpy(rng.uniform(0.5, 1.5, N).astype(np.float32))
        memory.grad.fill(0.0)
    with sg.ad.Tape(loss):
        for memory in (fields[0], fields[2]):  # what is written before its first use counts as its start
            mix(memory, fields[1])
        for _ in range(25):
            choice = rng.integers(4)
            a = int(rng.integers(3))
            memory = fields[a]
            if choice == 0:
                which = np.flatnonzero(rng.integers(2, size=N))
                values = rng.uniform(0.5, 1.5, N).astype(np.float32)
                sg.sync()
                view = view_of(memory)
                for i in which:
                    if seen:
                        memory[int(i)] = float(values[i])
                    else:
                        view[i] = values[i]
            elif choice == 1:
                add(fields[2 * int(rng.integers(2))], s, loss)
            elif choice == 2:
                (in_place_array if a == 1 else in_place_field)(memory, float(rng.uniform(0.5, 0.9)))
            else:
                mix(fields[2 * int(rng.integers(2))], fields[1])
    return [loss.to_numpy(), *(m.to_numpy() for m in fields), *(m.grad.to_numpy() for m in memories)]


def _adder(annotation: Any) -> Any:
    @sg.kernel
    def add(w: annotation, s: annotation, loss: annotation):
        for i in s:
            loss[None] += sg.sin(w[i]) * s[i] * w[N - 1 - i]

    return add


def _mixed() -> Any:
    @sg.kernel
    def mix(x: sg.template(), y: sg.types.ndarray()):
        for i in x:
            y[i] += sg.cos(x[i]) * 0.3
        for i in x:
            x[i] += 0.2 * y[i]

    return mix


def test_an_address_of_the_host() -> None:
    w, s, loss = memory_of("array"), memory_of("array"), memory_of("array", ())
    w.fill(3.0)
    address = w.allocation.host_address
    if address is None:
        view_of(w)
    with sg.ad.Tape(loss):
        WEIGHTED["array"](w, s, loss)
        sg.sync()
        ctypes.c_float.from_address(address).value = 100.0
    np.testing.assert_array_equal(s.grad.to_numpy(), 3.0)
    assert w[0] == 100.0


@sg.kernel
def advance_field(x: sg.template(), t: sg.i32):
    for i in range(N):
        x[t + 1, i] = 0.5 * x[t, i] * x[t, i]


@sg.kernel
def advance_array(x: sg.types.ndarray(), t: sg.i32):
    for i in range(N):
        x[t + 1, i] = 0.5 * x[t, i] * x[t, i]


@sg.kernel
def row_field(x: sg.template(), t: sg.i32, loss: sg.template()):
    for i in range(N):
        loss[None] += x[t, i] * x[t, i]


@sg.kernel
def row_array(x: sg.types.ndarray(), t: sg.i32, loss: sg.types.ndarray()):
    for i in range(N):
        loss[None] += x[t, i] * x[t, i]


@pytest.mark.parametrize("kind", ["field", "array", "columns", "between"])
@pytest.mark.parametrize("handed", ["before", "between"])
def test_time_steps(kind: str, handed: str) -> None:
    """Launches use one step of many: it alone is compared, whichever of them the host changes, and when."""
    steps = 4
    if kind == "columns":  # the steps lie side by side
        x = sg.field(sg.f32, needs_grad=True)
        sg.root.dense(sg.j, N).dense(sg.i, steps + 1).place(x, x.grad)
    elif kind == "between":
        x, beside = sg.field(sg.f32, needs_grad=True), sg.field(sg.f32)
        sg.root.dense(sg.ij, (steps + 1, N)).place(x, beside)
        sg.root.dense(sg.ij, (steps + 1, N)).place(x.grad)
    else:
        x = memory_of("array" if kind == "array" else "field", (steps + 1, N))
    loss = memory_of("array" if kind == "array" else "field", ())
    advance, row = (advance_array, row_array) if kind == "array" else (advance_field, row_field)
    start = np.zeros((steps + 1, N), np.float32)
    start[0] = S
    results = []
    for seen in (True, False):
        x.from_numpy(start)
        view = view_of(x) if handed == "before" else None
        with sg.ad.Tape(loss):
            for t in range(steps):
                advance(x, t)
                row(x, t, loss)
                sg.sync()
                for at, i in ((0, 1), (t, 2), (t + 1, 0), (steps, 3)):
                    if seen:
                        x[at, i] = 1.0 + 0.25 * t + 0.125 * i
                    else:
                        view = view_of(x) if view is None else view
                        view[at, i] = 1.0 + 0.25 * t + 0.125 * i
            row(x, steps, loss)
            row(x, 0, loss)
        results.append([x.grad.to_numpy(), x.to_numpy(), loss.to_numpy()])
    for one, other in zip(*results):
        np.testing.assert_allclose(one, other, rtol=1e-5)

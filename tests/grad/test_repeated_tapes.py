"""Tapes that repeat the launches of an earlier one follow its sequence, and what differs from it is recorded as in any other tape."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

import spirograd as sg
from spirograd.ad.sequence_replay import SequenceReplay
from spirograd.ad.versions import memory_generation
from spirograd.base import validity
from spirograd.lang import context

N, T = 12, 5


class Program:
    """Launches on a history `x`, on `y`, which is overwritten, and on `z`; each has a reverse in NumPy."""

    def __init__(self):
        self.x = sg.field(sg.f32, (T + 1, N), needs_grad=True)
        self.y = sg.field(sg.f32, N, needs_grad=True)
        self.z = sg.field(sg.f32, N, needs_grad=True)
        self.loss = sg.field(sg.f32, (), needs_grad=True)
        x, y, z, loss = self.x, self.y, self.z, self.loss

        @sg.kernel
        def advance(t: sg.i32, scale: sg.f32):
            for i in range(N):
                x[t + 1, i] = sg.sin(x[t, i]) * scale

        @sg.kernel
        def multiply(t: sg.i32):
            for i in range(N):
                y[i] = y[i] * x[t, i]

        @sg.kernel
        def square():
            for i in range(N):
                y[i] = y[i] + 0.1 * y[i] * y[i]

        @sg.kernel
        def mix(t: sg.i32):
            for i in range(N):
                x[t, i] += y[i] * z[i]

        @sg.kernel
        def store():
            for i in range(N):
                z[i] = y[i] * y[i]

        @sg.kernel
        def measure():
            for i in range(N):
                loss[None] += x[T, i] * y[i] + z[i] * z[i]

        self.kernels = {k.function.__name__: k for k in (advance, multiply, square, mix, store)}
        self.measure = measure

    def start(self, seed):
        rng = np.random.default_rng(seed)
        return {"x": rng.uniform(0.5, 1.0, (T + 1, N)), "y": rng.uniform(0.5, 1.0, N), "z": rng.uniform(0.5, 1.0, N)}

    def set(self, values):
        for name, value in values.items():
            getattr(self, name).from_numpy(value.astype(np.float32))

    def run(self, steps):
        for name, args in steps:
            if name == "write":
                self.y[args[0]] = 0.75
            elif name == "read":
                self.z[0] = self.z[args[0]] * 2.0
            elif name == "look":
                self.seen = self.z[args[0]]
            elif name == "put":
                self.z[0] = self.seen * 2.0
            elif name == "hand out":
                self.y.to_numpy(copy=False)[args[0]] = 0.5
            else:
                self.kernels[name](*args)

    def tape(self, steps, values):
        """Run a tape; return gradients, contents afterwards, and the loss."""
        self.set(values)
        with sg.ad.Tape(self.loss) as tape:
            self.run(steps)
            self.measure()
        fields = {name: getattr(self, name) for name in values}
        report = tape.memory_report()
        assert report.launches == 1 + sum(name in self.kernels for name, _ in steps)
        return {name: f.grad.to_numpy() for name, f in fields.items()}, {name: f.to_numpy() for name, f in fields.items()}, report.total

    def reference(self, steps, values):
        """Gradients and contents by NumPy, in f64."""
        m = {name: value.astype(np.float32).astype(np.float64) for name, value in values.items()}
        reverses = []
        for name, args in steps:
            reverses.append(_apply(m, name, args))
        g = {"x": np.zeros((T + 1, N)), "y": m["x"][T].copy(), "z": 2 * m["z"]}
        g["x"][T] = m["y"]
        for reverse in reversed(reverses):
            reverse(g)
        return g, m


def _apply(m, name, args):
    """Run a step on contents ``m``; return its reverse on gradients."""
    t = args[0] if args else 0
    x, y, z = m["x"], m["y"], m["z"]
    if name == "advance":
        scale, slope = np.float32(args[1]), np.cos(x[t])
        x[t + 1] = np.sin(x[t]) * scale

        def reverse(g):
            g["x"][t] += g["x"][t + 1] * slope * scale
            g["x"][t + 1] = 0
    elif name == "multiply":
        old, factor = y.copy(), x[t].copy()
        y *= factor

        def reverse(g):
            g["x"][t] += g["y"] * old
            g["y"] *= factor
    elif name == "square":
        slope = 1 + 0.2 * y
        y += 0.1 * y * y

        def reverse(g):
            g["y"] *= slope
    elif name == "mix":
        a, b = y.copy(), z.copy()
        x[t] += a * b

        def reverse(g):
            g["y"] += g["x"][t] * b
            g["z"] += g["x"][t] * a
    elif name == "store":
        old = y.copy()
        z[:] = y * y

        def reverse(g):
            g["y"] += 2 * old * g["z"]
            g["z"] = np.zeros(N)
    elif name == "look":

        def reverse(g):
            pass
    elif name in ("read", "put"):
        z[0] = 2 * z[t]

        def reverse(g):
            written, g["z"][0] = g["z"][0], 0
            g["z"][t] += 2 * written
    else:
        y[t] = 0.75 if name == "write" else 0.5

        def reverse(g):
            g["y"][t] = 0

    return reverse


def _check(program, steps, seed):
    values = program.start(seed)
    gradients, contents, total = program.tape(steps, values)
    wanted, left = program.reference(steps, values)
    for name in values:
        np.testing.assert_allclose(gradients[name], wanted[name], rtol=2e-4, atol=2e-5, err_msg=f"gradient of {name} after {steps}")
        np.testing.assert_allclose(contents[name], left[name], rtol=2e-4, atol=2e-5, err_msg=f"{name} after {steps}")
    return total


STEPS = [("multiply", (1,)), ("square", ()), *[("advance", (t, 0.9)) for t in range(T)], ("mix", (2,)), ("store", ()), ("multiply", (2,))]


def test_gradients_of_repeated_tapes(session, followed):
    program = Program()
    totals = {_check(program, STEPS, seed) for seed in range(6)}
    assert len(totals) == 1
    if session.native is not None and session.native.on_host:
        assert followed == {"launches": 4 * (len(STEPS) + 1), "missed": 0}


def test_compiled_code_follows_sequences(session, followed, monkeypatch):
    """Python sees the first launches on each memory, whose gradients it claims, and no others."""
    program, seen, launch = Program(), [], SequenceReplay.launch
    for seed in range(3):
        _check(program, STEPS, seed)
    monkeypatch.setattr(SequenceReplay, "launch", lambda *args: seen.append(args) or launch(*args))
    _check(program, STEPS, 3)
    if session.native is not None and session.native.on_host:
        assert len(seen) == 3  # `x` and `y`, then `z`, then the loss
    _check(program, STEPS[:-1], 4)  # the last launch is another one


def test_compiled_code_runs_reverse_passes(session, followed, monkeypatch):
    """Python launches derivatives only where the records of launches hold no longer; memory gets new generations either way."""
    program, by_python, launch = Program(), [], SequenceReplay._reverse_by_python
    monkeypatch.setattr(SequenceReplay, "_reverse_by_python", lambda *args: by_python.append(args) or launch(*args))
    for seed in range(5):
        _check(program, STEPS, seed)
    assert not by_python
    values = program.start(5)
    program.set(values)
    with sg.ad.Tape(program.loss):
        program.run(STEPS)
        program.measure()
        before = [memory_generation(memory) for memory in (program.x.grad, program.y)]
        validity.renew()
    if session.native is not None and session.native.on_host:
        assert len(by_python) == len(STEPS) + 1
    assert all(memory_generation(memory) != was for memory, was in zip((program.x.grad, program.y), before))
    gradients, _ = program.reference(STEPS, values)
    np.testing.assert_allclose(program.x.grad.to_numpy(), gradients["x"], rtol=2e-5, atol=1e-6)
    _check(program, STEPS, 6)


def test_floats_may_differ(session, followed):
    program = Program()
    for seed in range(6):
        _check(program, [("multiply", (0,)), *[("advance", (t, 0.8 + 0.02 * seed)) for t in range(T)]], seed)
    assert followed["missed"] == 0


def test_reads_of_numbers(session, followed):
    """Python may read numbers wherever it likes. One that it writes later has a gradient, as in any other tape."""
    program = Program()
    looks = [step for k, step in enumerate(STEPS[:7]) for step in (step, ("look", (k % 3 + 1,)))]
    for seed in range(5):
        _check(program, looks if seed % 2 else [*STEPS[:7], ("look", (0,))], seed)
    assert followed["missed"] == 0
    if session.native is not None and session.native.on_host:
        assert followed["launches"] == 3 * 8
    _check(program, [*STEPS[:3], ("look", (4,)), *STEPS[3:6], ("put", (4,)), STEPS[6]], 6)
    for seed in range(2):
        _check(program, looks, seed)


def test_kernels_that_can_fail(session, followed, capsys):
    """Reports come at once, and a launch that fails is recorded like others."""
    sg.init(arch=sg.cfg.arch, debug=True)
    x, y, loss = (sg.field(sg.f32, shape, needs_grad=True) for shape in (N, N, ()))

    @sg.kernel
    def scale(k: sg.i32, by: sg.f32):
        for i in x:
            assert by < 8.0, "by is too large"
            y[i] = x[(i + k) % N] * by
        print("scaled", by)

    @sg.kernel
    def measure():
        for i in y:
            loss[None] += y[i] * y[i]

    values = np.linspace(0.1, 0.9, N, dtype=np.float32)
    factors = [1.0, 2.0, 3.0, 4.0, 5.0, 9.0, 9.0, 1.0, 2.0, 3.0]
    for factor in factors:
        x.from_numpy(values)
        used = factor
        with sg.ad.Tape(loss):
            try:
                scale(1, factor)
                sg.sync()
            except sg.SpirogradAssertionError as error:
                assert "by is too large" in str(error)
                used = 0.5
                scale(1, used)
            measure()
        assert used == (factor if factor < 8 else 0.5)
        np.testing.assert_allclose(x.grad.to_numpy(), 2 * values * used * used, rtol=1e-5)
    printed = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert [value for value in printed if value != 9.0] == [factor if factor < 8 else 0.5 for factor in factors]
    native = context.session().native
    if native is not None and native.on_host:
        assert followed["launches"] >= 4


_DIFFERENCES = {
    "another slice": ("multiply", (3,)),
    "another kernel": ("square", ()),
    "a write": ("write", (3,)),
    "a read": ("read", (2,)),
    "handed out": ("hand out", (4,)),
}


@pytest.mark.parametrize("position", [0, 1, 4, len(STEPS)])
@pytest.mark.parametrize("kind", _DIFFERENCES)
def test_what_differs_is_recorded(session, followed, kind, position):
    program = Program()
    for seed in range(4):
        _check(program, STEPS, seed)
    if kind == "handed out":
        if position == 0:
            pytest.skip("a tape sees no writes to memory that it has not used")
        try:
            program.y.to_numpy(copy=False)
        except ValueError:
            pytest.skip("no memory is handed out here")
    _check(program, [*STEPS[:position], _DIFFERENCES[kind], *STEPS[position:]], 7)
    for seed in range(3):
        _check(program, STEPS, seed)


def test_shorter_tapes(session, followed):
    program = Program()
    for seed in range(4):
        _check(program, STEPS, seed)
    _check(program, STEPS[:3], 5)
    _check(program, [], 5)


def test_a_block_that_raises_leaves_the_next_tape_right(session, followed):
    program = Program()
    for seed in range(4):
        _check(program, STEPS, seed)
    with pytest.raises(KeyError), sg.ad.Tape(program.loss):
        program.run(STEPS[:4])
        raise KeyError
    for seed in range(4):
        _check(program, STEPS, seed)


def test_random_sequences(session, followed):
    rng = random.Random(f"{session.info.backend if hasattr(session, 'info') else ''}")
    program = Program()
    choices = [lambda t: ("advance", (t, 0.9)), lambda t: ("multiply", (t,)), lambda t: ("mix", (t,)), lambda t: ("square", ()),
               lambda t: ("store", ()), lambda t: ("write", (t,)), lambda t: ("read", (t,))]  # fmt: skip
    for round_ in range(12):
        steps = [rng.choice(choices[:5])(rng.randrange(T)) for _ in range(rng.randrange(1, 9))]
        for seed in range(4):
            _check(program, steps, seed)
        changed = list(steps)
        changed.insert(rng.randrange(len(steps) + 1), rng.choice(choices)(rng.randrange(T)))
        _check(program, changed, round_)
        _check(program, steps, round_)


def test_arrays(session, followed):
    """Sequences compare the arrays: other ones of the same type and shape are recorded anew."""

    @sg.kernel
    def step(a: sg.types.ndarray(sg.f32, 1), b: sg.types.ndarray(sg.f32, 1)):
        for i in a:
            b[i] = a[i] * a[i] * 0.5 + b[i] * b[i]

    @sg.kernel
    def measure(a: sg.types.ndarray(sg.f32, 1), to: sg.types.ndarray(sg.f32, 1)):
        for i in a:
            to[0] += a[i]

    loss = sg.ndarray(sg.f32, 1, needs_grad=True)
    pairs = [[sg.ndarray(sg.f32, N, needs_grad=True) for _ in range(2)] for _ in range(2)]
    for which in (0, 0, 0, 0, 1, 0, 1, 1, 1, 1):
        a, b = pairs[which]
        start = [np.linspace(0.1, 0.5, N, dtype=np.float32) + which, np.linspace(0.5, 0.3, N, dtype=np.float32)]
        a.from_numpy(start[0])
        b.from_numpy(start[1])
        with sg.ad.Tape(loss):
            step(a, b)
            step(b, a)
            measure(a, loss)
        u, v = (s.astype(np.float64) for s in start)
        w = u * u * 0.5 + v * v  # b; then a = w * w / 2 + u * u
        np.testing.assert_allclose(a.grad.to_numpy(), w * u + 2 * u, rtol=1e-5)
        np.testing.assert_allclose(b.grad.to_numpy(), w * 2 * v, rtol=1e-5)


def test_sizes_that_change_between_tapes(session, followed):
    """Adstacks of later tapes have the sizes of their own loops."""
    x, y = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, N, needs_grad=True)
    trips, loss = sg.field(sg.i32, ()), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def chain():
        for i in x:
            v = x[i]
            for _ in range(trips[None]):
                v = v * v * 0.5 + 0.5
            y[i] = v

    @sg.kernel
    def measure():
        for i in y:
            loss[None] += y[i]

    for count in (2, 2, 2, 2, 3, 3, 9, 2, 2, 0, 1):
        start = np.linspace(0.1, 0.9, N, dtype=np.float32)
        x.from_numpy(start)
        trips[None] = count
        with sg.ad.Tape(loss):
            chain()
            measure()
        v, slope = start.astype(np.float64), np.ones(N)
        for _ in range(count):
            slope, v = slope * v, v * v * 0.5 + 0.5
        np.testing.assert_allclose(x.grad.to_numpy(), slope, rtol=1e-5)


def test_objects_with_other_members(session, followed):
    """Fields and arrays of a data-oriented object may be replaced between tapes."""

    @sg.data_oriented
    class Model:
        def __init__(self):
            self.w = sg.field(sg.f32, N, needs_grad=True)
            self.a = sg.ndarray(sg.f32, N, needs_grad=True)
            self.loss = sg.field(sg.f32, (), needs_grad=True)

        @sg.kernel
        def measure(self):
            for i in self.w:
                self.loss[None] += self.w[i] * self.w[i] * self.a[i]

    model = Model()
    for k in range(12):
        if k == 5:
            model.a = sg.ndarray(sg.f32, N, needs_grad=True)
        if k == 8:
            model.w = sg.field(sg.f32, N, needs_grad=True)
        w, a = np.linspace(1, 2, N) + k, np.linspace(2, 1, N) * (k + 1)
        model.w.from_numpy(w.astype(np.float32))
        model.a.from_numpy(a.astype(np.float32))
        with sg.ad.Tape(model.loss):
            model.measure()
        np.testing.assert_allclose(model.w.grad.to_numpy(), 2 * w * a, rtol=1e-5)
        np.testing.assert_allclose(model.a.grad.to_numpy(), w * w, rtol=1e-5)


def test_sequences_keep_no_memory_alive(session, followed):
    import gc
    import weakref

    @sg.kernel
    def measure(a: sg.types.ndarray(sg.f32, 1), to: sg.types.ndarray(sg.f32, 1)):
        for i in a:
            to[0] += a[i] * a[i]

    loss, a = sg.ndarray(sg.f32, 1, needs_grad=True), sg.ndarray(sg.f32, N, needs_grad=True)
    for _ in range(5):
        a.fill(3.0)
        with sg.ad.Tape(loss):
            measure(a, loss)
    gone = weakref.ref(a)
    del a
    gc.collect()
    assert gone() is None
    b = sg.ndarray(sg.f32, N, needs_grad=True)
    b.fill(2.0)
    with sg.ad.Tape(loss):
        measure(b, loss)
    assert (b.grad.to_numpy() == 4).all()


@pytest.mark.parametrize("position", [1, 4])
def test_writes_of_other_threads_are_errors(session, followed, position):
    program = Program()
    for seed in range(4):
        _check(program, STEPS, seed)
    program.set(program.start(1))
    with pytest.raises(sg.SpirogradRuntimeError, match="another thread wrote"), sg.ad.Tape(program.loss):
        program.run(STEPS[:position])
        thread = threading.Thread(target=lambda: program.y.fill(2.0))
        thread.start()
        thread.join()
        program.run(STEPS[position:])
        program.measure()


def test_launches_of_other_threads_are_not_those_of_the_tape(session, followed):
    """Another thread makes the very launch that comes next."""
    program = Program()
    for seed in range(4):
        _check(program, STEPS, seed)
    program.set(program.start(1))
    with pytest.raises(sg.SpirogradRuntimeError, match="another thread wrote"), sg.ad.Tape(program.loss):
        program.run(STEPS[:4])
        thread = threading.Thread(target=lambda: program.run(STEPS[4:5]))
        thread.start()
        thread.join()
        program.run(STEPS[4:])
        program.measure()


def test_gradients_of_each_tape_start_from_zero_unless_they_add(session, followed):
    x, loss = sg.field(sg.f32, N, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def measure():
        for i in x:
            loss[None] += x[i] * x[i]

    x.fill(3.0)
    for k in (1, 2, 3, 4, 5, 1, 1, 2, 3):
        with sg.ad.Tape(loss, clear_gradients=k == 1):
            measure()
        assert (x.grad.to_numpy() == 6 * k).all()


def test_a_loss_that_no_launch_writes_is_reported(session, followed, caplog):
    program, other = Program(), sg.field(sg.f32, (), needs_grad=True)
    for seed in range(4):
        _check(program, STEPS, seed)
    with sg.ad.Tape(other):
        program.run(STEPS)
        program.measure()
    assert "all gradients are zero" in caplog.text
    assert not program.x.grad.to_numpy().any()


def test_launches_without_a_gradient_come_first(session, followed):
    program = Program()

    @sg.ad.no_grad
    def prepare():
        program.kernels["multiply"](1)

    for seed in range(3):
        _check(program, STEPS, seed)
    values = program.start(5)
    for _ in range(3):
        program.set(values)
        with sg.ad.Tape(program.loss):
            prepare()
            program.run(STEPS)
            program.measure()
        after = {**{name: v.astype(np.float32).astype(np.float64) for name, v in values.items()}}
        after["y"] = after["y"] * after["x"][1]
        wanted = program.reference(STEPS, after)[0]
        np.testing.assert_allclose(program.x.grad.to_numpy(), wanted["x"], rtol=2e-4, atol=2e-5)

"""Batches: kernels that run for each of several environments, against one program for each environment."""

import pickle

import numpy as np
import pytest

import spirograd as sg

pytestmark = pytest.mark.usefixtures("session")
N = 6


@sg.data_oriented
class Springs:
    """Masses on a line with springs, a mean that serial code computes, and stiffness that all environments share."""

    def __init__(self, batch=None):
        new = sg.field if batch is None else batch.field
        self.x, self.v = new(sg.types.vector(2, sg.f32), N, needs_grad=True), new(sg.types.vector(2, sg.f32), N, needs_grad=True)
        self.force = new(sg.types.vector(2, sg.f32), N, needs_grad=True)
        self.links = sg.field(sg.i32, (N - 1, 2))
        self.stiffness = sg.field(sg.f32, N - 1, needs_grad=True)
        self.gravity = new(sg.f32, (), needs_grad=True)
        self.loss = new(sg.f32, (), needs_grad=True)
        self.links.from_numpy(np.stack([np.arange(N - 1), np.arange(1, N)], 1).astype(np.int32))
        self.stiffness.from_numpy(np.linspace(2, 3, N - 1, dtype=np.float32))

    @sg.kernel
    def step(self, dt: sg.f32):
        fall = self.gravity[None] * 0.5
        for m in self.x:
            self.force[m] = [0.0, fall - self.v[m].y]
        for s in range(self.links.shape[0]):
            a, b = self.links[s, 0], self.links[s, 1]
            pull = self.stiffness[s] * (self.x[b] - self.x[a])
            self.force[a] += pull
            self.force[b] -= pull
        for m in range(self.x.shape[0]):
            self.v[m] += dt * self.force[m]
            self.x[m] += dt * self.v[m]

    @sg.kernel
    def measure(self):
        for m in self.x:
            self.loss[None] += self.x[m].norm_sqr()

    def start(self, x, gravity):
        self.x.from_numpy(x)
        self.v.fill(0)
        self.loss.fill(0)
        self.gravity.from_numpy(gravity)

    def run(self, steps=3):
        for _ in range(steps):
            self.step(0.1)
        self.measure()


def starts(n):
    random = np.random.default_rng(n)
    return random.random((n, N, 2)).astype(np.float32), random.random(n).astype(np.float32)


def with_gradients(program, x, gravity):
    program.start(x, gravity)
    with sg.ad.Tape(program.loss):
        program.run()
    results = program.x, program.loss, program.x.grad, program.gravity.grad, program.stiffness.grad
    return [memory.to_numpy() for memory in results]


def test_each_environment_is_a_program_of_its_own():
    one = Springs()
    for n in (1, 7):
        all_ = Springs(sg.batch(n))
        x, gravity = starts(n)
        x_now, loss, x_grad, gravity_grad, stiffness_grad = with_gradients(all_, x, gravity)
        assert x_now.shape == (n, N, 2)
        assert loss.shape == (n,)
        shared = np.zeros(N - 1)
        for e in range(n):
            own = with_gradients(one, x[e], gravity[e])
            # A force has two terms, whose order atomics do not fix, beside gravity; sums of losses have more.
            np.testing.assert_allclose(x_now[e], own[0], rtol=2e-6, atol=1e-6)
            np.testing.assert_allclose(loss[e], own[1], rtol=1e-5)
            np.testing.assert_allclose(x_grad[e], own[2], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(gravity_grad[e], own[3], rtol=1e-5)
            shared += own[4]
        np.testing.assert_allclose(stiffness_grad, shared, rtol=1e-4, atol=1e-6)


def test_many_environments():
    batch = sg.batch(1000)
    x, y = batch.field(sg.f32, 3), batch.field(sg.f32)

    @sg.kernel
    def run(a: sg.f32):
        first = x[0] * a
        for i in x:
            x[i] = x[i] * 2.0 + first
        for i in range(1, 3):
            y[None] += x[i]

    start = np.random.default_rng(0).integers(0, 99, (1000, 3)).astype(np.float32)
    x.from_numpy(start)
    run(3.0)
    want = start * 2 + 3 * start[:, :1]
    assert (x.to_numpy() == want).all()
    assert (y.to_numpy() == want[:, 1:].sum(1)).all()


def test_bits_without_atomics(arch):
    """The same arithmetic gives the same bits in a batch; loops fuse, have serial code between them, and bounds from memory."""
    sg.init(arch=arch, fast_math=False)

    @sg.data_oriented
    class Program:
        def __init__(self, new):
            self.x, self.y = new(sg.f32, (3, 4)), new(sg.f32, (3, 4))
            self.count = sg.field(sg.i32, ())
            self.total = new(sg.f32, ())
            self.count[None] = 2

        @sg.kernel
        def run(self, a: sg.f32):
            for i, j in self.x:
                self.y[i, j] = sg.sin(self.x[i, j]) * a
            total = 0.0
            sg.loop_config(serialize=True)
            for j in range(4):
                total += self.y[0, j] * 0.3
            scaled = total * a + 1.0
            rows = self.count[None] + 1
            for i in range(rows):
                for j in range(4):
                    self.x[i, j] += scaled * self.y[(i + 1) % 3, j]
            self.total[None] = scaled if total > 0.5 else -scaled

    x = np.random.default_rng(0).random((7, 3, 4)).astype(np.float32)
    one, all_ = Program(sg.field), Program(sg.batch(7).field)
    all_.x.from_numpy(x)
    all_.run(1.7)
    for e in range(7):
        one.x.from_numpy(x[e])
        one.run(1.7)
        assert (one.x.to_numpy() == all_.x.to_numpy()[e]).all()
        assert one.total[None] == all_.total[e]


def test_masks_choose_environments():
    """Many launches, so that compiled code repeats them: the mask counts in each of them, under tapes too."""
    batch = sg.batch(5)
    x, loss = batch.field(sg.f32, 3, needs_grad=True), batch.field(sg.f32, (), needs_grad=True)

    @sg.kernel
    def grow():
        for i in x:
            x[i] *= 2.0

    @sg.kernel
    def measure():
        for i in x:
            loss[None] += x[i]

    some = np.array([True, False, True, False, False])
    expected = np.ones((5, 3), np.float32)
    x.fill(1)
    for k in range(20):
        if k % 3 == 0:
            with batch.only(some if k % 2 else ~some):
                grow()
            expected[some if k % 2 else ~some] *= 2
            assert batch.mask is None
        else:
            grow()
            expected *= 2
    assert (x.to_numpy() == expected).all()
    for masks in ((some, ~some, some), (None, some, None), (None, None, None), (some, some, None)) * 2:
        x.fill(1)
        with sg.ad.Tape(loss):
            for mask in masks:
                batch.mask = mask
                grow()
            batch.mask = None
            measure()
        factors = np.prod([np.where(np.ones(5, bool) if mask is None else mask, 2.0, 1.0) for mask in masks], axis=0)
        assert (x.grad.to_numpy() == factors[:, None]).all()
        assert (loss.to_numpy() == 3 * factors).all()
    batch.mask = some
    assert (batch.mask == some).all()


def test_reset_of_some_environments():
    batch = sg.batch(4)
    with batch:
        x = sg.Vector.field(3, sg.f32, shape=(2, 2), order="ji")
        age = sg.types.struct(steps=sg.i32, mass=sg.f32).field(shape=())

    @sg.kernel
    def step():
        for i in sg.grouped(x):
            x[i] += [1.0, i[0], sg.batch.index()]
        age[None].steps += 1

    @sg.kernel
    def reset():
        x.fill(0.0)
        age[None].steps = 0

    for _ in range(3):
        step()
    with batch.only(age.steps.to_numpy() + np.arange(4) > 4):
        reset()
    step()
    assert (age.steps.to_numpy() == [4, 4, 1, 1]).all()
    want = np.array([4, 4, 1, 1])[:, None, None, None] * np.array([1, 1, 1])
    index, environment = np.arange(2)[None, :, None], np.arange(4)[:, None, None]
    assert (x.to_numpy()[..., 0] == want[..., 0]).all()
    assert (x.to_numpy()[..., 1] == want[..., 0] * index).all()
    assert (x.to_numpy()[..., 2] == want[..., 0] * environment).all()


def test_bounds_of_each_environment(caplog):
    """A loop whose bounds differ runs in order in each environment."""
    batch = sg.batch(5)
    count, x = batch.field(sg.i32), batch.field(sg.i32, 6)

    @sg.kernel
    def fill():
        for k in range(count[None]):
            x[k] += k + 1

    count.from_numpy(np.arange(5, dtype=np.int32))
    fill()
    assert (x.to_numpy() == np.where(np.arange(6) < np.arange(5)[:, None], np.arange(6) + 1, 0)).all()
    assert "its bounds differ between the environments" in caplog.text


def test_random_numbers_differ():
    batch = sg.batch(50)
    x, y = batch.field(sg.f32, 20), batch.field(sg.f32)

    @sg.kernel
    def draw():
        y[None] = sg.random()
        for i in x:
            x[i] = sg.random()

    draw()
    numbers = np.append(x.to_numpy().ravel(), y.to_numpy())
    assert len(np.unique(numbers)) > 1040
    assert abs(numbers.mean() - 0.5) < 0.05
    assert abs(np.corrcoef(x.to_numpy()[:-1].ravel(), x.to_numpy()[1:].ravel())[0, 1]) < 0.1


def test_shared_memory_is_summed_by_atomics():
    batch = sg.batch(9)
    x, total, best = batch.field(sg.i32, 4), sg.field(sg.i32, ()), sg.field(sg.i32, 4)

    @sg.kernel
    def add():
        for i in x:
            total[None] += x[i]
            sg.atomic_max(best[i], x[i])

    values = np.random.default_rng(0).integers(0, 99, (9, 4)).astype(np.int32)
    x.from_numpy(values)
    add()
    assert total[None] == values.sum()
    assert (best.to_numpy() == values.max(0)).all()


def test_functions_and_slices():
    batch = sg.batch(3)
    x = batch.field(sg.f32, 8)

    @sg.real_func
    def next_to(i: sg.i32) -> sg.f32:
        return x[i + 1] + sg.cast(i, sg.f32)

    @sg.kernel
    def run():
        for i in range(x.shape[0] - 1):
            x[i] = next_to(i)
        for i in x[6:]:
            x[6:][i] = 5.0

    run()
    assert (x.to_numpy() == [0, 1, 2, 3, 4, 5, 5, 5]).all()


def test_results_of_each_environment():
    batch = sg.batch(4)
    x = batch.field(sg.i32, 3)

    @sg.kernel
    def total() -> sg.i32:
        sum_ = 0
        for i in x:
            sum_ += x[i]
        return sum_

    @sg.kernel
    def ends(a: sg.i32) -> sg.types.vector(2, sg.i32):
        return a * sg.Vector([x[0], x[2]])

    values = np.arange(12, dtype=np.int32).reshape(4, 3)
    x.from_numpy(values)
    for _ in range(12):
        assert (total() == values.sum(1)).all()
    assert (ends(2) == 2 * values[:, ::2]).all()
    some = np.array([False, True, True, False])
    with batch.only(some):
        assert (total() == np.where(some, values.sum(1), 0)).all()


@pytest.mark.archs("interpreter")  # The front end raises them.
def test_errors():
    batch, other = sg.batch(3), sg.batch(3)
    x, y, shared = batch.field(sg.f32, 4), other.field(sg.f32, 4), sg.field(sg.f32, 4)
    array = sg.ndarray(sg.f32, 4)

    @sg.kernel
    def two():
        for i in x:
            x[i] = y[i]

    @sg.kernel
    def store():
        for i in x:
            shared[i] = x[i]

    @sg.kernel
    def store_to_array(a: sg.types.ndarray()):
        for i in x:
            a[i] = x[i]

    @sg.kernel
    def groups():
        for i in x:
            sg.simt.block.sync()
            x[i] = 1.0

    @sg.kernel
    def none():
        for i in shared:
            shared[i] = sg.batch.index()

    for call, message in (
        (two, "fields of two batches"),
        (store, "would store to `shared`, which is not a field of the batch"),
        (lambda: store_to_array(array), "would store to `a`, which is not a field of the batch"),
        (groups, "groups of threads"),
        (none, "needs a kernel that uses fields of a batch"),
        (lambda: sg.batch(0), "one environment or more, got 0"),
        (lambda: batch.field(sg.f32, 0), "every extent of a field must be a positive integer"),
        (lambda: setattr(batch, "mask", [1, 0, 1]), "is an array of 3 bools, got int64"),
        (lambda: setattr(batch, "mask", np.ones(2, bool)), "is an array of 3 bools, got bool of shape"),
        (lambda: in_block(batch, lambda: sg.ndarray(sg.f32, 3)), "arrays have no environments"),
        (lambda: in_block(batch, lambda: sg.root.dense(sg.i, 3).place(sg.field(sg.f32))), "placed by hand are not of a batch"),
        (lambda: in_block(batch, lambda: sg.field(sg.f32, 3, offset=1)), "fields of a batch have no `offset`"),
        (lambda: pickle.dumps(x), "can be neither pickled nor copied"),
        (sg.batch.index, "has a meaning only inside kernels"),
    ):
        with pytest.raises(sg.SpirogradError, match=message):
            call()


def in_block(batch, make):
    with batch:
        make()


def test_no_batches_of_plain_python():
    sg.init(arch=sg.python)
    with pytest.raises(sg.SpirogradUnsupportedError, match="for one environment"):
        sg.batch(2)


def test_contents_of_one_environment_for_all():
    batch = sg.batch(3)
    x = batch.field(sg.types.vector(2, sg.f32), 4)
    one = np.arange(8, dtype=np.float32).reshape(4, 2)
    x.from_numpy(one)
    assert (x.to_numpy() == one).all()
    with pytest.raises(ValueError, match="needs an array of shape"):
        x.from_numpy(one[:3])
    y = batch.field(sg.types.vector(2, sg.f32), 4)
    y.copy_from(x)
    assert (y.to_numpy()[2] == one).all()
    assert (x[2, 3].to_numpy() == one[3]).all()

"""`sg.ad.FwdMode` on every back end, against torch's Jacobian-vector products."""

from __future__ import annotations

import copy
import pickle

import needs
import numpy as np
import pytest

import spirograd as sg

torch = needs.package("torch")
pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.vulkan_or_wgpu]
N = 9


def vector(seed, n=N):
    return np.random.default_rng(seed).uniform(0.3, 1.7, n).astype(np.float32)


def tangent_of(function, x, v):
    """The value of ``function`` at ``x`` and its derivative along ``v``, in f64."""
    value, tangent = torch.func.jvp(function, (torch.tensor(x, dtype=torch.float64),), (torch.tensor(v, dtype=torch.float64),))
    return value.numpy(), tangent.numpy()


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


def fields(*names):
    made = {}
    for name in names:
        made[name] = sg.field(sg.f32, shape=() if name == "loss" else N, needs_dual=True)
    return made.values()


def test_a_chain_of_kernels():
    x, y, loss = fields("x", "y", "loss")

    @sg.kernel
    def first():
        for i in x:
            y[i] = sg.sin(x[i]) * x[(i + 1) % N]

    @sg.kernel
    def second():
        for i in y:
            loss[None] += sg.exp(y[i]) * x[i]

    a, v = vector(1), vector(2)
    x.from_numpy(a)
    with sg.ad.FwdMode(loss=loss, param=x, seed=v.tolist()):
        first()
        second()

    def reference(x):
        y = torch.sin(x) * torch.roll(x, -1)
        return (torch.exp(y) * x).sum()

    value, tangent = tangent_of(reference, a, v)
    close(loss[None], value)
    close(loss.dual[None], tangent)
    close(y.dual.to_numpy(), tangent_of(lambda x: torch.sin(x) * torch.roll(x, -1), a, v)[1])
    assert (x.dual.to_numpy() == 0).all(), "the seed is taken away at the end"


def test_memory_is_overwritten():
    """Steps in place, constants over what had a tangent, swaps."""
    x, y, loss = fields("x", "y", "loss")

    @sg.kernel
    def step(t: sg.f32):
        for i in x:
            v = x[i]
            for _ in range(3):
                v = v + t * sg.cos(v)
            x[i] = v
        for i in x:
            y[i] = x[i] * y[i]
            if i % 3 == 0:
                x[i] = 0.5

    @sg.kernel
    def total():
        loss[None] = 7.0
        for i in x:
            loss[None] += x[i] * y[i]

    a, b, v = vector(1), vector(2), vector(3)
    x.from_numpy(a)
    y.from_numpy(b)
    with sg.ad.FwdMode(loss=loss, param=x, seed=v):
        for k in range(4):
            step(0.1 * k)
        total()

    def reference(x):
        y = torch.tensor(b, dtype=torch.float64)
        kept = torch.tensor([i % 3 != 0 for i in range(N)])
        for k in range(4):
            for _ in range(3):
                x = x + float(np.float32(0.1 * k)) * torch.cos(x)
            y = x * y
            x = torch.where(kept, x, 0.5)
        return 7.0 + (x * y).sum()

    value, tangent = tangent_of(reference, a, v)
    close(loss[None], value)
    close(loss.dual[None], tangent)


def test_loops_of_all_kinds():
    x, y, _loss = fields("x", "y", "loss")
    count = sg.field(sg.i32, shape=N)
    count.from_numpy(np.arange(N, dtype=np.int32))

    @sg.kernel
    def run():
        for i in x:
            v, best = x[i], 0.0
            for j in range(count[i]):
                v = sg.sin(v) + 0.3 * x[j]
                if v > best:
                    best = v
            while v < 3.0:
                v = v * 1.3 + 0.2
                if v > 2.5:
                    break
            y[i] = v * best

    a, v = vector(1), vector(2)
    x.from_numpy(a)
    with sg.ad.FwdMode(loss=y, param=x, seed=v):
        run()

    def reference(x):
        out = []
        for i in range(N):
            v, best = x[i], x[i] * 0.0
            for j in range(i):
                v = torch.sin(v) + 0.3 * x[j]
                best = torch.where(v > best, v, best)
            for _ in range(9):
                new = v * 1.3 + 0.2
                last = torch.where(new > 2.5, 1.0, 0.0)
                v = torch.where((v < 3.0) & (v <= 2.5), new, v) + 0.0 * last
            out.append(v * best)
        return torch.stack(out)

    close(y.dual.to_numpy(), tangent_of(reference, a, v)[1])


def test_minima_and_maxima_of_parallel_loops():
    """Of values with rounding and math functions in them: they must come out the same when they are computed again."""
    x, y, loss = fields("x", "y", "loss")

    @sg.kernel
    def run():
        top = -10.0
        for i in x:
            value = sg.exp(sg.sin(3.1 * x[i]) * 1.7 + x[i] / 3.0) - 0.3 * x[i] * x[i] + sg.log(x[i] + 0.1) * sg.sqrt(x[i])
            sg.atomic_max(loss[None], value)
            sg.atomic_max(top, -value)
            sg.atomic_min(y[i % 2], value * 1.3 + 0.7)
        y[2] = top

    def reference(x):
        value = torch.exp(torch.sin(3.1 * x) * 1.7 + x / 3.0) - 0.3 * x * x + torch.log(x + 0.1) * torch.sqrt(x)
        low = value * 1.3 + 0.7
        return torch.stack([value.max(), low[0::2].min(), low[1::2].min(), (-value).max()])

    for seed in range(8):
        a, v = vector(seed), vector(seed + 10)
        x.from_numpy(a)
        y.fill(100.0)
        loss[None] = -10.0
        with sg.ad.FwdMode(loss=[loss, y], param=x, seed=v):
            run()
        value, tangent = tangent_of(reference, a, v)
        close([loss[None], *y.to_numpy()[:3]], value)
        close([loss.dual[None], *y.dual.to_numpy()[:3]], tangent)


def test_vectors_and_matrices():
    x = sg.Vector.field(3, sg.f32, shape=4, needs_dual=True)
    y = sg.Matrix.field(3, 3, sg.f32, shape=4, needs_dual=True, layout=sg.Layout.SOA)
    loss = sg.field(sg.f32, shape=(), needs_dual=True)

    @sg.kernel
    def run():
        for i in x:
            y[i] = x[i].outer_product(x[i].normalized())
        for i in y:
            loss[None] += (y[i] @ y[i]).trace() * x[i][1]

    a = np.random.default_rng(0).uniform(0.3, 1.7, (4, 3)).astype(np.float32)
    v = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    x.from_numpy(a)
    with sg.ad.FwdMode(loss=loss, param=x, seed=v):
        run()

    def reference(x):
        y = torch.einsum("ni,nj->nij", x, x / x.norm(dim=1, keepdim=True))
        return (torch.einsum("nij,nji->n", y, y) * x[:, 1]).sum()

    close(loss.dual[None], tangent_of(reference, a, v)[1])


def test_arrays():
    @sg.kernel
    def run(x: sg.types.ndarray(), y: sg.types.ndarray(), n: sg.i32):
        for i in range(x.shape[0]):
            for k in range(n):
                y[k] += x[i] ** (k + 1) * sg.cos(x[i])

    a, v = vector(1), vector(2)
    x, y = sg.ndarray(sg.f32, N, needs_dual=True), sg.ndarray(sg.f32, 3, needs_dual=True)
    x.from_numpy(a)
    with sg.ad.FwdMode(loss=y, param=x, seed=v):
        run(x, y, 3)
    value, tangent = tangent_of(lambda x: torch.stack([(x ** (k + 1) * torch.cos(x)).sum() for k in range(3)]), a, v)
    close(y.to_numpy(), value)
    close(y.dual.to_numpy(), tangent)


def test_duals_can_be_read_in_kernels():
    a = sg.ndarray(sg.f32, 3, needs_dual=True)
    a.dual.fill(2.0)

    @sg.kernel
    def read(x: sg.types.ndarray()) -> sg.f32:
        return x.dual[1]

    assert read(a) == 2.0


# --- the context manager -----------------------------------------------------------------------------------------------


def squares():
    x, y, loss = fields("x", "y", "loss")

    @sg.kernel
    def run():
        for i in x:
            y[i] = x[i] * x[i]
        for i in x:
            loss[None] += y[i]

    x.from_numpy(vector(1))
    return x, y, loss, run


@pytest.mark.parametrize("make", [list, tuple, np.asarray, lambda seed: torch.tensor(seed)], ids=["list", "tuple", "array", "tensor"])
def test_seeds(make):
    x, y, loss, run = squares()
    seed = [1.0] + [0.0] * (N - 2) + [3.0]
    with sg.ad.FwdMode(loss=loss, param=x, seed=make(seed)):
        run()
    close(loss.dual[None], 2 * vector(1) @ np.array(seed))
    close(y.dual.to_numpy(), 2 * vector(1) * seed)


def test_seeds_of_scalars():
    x, loss = sg.field(sg.f32, shape=(), needs_dual=True), sg.field(sg.f32, shape=(), needs_dual=True)

    @sg.kernel
    def run():
        loss[None] = x[None] ** 3

    x[None] = 2.0
    for seed, wanted in ((None, 12.0), ([2.0], 24.0), (0.5, 6.0)):
        with sg.ad.FwdMode(loss=loss, param=x, seed=seed):
            run()
        close(loss.dual[None], wanted)


def test_seeds_of_two_axes():
    x, y = sg.field(sg.f32, shape=(2, 3), needs_dual=True), sg.field(sg.f32, shape=(2, 3), needs_dual=True)

    @sg.kernel
    def run():
        for i in sg.grouped(x):
            y[i] = 5.0 * x[i]

    with sg.ad.FwdMode(loss=y, param=x, seed=[[1, 0, 0], [0, 0, 2]]):
        run()
    close(y.dual.to_numpy(), [[5, 0, 0], [0, 0, 10]])


def test_duals_are_cleared_or_kept():
    x, y, loss, run = squares()
    ones = [1.0] * N
    y.dual.fill(3.0)
    with sg.ad.FwdMode(loss=loss, param=x, seed=ones):
        run()
    once = loss.dual[None]
    with sg.ad.FwdMode(loss=loss, param=x, seed=ones):
        run()
    assert loss.dual[None] == once
    with sg.ad.FwdMode(loss=loss, param=x, seed=ones, clear_gradients=False):
        run()
    close(loss.dual[None], 2 * once)
    run()
    close(loss.dual[None], 2 * once)  # a kernel outside of the block leaves duals alone


def test_each_kernel_is_compiled_once():
    x, _, loss, run = squares()
    for k in range(3):
        with sg.ad.FwdMode(loss=loss, param=x, seed=[1.0] * N):
            run()
        run()
        if k == 0:
            compiled = sg.lang.context.session().compiled
    assert sg.lang.context.session().compiled == compiled


def refused(pattern, *args, kind=sg.SpirogradRuntimeError, **options):
    with pytest.raises(kind, match=pattern):
        sg.ad.FwdMode(*args, **options)


def test_mistakes():
    x, _, loss, run = squares()
    plain = sg.field(sg.f32, shape=N, name="plain")
    number = sg.field(sg.i32, shape=N)
    refused("has no dual", loss=loss, param=plain, seed=[1.0] * N)
    refused("plain.*has no dual", loss=plain, param=x, seed=[1.0] * N)
    refused("has no dual", loss=loss, param=number, seed=[1.0] * N)
    refused("needs a `seed`", loss=loss, param=x)
    refused("shape", loss=loss, param=x, seed=[1.0] * (N - 1))
    refused("shape", loss=loss, param=x, seed=2.0)
    refused("one field or array", kind=TypeError, loss=loss, param=[x], seed=[1.0] * N)
    refused("one field or array", kind=TypeError, loss=3.0, param=x, seed=[1.0] * N)
    refused("numbers", kind=TypeError, loss=loss, param=x, seed=["a"] * N)
    mode = sg.ad.FwdMode(loss=loss, param=x, seed=[1.0] * N)
    with mode, pytest.raises(sg.SpirogradRuntimeError, match="inside of another"), sg.ad.FwdMode(loss=loss, param=x, seed=[1.0] * N):
        pass
    with pytest.raises(ZeroDivisionError), mode:
        raise ZeroDivisionError
    loss.dual[None] = 0.0
    run()
    assert loss.dual[None] == 0.0


def test_a_chain_through_memory_without_dual():
    x, loss = fields("x", "loss")
    between = sg.field(sg.f32, shape=N)

    @sg.kernel
    def first():
        for i in x:
            between[i] = x[i] * 2.0

    @sg.kernel
    def second():
        for i in x:
            loss[None] += between[i]

    with sg.ad.FwdMode(loss=loss, param=x, seed=[1.0] * N):
        first()
        with pytest.raises(sg.SpirogradRuntimeError, match="`between` has no dual") as error:
            second()
    assert "first" in str(error.value) and "needs_dual=True" in str(error.value)
    with sg.ad.FwdMode(loss=loss, param=x, seed=[1.0] * N):  # what has no tangent may come from there
        second()
    assert loss.dual[None] == 0.0


def test_a_chain_through_an_array_without_dual():
    x, y = sg.ndarray(sg.f32, N, needs_dual=True), sg.ndarray(sg.f32, N, needs_dual=True)
    between, other = sg.ndarray(sg.f32, N), sg.ndarray(sg.f32, N)

    @sg.kernel
    def double(a: sg.types.ndarray(), b: sg.types.ndarray()):
        for i in range(a.shape[0]):
            b[i] = 2.0 * a[i]

    with sg.ad.FwdMode(loss=y, param=x, seed=[1.0] * N):
        double(x, between)
        double(other, y)
        with pytest.raises(sg.SpirogradRuntimeError, match="`a` has no dual"):
            double(between, y)


def test_what_the_host_writes():
    x, y, loss = fields("x", "y", "loss")
    between = sg.field(sg.f32, shape=N, name="between")

    @sg.kernel
    def total():
        for i in x:
            loss[None] += y[i] * x[i]

    @sg.kernel
    def square():
        for i in x:
            y[i] = x[i] * x[i]

    v = vector(2)
    with sg.ad.FwdMode(loss=loss, param=x, seed=v):
        x.from_numpy(vector(1))  # the point; its tangent stays
        square()
        loss[None] = 5.0
        total()
        loss[None] = 0.0
        y[3] = 0.25
        total()

    def reference(x):
        return (torch.where(torch.arange(N) == 3, 0.25, x * x) * x).sum()

    value, tangent = tangent_of(reference, vector(1), v)
    close(loss[None], value)
    close(loss.dual[None], tangent)
    with sg.ad.FwdMode(loss=loss, param=x, seed=v):
        y.copy_from(x)
        loss.fill(0.0)
        total()
        close(y.dual.to_numpy(), v)
        between.copy_from(x)
        with pytest.raises(sg.SpirogradRuntimeError, match="`between` has no dual"):
            y.copy_from(between)
        between.fill(1.0)
        y.copy_from(between)
    close(loss.dual[None], 2 * vector(1) @ v)
    assert (y.dual.to_numpy() == 0).all()


def test_a_kernel_that_returns_a_value(caplog):
    x, loss = fields("x", "loss")

    @sg.kernel
    def run() -> sg.f32:
        loss[None] = x[1] * x[1]
        return x[1] + 1.0

    x.fill(3.0)
    with sg.ad.FwdMode(loss=loss, param=x, seed=[1.0] * N):
        assert run() == 4.0
    assert loss.dual[None] == 6.0
    assert "returns a value with a tangent, which is lost" in caplog.text


def test_functions_without_gradients():
    x, y, loss = fields("x", "y", "loss")

    @sg.kernel
    def square():
        for i in x:
            y[i] = x[i] * x[i]

    @sg.kernel
    def add():
        for i in x:
            loss[None] += y[i] * x[i]

    @sg.ad.no_grad
    def constant():
        square()

    @sg.ad.grad_replaced
    def replaced():
        square()

    x.from_numpy(vector(1))
    for function, factor in ((constant, 1.0), (replaced, 3.0), (constant, 1.0)):
        with sg.ad.FwdMode(loss=loss, param=x, seed=vector(2)):
            square()
            function()
            add()
        close(loss.dual[None], factor * vector(1) ** 2 @ vector(2))


def test_copies_of_arrays_keep_their_duals():
    a = sg.ndarray(sg.f32, 3, needs_dual=True)
    a.fill(1.0)
    a.dual.fill(2.0)
    for copied in (copy.deepcopy(a), pickle.loads(pickle.dumps(a))):
        assert (copied.to_numpy() == 1.0).all() and (copied.dual.to_numpy() == 2.0).all()
    with pytest.raises(sg.SpirogradRuntimeError, match="only arrays of floats"):
        sg.ndarray(sg.i32, 3, needs_dual=True)
    assert sg.ndarray(sg.f32, 3).dual is None


@pytest.mark.parametrize("guarded", [False, True])
def test_products_of_elements_that_one_iteration_owns(guarded):
    x, y = fields("x", "y")

    @sg.kernel
    def multiply():
        for i in y:
            if sg.static(not guarded) or i % 3 != 1:
                y[i] *= sg.sin(x[i])

    a, b, v = vector(1), vector(2), vector(3)
    x.from_numpy(a)
    y.from_numpy(b)
    with sg.ad.FwdMode(loss=y, param=x, seed=v):
        multiply()
        multiply()
    owned = (np.arange(N) % 3 != 1) if guarded else np.full(N, True)
    _, wanted = tangent_of(lambda x: torch.where(torch.tensor(owned), torch.sin(x) ** 2, 1.0) * torch.tensor(b), a, v)
    close(y.dual.to_numpy(), wanted)

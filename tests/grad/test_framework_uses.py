"""Kernels as functions of torch and JAX, used in the ways that these frameworks have: each use gives what the same function written in the
framework gives, and none a wrong number without an error."""

from __future__ import annotations

import needs
import numpy as np
import pytest

import spirograd as sg

jax = needs.package("jax")
torch = needs.package("torch")

pytestmark = pytest.mark.usefixtures("session")
on_cpu = pytest.mark.archs("cpu")  # what frameworks do does not depend on the back end
LINE, NUMBERS = sg.types.NDArray[sg.f32, 1], sg.types.NDArray[sg.i32, 1]


@sg.kernel
def mix(x: LINE, w: LINE, at: NUMBERS, c: sg.f32, y: LINE):
    for i in x:
        y[i] = sg.sin(x[i]) * w[at[i]] + c * x[i] * x[i]


@sg.kernel
def fill(x: LINE, value: sg.f32):
    for i in x:
        x[i] = value + i


X, W = (np.random.default_rng(size).normal(size=size).astype(np.float32) for size in (4, 3))
AT, C = np.array([0, 2, 1, 2], np.int32), 0.5


def compare(found, wanted, leaves):
    found, wanted = leaves(found), leaves(wanted)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.shape == b.shape and a.dtype == b.dtype
            if a.dtype != jax.dtypes.float0:
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# --- torch ---------------------------------------------------------------------------------------------------------------------


class Torch:
    """The arguments as tensors, of ``f``, and its derivatives."""

    def __init__(self, f):
        self.f = f
        self.x, self.w, self.at = map(torch.tensor, (X, W, AT))

    def of(self, x, w=None, at=None):
        return self.f(x, self.w if w is None else w, self.at if at is None else at, C)

    def slopes(self, function, *tensors, **options):
        """By tensors that require gradients."""
        leaves = [t.clone().requires_grad_() for t in tensors]
        return torch.autograd.grad(function(*leaves).sum(), leaves, **options)

    def twice(self, x, u):
        x, u = x.clone().requires_grad_(), u.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.of(x), x, u, create_graph=True)
        return slope, *torch.autograd.grad((slope**2).sum(), (x, u))


def accumulated(t):
    x = t.x.clone().requires_grad_()
    for _ in range(2):
        t.of(x).sum().backward()
    return x.grad


def hooked(t):
    x = t.x.clone().requires_grad_()
    x.register_hook(lambda slope: 3 * slope)
    t.of(x).sum().backward()
    return x.grad


def restored(t):
    with torch.autograd.graph.save_on_cpu():
        return t.slopes(lambda x: t.of(t.of(x)), t.x)


USES = {
    "of both": lambda t: t.slopes(t.of, t.x, t.w),
    "of the second": lambda t: t.slopes(lambda w: t.of(t.x, w), t.w),
    "of none": lambda t: (t.of(t.x), torch.tensor(t.of(t.x).requires_grad)),
    "strided": lambda t: t.slopes(lambda x: t.of(x[::2]), torch.cat([t.x, t.w, t.x[:1]])),
    "a column": lambda t: t.slopes(lambda x: t.of(x.reshape(4, 2).t()[1]), torch.cat([t.x, -t.x])),
    "expanded": lambda t: t.slopes(lambda x: t.of(x.expand(4)), t.x[:1]),
    "an expanded adjoint": lambda t: torch.autograd.functional.vjp(t.of, t.x, torch.ones(1).expand(4)),
    "no element": lambda t: t.slopes(lambda x: t.of(x, at=t.at[:0]), t.x[:0]),
    "one element": lambda t: t.slopes(lambda x: t.of(x, at=t.at[:1]), t.x[:1]),
    "the same twice": lambda t: t.slopes(lambda x: t.of(x, x), t.x),
    "not used": lambda t: t.slopes(lambda x, w: t.of(x, t.w), t.x, t.w, allow_unused=True),
    "a second time": lambda t: t.twice(t.x, torch.ones(4)),
    "no_grad": lambda t: torch.no_grad()(lambda x: t.of(x.requires_grad_()))(t.x.clone()),
    "accumulated": accumulated,
    "a hook": hooked,
    "saved elsewhere": restored,
    "checkpointed": lambda t: t.slopes(lambda x: torch.utils.checkpoint.checkpoint(lambda x: t.of(t.of(x)), x, use_reentrant=False), t.x),
    "autocast": lambda t: torch.autocast("cpu", dtype=torch.bfloat16)(lambda: t.slopes(t.of, t.x))(),
    "jacobian": lambda t: torch.autograd.functional.jacobian(t.of, t.x),
    "a parameter": lambda t: t.of(torch.nn.Parameter(t.x)),
}


@on_cpu
@pytest.mark.needs("torch")
def test_uses_of_torch():
    functions = (sg.ad.torch_op(mix, {"y": "x"}), sg.ad.torch_function(mix, {"y": "x"}))
    for use in USES.values():
        wanted = use(Torch(lambda x, w, at, c: torch.sin(x) * w[at] + c * x * x))
        for f in functions:
            compare(use(Torch(f)), wanted, lambda t: [None if v is None else v.detach() for v in torch.utils._pytree.tree_leaves(t)])


@on_cpu
@pytest.mark.needs("torch")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int32", "uint8"])
def test_types_of_torch(dtype):
    @sg.kernel
    def cube(x: sg.types.ndarray(), y: sg.types.ndarray()):
        for i in x:
            y[i] = x[i] * x[i] * x[i]

    x = torch.tensor([1, 2, 3]).to(getattr(torch, dtype))
    for f in (sg.ad.torch_op(cube, {"y": "x"}), sg.ad.torch_function(cube, {"y": "x"})):
        assert f(x).dtype == x.dtype and torch.equal(f(x), x**3)
        if x.is_floating_point():
            t = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(f(t).sum(), t, create_graph=True)
            assert torch.equal(slope, 3 * x**2) and torch.equal(torch.autograd.grad(slope.sum(), t)[0], 6 * x)


@on_cpu
@pytest.mark.needs("torch")
def test_numbers_have_no_derivative():
    """Torch makes numbers of tensors without axes: derivatives by them would be zero."""
    f, t = sg.ad.torch_op(mix, {"y": "x"}), Torch(None)
    c = torch.tensor(C)

    def of(c):
        return f(t.x, t.w, t.at, c)

    def dual():
        with torch.autograd.forward_ad.dual_level():
            of(torch.autograd.forward_ad.make_dual(c, c))

    batch = torch.stack([c, c])
    for wrong in (
        lambda: of(c.clone().requires_grad_()),
        lambda: f(t.x, t.w, c=c.clone().requires_grad_(), at=t.at),
        dual,
        lambda: torch.func.grad(lambda c: of(c).sum())(c),
        lambda: torch.func.jvp(of, (c,), (c,)),
        lambda: torch.func.jacrev(of)(c),
        lambda: torch.func.grad(lambda c: torch.func.vmap(of)(c).sum())(batch),
        lambda: torch.func.vmap(torch.func.grad(lambda c: of(c).sum()))(batch),
    ):
        with pytest.raises(sg.SpirogradRuntimeError, match=r"`c` is a tensor that (requires a gradient|has a)"):
            wrong()
    wanted = torch.sin(t.x) * t.w[t.at] + C * t.x**2
    for fine in (of(c), of(c.clone().requires_grad_().detach()), torch.func.vmap(of)(batch)[1], torch.no_grad()(of)(c.requires_grad_())):
        torch.testing.assert_close(fine, wanted)


@pytest.mark.needs("torch")
def test_writes_to_tensors_that_torch_has_saved():
    """Also those of kernels that torch does not know are an error in its reverse pass."""
    x = torch.ones(3, requires_grad=True)
    z = x * 1.0
    loss = (z * z).sum()
    fill(z.detach(), 5.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    f = sg.ad.torch_function(fill, ["x"])
    loss = (x * 2.0).sum()
    f(x=torch.zeros(3), value=1.0)
    loss.backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    with torch.inference_mode():
        t = torch.zeros(3)
        fill(t, 1.0)
        assert t.tolist() == [1.0, 2.0, 3.0]
    version = z._version
    sg.ad.torch_op(mix, {"y": "x"})(z.detach(), z.detach(), torch.zeros(3, dtype=torch.int32), 1.0)
    assert z._version == version  # of tensors that are only read


@pytest.mark.needs("torch")
def test_writes_to_elements_that_are_one():
    x = torch.ones(1).expand(3)
    with pytest.raises((sg.SpirogradRuntimeTypeError, RuntimeError), match=r"elements of which are one place|single memory location"):
        fill(x, 5.0)
    assert x.tolist() == [1.0, 1.0, 1.0]


# --- JAX -----------------------------------------------------------------------------------------------------------------------


class Jax:
    """The arguments as arrays, of ``f``; in upper case a batch of them."""

    def __init__(self, f):
        jnp = jax.numpy
        self.f = f
        self.x, self.w, self.at = map(jnp.asarray, (X, W, AT))
        self.X, self.W, self.AT = jnp.stack([self.x, -self.x]), jnp.stack([self.w, 2 * self.w]), jnp.stack([self.at, self.at[::-1]])

    def of(self, x, w=None, at=None):
        return self.f(x, self.w if w is None else w, self.at if at is None else at, C)

    def loss(self, *args):
        return self.of(*args).sum()

    def mapped(self, *axes):
        args = [many if axis is not None else one for one, many, axis in zip((self.x, self.w, self.at), (self.X, self.W, self.AT), axes)]
        return jax.vmap(self.of, axes)(*args), jax.vmap(jax.grad(self.loss, (0, 1)), axes)(*args)


def donated(j):
    f = jax.jit(lambda x: (j.of(x), x + 1), donate_argnums=0)
    first = f(j.x + 0)[0] + 0
    return first, f(first + 0), j.x


USES_OF_JAX = {
    "jit of grad": lambda j: jax.jit(jax.grad(j.loss, (0, 1)))(j.x, j.w),
    "by the second": lambda j: jax.grad(j.loss, 1)(j.x, j.w),
    "integers": lambda j: jax.grad(j.loss, (0, 2), allow_int=True)(j.x, j.w, j.at),
    "vjp of integers": lambda j: jax.vjp(j.of, j.x, j.w, j.at)[1](j.x),
    "jvp of integers": lambda j: jax.jvp(j.of, (j.x, j.w, j.at), (j.x, j.w, np.zeros(4, jax.dtypes.float0))),
    "vmap of the first": lambda j: j.mapped(0, None, None),
    "vmap of the second": lambda j: j.mapped(None, 0, None),
    "vmap of integers": lambda j: j.mapped(None, None, 0),
    "vmap of all": lambda j: j.mapped(0, 0, 0),
    "vmap of other axes": lambda j: jax.vmap(j.of, (1, None, None), -1)(j.X.T, j.w, j.at),
    "vmap of vmap": lambda j: jax.vmap(jax.vmap(j.of, (0, None)), (None, 0))(j.X, j.W),
    "vmap of none": lambda j: jax.vmap(j.of)(j.X[:0]),
    "jacobians": lambda j: jax.jit(jax.vmap(jax.jacrev(j.of)))(j.X),
    "hessian": lambda j: jax.hessian(j.loss)(j.x),
    "scan": lambda j: jax.jit(jax.grad(lambda x: jax.lax.scan(lambda c, _: (j.of(c), c.sum()), x, None, length=3)[0].sum()))(j.x),
    "a loop": lambda j: jax.lax.fori_loop(0, 3, lambda _, c: j.of(c), j.x),
    "cond": lambda j: jax.grad(lambda x: jax.lax.cond(x[0] > 0, j.of, lambda x: x, x).sum())(j.x),
    "checkpointed": lambda j: jax.grad(jax.checkpoint(lambda x: j.of(j.of(x)).sum()))(j.x),
    "linearized": lambda j: jax.linearize(j.of, j.x)[1](j.x),
    "no element": lambda j: jax.grad(lambda x: j.loss(x, j.w, j.at[:0]))(j.x[:0]),
    "one element": lambda j: jax.grad(lambda x: j.loss(x, j.w, j.at[:1]))(j.x[:1]),
    "the same twice": lambda j: jax.grad(lambda x: j.loss(x, x))(j.x),
    "stop_gradient": lambda j: jax.grad(lambda x: j.loss(jax.lax.stop_gradient(x), x[:3]))(j.x),
    "strides of NumPy": lambda j: j.of(np.arange(8, dtype=np.float32)[::-2], j.w, j.at),
    "donated": donated,
}


BY_DAY = ("jit of grad", "integers", "vjp of integers", "jvp of integers", "vmap of all", "vmap of none", "scan", "no element",
          "the same twice", "strides of NumPy", "donated")  # fmt: skip


@on_cpu
@pytest.mark.needs("jax")
@pytest.mark.parametrize("names", [BY_DAY, pytest.param([*USES_OF_JAX], marks=pytest.mark.long)], ids=["some", "all"])
def test_uses_of_jax(names):
    f = sg.ad.jax_function(mix, {"y": "x"})
    for use in map(USES_OF_JAX.get, names):
        compare(use(Jax(f)), use(Jax(lambda x, w, at, c: jax.numpy.sin(x) * w[at] + c * x * x)), jax.tree.leaves)

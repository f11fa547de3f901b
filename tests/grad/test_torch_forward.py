"""Operators of torch in forward mode and under `torch.func`, against the same functions in torch; compiled graphs never lose a tangent."""

import needs
import numpy as np
import pytest

import spirograd as sg

torch = needs.package("torch")

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.needs("torch"), pytest.mark.vulkan_or_wgpu]
LINE = sg.types.NDArray[sg.f32, 1]


@sg.kernel
def wave(u: LINE, w: LINE, n: sg.i32, c: sg.f32, out: LINE):
    for i in u:
        s = u[i]
        for k in range(n):
            s = sg.sin(s) * w[k] + c
        out[i] = s


def by_torch(u, w, n, c):
    for k in range(n):
        u = torch.sin(u) * w[k] + c
    return u


def of(size, seed):
    return torch.from_numpy(np.random.default_rng(seed).uniform(0.2, 1.0, size).astype(np.float32))


U, V, W, Z = (lambda: of(5, 1)), (lambda: of(5, 2)), (lambda: of(3, 3)), (lambda: of(3, 4))


def dual(f):
    forward = torch.autograd.forward_ad
    w = W().requires_grad_()
    with forward.dual_level():
        value, tangent = forward.unpack_dual(f(forward.make_dual(U(), V()), forward.make_dual(w, Z()), 3, 0.5))
    return value, tangent, *torch.autograd.grad(tangent.sum(), w)


def energy(f, u, w):
    return (f(u, w, 3, 0.5) ** 2).sum()


FIRST = {
    "jvp": lambda f: torch.func.jvp(lambda u, w: f(u, w, 3, 0.5) ** 2, (U(), W()), (V(), Z())),
    "jvp by name": lambda f: torch.func.jvp(lambda u: f(u, c=0.5, n=2, w=W()), (U(),), (V(),)),
    "jvp of no iteration": lambda f: torch.func.jvp(lambda u: f(u, W(), 0, 0.5), (U(),), (V(),)),
    "jacfwd": lambda f: (torch.func.jacfwd(lambda u: f(u, W(), 3, 0.5))(U()),),
    "jacrev": lambda f: (torch.func.jacrev(lambda w: f(U(), w, 3, 0.5))(W()),),
    "grad": lambda f: torch.func.grad(lambda u, w: energy(f, u, w), (0, 1))(U(), W()),
    "vmap of grad": lambda f: (torch.func.vmap(torch.func.grad(lambda u, w: energy(f, u, w)), (0, None))(torch.stack([U(), V()]), W()),),
    "jvp of vmap": lambda f: torch.func.jvp(
        torch.func.vmap(lambda u: f(u, W(), 3, 0.5)), (torch.stack([U(), V()]),), (torch.stack([V(), U()]),)
    ),
}
SECOND = {
    "dual": dual,
    "hessian": lambda f: (torch.func.hessian(lambda w: energy(f, U(), w))(W()),),
    "reverse over reverse": lambda f: (torch.func.jacrev(torch.func.jacrev(lambda w: energy(f, U(), w)))(W()),),
    "reverse over forward": lambda f: (torch.func.jacrev(torch.func.jacfwd(lambda w: f(U(), w, 3, 0.5)))(W()),),
    "gradient of jvp": lambda f: torch.func.grad(lambda w, z: torch.func.jvp(lambda w: f(U(), w, 3, 0.5), (w,), (z,))[1].sum(), (0, 1))(
        W(), Z()
    ),
    "hvp": lambda f: torch.func.jvp(torch.func.grad(lambda u, w: energy(f, u, w), (0, 1)), (U(), W()), (V(), Z())),
}


def same(found, expected):
    for a, b in zip(torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=3e-4, atol=1e-5)


@pytest.mark.parametrize("cases", [FIRST, SECOND], ids=["first", "second"])
def test_transforms(cases):
    f = sg.ad.torch_op(wave, {"out": "u"})
    for case in cases.values():
        same(case(f), case(by_torch))


@pytest.mark.archs("cpu")  # what torch traces does not depend on the back end
def test_compiled_functions_lose_no_tangent():
    f = sg.ad.torch_op(wave, {"out": "u"})
    forward = torch.autograd.forward_ad

    def compiled(g, backend="eager", **options):
        return torch.compile(lambda u, v: torch.func.jvp(lambda u: g(u, W(), 3, 0.5), (u,), (v,))[1], backend=backend, **options)

    torch._dynamo.reset()
    same(compiled(f)(U(), V()), compiled(by_torch)(U(), V()))
    plain = torch.compile(lambda u: f(u, W(), 3, 0.5) + 0, backend="eager")
    same(plain(U()), by_torch(U(), W(), 3, 0.5))
    with forward.dual_level(), pytest.raises(sg.SpirogradUnsupportedError, match="compiled without tangents, and gets some"):
        plain(forward.make_dual(U(), V()))
    torch._dynamo.reset()
    with forward.dual_level():
        found = forward.unpack_dual(plain(forward.make_dual(U(), V())))
        wanted = forward.unpack_dual(by_torch(forward.make_dual(U(), V()), W(), 3, 0.5))
        same(tuple(found), tuple(wanted))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(f, fullgraph=True)(U(), V())
    torch._dynamo.reset()


@pytest.mark.archs("cpu")
def test_transforms_in_compiled_functions():
    f = sg.ad.torch_op(wave, {"out": "u"})
    cases = (
        lambda g, u: torch.func.grad(lambda u: energy(g, u, W()))(u),
        lambda g, u: torch.func.jacrev(lambda u: g(u, W(), 3, 0.5))(u),
        lambda g, u: torch.func.jacfwd(lambda u: g(u, W(), 3, 0.5))(u),
        lambda g, u: torch.func.hessian(lambda u: energy(g, u, W()))(u),
    )
    for case in cases:
        torch._dynamo.reset()
        same(torch.compile(lambda u, case=case: case(f, u), backend="aot_eager")(U()), case(by_torch, U()))
    torch._dynamo.reset()


@sg.kernel
def products(a: LINE, b: LINE, p: LINE, count: sg.types.NDArray[sg.i32, 1], q: LINE):
    for i in a:
        p[i] = a[i] * b[i]
        count[i] = i
        q[i] = sg.exp(a[i]) * p[i]


@sg.kernel
def mean(a: LINE, n: sg.i32) -> sg.f32:
    s = 0.0
    for i in range(n):
        s += a[i] * a[i] * a[i]
    return s / n


def test_several_outputs_and_numbers():
    f = sg.ad.torch_op(products, {"p": "a", "count": "a", "q": "a"})
    g = sg.ad.torch_op(mean)

    def reference(a, b):
        return a * b, torch.exp(a) * a * b

    def both(a, b):
        p, _, q = f(a, b)
        return p, q

    for h, r in ((both, reference), (lambda a, b: g(a, 5) * b, lambda a, b: (a**3).mean() * b)):
        for transform in (
            lambda t: torch.func.jvp(t, (U(), V()), (V(), U())),
            lambda t: torch.func.jacfwd(t)(U(), V()),
            lambda t: torch.func.jacfwd(torch.func.jacrev(t))(U(), V()),
        ):
            same(transform(h), transform(r))
    assert f(U(), V())[1].tolist() == [0, 1, 2, 3, 4]


def test_derivatives_that_there_are_not():
    f = sg.ad.torch_op(wave, {"out": "u"})
    one, scalar = (lambda w: f(U(), w, 3, 0.5)), (lambda w: energy(f, U(), w))
    with pytest.raises(sg.SpirogradUnsupportedError, match="kernel `wave` has no forward mode over forward mode"):
        torch.func.jacfwd(torch.func.jacfwd(one))(W())
    for third in (torch.func.jacrev(torch.func.hessian(scalar)), torch.func.jacfwd(torch.func.jacrev(torch.func.jacrev(scalar)))):
        with pytest.raises(sg.SpirogradUnsupportedError, match="kernel `wave` has first and second derivatives, no third ones"):
            third(W())
    forward = torch.autograd.forward_ad
    w = W().requires_grad_()
    with forward.dual_level():
        tangent = forward.unpack_dual(one(forward.make_dual(w, Z()))).tangent
        with pytest.raises(sg.SpirogradUnsupportedError, match=r"no third ones, and in forward mode(?s:.*)after the dual level"):
            torch.autograd.grad(tangent.sum(), w)
    with pytest.raises(sg.SpirogradUnsupportedError, match="a batch of no entries"):
        torch.func.vmap(one)(torch.zeros(0, 3))

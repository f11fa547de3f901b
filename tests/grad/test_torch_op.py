"""Kernels as operators of torch: against the same function in torch, in compiled graphs, in batches; what cannot be one is refused."""

import needs
import numpy as np
import pytest
from grad.impure_kernels import KERNELS

import spirograd as sg

torch = needs.package("torch")

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.needs("torch")]
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


def leaves(*shapes):
    torch.manual_seed(len(shapes))
    return [torch.rand(shape).requires_grad_() for shape in shapes]


def gradients(f, *tensors):
    result = f(*tensors)
    weights = torch.linspace(0.5, 2, result.numel()).reshape(result.shape)
    return result, *torch.autograd.grad((result * weights).sum(), tensors)


def same(found, expected):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize(("size", "n"), [(1, 0), (7, 1), (130, 5)])
def test_values_and_gradients(size, n):
    f = sg.ad.torch_op(wave, {"out": "u"})
    for seed in range(3):
        torch.manual_seed(seed)
        u, w = torch.rand(size).requires_grad_(), torch.rand(max(n, 1)).requires_grad_()
        same(gradients(lambda a, b: f(a, b, n, 0.5), u, w), gradients(lambda a, b: by_torch(a, b + 0, n, 0.5) + 0 * b.sum(), u, w))
        same(gradients(lambda a: f(a, w.detach(), n=n, c=0.25), u), gradients(lambda a: by_torch(a, w.detach(), n, 0.25), u))


def test_torch_finds_the_operator_in_order():
    f = sg.ad.torch_op(wave, {"out": "u"}, name="spirograd_tests::checked")
    u, w = leaves(5, 3)
    torch.library.opcheck(f.operator, (u, w, 3, 0.5))
    torch.library.opcheck(f.operator, (u.detach(), w, 0, 0.5))
    assert torch.ops.spirograd_tests.checked.default is f.operator._opoverload


def compiled(f, seen, **options):
    """``f`` in graphs that must be whole; their nodes are noted in ``seen``."""

    def backend(graph, examples):
        seen.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    torch._dynamo.reset()
    return torch.compile(f, fullgraph=True, backend=backend, **options)


def test_compiled_graphs_are_whole():
    f = sg.ad.torch_op(wave, {"out": "u"}, name="spirograd_tests::whole")

    def program(a, b):
        return torch.cos(f(torch.sin(a), b, 2, 0.5)) * f(a, b, 1, 0.1)

    def reference(a, b):
        return torch.cos(by_torch(torch.sin(a), b, 2, 0.5)) * by_torch(a, b, 1, 0.1)

    seen = []
    inside = compiled(program, seen)
    for u, w in (leaves(6, 2), leaves(6, 2)):
        same(gradients(inside, u, w), gradients(reference, u, w))
    assert [sum("spirograd_tests.whole" in node for node in graph) for graph in seen] == [2]
    torch._dynamo.reset()
    differentiated = torch.compile(program, fullgraph=True, backend="aot_eager", dynamic=True)  # gradients are traced, too
    for u, w in (leaves(6, 2), leaves(9, 2), leaves(31, 2)):
        same(gradients(differentiated, u, w), gradients(reference, u, w))


@pytest.mark.archs("cpu")  # torch's own code generator does not depend on the back end
@pytest.mark.needs("g++")
def test_compiled_by_inductor():
    f = sg.ad.torch_op(wave, {"out": "u"})
    torch._dynamo.reset()
    u, w = leaves(12, 3)
    program = torch.compile(lambda a, b: f(a.reshape(3, 4).t().reshape(12) * 2, b, 3, 0.5) + 1, fullgraph=True)
    same(gradients(program, u, w), gradients(lambda a, b: by_torch(a.reshape(3, 4).t().reshape(12) * 2, b, 3, 0.5) + 1, u, w))


def test_exported_programs_have_the_operator():
    f = sg.ad.torch_op(wave, {"out": "u"}, name="spirograd_tests::exported")

    class Model(torch.nn.Module):
        def forward(self, u, w):
            return f(u, w, 2, 0.5) * 2

    u, w = (t.detach() for t in leaves(5, 2))
    exported = torch.export.export(Model(), (u, w))
    assert "spirograd_tests.exported.default" in str(exported.graph)
    same([exported.module()(u, w)], [2 * by_torch(u, w, 2, 0.5)])


@sg.kernel
def split(a: sg.types.NDArray[sg.f32, 2], pairs: sg.types.ndarray(dtype=sg.types.vector(2, sg.f32), ndim=1), v: sg.types.vector(2, sg.f32),
          sums: LINE, signs: sg.types.NDArray[sg.i32, 2]):  # fmt: skip
    for i in range(a.shape[0]):
        s = 0.0
        for j in range(a.shape[1]):
            s += a[i, j] * pairs[i].dot(v)
            signs[i, j] = 1 if a[i, j] > 0.5 else -1
        sums[i] = s


def split_by_torch(a, pairs, v):
    return a.sum(1) * (pairs * torch.tensor(v)).sum(1), torch.where(a > 0.5, 1, -1).to(torch.int32)


def test_several_outputs_shapes_and_types():
    f = sg.ad.torch_op(split, {"sums": lambda a, pairs, v: a.shape[:1], "signs": "a"})
    a, pairs = leaves((4, 3), (4, 2))
    sums, signs = f(a, pairs, [0.5, 2.0])
    assert (sums.dtype, signs.dtype, sums.shape, signs.shape) == (torch.float32, torch.int32, (4,), (4, 3))
    same((sums, signs), split_by_torch(a, pairs, [0.5, 2.0]))
    same(gradients(lambda *t: f(*t, [0.5, 2.0])[0], a, pairs), gradients(lambda *t: split_by_torch(*t, [0.5, 2.0])[0], a, pairs))
    fixed = sg.ad.torch_op(split, {"sums": (4,), "signs": (4, 3)})
    same(fixed(a, pairs, [1.0, 1.0]), split_by_torch(a, pairs, [1.0, 1.0]))
    strided = torch.rand(3, 4).t()
    expanded = torch.rand(2).expand(4, 2)
    same(f(strided, expanded, [0.5, 2.0]), split_by_torch(strided, expanded, [0.5, 2.0]))
    seen = []
    same(compiled(lambda *t: f(*t, [0.5, 2.0])[0], seen)(a, pairs), split_by_torch(a, pairs, [0.5, 2.0])[0])
    assert len(seen) == 1


def test_results_templates_and_methods():
    @sg.data_oriented
    class Sum:
        power = 3

        @sg.kernel
        def total(self, a: LINE, scale: sg.f32, squared: sg.template()) -> sg.f32:
            s = 0.0
            for i in a:
                s += a[i] ** (2 if sg.static(squared) else self.power) * scale
            return s

    for squared, power in ((True, 2), (False, 3)):
        f = sg.ad.torch_op(Sum().total, template_args={"squared": squared})
        (a,) = leaves(9)
        same(gradients(lambda t, f=f: f(t, 0.5), a), gradients(lambda t, p=power: (t**p).sum() * 0.5, a))
        assert f(a.detach(), 1.0).shape == ()


@pytest.mark.parametrize("dims", [(0, None), (1, 0), (None, 1)])
def test_batches(dims):
    f = sg.ad.torch_op(wave, {"out": "u"})
    shapes = [(5,) if d is None else (4, 5) if d == 0 else (5, 4) for d in dims]
    u, w = leaves(*shapes)

    def loop(function):
        def run(u, w):
            parts = [t.unbind(d) if d is not None else [t] * 4 for t, d in zip((u, w), dims)]
            return torch.stack([function(a, b, 3, 0.5) for a, b in zip(*parts)])

        return run

    batched = torch.func.vmap(lambda a, b: f(a, b, 3, 0.5), in_dims=dims)
    same(gradients(batched, u, w), gradients(loop(by_torch), u, w))


def test_batches_of_several_outputs():
    f = sg.ad.torch_op(split, {"sums": lambda a, pairs, v: a.shape[:1], "signs": "a"})
    a, pairs = torch.rand(2, 4, 3), torch.rand(4, 2)
    found = torch.func.vmap(lambda t: f(t, pairs, [1.0, 2.0]))(a)
    for k in range(2):
        same([part[k] for part in found], split_by_torch(a[k], pairs, [1.0, 2.0]))


def second(f, *tensors):
    """Derivatives of a function of first derivatives."""
    outputs = f(*tensors)
    loss = sum((torch.sin(o) * o).sum() for o in (outputs if isinstance(outputs, tuple) else (outputs,)) if o.is_floating_point())
    first = torch.autograd.grad(loss, tensors, create_graph=True)
    weighted = sum((g**2 * torch.linspace(0.5, 1.5, g.numel()).reshape(g.shape)).sum() for g in first)
    return torch.autograd.grad(loss + weighted, tensors)


def test_second_derivatives():
    f = sg.ad.torch_op(wave, {"out": "u"})
    u, w = leaves(6, 2)
    same(second(lambda a, b: f(a, b, 2, 0.5), u, w), second(lambda a, b: by_torch(a, b, 2, 0.5), u, w))
    same(second(lambda a: f(a, w.detach(), 2, 0.5), u), second(lambda a: by_torch(a, w.detach(), 2, 0.5), u))
    (slope,) = torch.autograd.grad(f(u, w, 2, 0.5).sum(), u, create_graph=True)  # then by the other argument
    (right,) = torch.autograd.grad(by_torch(u, w, 2, 0.5).sum(), u, create_graph=True)
    same(torch.autograd.grad(slope.sum(), w), torch.autograd.grad(right.sum(), w))
    same(
        torch.autograd.functional.hessian(lambda a, b: f(a, b, 2, 0.5).sum(), (u, w)),
        torch.autograd.functional.hessian(lambda a, b: by_torch(a, b, 2, 0.5).sum(), (u, w)),
    )


def test_second_derivatives_of_several_outputs_and_of_numbers():
    f = sg.ad.torch_op(split, {"sums": lambda a, pairs, v: a.shape[:1], "signs": "a"})
    a, pairs = leaves((4, 3), (4, 2))
    same(second(lambda *t: f(*t, [0.5, 2.0]), a, pairs), second(lambda *t: split_by_torch(*t, [0.5, 2.0]), a, pairs))

    @sg.kernel
    def total(a: LINE) -> sg.f32:
        s = 0.0
        for i in range(a.shape[0]):
            s += a[i] ** 3
        return s

    (x,) = leaves(5)
    same(second(sg.ad.torch_op(total), x), second(lambda t: (t**3).sum(), x))


@pytest.mark.archs("interpreter", "cpu")  # f64
def test_finite_differences_of_torch():
    @sg.kernel
    def product(x: sg.types.NDArray[sg.f64, 1], w: sg.types.NDArray[sg.f64, 1], y: sg.types.NDArray[sg.f64, 1]):
        for i in x:
            for k in range(w.shape[0]):
                y[i] += sg.sin(x[i] * w[k]) * w[k]

    f = sg.ad.torch_op(product, {"y": "x"})
    x, w = (t.detach().double().requires_grad_() for t in leaves(3, 2))
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(f, (x, w), nondet_tol=1e-12)  # threads add in any order


def test_derivatives_that_there_are_not():
    f = sg.ad.torch_op(wave, {"out": "u"})
    u, w = leaves(4, 2)
    (slope,) = torch.autograd.grad(f(u, w, 2, 0.5).sum(), u, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), u, create_graph=True)
    with pytest.raises(sg.SpirogradRuntimeError, match="kernel `wave` has first and second derivatives, no third ones"):
        torch.autograd.grad(bend.sum(), u)


@sg.kernel
def doubled(a: sg.types.NDArray, b: sg.types.NDArray):
    for i in a:
        b[i] = a[i] * 2


def test_autocast_casts_nothing():
    """Operators of torch get their tensors as they are: what autocast has made of them before is refused, unless the kernel takes it."""
    f = sg.ad.torch_op(wave, {"out": "u"})
    u, w = leaves(4, 2)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            found = f(u, w, 2, 0.5)
            assert found.dtype == torch.float32
            same([found], [by_torch(u, w, 2, 0.5).float()])
            product = torch.ones(4, 4) @ u
            assert product.dtype == dtype
            name = "expected an array of f32, got f16" if dtype == torch.float16 else "tensors of torch.bfloat16 cannot be passed"
            with pytest.raises(sg.SpirogradRuntimeTypeError, match=f"kernel `wave`: argument `u`: {name}"):
                f(product, w, 2, 0.5)
            same([f(product.float(), w, 2, 0.5)], [by_torch(product.float(), w, 2, 0.5)])
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="expected an array of f32, got f64"):
        f(u.double(), w, 2, 0.5)


def test_half_floats_where_the_kernel_takes_any_type(session):
    needs.of_type("f16")
    f = sg.ad.torch_op(doubled, {"b": "a"})
    half = torch.tensor([0.5, 1.25, -3.0], dtype=torch.float16)
    with torch.autocast("cpu", torch.bfloat16):
        found = f(half)
    assert found.dtype == torch.float16 and (found == half * 2).all()


def test_operators_outlive_sessions(session):
    f = sg.ad.torch_op(wave, {"out": "u"})
    u, w = leaves(4, 2)
    before = gradients(lambda a, b: f(a, b, 2, 0.5), u, w)
    sg.init(arch=session.arch)
    same(gradients(lambda a, b: f(a, b, 2, 0.5), u, w), before)


@sg.kernel
def two(u: LINE, w: LINE, a: LINE, b: LINE):
    for i in u:
        a[i] = sg.sin(u[i]) * w[i]
        b[i] = u[i] ** 3


def two_by_torch(u, w):
    return torch.sin(u) * w, u**3


def batched_gradients(f, *tensors):
    """Of each entry of the first output, and of both outputs together; a second derivative of these."""
    identity, some = torch.eye(4), torch.linspace(-1, 1, 12).reshape(3, 4)
    first = torch.autograd.grad(f(*tensors)[0], tensors, identity, is_grads_batched=True)
    both = torch.autograd.grad(f(*tensors), tensors, (some, some**2), is_grads_batched=True, create_graph=True)
    return *first, *both, *torch.autograd.grad(sum((g**2).sum() for g in both), tensors)


def by_autograd(f, *tensors):
    functional = torch.autograd.functional
    jacobians = [functional.jacobian(f, tensors, vectorize=True, strategy=s) for s in ("reverse-mode", "forward-mode")]
    hessians = functional.hessian(lambda u, w: sum((y**2).sum() for y in f(u, w)), tensors, vectorize=True)
    return [part for rows in (*jacobians, hessians) for row in rows for part in row]


def nested_batches(f, u, w):
    """Derivatives of Jacobians, each of them batched: in reverse mode over forward mode, and the other way round; batches of batches."""
    jacobian = torch.autograd.functional.jacobian

    def rows(u, **options):
        return jacobian(lambda u: f(u, w)[0], u, vectorize=True, **options)

    reverse = jacobian(lambda u: rows(u, strategy="forward-mode"), u, vectorize=True)
    forward = jacobian(lambda u: rows(u, create_graph=True), u, vectorize=True, strategy="forward-mode")
    first, weights = f(u, w)[0], torch.linspace(-1, 1, 24).reshape(2, 3, 4)

    def batched(weights):
        return torch.autograd.grad(first, u, weights, is_grads_batched=True, retain_graph=True)[0]

    return reverse, forward, torch._vmap_internals._vmap(batched)(weights)


@pytest.mark.parametrize("function", [batched_gradients, by_autograd, nested_batches])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own rules in forward mode
def test_batches_of_autograd(function):
    f = sg.ad.torch_op(two, {"a": "u", "b": "u"})
    tensors = leaves(4, 4)
    same(function(f, *tensors), function(two_by_torch, *tensors))


def test_batches_that_there_are_not():
    u, w = leaves(4, 4)
    plain, op = (make(two, {"a": "u", "b": "u"}) for make in (sg.ad.torch_function, sg.ad.torch_op))
    with pytest.raises(sg.SpirogradUnsupportedError, match=r"`two` is called for a batch of no entries"):
        torch.autograd.functional.jacobian(lambda v: op(torch.cat([v, u]), w)[0], u[:0], vectorize=True, strategy="forward-mode")
    with pytest.raises(sg.SpirogradUnsupportedError, match=r"has no rule for `is_grads_batched=True` [^$]*`sg.ad.torch_op`"):
        torch.autograd.grad(plain(u, w)[0], u, torch.eye(4), is_grads_batched=True)
    with pytest.raises(sg.SpirogradUnsupportedError, match=r"no rule for the transforms of `torch\.func`: kernel `two`[^$]*`sg"):
        torch.func.jacrev(lambda u: plain(u, w)[0])(u)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_of_torch(reentrant):
    f = sg.ad.torch_op(two, {"a": "u", "b": "u"})
    u, w = leaves(4, 4)

    def found(g, **options):
        def steps(u, w):
            return g(torch.sin(g(u, w)[0]), w)[0]

        inputs = [t.detach().clone().requires_grad_() for t in (u, w)]
        (torch.utils.checkpoint.checkpoint(steps, *inputs, **options) if options else steps(*inputs)).sum().backward()
        return [t.grad for t in inputs]

    same(found(f, use_reentrant=reentrant), found(two_by_torch))


@pytest.mark.parametrize("case", KERNELS)
def test_kernels_that_are_no_functions(case):
    f = sg.ad.torch_op(KERNELS[case].made(), {"b": "a"})
    with pytest.raises(sg.SpirogradRuntimeError, match=KERNELS[case].message):
        f(torch.ones(4))


def test_parameters_that_torch_has_no_type_for():
    @sg.kernel
    def templated(a: LINE, n: sg.template(), b: LINE):
        for i in a:
            b[i] = a[i] * n

    wrong = sg.SpirogradTypeError
    for make, message in (
        (lambda: sg.ad.torch_op(templated, {"b": "a"}), "`n` is a template argument"),
        (lambda: sg.ad.torch_op(templated, {"c": "a"}, template_args={"n": 2}), "has no parameter `c`"),
        (lambda: sg.ad.torch_op(templated, {"b": "a"}, template_args={"m": 2}), "has no parameter `m`"),
        (lambda: sg.ad.torch_op(templated, template_args={"n": 2}), "returns no number"),
        (lambda: sg.ad.torch_op(np.sin, {"b": "a"}), "takes a kernel"),
    ):
        with pytest.raises(wrong, match=message):
            make()
    assert (sg.ad.torch_op(templated, {"b": "a"}, template_args={"n": 2})(torch.ones(3)) == 2).all()

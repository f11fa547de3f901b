"""Kernels as functions of JAX, against the same functions in jnp; what cannot be one is refused."""

import functools
import threading

import needs
import numpy as np
import pytest
from grad.impure_kernels import KERNELS

import spirograd as sg

jax = needs.package("jax")

pytestmark = [pytest.mark.usefixtures("session"), pytest.mark.needs("jax"), pytest.mark.vulkan_or_wgpu]
LINE = sg.types.NDArray[sg.f32, 1]


@sg.kernel
def wave(u: LINE, w: LINE, n: sg.i32, c: sg.f32, out: LINE):
    for i in u:
        s = u[i]
        for k in range(n):
            s = sg.sin(s) * w[k] + c
        out[i] = s


def by_jax(u, w, n, c):
    for k in range(n):
        u = jax.numpy.sin(u) * w[k] + c
    return u


def of(size, seed=0):
    return jax.numpy.asarray(np.random.default_rng(seed).uniform(0.2, 1.0, size).astype(np.float32))


def same(found, expected, rtol=2e-4, atol=1e-5):
    a, b = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert [(x.shape, x.dtype) for x in a] == [(x.shape, x.dtype) for x in b]
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


def weighted(function):
    return lambda *args: (jax.numpy.cos(function(*args)) * jax.numpy.linspace(0.5, 2.0, args[0].size)).sum()


@pytest.mark.parametrize(("size", "n"), [(1, 0), (7, 1), (130, 5)])
def test_values_and_gradients(size, n):
    f = sg.ad.jax_function(wave, {"out": "u"})
    kernel, reference = (functools.partial(lambda g, u, w: g(u, w, n, 0.5), g) for g in (f, by_jax))
    compiled = jax.jit(jax.value_and_grad(weighted(kernel), (0, 1)))
    for seed in range(2):  # the second time with other data
        u, w = of(size, seed), of(max(n, 1), seed + 5)
        same(kernel(u, w), reference(u, w))
        right = jax.value_and_grad(weighted(reference), (0, 1))(u, w)
        same(compiled(u, w), right)
        same(jax.value_and_grad(weighted(kernel), (0, 1))(u, w), right)
    same(f(u, w=np.asarray(w), c=0.25, n=n), by_jax(u, w, n, 0.25))


def test_numbers_of_compiled_programs():
    """Python's numbers are part of the program, arrays without axes are passed."""
    f = sg.ad.jax_function(wave, {"out": "u"})
    u, w = of(5), of(4)
    passed, fixed = jax.jit(f), jax.jit(f, static_argnums=(2, 3))
    for n, c in ((0, 0.5), (3, 0.5), (3, -0.25), (2, 0.0)):
        same(passed(u, w, n, c), by_jax(u, w, n, c))
        same(fixed(u, w, n, c), by_jax(u, w, n, c))
        same(jax.jit(jax.grad(lambda u, n, c: f(u, w, n, c).sum()))(u, n, c), jax.grad(lambda u: by_jax(u, w, n, c).sum())(u))

    @sg.kernel
    def quotient(x: LINE, c: sg.f32, y: LINE):
        for i in x:
            y[i] = x[i] / c

    g = sg.ad.jax_function(quotient, {"y": "x"})
    assert [float(g(jax.numpy.ones(1), c)[0]) for c in (0.0, -0.0, np.float32(2.0))] == [np.inf, -np.inf, 0.5]


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_numbers(compiled):
    """Arrays without axes that are floats of the kernel have gradients, in all modes."""
    f = sg.ad.jax_function(wave, {"out": "u"})
    u, w = of(5), of(4)
    one, batch = jax.numpy.float32(0.25), jax.numpy.array([0.25, -0.5], jax.numpy.float32)
    for transform, c in (
        (lambda g: jax.grad(lambda c: g(c).sum()), one),
        (lambda g: jax.jacfwd(g), one),
        (lambda g: jax.hessian(lambda c: (g(c) ** 2).sum()), one),
        (lambda g: jax.vmap(jax.grad(lambda c: (g(c) ** 2).sum())), batch),
    ):
        ours, theirs = transform(lambda c: f(u, w, 2, c)), transform(lambda c: by_jax(u, w, 2, c))
        same((jax.jit(ours) if compiled else ours)(c), theirs(c))
    both = jax.grad(lambda u, c: f(u, w, 3, c).sum(), argnums=(0, 1))(u, 0.5)
    for found, expected in zip(both, jax.grad(lambda u, c: by_jax(u, w, 3, c).sum(), argnums=(0, 1))(u, 0.5)):
        same(found, expected)


def test_lists_that_change_after_the_call():
    """A compiled program has the numbers that a list held when it was traced."""

    @sg.kernel
    def weigh(x: LINE, v: sg.types.vector(2, sg.f32), y: LINE):
        for i in x:
            y[i] = x[i] * v[0] + v[1]

    f, v = sg.ad.jax_function(weigh, {"y": "x"}), [2.0, 1.0]
    compiled = jax.jit(lambda x: f(x, v))
    x = of(3)
    same(compiled(x), 2 * x + 1)
    v[0] = 9.0
    same(compiled(x), 2 * x + 1)
    same(f(x, v), 9 * x + 1)


# Of a function of two arrays with a number as its result.
TRANSFORMS = {
    "jvp": lambda g: lambda u, w: jax.jvp(g, (u, w), (w[0] * u, u[:2])),
    "linearize": lambda g: lambda u, w: jax.linearize(g, u, w)[1](u, w),
    "checkpoint": lambda g: jax.grad(jax.checkpoint(g), (0, 1)),
    "forward over reverse": lambda g: jax.hessian(g, (0, 1)),
    "reverse over reverse": lambda g: jax.jacrev(jax.jacrev(g, (0, 1)), (0, 1)),
    "reverse over forward": lambda g: jax.jit(jax.jacrev(jax.jacfwd(g, (0, 1)), (0, 1))),
    "penalty": lambda g: jax.grad(lambda u, w: g(u, w) + (jax.grad(g)(u, w) ** 2).sum(), (0, 1)),
}


def two(g):
    """A number, of two arrays."""
    return weighted(lambda u, w: g(u, w, 2, 0.5))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_forward_mode_and_second_derivatives(name):
    f, transform = sg.ad.jax_function(wave, {"out": "u"}), TRANSFORMS[name]
    same(transform(two(f))(of(3), of(2)), transform(two(by_jax))(of(3), of(2)), 1e-3, 1e-4)


@pytest.mark.archs("cpu", "interpreter")
def test_derivatives_that_there_are_not():
    g = two(sg.ad.jax_function(wave, {"out": "u"}))
    u, w = of(3), of(2)
    for forward in (lambda: jax.jacfwd(jax.jacfwd(g))(u, w), lambda: jax.jit(jax.jacfwd(jax.jacfwd(g)))(u, w)):
        with pytest.raises(sg.SpirogradUnsupportedError, match="kernel `wave`: forward mode over forward mode is not supported"):
            forward()
    for third in (jax.jacrev(jax.jacrev(jax.jacrev(g))), jax.jacrev(jax.hessian(g)), jax.jacfwd(jax.hessian(g))):
        with pytest.raises(sg.SpirogradUnsupportedError, match=r"kernel `wave`(: forward mode over| has first .* no third ones)"):
            third(u, w)


@pytest.mark.parametrize("dims", [(0, None), (1, 0), (None, 1)])
def test_batches(dims):
    f = sg.ad.jax_function(wave, {"out": "u"})
    u, w = (of((3, n) if d == 0 else (n, 3) if d == 1 else n) for n, d in zip((5, 2), dims))

    def all_of(g):
        batched = jax.vmap(lambda u, w: g(u, w, 2, 0.5), dims)
        return batched(u, w), jax.grad(lambda u, w: (batched(u, w) ** 2).sum(), (0, 1))(u, w), jax.jit(batched)(u, w)

    same(all_of(f), all_of(by_jax))
    rows = jax.numpy.zeros((0, 5))
    assert jax.vmap(lambda u: f(u, jax.numpy.ones(2), 2, 0.5))(rows).shape == (0, 5)


def test_empty_arrays():
    f = sg.ad.jax_function(wave, {"out": "u"})
    u, w = jax.numpy.zeros(0), of(2)
    value, gradients = jax.value_and_grad(lambda u, w: f(u, w, 2, 0.5).sum(), (0, 1))(u, w)
    assert value == 0.0 and gradients[0].shape == (0,) and (gradients[1] == 0.0).all()


@sg.kernel
def split(a: sg.types.NDArray[sg.f32, 2], pairs: sg.types.ndarray(dtype=sg.types.vector(2, sg.f32), ndim=1), v: sg.types.vector(2, sg.f32),
          sums: LINE, signs: sg.types.NDArray[sg.i32, 2]):  # fmt: skip
    for i in range(a.shape[0]):
        s = 0.0
        for j in range(a.shape[1]):
            s += a[i, j] * pairs[i].dot(v)
            signs[i, j] = 1 if a[i, j] > 0.5 else -1
        sums[i] = s


def split_by_jax(a, pairs, v):
    v = jax.numpy.asarray(v)
    return a.sum(1) * (pairs * v).sum(1), jax.numpy.where(a > 0.5, 1, -1).astype(np.int32)


def test_several_outputs_shapes_and_types():
    f = sg.ad.jax_function(split, {"sums": lambda a, pairs, v: a.shape[:1], "signs": "a"})
    a, pairs = of((4, 3)), of((4, 2), 1)
    for v in ([0.5, 2.0], np.array([1.0, 3.0]), jax.numpy.array([2.0, 0.25])):
        same(f(a, pairs, v), split_by_jax(a, pairs, v))
        same(jax.jit(f)(a, pairs, jax.numpy.asarray(v)), split_by_jax(a, pairs, v))
    for transform in (lambda g: jax.jacrev(g, (0, 1)), lambda g: jax.jacfwd(g, (0, 1))):
        same(transform(lambda a, p: f(a, p, v)[0])(a, pairs), transform(lambda a, p: split_by_jax(a, p, v)[0])(a, pairs))
    sums = [lambda a, p, g=g: (g(a, p, v)[0] ** 2).sum() for g in (f, split_by_jax)]
    same(*(jax.grad(lambda a, p, g=g: g(a, p) + (jax.grad(g, 1)(a, p) ** 2).sum(), (0, 1))(a, pairs) for g in sums), 1e-3)
    same(*(jax.jit(jax.hessian(g, (0, 1)))(a, pairs) for g in sums), 1e-3)
    same(sg.ad.jax_function(split, {"sums": (4,), "signs": (4, 3)})(a, pairs, v), split_by_jax(a, pairs, v))
    same(f(jax.numpy.ones((3, 4)).T * 0.75, pairs, v), split_by_jax(jax.numpy.ones((4, 3)) * 0.75, pairs, v))


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

    a = of(4)
    for squared, power in ((True, 2), (False, 3)):
        f = sg.ad.jax_function(Sum().total, template_args={"squared": squared})
        kernel, reference = lambda a, f=f: f(a, 0.5), lambda a, p=power: (a**p).sum() * 0.5
        for transform in (lambda g: g, jax.grad, jax.hessian, lambda g: jax.jit(jax.grad(lambda a: jax.numpy.sin(g(a))))):
            same(transform(kernel)(a), transform(reference)(a))
        same(jax.vmap(jax.grad(kernel))(of((2, 4))), jax.vmap(jax.grad(reference))(of((2, 4))))


def test_kernels_that_read_what_they_write():
    """y is zero before the launch, added to, and read by the next loop."""

    @sg.kernel
    def chain(x: LINE, y: LINE, z: LINE):
        for i in x:
            y[i] += x[i] ** 2
        for i in x:
            z[i] = y[i] ** 2 * x[i]

    f = sg.ad.jax_function(chain, {"y": "x", "z": "x"})
    x = of(4)
    for transform in (jax.jacrev, jax.jacfwd, lambda g: jax.jacfwd(jax.jacrev(g))):
        same(transform(lambda x: f(x))(x), transform(lambda x: (x**2, x**5))(x), 1e-3)


def test_loops_of_jax():
    f = sg.ad.jax_function(wave, {"out": "u"})
    w = of(2)

    def simulated(g):
        def run(u, w):
            return jax.lax.scan(lambda u, c: (g(u, w, 2, c), u[0]), u, jax.lax.stop_gradient(jax.numpy.linspace(0.1, 0.4, 4)))

        return jax.jit(lambda u, w: (run(u, w), jax.grad(lambda u, w: run(u, w)[0].sum(), (0, 1))(u, w)))

    same(simulated(f)(of(5), w), simulated(by_jax)(of(5), w))


@pytest.mark.archs("cpu", "interpreter")  # f64 everywhere else depends on the device
def test_f64_needs_x64():
    @sg.kernel
    def cubes(x: sg.types.NDArray[sg.f64, 1], y: sg.types.NDArray[sg.f64, 1]):
        for i in x:
            y[i] = x[i] ** 3

    f = sg.ad.jax_function(cubes, {"y": "x"})
    with pytest.raises(sg.SpirogradRuntimeTypeError, match="output `y` is float64, which JAX has only with x64"):
        f(jax.numpy.ones(3))
    with jax.enable_x64(True):
        x = jax.numpy.linspace(0.1, 0.9, 4)
        assert x.dtype == np.float64
        from jax.test_util import check_grads

        check_grads(f, (x,), 2, ["rev"], rtol=1e-6)
        check_grads(f, (x,), 1, ["fwd"], rtol=1e-6)
        same(jax.jacfwd(jax.jacrev(f))(x), jax.jacfwd(jax.jacrev(lambda x: x**3))(x), 1e-12)


def test_what_runs_at_the_same_time():
    """JAX runs programs on threads of its own while Python goes on to launch kernels."""
    f = sg.ad.jax_function(wave, {"out": "u"})
    u, w = of(20_000), of(3)
    program = jax.jit(lambda u, w: f(u, w, 3, 0.5) + f(2 * u, w, 2, 0.5) * f(3 * u, w, 1, 0.5))
    expected = jax.jit(lambda u, w: by_jax(u, w, 3, 0.5) + by_jax(2 * u, w, 2, 0.5) * by_jax(3 * u, w, 1, 0.5))(u, w)
    plain, own = np.asarray(u), np.zeros(20_000, np.float32)
    results = []

    def work():
        results.append(program(u, w))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        wave(plain, np.asarray(w), 3, 0.5, own)
    for thread in threads:
        thread.join()
    for found in results:
        same(found, expected)
    same(own, np.asarray(by_jax(u, w, 3, 0.5)))


def test_functions_outlive_sessions(session):
    f = sg.ad.jax_function(wave, {"out": "u"})
    compiled = jax.jit(jax.value_and_grad(lambda u, w: f(u, w, 2, 0.5).sum(), (0, 1)))
    u, w = of(4), of(2)
    before = jax.block_until_ready(compiled(u, w))
    sg.init(arch=session.arch)
    same(compiled(u, w), before)


@pytest.mark.archs("cpu", "interpreter")  # others report checks later
def test_checks_that_fail(arch):
    sg.init(arch=arch, debug=True)

    @sg.kernel
    def roots(x: LINE, y: LINE):
        for i in x:
            assert x[i] >= 0.0, "negative"
            y[i] = sg.sqrt(x[i])

    f = jax.jit(sg.ad.jax_function(roots, {"y": "x"}))
    same(f(jax.numpy.array([4.0])), jax.numpy.array([2.0]))
    with pytest.raises((RuntimeError, ValueError), match=r"SpirogradAssertionError: [\s\S]*negative"):
        jax.block_until_ready(f(jax.numpy.array([-4.0])))
    same(f(jax.numpy.array([9.0])), jax.numpy.array([3.0]))


@pytest.mark.parametrize("case", KERNELS)
def test_kernels_that_are_no_functions(case):
    f = sg.ad.jax_function(KERNELS[case].made(), {"b": "a"})
    said = "" if case == "input" else "cannot be a function of JAX[^$]*"
    for call in (f, jax.jit(f)):
        with pytest.raises(sg.SpirogradRuntimeError, match=said + KERNELS[case].message):
            call(jax.numpy.ones(4))


@sg.kernel
def templated(a: LINE, n: sg.template(), b: LINE):
    for i in a:
        b[i] = a[i] * n


@sg.kernel
def squared_in_place(a: LINE, b: LINE):
    for i in a:
        b[i] = b[i] * b[i] + a[i]
    for i in a:
        b[i] = b[i] * b[i]


@sg.kernel
def wide(a: LINE, c: sg.f64, b: LINE):
    for i in a:
        b[i] = a[i] * sg.cast(c, sg.f32)


ONES, MISFIT = "jax.numpy.ones", sg.SpirogradRuntimeTypeError
# What is called, its arguments, and the error.
CALLS = {
    "missing": ("f(u, w, 2)", sg.SpirogradTypeError, "kernel `wave` needs its argument `c`"),
    "too many": ("f(u, w, 2, 0.5, u)", sg.SpirogradTypeError, "kernel `wave` takes 4 arguments, got 5"),
    "twice": ("f(u, w, 2, 0.5, u=u)", sg.SpirogradTypeError, "kernel `wave` gets its argument `u` twice"),
    "unknown": ("f(u, w, 2, d=0.5)", sg.SpirogradTypeError, "kernel `wave` has no argument `d`"),
    "output": ("f(u, w, 2, 0.5, out=u)", sg.SpirogradTypeError, "has no argument `out`, which is an output"),
    "number for an array": ("f(1.0, w, 2, 0.5)", MISFIT, "argument `u` takes an array of JAX or NumPy, got the number 1.0"),
    "type of an array": ("f(u.astype(int), w, 2, 0.5)", MISFIT, "argument `u`: expected an array of f32, got i32"),
    "half": ("f(u.astype(jax.numpy.bfloat16), w, 2, 0.5)", MISFIT, "argument `u`: arrays of bfloat16"),
    "axes": (f"f({ONES}((2, 2)), w, 2, 0.5)", MISFIT, "argument `u`: expected an array with 1 axis, got 2"),
    "float for an integer": ("f(u, w, 2.5, 0.5)", MISFIT, r"argument `n` takes an integer \(i32\), got the number 2.5"),
    "passed float": ("jax.jit(f)(u, w, 2.5, 0.5)", MISFIT, r"argument `n` takes a number \(i32\), got an array of float32"),
    "array for a number": ("f(u, w, 2, u)", MISFIT, r"argument `c` takes a number \(f32\), got an array of float32 of shape"),
    "gradient of a number": ("jax.grad(lambda c: wider(u, c).sum())(0.5)", sg.SpirogradUnsupportedError, "`c` is a number, with respect"),
    "lost": ("jax.grad(lambda u: g(u).sum())(u)", sg.SpirogradCompilationError, "[\\s\\S]*JAX then keeps the one that it reads"),
    "in a tape": ("in_tape(lambda: f(u, w, 2, 0.5))", sg.SpirogradRuntimeError, "call it outside of tapes"),
    "no kernel": ("sg.ad.jax_function(np.sin)", sg.SpirogradTypeError, "takes a kernel"),
    "template": ("sg.ad.jax_function(templated, {'b': 'a'})", sg.SpirogradTypeError, "`n` is a template argument"),
    "no output": ("sg.ad.jax_function(templated, template_args={'n': 2})", sg.SpirogradTypeError, "returns no number"),
    "number as an output": ("sg.ad.jax_function(wave, {'c': 'u'})", sg.SpirogradTypeError, "output `c` is no array"),
    "unknown output": ("sg.ad.jax_function(wave, {'d': 'u'})", sg.SpirogradTypeError, "has no parameter `d`"),
    "unknown template": ("sg.ad.jax_function(wave, {'out': 'u'}, {'d': 1})", sg.SpirogradTypeError, "has no parameter `d`"),
    "shape": ("sg.ad.jax_function(wave, {'out': 'n'})(u, w, 2, 0.5)", sg.SpirogradTypeError, "has the shape of `n`, which is no array"),
}  # fmt: skip


@pytest.mark.archs("cpu")  # the same everywhere: nothing is launched
@pytest.mark.parametrize("case", CALLS)
def test_messages(case):
    text, kind, message = CALLS[case]
    loss = sg.field(sg.f32, (), needs_grad=True)

    def in_tape(work):
        with sg.ad.Tape(loss):
            work()

    f, g = sg.ad.jax_function(wave, {"out": "u"}), sg.ad.jax_function(squared_in_place, {"b": "a"})
    wider = sg.ad.jax_function(wide, {"b": "a"})
    names = {"f": f, "wider": wider, "g": g, "u": of(3), "w": of(2), "in_tape": in_tape, **globals()}
    with pytest.raises(kind, match=message):
        eval(text, names)


def test_programs_that_jax_serializes(monkeypatch):
    """`jax.export` refuses kernels; an executable runs where its kernel has been called, and nowhere else."""
    import jax.export
    from jax.experimental import serialize_executable

    from spirograd.interop import jax_calls

    f = sg.ad.jax_function(wave, {"out": "u"})
    u, w = of(6), of(3)
    program = jax.jit(lambda u, w: f(u, w, 3, 0.5) + 1)
    with pytest.raises(sg.SpirogradUnsupportedError, match=r"kernel `wave` is no part of a program that `jax.export` writes"):
        jax.export.export(program)(u, w)
    with pytest.raises(sg.SpirogradUnsupportedError, match=r"jax.export"):
        jax.export.export(jax.jit(jax.grad(lambda u, w: program(u, w).sum())))(u, w)
    compiled = program.lower(u, w).compile()
    (device,) = u.devices()
    loaded = serialize_executable.deserialize_and_load(*serialize_executable.serialize(compiled), backend=device.platform)
    same(loaded(u, w), by_jax(u, w, 3, 0.5) + 1)
    monkeypatch.setattr(jax_calls, "_works", {})  # as in another process
    monkeypatch.setattr(jax_calls, "_numbers", {})
    with pytest.raises(Exception, match="calls a kernel that this process has not called"):
        loaded(u, w).block_until_ready()
    g = sg.ad.jax_function(wave, {"out": "u"})
    g(u, w, 2, 0.5)  # with another number: another program
    with pytest.raises(Exception, match="calls a kernel that this process has not called"):
        loaded(u, w).block_until_ready()
    jax.jit(lambda u, w: g(u, w, 3, 0.5)).lower(u, w)
    same(loaded(u, w), by_jax(u, w, 3, 0.5) + 1)

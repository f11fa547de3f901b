"""The rows in JAX: whole rows are compiled, also where the program of the others consists of several kernels."""

import gc
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others measure on the same device

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.differentiable_mpm88 import BOUND, DT, DX, GRAVITY, GRID, STIFFNESS, TARGET, VOLUME, particles
from benchmarks.gpu.program import BACK, THERE, Program, bodies, directions, image, inactive, samples

_last = None  # what ran last: the device runs in order, so that all is done when this is


def start(arch):
    """Begin anew: the memory of the row before is given back."""
    global _last
    try:
        found = jax.devices()[0].platform
    except (AssertionError, RuntimeError) as error:
        raise RuntimeError(f"JAX finds no device {arch}: {error}") from None
    if found != ("gpu" if arch == "cuda" else arch):
        raise RuntimeError(f"JAX would run on a device {found}, not on {arch}")
    _last = None
    jax.clear_caches()
    gc.collect()


def wait():
    if _last is not None:
        jax.block_until_ready(_last)


def version():
    return jax.__version__


def _program(function, read, *inputs, label=""):
    """A compiled function of ``inputs``; ``read`` takes what it returns."""
    compiled = jax.jit(function)

    def run():
        global _last
        _last = compiled(*inputs)
        return _last

    return Program(run, lambda: np.asarray(read(run())), label)


def _sampled(array):
    return array.reshape(-1)[samples(array.size)]


def _ramp(n):
    return (jnp.arange(n, dtype=jnp.int32) % 1000).astype(jnp.float32) * jnp.float32(0.001)


def _updating(function, n, *fixed):
    """A function whose last argument becomes what it returns: its memory is donated."""
    compiled = jax.jit(function, donate_argnums=len(fixed))
    state = [jnp.full(n, 0.5, jnp.float32)]

    def run():
        global _last
        _last = state[0] = compiled(*fixed, state[0])

    def result():
        state[0] = jnp.full(n, 0.5, jnp.float32)
        run()
        return np.asarray(_sampled(state[0]))

    return Program(run, result)


def copy(n):
    return [_program(lambda x: jnp.copy(x), _sampled, _ramp(n))]


def saxpy(n):
    return [_updating(lambda x, y: 2.0 * x + y, n, _ramp(n))]


def triad(n):
    return [_program(lambda x, y: x + 2.0 * y, _sampled, _ramp(n), jnp.full(n, 0.5, jnp.float32))]


def functions(n):
    return [_program(lambda x: jnp.sin(x) * jnp.exp(x) + jnp.log(x + 2.0), _sampled, _ramp(n))]


def _mixed(n):
    return ((jnp.arange(n, dtype=jnp.int32) % 4093) * 7919 % 17 - 8).astype(jnp.float32)


def sum(n):
    return [_program(jnp.sum, lambda s: s.reshape(1), _mixed(n))]


def maximum(n):
    return [_program(jnp.max, lambda s: s.reshape(1), _mixed(n).at[n - 3].set(11.0))]


def histogram(size):
    n, bins = size

    @jax.jit
    def fill():
        i = jnp.arange(n, dtype=jnp.int32)
        return (i * 7919 + (i >> 5)) % bins

    return [_program(lambda values: jnp.bincount(values, length=bins), lambda counts: counts, fill(), label="bincount")]


def _step(a):
    inner = 0.2 * (a[1:-1, 1:-1] + a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:])
    return jnp.pad(inner, 1)


def stencil(n):
    return [_program(_step, _sampled, jnp.asarray(image(n)))]


def stencil_gradient(n):
    a = jnp.zeros((n, n), jnp.float32)
    return [_program(lambda seed: jax.vjp(_step, a)[1](seed)[0], _sampled, jnp.asarray(image(n)))]


def nbody(n):
    def force(p):
        def by_component(block):
            x, y, z = (p[None, :, k] - block[:, None, k] for k in range(3))
            inverse = lax.rsqrt(x * x + y * y + z * z + 1e-3)
            cubed = inverse * inverse * inverse
            return jnp.stack([(cubed * x).sum(1), (cubed * y).sum(1), (cubed * z).sum(1)], 1)

        size = next(k for k in range(min(n, 1024), 0, -1) if n % k == 0)
        return lax.map(by_component, p.reshape(-1, size, 3)).reshape(n, 3)

    return [_program(force, lambda f: f[samples(n)[::20]].reshape(-1), jnp.asarray(bodies(n)))]


def gradient(size):
    n, steps = size

    def body(_, v):
        return jnp.sin(v) * 0.9 + 0.1

    def loss(x, unroll):
        return lax.fori_loop(0, steps, body, x, unroll=unroll).sum()

    x = _ramp(n)
    return [
        _program(jax.grad(lambda x: loss(x, 8)), _sampled, x, label="unrolled by 8"),
        _program(jax.grad(lambda x: loss(x, 1)), _sampled, x, label="loop"),
    ]


def gated(size):
    n, steps = size
    off = jnp.asarray(inactive(n))
    most = int(n * 0.06)  # what the shape of a compacted array must be known to be

    def chain(x):
        def body(_, v):
            a, b, c, d = v
            return jnp.sin(a) * b + 0.25, jnp.sin(b) * c + 0.25, jnp.sin(c) * d + 0.25, jnp.sin(d) * a + 0.25

        a, b, c, d = lax.fori_loop(0, steps, body, (x, 0.9 * x, 0.8 * x, 0.7 * x))
        return a + b + c + d

    def dense(x, off):
        return jnp.where(off == 0, chain(x), 0.0).sum()

    def gathered(x, off):
        index = jnp.nonzero(off == 0, size=most, fill_value=n)[0]
        valid = index < n
        return jnp.where(valid, chain(jnp.where(valid, x[jnp.minimum(index, n - 1)], 0.0)), 0.0).sum()

    x = jnp.full(n, 0.3, jnp.float32)
    return [
        _program(jax.grad(dense), _sampled, x, off, label="all elements"),
        _program(jax.grad(gathered), _sampled, x, off, label="active elements gathered"),
    ]


def _mpm88_step(state):
    x, v, C, J = state
    n = x.shape[0]
    base = (lax.stop_gradient(x) / DX - 0.5).astype(jnp.int32)
    fx = x / DX - base
    w = jnp.stack([0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2])
    weight = (w[:, None, :, 0] * w[None, :, :, 1]).reshape(9, n, 1)
    offsets = jnp.array([[i, j] for i in range(3) for j in range(3)], jnp.int32)
    affine = (-DT * 4 * STIFFNESS * VOLUME * (J - 1) / DX**2)[:, None, None] * jnp.eye(2) + VOLUME * C
    distance = (offsets[:, None, :] - fx) * DX
    index = ((base[:, 0] + offsets[:, 0, None]) * GRID + base[:, 1] + offsets[:, 1, None]).reshape(-1)
    momentum = weight * (VOLUME * v + (affine[None] * distance[:, :, None, :]).sum(3))
    scattered = jnp.concatenate([momentum, weight * VOLUME], 2).reshape(9 * n, 3)
    grid = jnp.zeros((GRID * GRID, 3), jnp.float32).at[index].add(scattered)
    mass = grid[:, 2:]
    velocity = grid[:, :2] / jnp.where(mass > 0, mass, 1.0) - jnp.array([0, DT * GRAVITY])
    cells = jnp.stack(jnp.meshgrid(jnp.arange(GRID), jnp.arange(GRID), indexing="ij"), 2).reshape(-1, 2)
    velocity = jnp.where(((cells < BOUND) & (velocity < 0)) | ((cells > GRID - BOUND) & (velocity > 0)), 0.0, velocity)
    g = velocity[index].reshape(9, n, 2)
    new_v = (weight * g).sum(0)
    new_C = 4 / DX**2 * ((weight * g)[:, :, :, None] * distance[:, :, None, :]).sum(0)
    return x + DT * new_v, new_v, new_C, J * (1 + DT * (new_C[:, 0, 0] + new_C[:, 1, 1]))


def mpm88(size):
    n, steps = size

    def loss(x):
        state = x, jnp.ones((n, 2)), jnp.zeros((n, 2, 2)), jnp.ones(n)
        (x, *_), _ = lax.scan(lambda state, _: (_mpm88_step(state), None), state, None, length=steps)
        return ((x - jnp.array(TARGET)) ** 2).sum() / n

    def read(found):
        return np.array([found[0], *(directions(n) * np.asarray(found[1])).sum((1, 2))])

    return [_program(jax.value_and_grad(loss), read, jnp.asarray(particles(n)))]


def substeps(size):
    n, substeps, trips = size

    def body(_, v):
        return jnp.sin(v) * 0.01 + v

    def end(x):
        return lax.fori_loop(0, substeps, lambda _, v: lax.fori_loop(0, trips, body, v, unroll=trips), x).sum()

    return [_program(jax.grad(end), _sampled, jnp.linspace(0, 1, n))]


def launch(n):
    return [_program(lambda b, c, d: b + c + d, lambda a: a, *(jnp.full(n, k, jnp.float32) for k in (1, 2, 3)))]


def launch_and_wait(n):
    (program,) = launch(n)
    return [Program(lambda: program.run().block_until_ready(), program.result)]


def _there(x):
    return x * THERE[0] + THERE[1]


def _back(y):
    return y * BACK[0] + BACK[1]


def _both_sampled(found):
    return jnp.concatenate([_sampled(part) for part in found])


def eight_loops(n):
    def all_of_them(x):
        for _ in range(4):
            y = _there(x)
            x = _back(y)
        return x, y

    return [_program(all_of_them, _both_sampled, jnp.full(n, 0.5, jnp.float32), label="one function")]


def eight_apart(n):
    there, back, x0 = jax.jit(_there), jax.jit(_back), jnp.full(n, 0.5, jnp.float32)

    def run():
        global _last
        x = x0
        for _ in range(4):
            y = there(x)
            x = back(y)
        _last = x, y
        return _last

    return [Program(run, lambda: np.asarray(_both_sampled(run())), "eight functions")]

"""The rows in the language of the family: one text for spirograd and quadrants; the environment variable BENCHMARKED names one of them.

Each function makes the program of a row for a size, see `rows.py`.
"""

import importlib
import os

import numpy as np

from benchmarks.differentiable_mpm88 import Simulation
from benchmarks.gpu.contention import copy_2d, counts_256, counts_8000, look_up, maxima, nests, sums_f16, sums_f32  # noqa: F401 - rows
from benchmarks.gpu.program import BACK, THERE, Program, bodies, directions, image, inactive, samples
from benchmarks.gpu.tile_factors import factors_16, factors_16_f64, factors_32, factors_32_f64  # noqa: F401 - rows

sg = importlib.import_module(os.environ["BENCHMARKED"])
OURS = sg.__name__ == "spirograd"
if OURS:
    from benchmarks.gpu.tile_products import tiles_f16, tiles_f64  # noqa: F401 - rows
wait = sg.sync


def start(arch):
    """Begin anew, so that the memory of the row before is free. Quadrants reserves device memory at the start: enough for every row."""
    sg.reset()
    options = {} if OURS else {"device_memory_GB": 8, "log_level": sg.ERROR}
    sg.init(arch=getattr(sg, arch), offline_cache=False, ad_stack_experimental_enabled=True, **options)


def version():
    return sg.__version__ if isinstance(sg.__version__, str) else ".".join(map(str, sg.__version__))


def _sampled(array):
    flat = array.to_numpy().reshape(-1)
    return flat[samples(flat.size)]


def _stream(n, make, output):
    """A program over fields x, y, z of ``n`` floats, of which ``output`` is the result."""
    x, y, z = (sg.field(sg.f32, shape=n) for _ in range(3))
    kernel = make(x, y, z)

    @sg.kernel
    def fill():
        for i in x:
            x[i] = (i % 1000) * 0.001
            y[i] = 0.5
            z[i] = 1.0

    def result():
        fill()
        kernel()
        return _sampled((x, y, z)[output])

    fill()
    return [Program(kernel, result)]


def copy(n):
    def make(x, y, z):
        @sg.kernel
        def copy():
            for i in x:
                z[i] = x[i]

        return copy

    return _stream(n, make, 2)


def saxpy(n):
    def make(x, y, z):
        @sg.kernel
        def saxpy():
            for i in x:
                y[i] = 2.0 * x[i] + y[i]

        return saxpy

    return _stream(n, make, 1)


def triad(n):
    def make(x, y, z):
        @sg.kernel
        def triad():
            for i in x:
                z[i] = x[i] + 2.0 * y[i]

        return triad

    return _stream(n, make, 2)


def functions(n):
    def make(x, y, z):
        @sg.kernel
        def functions():
            for i in x:
                y[i] = sg.sin(x[i]) * sg.exp(x[i]) + sg.log(x[i] + 2.0)

        return functions

    return _stream(n, make, 1)


def _reduction(n, maximum):
    x, total = sg.field(sg.f32, shape=n), sg.field(sg.f32, shape=())

    @sg.kernel
    def fill():
        for i in x:
            x[i] = (i % 4093) * 7919 % 17 - 8

    @sg.kernel
    def add():
        for i in x:
            total[None] += x[i]

    @sg.kernel
    def largest():
        for i in x:
            sg.atomic_max(total[None], x[i])

    kernel = largest if maximum else add

    def result():
        total[None] = -9.0 if maximum else 0.0
        kernel()
        return np.array([total[None]])

    fill()
    if maximum:
        x[n - 3] = 11.0
    return [Program(kernel, result)]


def sum(n):
    return _reduction(n, False)


def maximum(n):
    return _reduction(n, True)


def histogram(size):
    n, bins = size
    values, counts = sg.field(sg.i32, shape=n), sg.field(sg.i32, shape=bins)

    @sg.kernel
    def fill():
        for i in values:
            values[i] = (i * 7919 + (i >> 5)) % bins

    @sg.kernel
    def histogram():
        for i in values:
            counts[values[i]] += 1

    def result():
        counts.fill(0)
        histogram()
        return counts.to_numpy()

    fill()
    return [Program(histogram, result)]


def _stencil(n, needs_grad):
    a, b = (sg.field(sg.f32, shape=(n, n), needs_grad=needs_grad) for _ in range(2))

    @sg.kernel
    def stencil():
        for i, j in sg.ndrange((1, n - 1), (1, n - 1)):
            b[i, j] = 0.2 * (a[i, j] + a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1])

    return stencil, a, b


def stencil(n):
    step, a, b = _stencil(n, False)

    def result():
        step()
        return _sampled(b)

    a.from_numpy(image(n))
    return [Program(step, result)]


def stencil_gradient(n):
    step, a, b = _stencil(n, True)

    def result():
        a.grad.fill(0)
        b.grad.from_numpy(image(n))
        step.grad()
        return _sampled(a.grad)

    return [Program(step.grad, result)]


def nbody(n):
    p, force = sg.Vector.field(3, sg.f32, shape=n), sg.Vector.field(3, sg.f32, shape=n)

    @sg.kernel
    def attract():
        for i in p:
            total = sg.Vector([0.0, 0.0, 0.0])
            for j in range(n):
                d = p[j] - p[i]
                inverse = sg.rsqrt(d.dot(d) + 1e-3)
                total += d * (inverse * inverse * inverse)
            force[i] = total

    def result():
        attract()
        return force.to_numpy()[samples(n)[::20]].reshape(-1)

    p.from_numpy(bodies(n))
    return [Program(attract, result)]


def gradient(size):
    n, steps = size
    x, loss = sg.field(sg.f32, shape=n, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)

    @sg.kernel
    def fill():
        for i in x:
            x[i] = (i % 1000) * 0.001

    @sg.kernel
    def chain():
        for i in x:
            v = x[i]
            for _ in range(steps):
                v = sg.sin(v) * 0.9 + 0.1
            loss[None] += v

    def result():
        x.grad.fill(0.0)
        loss.grad[None] = 1.0
        chain.grad()
        return _sampled(x.grad)

    fill()
    loss.grad[None] = 1.0
    return [Program(chain.grad, result)]


def gated(size):
    n, steps = size
    x, y = sg.field(sg.f32, shape=n, needs_grad=True), sg.field(sg.f32, shape=n, needs_grad=True)
    active = sg.field(sg.i32, shape=n)

    @sg.kernel
    def chain():
        for i in x:
            if active[i] == 0:
                a, b, c, d = x[i], 0.9 * x[i], 0.8 * x[i], 0.7 * x[i]
                for _ in range(steps):
                    a, b, c, d = sg.sin(a) * b + 0.25, sg.sin(b) * c + 0.25, sg.sin(c) * d + 0.25, sg.sin(d) * a + 0.25
                y[i] = a + b + c + d

    def result():
        x.grad.fill(0.0)
        y.grad.fill(1.0)
        chain.grad()
        return _sampled(x.grad)

    x.fill(0.3)
    y.grad.fill(1.0)
    active.from_numpy(inactive(n))
    return [Program(chain.grad, result)]


def _ways(run, result):
    """A program of many launches as it is, and ours as a graph, too. ``result(run)``: see `Program.result`."""
    ways = [Program(run, lambda: result(run), "one by one")]
    if OURS:
        run()
        with sg.Graph() as graph:
            run()
        ways.append(Program(graph.launch, lambda: result(graph.launch), "as a graph"))
    return ways


def mpm88(size):
    n, steps = size
    simulation = Simulation(sg, n, steps)

    def result(run):
        run()
        slope = (directions(n) * simulation.x.grad.to_numpy()[0]).sum((1, 2))
        return np.array([simulation.loss[None], *slope])

    return _ways(simulation.gradient, result)


def substeps(size):
    n, substeps, trips = size
    x = sg.field(sg.f32, (substeps + 1, n), needs_grad=True)
    trip_count = sg.field(sg.i32, ())

    @sg.kernel
    def step(t: sg.i32):
        for i in range(n):
            v = x[t, i]
            for _ in range(trip_count[None]):
                v = sg.sin(v) * 0.01 + v
            x[t + 1, i] = v

    def run():
        for t in range(substeps):
            step(t)
        for t in range(substeps - 1, -1, -1):
            step.grad(t)

    def result(run):
        seed = np.zeros((substeps + 1, n), np.float32)
        seed[-1] = 1
        x.grad.from_numpy(seed)
        run()
        return x.grad.to_numpy()[0][samples(n)]

    trip_count[None] = trips
    values = np.zeros((substeps + 1, n), np.float32)
    values[0] = np.linspace(0, 1, n)
    x.from_numpy(values)
    x.grad.fill(1e-3)
    return _ways(run, result)


def _launch(n, also):
    arrays = [sg.ndarray(sg.f32, n) for _ in range(4)]

    @sg.kernel
    def add(a: sg.types.NDArray[sg.f32, 1], b: sg.types.NDArray[sg.f32, 1], c: sg.types.NDArray[sg.f32, 1], d: sg.types.NDArray[sg.f32, 1]):
        for i in range(n):
            a[i] = b[i] + c[i] + d[i]

    def run():
        add(*arrays)
        also()

    def result():
        arrays[0].fill(0)
        run()
        return arrays[0].to_numpy()

    for k, array in enumerate(arrays):
        array.fill(k)
    return [Program(run, result)]


def launch(n):
    return _launch(n, lambda: None)


def launch_and_wait(n):
    return _launch(n, sg.sync)


def _fields_for_fusion(n):
    x, y = sg.field(sg.f32, shape=n), sg.field(sg.f32, shape=n)

    def program(kernel, label=""):
        def result():
            x.fill(0.5)
            kernel()
            return np.concatenate([_sampled(x), _sampled(y)])

        x.fill(0.5)
        return Program(kernel, result, label)

    return x, y, program


def _eight(x, y, **options):
    @sg.kernel(**options)
    def eight_loops():
        for i in x:
            y[i] = x[i] * THERE[0] + THERE[1]
        for i in x:
            x[i] = y[i] * BACK[0] + BACK[1]
        for i in x:
            y[i] = x[i] * THERE[0] + THERE[1]
        for i in x:
            x[i] = y[i] * BACK[0] + BACK[1]
        for i in x:
            y[i] = x[i] * THERE[0] + THERE[1]
        for i in x:
            x[i] = y[i] * BACK[0] + BACK[1]
        for i in x:
            y[i] = x[i] * THERE[0] + THERE[1]
        for i in x:
            x[i] = y[i] * BACK[0] + BACK[1]

    return eight_loops


def eight_loops(n):
    """As they stand: spirograd fuses them."""
    x, y, program = _fields_for_fusion(n)
    return [program(_eight(x, y))]


def eight_apart(n):
    x, y, program = _fields_for_fusion(n)
    return [program(_eight(x, y, **({"fuse": False} if OURS else {})))]


def eight_by_hand(n):
    x, y, program = _fields_for_fusion(n)

    @sg.kernel
    def by_hand():
        for i in x:
            v, w = x[i], 0.0
            for _ in sg.static(range(4)):
                w = v * THERE[0] + THERE[1]
                v = w * BACK[0] + BACK[1]
            y[i] = w
            x[i] = v

    return [program(by_hand)]

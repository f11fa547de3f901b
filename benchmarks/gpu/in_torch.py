"""The rows in torch. Rows of which torch has no equivalent are left out.

With TORCH_COMPILE=1 in the environment, what torch.compile makes of a row is one more way; this takes about ten seconds a row.
"""

import gc
import os

import numpy as np
import torch

from benchmarks.differentiable_mpm88 import BOUND, DT, DX, GRAVITY, GRID, STIFFNESS, TARGET, VOLUME, particles
from benchmarks.gpu.program import BACK, THERE, Program, bodies, directions, factor, image, inactive, samples

COMPILED = os.environ.get("TORCH_COMPILE") == "1"
device = "cpu"


def start(arch):
    """Begin anew: the memory of the row before is given back."""
    global device
    device = arch
    if arch == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device")
    gc.collect()
    if arch == "cuda":
        torch.cuda.empty_cache()


def wait():
    if device == "cuda":
        torch.cuda.synchronize()


def version():
    return torch.__version__


def _numpy(tensor):
    return tensor.detach().cpu().numpy()


def _sampled(tensor):
    flat = tensor.detach().reshape(-1)
    return _numpy(flat[torch.from_numpy(samples(flat.numel())).to(device)])


def _tensor(array):
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _ramp(n):
    return (torch.arange(n, dtype=torch.int32, device=device) % 1000).float() * 0.001


def _ways(function, result):
    """A function as it is, and compiled if that is wanted; ``result`` takes the function."""
    made = [Program(function, lambda: result(function), "eager")]
    if COMPILED:
        compiled = torch.compile(function)
        made.append(Program(compiled, lambda: result(compiled), "compiled"))
    return made


def _graphed(function):
    """What a CUDA graph of a function replays: the tensor that it returns is the same one each time."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function()

    def replay():
        graph.replay()
        return out

    return replay


def _with_graph(function, result):
    """A function without inputs, as it is and as a CUDA graph."""
    made = [Program(function, lambda: result(function()), "eager")]
    if device == "cuda":
        replay = _graphed(function)
        made.append(Program(replay, lambda: result(replay()), "CUDA graph"))
    return made


def copy(n):
    x, z = _ramp(n), torch.empty(n, device=device)

    def result():
        z.fill_(0)
        z.copy_(x)
        return _sampled(z)

    return [Program(lambda: z.copy_(x), result)]


def _in_place(n, function):
    """``function`` of x, y, z writes the last of them."""
    x, y, z = _ramp(n), torch.full((n,), 0.5, device=device), torch.ones(n, device=device)

    def result(run):
        y.fill_(0.5)
        z.fill_(1)
        run()
        return _sampled(function.output(x, y, z))

    return _ways(lambda: function(x, y, z), result)


def saxpy(n):
    def update(x, y, z):
        y.add_(x, alpha=2.0)

    update.output = lambda x, y, z: y
    return _in_place(n, update)


def triad(n):
    def update(x, y, z):
        torch.add(x, y, alpha=2.0, out=z)

    update.output = lambda x, y, z: z
    return _in_place(n, update)


def functions(n):
    def update(x, y, z):
        y.copy_(torch.sin(x) * torch.exp(x) + torch.log(x + 2.0))

    update.output = lambda x, y, z: y
    return _in_place(n, update)


def _mixed(n):
    return ((torch.arange(n, dtype=torch.int32, device=device) % 4093) * 7919 % 17 - 8).float()


def sum(n):
    x = _mixed(n)
    return [Program(lambda: torch.sum(x), lambda: _numpy(torch.sum(x)).reshape(1))]


def maximum(n):
    x = _mixed(n)
    x[n - 3] = 11.0
    return [Program(lambda: torch.amax(x), lambda: _numpy(torch.amax(x)).reshape(1))]


def histogram(size):
    n, bins = size
    i = torch.arange(n, dtype=torch.int32, device=device)
    values = (i * 7919 + (i >> 5)) % bins
    del i

    def run():
        return torch.bincount(values, minlength=bins)

    return [Program(run, lambda: _numpy(run()), "bincount")]


def stencil(n):
    a, b = _tensor(image(n)), torch.zeros(n, n, device=device)
    kernel = torch.tensor([[0, 0.2, 0], [0.2, 0.2, 0.2], [0, 0.2, 0]], device=device).reshape(1, 1, 3, 3)

    def slices():
        b[1:-1, 1:-1] = 0.2 * (a[1:-1, 1:-1] + a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:])

    def convolution():
        b[1:-1, 1:-1] = torch.nn.functional.conv2d(a.reshape(1, 1, n, n), kernel)[0, 0]

    def result(run):
        b.fill_(0)
        run()
        return _sampled(b)

    torch.backends.cudnn.allow_tf32 = False
    return [*_ways(slices, result), Program(convolution, lambda: result(convolution), "convolution")]


def stencil_gradient(n):
    a, seed = torch.zeros(n, n, device=device, requires_grad=True), _tensor(image(n))
    inner = 0.2 * (a[1:-1, 1:-1] + a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:])

    def run():
        return torch.autograd.grad(inner, a, seed[1:-1, 1:-1], retain_graph=True)[0]

    return [Program(run, lambda: _sampled(run()))]


def nbody(n):
    p = _tensor(bodies(n))
    block = max(1, min(n, (1 << 27) // n))

    def run():
        force = torch.empty_like(p)
        for k in range(0, n, block):
            d = p[None, :, :] - p[k : k + block, None, :]
            inverse = torch.rsqrt((d * d).sum(2) + 1e-3)
            force[k : k + block] = torch.einsum("ij,ijk->ik", inverse * inverse * inverse, d)
        return force

    return [Program(run, lambda: _numpy(run())[samples(n)[::20]].reshape(-1))]


def gradient(size):
    n, steps = size
    x = _ramp(n).requires_grad_()

    def loss(v):
        for _ in range(steps):
            v = torch.sin(v) * 0.9 + 0.1
        return v.sum()

    def of(function):
        return lambda: torch.autograd.grad(function(x), x)[0]

    ways = [("eager", of(loss)), *([("compiled", of(torch.compile(loss)))] if COMPILED else [])]
    return [Program(run, lambda run=run: _sampled(run()), label) for label, run in ways]


def gated(size):
    n, steps = size
    x = torch.full((n,), 0.3, device=device, requires_grad=True)
    active = _tensor(inactive(n))

    def run():
        x_active = x[(active == 0).nonzero().reshape(-1)]
        a, b, c, d = x_active, 0.9 * x_active, 0.8 * x_active, 0.7 * x_active
        for _ in range(steps):
            a, b, c, d = torch.sin(a) * b + 0.25, torch.sin(b) * c + 0.25, torch.sin(c) * d + 0.25, torch.sin(d) * a + 0.25
        return torch.autograd.grad((a + b + c + d).sum(), x)[0]

    return [Program(run, lambda: _sampled(run()), "active elements gathered")]


def _mpm88_step(x, v, C, J, offsets, eye, borders, gravity):
    n = x.shape[0]
    base = (x.detach() / DX - 0.5).to(torch.int64)
    fx = x / DX - base
    w = torch.stack([0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2])
    weight = (w[:, None, :, 0] * w[None, :, :, 1]).reshape(9, n, 1)
    affine = (-DT * 4 * STIFFNESS * VOLUME * (J - 1) / DX**2)[:, None, None] * eye + VOLUME * C
    distance = (offsets[:, None, :] - fx) * DX
    index = ((base[:, 0] + offsets[:, 0, None].long()) * GRID + base[:, 1] + offsets[:, 1, None].long()).reshape(-1)
    momentum = weight * (VOLUME * v + torch.einsum("nij,knj->kni", affine, distance))
    scattered = torch.cat([momentum, weight * VOLUME], 2).reshape(9 * n, 3)
    grid = torch.zeros(GRID * GRID, 3, device=x.device).index_add(0, index, scattered)
    mass = grid[:, 2:]
    velocity = grid[:, :2] / torch.where(mass > 0, mass, 1.0) - gravity
    low, high = borders
    velocity = torch.where((low & (velocity < 0)) | (high & (velocity > 0)), 0.0, velocity)
    g = velocity[index].reshape(9, n, 2)
    new_v = (weight * g).sum(0)
    new_C = 4 / DX**2 * torch.einsum("kni,knj->nij", weight * g, distance)
    trace = new_C[:, 0, 0] + new_C[:, 1, 1]
    return x + DT * new_v, new_v, new_C, J * (1 + DT * trace)


def mpm88(size):
    n, steps = size
    x0 = _tensor(particles(n)).requires_grad_()
    offsets = torch.tensor([[i, j] for i in range(3) for j in range(3)], dtype=torch.float32, device=device)
    eye, target = torch.eye(2, device=device), torch.tensor(TARGET, device=device)
    cells = torch.stack(torch.meshgrid(*[torch.arange(GRID, device=device)] * 2, indexing="ij"), 2).reshape(-1, 2)
    borders, gravity = (cells < BOUND, cells > GRID - BOUND), torch.tensor([0, DT * GRAVITY], device=device)

    def run():
        x, v = x0, torch.ones(n, 2, device=device)
        C, J = torch.zeros(n, 2, 2, device=device), torch.ones(n, device=device)
        for _ in range(steps):
            x, v, C, J = _mpm88_step(x, v, C, J, offsets, eye, borders, gravity)
        loss = ((x - target) ** 2).sum() / n
        return torch.cat([loss.detach().reshape(1), torch.autograd.grad(loss, x0)[0].reshape(-1)])

    def result(found):
        loss, slopes = _numpy(found)[:1], _numpy(found)[1:].reshape(n, 2)
        return np.array([*loss, *(directions(n) * slopes).sum((1, 2))])

    return _with_graph(run, result)


def substeps(size):
    n, substeps, trips = size
    x = torch.linspace(0, 1, n, device=device, requires_grad=True)

    def run():
        v = x
        for _ in range(substeps * trips):
            v = torch.add(v, torch.sin(v), alpha=0.01)
        return torch.autograd.grad(v.sum(), x)[0]

    return _with_graph(run, _sampled)


def _launch(n, also):
    a, b, c, d = (torch.full((n,), float(k), device=device) for k in range(4))

    def run():
        torch.add(b, c, out=a).add_(d)
        also()

    def result():
        run()
        return _numpy(a)

    return [Program(run, result)]


def launch(n):
    return _launch(n, lambda: None)


def launch_and_wait(n):
    return _launch(n, wait)


def _eight(n):
    x, y = torch.empty(n, device=device), torch.empty(n, device=device)
    ahead, behind = torch.tensor(THERE[1]), torch.tensor(BACK[1])

    def run():
        for _ in range(4):
            torch.add(ahead, x, alpha=THERE[0], out=y)
            torch.add(behind, y, alpha=BACK[0], out=x)

    def result(run):
        x.fill_(0.5)
        run()
        return np.concatenate([_sampled(x), _sampled(y)])

    x.fill_(0.5)
    return _ways(run, result)


def eight_loops(n):
    return _eight(n)


def eight_apart(n):
    return _eight(n)[:1]


def _product(n, dtype, multiply):
    a, b = (_tensor(factor(n, k)).to(dtype) for k in range(2))
    return [Program(lambda: multiply(a, b), lambda: _sampled(multiply(a, b)))]


def tiles_f16(n):
    """On CUDA, sums of f32 are what it has for it; elsewhere factors are converted."""
    if device == "cuda":
        return _product(n, torch.float16, lambda a, b: torch.mm(a, b, out_dtype=torch.float32))
    return _product(n, torch.float16, lambda a, b: a.float() @ b.float())


def tiles_f64(n):
    return _product(n, torch.float64, torch.mm)

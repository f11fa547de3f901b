"""A simulation as one function: a call and its gradient, beside Warp, JAX and torch: `python -m benchmarks.rollouts [--steps 100 1000]`.

Each step is two kernels on 1,000 elements. Peers that are not installed are left out. The bytes are those that the gradient keeps.
Annotations are evaluated here, because Warp reads those of its kernels.
"""

import argparse
import importlib
import time
from collections.abc import Callable

import numpy as np

import spirograd as sg

N, ROUNDS = 1000, 8
START = np.linspace(0, 1, N).astype(np.float32)
Run = Callable[[], object]
# What a peer runs: a call, a call with its gradient, and what returns the gradient and the bytes that were kept.
Peer = tuple[Run, Run, Callable[[], tuple[np.ndarray, int]]]


def in_spirograd(steps: int) -> Peer:
    start, x, v, loss = (sg.field(sg.f32, shape, needs_grad=True) for shape in (N, N, N, ()))

    @sg.kernel
    def begin():
        for i in range(N):
            x[i] = start[i]
            v[i] = 0.0

    @sg.kernel
    def push():
        for i in range(N):
            v[i] = v[i] * 0.99 - 0.01 * x[i] * x[i] * x[i]

    @sg.kernel
    def move():
        for i in range(N):
            x[i] = x[i] + 0.01 * v[i]

    @sg.kernel
    def measure():
        for i in range(N):
            loss[None] += x[i] * x[i]

    def simulate() -> None:
        begin()
        for _ in range(steps):
            push()
            move()
        measure()

    program = sg.ad.program(simulate, start, loss)

    def report() -> tuple[np.ndarray, int]:
        with sg.ad.Tape(loss) as tape:
            simulate()
        return program.value_and_grad(START)[1], tape.memory_report().total

    return lambda: program(START), lambda: program.value_and_grad(START), report


def in_jax(steps: int) -> Peer:
    import jax
    import jax.numpy as jnp

    def loss(x: jax.Array) -> jax.Array:
        def step(state: tuple[jax.Array, jax.Array], _: None) -> tuple[tuple[jax.Array, jax.Array], None]:
            x, v = state
            v = v * 0.99 - 0.01 * x * x * x
            return (x + 0.01 * v, v), None

        (x, _), _ = jax.lax.scan(step, (x, jnp.zeros_like(x)), None, length=steps)
        return (x * x).sum()

    call, both = jax.jit(loss), jax.jit(jax.value_and_grad(loss))
    nbytes = both.lower(START).compile().memory_analysis().temp_size_in_bytes
    return (
        lambda: call(START).block_until_ready(),
        lambda: jax.block_until_ready(both(START)),
        lambda: (np.asarray(both(START)[1]), nbytes),
    )


def in_torch(steps: int) -> Peer:
    import torch

    torch.set_num_threads(1)

    def loss(x: torch.Tensor) -> torch.Tensor:
        v = torch.zeros_like(x)
        for _ in range(steps):
            v = v * 0.99 - 0.01 * x * x * x
            x = x + 0.01 * v
        return (x * x).sum()

    def call() -> None:
        with torch.no_grad():
            loss(torch.from_numpy(START))

    def both() -> torch.Tensor:
        x = torch.from_numpy(START).requires_grad_()
        loss(x).backward()
        assert x.grad is not None
        return x.grad

    def report() -> tuple[np.ndarray, int]:
        saved: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            gradient = both()
        return gradient.numpy(), sum(saved.values())

    return call, both, report


def in_warp(steps: int) -> Peer:
    import warp as wp

    wp.config.quiet = True
    wp.init()

    @wp.kernel
    def push(x: wp.array(dtype=float), v: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = v[i] * 0.99 - 0.01 * x[i] * x[i] * x[i]

    @wp.kernel
    def move(x: wp.array(dtype=float), v: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        out[i] = x[i] + 0.01 * v[i]

    @wp.kernel
    def measure(x: wp.array(dtype=float), out: wp.array(dtype=float)):
        i = wp.tid()
        wp.atomic_add(out, 0, x[i] * x[i])

    # A state for each step: Warp's reverse pass needs what launches read.
    xs, vs = ([wp.zeros(N, dtype=float, requires_grad=True) for _ in range(steps + 1)] for _ in range(2))
    loss = wp.zeros(1, dtype=float, requires_grad=True)

    def call() -> None:
        xs[0].assign(START)
        loss.zero_()
        for t in range(steps):
            wp.launch(push, dim=N, inputs=[xs[t], vs[t]], outputs=[vs[t + 1]])
            wp.launch(move, dim=N, inputs=[xs[t], vs[t + 1]], outputs=[xs[t + 1]])
        wp.launch(measure, dim=N, inputs=[xs[steps]], outputs=[loss])

    def both() -> np.ndarray:
        with wp.Tape() as tape:
            call()
        tape.backward(loss)
        gradient: np.ndarray = xs[0].grad.numpy().copy()
        tape.zero()
        return gradient

    return call, both, lambda: (both(), 2 * steps * N * 4)


PEERS = {"spirograd": in_spirograd, "JAX": in_jax, "torch": in_torch, "Warp": in_warp}
PACKAGES = {"JAX": "jax", "torch": "torch", "Warp": "warp"}


def is_there(name: str) -> bool:
    try:
        importlib.import_module(PACKAGES.get(name, "spirograd"))
    except ModuleNotFoundError:
        return False
    return True


def best(run: Run, rounds: int) -> tuple[float, float]:
    """Return the least wall time and processor time of a run, in seconds."""
    walls, cpus = [], []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 1000])
    steps_of = parser.parse_args().steps
    sg.init(arch=sg.cpu)
    there = [name for name in PEERS if is_there(name)]
    print("times in ms: least wall time (processor time)")
    for steps in steps_of:
        wanted: np.ndarray | None = None
        for name in there:
            call, both, report = PEERS[name](steps)
            for _ in range(3):
                call(), both()
            gradient, nbytes = report()
            wanted = gradient if wanted is None else wanted
            np.testing.assert_allclose(gradient, wanted, rtol=1e-3, atol=1e-5)
            texts = [f"{1e3 * wall:8.2f} ({1e3 * cpu:8.2f})" for wall, cpu in (best(call, ROUNDS), best(both, ROUNDS))]
            print(f"{steps:5} steps  {name:<10} call {texts[0]}  with gradient {texts[1]}  kept {nbytes / 1e6:.2f} MB", flush=True)


if __name__ == "__main__":
    main()

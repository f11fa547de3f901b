"""The gradient of 100 steps of two small kernels, on tapes, beside JAX in one run: `python -m benchmarks.small_tapes`. Needs jax.

JAX compiles all steps as one loop; a tape sees a call of Python for each launch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

import spirograd as sg

ROUNDS = 40


def in_jax(start: np.ndarray, steps: int) -> Callable[[], np.ndarray]:
    """Return what runs the same program in JAX and returns the gradient with respect to ``start``."""
    try:
        import jax
    except ModuleNotFoundError:
        sys.exit("python -m benchmarks.small_tapes needs JAX: pip install '.[jax]'")
    import jax.numpy as jnp

    def loss(x: jax.Array) -> jax.Array:
        def step(state: tuple[jax.Array, jax.Array], _: None) -> tuple[tuple[jax.Array, jax.Array], None]:
            x, v = state
            v = v * 0.99 - 0.01 * x * x * x
            return (x + 0.01 * v, v), None

        (x, _), _ = jax.lax.scan(step, (x, jnp.zeros_like(x)), None, length=steps)
        return (x * x).sum()

    gradient, x = jax.jit(jax.grad(loss)), jnp.array(start)
    return lambda: np.asarray(gradient(x).block_until_ready())


def main() -> None:
    sg.init(arch=sg.cpu)
    from benchmarks.programs import small_tapes as program

    jax_run = in_jax(program.START, program.STEPS)
    runs = {name: run for name, (run, _) in program.CASES.items()} | {"JAX": jax_run}
    wanted = jax_run()
    for name, field in zip(program.CASES, (program.x, program.place)):
        for _ in range(4):
            runs[name]()
        gradient = field.grad.to_numpy().reshape(-1, program.N)[0]
        np.testing.assert_allclose(gradient, wanted, rtol=1e-4)
    best = dict.fromkeys(runs, (1e9, 1e9))
    for _ in range(ROUNDS):
        for name, run in runs.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(5):
                run()
            times = (time.perf_counter() - wall) / 5, (time.process_time() - cpu) / 5
            best[name] = min(best[name][0], times[0]), min(best[name][1], times[1])
    for name, (wall, cpu) in best.items():
        print(f"{name:<28} {1e3 * wall:.3f} ms, {1e3 * cpu:.3f} ms of the processor")


if __name__ == "__main__":
    main()

"""Find the angle and speed that throw a ball into a distant basket: a sweep over a cluster of Dask or Ray, with gradient descent in every
run.

    python examples/distributed/parameter_sweep.py                              # a cluster of two processes of this machine, by Dask
    python examples/distributed/parameter_sweep.py --scheduler tcp://host:8786  # one that is there: `dask scheduler`, `dask worker`
    python examples/distributed/parameter_sweep.py --engine ray                 # the same by Ray; `--scheduler auto` for one that is there

The runs are independent, so `sg.distributed` is not needed: each process of the cluster starts one session, at its first task, and keeps
it. Each task is a batch of runs, which are the iterations of one parallel loop. Dask and Ray send this file to the processes, so that they
import it: kernels are compiled from their source.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import spirograd as sg

STEPS, DT, GRAVITY = 60, 0.02, 9.81
TARGET = (6.0, 1.0)


class Throws:
    """``runs`` throws with drag. The loss of each is the squared, smoothed distance between the target and the nearest point of the
    path."""

    def __init__(self, runs: int) -> None:
        self.angle, self.speed = (sg.field(sg.f64, runs, needs_grad=True) for _ in range(2))
        self.miss, self.loss = sg.field(sg.f64, runs, needs_grad=True), sg.field(sg.f64, (), needs_grad=True)
        angle, speed, miss, loss = self.angle, self.speed, self.miss, self.loss

        @sg.kernel
        def throw():
            for run in angle:
                x, y = 0.0, 0.0
                u, v = speed[run] * sg.cos(angle[run]), speed[run] * sg.sin(angle[run])
                near = 0.0
                for _ in range(STEPS):
                    drag = 0.02 * sg.sqrt(u * u + v * v)
                    u, v = u - DT * drag * u, v - DT * (drag * v + GRAVITY)
                    x, y = x + DT * u, y + DT * v
                    near += sg.exp(-4.0 * ((x - TARGET[0]) ** 2 + (y - TARGET[1]) ** 2))
                miss[run] = -sg.log(near + 1e-30)

        @sg.kernel
        def add():
            for run in miss:
                loss[None] += miss[run]

        self.throw, self.add = throw, add

    def descend(self, angles: np.ndarray, speeds: np.ndarray, iterations: int) -> dict[str, np.ndarray]:
        """Return the initial losses of all runs and their gradients, the parameters after gradient descent, and the losses there."""
        self.angle.from_numpy(angles)
        self.speed.from_numpy(speeds)
        found: dict[str, np.ndarray] = {}
        for _ in range(iterations):
            with sg.ad.Tape(self.loss):
                self.throw()
                self.add()
            slopes = [parameter.grad.to_numpy() for parameter in (self.angle, self.speed)]
            if not found:
                found = {"miss": self.miss.to_numpy(), "by angle": slopes[0], "by speed": slopes[1]}
            steps = 0.05 / np.maximum(1.0, np.hypot(*slopes))
            self.angle.from_numpy(self.angle.to_numpy() - steps * slopes[0])
            self.speed.from_numpy(self.speed.to_numpy() - steps * slopes[1])
        self.throw()
        return {**found, "angle": self.angle.to_numpy(), "speed": self.speed.to_numpy(), "last": self.miss.to_numpy()}


@functools.cache
def session(arch: str, runs: int) -> Throws:
    """Return the session of a process of the cluster, with kernels that are compiled once."""
    sg.init(arch=arch, default_fp=sg.f64)
    return Throws(runs)


def work(arch: str, angles: np.ndarray, speeds: np.ndarray, iterations: int) -> dict[str, np.ndarray]:
    """Run a task on a process of the cluster, which sends the arrays back. Each process runs one task at a time."""
    return session(arch, len(angles)).descend(angles, speeds, iterations)


def sweep(run: Callable[..., Any], arch: str, angles: np.ndarray, speeds: np.ndarray, batch: int, iterations: int) -> dict[str, np.ndarray]:
    """All pairs of ``angles`` and ``speeds``, ``batch`` of them in each task: what `descend` gives, in the order of the pairs. ``run``:
    calls `work` on the cluster for each of a list of arguments."""
    pairs = [pair.ravel() for pair in np.meshgrid(angles, speeds, indexing="ij")]
    if pairs[0].size % batch:
        raise ValueError(f"{pairs[0].size} runs are no multiple of a batch of {batch}")
    starts = range(0, pairs[0].size, batch)
    results = run([(arch, *(pair[first : first + batch] for pair in pairs), iterations) for first in starts])
    return {name: np.concatenate([result[name] for result in results]) for name in results[0]}


@contextlib.contextmanager
def dask_cluster(scheduler: str | None) -> Iterator[Callable[..., Any]]:
    """`sweep`'s ``run`` by Dask: ``threads_per_worker=1`` has one task at a time run in a process."""
    from dask.distributed import Client, LocalCluster

    with Client(scheduler or LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)) as client:
        client.upload_file(__file__)
        task = importlib.import_module(Path(__file__).stem).work  # as the processes know it: this module is `__main__` here
        yield lambda arguments: client.gather([client.submit(task, *one, pure=False) for one in arguments])


@contextlib.contextmanager
def ray_cluster(address: str | None) -> Iterator[Callable[..., Any]]:
    """`sweep`'s ``run`` by Ray, whose processes run one task at a time, and are kept for the next ones."""
    import ray

    here = Path(__file__).resolve()
    resources: dict[str, Any] = {} if address else {"num_cpus": 2, "include_dashboard": False}
    with ray.init(address, runtime_env={"working_dir": str(here.parent)}, **resources):
        task = ray.remote(importlib.import_module(here.stem).work)
        yield lambda arguments: ray.get([task.remote(*one) for one in arguments])


CLUSTERS = {"dask": dask_cluster, "ray": ray_cluster}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="cpu")
    parser.add_argument("--engine", choices=CLUSTERS, default="dask")
    parser.add_argument("--scheduler", help="the address of a cluster; by default one of two processes is started")
    parser.add_argument("--runs", type=int, default=16, help="angles, and as many speeds")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--save", metavar="FILE.npz", help="write what was found")
    options = parser.parse_args()
    angles, speeds = np.linspace(0.3, 1.3, options.runs), np.linspace(7.0, 12.0, options.runs)
    with CLUSTERS[options.engine](options.scheduler) as run:
        found = sweep(run, options.arch, angles, speeds, options.batch, options.iterations)
    if options.save:
        np.savez(options.save, **found)
    best = int(np.argmin(found["last"]))
    hits = int((found["last"] < found["miss"]).sum())
    print(f"{hits} of {found['miss'].size} runs came nearer; the best: {found['angle'][best]:.3f} rad at {found['speed'][best]:.2f} m/s")


if __name__ == "__main__":
    main()

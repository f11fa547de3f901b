"""How a wave on several processes scales: `python -m benchmarks.many_processes --arch cuda --processes 1 2 4` prints a table in Markdown.

Each process has a block of ``--cells`` squared (weak scaling), or all together have that many (strong scaling). Measured are steps forward,
and steps with their gradient, each with halos and with transfers left out: the difference is the share of communication. Exits with 77 if
there are fewer GPUs than the smallest number of processes above 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NOT_RUN = 77
ROOT = Path(__file__).resolve().parent.parent
STEPS, REPEATS = 20, 3


class Wave:
    """``shape`` cells in all."""

    def __init__(self, shape: tuple[int, ...], sends: bool) -> None:
        import spirograd as sg
        from spirograd import distributed

        self.sg, self.distributed, self.sends = sg, distributed, sends
        self.part = part = distributed.Partition(shape, halo=1, periodic=True, corners=False)
        self.fields = [part.field(sg.f32, needs_grad=True) for _ in range(3)]
        self.loss = loss = sg.field(sg.f32, (), needs_grad=True)

        @sg.kernel
        def step(old: sg.Template, now: sg.Template, new: sg.Template, i0: int, i1: int, j0: int, j1: int):
            for i, j in sg.ndrange((i0, i1), (j0, j1)):
                around = now[i - 1, j] + now[i + 1, j] + now[i, j - 1] + now[i, j + 1] - 4.0 * now[i, j]
                new[i, j] = 2.0 * now[i, j] - old[i, j] + 0.1 * around

        @sg.kernel
        def square(wave: sg.Template, i0: int, i1: int, j0: int, j1: int):
            for i, j in sg.ndrange((i0, i1), (j0, j1)):
                loss[None] += wave[i, j] ** 2

        self.step, self.square = step, square

    def forward(self) -> None:
        for t in range(STEPS):
            old, now, new = (self.fields[(t + k) % 3] for k in range(3))
            pending = self.part.start(now) if self.sends else None
            self.step(old, now, new, *self.part.interior.flat)
            if pending is not None:
                pending.finish()
            for border in self.part.borders:
                self.step(old, now, new, *border.flat)

    def gradient(self) -> None:
        with self.sg.ad.Tape(self.loss):
            self.forward()
            self.square(self.fields[0], *self.part.owned.flat)
            if self.sends:
                self.distributed.total(self.loss)

    def measure(self, run: Callable[[], None]) -> float:
        """Seconds of a step, the best of some repeats; all processes begin together."""
        best = float("inf")
        for number in range(REPEATS + 1):
            self.sg.sync()
            self.distributed.barrier()
            begin = time.perf_counter()
            run()
            self.sg.sync()
            if number:
                best = min(best, (time.perf_counter() - begin) / STEPS)
        return max(self.distributed.world.gathered("times", best))


def work(arch: str, cells: int, out: str) -> None:
    """What each process runs."""
    from spirograd import distributed

    distributed.init(arch=arch, timeout=120)
    size = distributed.size()
    found: dict[str, Any] = {}
    for kind, shape in (("weak", (cells * size, cells)), ("strong", (cells, cells))):
        found[kind] = {}
        for sends in (True, False):
            wave = Wave(shape, sends)
            found[kind]["all" if sends else "without"] = {"forward": wave.measure(wave.forward), "gradient": wave.measure(wave.gradient)}
    if distributed.rank() == 0:
        Path(out).write_text(json.dumps(found))


def start(arch: str, cells: int, count: int) -> dict[str, Any]:
    """Run ``count`` processes, as torchrun would."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "found.json")
        command = [sys.executable, "-m", "benchmarks.many_processes", "--work", out, "--arch", arch, "--cells", str(cells)]
        shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        ranks = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
        processes = [subprocess.Popen(command, cwd=ROOT, env=environment) for environment in ranks]
        try:
            ended = [process.wait(600) for process in processes]
            if any(ended):
                raise SystemExit(f"{count} processes failed")
        finally:
            for process in processes:
                process.kill()
        found: dict[str, Any] = json.loads(Path(out).read_text())
        return found


def gpus() -> int:
    """How many GPUs of NVIDIA torch can send from."""
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def table(results: dict[int, dict[str, Any]]) -> list[str]:
    """Lines of Markdown, from what `start` gives for each number of processes; efficiencies are relative to the smallest number."""
    lines = ["| scaling | pass | processes | ms a step | efficiency | communication |", "|---|---|---|---|---|---|"]
    counts = sorted(results)
    for kind in ("weak", "strong"):
        for run in ("forward", "gradient"):
            base = results[counts[0]][kind]["all"][run] * (counts[0] if kind == "strong" else 1)
            for count in counts:
                seconds, without = (results[count][kind][which][run] for which in ("all", "without"))
                ideal = base / count if kind == "strong" else base
                share = max(0.0, 1 - without / seconds)
                lines.append(f"| {kind} | {run} | {count} | {seconds * 1e3:.3g} | {ideal / seconds:.2f} | {share:.0%} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="cuda")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--cells", type=int, default=8192)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.arch, options.cells, options.work)
        return 0
    there = gpus() if options.arch == "cuda" else max(options.processes)
    counts = [count for count in options.processes if count <= there]
    if max(counts, default=0) < 2:
        print(f"several processes need torch and several GPUs, and there are {there} for them")
        return NOT_RUN
    results = {count: start(options.arch, options.cells, count) for count in counts}
    print("\n".join(table(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

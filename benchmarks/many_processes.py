"""How programs on several processes scale: `python -m benchmarks.many_processes --arch cuda --processes 1 2 4` prints tables in Markdown.

``wave``: a stencil in f32; ``mpm``: differentiable MPM (`examples/distributed/mpm_slabs.py`). Each process has a block of ``--cells``
squared (weak scaling), or all together have that many (strong scaling). Measured are steps forward, and steps with their gradient, each
with halos and with transfers left out: the difference is the share of communication. Beside it stands what a model predicts from one
process and from the link between two, which is measured, too; and what limits the row by this model. docs/scaling.md explains it.

Exits with 77 if there are fewer GPUs than the smallest number of processes above 1.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.scaling_programs import PROGRAMS, STEPS

NOT_RUN = 77
ROOT = Path(__file__).resolve().parent.parent
REPEATS = 3
PASSES = {"forward": 1, "gradient": 2}  # how often each exchange of a step happens in them


class Time(NamedTuple):
    """The time of a step in seconds: until the device is done, and until Python has launched it."""

    seconds: float
    launched: float


class Link(NamedTuple):
    """Between two processes: seconds that Python takes to start an exchange, ``latency`` in seconds, ``bandwidth`` in bytes a second."""

    start: float
    latency: float
    bandwidth: float


class Measured(NamedTuple):
    """One program on one number of processes: times with transfers and ``without``, by pass; bytes that a process sends in a step, the
    number of exchanges, the processes that each exchange is with, and whether cells are computed meanwhile."""

    all: Mapping[str, Time]
    without: Mapping[str, Time]
    sent: int
    exchanges: int
    neighbours: int
    overlaps: bool


def measure(run: Callable[[], None]) -> Time:
    """Return the best time of some repeats on the slowest process; all processes begin together."""
    import spirograd as sg
    from spirograd import distributed

    best, launched = float("inf"), float("inf")
    for number in range(REPEATS + 1):
        sg.sync()
        distributed.barrier()
        begin = time.perf_counter()
        run()
        python = time.perf_counter() - begin
        sg.sync()
        if number:
            best, launched = min(best, (time.perf_counter() - begin) / STEPS), min(launched, python / STEPS)
    return Time(*(max(distributed.world.gathered("times", one)) for one in (best, launched)))


def measure_program(name: str, cells: int, weak: bool) -> Measured:
    """Measure a program on the processes that there are."""
    from spirograd import distributed

    times = []
    for sends in (True, False):
        program = PROGRAMS[name](PROGRAMS[name].shape(cells, distributed.size(), weak), sends)
        times.append({what: measure(getattr(program, what)) for what in PASSES})
        program.check()
    neighbours = sum(min(2, blocks - 1) for blocks in program.part.processes)
    return Measured(*times, max(distributed.world.gathered("bytes", program.sent())), program.exchanges, neighbours, program.overlaps)


def measure_link(arch: str) -> Link | None:
    """Measure the link between pairs of processes through torch. Return None for one process, and for other transports."""
    from spirograd import distributed

    if distributed.size() < 2 or distributed.world.transport().name != "torch":
        return None
    import torch
    from torch import distributed as dist

    on_gpu = arch == "cuda"
    group = dist.new_group(backend="nccl" if on_gpu else "gloo")
    peer = distributed.rank() ^ 1

    def exchange(nbytes: int, waits: bool) -> float:
        if peer >= distributed.size():
            return 0.0
        mine, other = (torch.zeros(nbytes, dtype=torch.uint8, device="cuda" if on_gpu else "cpu") for _ in range(2))
        best = float("inf")
        for _ in range(30):
            begin = time.perf_counter()
            pair = [dist.P2POp(dist.isend, mine, peer, group), dist.P2POp(dist.irecv, other, peer, group)]
            for work in dist.batch_isend_irecv(pair):
                work.wait()
            if waits and on_gpu:
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - begin)
        return best

    large = 64_000_000
    start, small, whole = exchange(64, False), exchange(64, True), exchange(large, True)
    start, small, whole = (max(distributed.world.gathered("times", one)) for one in (start, small, whole))
    return Link(start, max(small - start, 0.0), large / max(whole - small, 1e-9))


def work(arch: str, programs: Sequence[str], cells: Sequence[int], out: str) -> None:
    """Measure all that is asked for; what each process runs."""
    from spirograd import distributed

    distributed.init(arch=arch, timeout=120)
    results = {
        f"{program} {edge} {kind}": measure_program(program, edge, kind == "weak")
        for program in programs
        for edge in cells
        for kind in ("weak", "strong")
    }
    link = measure_link(arch)
    if distributed.rank() == 0:
        Path(out).write_text(json.dumps({"link": link, "results": results}))


def start(arch: str, programs: Sequence[str], cells: Sequence[int], count: int) -> tuple[Link | None, dict[str, Measured]]:
    """Run ``count`` processes, as torchrun would."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "results.json")
        command = [sys.executable, "-m", "benchmarks.many_processes", "--work", out, "--arch", arch]
        command += ["--programs", *programs, "--cells", *map(str, cells)]
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
        read = json.loads(Path(out).read_text())
    results = {
        name: Measured(*({what: Time(*one) for what, one in times.items()} for times in measured[:2]), *measured[2:])
        for name, measured in read["results"].items()
    }
    return read["link"] and Link(*read["link"]), results


def gpus() -> int:
    """How many GPUs of NVIDIA torch can send from."""
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def predicted(alone: Measured, here: Measured, what: str, share: float, link: Link) -> tuple[float, str]:
    """Return the seconds of a step that follow from one process and the link, and the term that is largest.

    ``share``: the part of the work of ``alone`` that each process does. On the device cells are computed while halos travel, if the program
    overlaps them, and messages are packed and unpacked; Python launches all that meanwhile, and starts exchanges with each neighbour.
    """
    exchanges = here.exchanges * PASSES[what]
    cells = alone.without[what].seconds * share
    travel = exchanges * link.latency + PASSES[what] * here.sent / link.bandwidth
    packing = max(0.0, alone.all[what].seconds - alone.without[what].seconds)
    device = packing + (max(cells, travel) if here.overlaps else cells + travel)
    python = alone.all[what].launched + exchanges * here.neighbours * link.start
    limit = "Python" if python > device else "link" if travel > cells else "packing" if packing > cells else "cells"
    return max(device, python), limit


def table(results: Mapping[int, Mapping[str, Measured]], link: Link | None) -> list[str]:
    """Lines of Markdown, from what `start` gives for each number of processes; efficiencies are relative to the smallest number."""
    lines = [
        "| program, cells | scaling | pass | processes | ms a step | efficiency | communication | Python (ms) | model (ms) | limit |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    counts = sorted(results)
    for name in results[counts[0]]:
        program, cells, kind = name.split()
        for what in PASSES:
            base = results[counts[0]][name]
            for count in counts:
                here = results[count][name]
                (seconds, launched), without = here.all[what], here.without[what].seconds
                share = counts[0] / count if kind == "strong" else 1.0
                model = ["", ""]
                if link is not None and count > 1 == counts[0]:
                    step, limit = predicted(base, here, what, share, link)
                    model = [f"{step * 1e3:.3g}", limit]
                lines.append(
                    f"| {program} {cells} x {cells} | {kind} | {what} | {count} | {seconds * 1e3:.3g} | "
                    f"{base.all[what].seconds * share / seconds:.2f} | {max(0.0, 1 - without / seconds):.0%} | {launched * 1e3:.3g} | "
                    f"{' | '.join(model)} |"
                )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="cuda")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--programs", choices=list(PROGRAMS), nargs="+", default=list(PROGRAMS))
    parser.add_argument("--cells", type=int, nargs="+", default=[8192], help="along each edge of a block (default: 8192)")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.arch, options.programs, options.cells, options.work)
        return 0
    there = gpus() if options.arch == "cuda" else max(options.processes)
    counts = [count for count in options.processes if count <= there]
    if max(counts, default=0) < 2:
        print(f"several processes need torch and several GPUs, and there are {there} for them")
        return NOT_RUN
    link, results = None, {}
    for count in counts:
        measured, results[count] = start(options.arch, options.programs, options.cells, count)
        link = measured or link
    print("\n".join(table(results, link)))
    if link is not None:
        start_us, latency_us, speed = link.start * 1e6, link.latency * 1e6, link.bandwidth / 1e9
        print(f"\nlink: {start_us:.0f} us of Python for an exchange, {latency_us:.0f} us of latency, {speed:.0f} GB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

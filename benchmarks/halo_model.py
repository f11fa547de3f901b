"""What one device says of many: `python -m benchmarks.halo_model --arch cuda` prints a table in Markdown, for a wave with f32 cells.

For each size of a block it measures on one process: a step of the whole block, one exchange of its halo by the device alone (to messages
and from them; the block is its own neighbour), and what Python takes to launch both, which on CPUs includes the work itself. From these and
the latency and bandwidth of a link, which are given, follow the time of a step beside neighbours, and the efficiency of weak scaling.
docs/scaling.md explains the model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.scaling_programs import STEPS, Wave

REPEATS = 3


class Block(NamedTuple):
    """Seconds for one block of ``cells`` squared: a step of it, an exchange, and Python's part of a step with an exchange, in launches."""

    cells: int
    step: float
    exchange: float
    launch: float

    @property
    def sent(self) -> int:
        """Bytes that go to neighbours in each step: one row of f32 along each edge."""
        return 4 * self.cells * 4


class Link(NamedTuple):
    """Between two devices: ``latency`` in seconds, ``bandwidth`` in bytes a second."""

    latency: float
    bandwidth: float


def predicted(block: Block, link: Link) -> float:
    """Seconds of a step with neighbours on all four sides: messages travel while the inside is computed; Python launches meanwhile, too.

    Borders are computed afterwards, and cells go to messages and from them on the device that computes.
    """
    border = block.step * 4 / block.cells
    inner = block.step - border
    travel = link.latency + block.sent / link.bandwidth
    return max(block.launch, max(inner, travel) + border + block.exchange)


def measure(cells: int) -> Block:
    """Measure a block on the device of the session."""
    import spirograd as sg

    wave = Wave((cells, cells), True)
    old, now, new = wave.fields

    def step() -> None:
        wave.step(old, now, new, *wave.part.owned.flat)

    def both() -> None:
        step()
        wave.part.exchange(now)

    def seconds(run: Callable[[], object]) -> tuple[float, float]:
        """Measure one call: seconds until the device is done, and until Python is."""
        best, launched = float("inf"), float("inf")
        for number in range(REPEATS + 1):
            sg.sync()
            begin = time.perf_counter()
            for _ in range(STEPS):
                run()
            launch = time.perf_counter() - begin
            sg.sync()
            if number:
                best, launched = min(best, (time.perf_counter() - begin) / STEPS), min(launched, launch / STEPS)
        return best, launched

    alone, exchange = seconds(step)[0], seconds(lambda: wave.part.exchange(now))[0]
    return Block(cells, alone, exchange, seconds(both)[1])


def table(blocks: list[Block], link: Link) -> list[str]:
    """Lines of Markdown."""
    lines = [
        "| block | step (ms) | GB/s | exchange on the device (ms) | sent (kB) | Python (ms) | with neighbours (ms) | weak efficiency |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for block in blocks:
        speed = 12 * block.cells**2 / block.step / 1e9  # two fields are read, one is written
        whole = predicted(block, link)
        milliseconds = [f"{1e3 * value:.3g}" for value in (block.step, block.exchange, block.launch, whole)]
        lines.append(
            f"| {block.cells} x {block.cells} | {milliseconds[0]} | {speed:.0f} | {milliseconds[1]} | {block.sent / 1e3:.1f} | "
            f"{milliseconds[2]} | {milliseconds[3]} | {block.step / whole:.2f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="cuda")
    parser.add_argument("--cells", type=int, nargs="+", default=[256, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--latency", type=float, default=20e-6, help="of a message, in seconds (default: %(default)s)")
    parser.add_argument("--bandwidth", type=float, default=50e9, help="of a link, in bytes a second (default: %(default)s)")
    options = parser.parse_args()
    from spirograd import distributed

    distributed.init(arch=options.arch, transport="single")
    print("\n".join(table([measure(cells) for cells in options.cells], Link(options.latency, options.bandwidth))))


if __name__ == "__main__":
    main()

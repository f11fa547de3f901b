"""Common parts of the examples: the command line, the picture file, and gradient descent with a progress bar."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import spirograd as sg

try:
    import matplotlib
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
except ModuleNotFoundError:
    sys.exit("the examples need matplotlib and rich: pip install 'spirograd[demo]'")

matplotlib.use("Agg")


def start(doc: str | None, iterations: tuple[int, int] | None = None) -> argparse.Namespace:
    """Read the command line and start spirograd on the back end that it names.

    ``iterations``: for an example that learns, the default number, and the number with --quick; adds the options --iterations and --save.
    """
    parser = argparse.ArgumentParser(description=(doc or "").strip().partition("\n")[0])
    parser.add_argument("--arch", default="cpu", help="cpu, vulkan or interpreter (slow)")
    parser.add_argument("--out", type=Path, default=Path("pictures"), help="folder of the picture")
    parser.add_argument("--quick", action="store_true", help="small and short")
    if iterations is not None:
        parser.add_argument("--iterations", type=int, help=f"steps of gradient descent (default: {iterations[0]}, quick: {iterations[1]})")
        parser.add_argument("--save", type=Path, help="file of the picture, instead of one in --out")
    args = parser.parse_args()
    if iterations is not None and args.iterations is None:
        args.iterations = iterations[args.quick]
    args.out.mkdir(parents=True, exist_ok=True)
    sg.init(arch=args.arch)
    return args


def finish(path: Path) -> None:
    """Print the path of the picture, and end the session."""
    print(f"wrote {path}")
    sg.reset()


def descend(iterations: int, evaluate: Callable[[], float], parameters: list[object], rate: float) -> list[float]:
    """Run gradient descent with Adam, and return the losses of all iterations.

    ``evaluate`` computes the gradients of ``parameters`` and returns the loss. ``rate``: the approximate step at first, a tenth of it at
    the end.
    """
    optimizer = sg.optim.Adam(parameters, lr=rate, betas=(0.9, 0.99), eps=1e-12)
    schedule = sg.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 10 ** (-(k + 1) / iterations))
    losses = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        bar = progress.add_task("loss", total=iterations)
        for _ in range(iterations):
            losses.append(optimizer.step(evaluate))
            schedule.step()
            progress.update(bar, advance=1, description=f"loss {losses[-1]:.3g}")
    print(f"loss {losses[0]:.4g} -> {losses[-1]:.4g}")
    return losses

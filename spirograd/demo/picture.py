"""The picture of the demo. Needs matplotlib, which the extra `demo` installs."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import numpy.typing as npt

matplotlib.use("Agg")
from matplotlib import pyplot

Snapshot = tuple[float, npt.NDArray[np.float32], npt.NDArray[np.float32]]


def draw(snapshots: list[Snapshot], path: Path, title: str) -> None:
    """Write a PNG with one panel for each snapshot: time in seconds, positions (n, 2), velocities (n, 2); colour is speed."""
    figure, axes = pyplot.subplots(1, len(snapshots), figsize=(3.2 * len(snapshots), 3.6), squeeze=False, layout="constrained")
    speeds = [np.linalg.norm(velocity, axis=1) for _, _, velocity in snapshots]
    top = max(float(np.percentile(speed, 99)) for speed in speeds) or 1.0
    for axis, (seconds, position, _), speed in zip(axes[0], snapshots, speeds):
        axis.scatter(position[:, 0], position[:, 1], c=speed, s=2.0, cmap="viridis", vmin=0, vmax=top, linewidths=0)
        axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[], yticks=[], title=f"{seconds:.2f} s")
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)

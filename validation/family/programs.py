"""Programs that others wrote: where they are, and what each needs to run by itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_WHERE = "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('taichi').origin).parent / 'examples')"


@dataclass(frozen=True, slots=True)
class Program:
    """One program, by its ``name`` in the table.

    ``path``: the script, below ``folder``. ``arguments``: its command line. ``frame``: what counts as a frame, "tape" (the end of a
    tape), "printed:words" (a line that begins so) or "module:Class.method"; by default what shows a window. ``copied``: whether it runs
    in a copy of ``folder``, in the folder of the script, since it reads and writes files there. ``deliberate``: patterns of the names of
    fields that differ on purpose. ``volume``: a file beside the script that it would download, 128 x 128 x 128 densities in f32; the copy
    has a ball in it.
    """

    name: str
    folder: Path
    path: Path
    arguments: tuple[str, ...] = ()
    frame: str = ""
    copied: bool = False
    deliberate: tuple[str, ...] = ()
    volume: str = ""

    @property
    def draws(self) -> bool:
        """Whether the program draws random numbers, in kernels or not."""
        files = self.folder.rglob("*.py") if self.copied else (self.path,)
        return any("rand" in file.read_text(encoding="utf-8", errors="replace") for file in files)

    def copy(self, folder: Path) -> Path:
        """Copy the folder of the program to ``folder``, and return the path of the script there."""
        path = Path(shutil.copytree(self.folder, folder)) / self.path.relative_to(self.folder)
        if self.volume:
            axes = np.linspace(-1, 1, 128, dtype=np.float32)
            distance = np.sqrt(sum(axis**2 for axis in np.meshgrid(axes, axes, axes, indexing="ij")))
            np.maximum(0.0, 0.6 - distance).astype(np.float32).tofile(path.parent / self.volume)
        return path


def examples_folder(python: str) -> Path:
    """Return the folder of the examples in the environment of ``python``; the process ends if that has no Taichi."""
    done = subprocess.run([python, "-c", _WHERE], capture_output=True, text=True, check=False)
    folder = Path(done.stdout.strip() or "missing")
    if done.returncode or not folder.is_dir():
        sys.exit(f"{python} has no taichi with examples: install taichi==1.7.4 in an environment and name its python with --taichi")
    return folder


def examples(folder: Path) -> list[Program]:
    """Return all programs below ``folder``; `patterns` is a module that others import."""
    files = sorted(path for path in folder.rglob("*.py") if path.name not in ("__init__.py", "patterns.py"))
    return [Program(str(path.relative_to(folder).with_suffix("")), folder, path) for path in files]

"""The examples in the wheel of Taichi: where they are, and what each needs to run by itself."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_WHERE = "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('taichi').origin).parent / 'examples')"

# Arguments without which a program asks for something that is not there.
_ARGUMENTS: dict[str, tuple[str, ...]] = {}


@dataclass(frozen=True, slots=True)
class Program:
    """One example. ``name``: its path in the folder, without the suffix."""

    name: str
    path: Path

    @property
    def arguments(self) -> tuple[str, ...]:
        return _ARGUMENTS.get(self.name, ())

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers, in kernels or not."""
        return "rand" in self.path.read_text()


def examples_folder(python: str) -> Path:
    """The folder of the examples in the environment of ``python``; the program ends if that has no Taichi."""
    done = subprocess.run([python, "-c", _WHERE], capture_output=True, text=True, check=False)
    folder = Path(done.stdout.strip() or "missing")
    if done.returncode or not folder.is_dir():
        sys.exit(f"{python} has no taichi with examples: install taichi==1.7.4 in an environment and name its python with --taichi")
    return folder


def examples(folder: Path) -> list[Program]:
    """All programs below ``folder``; `patterns` is a module that others import."""
    files = sorted(path for path in folder.rglob("*.py") if path.name not in ("__init__.py", "patterns.py"))
    return [Program(str(path.relative_to(folder).with_suffix("")), path) for path in files]

"""How long a package takes to start: import, and the first kernel of a process without a cache and with a warm one.

Python's own cache of bytecode is warm in all of them, as it is where a package is installed.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

_IMPORT = "import time, numpy; t, c = time.perf_counter(), time.process_time(); import {module}"
_FIRST_KERNEL = """
import time
import {module} as sg

sg.init(arch=sg.{arch}, offline_cache={cached}, offline_cache_file_path={folder!r})
x = sg.field(sg.f32, 1024)

@sg.kernel
def first():
    for i in x:
        x[i] = sg.sin(x[i]) * 2.0 + 1.0

t, c = time.perf_counter(), time.process_time()
first()
sg.sync()
"""
_PRINT = "print('seconds', time.perf_counter() - t, time.process_time() - c)"
CASES = ("import", "first kernel, no cache", "first kernel, warm cache")


class Starting:
    """The processes that start a package, in a folder of their own for programs and caches."""

    def __init__(self, python: str, module: str, arch: str) -> None:
        self.python = python
        self._folder = tempfile.TemporaryDirectory()
        fill = {"module": module, "arch": arch, "folder": f"{self._folder.name}/cache"}
        self._sources = {
            "import": _IMPORT.format(**fill),
            "first kernel, no cache": _FIRST_KERNEL.format(cached=False, **fill),
            "first kernel, warm cache": _FIRST_KERNEL.format(cached=True, **fill),
        }
        self._environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._environment["PYTHONPYCACHEPREFIX"] = f"{self._folder.name}/bytecode"
        self._warm: set[str] = set()

    def run(self, case: str) -> tuple[float, float]:
        """Seconds, and seconds of the processor. Raises RuntimeError with what went wrong."""
        program = Path(self._folder.name, f"{CASES.index(case)}.py")
        program.write_text(f"{self._sources[case]}\n{_PRINT}\n")
        if case not in self._warm:
            self._warm.add(case)
            self.run(case)
        done = subprocess.run([self.python, str(program)], env=self._environment, capture_output=True, text=True, timeout=120)
        found = [line.split() for line in done.stdout.splitlines() if line.startswith("seconds")]
        if not found:
            raise RuntimeError((done.stderr.strip().splitlines() or ["the process printed nothing"])[-1])
        return float(found[-1][1]), float(found[-1][2])

    def close(self) -> None:
        self._folder.cleanup()

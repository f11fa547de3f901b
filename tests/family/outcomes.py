"""Runs programs on a module of the family: ``python outcomes.py quadrants < programs.json > outcomes.json``, in its own environment."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

PREFIXES = ("Quadrants", "Taichi", "Spirograd")


def outcome(ti: Any, program: str, path: Path) -> str:
    """The repr of what a program leaves in ``seen``, or the name of the exception that it raises, without the family's prefix."""
    path.write_text(program, encoding="utf-8")
    try:
        return repr(runpy.run_path(str(path), init_globals={"ti": ti})["seen"])
    except Exception as error:
        name = type(error).__name__
        return next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)


def main(module: str) -> None:
    """Each program has a process of its own, since some end theirs."""
    ti = importlib.import_module(module)
    out = []
    with tempfile.TemporaryDirectory() as folder:
        for k, (program, options) in enumerate(json.load(sys.stdin)):
            result = Path(folder) / f"outcome{k}"
            process = os.fork()
            if process == 0:
                sys.stdout = sys.stderr
                ti.init(arch=ti.cpu, offline_cache=False, log_level="error", **options)
                result.write_text(outcome(ti, program, Path(folder) / f"program{k}.py"), encoding="utf-8")
                os._exit(0)
            os.waitpid(process, 0)
            out.append(result.read_text(encoding="utf-8") if result.exists() else "the process ended")
    print("\n" + json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1])

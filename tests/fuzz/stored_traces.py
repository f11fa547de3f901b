"""Runs the versions of a program in one process after the other, with an offline cache that keeps traces: each must give what a process
without a cache gives, bit by bit, and what plain Python computes. A version that runs again traces nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import linecache
import logging
import os
import pickle
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import spirograd as sg
from spirograd.lang.frontend import kernel_tracing

from .run import Difference, first_line_of
from .trace_programs import Program, Version, write

__all__ = ["Program", "check", "failure", "write"]


def check(program: Program, archs: Sequence[str]) -> Counter[str]:
    """Raise `Difference` if a version gives another result with a cache. Returns how many results each back end compared."""
    compared = Counter[str]()
    for arch in archs:
        with tempfile.TemporaryDirectory() as name:
            for k, version in enumerate((*program.versions, program.versions[-1])):
                traced = _compare(arch, Path(name), k, version)
                if k == len(program.versions) and traced:
                    raise Difference(f"{arch}: a version that ran before was traced again\n{version!r}")
                compared[f"compared, {arch}"] += 1
                compared["traced" if traced else "recalled"] += 1
    return compared


def _compare(arch: str, folder: Path, k: int, version: Version) -> int:
    """Run a version with a cache, and without; return how many kernels were traced with a cache."""
    for file, text in zip(("program.py", "helper.py"), version.files()):
        (folder / file).write_text(text)
    with_cache, traced, without = _in_a_process(arch, folder)
    if not np.array_equal(with_cache.view(np.uint32), without.view(np.uint32)):
        raise Difference(f"{arch}: version {k} gives {with_cache} with a cache, {without} without\n{version!r}")
    expected = version.expected()
    if not np.allclose(without, expected, rtol=1e-4, atol=1e-4):
        raise Difference(f"{arch}: version {k} gives {without}, plain Python {expected}\n{version!r}")
    return traced


def _in_a_process(arch: str, folder: Path) -> tuple[np.ndarray, int, np.ndarray]:
    """The result with the cache in a folder, how many kernels were traced, and the result without a cache; from a fork of this process,
    which has imported the package, but should have opened no device."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "wb") as out:
            pickle.dump(_outcome(arch, folder), out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as data:
        outcome = data.read()
    os.waitpid(child, 0)
    if not outcome:
        raise Difference(f"{arch}: the process ended without a result")
    results = pickle.loads(outcome)
    if isinstance(results, str):
        raise Difference(f"{arch}: {results}")
    return results  # type: ignore[no-any-return]


def _outcome(arch: str, folder: Path) -> Any:
    logging.disable(logging.WARNING)  # random programs give many
    os.environ.pop("SG_OFFLINE_CACHE", None)  # tests switch it off
    try:
        with _counted() as traced:
            first = _run(arch, folder, {"offline_cache": True, "offline_cache_file_path": str(folder / "cache")})
            count = len(traced)
            return first, count, _run(arch, folder, {"offline_cache": False})
    except BaseException:
        return traceback.format_exc().strip().splitlines()[-1] + "\n" + traceback.format_exc()


def _run(arch: str, folder: Path, options: dict[str, Any]) -> np.ndarray:
    sg.init(arch=arch, **options)
    linecache.clearcache()
    importlib.invalidate_caches()
    with patch.object(sys, "path", [str(folder), *sys.path]), patch.object(sys, "dont_write_bytecode", True):
        for name in ("program", "helper"):
            sys.modules.pop(name, None)
        result: np.ndarray = importlib.import_module("program").result
    return result


@contextlib.contextmanager
def _counted() -> Iterator[list[str]]:
    """The names of the kernels that are traced in the block."""
    traced: list[str] = []
    trace = kernel_tracing._trace

    def counting(source: Any, *args: Any) -> Any:
        traced.append(source.name)
        return trace(source, *args)

    with patch.object(kernel_tracing, "_trace", counting):
        yield traced


def failure(program: Program, archs: Sequence[str]) -> str:
    return first_line_of(check, program, archs)

"""Runs the versions of a program in one process after the other, with an offline cache that keeps traces: each must give what a process
without a cache gives, bit by bit, and what plain Python computes. A version that runs again traces nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import linecache
import logging
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import spirograd as sg
from spirograd.lang.frontend import kernel_tracing
from spirograd.lang.frontend.read_values import Values

from .run import Difference, first_line_of
from .trace_programs import Program, Version, write

__all__ = ["Program", "check", "failure", "write"]


def nothing() -> None:
    """Leave a process as it is."""


def check(program: Program, archs: Sequence[str], prepare: Callable[[], None] = nothing) -> Counter[str]:
    """Raise `Difference` if a version gives another result with a cache. Returns how many results each back end compared. ``prepare``: what
    each process calls first."""
    compared = Counter[str]()
    for arch in archs:
        with tempfile.TemporaryDirectory() as name:
            for k, version in enumerate((*program.versions, program.versions[-1])):
                traced = _compare(arch, Path(name), k, version, prepare)
                if k == len(program.versions) and traced:
                    raise Difference(f"{arch}: a version that ran before was traced again\n{version!r}")
                compared[f"compared, {arch}"] += 1
                compared["traced" if traced else "recalled"] += 1
    return compared


def _compare(arch: str, folder: Path, k: int, version: Version, prepare: Callable[[], None]) -> int:
    """Run a version with a cache, and without; return how many kernels were traced with a cache."""
    for file, text in zip(("program.py", "helper.py"), version.files()):
        (folder / file).write_text(text)
    with_cache, traced, without = _in_a_process(arch, folder, prepare)
    if not np.array_equal(with_cache.view(np.uint32), without.view(np.uint32)):
        raise Difference(f"{arch}: version {k} gives {with_cache} with a cache, {without} without\n{version!r}")
    expected = version.expected()
    if not np.allclose(without, expected, rtol=1e-4, atol=1e-4):
        raise Difference(f"{arch}: version {k} gives {without}, plain Python {expected}\n{version!r}")
    return traced


def _in_a_process(arch: str, folder: Path, prepare: Callable[[], None]) -> tuple[np.ndarray, int, np.ndarray]:
    """The result with the cache in a folder, how many kernels were traced, and the result without a cache; from a process of its own, a
    fork of one that has imported the package and opened no device."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["spirograd"])
    reading, writing = processes.Pipe(duplex=False)
    child = processes.Process(target=_send, args=(writing, arch, folder, prepare))
    child.start()
    writing.close()
    try:
        outcome = reading.recv()
    except EOFError:
        raise Difference(f"{arch}: the process ended without a result") from None
    finally:
        child.join()
    if isinstance(outcome, str):
        raise Difference(f"{arch}: {outcome}")
    return outcome  # type: ignore[no-any-return]


def _send(to: Connection, arch: str, folder: Path, prepare: Callable[[], None]) -> None:
    prepare()
    to.send(_outcome(arch, folder))


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


def compare_no_values() -> None:
    """Have a process recall traces whatever they have read."""
    Values.put = lambda self, text: self.texts.append(text)  # type: ignore[method-assign]


def failure(program: Program, archs: Sequence[str]) -> str:
    return first_line_of(check, program, archs)

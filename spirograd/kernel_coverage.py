"""Kernel coverage: the lines of kernels that ran, as a data file of coverage.py (https://coverage.readthedocs.io).

`SG_KERNEL_COVERAGE` switches it on or off; by default it is on where coverage.py measures the process. The file is written at the end of
the process. Where branches are measured it has arcs. Those that leave a line with one successor, or a loop, count as taken if the line ran.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from spirograd.base import knobs
from spirograd.base.errors import SpirogradError, SpirogradRuntimeError
from spirograd.lang import context
from spirograd.lang.probes import Probe, Probes

_Arcs = set[tuple[int, int]]
_process: Report | None = None


class Report:
    """What kernels of this process have run. ``branches``: whether arcs are measured."""

    def __init__(self) -> None:
        import coverage

        measuring = coverage.Coverage.current() or coverage.Coverage()
        self.branches = bool(measuring.get_option("run:branch"))
        self._hits: set[Probe] = set()
        self._folder = Path.cwd()
        atexit.register(self.write)

    def add(self, probes: Probes) -> None:
        """Add what the kernels of a session have run."""
        with contextlib.suppress(SpirogradError):  # What launches report is raised once, and the end of a session drops it.
            context.session().sync()
        self._hits.update(probes.hits())

    def write(self) -> None:
        """Write the data file."""
        import coverage

        session = context.session() if context.has_session() else None
        if session is not None and session.probes is not None:
            self.add(session.probes)
        lines: dict[str, set[int]] = defaultdict(set)
        skipped: dict[str, set[int]] = defaultdict(set)
        for probe in filter(_is_in_a_file, self._hits):
            (skipped if probe.skipped else lines)[probe.file].add(probe.line)
        if not lines:
            return
        data = coverage.CoverageData(str(self._folder / f"{_prefix()}.{os.getpid()}"))
        if self.branches:
            data.add_arcs({file: arcs_of(file, lines[file], skipped[file]) for file in lines})
        else:
            data.add_lines(lines)
        data.write()


def arcs_of(file: str, lines: set[int], skipped: Iterable[int]) -> _Arcs:
    """Return the arcs of a file that were taken. ``lines``: that ran; ``skipped``: of `if` statements without `else` whose test was
    false."""
    from coverage.parser import PythonParser

    parser = PythonParser(filename=file)
    parser.parse_source()
    successors: dict[int, set[int]] = defaultdict(set)
    for line, to in parser.arcs():
        successors[line].add(to)
    tree = ast.parse(Path(file).read_bytes())
    branches = {node.lineno: node for node in ast.walk(tree) if isinstance(node, (ast.If, ast.For, ast.While))}
    taken: _Arcs = {(-1, line) for line in lines}
    for line in lines:
        node = branches.get(line)
        sides = set() if node is None else {side[0].lineno for side in (node.body, node.orelse) if side}
        for to in successors[line]:
            if to in sides or (node is None and len(successors[line]) > 1):
                ran = to in lines
            else:
                ran = not isinstance(node, ast.If) or line in skipped
            if ran:
                taken.add((line, to))
    return taken


def new_probes() -> Probes | None:
    """Return the probes of a new session; None if coverage is not measured. Raises SpirogradRuntimeError if coverage.py is missing."""
    global _process
    setting = knobs.get("SG_KERNEL_COVERAGE") or knobs.get("QD_KERNEL_COVERAGE")
    if setting == "0" or not (setting or _is_measured()):
        return None
    if _process is None:
        try:
            _process = Report()
        except ImportError:
            raise SpirogradRuntimeError("kernel coverage needs coverage.py: `pip install coverage`") from None
    return Probes()


def end_session(probes: Probes | None) -> None:
    """Keep what the kernels of a session have run, before its memory is freed."""
    if _process is not None and probes is not None:
        _process.add(probes)


def _is_in_a_file(probe: Probe) -> bool:
    """Return whether the source of a probe is a file, unlike that of cells of notebooks."""
    return Path(probe.file).is_file()


def _is_measured() -> bool:
    """Return whether coverage.py measures the process."""
    coverage = sys.modules.get("coverage")
    return coverage is not None and coverage.Coverage.current() is not None


def _prefix() -> str:
    """Return the beginning of the name of the file: programs for Quadrants expect theirs."""
    family = knobs.get("QD_KERNEL_COVERAGE") or "spirograd.compat.quadrants" in sys.modules
    return "_qd_kcov" if family and not knobs.get("SG_KERNEL_COVERAGE") else "_sg_kcov"

"""Setups that execute: the corpus, whose numbers are compared with NumPy, and random programs, by `tests.fuzz`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence

from tests.fuzz.__main__ import FUZZERS
from validation.case import Case
from validation.drivers.records import Record
from validation.drivers.setups import Setup
from validation.drivers.systems import OUT, ROOT, Unavailable
from validation.running import Run, run_cases

# Not stored_traces and partitions, which start processes: these would load the drivers of this machine.
_KINDS = tuple(kind for kind in FUZZERS if kind not in ("stored_traces", "partitions"))
_PROBE = """
import sys, spirograd as sg
from spirograd.lang.context import session
sg.init(arch=sys.argv[1])
info = session().device.info
print(f"{info.name}, {info.driver}")
"""


def run_all(setup: Setup, record: Record, cases: Sequence[Case], minutes: float, seed: int) -> None:
    """Run the cases on each back end of ``setup``, and random programs from ``seed`` on for some minutes.

    Raises Unavailable if it cannot be loaded.
    """
    command, variables = setup.python()
    record.driver = _device(setup, command, variables)
    for arch in setup.archs:
        outcomes: dict[str, tuple[str, str]] = {}

        def tell(name: str, run: Run, outcomes: dict[str, tuple[str, str]] = outcomes) -> None:
            outcomes[name] = (run.status, run.text)
            record.seconds += run.seconds

        for start in range(0, len(cases), setup.batch):
            run_cases(arch, cases[start : start + setup.batch], tell, command, variables, setup.patience)
        record.outcomes[arch] = {case.name: outcomes[case.name] for case in cases}
    if minutes:
        record.seed = seed
        _fuzz(setup, record, minutes, command, variables)


def _device(setup: Setup, command: Sequence[str], variables: dict[str, str]) -> str:
    done = subprocess.run(
        [*command, "-c", _PROBE, setup.archs[0]],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=setup.patience,
        check=False,
    )
    if done.returncode:
        raise Unavailable(f"{setup.archs[0]} cannot be used there: {' '.join(done.stderr.split())[-600:]}")
    return done.stdout.strip().splitlines()[-1]


def _fuzz(setup: Setup, record: Record, minutes: float, command: Sequence[str], variables: dict[str, str]) -> None:
    """Run random programs, and add how many passed and what is wrong to ``record``."""
    folder = OUT / setup.name / "fuzz"
    options = [*_KINDS, "--seed", str(record.seed), "--minutes", str(minutes), "--on", *setup.archs, "--out", str(folder), "--keep"]
    process = subprocess.run([*command, "-m", "tests.fuzz", *options], cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    state = folder / "state.json"
    if not state.exists():
        record.faults.append(f"python -m tests.fuzz ended with status {process.returncode}: {process.stderr.strip()[-600:]}")
        return
    told = json.loads(state.read_text())
    for key, count in told["counts"].items():
        status = key.split()[-1]
        record.random[status] = record.random.get(status, 0) + count
    record.programs = sum(record.random.values())
    record.faults += [f"{fault} ({count})" for fault, count in told["faults"].items()]
    if process.returncode < 0:
        record.faults.append(f"the process ended by signal {-process.returncode} in: {told['running']}")

"""Cases on every back end: a process for each, so that one which ends in the middle is a failure of one case and not of all."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from validation.case import Case
from validation.tools import FAILED, NOT_APPLICABLE

_ROOT = Path(__file__).parent.parent
_SECONDS = 120.0  # that one case may take by default


@dataclass(frozen=True, slots=True)
class Run:
    """What became of a case on one back end."""

    status: str
    text: str = ""
    seconds: float = 0.0


def run_cases(
    arch: str,
    cases: Sequence[Case],
    told: Callable[[str, Run], None],
    python: Sequence[str] = (sys.executable,),
    variables: Mapping[str, str] | None = None,
    seconds: float = _SECONDS,
) -> None:
    """Run ``cases`` on ``arch``; ``told`` gets the name and outcome of each.

    ``python``: the command line of Python; ``variables``: its environment, by default that of this process; ``seconds``: how long one case
    may take.
    """

    def run(names: list[str]) -> list[str]:
        command = [*python, "-m", "validation.worker", arch, *names]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=_ROOT, env=variables, stdout=pipe, stderr=pipe, text=True)
        return _run_until_it_ends(process, names, told, seconds)

    waiting = []
    for case in cases:
        if case.large and arch == "interpreter":
            told(case.name, Run(NOT_APPLICABLE, "too much work for the interpreter"))
        else:
            waiting.append(case.name)
    while waiting:
        waiting = run(waiting)


def _run_until_it_ends(process: subprocess.Popen[str], names: list[str], told: Callable[[str, Run], None], seconds: float) -> list[str]:
    """Read what a process says that runs the cases ``names``; returns those that are left when it ends early."""
    assert process.stdout is not None and process.stderr is not None
    lines: queue.Queue[str | None] = queue.Queue()
    said: list[str | None] = []
    readers = ((process.stdout, lines.put), (process.stderr, said.append))
    threads = [threading.Thread(target=_read, args=reader) for reader in readers]
    for thread in threads:
        thread.start()
    done, under_way, why = 0, names[0], ""
    while True:
        try:
            line = lines.get(timeout=seconds)
        except queue.Empty:
            why = f"took more than {seconds:.0f} s"
            process.kill()
            break
        if line is None:
            break
        if not line.startswith("{"):  # what a kernel prints
            continue
        told_of = json.loads(line)
        if "begin" in told_of:
            under_way = told_of["begin"]
            continue
        done += 1
        told(told_of["name"], Run(told_of["status"], told_of["text"], told_of["seconds"]))
    status = process.wait()
    for thread in threads:
        thread.join()
    if done == len(names):
        return []
    errors = " ".join("".join(filter(None, said)).split())[-600:]
    told(under_way, Run(FAILED, why or f"the process ended with status {status}: {errors}"))
    return names[done + 1 :]


def _read(stream: object, put: Callable[[str | None], None]) -> None:
    for line in stream:  # type: ignore[attr-defined]
        put(line)
    put(None)

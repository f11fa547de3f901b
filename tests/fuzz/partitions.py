"""Random programs on partitions: values and gradients of several processes against those of one. What the processes run is
`distributed/programs/random_steps.py`, which compares checkpoints with plain tapes, too."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.distributed import processes

PROGRAM = processes.PROGRAMS / "random_steps.py"
MOST = 4  # processes that each domain can be divided among
TOLERANCE = 1e-9


class Wrong(Exception):
    """Several processes find other numbers than one, or fail."""


@dataclass(frozen=True)
class Programs:
    """``count`` programs from the seed ``first`` on, on so many ``processes``: starting these takes longer than a program."""

    first: int
    count: int
    processes: int


def write(seed: int) -> Programs:
    return Programs(4 * seed, 4, 2 + seed % (MOST - 1))


def check(programs: Programs, archs: Sequence[str]) -> None:
    """Raises Wrong. The back end is the first of ``archs``: what differs between back ends is tested with one process."""
    with tempfile.TemporaryDirectory() as folder:
        given = (str(programs.first), str(programs.count), folder, str(MOST))
        several = processes.start(programs.processes, PROGRAM, *given, arch=archs[0])
        ended = processes.finish([*several, processes.start_alone(PROGRAM, *given, arch=archs[0])])
        if any(status for status, _ in ended):
            raise Wrong("\n".join(output.strip() for status, output in ended if status))
        for seed in range(programs.first, programs.first + programs.count):
            alone, together = (np.load(Path(folder, f"{seed}-{count}.npz")) for count in (1, programs.processes))
            for name in [name for name in alone.files if name != "steps"]:
                a, b = alone[name], together[name]
                if not np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * max(1.0, np.abs(a).max())):
                    raise Wrong(f"seed {seed}, {name}: differs by {np.abs(a - b).max()}; steps {', '.join(alone['steps'])}")


def failure(programs: Programs, archs: Sequence[str]) -> str:
    """What is wrong with programs, in its last line; empty if nothing is."""
    try:
        check(programs, archs)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[-1] if str(error) else ''}"
    return ""


def shortened(programs: Programs, archs: Sequence[str]) -> Programs:
    """The one program that fails, if one alone does."""
    for seed in range(programs.first, programs.first + programs.count):
        one = Programs(seed, 1, programs.processes)
        if failure(one, archs):
            return one
    return programs

"""The environment variables by which a launcher describes this process: torchrun, mpirun (Open MPI, MPICH), or none."""

from __future__ import annotations

import os
from collections.abc import Mapping

from spirograd.base.errors import SpirogradValueError
from spirograd.base.records import dataclass


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """The place of a process: ``rank`` of ``size`` processes, of which ``local_size`` run on this machine; ``local_rank``: the number among
    these. ``transport``: the transport of the launcher."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    transport: str = "single"


# The variables with rank, size, local rank and local size, by transport. The first row whose rank and size are set is used.
_LAUNCHERS = (
    ("torch", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("mpi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def place(environment: Mapping[str, str] = os.environ) -> ProcessPlace:
    """Return the place of this process according to the launcher; without one it is alone. Raises SpirogradValueError for variables that
    are not valid numbers.

    If a launcher does not set the local rank, it is the rank: all processes then count as those of one machine.
    """
    for transport, *names in _LAUNCHERS:
        if all(name in environment for name in names[:2]):
            rank, size, local_rank, local_size = (_number(environment, name) for name in names)
            assert rank is not None and size is not None
            if not 0 <= rank < size:
                raise SpirogradValueError(f"{names[0]}={rank} is no rank of {size} processes, as {names[1]} says")
            local_rank = rank if local_rank is None else local_rank
            return ProcessPlace(rank, size, local_rank, size if local_size is None else local_size, transport)
    return ProcessPlace()


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    if not text.isdecimal():
        raise SpirogradValueError(f"the environment variable {name} is a number, not {text!r}")
    return int(text)

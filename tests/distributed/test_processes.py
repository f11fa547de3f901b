"""Several processes on the CPU, which communicate through torch's gloo and through MPI. A start takes seconds, so each checks a lot."""

from __future__ import annotations

import pytest

from tests.distributed.processes import run, run_mpi

pytestmark = pytest.mark.needs("torch")


@pytest.mark.parametrize("count", [2, 4])
def test_random_partitions(count):
    """See programs/transfers.py."""
    printed = run(count, "transfers.py", "cpu", "6")
    assert [f"process {rank} of {count} is done" in text for rank, text in enumerate(printed)] == [True] * count


@pytest.mark.needs("mpirun", "mpi4py")
def test_random_partitions_under_mpi():
    status, printed = run_mpi(2, "transfers.py", "cpu", "6")
    assert status == 0 and all(f"process {rank} of 2 is done" in printed for rank in range(2)), printed

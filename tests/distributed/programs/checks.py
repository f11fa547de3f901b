"""Runs on any number of processes: all that is checked by the programs beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import spirograd as sg

sys.path.insert(0, str(Path(__file__).parent))

import gradients
import mistakes
import transfers

sg.distributed.init(arch="cpu", timeout=60)
transfers.main(int(sys.argv[1]))
gradients.main()
mistakes.main()
if sg.distributed.world.transport().name == "mpi":
    from mpi4py import MPI

    freed = []
    communicator = sg.distributed.world.transport()._world
    communicator.Set_attr(MPI.Comm.Create_keyval(delete_fn=lambda *_: freed.append(True)), 1)
    rank, size = sg.distributed.rank(), sg.distributed.size()
    sg.distributed.end()
    assert freed == [True] and communicator == MPI.COMM_NULL
    sg.distributed.init(arch="cpu", timeout=60)
    assert (sg.distributed.rank(), sg.distributed.size()) == (rank, size)
print(f"all is right on process {sg.distributed.rank()} of {sg.distributed.size()}")

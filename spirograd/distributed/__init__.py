"""Programs on several processes, one for each device: domains in blocks with halos, sums over processes, saved states, and their
derivatives.

Processes communicate by torch.distributed (`torchrun`) or mpi4py (`mpirun`); the same program runs on one process alone.
"""

from spirograd.distributed.halo_transfers import Pending
from spirograd.distributed.partition import Partition
from spirograd.distributed.regions import Region
from spirograd.distributed.states import load, save
from spirograd.distributed.sums import all_reduce, replicate, total
from spirograd.distributed.world import barrier, end, init, rank, size

__all__ = ["Partition", "Pending", "Region", "all_reduce", "barrier", "end", "init", "load", "rank", "replicate", "save", "size", "total"]

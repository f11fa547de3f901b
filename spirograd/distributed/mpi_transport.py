"""Communication by mpi4py. MPI has no timeouts, so all operations are nonblocking, and are polled until they complete or the timeout
passes."""

from __future__ import annotations

import itertools
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

import numpy as np

from spirograd.base.arrays import Array
from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.distributed.transport import Message, T, Transport, TransportFailure

if TYPE_CHECKING:
    from spirograd.distributed.transport import Payload

_SPINS = 200  # polls before the process yields its processor
# Pending requests with the arrays of their messages, to which MPI writes even after an error or the end of the session.
_under_way: dict[int, tuple[list[object], Sequence[Message], Sequence[Message]]] = {}


class MpiTransport(Transport):
    """All processes that `mpirun` started. An exception that ends one of them ends all, because MPI would let the others wait."""

    name = "mpi"

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self._mpi = _mpi()
        self._world = self._mpi.COMM_WORLD.Dup()
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        self.tags = self._world.Get_attr(self._mpi.TAG_UB) + 1
        self._hook = sys.excepthook
        sys.excepthook = self._abort

    def post(self, sent: Sequence[Message], received: Sequence[Message], tag: int) -> Callable[[], None]:
        octet = self._mpi.BYTE
        requests: list[object] = []
        _under_way[id(requests)] = requests, sent, received
        for peer, array in received:
            requests.append(self._world.Irecv([_octets(array), octet], source=peer, tag=tag))
        for peer, array in sent:
            requests.append(self._world.Isend([_octets(array), octet], dest=peer, tag=tag))

        def wait() -> None:
            self._wait(requests)
            _under_way.pop(id(requests), None)

        return wait

    def abandon(self) -> None:
        """Do nothing: messages are on the host."""

    def all_reduce(self, array: Payload, op: str) -> None:
        operation = {"add": self._mpi.SUM, "min": self._mpi.MIN, "max": self._mpi.MAX}[op]
        self._wait([self._world.Iallreduce(self._mpi.IN_PLACE, array, operation)])

    def broadcast(self, array: Payload) -> None:
        self._wait([self._world.Ibcast([_octets(array), self._mpi.BYTE], root=0)])

    def all_gather(self, value: T) -> list[T]:
        mine = np.frombuffer(pickle.dumps(value), np.uint8)
        lengths = np.empty(self.size, np.int64)
        self._wait([self._world.Iallgather(np.array([mine.size], np.int64), lengths)])
        first = np.concatenate(([0], np.cumsum(lengths)))
        received = np.empty(first[-1], np.uint8)
        places = [received, lengths.tolist(), first[:-1].tolist(), self._mpi.BYTE]
        self._wait([self._world.Iallgatherv([mine, self._mpi.BYTE], places)])
        return [pickle.loads(received[a:b].tobytes()) for a, b in itertools.pairwise(first)]

    def close(self) -> None:
        """Release the communicator, unless a message failed, after which MPI's functions are undefined. MPI itself ends with Python."""
        sys.excepthook = self._hook
        if not self.failed:
            self._world.Free()

    def _wait(self, requests: list[object]) -> None:
        end = time.monotonic() + self.timeout
        spins = 0
        try:
            while not self._mpi.Request.Testall(requests):
                spins += 1
                if spins > _SPINS:
                    time.sleep(2e-5)
                if spins % 64 == 0 and time.monotonic() > end:
                    raise TransportFailure(f"no answer within {self.timeout:g} s")
        except self._mpi.Exception as error:
            raise TransportFailure(str(error)) from None

    def _abort(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._hook(kind, error, trace)
        sys.stderr.flush()
        self._mpi.COMM_WORLD.Abort(1)


def _octets(array: Payload) -> Array:
    assert isinstance(array, np.ndarray)  # messages are on the host
    return array.reshape(-1).view(np.uint8)


def _mpi() -> ModuleType:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        problem = f"processes started by mpirun communicate through the package mpi4py, which cannot be used: {error}"
        raise SpirogradRuntimeError(render(problem, None, "`pip install 'spirograd[mpi]'` installs it; it needs an MPI library")) from None
    module: ModuleType = MPI  # which has no types
    return module

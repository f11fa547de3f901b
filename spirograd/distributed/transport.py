"""The interface of communication between processes, and its implementation for a single process.

Messages are contiguous NumPy arrays, or, if `takes_gpu`, torch tensors in the memory of this process's GPU. All processes call the same
functions in the same order; messages between two processes arrive in the order in which they were sent.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, Union

from spirograd.base.arrays import Array

if TYPE_CHECKING:
    import torch

    Payload = Union[Array, torch.Tensor]  # an array of the host, or a tensor on a GPU

T = TypeVar("T")

_NUMBERS = 1 << 10  # exchanges that tags distinguish: a process cannot begin this many before its neighbours have begun the first

Message = tuple[int, "Payload"]  # the other process, and the memory that is sent to it or received from it


class TransportFailure(Exception):
    """A process ended, or did not answer in time. ``str``: the message of the library."""


class Transport(ABC):
    """Communication with the other processes. ``timeout``: seconds that a process waits for others before it raises TransportFailure.
    ``exchanges``: the number of halo exchanges that this process has begun; ``lanes``: the number of their memories and directions; both
    are the same on all processes between calls of the program. ``failed``: whether a message did not arrive, so that later ones could be
    mismatched."""

    name = "single"
    rank = 0
    size = 1
    takes_gpu = False
    tags = 1 << 15  # the number of tags that every MPI library supports

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.exchanges = 0
        self.lanes = 0
        self.failed = False

    def gpu(self, ordinal: int) -> str | None:
        """Return a unique identifier of a CUDA device, if the library can send from its memory; else None."""
        return None

    def use_gpu(self, ordinal: int) -> None:
        """Accept messages in the memory of a CUDA device, which no other process uses and which `gpu` identifies."""
        raise NotImplementedError(f"{self.name} cannot send from the memory of a GPU")

    @abstractmethod
    def abandon(self) -> None:
        """Abandon messages between GPUs that have not arrived, so that kernels of the library that wait for them end."""

    @abstractmethod
    def post(self, sent: Sequence[Message], received: Sequence[Message], tag: int) -> Callable[[], None]:
        """Begin to send and receive messages, which are matched by ``tag``, except between GPUs, where there are no tags. Return a function
        that waits until all have arrived; until then the messages must not be changed. On a GPU, the function makes torch's current stream
        wait."""

    def tag(self, lanes: Sequence[int]) -> int:
        """Return the tag of halo exchange number ``exchanges`` of the memories and directions with these numbers. An exchange of other
        memory with the same number, on a process that has omitted one, then does not match it. With the fewest tags that MPI allows, this
        holds for the first 32 lanes, and for exchanges of one memory each; other mismatches are found by the count of exchanges."""
        several = zlib.crc32(repr(tuple(lanes)).encode())
        moved = (lanes[0] if len(lanes) == 1 else several) % (self.tags // _NUMBERS)
        return moved * _NUMBERS + self.exchanges % _NUMBERS

    @abstractmethod
    def all_reduce(self, array: Payload, op: str) -> None:
        """Replace an array of f32, f64, i32 or i64 by the sum ("add"), "min" or "max" over all processes, with the same bits on each."""

    @abstractmethod
    def broadcast(self, array: Payload) -> None:
        """Replace an array by that of process 0."""

    @abstractmethod
    def all_gather(self, value: T) -> list[T]:
        """Return the values that all processes pass, by rank; they must be picklable."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources of the library. Other processes that wait for this one then fail."""


class SingleProcess(Transport):
    """The transport of a single process, which sends nothing: halos that wrap around the domain are copied on the device."""

    def post(self, sent: Sequence[Message], received: Sequence[Message], tag: int) -> Callable[[], None]:
        assert not sent and not received
        return lambda: None

    def abandon(self) -> None:
        """Do nothing: there are no messages."""

    def all_reduce(self, array: Payload, op: str) -> None:
        """Do nothing: a single array is its own sum."""

    def broadcast(self, array: Payload) -> None:
        """Do nothing: the array is that of process 0."""

    def all_gather(self, value: T) -> list[T]:
        return [value]

    def close(self) -> None:
        """Do nothing."""

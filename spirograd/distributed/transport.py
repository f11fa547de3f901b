"""What communication between processes needs of a library: the interface, and that of a process that is alone.

Messages are contiguous NumPy arrays, or, where `takes_gpu` holds, torch tensors in the memory of this process's GPU. All processes call the
same functions in the same order; between two of them messages arrive in the order in which they were sent.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

_NUMBERS = 1 << 10  # of exchanges that tags tell apart: a process cannot begin so many before its neighbours have begun the first

Message = tuple[int, Any]  # the other process, and what is sent to it or overwritten by what it sends


class TransportFailure(Exception):
    """A process ended, or did not answer in time. ``str``: what the library says."""


class Transport(ABC):
    """Communication with the other processes. ``timeout``: seconds that a process waits for others before it raises TransportFailure.
    ``exchanges``: how many halo exchanges this process has begun, ``lanes``: for how many memories and directions; the same numbers on all
    processes between calls of the program. ``failed``: whether a message did not arrive, so that those after it could pair with others."""

    name = "single"
    rank = 0
    size = 1
    takes_gpu = False
    tags = 1 << 15  # as many as every MPI library has

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.exchanges = 0
        self.lanes = 0
        self.failed = False

    def gpu(self, ordinal: int) -> str | None:
        """What tells a CUDA device apart from all others, if the library can send from its memory; else None."""
        return None

    def use_gpu(self, ordinal: int) -> None:
        """From now on take messages in the memory of a CUDA device, too: one that no other process has, and that `gpu` names."""
        raise NotImplementedError(f"{self.name} cannot send from the memory of a GPU")

    @abstractmethod
    def abandon(self) -> None:
        """What was posted to another GPU, and has not arrived, does not arrive any more: a kernel of the library that waits for it ends."""

    @abstractmethod
    def post(self, sent: Sequence[Message], received: Sequence[Message], tag: int) -> Callable[[], None]:
        """Begin to send and to receive messages, which pair with those of the same ``tag``, except between GPUs, where they have no tags.
        Returns what waits until all have arrived; until then messages must stay as they are. On a GPU it has the current stream of torch
        wait."""

    def tag(self, lanes: Sequence[int]) -> int:
        """The tag of halo exchange number ``exchanges``, of the memories and directions that have these numbers: an exchange of other
        memory, which has the same number on a process that has left one out, does not pair with it. With the fewest tags that MPI allows
        that holds for the first 32 lanes, and for exchanges of one memory each; what pairs otherwise is found by the count of exchanges."""
        several = zlib.crc32(repr(tuple(lanes)).encode())
        moved = (lanes[0] if len(lanes) == 1 else several) % (self.tags // _NUMBERS)
        return moved * _NUMBERS + self.exchanges % _NUMBERS

    @abstractmethod
    def all_reduce(self, array: object, op: str) -> None:
        """Replace an array of f32, f64, i32 or i64 by the sum ("add"), "min" or "max" over all processes. The same bits everywhere."""

    @abstractmethod
    def broadcast(self, array: object) -> None:
        """Replace an array by that of process 0."""

    @abstractmethod
    def all_gather(self, value: object) -> list[Any]:
        """What all processes pass, by rank: values that can be pickled."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the library holds. Others that wait for this process then fail."""


class SingleProcess(Transport):
    """A process that is alone sends nothing: halos that wrap around the domain are copied on the device."""

    def post(self, sent: Sequence[Message], received: Sequence[Message], tag: int) -> Callable[[], None]:
        assert not sent and not received
        return lambda: None

    def abandon(self) -> None:
        """Nothing was posted."""

    def all_reduce(self, array: object, op: str) -> None:
        """One array is its own sum."""

    def broadcast(self, array: object) -> None:
        """The array is that of process 0."""

    def all_gather(self, value: object) -> list[Any]:
        return [value]

    def close(self) -> None:
        """There is nothing to give back."""

"""The memory of messages: an ndarray for kernels, and its contents in the form that a transport takes.

The transport gets a copy on the host, or, if it takes CUDA tensors, tensors over the same memory. Torch's stream then waits for the kernels
that wrote a message, and kernels that read one wait for torch's stream, without blocking the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from spirograd.distributed import world
from spirograd.lang import context
from spirograd.lang.data import device_arrays, shadows
from spirograd.lang.data.ndarray import Ndarray

if TYPE_CHECKING:
    from torch import Tensor

    from spirograd.base.device import SharesMemory
    from spirograd.distributed.transport import Payload


class MessageMemory:
    """The memory of messages. ``array``: an ndarray of one axis, not empty if there are messages to other processes."""

    def __init__(self, array: Ndarray) -> None:
        self.array = array
        self._octets: Tensor | None = None
        self._arriving: Payload | None = None

    def to_send(self) -> Payload:
        """Return what a transport sends: the elements as of the launches so far."""
        if not world.transport().takes_gpu:
            return self.array.to_numpy()
        device, stream = self._sharing()
        device.precede(stream)
        return self._on_gpu()

    def to_receive(self) -> Payload:
        """Return the memory that a transport writes to, after the launches so far. Call `received` afterwards.

        On a GPU this is the memory of the message itself, unless a tape records: the tape saves the old contents in `received`, and
        messages may arrive before.
        """
        if not world.transport().takes_gpu:
            self._arriving = np.empty(self.array.view.full_shape, self.array.dtype.np)
        elif context.recorder() is not None:
            self._arriving = self._on_gpu().new_empty(self._on_gpu().shape)
        else:
            self._arriving = self.to_send()
        return self._arriving

    def received(self) -> None:
        """Make the received message visible to later launches, after the transport has written it, or on a GPU, torch's stream will
        have."""
        arrived, self._arriving = self._arriving, None
        assert arrived is not None
        if isinstance(arrived, np.ndarray):
            self.array.from_numpy(arrived)
            return
        shadows.host_write(self.array)
        octets, (device, stream) = self._on_gpu(), self._sharing()
        if arrived is not octets:
            device.precede(stream)
            octets.copy_(arrived)
        device.follow(stream)
        self.array.allocation.bump(self.array.view.part)

    def discarded(self) -> None:
        """Wait for the message, and discard it. The memory may belong to a session that has ended."""
        arrived, self._arriving = self._arriving, None
        if arrived is not None and not isinstance(arrived, np.ndarray):
            import torch

            torch.cuda.current_stream(arrived.device).synchronize()

    def _sharing(self) -> tuple[SharesMemory, int]:
        """Return the device, which shares memory with torch if a transport takes tensors of CUDA, and torch's stream."""
        stream = device_arrays.current_torch_stream(self._on_gpu().device.index)
        assert stream is not None
        return cast("SharesMemory", self.array.allocation.device), stream

    def _on_gpu(self) -> Tensor:
        """Return the bytes of each element as a tensor over the memory."""
        if self._octets is None:
            self._octets = device_arrays.octets_over(self.array.allocation, self.array.nbytes).view(self.array.shape[0], -1)
        return self._octets

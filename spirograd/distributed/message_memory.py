"""The memory of messages: an ndarray that kernels use, and what a transport takes of it.

The transport gets a copy on the host, or, where it takes CUDA tensors, tensors over the very memory. Then torch's stream continues after
the kernels that wrote a message, and kernels that read one after torch's stream: the host waits for neither.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spirograd.distributed import world
from spirograd.lang import context
from spirograd.lang.data import device_arrays, shadows


class MessageMemory:
    """``array``: an ndarray of one axis, not empty where messages go to other processes."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self._octets: Any = None
        self._arriving: Any = None

    def to_send(self) -> Any:
        """What a transport sends: the elements as they are after the launches so far."""
        octets = self._on_gpu()
        if octets is None:
            return self.array.to_numpy()
        self.array.allocation.device.precede(device_arrays.current_torch_stream(octets.device.index))
        return octets

    def to_receive(self) -> Any:
        """Return what a transport writes to, after the launches so far; `received` comes after it.

        On a GPU that is the memory itself, unless something records: a tape saves what memory held when it is told of the write, in
        `received`, and messages may arrive before.
        """
        if not world.transport().takes_gpu:
            self._arriving = np.empty(self.array.view.full_shape, self.array.dtype.np)
        elif context.recorder() is not None:
            self._arriving = self._on_gpu().new_empty(self._on_gpu().shape)
        else:
            self._arriving = self.to_send()
        return self._arriving

    def received(self) -> None:
        """The transport has written, or on a GPU torch's stream will: from now on launches find what arrived."""
        arrived, self._arriving = self._arriving, None
        if isinstance(arrived, np.ndarray):
            self.array.from_numpy(arrived)
            return
        shadows.host_write(self.array)
        octets, allocation = self._on_gpu(), self.array.allocation
        stream = device_arrays.current_torch_stream(octets.device.index)
        if arrived is not octets:
            allocation.device.precede(stream)
            octets.copy_(arrived)
        allocation.device.follow(stream)
        allocation.bump(self.array.view.part)

    def discarded(self) -> None:
        """The transport has written, or on a GPU torch's stream will: wait for it. The memory may be that of a session that has ended."""
        arrived, self._arriving = self._arriving, None
        if arrived is not None and not isinstance(arrived, np.ndarray):
            import torch

            torch.cuda.current_stream(arrived.device).synchronize()

    def _on_gpu(self) -> Any:
        """The bytes of each element as a tensor over the memory, if the transport takes it; else None."""
        if not world.transport().takes_gpu:
            return None
        if self._octets is None:
            self._octets = device_arrays.octets_over(self.array.allocation, self.array.nbytes).view(self.array.shape[0], -1)
        return self._octets

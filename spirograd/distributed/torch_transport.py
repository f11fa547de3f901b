"""Communication by torch.distributed: gloo between arrays of the host, NCCL between the memory of NVIDIA's GPUs."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from spirograd.base.errors import SpirogradRuntimeError, render
from spirograd.distributed.launchers import ProcessPlace
from spirograd.distributed.transport import Message, T, Transport, TransportFailure

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

    from spirograd.distributed.transport import Payload

_NOISE = re.compile(r"\[\S+:\d+\] |\. This is typically.*")  # parts of gloo's messages to remove: where they are raised, and guesses

_JOINING = 300.0  # least number of seconds that processes may start after each other
_WATCHDOG = 10.0  # seconds, in addition to the timeout of the host, after which torch ends a process that waits on its GPU


class TorchTransport(Transport):
    """Communication of the process at ``place``. If the program has set up torch.distributed, its processes are used, else those of the
    launcher."""

    name = "torch"
    tags = 1 << 31

    def __init__(self, place: ProcessPlace, timeout: float) -> None:
        super().__init__(timeout)
        torch = _torch()
        self._torch, self._dist = torch, torch.distributed
        with _failures():
            if not self._dist.is_initialized():
                _check_address()
                joining = timedelta(seconds=max(timeout, _JOINING))
                self._dist.init_process_group("gloo", rank=place.rank, world_size=place.size, timeout=joining)
            self._host = self._dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        self._gpu: ProcessGroup | None = None
        self.rank, self.size = self._dist.get_rank(), self._dist.get_world_size()

    def gpu(self, ordinal: int) -> str | None:
        torch = self._torch
        if not (self._dist.is_nccl_available() and torch.cuda.is_available()):
            return None
        return str(getattr(torch.cuda.get_device_properties(ordinal), "uuid", f"{socket.gethostname()}:{ordinal}"))

    def use_gpu(self, ordinal: int) -> None:
        self._torch.cuda.set_device(ordinal)
        with _failures():
            self._gpu = self._dist.new_group(backend="nccl", timeout=timedelta(seconds=self.timeout + _WATCHDOG))
            # All processes must take part in the first operation of a group, but not all take part in each exchange of halos.
            self._dist.all_reduce(self._torch.zeros(1, device="cuda"), group=self._gpu)
        self.takes_gpu = True

    def abandon(self) -> None:
        if self._gpu is not None:
            self._gpu.abort()
            self._gpu, self.takes_gpu = None, False

    def post(self, sent: Sequence[Message], received: Sequence[Message], tag: int) -> Callable[[], None]:
        operations, kept = [], []
        for start, messages in ((self._dist.irecv, received), (self._dist.isend, sent)):
            for peer, array in messages:
                tensor, group = self._octets(array)
                kept.append(tensor)
                operations.append(self._dist.P2POp(start, tensor, peer, group, tag))
        with _failures():
            work = self._dist.batch_isend_irecv(operations) if operations else []

        def wait() -> None:
            with _failures():
                for one in work:
                    one.wait()
            kept.clear()

        return wait

    def all_reduce(self, array: Payload, op: str) -> None:
        operations = self._dist.ReduceOp
        tensor, group = self._tensor(array)
        with _failures():
            self._dist.all_reduce(tensor, {"add": operations.SUM, "min": operations.MIN, "max": operations.MAX}[op], group)

    def broadcast(self, array: Payload) -> None:
        tensor, group = self._octets(array)
        with _failures():
            self._dist.broadcast(tensor, 0, group)

    def all_gather(self, value: T) -> list[T]:
        gathered = [value] * self.size
        with _failures():
            self._dist.all_gather_object(gathered, value, self._host)
        return gathered

    def close(self) -> None:
        """Keep the default group until Python ends: torchrun's store has its addresses, so a second group would not find its peers."""
        if self._dist.is_initialized():
            for group in filter(None, (self._gpu, self._host)):
                self._dist.destroy_process_group(group)

    def _tensor(self, array: Payload) -> tuple[Tensor, ProcessGroup | None]:
        if isinstance(array, np.ndarray):
            return self._torch.from_numpy(array), self._host
        return array, self._gpu

    def _octets(self, array: Payload) -> tuple[Tensor, ProcessGroup | None]:
        """Return the bytes of an array of any type."""
        if isinstance(array, np.ndarray):
            return self._torch.from_numpy(array.reshape(-1).view(np.uint8)), self._host
        return array.reshape(-1).view(self._torch.uint8), self._gpu


def _torch() -> ModuleType:
    try:
        import torch
        import torch.distributed
    except ImportError:
        problem = "processes started by torchrun communicate through the package torch, which is not installed"
        raise SpirogradRuntimeError(render(problem, None, "`pip install 'spirograd[distributed]'` installs it")) from None
    if not torch.distributed.is_available():
        raise SpirogradRuntimeError("this build of torch has no `torch.distributed`, through which processes communicate")
    module: ModuleType = torch  # which has no types where torch is missing
    return module


def _check_address() -> None:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        problem = f"processes find each other by MASTER_ADDR and MASTER_PORT, and {missing[0]} is not set"
        raise SpirogradRuntimeError(render(problem, None, "start the program by `torchrun`, or set both to an address of process 0"))


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Return the exceptions that torch raises if other processes end or do not answer."""
    try:
        yield
    except RuntimeError as error:  # includes torch.distributed.DistError and errors of gloo
        if isinstance(error, SpirogradRuntimeError):
            raise
        message = _NOISE.sub("", str(error)).strip()
        raise TransportFailure(message.splitlines()[0] if message else type(error).__name__) from None

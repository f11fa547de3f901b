"""Runs on any number of processes: the program of `gradients.py` as on GPUs, where messages are written to memory that kernels use.

They arrive as soon as they can be received. A tape must not take them for what was there before."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import torch

import spirograd as sg
from spirograd.distributed.message_memory import MessageMemory
from spirograd.distributed.torch_transport import TorchTransport
from spirograd.lang.data import device_arrays
from spirograd.lang.data.ndarray import Ndarray
from spirograd.lang.data.scalar_field import ScalarField

sys.path.insert(0, str(Path(__file__).parent))

import gradients

dist = sg.distributed


def _octets_of_the_host(self: MessageMemory) -> Any:
    """The bytes of each element as a tensor over memory of the CPU, which kernels use at the same time."""
    if self._octets is None:
        nbytes = self.array.nbytes
        memory = (ctypes.c_uint8 * nbytes).from_address(self.array.allocation.address)
        self._octets = torch.frombuffer(memory, dtype=torch.uint8).view(self.array.shape[0], -1)
    return self._octets


def _to_torch_of_the_host(to_torch: Any) -> Any:
    return lambda self, device: to_torch(self, device="cpu")


def main() -> None:
    dist.init(arch="cpu", timeout=60)
    transport = dist.world.transport()
    assert isinstance(transport, TorchTransport)
    transport.takes_gpu, transport._gpu = True, transport._host
    MessageMemory._on_gpu = _octets_of_the_host  # type: ignore[method-assign]
    device = type(sg.ndarray(sg.f32, 1).allocation.device)
    device.precede = device.follow = lambda self, stream: self.synchronize()
    device_arrays.current_torch_stream = lambda ordinal: 0  # type: ignore[assignment]
    for kind in (ScalarField, Ndarray):
        kind.to_torch = _to_torch_of_the_host(kind.to_torch)  # type: ignore[method-assign]
    post = transport.post

    def arriving_at_once(*messages: Any) -> Any:
        post(*messages)()
        return lambda: None

    transport.post = arriving_at_once  # type: ignore[method-assign]
    for checkpoints in range(1, 13):
        part = dist.Partition((9, 7), periodic=True)
        gradients.program(part, {"checkpoints": checkpoints}, overlapping=True)
    print(f"gradients on process {dist.rank()} of {dist.size()} are right")
    transport.takes_gpu, transport._gpu = False, None


if __name__ == "__main__":
    main()

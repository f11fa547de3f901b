"""A device of target "wgpu" whose kernels Dawn runs. Its memory is the host's: a dispatch copies the buffers of a task there and back."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from spirograd.base.artifact import CompiledKernel, TaskInfo
from spirograd.base.device import DeviceInfo
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.profiles import PROFILES
from spirograd.base.records import replace
from spirograd.runtime.devices.artifacts import check_target
from validation.dawn import HOSTS, TINT, VARIABLE
from validation.dawn.host import Host
from validation.rdna3.arithmetic import Array
from validation.rdna3.device import CAPACITY, Emulator
from validation.rdna3.memory import Memory

_ALIGNMENT = 256  # of the allocations in a buffer that holds several
_ADDRESS_BYTES = 8
_EMPTY = 16  # bytes of a buffer that is bound for no allocation


@dataclass(eq=False)
class Executable:
    """A kernel with the pipelines of its tasks."""

    kernel: CompiledKernel
    pipelines: list[object]


class Dawn(Emulator):
    """A `Device`, see `Emulator`. WebGPU's default limits are the profile "browser"."""

    def __init__(self, host: Host, capacity: int = CAPACITY) -> None:
        super().__init__(capacity)
        self._host = host
        self.info = DeviceInfo("wgpu", host.adapter, host.driver)
        caps = PROFILES["browser"].on("wgpu")
        assert caps is not None
        self.caps = replace(caps, coarse_sines="swiftshader" in host.adapter.lower(), cpu_driver=True)
        self.memory = Memory(capacity)
        self._sizes: dict[int, int] = {}

    def allocate(self, nbytes: int, zeroed: bool = True) -> Any:
        buffer = super().allocate(nbytes, zeroed)
        self._sizes[buffer.address] = buffer.nbytes
        return buffer

    def load(self, kernel: CompiledKernel) -> Executable:
        check_target(kernel, self.caps.target_name, "Dawn")
        with self._lock:
            make = self._host.pipeline
            indirect = kernel.args.size > 0
            pipelines = [make(kernel.binaries[task.binary], task.entry, len(task.bindings), indirect) for task in kernel.tasks]
        return Executable(kernel, pipelines)

    def run_task(self, executable: Executable, number: int, groups: int, size: int, arguments: bytes) -> int:
        task, block = executable.kernel.tasks[number], bytearray()
        if executable.kernel.args.size:  # `arguments` is the address of the block.
            block += self.memory.slice(int.from_bytes(arguments, "little"), executable.kernel.args.size).tobytes()
        bindings = _bindings(task, block)
        contents = [self._gathered(addresses, task.bindings[k], block) for k, addresses in enumerate(bindings)]
        results = self._host.run(executable.pipelines[number], contents, bytes(block), groups)
        for addresses, result in zip(bindings, results):
            for memory, offset in zip(map(self._allocation, addresses), _offsets([self._size(address) for address in addresses])):
                memory[:] = result[offset : offset + len(memory)]
        return 1

    def close(self) -> None:
        super().close()
        self._host.close()

    def _size(self, address: int) -> int:
        return self._sizes[address] if address else _EMPTY

    def _allocation(self, address: int) -> Array:
        return self.memory.slice(address, self._sizes[address]) if address else np.zeros(_EMPTY, np.uint8)

    def _gathered(self, addresses: list[int], places: tuple[int, ...], block: bytearray) -> Array:
        """Return the contents of a binding. If several allocations share it, write their offsets to the argument block."""
        if len(places) == 1:
            return self._allocation(addresses[0])
        offsets = _offsets([self._size(address) for address in addresses])
        shared = np.zeros(offsets[-1] + self._size(addresses[-1]), np.uint8)
        for address, offset in zip(addresses, offsets):
            memory = self._allocation(address)
            shared[offset : offset + len(memory)] = memory
        for place, address in zip(places, [int.from_bytes(block[p : p + _ADDRESS_BYTES], "little") for p in places]):
            block[place : place + _ADDRESS_BYTES] = offsets[addresses.index(address)].to_bytes(_ADDRESS_BYTES, "little")
        return shared


def _bindings(task: TaskInfo, block: bytearray) -> list[list[int]]:
    """Return the addresses of the allocations that each binding of a task holds."""
    bindings = [list(dict.fromkeys(int.from_bytes(block[p : p + _ADDRESS_BYTES], "little") for p in places)) for places in task.bindings]
    bound = [address for addresses in bindings for address in addresses if address]
    if len(set(bound)) != len(bound):
        raise SpirogradRuntimeError(f"the task {task.name} binds one array twice, which WebGPU forbids: pass different arrays")
    return bindings


def _offsets(sizes: list[int]) -> list[int]:
    """Return where allocations of these sizes lie in a buffer that holds them all."""
    rounded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
    return [sum(rounded[:k]) for k in range(len(rounded))]


def open(*, device_memory_bytes: int | None = None, **options: Any) -> Dawn:
    """As the modules of devices have it. Options of drivers mean nothing here."""
    name = os.environ.get(VARIABLE, TINT)
    return Dawn(importlib.import_module(HOSTS[name]).open_host(name), min(device_memory_bytes or CAPACITY, CAPACITY))

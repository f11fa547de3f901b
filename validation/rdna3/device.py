"""A device of target "amdgpu" that runs on the emulator, so that whole sessions do: `with rdna3.emulated(): sg.init(arch="amdgpu")`."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spirograd.base.artifact import CompiledKernel
from spirograd.base.device import Buffer, DeviceInfo
from spirograd.base.errors import OutOfDeviceMemory
from spirograd.llvmgen import amdgpu
from spirograd.runtime.devices.artifacts import check_target
from spirograd.runtime.devices.completed_readback import CompletedReadback, check_range
from spirograd.runtime.devices.grid_size import grid_limits
from validation.rdna3 import launch
from validation.rdna3.memory import Memory, OutOfMemory

ARCHITECTURE = "gfx1100"
CAPACITY = 1 << 29
# The largest number of workgroups, so that kernels stride over larger ranges; and of invocations if only the device knows the range.
_GROUPS, _FILL = 64, 512


@dataclass(eq=False)
class Executable:
    """A kernel with the code objects of its tasks."""

    kernel: CompiledKernel
    objects: list[launch.Loaded]


class Emulator:
    """A `Device`. A launch returns when it is done; ``instructions``: how many sets of waves have executed so far."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.info = DeviceInfo("amdgpu", f"emulated {ARCHITECTURE}", f"NumPy {np.__version__}")
        self.caps = amdgpu.capabilities(ARCHITECTURE)
        self.waits = 0
        self.memory = Memory(capacity)
        self.instructions = 0
        self._lock = threading.RLock()

    # --- memory ---

    def allocate(self, nbytes: int, zeroed: bool = True) -> Buffer:
        size = max(16, -(-nbytes // 16) * 16)
        with self._lock:
            try:
                return Buffer(size, self.memory.allocate(size, zeroed))
            except OutOfMemory as error:
                raise OutOfDeviceMemory(str(error)) from error

    def free(self, buffer: Buffer) -> None:
        self._release([buffer.address])

    def _release(self, addresses: list[int]) -> None:
        """Also after `close`, by finalizers."""
        with self._lock:
            for address in addresses if self.memory.capacity else ():
                self.memory.free(address)

    def upload(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        with self._lock:
            content = np.frombuffer(data, np.uint8)
            self.memory.slice(buffer.address + offset, len(content))[:] = content

    def download(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        with self._lock:
            self.waits += 1
            np.frombuffer(out, np.uint8)[:] = self.memory.slice(buffer.address + offset, len(out.cast("B")))

    def read_async(self, buffer: Buffer, offset: int, nbytes: int) -> CompletedReadback:
        check_range(buffer, offset, nbytes)
        with self._lock:
            return CompletedReadback(self.memory.slice(buffer.address + offset, nbytes).tobytes(), self.synchronize)

    def fill(self, buffer: Buffer, offset: int, nbytes: int, word: int) -> None:
        if nbytes:
            with self._lock:
                self.memory.slice(buffer.address + offset, nbytes).view(np.uint32)[:] = word & 0xFFFFFFFF

    def copy(self, target: Buffer, target_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
        if nbytes:
            with self._lock:
                content = self.memory.slice(source.address + source_offset, nbytes).copy()
                self.memory.slice(target.address + target_offset, nbytes)[:] = content

    def host_view(self, buffer: Buffer) -> memoryview | None:
        """None, as of a card."""

    def wrap(self, address: int, nbytes: int) -> Buffer | None:
        """None: kernels reach only what was allocated here, which is checked."""

    # --- kernels ---

    def load(self, kernel: CompiledKernel) -> Executable:
        check_target(kernel, self.caps.target_name, "the emulator")
        with self._lock:
            objects = [launch.load(self.memory, binary) for binary in kernel.binaries if kernel.tasks]
        executable = Executable(kernel, objects)
        weakref.finalize(executable, self._release, [one.base for one in objects]).atexit = False
        return executable

    def launch(self, executable: Executable, block: bytes | bytearray, counts: Sequence[int | None]) -> None:
        kernel = executable.kernel
        with self._lock:
            arguments, address = bytes(block), 0
            if kernel.args.size > self.caps.max_push_constants:
                address = self.memory.allocate(len(block))
                self.memory.slice(address, len(block))[:] = np.frombuffer(block, np.uint8)
                arguments = address.to_bytes(8, "little")
            for number, (task, count) in enumerate(zip(kernel.tasks, counts)):
                size = max(task.group_size, 1)
                each, most, _ = grid_limits(task, self.caps, "discrete")
                wanted = -(-_FILL // size) if count is None else -(-count // each)
                groups = min(wanted, most, _GROUPS)
                if groups:
                    self.instructions += self.run_task(executable, number, groups, size, arguments)
            if address:
                self.memory.free(address)

    def run_task(self, executable: Executable, number: int, groups: int, size: int, arguments: bytes) -> int:
        """Run task ``number`` of a kernel; return how many instructions that took."""
        task = executable.kernel.tasks[number]
        return launch.launch(executable.objects[task.binary], task.entry, groups, size, arguments)

    def synchronize(self) -> None:
        with self._lock:
            self.waits += 1

    def close(self) -> None:
        """Whoever still uses the device gets errors about memory."""
        with self._lock:
            self.memory.close()


def open(*, device_memory_bytes: int | None = None, **options: Any) -> Emulator:
    """As the modules of devices have it. Options of drivers mean nothing here."""
    return Emulator(min(device_memory_bytes or CAPACITY, CAPACITY))

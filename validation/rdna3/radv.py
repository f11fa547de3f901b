"""A device of target "vulkan" whose shaders AMD's Vulkan driver of Mesa, RADV, compiles for gfx1100, and the emulator runs.

The driver works in front of a null device, see `spirograd.survey.drivers`. It is asked for subgroups of the emulator's size: 32 lanes, as
on devices, or 64, for which there are neither ballots nor products of matrices.
"""

from __future__ import annotations

import atexit
import functools
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from spirograd.base.artifact import CompiledKernel
from spirograd.base.device import DeviceInfo
from spirograd.base.records import replace
from spirograd.runtime.devices.artifacts import check_target
from spirograd.survey.drivers import DRIVERS
from spirograd.survey.vulkan import VulkanCompiler
from validation.drivers.setups import SID
from validation.rdna3 import aco, launch
from validation.rdna3.device import CAPACITY, Emulator
from validation.rdna3.execute import EmulatorError, Program
from validation.rdna3.memory import Memory
from validation.rdna3.waves import LANES

DRIVER = DRIVERS["radv-gfx1100"]
# The upper half of the addresses of which shaders get the lower half. All buffers lie there.
_FIRST_ADDRESS = 0xFFFF_8000_0000_0000
# The driver loads more words at a time than it needs.
_CONSTANT_BYTES = 512


@dataclass(eq=False)
class Shader:
    """A task's machine code in the emulator's memory."""

    layout: aco.Layout
    program: Program
    resources: launch.Resources


@dataclass(eq=False)
class Executable:
    """A kernel with the shaders of its tasks."""

    kernel: CompiledKernel
    shaders: list[Shader]


@functools.cache
def _compiler() -> VulkanCompiler:
    """Start the driver's process, once for all sessions: that takes longer than most shaders take to run."""
    compiler = VulkanCompiler(DRIVER, SID.root)
    atexit.register(compiler.__exit__)
    return compiler


def missing() -> str:
    """Return why the driver cannot be used here, "" if it can."""
    return SID.why_not(DRIVER)


class Radv(Emulator):
    """A `Device`, see `Emulator`."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        super().__init__(capacity)
        self._compiler = _compiler()
        self.info = DeviceInfo("vulkan", f"emulated {self._compiler.driver}", f"NumPy {np.__version__}")
        self.caps = self._compiler.caps
        if self.caps.subgroup_size != LANES:
            self.caps = replace(self.caps, subgroup_size=LANES, subgroup_ballot=False, matrix_shapes=())
        self.memory = Memory(capacity, _FIRST_ADDRESS)

    def load(self, kernel: CompiledKernel) -> Executable:
        check_target(kernel, self.caps.target_name, "the emulator")
        with self._lock:
            shaders = [self._shader(kernel.binaries[task.binary], f"{kernel.name} ({task.name})") for task in kernel.tasks]
        executable = Executable(kernel, shaders)
        weakref.finalize(executable, self._release, [one.program.address for one in shaders]).atexit = False
        return executable

    def _shader(self, module: bytes, name: str) -> Shader:
        statistics, listings = self._compiler.listings(module, name, LANES)
        code = aco.machine_code(listings)
        if len(code) != statistics["Code size"]:
            raise EmulatorError(f"{name}: the driver lists {len(code)} of {statistics['Code size']} bytes of code")
        layout = aco.layout(aco.inputs_of(module), listings)
        base = self.memory.allocate(len(code))
        self.memory.slice(base, len(code))[:] = np.frombuffer(code, np.uint8)
        vectors, shared, scratch = (int(statistics[key]) for key in ("VGPRs", "LDS size", "Scratch size"))
        return Shader(layout, Program(code, base), launch.Resources(base, vectors, shared, scratch))

    def run_task(self, executable: Executable, number: int, groups: int, size: int, arguments: bytes) -> int:
        shader = executable.shaders[number]
        address = self.memory.allocate(_CONSTANT_BYTES)
        try:
            self.memory.slice(address, len(arguments))[:] = np.frombuffer(arguments, np.uint8)
            registers = shader.layout.registers(arguments, address, groups, -(-size // LANES))
            return launch.run(shader.program, self.memory, shader.resources, groups, size, registers)
        finally:
            self.memory.free(address)


def open(*, device_memory_bytes: int | None = None, **options: Any) -> Radv:
    """As the modules of devices have it. Options of drivers mean nothing here."""
    return Radv(min(device_memory_bytes or CAPACITY, CAPACITY))

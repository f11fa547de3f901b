"""Loaded modules: their functions, and the resources that each function takes on the device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from ctypes import byref, c_int, c_void_p

from spirograd.base.artifact import CompiledKernel
from spirograd.base.concurrently import map_concurrently
from spirograd.base.records import dataclass
from spirograd.base.spans import span
from spirograd.base.wording import counted
from spirograd.runtime.devices.gpu.driver import Driver

_ELF = b"\x7fELF"
# CUfunction_attribute, and hipFunction_attribute.
_SHARED_BYTES, _LOCAL_BYTES, _REGISTERS = 1, 3, 4


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources of a task on the device: registers of a thread, bytes of local memory of a thread (spilled registers and local arrays),
    and bytes of shared memory of a group.

    ``resident``: the number of groups that run on a multiprocessor at the same time.
    """

    registers: int
    local_bytes: int
    shared_bytes: int
    resident: int

    def __str__(self) -> str:
        return (
            f"{self.registers} registers and {self.local_bytes} bytes of local memory (spilled registers, local arrays) a thread; "
            f"{self.shared_bytes} bytes of shared memory a group; {counted(self.resident, 'group')} a multiprocessor"
        )


def is_machine_code(image: bytes) -> bool:
    """Return whether a binary is machine code rather than PTX."""
    return image.startswith(_ELF)


def assembled(driver: Driver, current: Callable[[], AbstractContextManager[None]], kernel: CompiledKernel) -> tuple[bytes, ...]:
    """Return the binaries of ``kernel`` as machine code. Threads compile several at the same time. ``current``: makes the context current
    in the thread that calls it."""

    def work(binary: bytes) -> bytes:
        if is_machine_code(binary):
            return binary
        with current(), span(f"assemble {kernel.name}", "driver", bytes=len(binary)):
            return driver.assemble(binary, kernel.name)

    return tuple(map_concurrently(work, kernel.binaries))


def function(driver: Driver, module: c_void_p, entry: str, name: str) -> int:
    """Return a function of a module."""
    handle = c_void_p()
    driver.call(f"find {entry} in kernel {name}", driver.module_function, byref(handle), module, entry.encode())
    return handle.value or 0


def usage(driver: Driver, handle: int, group_size: int) -> Usage:
    """Return the resources of a function, as the driver compiled it, in groups of ``threads`` threads."""

    def attribute(number: int) -> int:
        value = c_int()
        driver.call("read what a kernel uses", driver.function_attribute, byref(value), number, handle)
        return value.value

    resident = c_int()
    driver.call("find how many groups run at a time", driver.occupancy, byref(resident), handle, group_size, 0)
    return Usage(attribute(_REGISTERS), attribute(_LOCAL_BYTES), attribute(_SHARED_BYTES), resident.value)

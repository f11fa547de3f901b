"""Modules: PTX or cubins to functions of the device, and PTX to cubins, by the compiler in the driver."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.wording import counted
from spirograd.runtime.devices.cuda.driver import Driver

_LOG_BYTES = 16384
# CUjit_option: the buffer for errors and its size. CU_JIT_INPUT_PTX.
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6
_PTX = 1
_ELF = b"\x7fELF"
# CUfunction_attribute.
_SHARED_BYTES, _LOCAL_BYTES, _REGISTERS = 1, 3, 4


@dataclass(frozen=True, slots=True)
class Usage:
    """What a task takes on the device: registers of a thread, bytes of memory that a thread has for itself (spilled registers and local
    arrays), bytes of shared memory of a group. ``resident``: how many groups run on a multiprocessor at the same time."""

    registers: int
    local_bytes: int
    shared_bytes: int
    resident: int

    def __str__(self) -> str:
        return (
            f"{self.registers} registers and {self.local_bytes} bytes of local memory (spilled registers, local arrays) a thread; "
            f"{self.shared_bytes} bytes of shared memory a group; {counted(self.resident, 'group')} a multiprocessor"
        )


class _Log:
    """Options for the driver's compiler with a buffer for its messages."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(_LOG_BYTES)
        self.options = (c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        self.values = (c_void_p * 2)(ctypes.addressof(self._buffer), _LOG_BYTES)
        self.count = 2

    @property
    def text(self) -> str:
        return self._buffer.value.decode(errors="replace").strip()


def load(driver: Driver, image: bytes, name: str) -> c_void_p:
    """A module of PTX text or a cubin; ``name`` is the kernel's, for errors. Raises SpirogradRuntimeError with the compiler's messages."""
    module, log = c_void_p(), _Log()
    code = driver.module_load(byref(module), _image(image), log.count, log.options, log.values)
    if code:
        _refuse(driver, code, f"load kernel {name}", log)
    return module


def link(driver: Driver, ptx: bytes, name: str) -> bytes:
    """The cubin of PTX text for the device of the current context. Raises as `load`."""
    state, log = c_void_p(), _Log()
    driver.call("start the linker", driver.link_create, log.count, log.options, log.values, byref(state))
    try:
        text = _image(ptx)
        code = driver.link_add(state, _PTX, text, len(text), name.encode(), 0, None, None)
        cubin, size = c_void_p(), c_size_t()
        code = code or driver.link_complete(state, byref(cubin), byref(size))
        if code:
            _refuse(driver, code, f"compile kernel {name}", log)
        return ctypes.string_at(cubin, size.value)
    finally:
        driver.link_destroy(state)


def is_cubin(image: bytes) -> bool:
    """Whether a binary is machine code rather than PTX."""
    return image.startswith(_ELF)


def function(driver: Driver, module: c_void_p, entry: str, name: str) -> int:
    """A function of a module."""
    handle = c_void_p()
    driver.call(f"find {entry} in kernel {name}", driver.module_function, byref(handle), module, entry.encode())
    return handle.value or 0


def usage(driver: Driver, handle: int, group_size: int) -> Usage:
    """What a function takes, as the driver compiled it, in groups of so many threads."""

    def attribute(number: int) -> int:
        value = c_int()
        driver.call("read what a kernel uses", driver.function_attribute, byref(value), number, handle)
        return value.value

    resident = c_int()
    driver.call("find how many groups run at a time", driver.occupancy, byref(resident), handle, group_size, 0)
    return Usage(attribute(_REGISTERS), attribute(_LOCAL_BYTES), attribute(_SHARED_BYTES), resident.value)


def _image(image: bytes) -> bytes:
    return image if is_cubin(image) else image + b"\0"


def _refuse(driver: Driver, code: int, what: str, log: _Log) -> Any:
    """Raise what the error means, with the compiler's messages."""
    try:
        driver.check(code, what)
    except SpirogradRuntimeError as error:
        if not log.text:
            raise
        raise type(error)(f"{error}\n{log.text}") from None

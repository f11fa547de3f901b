"""Compilation of PTX to machine code by the compiler in NVIDIA's driver."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_void_p

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.runtime.devices.gpu.driver import Driver
from spirograd.runtime.devices.gpu.modules import is_machine_code

_LOG_BYTES = 16384
# CUjit_option: the buffer for errors and its size. CU_JIT_INPUT_PTX.
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6
_PTX = 1


class _Log:
    """The options of the driver's compiler, with a buffer for its messages."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(_LOG_BYTES)
        self.options = (c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        self.values = (c_void_p * 2)(ctypes.addressof(self._buffer), _LOG_BYTES)
        self.count = 2

    @property
    def text(self) -> str:
        return self._buffer.value.decode(errors="replace").strip()


def load(driver: Driver, image: bytes, name: str) -> c_void_p:
    """Load a module of PTX text or a cubin; ``name`` is the kernel's.

    Raises SpirogradRuntimeError with the compiler's messages.
    """
    module, log = c_void_p(), _Log()
    code = driver.module_load(byref(module), _image(image), log.count, log.options, log.values)
    if code:
        _refuse(driver, code, f"load kernel {name}", log)
    return module


def link(driver: Driver, ptx: bytes, name: str) -> bytes:
    """Return the cubin of PTX text for the device of the current context. Raises the same errors as `load`."""
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


def _image(image: bytes) -> bytes:
    return image if is_machine_code(image) else image + b"\0"


def _refuse(driver: Driver, code: int, what: str, log: _Log) -> None:
    """Raise the error of a code, with the compiler's messages."""
    try:
        driver.check(code, what)
    except SpirogradRuntimeError as error:
        if not log.text:
            raise
        raise type(error)(f"{error}\n{log.text}") from None

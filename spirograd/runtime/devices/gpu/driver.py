"""The driver of a GPU through ctypes: the functions that CUDA and HIP have in common, and the meaning of their error codes.

Both have the same functions under different names, with the same arguments: `SIGNATURES`. `CudaDriver` (cuda.py) and `HipDriver` (hip.py)
provide the names and the differences.
"""

from __future__ import annotations

import ctypes
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from ctypes import CDLL, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from spirograd.base import knobs
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.runtime.devices.gpu.features import Features
from spirograd.runtime.devices.streamed import DeviceLost

if TYPE_CHECKING:
    from _ctypes import CFuncPtr

HANDLE, ADDRESS = c_void_p, c_uint64
OUT = c_void_p  # pointers to results, as `ctypes.byref` gives them
# Function -> types of its arguments. Each returns an error code.
SIGNATURES: dict[str, tuple[object, ...]] = {
    "init": (c_uint,),
    "synchronize": (),
    "driver_version": (OUT,),
    "device_count": (OUT,),
    "device_get": (OUT, c_int),
    "device_name": (c_char_p, c_int, c_int),
    "device_memory": (OUT, c_int),
    "device_attribute": (OUT, c_int, c_int),
    "stream_create": (OUT, c_uint),
    "stream_destroy": (HANDLE,),
    "stream_wait": (HANDLE, HANDLE, c_uint),
    "capture_begin": (HANDLE, c_int),
    "capture_end": (HANDLE, OUT),
    "capture_state": (HANDLE, OUT),
    "graph_destroy": (HANDLE,),
    "graph_make": (OUT, HANDLE, c_uint64),
    "graph_launch": (HANDLE, HANDLE),
    "graph_unload": (HANDLE,),
    "pointer_attribute": (OUT, c_int, ADDRESS),
    "event_create": (OUT, c_uint),
    "event_destroy": (HANDLE,),
    "event_record": (HANDLE, HANDLE),
    "event_elapsed": (OUT, HANDLE, HANDLE),
    "pool_create": (OUT, c_void_p),
    "pool_destroy": (HANDLE,),
    "pool_set": (HANDLE, c_int, c_void_p),
    "pool_trim": (HANDLE, c_size_t),
    "allocate_from_pool": (OUT, c_size_t, HANDLE, HANDLE),
    "free_on_stream": (ADDRESS, HANDLE),
    "host_allocate": (OUT, c_size_t, c_uint),
    "host_free": (c_void_p,),
    "copy_to_device": (ADDRESS, c_void_p, c_size_t, HANDLE),
    "copy_to_host": (c_void_p, ADDRESS, c_size_t, HANDLE),
    "copy": (ADDRESS, ADDRESS, c_size_t, HANDLE),
    "fill": (ADDRESS, c_uint, c_size_t, HANDLE),
    "module_unload": (HANDLE,),
    "module_function": (OUT, HANDLE, c_char_p),
    "function_attribute": (OUT, c_int, HANDLE),
    "occupancy": (OUT, HANDLE, c_int, c_size_t),
}
# Called from compiled code only (`call.py`), which is linked with their addresses.
CALLED = ("launch", "stream_query", "event_query", "event_record", "graph_launch", "capture_state")

SUCCESS, OUT_OF_MEMORY, NO_DEVICE, NOT_READY = 0, 2, 100, 600
# After these errors no later call succeeds: a kernel caused an error that ends its context, or the device is gone.
_FATAL = frozenset((4, 46, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999))
_KERNEL_ERRORS = frozenset((700, 714, 715, 716, 717, 718, 719))
_TIMEOUT = 702
_DEVICE_OF_POINTER = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, and HIP's
_start_lock = threading.Lock()


class Driver(ABC):
    """The driver of this process: its functions under the names of `SIGNATURES` and of ``own``, and ``addresses`` of those that compiled
    code calls. `take` gives it.

    ``api``: its name for users. ``arch``: the name of the back end. ``knob``: the environment variable that names the library.
    ``symbols``: name in `SIGNATURES` or `CALLED` -> symbol. ``own``: what only this one has, with the types of its arguments.
    ``called``: what only its ``switch`` calls. ``optional``: functions that older libraries lack, as ``own``; they are None there.
    ``missing``: what to say where there is no library, after which the reason comes. ``needed``: what a library that lacks a function must
    be replaced by.

    ``switch``: a module of `word_functions`: ``sg_enter(context)``, which makes a context current in the calling thread and returns 0, or a
    positive number for ``sg_leave``, which undoes that, or an error code, negated; and ``sg_forget()``, which has the driver forget that it
    answered NOT_READY. ``launch_end``: what ends the list of ``extra`` of a launch. ``dlpack_type``: DLDeviceType.
    ``forked_code``: how ``init`` fails in a fork of a process that used the driver, if it finds out.
    """

    api: ClassVar[str]
    arch: ClassVar[str]
    knob: ClassVar[str]
    missing: ClassVar[str]
    needed: ClassVar[str]
    symbols: ClassVar[Mapping[str, str]]
    own: ClassVar[Mapping[str, tuple[str, tuple[Any, ...]]]]
    called: ClassVar[Mapping[str, str]]
    optional: ClassVar[Mapping[str, tuple[str, tuple[object, ...]]]] = {}
    switch: ClassVar[ModuleType]
    launch_end: ClassVar[int]
    dlpack_type: ClassVar[int]
    forked_code: ClassVar[int | None]

    def __init__(self, library: CDLL, path: str) -> None:
        self.path = path
        self.process = os.getpid()
        functions = {name: (self.symbols[name], arguments) for name, arguments in SIGNATURES.items()} | dict(self.own)
        for name, (symbol, arguments) in functions.items():
            function = self.find(library, symbol)
            function.argtypes, function.restype = arguments, c_int
            setattr(self, name, function)
        for name, (symbol, arguments) in self.optional.items():
            address = getattr(library, symbol, None)
            if address is not None:
                address.argtypes, address.restype = arguments, c_int
            setattr(self, name, address)
        called = {name: self.symbols[name] for name in CALLED} | dict(self.called)
        self.addresses = {name: ctypes.cast(self.find(library, symbol), c_void_p).value or 0 for name, symbol in called.items()}

    def clock_hz(self, ordinal: int) -> int | None:
        """Return the frequency of the clock, see `HasClock`."""
        return None

    @property
    def reads_flags(self) -> bool:
        """Return whether graphs can have loops whose condition lies in memory of the device."""
        return False

    def __getattr__(self, name: str) -> Callable[..., int]:  # Declares the functions to type checkers.
        raise AttributeError(name)

    # --- differences between the drivers ---

    @classmethod
    @abstractmethod
    def libraries(cls) -> tuple[str, ...]:
        """Return the paths of the driver's library, best first."""

    @abstractmethod
    def stream(self, handle: int) -> int:
        """Return the driver's handle of a stream that another library names: 1 is the one that CUDA's runtime uses by default."""

    @abstractmethod
    def describe(self, code: int) -> str:
        """Return an error code as the driver explains it: ``CUDA_ERROR_INVALID_VALUE (invalid argument)``."""

    @abstractmethod
    def version(self) -> str:
        """Return the version of the API that the driver implements, such as "13.0"."""

    @abstractmethod
    def context(self, ordinal: int) -> int:
        """Return the argument of ``@sg_enter`` for a device. It is kept when a session ends: creating one may take up to a second."""

    @abstractmethod
    def enter(self, context: int) -> int:
        """Make a context current, like ``@sg_enter``."""

    @abstractmethod
    def leave(self, entered: int) -> None:
        """Undo `enter`, like ``@sg_leave``."""

    @abstractmethod
    def drop_context(self, ordinal: int) -> None:
        """Drop the context of a device, because it is broken."""

    @abstractmethod
    def forget(self) -> None:
        """Have the driver forget an error that was handled, where it would report it to other callers."""

    @abstractmethod
    def load(self, image: bytes, name: str) -> c_void_p:
        """Load a module of an image; ``name`` is the kernel's.

        Raises SpirogradRuntimeError, with the compiler's messages if there are any.
        """

    def reserve_stack(self, nbytes: int) -> None:
        """Reserve ``nbytes`` of stack for each thread of kernels of the current context, for calls of unknown depth."""
        raise NotImplementedError("kernels whose functions call themselves are refused while compiling")

    @abstractmethod
    def assemble(self, image: bytes, name: str) -> bytes:
        """Return machine code for the device of the current context. Raises the same errors as `load`."""

    @abstractmethod
    def unusable(self, ordinal: int) -> str:
        """Return the reason why a device cannot be used, or ""."""

    @abstractmethod
    def query(self, ordinal: int) -> Features:
        """Return the features of a device for which `unusable` returns ""."""

    # --- common to both drivers ---

    def call(self, what: str, function: Callable[..., int], *args: object) -> None:
        """Call one of the functions; raise the same errors as `check`."""
        code = function(*args)
        if code:
            self.check(code, what)

    def check(self, code: int, what: str) -> None:
        """Raise OutOfDeviceMemory, DeviceLost or SpirogradRuntimeError if ``code`` is an error. ``what``: the attempted operation."""
        if not code:
            return
        self.forget()
        if code == OUT_OF_MEMORY:
            raise OutOfDeviceMemory(f"{self.api}: out of memory when trying to {what}")
        message = f"{self.api}: cannot {what}: {self.describe(code)}"
        raise DeviceLost(message + _cause(code)) if code in _FATAL else SpirogradRuntimeError(message)

    def owner(self, address: int) -> int | None:
        """Return the number of the device whose memory contains an address; None if the driver does not know it."""
        ordinal = c_int(-1)
        if self.pointer_attribute(byref(ordinal), _DEVICE_OF_POINTER, address):
            self.forget()
            return None
        return ordinal.value

    def count(self) -> int:
        """Return the number of devices."""
        number = c_int()
        self.call("count the devices", self.device_count, byref(number))
        return number.value

    def handle(self, ordinal: int) -> int:
        """Return the driver's handle of a device."""
        device = c_int()
        self.call(f"open device {ordinal}", self.device_get, byref(device), ordinal)
        return device.value

    def name(self, ordinal: int) -> str:
        """Return the name of a device."""
        text = ctypes.create_string_buffer(256)
        self.call(f"read the name of device {ordinal}", self.device_name, text, len(text), self.handle(ordinal))
        return text.value.decode(errors="replace")

    def memory(self, ordinal: int) -> int:
        """Return the bytes of memory of a device."""
        total = c_size_t()
        self.call(f"read the memory of device {ordinal}", self.device_memory, byref(total), self.handle(ordinal))
        return total.value

    def attribute(self, ordinal: int, number: int) -> int:
        """Return an attribute of a device."""
        value = c_int()
        self.call(f"read attribute {number} of device {ordinal}", self.device_attribute, byref(value), number, self.handle(ordinal))
        return value.value

    def find(self, library: CDLL, symbol: str) -> CFuncPtr:
        """Return a function of the library. Raises SpirogradRuntimeError if the library is too old to have it."""
        try:
            function: CFuncPtr = getattr(library, symbol)
            return function
        except AttributeError:
            raise SpirogradRuntimeError(f"the {self.api} driver {self.path} lacks {symbol}: {self.needed}") from None

    @classmethod
    def forked(cls) -> str:
        """Return the message for a fork of a process that used the driver."""
        return f"{cls.api} does not survive a fork; start the process with the 'spawn' method, or call init in the child only"

    @classmethod
    def take(cls) -> Driver:
        """Return the driver, started.

        Raises SpirogradRuntimeError if there is no driver or no device, or in a fork of a process that used it.
        """
        path = knobs.get(cls.knob)
        with _start_lock:
            driver = _started.get((cls, path))
            if driver is None:
                driver = _started[cls, path] = cls._start(path)
        if driver.process != os.getpid():
            raise SpirogradRuntimeError(cls.forked())
        return driver

    @classmethod
    def _start(cls, path: str) -> Driver:
        problems = []
        for candidate in (path,) if path else cls.libraries():
            try:
                library = ctypes.CDLL(candidate)
            except OSError as error:
                problems.append(str(error))
                continue
            driver = cls(library, candidate)
            code = driver.init(0)
            if code == NO_DEVICE:
                raise SpirogradRuntimeError(f"the {cls.api} driver is installed, but finds no device")
            if code == cls.forked_code:
                raise SpirogradRuntimeError(cls.forked())
            driver.check(code, "start the driver")
            return driver
        raise SpirogradRuntimeError(f"{cls.missing}: {problems[0]}")


# Drivers by class and path. Compiled functions hold their addresses, so drivers live as long as the process.
_started: dict[tuple[type[Driver], str], Driver] = {}


def _cause(code: int) -> str:
    if code in _KERNEL_ERRORS:
        return ", most often because a kernel accessed memory outside of its arrays (`init(debug=True)` finds where)"
    return ", because a kernel ran too long" if code == _TIMEOUT else ""

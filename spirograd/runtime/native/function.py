"""Built-in functions that launch kernels by records of prepared launches. Their code is linked once in a process, at the first need."""

from __future__ import annotations

import ctypes
import logging
import platform
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from spirograd.base import validity
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.options import CompileOptions
from spirograd.base.records import dataclass
from spirograd.llvmgen.toolchain import Library, compile_module, host_caps, link
from spirograd.runtime.device import CodeCache
from spirograd.runtime.generations import tick
from spirograd.runtime.native.code import FUNCTION, OBJECTS, PYTHON_API, module
from spirograd.runtime.native.recording import Prepared
from spirograd.runtime.native.steps import STEPS

# A function of the arguments of a call, as a tuple: launches and returns the result, or does nothing and returns NotImplemented.
Launch = Callable[[tuple[Any, ...]], Any]

_METH_O = 0x8
_END = bytes(8)  # a record of no bytes
_lock = threading.Lock()
_code: list[Code | None] = []

logger = logging.getLogger("spirograd")


class _MethodDef(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


@dataclass(slots=True, eq=False)
class Code:
    """The linked code. ``steps``: addresses, by name. Functions refer to ``method`` without keeping it alive."""

    steps: dict[str, int]
    method: _MethodDef
    library: Library

    def function(self, records: Sequence[Prepared]) -> Launch:
        """The function that launches by these records: by the first one that fits."""
        new: Any = ctypes.pythonapi.PyCFunction_NewEx
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        owner = (b"".join([prepared.record for prepared in records]) + _END, *[prepared.objects for prepared in records])
        launch: Launch = new(ctypes.addressof(self.method), owner, None)
        return launch


def code(cache: CodeCache | None) -> Code | None:
    """The code, from ``cache`` if it is there; None if this interpreter or system cannot use it. Takes no lock once it is linked: the
    garbage collector may call this."""
    if not _code:
        with _lock:
            if not _code:
                _code.append(_build(cache) if _is_possible() else None)
    return _code[0]


def _is_possible() -> bool:
    """Whether this interpreter is one that the code is written for: objects stay where they are, and one thread runs at a time."""
    has_lock: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return platform.python_implementation() == "CPython" and has_lock()


def _build(cache: CodeCache | None) -> Code | None:
    # As it is written: optimised it takes as long to launch, and ten times as long to compile.
    text, caps, options = module(), host_caps(), CompileOptions(opt_level=0)

    def compiled() -> bytes:
        return compile_module(text, caps, options, need=0).binary

    binary = compiled() if cache is None else cache.code("\0".join((text, repr(caps), repr(options))), compiled)
    functions = {name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in PYTHON_API}
    objects = {f"py_{name}": id(value) for name, value in OBJECTS.items()}
    others = {"sg_next": id(tick), "sg_validity": validity.ADDRESS}
    try:
        library = link(binary, [FUNCTION, *(f"sg_{name}" for name in STEPS)], functions | objects | others)
    except SpirogradRuntimeError as error:
        logger.warning(f"all launches go through Python, which takes some microseconds more: {error}")
        return None
    method = _MethodDef(b"launch", library.addresses[FUNCTION], _METH_O, None)
    return Code({name: library.addresses[f"sg_{name}"] for name in STEPS}, method, library)

"""Calling compiled kernels from Python at the cost of a built-in function: a METH_FASTCALL entry, itself compiled.

ctypes spends 300 to 700 ns on a call with two arguments; this takes 100. Only functions of the stable ABI are used, so no layout of any
Python object is assumed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

ENTRY = "sg_launch"
_PYTHON_API = ("PyBytes_AsString", "PyLong_AsVoidPtr", "PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef")
_METH_FASTCALL = 0x80

# self: address of the kernel's driver; arguments: the block (bytes), the address of the pool. The GIL is released meanwhile.
TEXT = f"""declare ptr @PyBytes_AsString(ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
@sg_none = external global i8
define ptr @{ENTRY}(ptr %self, ptr %args, i64 %count) nounwind {{
  %block.object = load ptr, ptr %args
  %second = getelementptr ptr, ptr %args, i64 1
  %pool.object = load ptr, ptr %second
  %block = call ptr @PyBytes_AsString(ptr %block.object)
  %bad = icmp eq ptr %block, null
  br i1 %bad, label %error, label %go
go:
  %pool = call ptr @PyLong_AsVoidPtr(ptr %pool.object)
  %driver = call ptr @PyLong_AsVoidPtr(ptr %self)
  %thread = call ptr @PyEval_SaveThread()
  call void %driver(ptr %block, ptr %pool)
  call void @PyEval_RestoreThread(ptr %thread)
  call void @Py_IncRef(ptr @sg_none)
  ret ptr @sg_none
error:
  ret ptr null
}}
"""


class _MethodDef(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


class Entry:
    """The compiled entry at ``address``, which all kernels share; functions that `caller` makes refer to it."""

    def __init__(self, address: int) -> None:
        self.method = _MethodDef(b"launch", address, _METH_FASTCALL, None)

    def caller(self, driver: int) -> Callable[[bytes, int], None]:
        """A built-in function `(block, pool address)` that runs the compiled `void driver(ptr block, ptr pool)`.

        It raises TypeError if ``block`` is not bytes. The code behind ``driver``, and this object, must outlive it.
        """
        new: Any = ctypes.pythonapi.PyCFunction_NewEx
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        function: Callable[[bytes, int], None] = new(ctypes.addressof(self.method), driver, None)
        return function


def imports() -> dict[str, int]:
    """Addresses of what `TEXT` refers to."""
    functions = {name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in _PYTHON_API}
    return {**functions, "sg_none": id(None)}

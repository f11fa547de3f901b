"""Calling compiled kernels from Python at the cost of a built-in function: a METH_FASTCALL entry, itself compiled.

ctypes spends 300 to 700 ns on a call with two arguments; this takes 100. Only functions of the stable ABI are used, so no layout of any
Python object is assumed.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

from spirograd.base.options import CompileOptions
from spirograd.llvmgen.toolchain import Library, compile_module, host_caps, link

_ENTRY = "sg_launch"
_PYTHON_API = ("PyBytes_AsString", "PyLong_AsVoidPtr", "PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef")
_METH_FASTCALL = 0x80
_entry_lock = threading.Lock()

# self: address of the kernel's driver; arguments: the block (bytes), the address of the pool. The GIL is released meanwhile.
_TEXT = f"""declare ptr @PyBytes_AsString(ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
@sg_none = external global i8
define ptr @{_ENTRY}(ptr %self, ptr %args, i64 %count) nounwind {{
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


@functools.cache
def _entry() -> tuple[_MethodDef, Library]:
    code = compile_module(_TEXT, host_caps(), CompileOptions(opt_level=1))
    imports = {name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in _PYTHON_API}
    library = link(code.binary, (_ENTRY,), {**imports, "sg_none": id(None)})
    return _MethodDef(b"launch", library.addresses[_ENTRY], _METH_FASTCALL, None), library


def caller(driver: int) -> Callable[[bytes, int], None]:
    """A built-in function `(block, pool address)` that runs the compiled `void driver(ptr block, ptr pool)`.

    It raises TypeError if ``block`` is not bytes. The code behind ``driver`` must outlive it.
    """
    new: Any = ctypes.pythonapi.PyCFunction_NewEx
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    with _entry_lock:  # a second entry, made by another thread at the same time, would replace the one that this function refers to
        entry = _entry()[0]
    function: Callable[[bytes, int], None] = new(ctypes.addressof(entry), driver, None)
    return function

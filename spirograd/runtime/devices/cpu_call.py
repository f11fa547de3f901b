"""Calls of compiled kernels from Python at the cost of a built-in function: a compiled METH_FASTCALL entry.

ctypes spends 300 to 700 ns on a call with two arguments; this entry takes 100 ns. It only uses functions of the stable ABI, so it assumes
no layout of any Python object.
"""

from __future__ import annotations

from collections.abc import Callable

from spirograd.runtime import builtins

ENTRY = "sg_launch"
_PYTHON_API = ("PyBytes_AsString", "PyLong_AsVoidPtr", "PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef")

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


class Entry:
    """The compiled entry at ``address``, which all kernels share. Functions returned by `caller` refer to it."""

    def __init__(self, address: int) -> None:
        self.method = builtins.Method(b"launch", address, builtins.METH_FASTCALL)

    def caller(self, driver: int) -> Callable[[bytes, int], None]:
        """Return a built-in function `(block, pool address)` that runs the compiled `void driver(ptr block, ptr pool)`.

        It raises TypeError if ``block`` is not bytes. The code of ``driver`` and this object must outlive it.
        """
        function: Callable[[bytes, int], None] = self.method.function(driver)
        return function


def imports() -> dict[str, int]:
    """Return the addresses of the symbols that `TEXT` refers to."""
    return {**builtins.addresses(_PYTHON_API), "sg_none": id(None)}

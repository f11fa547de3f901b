"""Compiles HLSL to DXIL, the code of DirectX 12, by Microsoft's compiler: `python -m validation.dxc < kernel.hlsl`.

The compiler is a library of COM objects, which the package compushady-lrtu carries for Linux. A process compiles one text, so that a crash
ends that process only. The exit status is 1 if the text is refused, and the messages are on the standard error.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import uuid
from pathlib import Path

_LIBRARY = "backends/libdxcompiler_x86_64.so"
_COMPILER = uuid.UUID("73e22d93-e6ce-47f3-b5bf-f0664f39c1b0")  # CLSID_DxcCompiler
_COMPILER_3, _RESULT = uuid.UUID("228b4687-5a6a-4730-900c-9702b2203f54"), uuid.UUID("58346cda-dde7-4497-9461-6f87af5e0659")
# The numbers of methods in the tables of their interfaces; the first three are those of IUnknown.
_COMPILE, _GET_STATUS, _GET_RESULT, _GET_ERRORS = 3, 3, 4, 5
_POINTER, _SIZE = 3, 4  # of IDxcBlob
_UTF8 = 65001
# Validation of the result takes another library, which exists for Windows only.
_OPTIONS = ("-T", "cs_6_6", "-E", "main", "-enable-16bit-types", "-HV", "2021", "-Vd")


class _Text(ctypes.Structure):
    _fields_ = (("pointer", ctypes.c_char_p), ("size", ctypes.c_size_t), ("encoding", ctypes.c_uint))


def library() -> Path | None:
    """Return the compiler, None if the package is not installed."""
    found = importlib.util.find_spec("compushady")
    folders = list(found.submodule_search_locations or ()) if found else []
    return next((path for folder in folders if (path := Path(folder) / _LIBRARY).exists()), None)


def _method(of: ctypes.c_void_p, number: int, result: type, *arguments: type) -> ctypes._FuncPointer:  # type: ignore[name-defined]
    """Return a method of a COM object."""
    table = ctypes.cast(of, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p))).contents
    return ctypes.CFUNCTYPE(result, ctypes.c_void_p, *arguments)(table[number])


def _blob(of: ctypes.c_void_p) -> bytes:
    if not of:
        return b""
    pointer = _method(of, _POINTER, ctypes.c_void_p)(of)
    return ctypes.string_at(pointer, _method(of, _SIZE, ctypes.c_size_t)(of))


def compiled(text: bytes, path: Path) -> tuple[bytes, str]:
    """Return the DXIL container of a compute shader ``main``, empty if it is refused, and the compiler's messages."""
    compiler, result, blob = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    create = ctypes.CDLL(str(path)).DxcCreateInstance
    if create(_COMPILER.bytes_le, _COMPILER_3.bytes_le, ctypes.byref(compiler)):
        return b"", f"{path} has no IDxcCompiler3"
    options = (ctypes.c_wchar_p * len(_OPTIONS))(*_OPTIONS)
    pointer = ctypes.c_void_p
    compile_ = _method(compiler, _COMPILE, ctypes.c_long, pointer, pointer, ctypes.c_uint, pointer, ctypes.c_char_p, pointer)
    source = _Text(text, len(text), _UTF8)
    status = compile_(
        compiler, ctypes.addressof(source), ctypes.addressof(options), len(_OPTIONS), None, _RESULT.bytes_le, ctypes.addressof(result)
    )
    if not result:
        return b"", f"the compiler ended with status {status:#x}"
    said = ctypes.c_int()
    _method(result, _GET_STATUS, ctypes.c_long, pointer)(result, ctypes.addressof(said))
    _method(result, _GET_ERRORS, ctypes.c_long, pointer)(result, ctypes.addressof(blob))
    messages = _blob(blob).decode(errors="replace").rstrip("\0")
    if said.value:
        return b"", messages
    _method(result, _GET_RESULT, ctypes.c_long, pointer)(result, ctypes.addressof(blob))
    return _blob(blob), messages


def main() -> int:
    """Compile the standard input."""
    path = library()
    if path is None:
        sys.exit("there is no compiler: pip install compushady-lrtu")
    code, messages = compiled(sys.stdin.buffer.read(), path)
    print(messages, file=sys.stderr)
    return 0 if code else 1


if __name__ == "__main__":
    sys.exit(main())

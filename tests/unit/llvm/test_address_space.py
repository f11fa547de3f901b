"""Code is linked whatever the address space of the process looks like: an object whose sections lie far apart would end the process."""

import subprocess
import sys

import pytest

PROGRAM = '''
import ctypes
from spirograd.base.options import CompileOptions
from spirograd.llvmgen import toolchain

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def reserve(pages):
    """Address space without memory, as high up as there is room."""
    return libc.mmap(None, pages * 4096, 0, 0x4022, -1, 0)


table = ", ".join(f"double {i}.5" for i in range(1, 4097))
text = f"""@table = internal constant [4096 x double] [{table}]
define void @f(ptr %p, i64 %i) {{
  %q = getelementptr [4096 x double], ptr @table, i64 0, i64 %i
  %x = load double, ptr %q
  store double %x, ptr %p
  ret void
}}
"""
code = toolchain.compile_module(text, toolchain.host_caps(), CompileOptions(opt_level=1)).binary
toolchain.link(code, ("f",), {})
rows = [reserve(3) for _ in range(1000)]
wall = reserve(1 << 24)
for row in rows[::2]:
    libc.munmap(row + 4096, 4096)  # a page of code fits here, the table does not
while reserve(8) > wall:
    pass
for _ in range(20):
    library = toolchain.link(code, ("f",), {})
    out = ctypes.c_double()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library.addresses["f"])(ctypes.addressof(out), 7)
    assert out.value == 8.5
'''


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's mmap")
@pytest.mark.needs("cpu")
def test_code_and_tables_stay_together():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]

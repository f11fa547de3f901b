"""The end of the stack, as compiled code finds it on each system, and in each thread of this one."""

from __future__ import annotations

import ctypes
import sys
import threading
from pathlib import Path

import pytest

from spirograd.base.options import CompileOptions
from spirograd.llvmgen import abi
from spirograd.llvmgen.stack_limit import stack_limit_module
from spirograd.llvmgen.toolchain import compile_module, host_caps
from spirograd.runtime.devices import cpu_pool


@pytest.mark.parametrize("system", ["Linux", "Darwin", "Windows", "FreeBSD"])
def test_code_for_each_system(system: str) -> None:
    assert compile_module(stack_limit_module(system), host_caps(), CompileOptions(opt_level=0), need=0).binary


def test_each_thread_has_its_own() -> None:
    limit = ctypes.CFUNCTYPE(ctypes.c_uint64)(cpu_pool.code().entries[abi.STACK_LIMIT])
    found: dict[int, int] = {}

    def look(size: int) -> None:
        found[size] = limit()

    for size in (256 << 10, 1 << 20):
        before = threading.stack_size(size)
        thread = threading.Thread(target=look, args=(size,))
        thread.start()
        thread.join()
        threading.stack_size(before)
    found[0] = limit()
    assert len(set(found.values())) == 3
    if sys.platform == "linux":
        mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
        (top,) = [int(fields[0].split("-")[1], 16) for fields in mapped if fields[-1] == "[stack]"]
        if threading.current_thread() is threading.main_thread():
            assert 0 < top - found[0] <= 1 << 26

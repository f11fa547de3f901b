"""The CPU device and its worker pool: memory, options, many launches, many callers, fork and exit."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from unit.llvm.llvm_programs import Program

from spirograd.base.dtypes import f32, i32
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.base.options import CompileOptions
from spirograd.ir import ops
from spirograd.llvmgen.toolchain import compile_module, host_caps, link
from spirograd.runtime.devices import cpu, cpu_pool

_TESTS = Path(__file__).resolve().parents[2]


def _counter(n: int) -> Program:
    """x[i] += 1 over n elements."""
    p = Program("count")
    x = p.buffer(f32)
    p.range_for(0, n, lambda b, i: b.store(x, i, b.emit(ops.add, b.load(x, i), b.const(1.0, f32))))
    p.compile(CompileOptions())
    return p


def _launcher(device: cpu.CpuDevice, p: Program, *values: Any) -> Any:
    assert p.compiled is not None
    executable, block = device.load(p.compiled), p.block(*values)
    return lambda: device.launch(executable, block, [None])


def test_memory_is_zero_aligned_and_shared_with_the_host() -> None:
    device = cpu.open()
    for nbytes in (0, 1, 100, 4096, 1 << 18, (1 << 23) + 5):
        buffer = device.allocate(nbytes)
        assert buffer.address % 256 == 0 and buffer.nbytes >= max(nbytes, 16)
        view = device.host_view(buffer)
        assert not any(view[:64]) and not any(view[-64:])
        device.upload(buffer, 4, memoryview(b"abcdefgh"))
        assert ctypes.string_at(buffer.address + 4, 8) == b"abcdefgh" == bytes(view[4:12])
        device.fill(buffer, 8, 8, 0x01020304)
        out = bytearray(12)
        device.download(buffer, 4, memoryview(out))
        assert out == b"abcd" + b"\x04\x03\x02\x01" * 2
        device.free(buffer)
        device.free(buffer)


def test_copy_and_wrap() -> None:
    device = cpu.open()
    host = np.arange(100, dtype=np.int32)
    wrapped = device.wrap(host.ctypes.data, host.nbytes)
    buffer = device.allocate(host.nbytes)
    device.copy(buffer, 0, wrapped, 40, 200)
    np.testing.assert_array_equal(np.frombuffer(device.host_view(buffer), np.int32)[:50], np.arange(10, 60))
    device.upload(wrapped, 0, memoryview(b"\xff\xff\xff\xff"))
    assert host[0] == -1
    with pytest.raises(SpirogradRuntimeError, match="outside"):
        device.copy(buffer, 0, wrapped, 300, 200)
    device.free(wrapped)
    assert host[1] == 1


def test_out_of_memory_leaves_the_device_usable() -> None:
    device = cpu.open(device_memory_bytes=1 << 20)
    kept = device.allocate(700_000)
    with pytest.raises(OutOfDeviceMemory, match="700000 bytes"):
        device.allocate(700_000)
    device.free(kept)
    device.free(device.allocate(700_000))
    with pytest.raises(OutOfDeviceMemory):
        cpu.open().allocate(1 << 50)
    assert device.caps.max_allocation == 1 << 20


def test_freed_memory_goes_back_to_the_system() -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    device = cpu.open()
    before = resident()
    buffer = device.allocate(1 << 26)
    assert resident() - before < 1 << 25, "pages must come when touched"
    device.fill(buffer, 0, buffer.nbytes, 7)
    assert resident() - before > 1 << 25
    device.free(buffer)
    assert resident() - before < 1 << 25


def test_options(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cpu.open(max_threads=3).threads == 3
    monkeypatch.setenv("SG_NUM_THREADS", "2")
    assert cpu.open().threads == 2
    monkeypatch.setenv("SG_NUM_THREADS", "two")
    with pytest.raises(SpirogradRuntimeError, match="SG_NUM_THREADS"):
        cpu.open()
    with pytest.raises(SpirogradRuntimeError, match="max_threads"):
        cpu.open(max_threads=-1)
    with pytest.raises(SpirogradRuntimeError, match="device_memory_bytes"):
        cpu.open(device_memory_bytes=0)
    device = cpu.open(max_threads=1)
    run = _launcher(device, _counter(4), np.zeros(4, np.float32))
    run()
    device.close()
    with pytest.raises(SpirogradRuntimeError, match="closed"):
        run()


def test_bad_code_is_reported() -> None:
    with pytest.raises(SpirogradRuntimeError, match="LLVM rejects"):
        compile_module("define void @f( {", host_caps(), CompileOptions())
    text = "declare void @sg_nowhere()\ndefine void @f() {\n call void @sg_nowhere()\n ret void\n}"
    code = compile_module(text, host_caps(), CompileOptions())
    with pytest.raises(SpirogradRuntimeError, match="cannot link"):
        link(code.binary, ("f",), {})


@pytest.mark.parametrize("spins", [1, 2000])
def test_twenty_thousand_launches(spins: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each element is updated once per launch, with workers that sleep at once and with workers that spin."""
    monkeypatch.setattr(cpu_pool, "_WORKER_SPINS", spins)
    device = cpu.open(max_threads=3)
    device._pool = cpu_pool.WorkerPool(3, cpu_pool.code())
    n, launches = 20_000, 20_000 if spins > 1 else 3000
    x = np.zeros(n, np.float32)
    run = _launcher(device, _counter(n), x)
    for _ in range(launches):
        run()
    assert (x == launches).all()
    device._pool.close()


def test_portable_sleeping() -> None:
    """The pthread variant, used where there is no futex."""
    if sys.platform == "win32":
        pytest.skip("no pthreads")
    functions = cpu_pool.build("pthread")
    device = cpu.open(max_threads=3)
    device._pool = cpu_pool.WorkerPool(3, functions)
    device._imports = functions.entries
    x = np.zeros(20_000, np.float32)
    run = _launcher(device, _counter(20_000), x)
    for k in range(2000):
        run()
        if k % 200 == 0:
            time.sleep(0.002)  # long enough for the workers to fall asleep
    assert (x == 2000).all()
    device._pool.close()
    run()
    assert (x == 2001).all()


def test_work_is_shared() -> None:
    """Chunks of one launch run on several threads: every iteration waits until another one has arrived."""
    p = Program("meet")
    arrived, out = p.buffer(i32), p.buffer(i32)

    def body(b: Any, i: Any) -> None:
        zero = b.const(0)
        b.atomic("add", arrived, zero, b.const(1))
        seen, k = b.begin(i32, i32)
        condition = b.end([b.emit(ops.and_, b.emit(ops.lt, seen, b.const(2)), b.emit(ops.lt, k, b.const(1 << 28)))])
        seen, k = b.begin(i32, i32)
        step = b.end([b.atomic("add", arrived, zero, zero), b.emit(ops.add, k, b.const(1))])
        seen, _ = b.while_([b.const(0), b.const(0)], condition, step)
        b.store(out, i, seen)

    p.range_for(0, 64, body)
    p.compile(CompileOptions())
    counts, seen = np.zeros(1, np.int32), np.zeros(64, np.int32)
    _launcher(cpu.open(max_threads=2), p, counts, seen)()
    assert counts[0] == 64 and seen.min() >= 2


def test_callers_on_many_threads() -> None:
    """One gets the pool, the others run alone; all results are right."""
    device = cpu.open(max_threads=3)
    p = _counter(30_000)
    arrays = [np.zeros(30_000, np.float32) for _ in range(4)]

    def work(x: Any) -> None:
        run = _launcher(device, p, x)
        for _ in range(500):
            run()

    threads = [threading.Thread(target=work, args=(x,)) for x in arrays]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert all((x == 500).all() for x in arrays)


_SCRIPT = """
import os, sys, time
sys.path[:0] = [{root!r}, {tests!r}]
from unit.llvm.test_device import _counter, _launcher
import numpy as np
from spirograd.runtime.devices import cpu
device = cpu.open(max_threads=3)
x = np.zeros(30_000, np.float32)
run = _launcher(device, _counter(30_000), x)
for _ in range(50):
    run()
{body}
"""
_FORK = """
child = os.fork()
for _ in range(100):
    run()
assert (x == 150).all()
if child == 0:
    print("child", device._pool.ready, len(device._pool._workers), flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
print("parent", status, flush=True)
"""
_LATE = """
import atexit
atexit.register(lambda: (run(), print("late", x[0], flush=True)))
import spirograd.runtime.devices.cpu_pool as pool
pool._close_all()
run()
print("now", x[0], flush=True)
"""


def _python(body: str) -> str:
    script = _SCRIPT.format(root=str(_TESTS.parent), tests=str(_TESTS), body=body)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork() -> None:
    """The child gets workers of its own; the parent keeps its own."""
    out = _python(_FORK)
    assert "child True 2" in out and "parent 0" in out


def test_exit_does_not_hang() -> None:
    started = time.perf_counter()
    assert _python("print('bye')") == "bye\n"
    assert time.perf_counter() - started < 30
    assert _python(_LATE) == "now 51.0\nlate 52.0\n"


def test_launch_overhead() -> None:
    """A launch of a small task stays in microseconds; the bound is wide, since machines that run tests are busy."""
    device = cpu.open(max_threads=2)
    x = np.zeros(16, np.float32)
    run = _launcher(device, _counter(16), x)
    best = float("inf")
    for _ in range(20):
        started = time.perf_counter()
        for _ in range(200):
            run()
        best = min(best, (time.perf_counter() - started) / 200)
    assert best < 20e-6, f"{best * 1e6:.2f} us"

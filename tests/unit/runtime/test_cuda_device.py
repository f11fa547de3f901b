"""The CUDA device on a stand-in for the driver: memory, order, launches, argument bytes, fetches, errors. No GPU is needed."""

import contextlib
import gc
import itertools
import os
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
from unit.runtime.ptx_modules import compiled

from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.runtime import loader
from spirograd.runtime.allocations import Memory
from spirograd.runtime.devices.cuda import driver, stream, transfer
from spirograd.runtime.launcher import Launcher


def read(allocation, dtype=np.uint32, offset=0, count=None):
    dtype = np.dtype(dtype)
    raw = bytearray((allocation.nbytes - offset) if count is None else count * dtype.itemsize)
    allocation.read_into(offset, memoryview(raw))
    return np.frombuffer(raw, dtype)


def test_capabilities(cuda):
    caps = cuda.caps
    assert caps.target_name == "cuda" and caps.cpu_name == "sm_90" and caps.buffer_address and caps.int64 and caps.float64
    assert caps.subgroup_size == 32 and caps.max_groups == 2**31 - 1 and caps.max_push_constants == 4032 and caps.max_allocation == 1 << 30
    assert "llvmlite" in caps.toolchain and "CUDA 13.0" in caps.toolchain
    assert cuda.info.arch == "cuda" and cuda.info.name == "Stand-in A" and "CUDA 13.0" in cuda.info.driver
    assert dict(cuda.info.detail)["compute capability"] == "9.0"


def test_transfers(cuda, standin):
    memory = Memory(cuda)
    rng = np.random.default_rng(1)
    sizes = (1, 3, 4, 100, 65536, transfer.SMALL_BYTES, transfer.SMALL_BYTES + 1, 5_000_001, transfer.CHUNK_BYTES * 3)
    for nbytes in sizes:
        data = rng.integers(0, 256, nbytes, dtype=np.uint8)
        a = memory.allocate(nbytes + 7)
        assert a.address % 256 == 0
        assert not read(a, np.uint8).any(), "fresh memory is zero"
        kept = data.copy()
        a.write(5, memoryview(data))
        data[:] = 0  # the caller may reuse it at once
        back = read(a, np.uint8)
        assert (back[5 : 5 + nbytes] == kept).all() and not back[:5].any() and not back[5 + nbytes :].any()
        b = memory.allocate(nbytes)
        b.copy_from(a, nbytes, 0, 5)
        assert (read(b, np.uint8) == kept).all()
    a.fill(8, 16, 0xDEADBEEF)
    assert read(a, np.uint32, 4, 6).tolist()[1:5] == [0xDEADBEEF] * 4
    with pytest.raises(ValueError, match="overlap"):
        a.copy_from(a, 100, 0, 50)
    assert cuda.host_view(a.buffer) is None and cuda.wrap(4096, 16) is None


def test_transfers_larger_than_the_ring(cuda):
    memory = Memory(cuda)
    nbytes = transfer.CHUNK_BYTES * (transfer.CHUNKS + 5) + 12345
    data = np.random.default_rng(2).integers(0, 256, nbytes, dtype=np.uint8)
    a = memory.allocate(nbytes, zeroed=False)
    a.write(0, memoryview(data))
    assert (read(a, np.uint8) == data).all()


def test_a_chunk_is_not_written_again_before_the_device_has_read_it(cuda, standin):
    """Many small uploads, and all the work later: each must find its own bytes."""
    memory = Memory(cuda)
    a = memory.allocate(4 * 3000)
    cuda.synchronize()
    standin.hold()
    for i in range(3000):
        a.write(4 * i, memoryview(struct.pack("<I", i)))
    standin.hold(False)
    assert (read(a) == np.arange(3000)).all()


def test_few_chunks_are_enough_where_little_is_pending(cuda, standin):
    memory = Memory(cuda)
    a = memory.allocate(transfer.CHUNK_BYTES)
    data = bytes(a.nbytes)
    for _ in range(5):
        a.write(0, memoryview(data))
        read(a)
    assert standin.live("pinned") < transfer.CHUNKS


@pytest.mark.parametrize("symbol", ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuEventRecord", "cuEventQuery"])
def test_transfers_that_fail_lose_no_chunk(cuda, standin, symbol):
    memory = Memory(cuda)
    nbytes = transfer.CHUNK_BYTES * (transfer.CHUNKS + 3)
    a = memory.allocate(nbytes)
    data = np.arange(nbytes, dtype=np.uint8)
    for _ in range(3):
        for use in (lambda: a.write(0, memoryview(data)), lambda: read(a)):
            standin.fail(symbol, 1)
            with contextlib.suppress(SpirogradRuntimeError):
                use()
            standin.fail(symbol, 0, 0)
    assert standin.live("pinned") <= transfer.CHUNKS
    a.write(0, memoryview(data))
    assert (read(a, np.uint8) == data).all()


def test_small_uploads_wait_for_nothing(cuda, standin):
    memory = Memory(cuda)
    a = memory.allocate(1 << 20)
    data = bytes(1 << 20)
    cuda.synchronize()
    standin.hold()
    for _ in range(transfer.CHUNK_BYTES * (transfer.CHUNKS - 1) // len(data)):
        a.write(0, memoryview(data))
    assert standin.pending
    standin.hold(False)


@pytest.mark.parametrize("by_address", [False, True])
def test_launch(cuda, standin, by_address):
    memory = Memory(cuda)
    launcher = Launcher(cuda, memory)
    plan = launcher.prepare(compiled("scale", "scale", by_address=by_address))
    n = 1000
    data = np.arange(n, dtype=np.uint32)
    a = memory.allocate(4 * n)
    a.write(0, memoryview(data))
    expected = data.copy()
    for step in range(5):
        plan.launch([None, n, step], [None] * 3, {0: a})
        for _ in range(2):
            expected = expected * 2 + np.uint32(step) + np.arange(n, dtype=np.uint32)
    assert (read(a) == expected).all()
    plan.launch([None, 0, 9], [None] * 3, {0: a})
    assert (read(a) == expected).all()
    assert len(standin.launches) == 10, "no launch for a task without iterations"
    last = standin.launches[-1]
    assert (last.groups, last.group_size) == (16, 64)
    if not by_address:
        assert last.block == struct.pack("<QII", a.address, n, 4)


def test_a_block_in_memory_lives_until_its_launch(cuda, standin):
    memory = Memory(cuda)
    plan = Launcher(cuda, memory).prepare(compiled("count", by_address=True))
    a = memory.allocate(4)
    cuda.synchronize()
    live = standin.live("memory")
    standin.hold()
    for i in range(2000):
        plan.launch([None, 1, i], [None] * 3, {0: a})
    standin.hold(False)
    assert read(a)[0] == sum(range(2000))
    cuda.synchronize()
    assert standin.live("memory") == live


def test_counts(cuda, standin):
    """Unknown to the host, beyond any limit, none at all; and the tasks between."""
    memory = Memory(cuda)
    executable = cuda.load(compiled("count", "count", "count"))
    a = memory.allocate(4)
    block = struct.pack("<QII", a.address, 100, 1)
    cuda.launch(executable, block, (None, 0, 100))
    cuda.launch(executable, bytearray(block), [65, -5, 1])
    assert [launch.groups for launch in standin.launches] == [132 * 32, 2, 2, 1]
    cuda.launch(executable, block, (0, 0, 0))
    assert read(a)[0] == 400
    limited = cuda.load(compiled("count"))
    cuda.launch(limited, block, (1 << 40,))
    assert standin.launches[-1].groups == 2**30 // 64  # invocations have numbers of 32 bits
    with pytest.raises(TypeError):
        cuda.launch(executable, block, ("7", 0, 0))
    with pytest.raises(IndexError):
        cuda.launch(executable, block, (1,))


def test_small_writes_keep_their_place_between_launches(cuda):
    memory = Memory(cuda)
    plan = Launcher(cuda, memory).prepare(compiled("count"))
    a, b = memory.allocate(4), memory.allocate(4)
    total = []
    for i in range(50):
        a.write(0, memoryview(struct.pack("<I", i)))
        plan.launch([None, 3, 7], [None] * 3, {0: a})
        b.copy_from(a, 4)
        total.append(i + 21)
    assert read(a)[0] == total[-1] and read(b)[0] == total[-1]


def test_freed_memory_serves_the_work_before(cuda, standin):
    """A free is ordered after the launches that use the memory, and finalizers do not call the driver."""
    memory = Memory(cuda)
    plan = Launcher(cuda, memory).prepare(compiled("count"))
    total = memory.allocate(4)
    cuda.synchronize()
    standin.hold()
    frees = standin.calls("cuMemFreeAsync")
    for _ in range(100):
        scratch = memory.allocate(4)
        plan.launch([None, 1, 1], [None] * 3, {0: scratch})
        total.copy_from(scratch, 4)
        before = standin.calls("cuMemFreeAsync")
        del scratch
        assert standin.calls("cuMemFreeAsync") == before
    assert standin.calls("cuMemFreeAsync") > frees
    standin.hold(False)
    assert read(total)[0] == 1
    cuda.synchronize()
    assert standin.live("memory") == 1 and cuda._pool.used == 16


def test_ten_thousand_launches_do_not_grow(cuda, standin):
    memory = Memory(cuda)
    launcher = Launcher(cuda, memory)
    plan = launcher.prepare(compiled("count"))
    a = memory.allocate(4)

    def some(times):
        for _ in range(times):
            scratch = memory.allocate(1000)
            plan.launch([None, 1, 1], [None] * 3, {0: a})
            del scratch

    some(1000)
    launcher.synchronize()
    gc.collect()
    objects, live = len(gc.get_objects()), standin.live("memory")
    some(9000)
    launcher.synchronize()
    gc.collect()
    assert read(a)[0] == 10_000
    assert standin.live("memory") == live and len(gc.get_objects()) < objects + 100


def test_dropped_kernels_are_unloaded_when_nothing_runs(cuda, standin):
    memory = Memory(cuda)
    a = memory.allocate(4)
    executable = cuda.load(compiled("count"))
    cuda.launch(executable, struct.pack("<QII", a.address, 5, 1), (5,))
    del executable
    gc.collect()
    memory.allocate(4)
    assert standin.live("modules") == 1
    assert read(a)[0] == 5
    cuda.synchronize()
    assert standin.live("modules") == 0


def test_fetches(cuda, standin):
    memory = Memory(cuda)
    plan = Launcher(cuda, memory).prepare(compiled("count"))
    a = memory.allocate(64)
    cuda.synchronize()
    standin.hold()
    waits, fetches = cuda.waits, []
    for i in range(50):
        plan.launch([None, 1, 1], [None] * 3, {0: a})
        fetches.append(a.fetch(0, 4))
    assert all(fetch.take() is None for fetch in fetches) and cuda.waits == waits
    standin.hold(False)
    assert [struct.unpack("<I", fetch.wait())[0] for fetch in fetches] == list(range(1, 51))
    assert cuda.waits == waits + 50
    assert fetches[0].take() == struct.pack("<I", 1), "the bytes are kept"
    blocks = len(cuda._cells.blocks)
    for _ in range(200):  # dropped ones give their cells back
        a.fetch(0, 4)
    assert len(cuda._cells.blocks) == blocks
    later = a.fetch(0, 4)
    for _ in itertools.takewhile(lambda _: later.take() is None, range(1000)):
        pass
    assert later.take() == struct.pack("<I", 50)
    for offset, nbytes in ((2, 4), (0, 6), (0, 0), (64, 4), (-4, 4)):
        with pytest.raises(ValueError):
            cuda.fetch(a.buffer, offset, nbytes)


def test_waits_are_counted(cuda):
    memory = Memory(cuda)
    a = memory.allocate(64)
    assert cuda.waits == 0
    a.write(0, memoryview(b"12345678"))
    a.fill(8, 8, 1)
    assert cuda.waits == 0
    cuda.synchronize()
    read(a)
    assert cuda.waits == 2


def test_out_of_memory_leaves_the_device_usable(cuda):
    memory = Memory(cuda)
    limit = cuda.caps.max_allocation
    with pytest.raises(OutOfDeviceMemory, match=f"{limit + 4096} bytes wanted.*at most {limit} bytes"):
        memory.allocate(limit + 4096)
    a = memory.allocate(16)
    a.write(0, memoryview(b"usable"))
    assert bytes(read(a, np.uint8)[:6]) == b"usable"


def test_memory_that_the_driver_refuses(cuda, standin):
    memory = Memory(cuda)
    kept = memory.allocate(1000)
    standin.fail("cuMemAllocFromPoolAsync", 2)
    again = memory.allocate(50 << 20)  # the second try, after free memory went back, succeeds
    assert standin.calls("cuMemPoolTrimTo") == 1
    standin.fail("cuMemAllocFromPoolAsync", 2, 100)
    with pytest.raises(OutOfDeviceMemory, match=f"out of memory when trying to allocate {90 << 20} bytes"):
        memory.allocate(90 << 20)
    standin.fail("cuMemAllocFromPoolAsync", 0, 0)
    for a in (kept, again, memory.allocate(90 << 20)):
        a.write(0, memoryview(b"ok"))
        assert bytes(read(a, np.uint8, 0, 2)) == b"ok"


def test_memory_that_was_just_freed_is_found_again(cuda, standin):
    memory = Memory(cuda)
    standin.machine(nbytes=100 << 20)
    for _ in range(5):
        a = memory.allocate(80 << 20)
        del a


def test_cap_counts_live_memory(open_cuda):
    memory = Memory(open_cuda(device_memory_bytes=1 << 20))
    a = memory.allocate(900_000)
    with pytest.raises(OutOfDeviceMemory, match=r"200000 bytes: .* of the 1048576 bytes that the option `device_memory_GB` allows"):
        memory.allocate(200_000)
    a.free()
    assert memory.allocate(200_000).nbytes == 200_000


def test_a_kernel_that_fails_is_told_clearly(cuda, standin):
    memory = Memory(cuda)
    launcher = Launcher(cuda, memory)
    a = memory.allocate(4)
    fetch = a.fetch(0, 4)
    launcher.prepare(compiled("trap")).launch([None, 1, 1], [None] * 3, {0: a})
    with pytest.raises(SpirogradRuntimeError, match=r"was lost.*start a new process.*CUDA_ERROR_LAUNCH_FAILED.*outside of its arrays"):
        cuda.synchronize()
    calls = standin.calls("cuStreamQuery")
    for use in (
        cuda.synchronize,
        lambda: read(a),
        lambda: memory.allocate(4),
        lambda: a.write(0, memoryview(b"1234")),
        lambda: a.fetch(0, 4),
        fetch.take,
        fetch.wait,
        lambda: launcher.prepare(compiled("count")),
    ):
        with pytest.raises(SpirogradRuntimeError, match="device was lost"):
            use()
    assert standin.calls("cuStreamQuery") == calls, "a lost device is not asked again"


def test_memory_outside_of_arrays(cuda):
    memory = Memory(cuda)
    a = memory.allocate(16)
    Launcher(cuda, memory).prepare(compiled("scale")).launch([None, 1000, 1], [None] * 3, {0: a})
    with pytest.raises(SpirogradRuntimeError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS \(an illegal memory access was encountered\)"):
        cuda.synchronize()


def test_errors_that_are_not_fatal(cuda, standin):
    memory = Memory(cuda)
    executable = cuda.load(compiled("count"))
    a = memory.allocate(4)
    block = struct.pack("<QII", a.address, 1, 1)
    standin.fail("cuLaunchKernel", 1)
    with pytest.raises(SpirogradRuntimeError, match="CUDA: cannot launch kernel k: CUDA_ERROR_INVALID_VALUE"):
        cuda.launch(executable, block, (1,))
    cuda.launch(executable, block, (1,))
    assert read(a)[0] == 1
    standin.fail("cuMemHostAlloc", 2)
    large = memory.allocate(2 * transfer.CHUNK_BYTES)
    with pytest.raises(OutOfDeviceMemory, match="pinned host memory"):
        large.write(0, memoryview(bytes(large.nbytes)))
    data = np.random.default_rng(3).integers(0, 256, large.nbytes, dtype=np.uint8)
    large.write(0, memoryview(data))
    assert (read(large, np.uint8) == data).all()


def test_load_refuses(cuda, standin):
    kernel = compiled("count")
    kernel.target_name = "vulkan"
    with pytest.raises(SpirogradRuntimeError, match="compiled for 'vulkan', not for CUDA"):
        cuda.load(kernel)
    kernel = compiled("count")
    kernel.binaries = (b"nonsense",)
    with pytest.raises(SpirogradRuntimeError, match=r"(?s)load kernel k: CUDA_ERROR_INVALID_PTX.*line 3.*nonsense"):
        cuda.load(kernel)
    with pytest.raises(SpirogradRuntimeError, match=r"(?s)compile kernel k: CUDA_ERROR_INVALID_PTX.*line 3"):
        cuda.assemble(kernel)
    kernel = compiled("count")
    kernel.binaries = compiled("scale").binaries
    with pytest.raises(SpirogradRuntimeError, match="find count in kernel k"):
        cuda.load(kernel)
    cuda.synchronize()
    assert standin.live("modules") == 0


def test_machine_code(cuda):
    kernel = cuda.assemble(compiled("count"))
    assert kernel.binaries[0].startswith(b"\x7fELF") and cuda.assemble(kernel).binaries == kernel.binaries
    executable = cuda.load(kernel)
    usage = executable.usage[0]
    assert (usage.registers, usage.local_bytes, usage.shared_bytes, usage.resident) == (24, 8, 128, 32)
    assert cuda.usage(kernel) == (
        "t0: 24 registers and 8 bytes of local memory (spilled registers, local arrays) a thread; 128 bytes of shared memory a group; "
        "32 groups a multiprocessor\n"
    )
    a = Memory(cuda).allocate(4)
    cuda.launch(executable, struct.pack("<QII", a.address, 3, 2), (3,))
    assert read(a)[0] == 6


def test_threads(cuda, standin):
    """Launches, copies and fetches of several threads, none of which has the context current."""
    memory = Memory(cuda)
    plan = Launcher(cuda, memory).prepare(compiled("count"))
    total = memory.allocate(4)
    errors = []

    def work(seed):
        try:
            for i in range(200):
                plan.launch([None, 1, 1], [None] * 3, {0: total})
                a = memory.allocate(4 * seed)
                a.write(0, memoryview(struct.pack("<I", i)))
                assert struct.unpack("<I", a.fetch(0, 4).wait())[0] == i
            assert standin.depth == 1
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed + 1,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert read(total)[0] == 800


def test_a_busy_device_is_polled_without_waiting(cuda, standin):
    memory = Memory(cuda)
    a = memory.allocate(4)
    fetch = a.fetch(0, 4)
    taken = []
    with cuda._turn.lock:
        thread = threading.Thread(target=lambda: taken.append(fetch.take()))
        thread.start()
        thread.join(10)
    assert taken == [None]


def test_close(open_cuda, standin):
    cuda = open_cuda()
    memory = Memory(cuda)
    a = memory.allocate(4)
    executable = cuda.load(compiled("count"))
    taken, open_ = a.fetch(0, 4), a.fetch(0, 4)
    taken.wait()
    cuda.close()
    cuda.close()
    assert standin.leftovers() == {}
    assert taken.take() == bytes(4)
    for use in (open_.take, open_.wait, cuda.synchronize, lambda: cuda.launch(executable, bytes(16), (1,)), lambda: memory.allocate(4)):
        with pytest.raises(SpirogradRuntimeError, match="was closed"):
            use()


def test_an_opening_that_fails_leaves_nothing(standin):
    driver._started.cache_clear()
    for symbol in ("cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuStreamCreate", "cuMemPoolCreate", "cuMemPoolSetAttribute"):
        standin.fail(symbol, 1)
        with pytest.raises(SpirogradRuntimeError, match=r"CUDA: cannot .*CUDA_ERROR_INVALID_VALUE"):
            loader.open_device("cuda")
        standin.fail(symbol, 0, 0)
        assert standin.leftovers() == {} and standin.depth <= 1, symbol


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork(standin):
    code = """
import os, struct
from spirograd.runtime.loader import open_device
from spirograd.runtime.allocations import Memory
device = open_device("cuda")
a = Memory(device).allocate(4)
if os.fork() == 0:
    problems = []
    for use in (device.synchronize, lambda: a.fetch(0, 4), lambda: open_device("cuda")):
        try:
            use()
        except Exception as error:
            problems.append(str(error))
    a.free()
    device.close()
    os._exit(0 if len(problems) == 3 and all("does not survive a fork" in p for p in problems) else 1)
status = os.wait()[1]
device.synchronize()
print("child", status)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "child 0\n", done.stderr


def test_other_contexts_of_the_thread_stay_current(cuda, standin):
    import ctypes

    library = ctypes.CDLL(str(standin.path))
    other = ctypes.c_void_p(1234)
    library.cuCtxPushCurrent_v2(other)
    try:
        memory = Memory(cuda)
        plan = Launcher(cuda, memory).prepare(compiled("count"))
        a = memory.allocate(4)
        plan.launch([None, 1, 1], [None] * 3, {0: a})
        assert read(a)[0] == 1
        now = ctypes.c_void_p()
        library.cuCtxGetCurrent(ctypes.byref(now))
        assert now.value == 1234
    finally:
        library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def test_threads_do_not_keep_the_context_of_a_second_device(open_cuda, standin, monkeypatch):
    """Other libraries would take it for the choice of their device."""
    standin.machine(devices=2)
    monkeypatch.setenv("SG_DEVICE", "1")
    cuda = open_cuda()
    memory = Memory(cuda)
    plan = Launcher(cuda, memory).prepare(compiled("count"))
    a = memory.allocate(4)
    plan.launch([None, 5, 1], [None] * 3, {0: a})
    assert read(a)[0] == 5 and standin.depth == 0


def test_long_waits(open_cuda, standin, monkeypatch):
    """Waits that outlast the first queries."""
    monkeypatch.setattr(stream, "_QUERIES", 1)
    cuda = open_cuda()
    a = Memory(cuda).allocate(4)
    plan = Launcher(cuda, Memory(cuda)).prepare(compiled("count"))
    for _ in range(20):
        plan.launch([None, 1, 1], [None] * 3, {0: a})
    assert a.fetch(0, 4).wait() == struct.pack("<I", 20)
    assert read(a)[0] == 20
    plan.launch([None, 1, 1], [None] * 3, {0: a})
    cuda.synchronize()
    assert standin.pending == 0

"""Devices of CUDA and HIP on stand-ins for their drivers: memory, order, launches, argument bytes, readbacks, errors. No GPU is needed."""

import ctypes
import functools
import gc
import itertools
import os
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
from unit.runtime import gpu_modules
from unit.runtime.reading import read
from unit.runtime.standin_gpu import CUDA, HIP

from spirograd.base.arguments import Arguments
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.base.records import replace
from spirograd.runtime import loader
from spirograd.runtime.allocations import Memory
from spirograd.runtime.devices.gpu import driver, stream, transfer
from spirograd.runtime.launcher import Launcher


def test_capabilities(gpu, standin):
    caps, api, detail = gpu.caps, standin.api, dict(gpu.info.detail)
    assert caps.target_name == api.arch and caps.buffer_address and caps.int64 and caps.float64
    assert caps.subgroup_size == 32 and caps.max_groups == 2**31 - 1 and caps.max_push_constants == 4032 and caps.max_allocation == 1 << 30
    assert "llvmlite" in caps.toolchain and (api is HIP or api.version in caps.toolchain)
    assert gpu.info.arch == api.arch and gpu.info.name == "Stand-in A" and api.version in gpu.info.driver
    if api is CUDA:
        assert caps.cpu_name == "sm_90" and detail["compute capability"] == "9.0"
    else:
        assert caps.cpu_name == "gfx1100" and (detail["architecture"], detail["wave size"]) == ("gfx1100", "32")


@pytest.mark.parametrize("by_address", [False, True])
def test_launch(gpu, standin, by_address, compiled):
    memory = Memory(gpu)
    launcher = Launcher(gpu, memory)
    plan = launcher.prepare(compiled("scale", "scale", by_address=by_address))
    n = 1000
    data = np.arange(n, dtype=np.uint32)
    a = memory.allocate(4 * n)
    a.write(0, memoryview(data))
    expected = data.copy()
    for step in range(5):
        plan.launch(Arguments.of([None, n, step], [None] * 3, {0: a}))
        for _ in range(2):
            expected = expected * 2 + np.uint32(step) + np.arange(n, dtype=np.uint32)
    assert (read(a) == expected).all()
    plan.launch(Arguments.of([None, 0, 9], [None] * 3, {0: a}))
    assert (read(a) == expected).all()
    assert len(standin.launches) == 10, "no launch for a task without iterations"
    last = standin.launches[-1]
    assert (last.groups, last.group_size) == (16, 64)
    if not by_address:
        assert last.block == struct.pack("<QII", a.address, n, 4)


def test_a_block_in_memory_lives_until_its_launch(gpu, standin, compiled):
    memory = Memory(gpu)
    plan = Launcher(gpu, memory).prepare(compiled("count", by_address=True))
    a = memory.allocate(4)
    gpu.synchronize()
    live = standin.live("memory")
    standin.hold()
    for i in range(2000):
        plan.launch(Arguments.of([None, 1, i], [None] * 3, {0: a}))
    standin.hold(False)
    assert read(a)[0] == sum(range(2000))
    gpu.synchronize()
    assert standin.live("memory") == live


def test_counts(gpu, standin, compiled):
    """Unknown to the host, beyond any limit, none at all; and the tasks between."""
    memory = Memory(gpu)
    executable = gpu.load(compiled("count", "count", "count"))
    a = memory.allocate(4)
    block = struct.pack("<QII", a.address, 100, 1)
    gpu.launch(executable, block, (None, 0, 100))
    gpu.launch(executable, bytearray(block), [65, -5, 1])
    assert [launch.groups for launch in standin.launches] == [132 * 32, 2, 2, 1]
    gpu.launch(executable, block, (0, 0, 0))
    assert read(a)[0] == 400
    limited = gpu.load(compiled("count"))
    gpu.launch(limited, block, (1 << 40,))
    assert standin.launches[-1].groups == 1 << 17  # more would only take longer to begin
    with pytest.raises(TypeError):
        gpu.launch(executable, block, ("7", 0, 0))
    with pytest.raises(IndexError):
        gpu.launch(executable, block, (1,))


def test_small_writes_keep_their_place_between_launches(gpu, compiled):
    memory = Memory(gpu)
    plan = Launcher(gpu, memory).prepare(compiled("count"))
    a, b = memory.allocate(4), memory.allocate(4)
    total = []
    for i in range(50):
        a.write(0, memoryview(struct.pack("<I", i)))
        plan.launch(Arguments.of([None, 3, 7], [None] * 3, {0: a}))
        b.copy_from(a, 4)
        total.append(i + 21)
    assert read(a)[0] == total[-1] and read(b)[0] == total[-1]


def test_freed_memory_serves_the_work_before(gpu, standin, compiled):
    """A free is ordered after the launches that use the memory, and finalizers do not call the driver."""
    memory = Memory(gpu)
    plan = Launcher(gpu, memory).prepare(compiled("count"))
    total = memory.allocate(4)
    gpu.synchronize()
    standin.hold()
    frees = standin.calls("free_on_stream")
    for _ in range(100):
        scratch = memory.allocate(4)
        plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: scratch}))
        total.copy_from(scratch, 4)
        before = standin.calls("free_on_stream")
        del scratch
        assert standin.calls("free_on_stream") == before
    assert standin.calls("free_on_stream") > frees
    standin.hold(False)
    assert read(total)[0] == 1
    gpu.synchronize()
    assert standin.live("memory") == 1 and gpu._pool.used == 16


def test_ten_thousand_launches_do_not_grow(gpu, standin, compiled):
    memory = Memory(gpu)
    launcher = Launcher(gpu, memory)
    plan = launcher.prepare(compiled("count"))
    a = memory.allocate(4)

    def some(times):
        for _ in range(times):
            scratch = memory.allocate(1000)
            plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: a}))
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


def test_dropped_kernels_are_unloaded_when_nothing_runs(gpu, standin, compiled):
    memory = Memory(gpu)
    a = memory.allocate(4)
    executable = gpu.load(compiled("count"))
    gpu.launch(executable, struct.pack("<QII", a.address, 5, 1), (5,))
    del executable
    gc.collect()
    memory.allocate(4)
    assert standin.live("modules") == 1
    assert read(a)[0] == 5
    gpu.synchronize()
    assert standin.live("modules") == 0


def test_readbacks(gpu, standin, compiled):
    memory = Memory(gpu)
    plan = Launcher(gpu, memory).prepare(compiled("count"))
    a = memory.allocate(64)
    gpu.synchronize()
    standin.hold()
    waits, readbacks = gpu.waits, []
    for i in range(50):
        plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: a}))
        readbacks.append(a.read_async(0, 4))
    assert all(readback.take() is None for readback in readbacks) and gpu.waits == waits
    standin.hold(False)
    assert [struct.unpack("<I", readback.wait())[0] for readback in readbacks] == list(range(1, 51))
    assert gpu.waits == waits + 50
    assert readbacks[0].take() == struct.pack("<I", 1), "the bytes are kept"
    blocks = len(gpu._cells.blocks)
    for _ in range(200):  # dropped ones give their cells back
        a.read_async(0, 4)
    assert len(gpu._cells.blocks) == blocks
    later = a.read_async(0, 4)
    for _ in itertools.takewhile(lambda _: later.take() is None, range(1000)):
        pass
    assert later.take() == struct.pack("<I", 50)
    for offset, nbytes in ((2, 4), (0, 6), (0, 0), (64, 4), (-4, 4)):
        with pytest.raises(ValueError):
            gpu.read_async(a.buffer, offset, nbytes)


def test_waits_are_counted(gpu):
    memory = Memory(gpu)
    a = memory.allocate(64)
    assert gpu.waits == 0
    a.write(0, memoryview(b"12345678"))
    a.fill(8, 8, 1)
    assert gpu.waits == 0
    gpu.synchronize()
    read(a)
    assert gpu.waits == 2


def test_out_of_memory_leaves_the_device_usable(gpu):
    memory = Memory(gpu)
    limit = gpu.caps.max_allocation
    with pytest.raises(OutOfDeviceMemory, match=f"{limit + 4096} bytes: .*at most {limit} bytes"):
        memory.allocate(limit + 4096)
    a = memory.allocate(16)
    a.write(0, memoryview(b"usable"))
    assert bytes(read(a, np.uint8)[:6]) == b"usable"


def test_memory_that_the_driver_refuses(gpu, standin):
    memory = Memory(gpu)
    kept = memory.allocate(1000)
    standin.fail("allocate_from_pool", 2)
    again = memory.allocate(50 << 20)  # the second try, after free memory went back, succeeds
    assert standin.calls("pool_trim") == 1
    standin.fail("allocate_from_pool", 2, 100)
    with pytest.raises(OutOfDeviceMemory, match=f"out of memory when trying to allocate {90 << 20} bytes"):
        memory.allocate(90 << 20)
    standin.fail("allocate_from_pool", 0, 0)
    for a in (kept, again, memory.allocate(90 << 20)):
        a.write(0, memoryview(b"ok"))
        assert bytes(read(a, np.uint8, 0, 2)) == b"ok"


def test_memory_that_was_just_freed_is_found_again(gpu, standin):
    memory = Memory(gpu)
    standin.machine(nbytes=100 << 20)
    for _ in range(5):
        a = memory.allocate(80 << 20)
        del a


def test_cap_counts_live_memory(open_gpu):
    memory = Memory(open_gpu(device_memory_bytes=1 << 20))
    a = memory.allocate(900_000)
    with pytest.raises(OutOfDeviceMemory, match=r"200000 bytes: .* of the 1048576 bytes that the option `device_memory_GB` allows"):
        memory.allocate(200_000)
    a.free()
    assert memory.allocate(200_000).nbytes == 200_000


def test_a_kernel_that_fails_is_told_clearly(gpu, standin, compiled):
    memory = Memory(gpu)
    launcher = Launcher(gpu, memory)
    a = memory.allocate(4)
    readback = a.read_async(0, 4)
    launcher.prepare(compiled("trap")).launch(Arguments.of([None, 1, 1], [None] * 3, {0: a}))
    error = standin.api.errors["LAUNCH_FAILED"]
    with pytest.raises(SpirogradRuntimeError, match=rf"was lost.*start a new process.*{error}.*outside of its arrays"):
        gpu.synchronize()
    calls = standin.calls("stream_query")
    for use in (
        gpu.synchronize,
        lambda: read(a),
        lambda: memory.allocate(4),
        lambda: a.write(0, memoryview(b"1234")),
        lambda: a.read_async(0, 4),
        readback.take,
        readback.wait,
        lambda: launcher.prepare(compiled("count")),
    ):
        with pytest.raises(SpirogradRuntimeError, match="device was lost"):
            use()
    assert standin.calls("stream_query") == calls, "a lost device is not asked again"


def test_memory_outside_of_arrays(gpu, standin, compiled):
    memory = Memory(gpu)
    a = memory.allocate(16)
    Launcher(gpu, memory).prepare(compiled("scale")).launch(Arguments.of([None, 1000, 1], [None] * 3, {0: a}))
    error = standin.api.errors["ILLEGAL_ADDRESS"]
    with pytest.raises(SpirogradRuntimeError, match=rf"{error} \(an illegal memory access was encountered\)"):
        gpu.synchronize()


def test_errors_that_are_not_fatal(gpu, standin, compiled):
    memory = Memory(gpu)
    executable = gpu.load(compiled("count"))
    a = memory.allocate(4)
    block = struct.pack("<QII", a.address, 1, 1)
    standin.fail("launch", 1)
    with pytest.raises(SpirogradRuntimeError, match=f"{standin.api.name}: cannot launch kernel k: {standin.api.errors['INVALID_VALUE']}"):
        gpu.launch(executable, block, (1,))
    gpu.launch(executable, block, (1,))
    assert read(a)[0] == 1
    standin.fail("host_allocate", 2)
    large = memory.allocate(2 * transfer.CHUNK_BYTES)
    with pytest.raises(OutOfDeviceMemory, match="pinned host memory"):
        large.write(0, memoryview(bytes(large.nbytes)))
    data = np.random.default_rng(3).integers(0, 256, large.nbytes, dtype=np.uint8)
    large.write(0, memoryview(data))
    assert (read(large, np.uint8) == data).all()


def test_load_refuses(gpu, standin, compiled):
    kernel = compiled("count")
    kernel.target_name = "vulkan"
    with pytest.raises(SpirogradRuntimeError, match=f"compiled for 'vulkan', not for {standin.api.name}"):
        gpu.load(kernel)
    kernel = compiled("count")
    kernel.binaries = (b"nonsense",)
    said = "(?s).*line 3" if standin.api is CUDA else ""
    with pytest.raises(SpirogradRuntimeError, match=f"{said[:4]}load kernel k: {standin.api.errors['INVALID_PTX']}{said[4:]}"):
        gpu.load(kernel)
    refusal = r"(?s)compile kernel k: CUDA_ERROR_INVALID_PTX.*line 3" if standin.api is CUDA else r"kernel k: this is no code object"
    with pytest.raises(SpirogradRuntimeError, match=refusal):
        gpu.assemble(kernel)
    kernel = compiled("count")
    kernel.binaries = compiled("scale").binaries
    with pytest.raises(SpirogradRuntimeError, match="find count in kernel k"):
        gpu.load(kernel)
    gpu.synchronize()
    assert standin.live("modules") == 0


def test_functions_that_call_themselves_have_a_stack(gpu, standin, compiled):
    """Its size is set once, before the first kernel that needs it is loaded."""
    if standin.api is HIP:
        pytest.skip("AMD GPUs: kernels whose functions call themselves are refused while compiling")
    kernel = compiled("count")
    gpu.load(kernel)
    assert standin.calls("context_limit") == 0
    for _ in range(2):
        gpu.load(replace(kernel, recursive=True))
    assert standin.calls("context_limit") == 1


def test_machine_code(gpu, compiled):
    kernel = gpu.assemble(compiled("count"))
    assert kernel.binaries[0].startswith(b"\x7fELF") and gpu.assemble(kernel).binaries == kernel.binaries
    executable = gpu.load(kernel)
    usage = executable.usage[0]
    assert (usage.registers, usage.local_bytes, usage.shared_bytes, usage.resident) == (24, 8, 128, 32)
    assert gpu.code_stages(kernel)["kernel.usage"] == (
        "t0: 24 registers and 8 bytes of local memory (spilled registers, local arrays) a thread; 128 bytes of shared memory a group; "
        "32 groups a multiprocessor\n"
    )
    a = Memory(gpu).allocate(4)
    gpu.launch(executable, struct.pack("<QII", a.address, 3, 2), (3,))
    assert read(a)[0] == 6


def test_machine_code_of_several_modules(gpu, standin, compiled):
    """The driver compiles them in several threads, none of which has the context current."""
    one, two = compiled("count"), compiled("scale")
    tasks = (*one.tasks, replace(two.tasks[0], name="t1", binary=1))
    kernel = gpu.assemble(replace(one, tasks=tasks, binaries=(*one.binaries, *two.binaries)))
    assert [binary[:4] for binary in kernel.binaries] == [b"\x7fELF"] * 2
    a = Memory(gpu).allocate(12)
    gpu.launch(gpu.load(kernel), struct.pack("<QII", a.address, 3, 2), (3, 3))
    assert read(a).tolist() == [6 * 2 + 2, 0 + 2 + 1, 0 + 2 + 2]
    with pytest.raises(SpirogradRuntimeError, match="kernel k"):
        gpu.assemble(replace(kernel, binaries=(kernel.binaries[0], b"nonsense")))


def test_other_threads_launch_while_the_driver_compiles(gpu, standin, monkeypatch, compiled):
    if standin.api is HIP:
        pytest.skip("code objects are machine code already")
    begun, end = threading.Event(), threading.Event()
    assemble = type(gpu._driver).assemble

    def slow(driver, image, name):
        begun.set()
        assert end.wait(60)
        return assemble(driver, image, name)

    monkeypatch.setattr(type(gpu._driver), "assemble", slow)
    made = []
    thread = threading.Thread(target=lambda: made.append(gpu.assemble(compiled("count"))))
    thread.start()
    assert begun.wait(60)
    try:
        a = Memory(gpu).allocate(4)
        gpu.launch(gpu.load(compiled("count")), struct.pack("<QII", a.address, 3, 2), (3,))
        assert read(a)[0] == 6
    finally:
        end.set()
        thread.join()
    assert made[0].binaries[0].startswith(b"\x7fELF")


def test_threads(gpu, standin, compiled):
    """Launches, copies and readbacks of several threads, none of which has the context current."""
    memory = Memory(gpu)
    plan = Launcher(gpu, memory).prepare(compiled("count"))
    total = memory.allocate(4)
    errors = []

    def work(seed):
        try:
            for i in range(200):
                plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: total}))
                a = memory.allocate(4 * seed)
                a.write(0, memoryview(struct.pack("<I", i)))
                assert struct.unpack("<I", a.read_async(0, 4).wait())[0] == i
            assert standin.depth == (standin.api is CUDA)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed + 1,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert read(total)[0] == 800


def test_a_busy_device_is_polled_without_waiting(gpu, standin):
    memory = Memory(gpu)
    a = memory.allocate(4)
    readback = a.read_async(0, 4)
    taken = []
    with gpu._turn.lock:
        thread = threading.Thread(target=lambda: taken.append(readback.take()))
        thread.start()
        thread.join(10)
    assert taken == [None]


def test_close(open_gpu, standin):
    gpu = open_gpu()
    memory = Memory(gpu)
    a = memory.allocate(4)
    executable = gpu.load(gpu_modules.compiled(gpu, "count"))
    taken, open_ = a.read_async(0, 4), a.read_async(0, 4)
    taken.wait()
    gpu.close()
    gpu.close()
    assert standin.leftovers() == {}
    assert taken.take() == bytes(4)
    for use in (open_.take, open_.wait, gpu.synchronize, lambda: gpu.launch(executable, bytes(16), (1,)), lambda: memory.allocate(4)):
        with pytest.raises(SpirogradRuntimeError, match="was closed"):
            use()


def test_an_opening_that_fails_leaves_nothing(standin):
    driver._started.clear()
    contexts = ("context_retain", "context_set") if standin.api is CUDA else ()
    for symbol in (*contexts, "stream_create", "event_create", "pool_create", "pool_set"):
        standin.fail(symbol, 1)
        with pytest.raises(SpirogradRuntimeError, match=f"{standin.api.name}: cannot .*{standin.api.errors['INVALID_VALUE']}"):
            loader.open_device(standin.api.arch)
        standin.fail(symbol, 0, 0)
        assert standin.leftovers() == {} and standin.depth <= 1, symbol


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork(standin):
    code = """
import os, struct
from spirograd.runtime.loader import open_device
from spirograd.runtime.allocations import Memory
device = open_device("ARCH")
a = Memory(device).allocate(4)
if os.fork() == 0:
    problems = []
    for use in (device.synchronize, lambda: a.read_async(0, 4), lambda: open_device("ARCH")):
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
    done = subprocess.run([sys.executable, "-c", code.replace("ARCH", standin.api.arch)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "child 0\n", done.stderr


def test_what_is_current_in_the_thread_stays_so(gpu, standin, compiled):
    """A context that another library pushed, a device that it set."""
    memory = Memory(gpu)
    plan = Launcher(gpu, memory).prepare(compiled("count"))
    library, now = standin.library, ctypes.c_void_p()
    if standin.api is CUDA:
        get, enter = library.cuCtxGetCurrent, lambda: library.cuCtxPushCurrent_v2(ctypes.c_void_p(1))
        leave = functools.partial(library.cuCtxPopCurrent_v2, ctypes.byref(ctypes.c_void_p()))
    else:
        standin.machine(devices=2)
        get, enter, leave = library.hipGetDevice, lambda: library.hipSetDevice(1), lambda: library.hipSetDevice(0)
    enter()
    try:
        a = memory.allocate(4)
        plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: a}))
        assert read(a)[0] == 1
        get(ctypes.byref(now))
        assert now.value == 1
    finally:
        leave()


def test_threads_do_not_keep_the_context_of_a_second_device(open_gpu, standin, monkeypatch):
    """Other libraries would take it for the choice of their device."""
    standin.machine(devices=2)
    monkeypatch.setenv("SG_DEVICE", "1")
    gpu = open_gpu()
    memory = Memory(gpu)
    plan = Launcher(gpu, memory).prepare(gpu_modules.compiled(gpu, "count"))
    a = memory.allocate(4)
    plan.launch(Arguments.of([None, 5, 1], [None] * 3, {0: a}))
    assert read(a)[0] == 5 and standin.depth == 0


def test_long_waits(open_gpu, standin, monkeypatch):
    """Waits that outlast the first queries."""
    monkeypatch.setattr(stream, "_QUERIES", 1)
    gpu = open_gpu()
    a = Memory(gpu).allocate(4)
    plan = Launcher(gpu, Memory(gpu)).prepare(gpu_modules.compiled(gpu, "count"))
    for _ in range(20):
        plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: a}))
    assert a.read_async(0, 4).wait() == struct.pack("<I", 20)
    assert read(a)[0] == 20
    plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: a}))
    gpu.synchronize()
    assert standin.pending == 0

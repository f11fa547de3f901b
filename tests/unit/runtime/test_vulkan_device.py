import gc
import itertools
import os
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from unit.runtime.calls import calls_of
from unit.runtime.reading import read
from unit.runtime.spirv_modules import compiled, module

from spirograd.base.arguments import Arguments
from spirograd.base.artifact import ArgBlock, CompiledKernel, TaskInfo
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.base.sizes.size_nodes import Arg
from spirograd.runtime.allocations import Memory
from spirograd.runtime.devices.vulkan import call_words
from spirograd.runtime.devices.vulkan.allocator import Block
from spirograd.runtime.launcher import Launcher

TESTS = Path(__file__).resolve().parents[2]


def test_capabilities(vulkan):
    caps = vulkan.caps
    assert caps.target_name == "vulkan" and caps.buffer_address and caps.int64
    assert caps.max_push_constants >= 128 and caps.max_group_size >= 128 and caps.max_allocation >= 1 << 30
    assert vulkan.info.arch == "vulkan" and vulkan.info.name and vulkan.info.driver


def test_transfers(vulkan):
    memory = Memory(vulkan)
    rng = np.random.default_rng(1)
    for nbytes in (1, 3, 4, 100, 65536, 65540, 5_000_001, 30_000_000):
        data = rng.integers(0, 256, nbytes, dtype=np.uint8)
        a = memory.allocate(nbytes + 7)
        assert a.address % 256 == 0
        assert not read(a, np.uint8).any(), "fresh memory is zero"
        a.write(5, memoryview(data))
        back = read(a, np.uint8)
        assert (back[5 : 5 + nbytes] == data).all() and not back[:5].any() and not back[5 + nbytes :].any()
        b = memory.allocate(nbytes)
        b.copy_from(a, nbytes, 0, 5)
        assert (read(b, np.uint8) == data).all()
    a.fill(8, 16, 0xDEADBEEF)
    assert read(a, np.uint32, 4, 6).tolist()[1:5] == [0xDEADBEEF] * 4
    with pytest.raises(ValueError, match="overlap"):
        a.copy_from(a, 100, 0, 50)


def test_reused_memory_is_zero_again(vulkan):
    memory = Memory(vulkan)
    for _ in range(20):
        a = memory.allocate(5000)
        assert not read(a, np.uint8).any()
        a.fill(0, 5000, 0xFFFFFFFF)
        del a


@pytest.mark.parametrize("in_block", [False, True])
def test_launch(vulkan, in_block):
    memory = Memory(vulkan)
    launcher = Launcher(vulkan, memory)
    plan = launcher.prepare(compiled("scale", "scale", in_block=in_block))
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


def test_small_writes_keep_their_place_between_launches(vulkan):
    memory = Memory(vulkan)
    plan = Launcher(vulkan, memory).prepare(compiled("count"))
    a, b = memory.allocate(4), memory.allocate(4)
    total = []
    for i in range(50):
        a.write(0, memoryview(struct.pack("<I", i)))
        plan.launch(Arguments.of([None, 3, 7], [None] * 3, {0: a}))
        b.copy_from(a, 4)
        total.append(i + 21)
    assert read(a)[0] == total[-1] and read(b)[0] == total[-1]


def counts(vulkan, end, n):
    memory = Memory(vulkan)
    plan = Launcher(vulkan, memory).prepare(compiled("count", end=end))
    a = memory.allocate(4)
    plan.launch(Arguments.of([None, n, 1], [None] * 3, {0: a}))
    assert read(a)[0] == n


def test_counts_unknown_to_the_host(vulkan):
    counts(vulkan, None, 100_000)
    counts(vulkan, Arg(1), 1000)


def test_counts_far_beyond_the_group_limit(open_vulkan):
    vulkan = open_vulkan(debug=True)
    counts(vulkan, Arg(1), 70_000_000 if vulkan.caps.max_groups < 1 << 20 else 1000)


def test_ten_thousand_launches_neither_grow_nor_complain(open_vulkan):
    vulkan = open_vulkan(debug=True)
    memory = Memory(vulkan)
    launcher = Launcher(vulkan, memory)
    plan = launcher.prepare(compiled("count"))
    a = memory.allocate(4)

    def some(times):
        for _ in range(times):
            scratch = memory.allocate(1000)  # freed while launches that could use it are pending
            plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: a}))
            del scratch

    some(2000)
    launcher.synchronize()
    gc.collect()
    used, objects, blocks = vulkan._allocator.used, len(gc.get_objects()), len(vulkan._allocator.blocks)
    some(8000)
    launcher.synchronize()
    gc.collect()
    assert read(a)[0] == 10_000
    assert vulkan._allocator.used == used and len(vulkan._allocator.blocks) == blocks
    assert len(gc.get_objects()) < objects + 100


def test_recording_is_cheap(open_vulkan):
    vulkan = open_vulkan()
    memory = Memory(vulkan)
    launcher = Launcher(vulkan, memory)
    plan = launcher.prepare(compiled("count"))
    a = memory.allocate(4)
    plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: a}))
    found = calls_of(lambda: plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: a})), 500)  # batches are submitted in between
    assert found < 20, found


def test_large_buffers(open_vulkan):
    vulkan = open_vulkan(debug=True)
    memory = Memory(vulkan)
    launcher = Launcher(vulkan, memory)
    plan = launcher.prepare(compiled("scale"))
    n = 130 << 18  # 130 MiB: beyond maxStorageBufferRange of many devices
    a = memory.allocate(4 * n)
    a.write(4 * (n - 2), memoryview(struct.pack("<II", 5, 6)))
    plan.launch(Arguments.of([None, n, 1], [None] * 3, {0: a}))
    tail = read(a, offset=4 * (n - 2))
    assert tail.tolist() == [10 + 1 + n - 2, 12 + 1 + n - 1]
    assert read(a, count=2).tolist() == [1, 2]


def test_out_of_memory_leaves_the_device_usable(open_vulkan):
    vulkan = open_vulkan(debug=True)
    memory = Memory(vulkan)
    limit = vulkan.caps.max_allocation
    with pytest.raises(OutOfDeviceMemory, match=f"{limit + 4096} bytes: .*at most {limit} bytes"):
        memory.allocate(limit + 4096)
    a = memory.allocate(16)
    a.write(0, memoryview(b"usable"))
    assert bytes(read(a, np.uint8)[:6]) == b"usable"


def test_memory_that_the_driver_refuses(open_vulkan):
    vulkan = open_vulkan(debug=True)
    memory = Memory(vulkan)
    functions = vulkan._fn
    allocate, failures = functions.AllocateMemory, [0]

    def refuse(*args):
        if failures[0]:
            failures[0] -= 1
            return -2  # VK_ERROR_OUT_OF_DEVICE_MEMORY
        return allocate(*args)

    functions.AllocateMemory = refuse
    kept = memory.allocate(1000)
    freed = memory.allocate(50 << 20)
    freed.free()
    failures[0] = 1
    again = memory.allocate(50 << 20)  # the second try, after unused blocks went back, succeeds
    failures[0] = 100
    with pytest.raises(OutOfDeviceMemory, match=f"out of memory .VK_ERROR_OUT_OF_DEVICE_MEMORY. when trying to allocate {90 << 20} bytes"):
        memory.allocate(90 << 20)
    failures[0] = 0
    for a in (kept, again, memory.allocate(90 << 20)):
        a.write(0, memoryview(b"ok"))
        assert bytes(read(a, np.uint8, 0, 2)) == b"ok"


def test_lost_device_is_told_clearly(open_vulkan):
    vulkan = open_vulkan()
    memory = Memory(vulkan)
    plan = Launcher(vulkan, memory).prepare(compiled("count"))
    a = memory.allocate(4)
    submit, vulkan._fn.QueueSubmit = vulkan._fn.QueueSubmit, lambda *_: -4  # VK_ERROR_DEVICE_LOST
    plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: a}))
    for _ in range(2):
        with pytest.raises(SpirogradRuntimeError, match=r"device was lost.*call init again"):
            vulkan.synchronize()
    with pytest.raises(SpirogradRuntimeError, match="device was lost"):
        plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: a}))
    vulkan._fn.QueueSubmit = submit


def test_short_waits_are_polled_and_long_ones_block(open_vulkan):
    vulkan = open_vulkan()
    memory = Memory(vulkan)
    plan = Launcher(vulkan, memory).prepare(compiled("count"))
    a = memory.allocate(4)
    functions, blocked = vulkan._fn, []
    wait = functions.WaitSemaphores

    def block(*args):
        blocked.append(1)
        return wait(*args)

    functions.WaitSemaphores = block
    vulkan._stream.poll_nanoseconds = 20_000_000_000
    for _ in range(20):
        plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: a}))
        vulkan.synchronize()
    assert not blocked
    vulkan._stream.poll_nanoseconds = 0
    functions.GetSemaphoreCounterValue = lambda *_: 0  # the work is never seen to be done
    plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: a}))
    vulkan.synchronize()
    assert blocked == [1]
    assert read(a)[0] == 21


def test_a_long_wait_is_interrupted(ctrl_c, open_vulkan):
    """Where no handler runs: the driver returns after a time, and asks again."""
    vulkan = open_vulkan()
    memory = Memory(vulkan)
    plan = Launcher(vulkan, memory).prepare(compiled("count"))
    a = memory.allocate(4)
    functions, calls = vulkan._fn, []
    wait, poll = functions.WaitSemaphores, functions.GetSemaphoreCounterValue

    def time_out(*_):
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return 2  # VK_TIMEOUT

    functions.WaitSemaphores, functions.GetSemaphoreCounterValue = time_out, lambda *_: 0
    plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: a}))
    with pytest.raises(KeyboardInterrupt):
        vulkan.synchronize()
    assert len(calls) == 3
    functions.WaitSemaphores, functions.GetSemaphoreCounterValue = wait, poll
    plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: a}))
    assert read(a)[0] == 2


def test_cap_counts_live_memory(open_vulkan):
    vulkan = open_vulkan(debug=True, device_memory_bytes=1 << 20)
    memory = Memory(vulkan)
    a = memory.allocate(900_000)
    with pytest.raises(OutOfDeviceMemory, match=r"200000 bytes: .* of the 1048576 bytes that the option `device_memory_GB` allows"):
        memory.allocate(200_000)
    a.free()
    assert memory.allocate(200_000).nbytes == 200_000


def test_empty_blocks_go_back(open_vulkan):
    vulkan = open_vulkan(debug=True)
    memory = Memory(vulkan)
    many = [memory.allocate(8 << 20) for _ in range(30)]
    big = memory.allocate(100 << 20)
    assert len(vulkan._allocator.blocks) >= 3
    del many, big
    vulkan.synchronize()
    assert len(vulkan._allocator.blocks) <= 1 and vulkan._allocator.used == 0


def test_block_merges_free_neighbours():
    block = Block(None, None, 4096, 0, 0, False, [0], [4096])
    rng = np.random.default_rng(3)
    taken = []
    for _ in range(2000):
        if taken and rng.random() < 0.5:
            block.give(*taken.pop(rng.integers(len(taken))))
        else:
            size = 256 * int(rng.integers(1, 5))
            offset = block.take(size)
            if offset is not None:
                taken.append((offset, size))
        covered = sorted(taken + list(zip(block.offsets, block.sizes)))
        assert sum(size for _, size in covered) == 4096
        assert all(a + n == b for (a, n), (b, _) in itertools.pairwise(covered))
        assert all(a + n < b for a, n, b in zip(block.offsets, block.sizes, block.offsets[1:]))
    for part in taken:
        block.give(*part)
    assert block.empty


def test_threads(open_vulkan):
    vulkan = open_vulkan(debug=True)
    memory = Memory(vulkan)
    launcher = Launcher(vulkan, memory)
    plan = launcher.prepare(compiled("count"))
    total = memory.allocate(4)
    errors = []

    def work():
        try:
            mine = memory.allocate(4)
            for i in range(300):
                plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: total}))
                plan.launch(Arguments.of([None, 2, 1], [None] * 3, {0: mine}))
                if i % 50 == 0:
                    assert read(mine)[0] == 2 * (i + 1)
            assert read(mine)[0] == 600
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and read(total)[0] == 1200


def test_bad_modules_are_refused(open_vulkan):
    vulkan = open_vulkan()
    block = ArgBlock((), "<", 0)
    for binary in (b"", b"not a module at all.", module("count")[:-2]):
        with pytest.raises(SpirogradRuntimeError, match="no SPIR-V module"):
            vulkan.load(CompiledKernel("bad", "vulkan", "bad", block, (TaskInfo("t", "serial", "main", 0),), (binary,)))
    with pytest.raises(SpirogradRuntimeError, match="compiled for 'cpu'"):
        vulkan.load(CompiledKernel("bad", "cpu", "bad", block, (), ()))


def test_validation_messages_become_errors(open_vulkan):
    vulkan = open_vulkan(debug=True)
    memory = Memory(vulkan)
    a = memory.allocate(16)
    vulkan.fill(a.buffer, 0, 1 << 40, 0)  # far past the end of the block: only the layer notices before it runs
    with pytest.raises(SpirogradRuntimeError, match=r"(?s)validation layer reports:\n.*VUID-vkCmdFillBuffer"):
        vulkan.launch(vulkan.load(compiled("count")), bytes(16), (0,))
    vulkan._stream.fn.EndCommandBuffer(vulkan._stream.commands)  # drop it: it must not run
    vulkan._stream.words[call_words.COMMANDS // 8] = 0
    vulkan._messages.clear()


@pytest.mark.needs("validation")
def test_the_layer_checks_modules(open_vulkan):
    """As spirv-val does, which therefore need not see the modules of tests on Vulkan."""
    capability = struct.Struct("<II")
    right = module("count")
    assert right.count(capability.pack(2 << 16 | 17, 5347)) == 1  # OpCapability PhysicalStorageBufferAddresses
    wrong = right.replace(capability.pack(2 << 16 | 17, 5347), capability.pack(2 << 16 | 17, 1))
    with pytest.raises(SpirogradRuntimeError, match=r"(?s)validation layer reports:.*PhysicalStorageBufferAddresses"):
        vulkan = open_vulkan(debug=True)
        vulkan.load(CompiledKernel("bad", "vulkan", "bad", ArgBlock((), "<", 0), (TaskInfo("t", "serial", "main", 0),), (wrong,)))
        vulkan.synchronize()


def test_missing_layer_is_named():
    """Debug mode goes without it, and says so; SG_VALIDATION=1 does not."""
    code = (
        "from spirograd.runtime.devices.vulkan import instance\n"
        "instance._VALIDATION_LAYER = 'VK_LAYER_that_nobody_has'\n"
        "from spirograd.runtime.loader import open_device\n"
        "open_device('vulkan', debug=True)\n"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | {"SG_VALIDATION": "0"})
    assert result.returncode == 0
    assert "without the Vulkan validation layer, which is not installed" in result.stderr
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | {"SG_VALIDATION": "1"})
    assert result.returncode == 1
    assert "VK_LAYER_that_nobody_has is not installed" in result.stderr


def test_device_choice(open_vulkan, monkeypatch):
    name = open_vulkan().info.name
    monkeypatch.setenv("SG_DEVICE", name[2:6].upper())
    assert open_vulkan().info.name
    monkeypatch.setenv("SG_DEVICE", "0")
    assert open_vulkan().info.name
    monkeypatch.setenv("SG_DEVICE", "no such thing")
    with pytest.raises(SpirogradRuntimeError, match="SG_DEVICE=no such thing: no Vulkan device"):
        open_vulkan()
    monkeypatch.setenv("SG_DEVICE", "77")
    with pytest.raises(SpirogradRuntimeError, match="SG_DEVICE=77: there is no such"):
        open_vulkan()


def test_after_close_calls_raise_and_frees_do_nothing(open_vulkan):
    vulkan = open_vulkan(debug=True)
    memory = Memory(vulkan)
    a = memory.allocate(16)
    executable = vulkan.load(compiled("count"))
    vulkan.close()
    vulkan.close()
    for call, args in ((memory.allocate, (4,)), (vulkan.synchronize, ()), (vulkan.launch, (executable, bytes(16), (1,)))):
        with pytest.raises(SpirogradRuntimeError, match="was closed"):
            call(*args)
    with pytest.raises(SpirogradRuntimeError, match="was closed"):
        read(a)
    a.free()


def test_exit_with_everything_open_is_silent():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from unit.runtime.spirv_modules import compiled\n"
        "from spirograd.runtime.loader import open_device\n"
        "from spirograd.runtime.allocations import Memory\n"
        "from spirograd.base.arguments import Arguments\n"
        "from spirograd.runtime.launcher import Launcher\n"
        "device = open_device('vulkan', debug=True)\n"
        "memory = Memory(device); plan = Launcher(device, memory).prepare(compiled('count'))\n"
        "a = memory.allocate(4)\n"
        "for _ in range(700): plan.launch(Arguments.of([None, 1, 1], [None] * 3, {0: a}))\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(TESTS)], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_child_gets_a_clear_error(open_vulkan):
    vulkan = open_vulkan()
    memory = Memory(vulkan)
    a = memory.allocate(16)
    child = os.fork()
    if child == 0:
        try:
            vulkan.synchronize()
        except SpirogradRuntimeError as error:
            os._exit(7 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert read(a).tolist() == [0] * 4


def test_pipeline_cache_on_disk(open_vulkan, tmp_path):
    for _ in range(2):
        vulkan = open_vulkan(debug=True, cache_folder=tmp_path)
        vulkan.load(compiled("scale"))
        vulkan.close()
    files = list(tmp_path.iterdir())
    assert len(files) == 1 and files[0].name.startswith("pipelines-") and files[0].stat().st_size > 36
    files[0].write_bytes(files[0].read_bytes()[:-1] + b"\xff")
    vulkan = open_vulkan(debug=True, cache_folder=tmp_path)  # a damaged file is not given to the driver
    vulkan.load(compiled("scale"))


def test_instances_are_used_again(open_vulkan):
    """By one device after the other, each with messages of its own; devices that are open at once have an instance each."""
    first = open_vulkan()
    instance = first._instance
    first.close()
    second, third = open_vulkan(), open_vulkan()
    assert second._instance is instance is not third._instance
    assert second._messages is not first._messages


@pytest.mark.parametrize("before", [0, 1, 62, 63, 64, 65, 127, 128, 129])
def test_staging_belongs_to_the_submission_that_copies(open_vulkan, monkeypatch, before):
    """However many commands there were before, some of which were submitted already: a download waits for its own copy, and staging is
    used again when the copy that uses it is done. On cards this is the way of all memory."""
    vulkan = open_vulkan(debug=True, mappable=False)
    memory, stream = Memory(vulkan), vulkan._stream
    a, other = memory.allocate(100_000), memory.allocate(16)
    data = np.random.default_rng(before).integers(0, 256, a.nbytes, dtype=np.uint8)
    waited = []
    wait = stream.wait
    monkeypatch.setattr(stream, "wait", lambda value: (waited.append(value), wait(value)))

    def some():
        vulkan.synchronize()
        for k in range(before):
            other.fill(0, 16, k)

    some()
    a.write(0, memoryview(data))
    assert stream.commands is not None and stream.slots[stream._current].staged, "the copy is in the command buffer that has the staging"
    some()
    waited.clear()
    back = read(a, np.uint8)
    assert max(waited) == stream.submitted, "after the copy, which was submitted last"
    np.testing.assert_array_equal(back, data)

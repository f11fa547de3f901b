import gc
import itertools
import os
import re
import struct
import subprocess
import sys
import threading
import time

import needs
import numpy as np
import pytest
from wgpu_modules import compiled, module

from spirograd.base.artifact import ArgBlock, CompiledKernel, TaskInfo
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.runtime import loader
from spirograd.runtime.devices import grid
from spirograd.runtime.launcher import Launcher
from spirograd.runtime.memory import Memory

TWO, THREE = ((0,), (8,)), ((0,), (8,), (16,))


@pytest.fixture
def open_wgpu():
    """Opens wgpu devices that are closed after the test."""
    opened = []

    def make(**options):
        needs.need("wgpu")
        needs.need("spirv-as")
        device = loader.open_device("wgpu", **options)
        opened.append(device)
        return device

    yield make
    for device in opened:
        device.close()


@pytest.fixture(params=["trusted", "checked"])
def wgpu(request, open_wgpu):
    """A device, once with modules as they are, once with wgpu's own checks in them."""
    return open_wgpu(debug=request.param == "checked")


def read(allocation, dtype=np.uint32, offset=0, count=None):
    dtype = np.dtype(dtype)
    raw = bytearray((allocation.nbytes - offset) if count is None else count * dtype.itemsize)
    allocation.read_into(offset, memoryview(raw))
    return np.frombuffer(raw, dtype)


def filled(memory, values):
    data = np.ascontiguousarray(values, np.uint32)
    a = memory.allocate(max(data.nbytes, 4))
    a.write(0, memoryview(data))
    return a


def run(plan, n, a, *arrays):
    plan.launch([n, a], [None] * 2, dict(enumerate(arrays)))


def native(device):
    """wgpu's own device, for what only wgpu can break."""
    return device._device


def test_capabilities(open_wgpu):
    wgpu = open_wgpu()
    caps = wgpu.caps
    assert caps.profile == "wgpu" and not caps.buffer_address and not caps.atomic_cas
    assert not (caps.int8 or caps.int16 or caps.storage8 or caps.storage16 or caps.atomic_f32_minmax or caps.atomic_f64_add)
    limits = native(wgpu).limits
    assert caps.max_buffers == limits["max-storage-buffers-per-shader-stage"] >= 8
    assert caps.max_allocation <= limits["max-storage-buffer-binding-size"] and caps.max_allocation >= 1 << 27
    assert caps.max_groups == limits["max-compute-workgroups-per-dimension"] and caps.max_group_size >= 256
    assert caps.exact_specials == caps.exact_subnormals == ()
    assert not caps.subgroup_arithmetic or caps.subgroup_size > 0
    detail = dict(wgpu.info.detail)
    assert wgpu.info.arch == "wgpu" and wgpu.info.name and wgpu.info.driver
    assert detail["backend"] and re.fullmatch(r"\d+(\.\d+)+", detail["wgpu-native"])
    if "llvmpipe" in wgpu.info.name:
        assert caps.loop_limit == grid.LLVMPIPE_LOOP_LIMIT


# --- memory ---


def test_transfers(wgpu):
    memory = Memory(wgpu)
    rng = np.random.default_rng(1)
    for nbytes in (1, 2, 3, 4, 5, 7, 100, 65536, 65541, 5_000_001, 30_000_000):
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


@pytest.mark.parametrize("seed", range(3))
def test_random_transfers_against_a_byte_array(open_wgpu, seed):
    """Sizes and offsets that are no multiples of wgpu's 4 bytes, with recorded copies, fills and launches between them."""
    wgpu = open_wgpu()
    memory = Memory(wgpu)
    plan = Launcher(wgpu, memory).prepare(compiled("scale"))
    rng = np.random.default_rng(seed)
    size = 512
    devices = [memory.allocate(size) for _ in range(3)]
    hosts = [np.zeros(size, np.uint8) for _ in devices]
    for step in range(200):
        i, j = rng.choice(3, 2, replace=False)
        at, to, length = (int(v) for v in rng.integers(0, size // 2, 3))
        action = rng.integers(5)
        if action == 0:
            data = rng.integers(0, 256, length, dtype=np.uint8)
            devices[i].write(at, memoryview(data))
            hosts[i][at : at + length] = data
        elif action == 1:
            devices[j].copy_from(devices[i], length, to, at)
            hosts[j][to : to + length] = hosts[i][at : at + length]
        elif action == 2:
            word = int(rng.integers(0, 1 << 32)) if step % 2 else 0
            at, length = at // 4 * 4, length // 4 * 4
            devices[i].fill(at, length, word)
            hosts[i][at : at + length].view(np.uint32)[:] = word
        elif action == 3:
            run(plan, size // 4, step, devices[i])
            words = hosts[i].view(np.uint32)
            words[:] = words * 2 + np.uint32(step) + np.arange(size // 4, dtype=np.uint32)
        else:
            assert (read(devices[i], np.uint8, at, length) == hosts[i][at : at + length]).all()
    for device, host in zip(devices, hosts):
        assert (read(device, np.uint8) == host).all()


def test_fills_are_in_order_and_large(open_wgpu):
    memory = Memory(open_wgpu())
    a, b = memory.allocate(5_000_000), memory.allocate(1000)
    words = (0x01020304, 0xFFFFFFFF, 0, 0x80000000, 0x01020304)
    for word in words:
        a.fill(4, 4_999_992, word)
        b.fill(4 * (word % 7), 40, word)
    back = read(a)
    assert (back[1:1249999] == words[-1]).all() and back[0] == 0 and not back[1249999:].any()
    expected = np.zeros(250, np.uint32)
    for word in words:
        expected[word % 7 : word % 7 + 10] = word
    assert (read(b)[:250] == expected).all()


def test_addresses_are_never_used_twice_and_never_touch(open_wgpu):
    memory = Memory(open_wgpu())
    seen = []
    for k in range(300):
        a = memory.allocate(16 * (k % 40) + 1)
        assert a.address % 256 == 0 and a.address > 0
        seen.append((a.address, a.address + a.nbytes))
        if k % 3:
            a.free()
    seen.sort()
    assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(seen))


def test_too_large_is_told_with_the_bytes_the_limit_and_why(open_wgpu):
    wgpu = open_wgpu()
    memory = Memory(wgpu)
    limit = wgpu.caps.max_allocation
    with pytest.raises(OutOfDeviceMemory, match=rf"{limit + 1} bytes.*\(max-\S*-size\).* {limit} bytes"):
        memory.allocate(limit + 1)
    a = memory.allocate(limit)
    a.write(limit - 6, memoryview(b"usable"))
    assert bytes(read(a, np.uint8, limit - 6)) == b"usable"
    plan = Launcher(wgpu, memory).prepare(compiled("scale"))
    run(plan, limit // 4, 3, a)
    assert read(a, count=2).tolist() == [3, 4]


def test_memory_that_the_driver_refuses(open_wgpu, monkeypatch):
    wgpu = open_wgpu()
    memory = Memory(wgpu)
    kept = memory.allocate(1000)
    device = native(wgpu)
    create, failures = device.create_buffer, [0]

    def refuse(**options):
        if failures[0]:
            failures[0] -= 1
            raise sys.modules["wgpu"].GPUOutOfMemoryError("Not enough memory left.")
        return create(**options)

    monkeypatch.setattr(device, "create_buffer", refuse)
    failures[0] = 1
    again = memory.allocate(1000)  # the second try, after what was freed came back, succeeds
    failures[0] = 100
    with pytest.raises(OutOfDeviceMemory, match=r"cannot allocate 2000 bytes through wgpu: Not enough memory left"):
        memory.allocate(2000)
    failures[0] = 0
    for a in (kept, again, memory.allocate(2000)):
        a.write(0, memoryview(b"ok"))
        assert bytes(read(a, np.uint8, 0, 2)) == b"ok"


def test_cap_counts_live_memory(open_wgpu):
    memory = Memory(open_wgpu(device_memory_bytes=1 << 20))
    a = memory.allocate(900_000)
    with pytest.raises(OutOfDeviceMemory, match=r"200000 bytes: .* of the 1048576 bytes that the option `device_memory_GB` allows"):
        memory.allocate(200_000)
    a.free()
    assert memory.allocate(200_000).nbytes == 200_000


# --- launches ---


@pytest.mark.parametrize("in_block", [False, True])
def test_launch(wgpu, in_block):
    memory = Memory(wgpu)
    plan = Launcher(wgpu, memory).prepare(compiled("scale", "scale", in_block=in_block))
    n = 1000
    expected = np.arange(n, dtype=np.uint32)
    a = filled(memory, expected)
    for step in range(5):
        run(plan, n, step, a)
        for _ in range(2):
            expected = expected * 2 + np.uint32(step) + np.arange(n, dtype=np.uint32)
    assert (read(a)[:n] == expected).all()
    run(plan, 0, 9, a)
    assert (read(a)[:n] == expected).all()


def test_small_writes_keep_their_place_between_launches(wgpu):
    memory = Memory(wgpu)
    plan = Launcher(wgpu, memory).prepare(compiled("count"))
    a, b = memory.allocate(4), memory.allocate(4)
    for i in range(50):
        a.write(0, memoryview(struct.pack("<I", i)))
        run(plan, 3, 7, a)
        b.copy_from(a, 4)
        run(plan, 1, 1000, a)
    assert read(a)[0] == 49 + 21 + 1000 and read(b)[0] == 49 + 21


def test_counts_unknown_to_the_host_and_far_beyond_the_group_limit(open_wgpu):
    wgpu = open_wgpu()
    memory = Memory(wgpu)
    launcher = Launcher(wgpu, memory)
    for end, n in ((None, 100_000), (("arg", 0), 64 * wgpu.caps.max_groups + 12345)):
        plan = launcher.prepare(compiled("count", end=end))
        a = memory.allocate(4)
        run(plan, n, 1, a)
        assert read(a)[0] == n


def test_blocks_too_large_for_immediates(open_wgpu):
    """More of them than the ring holds, each seen by its own dispatch."""
    wgpu = open_wgpu()
    memory = Memory(wgpu)
    launcher = Launcher(wgpu, memory)
    plan = launcher.prepare(compiled("count", in_block=True, padding=5000))
    a = memory.allocate(4)
    for k in range(700):
        run(plan, 1, k, a)
    assert read(a)[0] == sum(range(700))
    with pytest.raises(SpirogradRuntimeError, match=r"the arguments of k take 1000016 bytes; at most \d+ are possible"):
        launcher.prepare(compiled("count", in_block=True, padding=1_000_000))


def test_ten_thousand_launches_do_not_grow(open_wgpu):
    wgpu = open_wgpu()
    memory = Memory(wgpu)
    launcher = Launcher(wgpu, memory)
    plan = launcher.prepare(compiled("sum", bindings=TWO))
    a = filled(memory, [0])

    def some(times):
        for _ in range(times):
            scratch = memory.allocate(1000)  # freed while launches that use it are pending
            run(plan, 1, 1, a, scratch)
            del scratch

    def counts():
        launcher.synchronize()
        gc.collect()
        live = sys.modules["wgpu"].diagnostics.object_counts.get_dict()
        return {kind: entry["count"] for kind, entry in live.items()}, len(gc.get_objects()), wgpu._allocator._used

    some(2000)
    before = counts()
    some(8000)
    after = counts()
    assert read(a)[0] == 10_000
    assert after[0] == before[0] and after[2] == before[2]
    assert after[1] < before[1] + 100


def test_bind_groups_are_kept_but_not_for_ever(open_wgpu):
    wgpu = open_wgpu()
    memory = Memory(wgpu)
    plan = Launcher(wgpu, memory).prepare(compiled("count"))
    cache = plan._executable.tasks[0].groups
    many = [memory.allocate(16) for _ in range(1500)]
    for a in many:
        run(plan, 1, 5, a)
    assert 0 < len(cache.entries) <= 512
    run(plan, 1, 5, many[0])
    group = cache.entries[(many[0].address,)]
    run(plan, 1, 5, many[0])
    assert cache.entries[(many[0].address,)] is group
    assert [read(a)[0] for a in many] == [15] + [5] * 1499
    del many, a, group
    wgpu.synchronize()
    assert not cache.entries and not cache._keys


def test_recording_is_cheap(open_wgpu):
    wgpu = open_wgpu()
    memory = Memory(wgpu)
    plan = Launcher(wgpu, memory).prepare(compiled("sum", bindings=TWO))
    a, b = memory.allocate(4), memory.allocate(4)
    best = 1.0
    for _ in range(20):
        wgpu.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            run(plan, 1, 1, a, b)
        best = min(best, (time.perf_counter() - start) / 200)
    assert best < 60e-6, f"{best * 1e6:.1f} us"


def test_a_freed_array_is_refused(open_wgpu):
    wgpu = open_wgpu()
    memory = Memory(wgpu)
    executable = wgpu.load(compiled("count"))
    a = memory.allocate(16)
    block = struct.pack("<QII", a.address, 1, 1)
    wgpu.launch(executable, block, (1,))
    a.free()
    wgpu.synchronize()
    with pytest.raises(SpirogradRuntimeError, match=r"no memory of this device begins at address 0x\w+: it was freed"):
        wgpu.launch(executable, block, (1,))


def test_threads(open_wgpu):
    wgpu = open_wgpu()
    memory = Memory(wgpu)
    plan = Launcher(wgpu, memory).prepare(compiled("count"))
    total = memory.allocate(4)
    errors = []

    def work():
        try:
            mine = memory.allocate(4)
            for i in range(300):
                run(plan, 1, 1, total)
                run(plan, 2, 1, mine)
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


# --- arrays that share a binding ---


def sums(data, steps):
    """What "sum" makes of arrays: the first grows by ``a`` and all others."""
    first = data[0].copy()
    for a in steps:
        first = first + np.uint32(a) + sum(data[1:])
    return first


@pytest.mark.parametrize("in_block", [False, True])
@pytest.mark.parametrize("bindings", [((0, 8, 16),), ((0,), (8, 16)), ((0, 16), (8,)), ((0, 8), (8, 16)), ((0, 8), (16, 24))])
def test_shared_bindings(wgpu, bindings, in_block):
    memory = Memory(wgpu)
    launcher = Launcher(wgpu, memory)
    count = len({offset for entry in bindings for offset in entry})
    layout = bindings if bindings != ((0, 8), (8, 16)) else ((0, 8), (16, 8))
    plan = launcher.prepare(compiled("sum", bindings=layout, in_block=in_block))
    apart = launcher.prepare(compiled("sum", bindings=tuple((8 * k,) for k in range(count))))
    rng = np.random.default_rng(5)
    n = 100
    data = [rng.integers(0, 1 << 32, n, dtype=np.uint32) for _ in range(count)]
    arrays = [filled(memory, d) for d in data]
    addresses = [a.address for a in arrays]
    run(apart, n, 1, *arrays)  # bind groups made before the arrays move
    run(plan, n, 2, *arrays)
    run(apart, n, 3, *arrays)
    run(plan, n, 4, *arrays)
    assert (read(arrays[0])[:n] == sums(data, [1, 2, 3, 4])).all()
    for a, d in zip(arrays[1:], data[1:]):
        assert (read(a)[:n] == d).all()
        a.write(0, memoryview(d[::-1].copy()))  # transfers find them where they are now
    assert (read(arrays[1])[:n] == data[1][::-1]).all()
    assert [a.address for a in arrays] == addresses


def test_groups_of_arrays_merge(open_wgpu):
    """Arrays that share with different others end up in one buffer; what was freed stays behind."""
    wgpu = open_wgpu()
    memory = Memory(wgpu)
    launcher = Launcher(wgpu, memory)
    plan = launcher.prepare(compiled("sum", bindings=((0, 8),)))
    data = [np.arange(50, dtype=np.uint32) * (k + 1) for k in range(5)]
    a, b, c, d, freed = (filled(memory, x) for x in data)
    run(plan, 50, 0, a, b)
    run(plan, 50, 0, c, freed)
    freed.free()
    wgpu.synchronize()
    run(plan, 50, 0, a, c)
    run(plan, 50, 0, b, d)
    run(plan, 50, 0, d, d)
    places = [x.buffer.handle for x in (a, b, c)]
    assert len({id(p.buffer) for p in places}) == 1 and len(places[0].neighbours) == 4
    assert places[0].buffer.size == 4 * 256
    data[0] = data[0] + data[1]
    data[2] = data[2] + data[4]
    data[0] = data[0] + data[2]
    data[1] = data[1] + data[3]
    data[3] = data[3] * 2
    for x, expected in zip((a, b, c, d), data):
        assert (read(x)[:50] == expected).all()
    b.copy_from(a, 200)  # within one buffer of wgpu
    assert (read(b)[:50] == data[0]).all()


def test_copies_within_a_shared_buffer_keep_their_order(open_wgpu):
    wgpu = open_wgpu()
    memory = Memory(wgpu)
    plan = Launcher(wgpu, memory).prepare(compiled("sum", bindings=((0, 8),)))
    a, b = filled(memory, [1] * 10), filled(memory, [2] * 10)
    for _ in range(3):
        run(plan, 10, 0, a, b)  # a += b
        b.copy_from(a, 40)
    assert (read(a)[:10] == 12).all() and (read(b)[:10] == 12).all()


def test_arrays_that_share_must_fit_one_binding(open_wgpu):
    wgpu = open_wgpu()
    memory = Memory(wgpu)
    plan = Launcher(wgpu, memory).prepare(compiled("sum", bindings=((0, 8),)))
    limit = wgpu.caps.max_allocation
    a, b = memory.allocate(limit // 2), memory.allocate(limit // 2 + 256)
    a.fill(0, 16, 7)
    with pytest.raises(OutOfDeviceMemory, match=rf"they take {limit + 256} bytes, and one binding holds {limit}"):
        run(plan, 1, 1, a, b)
    small = filled(memory, [5])
    run(plan, 1, 1, a, small)
    assert read(a, count=2).tolist() == [13, 7]


# --- errors ---


def test_bad_modules_are_refused(wgpu, capfd):
    block = ArgBlock((), "<", 0)
    for binary in (b"", b"not a module at all.", module("count")[:-2]):
        with pytest.raises(SpirogradRuntimeError, match=r"kernel bad \(t\): this is no SPIR-V module"):
            wgpu.load(CompiledKernel("bad", "wgpu", "bad", block, (TaskInfo("t", "serial", "main", 0),), (binary,)))
    with pytest.raises(SpirogradRuntimeError, match="compiled for 'cpu'"):
        wgpu.load(CompiledKernel("bad", "cpu", "bad", block, (), ()))
    good = compiled("count")
    cut = good.binaries[0][:200]
    unbound = CompiledKernel("loose", "wgpu", "k", good.args, (TaskInfo("t0", "serial", "main", 0, group_size=64),), good.binaries)
    nameless = CompiledKernel("k", "wgpu", "k", good.args, (TaskInfo("t0", "serial", "other", 0, bindings=((0,),)),), good.binaries)
    half = CompiledKernel("half", "wgpu", "k", good.args, good.tasks, (cut,))
    for kernel, said in ((half, r"half \(t0\) .*\n.*"), (unbound, r"loose \(t0\) .*\n[^\0]*bind"), (nameless, r"k \(t0\) .*\n[^\0]*other")):
        with pytest.raises(SpirogradRuntimeError, match="cannot load " + said):
            wgpu.load(kernel)
    memory = Memory(wgpu)
    a = memory.allocate(4)
    run(Launcher(wgpu, memory).prepare(good), 3, 1, a)
    assert read(a)[0] == 3
    assert capfd.readouterr() == ("", "")


def test_bytes_outside_are_refused(open_wgpu):
    """Also where an array shares its buffer with others, which must not be reached."""
    wgpu = open_wgpu()
    memory = Memory(wgpu)
    plan = Launcher(wgpu, memory).prepare(compiled("sum", bindings=((0, 8),)))
    a, b = memory.allocate(16), memory.allocate(16)
    run(plan, 1, 0, a, b)
    handle, other = a.buffer, b.buffer
    for call in (
        lambda: wgpu.fill(handle, 256, 16, 1),
        lambda: wgpu.upload(handle, 256, memoryview(b"abcd")),
        lambda: wgpu.upload(handle, 255, memoryview(b"abcd")),
        lambda: wgpu.download(handle, 14, memoryview(bytearray(4))),
        lambda: wgpu.copy(handle, 256, other, 0, 16),
        lambda: wgpu.copy(other, 0, handle, -4, 16),
    ):
        with pytest.raises(SpirogradRuntimeError, match=r"bytes -?\d+ to \d+ are outside of a buffer of 16 bytes"):
            call()
    assert not read(a).any() and not read(b).any()
    a.free()
    wgpu.synchronize()
    with pytest.raises(SpirogradRuntimeError, match="the buffer was freed"):
        wgpu.fill(handle, 0, 16, 1)


def test_errors_of_wgpu_are_raised_and_not_printed(open_wgpu, capfd):
    wgpu = open_wgpu()
    from spirograd.runtime.devices.wgpu import api

    memory = Memory(wgpu)
    a = memory.allocate(16)
    for call in (wgpu.synchronize, lambda: read(a), lambda: a.write(0, memoryview(b"abcd"))):
        # Recorded behind the back of the package: wgpu tells what is wrong when the work is submitted.
        api.lib.wgpuCommandEncoderClearBuffer(api.handle(wgpu._stream.commands()), api.handle(a.buffer.handle.buffer), 0, 1 << 20)
        with pytest.raises(SpirogradRuntimeError, match=r"cannot submit work through wgpu: [^\0]*Clear of 0"):
            call()
    a.write(0, memoryview(b"usable"))
    assert bytes(read(a, np.uint8)[:6]) == b"usable"
    assert capfd.readouterr() == ("", "")


def test_lost_device_is_told_clearly_and_others_go_on(open_wgpu, capfd):
    wgpu, other = open_wgpu(), open_wgpu()
    from spirograd.runtime.devices.wgpu import api

    memory, others = Memory(wgpu), Memory(other)
    a, b = memory.allocate(16), others.allocate(16)
    plan = Launcher(wgpu, memory).prepare(compiled("count"))
    run(plan, 1, 1, a)
    api.lib.wgpuDeviceDestroy(api.handle(native(wgpu)))
    # What wgpu logs for a device that the driver takes away:
    log = api.logging.getLogger("wgpu")
    log.error("DEVICE LOST!")
    log.error("The WGPU device was lost (Unknown):\nthe driver said so")
    for call in (
        lambda: read(a),
        wgpu.synchronize,
        lambda: run(plan, 1, 1, a),
        lambda: memory.allocate(16),
        lambda: a.write(0, memoryview(b"x")),
    ):
        with pytest.raises(SpirogradRuntimeError, match=r"device of wgpu was lost[^\0]*call init again[^\0]*the driver said so") as caught:
            call()
        assert not isinstance(caught.value, OutOfDeviceMemory)
    b.write(0, memoryview(b"usable"))
    assert bytes(read(b, np.uint8)[:6]) == b"usable"
    assert not read(Memory(open_wgpu()).allocate(16)).any()
    assert capfd.readouterr() == ("", "")


def test_lost_device_that_only_errors_show(open_wgpu):
    wgpu = open_wgpu()
    from spirograd.runtime.devices.wgpu import api

    a = Memory(wgpu).allocate(16)
    a.fill(0, 16, 1)
    api.lib.wgpuDeviceDestroy(api.handle(native(wgpu)))
    for _ in range(2):
        with pytest.raises(SpirogradRuntimeError, match="device of wgpu was lost"):
            read(a)


# --- choice of the device ---


def test_device_choice(open_wgpu, monkeypatch):
    name = open_wgpu().info.name
    assert loader.devices("wgpu")[0][1] == ""
    for wanted in (name[2:6].upper(), "0"):
        monkeypatch.setenv("SG_DEVICE", wanted)
        assert open_wgpu().info.name
    monkeypatch.setenv("SG_DEVICE", "no such thing")
    with pytest.raises(SpirogradRuntimeError, match="SG_DEVICE=no such thing: no adapter of wgpu"):
        open_wgpu()
    monkeypatch.setenv("SG_DEVICE", "77")
    assert "SG_DEVICE=77: there is no such" in loader.available("wgpu")


def test_backend_choice(open_wgpu, monkeypatch):
    backend = dict(open_wgpu().info.detail)["backend"].lower()
    monkeypatch.setenv("SG_WGPU_BACKEND", backend)
    assert dict(open_wgpu().info.detail)["backend"].lower() == backend
    monkeypatch.setenv("SG_WGPU_BACKEND", "direct3d")
    assert loader.available("wgpu") == "SG_WGPU_BACKEND=direct3d: there is no such backend; there are vulkan, metal, d3d12, gl"
    other = "gl" if backend != "gl" else "vulkan"
    monkeypatch.setenv("SG_WGPU_BACKEND", other)
    assert (
        loader.available("wgpu") == f"wgpu runs on {backend} in this process already; set SG_WGPU_BACKEND={other} when the process starts"
    )


def test_metal_is_refused_elsewhere(monkeypatch):
    if sys.platform == "darwin":
        pytest.skip("this is a Mac")
    with pytest.raises(SpirogradRuntimeError, match="Metal is there on macOS only"):
        loader.open_device("metal")
    assert "macOS only" in loader.available("metal") and loader.devices("metal") == []


@pytest.mark.parametrize(
    "backend, said", [("", "metal"), ("metal", "metal"), ("vulkan", "vulkan"), ("gl", "SG_WGPU_BACKEND=gl: arch=sg.metal")]
)
def test_backend_of_metal(monkeypatch, backend, said):
    needs.need("wgpu")
    from spirograd.runtime.devices.wgpu import features

    monkeypatch.setattr(features.sys, "platform", "darwin")
    monkeypatch.setenv("SG_WGPU_BACKEND", backend)
    if said.startswith("SG_"):
        with pytest.raises(SpirogradRuntimeError, match=said):
            features.backend_name("metal")
    else:
        assert features.backend_name("metal") == said


# --- life ---


def test_after_close_calls_raise_and_frees_do_nothing(open_wgpu):
    wgpu = open_wgpu()
    memory = Memory(wgpu)
    a = memory.allocate(16)
    executable = wgpu.load(compiled("count"))
    wgpu.launch(executable, struct.pack("<QII", a.address, 1, 1), (1,))
    wgpu.close()
    wgpu.close()
    for call, args in ((memory.allocate, (4,)), (wgpu.synchronize, ()), (wgpu.launch, (executable, bytes(16), (1,)))):
        with pytest.raises(SpirogradRuntimeError, match="was closed"):
            call(*args)
    with pytest.raises(SpirogradRuntimeError, match="was closed"):
        read(a)
    a.free()


SCRIPT = (
    "import os, sys; sys.path.insert(0, sys.argv[1])\n"
    "from wgpu_modules import compiled\n"
    "from spirograd.base.errors import SpirogradRuntimeError\n"
    "from spirograd.runtime.loader import open_device\n"
    "from spirograd.runtime.memory import Memory\n"
    "from spirograd.runtime.launcher import Launcher\n"
    "device = open_device('wgpu')\n"
    "memory = Memory(device); plan = Launcher(device, memory).prepare(compiled('count'))\n"
    "a = memory.allocate(4)\n"
    "for _ in range(700): plan.launch([1, 1], [None] * 2, {0: a})\n"
)
FORK = (
    "import gc\n"
    "child = os.fork()\n"
    "if child == 0:\n"
    "    try: device.synchronize()\n"
    "    except SpirogradRuntimeError as error: print(str(error)[:30], flush=True)\n"
    "    del a, plan, memory, device; gc.collect()\n"  # what it drops must not reach wgpu, whose threads are not here
    "    sys.exit(7)\n"
    "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    "out = bytearray(4); a.read_into(0, memoryview(out)); print(int.from_bytes(out, 'little'))\n"
)


def in_process(code):
    needs.need("wgpu")
    needs.need("spirv-as")
    result = subprocess.run([sys.executable, "-c", code, os.path.dirname(__file__)], capture_output=True, text=True, timeout=60)
    return result.returncode, result.stdout, result.stderr


def test_exit_with_everything_open_is_silent():
    assert in_process(SCRIPT) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_child_gets_a_clear_error_and_ends():
    assert in_process(SCRIPT + FORK) == (0, "wgpu does not survive a fork; \n7\n700\n", "")

import gc
import itertools
import re
import struct
import sys
import threading

import numpy as np
import pytest
from unit.runtime.calls import calls_of
from unit.runtime.reading import read
from unit.runtime.wgpu_modules import compiled, filled, native, run

import spirograd as sg
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.base.sizes.size_nodes import Arg
from spirograd.runtime.allocations import Memory
from spirograd.runtime.devices import grid_size
from spirograd.runtime.launcher import Launcher

TWO = ((0,), (8,))


def test_capabilities(open_wgpu):
    wgpu = open_wgpu()
    caps = wgpu.caps
    assert caps.target_name == "wgpu" and not caps.buffer_address and not caps.atomic_cas
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
        assert caps.loop_limit == grid_size.LLVMPIPE_LOOP_LIMIT


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
    for end, n in ((None, 100_000), (Arg(0), 64 * wgpu.caps.max_groups + 12345)):
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
    assert all(after[0][kind] <= before[0][kind] for kind in after[0])  # fewer: what earlier tests left may go in between
    assert after[2] == before[2]
    assert after[1] < before[1] + 100


def test_bind_groups_are_kept_but_not_for_ever(open_wgpu):
    wgpu = open_wgpu()
    memory = Memory(wgpu)
    plan = Launcher(wgpu, memory).prepare(compiled("count"))
    cache = plan.executable.tasks[0].groups
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


def test_a_fast_host_does_not_run_ahead_for_ever(open_wgpu):
    wgpu = open_wgpu()
    memory = Memory(wgpu)
    plan = Launcher(wgpu, memory).prepare(compiled("count"))
    a = memory.allocate(4)
    for _ in range(30 * 256):
        run(plan, 1, 1, a)
    assert len(wgpu._stream._submitted) <= 16
    assert read(a)[0] == 30 * 256


def test_recording_is_cheap(open_wgpu):
    wgpu = open_wgpu()
    memory = Memory(wgpu)
    plan = Launcher(wgpu, memory).prepare(compiled("sum", bindings=TWO))
    a, b = memory.allocate(4), memory.allocate(4)
    run(plan, 1, 1, a, b)
    found = calls_of(lambda: run(plan, 1, 1, a, b), 500)  # batches are submitted in between
    assert found < 50, found


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
    total = sum(-(-x.nbytes // 256) * 256 for x in (a, b))
    with pytest.raises(OutOfDeviceMemory, match=rf"they take {total} bytes, and one binding holds {limit}"):
        run(plan, 1, 1, a, b)
    small = filled(memory, [5])
    run(plan, 1, 1, a, small)
    assert read(a, count=2).tolist() == [13, 7]


@pytest.mark.archs("wgpu")
def test_ended_sessions_leave_no_device(arch):
    """Graphics cards have no place for many: `init` fails, in other processes, too, until the garbage collector has freed them."""
    import wgpu  # where it is missing, there is no such back end

    def counts():
        found = wgpu.diagnostics.wgpu_native_counts.get_dict()
        return {name: number["count"] for name, number in found.items() if name not in ("Adapter", "total")}

    gc.collect()
    sg.reset()
    before = counts()
    gc.disable()
    try:
        for _ in range(3):
            sg.init(arch=arch)
            x, loss = sg.field(sg.f32, 5, needs_grad=True), sg.field(sg.f32, (), needs_grad=True)

            @sg.kernel
            def square():
                for i in x:
                    loss[None] += x[i] * x[i]

            with sg.ad.Tape(loss):
                square()
            assert counts()["Device"] == before["Device"] + 1
        sg.reset()
        assert {name: n for name, n in counts().items() if n > before[name]} == {}
    finally:
        gc.enable()

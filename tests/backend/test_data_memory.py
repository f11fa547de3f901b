"""Device memory: running out, giving back, sessions that end."""

import contextlib
import ctypes
import gc
import resource

import numpy as np
import pytest

import spirograd as sg


@pytest.mark.archs("cpu", "vulkan")
def test_running_out(arch: str) -> None:
    sg.init(arch=arch, device_memory_GB=0.0625)
    held = sg.ndarray(sg.u8, 16 << 20)
    with pytest.raises(sg.OutOfDeviceMemory):
        sg.ndarray(sg.u8, 100 << 20)

    @sg.kernel
    def fill(x: sg.types.ndarray(), v: sg.u8) -> sg.i32:
        for i in range(1000):
            x[i * 16000] = v
        return x[16000 * 999]

    assert fill(held, 7) == 7
    field = sg.field(sg.f32, shape=100 << 20)

    @sg.kernel
    def touch():
        field[0] = 1

    with pytest.raises(sg.OutOfDeviceMemory):
        touch()
    with pytest.raises(sg.OutOfDeviceMemory):
        field.fill(1)
    assert fill(held, 9) == 9
    for _ in range(20):  # each is freed when the next is bound
        held = sg.ndarray(sg.u8, 16 << 20)
        assert fill(held, 3) == 3


def test_far_too_much(arch: str) -> None:
    sg.init(arch=arch)
    with pytest.raises(sg.OutOfDeviceMemory):
        sg.ndarray(sg.u8, 1 << 50)
    with pytest.raises(sg.OutOfDeviceMemory):
        sg.field(sg.f64, shape=(1 << 40, 1 << 30)).fill(0)


@pytest.mark.archs("cpu", "vulkan")
def test_arrays_in_cycles_are_collected_when_memory_is_short(arch: str) -> None:
    sg.init(arch=arch, device_memory_GB=0.0625)

    class Node:
        pass

    gc.disable()
    try:
        for _ in range(6):
            node = Node()
            node.me, node.data = node, sg.ndarray(sg.u8, 20 << 20)
    finally:
        gc.enable()


def test_objects_of_an_earlier_session(arch: str) -> None:
    sg.init(arch=arch)
    f = sg.field(sg.f32, shape=3)
    unused, builder = sg.field(sg.f32), sg.FieldsBuilder()
    builder.dense(sg.i, 3).place(unused)
    a = sg.ndarray(sg.f32, 3)
    f.fill(1)

    @sg.kernel
    def use_field():
        f[0] = 1

    @sg.kernel
    def use_array(x: sg.types.ndarray()):
        x[0] = 1

    @sg.kernel
    def capture():
        a[0] = 1

    use_field(), use_array(a), capture()
    for again in (True, False):
        sg.reset()
        if again:
            sg.init(arch=arch)
        calls = [use_field, lambda: use_array(a), capture, f.to_numpy, a.to_numpy, lambda: f[0], lambda: a.fill(1), lambda: f.copy_from(f)]
        for call in calls:
            with pytest.raises(sg.SpirogradRuntimeError, match=r"earlier session|not initiali[sz]ed"):
                call()
    sg.init(arch=arch)
    unused.fill(2)  # had no memory yet
    x = sg.ndarray(sg.f32, 3)
    use_array(x)
    assert x[0] == 1 and unused[1] == 2


def test_many_sessions(arch: str) -> None:
    """Starting and ending sessions leaves nothing behind; kernels live on."""

    @sg.kernel
    def fill(x: sg.types.ndarray(), k: sg.i32):
        for i in range(100):
            x[i] = k

    def cycle(k: int) -> None:
        sg.init(arch=arch)
        x, f = sg.ndarray(sg.i32, 1 << 20), sg.field(sg.i32, shape=1 << 20)
        fill(x, k)
        f.copy_from(x)
        assert f[77] == k

    for k in range(3):
        cycle(k)
    gc.collect()
    before = resident()
    for k in range(6):
        cycle(k)
    gc.collect()
    assert resident() - before < 32 << 20  # six times 8 MiB of data, if it were kept
    sg.reset()


def resident() -> int:
    """Bytes of this process in memory, without what the allocator of the C library keeps for later."""
    with contextlib.suppress(AttributeError):  # glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


def test_freed_arrays_give_memory_back(arch: str) -> None:
    sg.init(arch=arch)

    @sg.kernel
    def fill(x: sg.types.ndarray(), k: sg.i32):
        for i in range(8):
            x[i] = k

    def once(k: int) -> None:
        x = sg.ndarray(sg.i32, 1 << 21)
        fill(x, k)
        assert x.to_numpy()[7] == k

    for k in range(4):
        once(k)
    gc.collect()
    before = resident()
    for k in range(16):
        once(k)
    gc.collect()
    assert resident() - before < 48 << 20  # 128 MiB, if they were kept


def test_fresh_memory_is_zero(arch: str) -> None:
    sg.init(arch=arch)
    for _ in range(3):
        x = sg.ndarray(sg.i32, 5000)
        f = sg.field(sg.i32, shape=5000)
        assert not x.to_numpy().any() and not f.to_numpy().any()
        x.fill(7)
        f.fill(-1)
        del x


def test_fields_are_the_data_of_their_session(arch: str) -> None:
    """A kernel that captures a field of a new session under the same name."""
    results = []
    for k in range(2):
        sg.init(arch=arch)
        f = sg.field(sg.f32, shape=2 + k)

        @sg.kernel
        def fill():
            for i in f:
                f[i] = i

        fill()
        results.append(f.to_numpy())
    np.testing.assert_array_equal(results[0], [0, 1])
    np.testing.assert_array_equal(results[1], [0, 1, 2])

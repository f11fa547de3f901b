"""Device memory: running out, giving back, sessions that end."""

import contextlib
import ctypes
import gc
import resource

import numpy as np
import pytest

import spirograd as sg


@pytest.mark.parametrize("first", ["small", "large"])
def test_a_field_without_memory_harms_no_other(arch: str, first: str) -> None:
    """Fields that are placed together lie in one allocation, unless there is no memory for all of them."""
    sg.init(arch=arch, device_memory_GB=1 / 16)
    small = sg.field(sg.i32, 5)
    large = sg.field(sg.f32, 1 << 26)
    of_parts = sg.Vector.field(2, sg.f32, 3, layout=sg.Layout.SOA)
    active = sg.field(sg.f32, 4, needs_grad=True)

    @sg.kernel
    def count():
        for i in small:
            small[i] += i

    @sg.kernel
    def grow():
        for i in large:
            large[i] += 1

    @sg.kernel
    def square():
        for i in of_parts:
            of_parts[i] += active[i] * active[i]

    def refused() -> None:
        for use in (grow, lambda: large[3], lambda: large.fill(1), large.to_numpy):
            with pytest.raises(sg.OutOfDeviceMemory, match="there is no memory for `large`: cannot allocate 268435456 bytes"):
                use()

    if first == "large":
        refused()
    for launch in range(1, 4):
        count()
        assert (small.to_numpy() == launch * np.arange(5)).all()
        refused()
        active.from_numpy(np.arange(4, dtype=np.float32))
        of_parts.fill(0)
        square()
        assert of_parts.to_numpy().tolist() == [[0, 0], [1, 1], [4, 4]]
    later = sg.field(sg.f32, 6)
    later.fill(2)
    assert later.to_numpy().sum() == 12


def test_a_tree_that_was_finalized_stays_whole(arch: str) -> None:
    sg.init(arch=arch, device_memory_GB=1 / 16)
    builder = sg.FieldsBuilder()
    small = sg.field(sg.i32)
    large = sg.field(sg.f32)
    builder.dense(sg.i, 5).place(small)
    builder.dense(sg.i, 1 << 26).place(large)
    tree = builder.finalize()
    for field in (small, large):
        with pytest.raises(sg.OutOfDeviceMemory, match="there is no memory for `small`, `large`"):
            field.fill(1)
    tree.destroy()
    other = sg.field(sg.i32, 3)
    other.fill(1)
    assert other.to_numpy().sum() == 3


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
        gc.collect()  # else what the C library keeps of memory that was in use at one time would count

    for k in range(3):
        cycle(k)
    before = resident()
    for k in range(6):
        cycle(k)
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


@pytest.mark.archs("cpu")  # whose memory takes room only where it is touched; others have no allocations as large
def test_fields_of_more_than_32_bits(session) -> None:
    """Elements, and bytes, beyond 2^31 and 2^32."""
    columns = (1 << 30) + (1 << 29) + 7
    x, line = sg.field(sg.u8, (3, columns)), sg.field(sg.u8, (1 << 31) + 100)
    assert 3 * columns > 1 << 32

    @sg.kernel
    def touch():
        for i in range(10):
            x[2, columns - 1 - i] = sg.cast(i + 1, sg.u8)
            x[1, i] = sg.u8(7)
        for i in range(1 << 31, (1 << 31) + 5):
            line[i] = sg.u8(5)

    touch()
    assert [x[2, columns - 1 - i] for i in range(12)] == [*range(1, 11), 0, 0]
    assert [x[1, 0], x[1, 9], x[1, 10], x[0, 0], x[0, columns - 1], x[2, 0]] == [7, 7, 0, 0, 0, 0]
    assert [line[(1 << 31) + i] for i in range(-1, 6)] == [0, 5, 5, 5, 5, 5, 0] and line[0] == line[4] == 0
    x[2, columns - 50] = 77
    assert x[2, columns - 50] == 77 and x[2, columns - 49] == 0


@pytest.mark.archs("cpu")
@pytest.mark.long
def test_whole_fields_of_more_than_32_bits(session) -> None:
    x = sg.field(sg.u8, (2, (1 << 31) + 3))

    @sg.kernel
    def total() -> sg.i64:
        s = sg.i64(0)
        for i, j in x:
            s += sg.cast(x[i, j], sg.i64)
        return s

    x.fill(3)
    assert total() == 3 * ((1 << 32) + 6)
    x[1, (1 << 31) + 2] = 9
    assert total() == 3 * ((1 << 32) + 6) + 6

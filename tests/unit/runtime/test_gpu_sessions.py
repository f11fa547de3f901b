"""Sessions of CUDA and HIP on stand-ins for their drivers: kernels as the code generator makes them, which those take but do not run."""

import gc
import re
import struct
from dataclasses import replace

import numpy as np
import pytest
from unit.runtime.gpu_modules import compiled, image
from unit.runtime.standin_gpu import CUDA

import spirograd as sg
from spirograd.algorithms import look_back_scan, one_sweep
from spirograd.base.artifact import ArgBlock
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.lang import context
from spirograd.runtime.allocations import Memory


@pytest.fixture
def session(standin, tmp_path, monkeypatch):
    monkeypatch.setenv("SG_OFFLINE_CACHE", "1")
    monkeypatch.setenv("SG_CACHE_DIR", str(tmp_path))
    sg.init(arch=standin.api.arch)
    yield standin
    sg.reset()


def test_a_session(session):
    x = sg.field(sg.f32, shape=10_000)
    a = sg.ndarray(sg.i32, shape=(30, 7))

    @sg.kernel
    def both(a: sg.types.ndarray(sg.i32, 2), scale: sg.f32, n: sg.i32):
        for i in x:
            x[i] = x[i] * scale
        for i in range(n):
            a[i, 0] += 1

    both(a, 2.5, 10)
    both(a, 2.5, 0)
    launches = session.launches
    assert [launch.groups for launch in launches] == [10, 1, 10], "each thread takes 16 bytes of the field at a time"
    assert {launch.group_size for launch in launches} == {256}
    first, text = launches[0], both.asm()
    names = re.findall(r"\.entry (\w+)\(" if session.api is CUDA else r"\.amdhsa_kernel (\w+)", text)
    assert [launch.name for launch in launches] == [*names, names[0]]
    assert struct.pack("<f", 2.5) in first.block and struct.pack("<Q", a.allocation.address) in first.block
    assert (f"[{first.size}]" if session.api is CUDA else f".amdhsa_kernarg_size {first.size}\n") in text
    assert text.startswith("// ") and "24 registers" in text.splitlines()[1]
    assert (".target sm_90" if session.api is CUDA else 'amdgcn_target "amdgcn-amd-amdhsa--gfx1100"') in text
    assert x.to_numpy().tolist() == [0] * 10_000


def test_the_clock(session):
    @sg.kernel
    def read(a: sg.types.ndarray(sg.i64, 1)):
        for i in a:
            a[i] = sg.clock_counter()

    read(sg.ndarray(sg.i64, 5))
    if session.api is CUDA:
        assert "%clock64" in read.asm() and sg.clock_freq_hz() == 1_980_000_000
    else:
        with pytest.raises(sg.SpirogradUnsupportedError, match="the rate of the clock is not known on `amdgpu`"):
            sg.clock_freq_hz()


def test_kernels_without_tasks_and_without_arguments(session):
    @sg.kernel
    def nothing():
        pass

    nothing()
    sg.sync()
    assert not session.launches
    device = context.session().device
    kernel = compiled(device, "count")
    kernel.args, kernel.binaries = ArgBlock((), "<", 0), (image(device, b".visible .entry count(.param .align 8 .b8 block[1]) {}"),)
    device.launch(device.load(kernel), b"", (0,))
    with pytest.raises(SpirogradRuntimeError):  # the stand-in checks the size of parameters
        device.launch(device.load(kernel), bytes(16), (1,))
    kernel.tasks = (replace(kernel.tasks[0], entry="k_none"),)
    kernel.binaries = (image(device, b".visible .entry k_none(.param .align 8 .b8 block[1]) {}"),)
    device.launch(device.load(kernel), b"", (1,))
    assert session.launches[-1].block == b"\0"


def test_the_cache_holds_machine_code(session):
    def once():
        @sg.kernel
        def fill(a: sg.types.ndarray(sg.f32, 1)):
            for i in a:
                a[i] = 1.5

        fill(sg.ndarray(sg.f32, shape=100))
        sg.sync()

    once()
    linked = session.calls("link_complete")
    assert bool(linked) == (session.api is CUDA), "code objects are machine code already"
    sg.init(arch=session.api.arch)
    once()
    assert session.calls("link_complete") == linked and context.session().compiled == 0 and len(session.launches) == 2


class Elsewhere:
    """An array of another library: memory of the device, and a stream of its own."""

    def __init__(self, allocation, shape, dtype, stream, readonly=False, strides=None):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.__cuda_array_interface__ = {
            "version": 3,
            "data": (allocation.address, readonly),
            "shape": shape,
            "typestr": self.dtype.str,
            "strides": strides,
            "stream": stream,
        }
        self.allocation = allocation


def test_arrays_of_other_libraries_are_used_in_place(session):
    memory = Memory(context.session().device)

    @sg.kernel
    def add(a: sg.types.ndarray(sg.f32, 2), b: sg.types.ndarray(sg.f32, 2)):
        for i, j in a:
            a[i, j] += b[i, j]

    a, b = (Elsewhere(memory.allocate(4 * 35), (5, 7), np.float32, stream) for stream in (7, None))
    add(a, b)
    sg.sync()
    counted = ("copy_to_device", "copy_to_host", "copy", "stream_query", "allocate_from_pool")
    before = {name: session.calls(name) for name in counted}
    waits, ordered = context.session().device.waits, session.calls("stream_wait")
    add(a, b)
    assert {name: session.calls(name) for name in counted} == before and context.session().device.waits == waits
    assert session.calls("stream_wait") == ordered + 2, "after what stream 7 has, before what it gets"
    block = session.launches[-1].block
    assert struct.pack("<Q", a.allocation.address) in block and struct.pack("<Q", b.allocation.address) in block
    frees = session.calls("free_on_stream")
    gc.collect()
    sg.sync()
    assert session.calls("free_on_stream") == frees, "their library frees them"
    with pytest.raises(sg.SpirogradRuntimeError, match=r"argument `a`.*read-only"):
        add(Elsewhere(a.allocation, (5, 7), np.float32, 7, readonly=True), b)
    with pytest.raises(sg.SpirogradRuntimeError, match=r"argument `b`.*not contiguous"):
        add(a, Elsewhere(b.allocation, (5, 7), np.float32, 7, strides=(4, 20)))
    add(a, Elsewhere(b.allocation, (5, 7), np.float32, 7, strides=(28, 4)))
    shifted = Elsewhere(b.allocation, (5, 7), np.float32, 7)
    shifted.__cuda_array_interface__["data"] = (b.allocation.address + 4, False)
    with pytest.raises(sg.SpirogradRuntimeError, match=r"argument `b`.*multiple of 16 bytes(?s:.*)contiguous copy"):
        add(a, shifted)
    add(Elsewhere(a.allocation, (0, 7), np.float32, 7), Elsewhere(b.allocation, (0, 7), np.float32, 7))


def test_arrays_on_a_device_need_that_back_end(standin, open_gpu):
    a = Elsewhere(Memory(open_gpu()).allocate(4), (1,), np.float32, None)
    sg.init(arch=sg.cpu)

    @sg.kernel
    def one(a: sg.types.ndarray(sg.f32, 1)):
        a[0] = 1

    with pytest.raises(sg.SpirogradRuntimeError, match=r"(?s)in memory that this back end does not use in place.*sg\.cuda"):
        one(a)
    sg.reset()


def test_the_blocks_of_all_kinds_of_kernels_fit(session):
    """The stand-in compares the bytes of arguments with what the code declares: PTX its parameter, a code object its kernel descriptor."""
    x, loss = sg.field(sg.f32, shape=64, needs_grad=True), sg.field(sg.f32, shape=(), needs_grad=True)
    n = sg.field(sg.i32, shape=())
    a = sg.ndarray(sg.f64, shape=(4, 5))

    @sg.kernel
    def scalars(a: sg.i8, b: sg.u16, c: sg.i64, d: sg.f16, e: sg.f64, f: sg.u1) -> sg.f64:
        return e + a + b + c + sg.cast(d, sg.f64) + f

    @sg.kernel
    def reports(a: sg.types.ndarray(sg.f64, 2), k: sg.i32):
        for i in range(k):
            assert i < 1000
            a[i % 4, 0] += sg.random()
            print(i)

    @sg.kernel
    def steps():
        for i in x:
            v = x[i]
            for j in range(n[None] + i):
                v = sg.sin(v) * 1.5
            loss[None] += v

    assert scalars(-3, 7, 1 << 40, 0.5, 2.5, True) == 0.0
    reports(a, 7)
    with sg.ad.Tape(loss):
        steps()
    sg.sync()
    sizes = {launch.size for launch in session.launches}
    assert len(session.launches) > 4 and len(sizes) > 2 and all(size % 4 == 0 for size in sizes)


@pytest.mark.parametrize(("dtype", "total", "instruction", "count"), [
    (sg.f64, sg.f64, "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64", 2),
    (sg.f16, sg.f32, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 2),
    (sg.f32, sg.f32, "mma", 0),
], ids=["f64", "f16", "f32"])  # fmt: skip
def test_products_of_tiles(session, dtype, total, instruction, count):
    """By the instruction that keeps the precision, where groups are whole warps."""
    a, c = sg.ndarray(dtype, (16, 16)), sg.ndarray(total, (16, 16))

    @sg.kernel
    def multiply(a: sg.types.ndarray(dtype, 2), c: sg.types.ndarray(total, 2)):
        sg.loop_config(block_dim=32)
        for _ in range(32):
            left, t = sg.simt.Tile16x16.zeros(dtype), sg.simt.Tile16x16.zeros(total)
            left[:] = a[0:16, 0:16]
            t.add_product_(left, left)
            c[0:16, 0:16] = t

    multiply(a, c)
    if session.api is CUDA:
        assert multiply.asm().count(instruction) == count


def test_sorts_read_keys_once_a_digit(session):
    sg.algorithms.parallel_sort(sg.ndarray(sg.i32, 100_000))
    names = [launch.name for launch in session.launches]
    if session.api is not CUDA:
        assert len(names) >= 8 * 3
        return
    text = one_sweep._place_tiles.asm()
    assert len(names) == 2 + 4 and all(name in text for name in names[-4:])
    waiting = text.index("ld.relaxed.gpu")
    assert text[:waiting].count("vote.sync.ballot") == 12 * 8 and text.count("ld.relaxed.gpu") == 4
    assert "fence" not in text and "atom.global.cas" not in text
    sg.algorithms.parallel_sort(sg.ndarray(sg.f32, 3072), sg.ndarray(sg.i32, 3072))
    assert len(session.launches) == len(names) + 1, "a group sorts one tile"


@pytest.mark.parametrize("dtype", [sg.f32, sg.f64])
def test_long_scans_read_each_element_once(session, dtype):
    """Workgroups of CUDA wait for those before them; by the specification of HIP they may not."""
    sg.algorithms.inclusive_scan(sg.ndarray(dtype, 100_000))
    names = [launch.name for launch in session.launches]
    if session.api is not CUDA:
        assert len(names) == 3
        return
    text = look_back_scan._scan_tiles.asm()
    assert len(names) == 2 and names[-1] in text
    loads, waiting = text.index("ld.global"), text.index("vote.sync.ballot")
    assert text[loads:waiting].count("ld.global") >= 64 // dtype.size, "all loads of a tile are under way at once"
    if dtype is sg.f32:
        assert "fence" not in text and "exch.b64" in text, "the state and the value are one word"
    else:
        fence = text.index("fence")
        assert "st.global" in text[:fence] and text[fence:].index("atom.") < 80, "the value is there before the state says so"

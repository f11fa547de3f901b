"""The CUDA device on a real GPU, end to end with hand-written PTX: results, times of launches and waits, bandwidth of transfers.

Run from the root: `python ci/gpu_cuda_smoke.py`. Every step prints "ok" or what went wrong; the run goes on.
"""

from __future__ import annotations

import gc
import os
import struct
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "unit" / "runtime")]

import ptx_modules  # noqa: E402

from spirograd.base.artifact import ArgBlock, CompiledKernel, TaskInfo  # noqa: E402
from spirograd.runtime import loader  # noqa: E402
from spirograd.runtime.allocations import Memory  # noqa: E402
from spirograd.runtime.launcher import Launcher  # noqa: E402

SAXPY = (
    ptx_modules.HEADER
    + """
.visible .entry saxpy(.param .align 8 .b8 block[24])
.maxntid 256, 1, 1
{
.reg .pred %p<2>;
.reg .b32 %r<16>;
.reg .f32 %f<5>;
.reg .b64 %rd<10>;
ld.param.u64 %rd1, [block];
ld.param.u64 %rd2, [block+8];
ld.param.u32 %r1, [block+16];
ld.param.f32 %f1, [block+20];
cvta.to.global.u64 %rd3, %rd1;
cvta.to.global.u64 %rd4, %rd2;
mov.u32 %r3, %ctaid.x;
mov.u32 %r4, %ntid.x;
mov.u32 %r5, %tid.x;
mad.lo.u32 %r6, %r3, %r4, %r5;
mov.u32 %r7, %nctaid.x;
mul.lo.u32 %r8, %r7, %r4;
setp.ge.u32 %p1, %r6, %r1;
@%p1 bra DONE;
LOOP:
mul.wide.u32 %rd5, %r6, 4;
add.s64 %rd6, %rd3, %rd5;
add.s64 %rd7, %rd4, %rd5;
ld.global.f32 %f2, [%rd6];
ld.global.f32 %f3, [%rd7];
fma.rn.f32 %f4, %f1, %f2, %f3;
st.global.f32 [%rd7], %f4;
add.u32 %r6, %r6, %r8;
setp.lt.u32 %p1, %r6, %r1;
@%p1 bra LOOP;
DONE:
ret;
}
"""
).encode()


def read(allocation, dtype=np.uint32):
    raw = bytearray(allocation.nbytes)
    allocation.read_into(0, memoryview(raw))
    return np.frombuffer(raw, dtype)


def best(run, times=30):
    values = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        values.append(time.perf_counter() - start)
    return min(values), sorted(values)[len(values) // 2]


def saxpy(device, memory):
    kernel = CompiledKernel(
        "saxpy", "cuda", "saxpy", ArgBlock((), "<QQIf", 24), (TaskInfo("t", "range_for", "saxpy", 0, 0, None, 256),), (SAXPY,)
    )
    executable = device.load(kernel)
    n = 10_000_019
    x, y = np.random.default_rng(1).random((2, n), np.float32)
    a, b = memory.allocate(4 * n), memory.allocate(4 * n)
    a.write(0, memoryview(x).cast("B"))
    b.write(0, memoryview(y).cast("B"))
    device.launch(executable, struct.pack("<QQIf", a.address, b.address, n, 2.0), (n,))
    got = read(b, np.float32)
    expected = (2.0 * x.astype(np.float64) + y).astype(np.float32)
    assert (got == expected).all()
    print("   usage", executable.usage[0])


def kernels(device, memory):
    for by_address in (False, True):
        plan = Launcher(device, memory).prepare(ptx_modules.compiled("scale", "count", by_address=by_address))
        n = 1000
        data = np.arange(n, dtype=np.uint32)
        a = memory.allocate(4 * n)
        a.write(0, memoryview(data).cast("B"))
        expected = data.copy()
        for step in range(5):
            plan.launch([None, n, step], [None] * 3, {0: a})
            expected = expected * 2 + np.uint32(step) + np.arange(n, dtype=np.uint32)
            expected[0] += step * n
        assert (read(a) == expected).all(), by_address


def fills_and_copies(device, memory):
    a, b = memory.allocate(1 << 20), memory.allocate(1 << 20)
    assert not read(a).any()
    a.fill(8, 16, 0xDEADBEEF)
    b.copy_from(a, 100, 4, 0)
    assert read(b)[:8].tolist() == [0, 0, 0, *[0xDEADBEEF] * 4, 0]
    assert all(memory.allocate(100).address % 256 == 0 for _ in range(100))


def machine_code(device, memory):
    kernel = ptx_modules.compiled("count")
    start = time.perf_counter()
    made = device.assemble(kernel)
    linked = time.perf_counter() - start
    first = time.perf_counter()
    executable = device.load(made)
    loaded = time.perf_counter() - first
    a = memory.allocate(4)
    device.launch(executable, struct.pack("<QII", a.address, 1000, 3), (1000,))
    assert read(a)[0] == 3000
    start = time.perf_counter()
    device.load(ptx_modules.compiled("count", "scale"))
    print(f"   link {1e3 * linked:.2f} ms ({len(made.binaries[0])} bytes), load cubin {1e3 * loaded:.2f} ms, "
          f"load PTX {1e3 * (time.perf_counter() - start):.2f} ms, {executable.usage}")  # fmt: skip
    bad = ptx_modules.compiled("count")
    bad.binaries = (bad.binaries[0].replace(b"atom.global", b"nonsense"),)
    for make in (device.load, device.assemble):
        try:
            make(bad)
        except Exception as error:
            print("   refused:", str(error)[:300].replace("\n", " | "))


def stress(device, memory):
    plan = Launcher(device, memory).prepare(ptx_modules.compiled("count"))
    total = memory.allocate(4)
    errors = []

    def work(seed):
        try:
            for i in range(2000):
                plan.launch([None, 1, 1], [None] * 3, {0: total})
                a = memory.allocate(4 * seed + 4096 * (i % 7))
                a.write(0, memoryview(struct.pack("<I", i)))
                fetch = a.fetch(0, 4)
                del a
                if i % 3:
                    assert struct.unpack("<I", fetch.wait())[0] == i
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k + 1,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors
    assert read(total)[0] == 8000
    many = memory.allocate(4 * 20000)
    for i in range(20000):  # every chunk of the ring is used again while work is pending
        many.write(4 * i, memoryview(struct.pack("<I", i)))
        plan.launch([None, 1, 1], [None] * 3, {0: total})
    assert (read(many) == np.arange(20000)).all()


def memory_limits(device, memory):
    device.synchronize()
    total = device.caps.max_allocation
    try:
        memory.allocate(total + 4096)
    except MemoryError as error:
        print("   ", error)
    big = [memory.allocate(total // 3, zeroed=False) for _ in range(2)]
    try:
        big.append(memory.allocate(total // 2, zeroed=False))
    except MemoryError as error:
        print("   ", error)
    del big
    again = memory.allocate(total // 2, zeroed=False)  # what was freed is there again
    del again
    device.synchronize()


def times(device, memory):
    a = memory.allocate(4)
    for tasks in (("count",), ("count",) * 4, ("count",) * 100):
        executable = device.load(ptx_modules.compiled(*tasks))
        block = struct.pack("<QII", a.address, 1, 1)
        counts = (1,) * len(tasks)

        def launches(executable=executable, block=block, counts=counts):
            for _ in range(100):
                device.launch(executable, block, counts)

        def launch_and_sync(executable=executable, block=block, counts=counts):
            device.launch(executable, block, counts)
            device.synchronize()

        values = []
        for _ in range(50):
            device.synchronize()
            values.append(best(launches, 1)[0] / 100)
        print(f"   {len(tasks)} task(s): device.launch {1e6 * min(values):.2f} us (median {1e6 * sorted(values)[25]:.2f}), "
              "launch + synchronize {:.2f} us (median {:.2f})".format(*(1e6 * v for v in best(launch_and_sync, 2000))))  # fmt: skip
    plan = Launcher(device, memory).prepare(ptx_modules.compiled("count"))

    def planned():
        for _ in range(100):
            plan.launch([None, 1, 1], [None] * 3, {0: a})
        device.synchronize()

    print(f"   LaunchPlan.launch, sync every 100: {1e4 * best(planned, 50)[0]:.2f} us")
    print("   synchronize when idle {:.2f} us (median {:.2f})".format(*(1e6 * v for v in best(device.synchronize, 2000))))
    raw = memoryview(bytearray(4))
    print("   download 4 bytes {:.2f} us (median {:.2f})".format(*(1e6 * v for v in best(lambda: a.read_into(0, raw), 2000))))
    print("   upload 4 bytes {:.2f} us (median {:.2f})".format(*(1e6 * v for v in best(lambda: a.write(0, raw), 2000))))
    device.synchronize()
    print("   fetch {:.2f} us (median {:.2f})".format(*(1e6 * v for v in best(lambda: a.fetch(0, 4), 2000))))
    print("   fetch and wait {:.2f} us (median {:.2f})".format(*(1e6 * v for v in best(lambda: a.fetch(0, 4).wait(), 2000))))
    print("   allocate, zeroed, and drop {:.2f} us (median {:.2f})".format(*(1e6 * v for v in best(lambda: memory.allocate(4096), 2000))))


def bandwidth(device, memory):
    for nbytes in (1 << 16, 1 << 20, 8 << 20, 64 << 20, 1 << 30):
        a, b = memory.allocate(nbytes, zeroed=False), memory.allocate(nbytes, zeroed=False)
        data = np.ones(nbytes, np.uint8)
        out = np.ones(nbytes, np.uint8)

        def up(a=a, data=data):
            a.write(0, memoryview(data))
            device.synchronize()

        def down(a=a, out=out):
            a.read_into(0, memoryview(out))

        def fresh(a=a, nbytes=nbytes):
            a.read_into(0, memoryview(np.empty(nbytes, np.uint8)))

        def copy(a=a, b=b, nbytes=nbytes):
            for _ in range(10):
                b.copy_from(a, nbytes)
            device.synchronize()

        def fill(a=a, nbytes=nbytes):
            for _ in range(10):
                a.fill(0, nbytes, 7)
            device.synchronize()

        n = 30 if nbytes < 1 << 30 else 5
        parts = [("up", up, 1), ("down", down, 1), ("down, fresh array", fresh, 1), ("copy", copy, 10), ("fill", fill, 10)]
        print(f"   {nbytes >> 10} KiB: " + ", ".join(f"{name} {k * nbytes / best(run, n)[0] / 1e9:.1f} GB/s" for name, run, k in parts))
        gc.collect()


def workers(device, memory):
    """Threads and sizes of chunks: which are best."""
    from concurrent.futures import ThreadPoolExecutor

    from spirograd.runtime.devices.cuda import transfer

    nbytes = 1 << 30
    a = memory.allocate(nbytes, zeroed=False)
    data = np.ones(nbytes, np.uint8)
    for chunk, chunks in ((8 << 20, 16), (4 << 20, 16), (4 << 20, 24), (2 << 20, 32)):
        for count in (4, 6, 8, 12):
            transfer.CHUNK_BYTES, transfer.CHUNKS, transfer._FILLING = chunk, chunks, chunks - 4
            device.synchronize()
            device._transfers.close()
            device._transfers = transfer.Transfers(device._stream, device._cells)
            device._transfers._workers = ThreadPoolExecutor(count)
            up = best(lambda: (a.write(0, memoryview(data)), device.synchronize()), 3)[0]
            down = best(lambda: a.read_into(0, memoryview(data)), 3)[0]
            print(f"   {chunks} x {chunk >> 20} MiB, {count} threads: up {nbytes / up / 1e9:.1f} GB/s, down {nbytes / down / 1e9:.1f} GB/s")
    device.synchronize()


def graphs(device, memory):
    """What launches cost inside of graphs: whether batches should become graphs."""
    import ctypes

    driver, stream = device._driver, device._stream.handle
    library = ctypes.CDLL(driver.path)
    P = ctypes.c_void_p

    def fn(name, *types):
        f = getattr(library, name)
        f.argtypes, f.restype = types, ctypes.c_int
        return f

    begin = fn("cuStreamBeginCapture_v2", P, ctypes.c_int)
    end = fn("cuStreamEndCapture", P, P)
    instantiate = fn("cuGraphInstantiateWithFlags", P, P, ctypes.c_ulonglong)
    launch = fn("cuGraphLaunch", P, P)
    update = fn("cuGraphExecUpdate_v2", P, P, P)
    destroy = fn("cuGraphDestroy", P)
    a = memory.allocate(4)

    def ok(code, what):
        assert code == 0, (what, driver.describe(code))

    def microseconds(run, times):
        device.synchronize()
        values = []
        for _ in range(times):
            start = time.perf_counter()
            run()
            values.append(1e6 * (time.perf_counter() - start))
            device.synchronize()
        values.sort()
        return f"{values[0]:.1f} (median {values[len(values) // 2]:.1f})"

    for k in (1, 2, 4, 16, 64):
        executable = device.load(ptx_modules.compiled(*["count"] * k))
        counts = (1,) * k

        def capture(value, executable=executable, counts=counts):
            ok(begin(stream, 2), "begin")
            device.launch(executable, struct.pack("<QII", a.address, 1, value), counts)
            graph = P()
            ok(end(stream, ctypes.byref(graph)), "end")
            return graph

        with device._turn:
            a.fill(0, 4, 0)
            graph, made = capture(1), P()
            start = time.perf_counter()
            ok(instantiate(ctypes.byref(made), graph, 0), "instantiate")
            built = 1e6 * (time.perf_counter() - start)
            ok(launch(made, stream), "launch")
            assert read(a)[0] == k
            info = (ctypes.c_ubyte * 64)()
            again = capture(5)
            ok(update(made, again, ctypes.byref(info)), "update")
            ok(launch(made, stream), "launch")
            assert read(a)[0] == 6 * k, "an updated graph has the new arguments"

            def refreshed(made=made, capture=capture, info=info):
                graph = capture(5)
                update(made, graph, ctypes.byref(info))
                launch(made, stream)
                destroy(graph)

            block = struct.pack("<QII", a.address, 1, 1)
            runs = {
                "one by one": lambda e=executable, c=counts, b=block: device.launch(e, b, c),
                "cuGraphLaunch": lambda m=made: launch(m, stream),
                "capture": lambda c=capture: destroy(c(5)),
                "capture, update, launch": refreshed,
            }
            print(
                f"   {k} kernels: instantiate {built:.0f} us;", "; ".join(f"{what} {microseconds(run, 300)}" for what, run in runs.items())
            )


def sessions(device, memory):
    """Through the language: launches, results, the cache, what a kernel takes."""
    import spirograd as sg

    start = time.perf_counter()
    sg.init(arch=sg.cuda)
    print(f"   init with the context open already: {1e3 * (time.perf_counter() - start):.1f} ms")

    @sg.kernel
    def axpy(a: sg.types.ndarray(), b: sg.types.ndarray(), c: sg.types.ndarray(), d: sg.types.ndarray(), n: sg.i32):
        for i in range(n):
            a[i] = b[i] + c[i] * d[i]

    @sg.kernel
    def total(a: sg.types.ndarray()) -> sg.f32:
        s = 0.0
        for i in a:
            s += a[i]
        return s

    arrays = [sg.ndarray(sg.f32, 1000) for _ in range(4)]
    for k, array in enumerate(arrays):
        array.fill(float(k))
    start = time.perf_counter()
    axpy(*arrays, 1000)
    sg.sync()
    print(f"   first call {1e3 * (time.perf_counter() - start):.1f} ms")
    assert total(arrays[0]) == 7000.0

    def many():
        for _ in range(100):
            axpy(*arrays, 1000)

    def call_and_sync():
        axpy(*arrays, 1000)
        sg.sync()

    values = []
    for _ in range(50):
        sg.sync()
        values.append(best(many, 1)[0] / 100)
    print(f"   launch, 4 ndarrays: {1e6 * min(values):.2f} us (median {1e6 * sorted(values)[25]:.2f}); launch and sync "
          "{:.2f} us (median {:.2f})".format(*(1e6 * v for v in best(call_and_sync, 1000))))  # fmt: skip
    print("   a sum returned: {:.2f} us (median {:.2f})".format(*(1e6 * v for v in best(lambda: total(arrays[0]), 1000))))
    print("   ", "\n    ".join(total.asm().splitlines()[:3]))
    sg.reset()


def torch_tensors(device, memory):
    """Kernels on torch's CUDA tensors: no copy, no wait, in order with torch's streams."""
    import torch

    import spirograd as sg

    sg.init(arch=sg.cuda)

    @sg.kernel
    def add(y: sg.types.ndarray(), x: sg.types.ndarray(), k: sg.f32):
        for i in x:
            y[i] += x[i] * k

    n = 1 << 22
    x, y = torch.ones(n, device="cuda"), torch.zeros(n, device="cuda")
    add(y, x, 1.0)
    inside = sg.lang.context.session().device
    waits = inside.waits
    side = torch.cuda.Stream()
    for step in range(300):
        x.fill_(float(step))  # on torch's stream: the launch must see it
        add(y, x, 1.0)
        y.sub_(x)  # torch must see the launch
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            z = torch.full((n,), 2.0, device="cuda")
            add(z, x, 1.0)
            assert step % 50 or float(z[7]) == 2.0 + step
        torch.cuda.default_stream().wait_stream(side)
        del z  # torch may use its memory again at once
    assert inside.waits == waits
    assert torch.equal(y, torch.ones_like(y)), y[:8]
    strided = torch.zeros(100, 2, device="cuda")[:, 0]
    add(strided, torch.ones(100, device="cuda"), 3.0)
    assert torch.equal(strided, torch.full((100,), 3.0, device="cuda"))

    shifted = torch.zeros(101, device="cuda")[1:]
    add(shifted, torch.ones(103, device="cuda")[3:], 3.0)
    assert torch.equal(shifted, torch.full((100,), 3.0, device="cuda")), "tensors that begin anywhere"

    @sg.kernel
    def square(x: sg.types.ndarray(needs_grad=True), y: sg.types.ndarray(needs_grad=True)):
        for i in x:
            y[i] = x[i] * x[i]

    f = sg.ad.torch_function(square, {"y": "x"})
    t = torch.arange(1000, dtype=torch.float32, device="cuda", requires_grad=True)
    f(t).sum().backward()
    assert torch.equal(t.grad, 2 * t.detach())
    waits = inside.waits
    t.grad = None
    out = f(t)
    out.sum().backward()
    print("   waits in torch_function, forward and backward:", inside.waits - waits)
    small = [torch.ones(1000, device="cuda") for _ in range(2)]

    def many():
        for _ in range(100):
            add(*small, 1.0)

    values = []
    for _ in range(30):
        torch.cuda.synchronize()
        values.append(best(many, 1)[0] / 100)
    print(f"   launch, 2 torch tensors: {1e6 * min(values):.2f} us (median {1e6 * sorted(values)[15]:.2f})")
    kept = inside.waits, len(inside._transfers._chunks)
    f, g = sg.field(sg.f32, shape=(50, 20)), sg.Vector.field(3, sg.f32, shape=64)
    values = torch.rand(50, 20, device="cuda")
    f.from_torch(values)
    values.zero_()
    back = f.to_torch(device="cuda")
    f.fill(0)
    g.from_torch(torch.ones(64, 3, device="cuda"))
    assert back.is_cuda and float(g.to_torch(device="cuda").sum()) == 192
    assert (inside.waits, len(inside._transfers._chunks)) == kept, "no wait, no transfer"
    assert back.abs().sum() > 0 and f.to_numpy().sum() == 0
    try:
        import cupy

        c = cupy.ones(1000, cupy.float32)
        add(c, c, 2.0)
        assert float(c.sum()) == 3000
        print("   cupy: ok")
    except ImportError:
        print("   no cupy")
    sg.reset()


RECOVERY = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
import ptx_modules
from spirograd.runtime import loader
from spirograd.runtime.allocations import Memory
from spirograd.runtime.launcher import Launcher
device = loader.open_device("cuda")
memory = Memory(device)
a = memory.allocate(4)
fetch = a.fetch(0, 4)
Launcher(device, memory).prepare(ptx_modules.compiled("trap")).launch([None, 1, 1], [None] * 3, {{0: a}})
for use in (device.synchronize, device.synchronize, lambda: memory.allocate(4)):
    try:
        use()
        print("   no error?!")
    except Exception as error:
        print("   told:", error)
device.close()
print("   closed")
try:
    again = loader.open_device("cuda")
    b = Memory(again).allocate(16)
    raw = bytearray(16)
    b.read_into(0, memoryview(raw))
    print("   opened again, works")
except Exception as error:
    print("   opened again:", error)
"""


def recovery(device, memory):
    """What remains possible in a process whose kernel failed."""
    code = RECOVERY.format(root=str(ROOT), tests=str(ROOT / "tests" / "unit" / "runtime"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    print(done.stdout, done.stderr[-1500:], "exit", done.returncode)


def forked(device, memory):
    if os.fork() == 0:
        for use in (device.synchronize, lambda: loader.open_device("cuda")):
            try:
                use()
                print("   no error?!", flush=True)
            except Exception as error:
                print("   in the child:", error, flush=True)
        os._exit(0)
    os.wait()
    device.synchronize()


def beside_torch(device, memory):
    """torch in the same process and thread: its context stays current, and both go on."""
    try:
        import torch
    except ImportError:
        print("   no torch")
        return
    x = torch.ones(1000, device="cuda")
    a = memory.allocate(4)
    plan = Launcher(device, memory).prepare(ptx_modules.compiled("count"))
    for _ in range(100):
        plan.launch([None, 1, 1], [None] * 3, {0: a})
        x += 1
    assert read(a)[0] == 100 and float(x.sum()) == 101_000


def main() -> None:
    start = time.perf_counter()
    print("available:", loader.available("cuda"), "| devices:", loader.devices("cuda"))
    device = loader.open_device("cuda")
    print(f"opened in {1e3 * (time.perf_counter() - start):.0f} ms:", device.info, device.caps)
    memory = Memory(device)
    steps = (
        saxpy, kernels, fills_and_copies, machine_code, stress, memory_limits, times, bandwidth, forked, graphs, sessions, recovery,
        beside_torch, torch_tensors, workers,
    )  # fmt: skip
    for step in steps:
        start = time.perf_counter()
        try:
            step(device, memory)
            print(f"{step.__name__}: ok ({time.perf_counter() - start:.1f} s)", flush=True)
        except Exception:
            print(f"{step.__name__}: FAILED\n{traceback.format_exc()}", flush=True)
    device.close()
    print("closed")


if __name__ == "__main__":
    main()

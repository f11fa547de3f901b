"""Errors of the wgpu device, lost devices, the choice of adapter and backend, closing, exit, fork."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import needs
import numpy as np
import pytest
from unit.runtime.reading import read
from unit.runtime.wgpu_modules import compiled, module, native, run

from spirograd.base.artifact import ArgBlock, CompiledKernel, TaskInfo
from spirograd.base.errors import OutOfDeviceMemory, SpirogradRuntimeError
from spirograd.runtime import loader
from spirograd.runtime.allocations import Memory
from spirograd.runtime.launcher import Launcher

TESTS = Path(__file__).resolve().parents[2]

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
    for kernel, said in (
        (half, r"cannot load half \(t0\) .*\n.*"),
        (unbound, r"cannot load loose \(t0\) .*\n[^\0]*bind"),
        (nameless, r"kernel k \(t0\): the SPIR-V module has no entry point 'other'"),
    ):
        with pytest.raises(SpirogradRuntimeError, match=said):
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
        with pytest.raises(SpirogradRuntimeError, match=r"wgpu device was lost[^\0]*call init again[^\0]*the driver said so") as caught:
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
        with pytest.raises(SpirogradRuntimeError, match="wgpu device was lost"):
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


def test_old_packages_are_named(monkeypatch):
    needs.need("wgpu")
    from spirograd.runtime.devices.wgpu import api

    monkeypatch.setattr(api.wgpu, "version_info", (0, 31, 0))
    assert "0.32 or newer is needed" in loader.available("wgpu")
    assert loader.devices("wgpu") == []


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


@pytest.mark.needs("wgpu")
def test_metal_is_refused_elsewhere(monkeypatch):
    if sys.platform == "darwin":
        pytest.skip("this is a Mac")
    with pytest.raises(SpirogradRuntimeError, match="Metal exists on macOS only"):
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
    "from unit.runtime.wgpu_modules import compiled\n"
    "from spirograd.base.errors import SpirogradRuntimeError\n"
    "from spirograd.runtime.loader import open_device\n"
    "from spirograd.runtime.allocations import Memory\n"
    "from spirograd.base.arguments import Arguments\n"
    "from spirograd.runtime.launcher import Launcher\n"
    "device = open_device('wgpu')\n"
    "memory = Memory(device); plan = Launcher(device, memory).prepare(compiled('count'))\n"
    "a = memory.allocate(4)\n"
    "for _ in range(700): plan.launch(Arguments.of([1, 1], [None] * 2, {0: a}))\n"
)
# Drivers have exit handlers of their own, which do not expect a forked child: NVIDIA's crashes, and lavapipe of Mesa 26.2 waits forever for
# threads that the child does not have. The child runs those of Python.
FORK = (
    "import atexit, gc\n"
    "child = os.fork()\n"
    "if child == 0:\n"
    "    try: device.synchronize()\n"
    "    except SpirogradRuntimeError as error: print(str(error)[:30], flush=True)\n"
    "    del a, plan, memory, device; gc.collect()\n"  # what it drops must not reach wgpu, whose threads are not here
    "    atexit._run_exitfuncs(); os._exit(7)\n"
    "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    "out = bytearray(4); a.read_into(0, memoryview(out)); print(int.from_bytes(out, 'little'))\n"
)


def in_process(code):
    needs.need("wgpu")
    needs.need("spirv-as")
    result = subprocess.run([sys.executable, "-c", code, str(TESTS)], capture_output=True, text=True, timeout=60)
    return result.returncode, result.stdout, result.stderr


def test_exit_with_everything_open_is_silent():
    assert in_process(SCRIPT) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_child_gets_a_clear_error_and_ends():
    assert in_process("import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n" + SCRIPT + FORK) == (
        0,
        "wgpu does not survive a fork; \n7\n700\n",
        "",
    )

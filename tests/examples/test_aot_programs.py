"""The C programs of examples/aot: they launch kernels of modules as Python does, with the same bits.

That for CUDA is built against a stand-in for the driver, which writes its calls down."""

import json
import os
import struct
import subprocess
import zipfile
from pathlib import Path

import needs
import numpy as np
import pytest

import spirograd as sg

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "examples" / "aot"
_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover")
# The package `vulkan` brings the declarations that the system may lack.
_HEADER = """#include <stddef.h>
#include <stdint.h>
#include <wchar.h>
#define va_list vulkan_va_list
#include "{}"
#undef va_list
"""


def _build(source, program, *flags):
    done = subprocess.run(["cc", *_FLAGS, *flags, "-o", program, source, "-ldl"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module")
def vulkan_program(tmp_path_factory):
    for name in ("cc", "vulkan"):
        needs.need(name)
    import vulkan

    folder = tmp_path_factory.mktemp("program")
    (folder / "vulkan").mkdir()
    (folder / "vulkan" / "vulkan.h").write_text(_HEADER.format(Path(vulkan.__file__).with_name("vulkan.cdef.h")))
    return _build(PROGRAMS / "vulkan.c", folder / "aot_vulkan", "-isystem", str(folder))


def _run(program, *words, expect=0, **environment):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    assert done.returncode == expect, done.stderr
    return done


def _module(path, **options):
    """A module with arguments, results, fields and adstacks of all kinds; the session stays."""
    sg.init(arch=sg.vulkan, **options)
    x = sg.Vector.field(2, sg.f32, shape=(9, 4), offset=(1, -2), layout=sg.Layout.SOA, needs_grad=True)
    y = sg.field(sg.f32, shape=(9, 4), order="ji", offset=(1, -2), needs_grad=True)
    often = sg.field(sg.i32, shape=9)

    @sg.kernel
    def step(w: sg.types.NDArray[sg.f32, 1], n: sg.i32, v: sg.types.vector(2, sg.f32)):
        for i, j in x:
            s = x[i, j].dot(v)
            for k in range(n):
                s = sg.sin(s) * w[k] + 0.5
            for _ in range(often[i - 1]):
                s = s * s * 0.5
            k = 0
            while k < n and s < 2.0:
                s *= 1.25
                k += 1
            y[i, j] = s

    @sg.kernel
    def total(scale: sg.f32) -> sg.f32:
        s = 0.0
        for i, j in y:
            s += y[i, j] * scale
        return s

    @sg.kernel
    def ramp(a: sg.types.NDArray[sg.i32, 2], begin: sg.i32):
        for i in range(begin, a.shape[0]):
            for j in range(a.shape[1]):
                assert i >= 0, "negative"
                a[i, j] += i * 100 + j

    @sg.kernel
    def noise(a: sg.types.NDArray[sg.f32, 1]):
        for i in a:
            a[i] = sg.random()

    module = sg.aot.Module()
    for name, field in {"x": x, "y": y, "often": often}.items():
        module.add_field(name, field)
    module.add_kernel(step, gradients=True)
    module.add_kernel(total, gradients=True)
    module.add_kernel(ramp)
    module.add_kernel(noise)
    module.save(path)
    return path


@pytest.mark.parametrize("n", [0, 3, 20])
def test_vulkan_launches_as_python_does(vulkan_program, tmp_path, n):
    loaded = sg.aot.load(_module(tmp_path / "m.zip"))
    rng = np.random.default_rng(n)
    given = {
        "x": rng.random((9, 4, 2), np.float32), "y.grad": rng.random((9, 4), np.float32), "often": rng.integers(0, n + 1, 9, np.int32),
        "w": rng.random(max(n, 1), np.float32),
    }  # fmt: skip
    for name, array in given.items():
        array.tofile(tmp_path / f"{name}.in")
    w = sg.ndarray(sg.f32, max(n, 1), needs_grad=True)
    w.from_numpy(given["w"])
    x, y = loaded.field("x"), loaded.field("y")
    loaded.field("often").from_numpy(given["often"])
    x.from_numpy(given["x"])
    y.grad.from_numpy(given["y.grad"])
    loaded.kernel("step")(w, n, [0.5, 0.25])
    total = loaded.kernel("total")(2.0)
    loaded.kernel("total").grad(2.0, returned=0.5)
    loaded.kernel("step").grad(w, n, [0.5, 0.25])
    expected = {"y": y.to_numpy(), "x.grad": x.grad.to_numpy(), "y.grad": y.grad.to_numpy(), "w.grad": w.grad.to_numpy()}
    sg.reset()
    layer = {"VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation"} if needs.missing("validation") is None else {}
    words = [word for name in given for word in ("read", name, tmp_path / f"{name}.in")]
    words += ["run", "step", "w", n, 0.5, 0.25, "run", "total", 2.0, "run", "total.grad", 2.0, 0.5, "run", "step.grad", "w", n, 0.5, 0.25]
    words += [word for name in expected for word in ("write", name, tmp_path / f"{name}.out")]
    done = _run(vulkan_program, tmp_path / "m.zip", "array", "w", "f32", max(n, 1), *words, **layer)
    assert (done.stdout, done.stderr) == (f"total: {np.float32(total):.9g}\n", "")
    for name, array in expected.items():
        found = np.fromfile(tmp_path / f"{name}.out", np.float32).reshape(array.shape)
        if name == "w.grad":  # its sums are in any order
            np.testing.assert_allclose(found, array, rtol=1e-4, atol=1e-6)
        else:
            assert (found.view(np.int32) == array.view(np.int32)).all(), name
    assert np.abs(expected["x.grad"]).max() > 0


def test_vulkan_sizes_of_launches_and_random_numbers(vulkan_program, tmp_path):
    path = _module(tmp_path / "m.zip")
    sg.reset()
    for rows, begin in ((5, 2), (5, 5), (5, 9), (0, 0), (400, 0)):
        done = _run(
            vulkan_program, path, "array", "a", "i32", rows, 3, "fill", "a", 7, "run", "ramp", "a", begin, "write", "a", tmp_path / "a"
        )
        assert done.stdout == ""
        expected = np.full((rows, 3), 7, np.int32)
        expected[begin:] += np.arange(rows)[begin:, None] * 100 + np.arange(3)
        assert (np.fromfile(tmp_path / "a", np.int32).reshape(rows, 3) == expected).all()
    done = _run(vulkan_program, path, "array", "a", "f32", 50, "run", "noise", "a", "print", "a", "run", "noise", "a", "print", "a")
    first, second = ([float(word) for word in line.split()[1:]] for line in done.stdout.splitlines())
    assert len({*first, *second}) > 90 and min(first + second) >= 0 and max(first + second) < 1


def test_vulkan_arguments_that_are_too_long_for_push_constants(vulkan_program, tmp_path):
    sg.init(arch=sg.vulkan)
    numbers = sg.types.vector(20, sg.i64)

    @sg.kernel
    def sums(a: sg.types.NDArray[sg.i64, 1], c: numbers, d: numbers):
        for i in a:
            for k in sg.static(range(20)):
                a[i] += c[k] * (i + k)
        for i in range(a.shape[0]):
            for k in sg.static(range(20)):
                a[i] -= d[k] * i

    module = sg.aot.Module()
    module.add_kernel(sums)
    module.save(tmp_path / "m.zip")
    sg.reset()
    manifest = json.loads(zipfile.ZipFile(tmp_path / "m.zip").read("manifest.json"))["manifest"]
    (kernel,) = manifest["kernels"]
    assert kernel["compiled"]["args"]["size"] > manifest["capabilities"]["max_push_constants"] and len(kernel["compiled"]["tasks"]) == 2
    c, d = np.arange(40).reshape(2, 20) ** 7
    words = ("run", "sums", "a", *c, *d, "run", "sums", "a", *d, *d)
    _run(vulkan_program, tmp_path / "m.zip", "array", "a", "i64", 7, *words, "write", "a", tmp_path / "a")
    i = np.arange(7)[:, None]
    expected = ((c + d) * (i + np.arange(20)) - 2 * d * i).sum(1)
    assert (np.fromfile(tmp_path / "a", np.int64) == expected).all()


def test_vulkan_sparse_fields(vulkan_program, tmp_path):
    """Cells are activated and visited; there are as many as at first, whatever the program needs."""
    sg.init(arch=sg.vulkan)
    x, lists = sg.field(sg.i32), sg.field(sg.i32)
    sg.root.pointer(sg.i, 1000, cells=5).dense(sg.i, 2).place(x)
    sg.root.dense(sg.i, 2).dynamic(sg.j, 60, chunk_size=4).place(lists)

    @sg.kernel
    def draw(n: sg.i32):
        for i in range(n):
            x[300 * i] = i + 1
            for k in range(10):
                lists[i % 2].append(k)

    @sg.kernel
    def total() -> sg.math.ivec2:
        s = sg.math.ivec2(0, 0)
        for i in x:
            s += sg.math.ivec2(1000 + x[i], 0)
        for i, j in lists:
            s += sg.math.ivec2(0, lists[i, j])
        return s

    module = sg.aot.Module()
    module.add_field("x", x)
    module.add_kernel(draw)
    module.add_kernel(total)
    module.save(tmp_path / "m.zip")
    sg.reset()
    done = _run(vulkan_program, tmp_path / "m.zip", "run", "draw", 3, "run", "draw", 5, "run", "total")
    assert done.stdout == f"total: {2000 * 5 + 15} {45 * 8}\n"
    done = _run(vulkan_program, tmp_path / "m.zip", "run", "draw", 6, expect=1)
    assert "pointer [1000] has memory for fewer active cells than the kernel activates" in done.stderr
    done = _run(vulkan_program, tmp_path / "m.zip", "print", "x", expect=1)
    assert "field x has cells only where they are active: have a kernel copy it" in done.stderr


def test_vulkan_gradients_with_little_memory(vulkan_program, tmp_path):
    """Nested checkpoints give the bits of plain adstacks, which do not fit."""
    sg.init(arch=sg.vulkan, fast_math=False)
    x, y = (sg.field(sg.f32, shape=5, needs_grad=True) for _ in range(2))

    @sg.kernel
    def drift(n: sg.i32):
        for i in x:
            s = x[i]
            for t in range(n):
                s += 0.002 * sg.sin(s + t)
            y[i] = s

    for name, nested in (("plain.zip", False), ("nested.zip", True)):
        module = sg.aot.Module()
        module.add_field("x", x)
        module.add_field("y", y)
        module.add_kernel(drift, gradients=True, nested_checkpoints=nested)
        module.save(tmp_path / name)
    x.fill(0.3)
    expected = {}
    for n in (0, 3, 2000):
        x.grad.fill(0)
        y.grad.fill(1)
        drift.grad(n)
        expected[n] = x.grad.to_numpy()
    sg.reset()
    for n, name in ((0, "nested.zip"), (3, "nested.zip"), (2000, "nested.zip"), (3, "plain.zip")):
        words = ("heap", 6_000, "fill", "x", 0.3, "fill", "y.grad", 1, "run", "drift.grad", n, "write", "x.grad", tmp_path / "g")
        _run(vulkan_program, tmp_path / name, *words)
        assert (np.fromfile(tmp_path / "g", np.float32) == expected[n]).all()
    assert expected[2000].std() == 0 and abs(expected[2000][0] - 1) > 1e-3
    done = _run(vulkan_program, tmp_path / "plain.zip", "heap", 6_000, "run", "drift.grad", 2000, expect=1)
    assert "drift.grad: " in done.stderr and "adstack" in done.stderr


def test_vulkan_errors(vulkan_program, tmp_path):
    path = _module(tmp_path / "m.zip", debug=True)
    other = sg.aot.Module(sg.cuda)
    other.save(tmp_path / "cuda.zip")
    portable = sg.aot.Module(sg.vulkan, caps={"loop_limit": 0, "memory_barriers": True})
    portable.save(tmp_path / "portable.zip")
    sg.reset()
    array = ("array", "a", "i32", 4, 3)
    for words, message in (
        ((path, "run", "missing"), "the module has no kernel missing"),
        ((path, *array, "run", "ramp", "b", 1), "argument `a` is an array of i32 with 2 axes"),
        ((path, *array, "run", "ramp", "a", "x"), "`x` is no number of type i32"),
        ((path, *array, "run", "ramp"), "the command line ends where the name of an array is expected"),
        ((path, *array, "run", "ramp", "a", -3), "ramp: negative"),
        ((path, "print", "z"), "there is no array and no field called z"),
        ((path, "jump"), "unknown command jump"),
        ((path,), "usage:"),
        ((tmp_path / "cuda.zip", "print", "x"), "is for cuda, not for vulkan"),
        ((tmp_path / "none.zip", "print", "x"), "cannot read"),
    ):
        assert message in _run(vulkan_program, *words, expect=1).stderr
    (tmp_path / "text.zip").write_text("no archive, but a text of some length")
    assert "no zip archive" in _run(vulkan_program, tmp_path / "text.zip", "print", "x", expect=1).stderr
    data = path.read_bytes()
    (tmp_path / "cut.zip").write_bytes(data[:5000] + data[-22:])
    assert "damaged" in _run(vulkan_program, tmp_path / "cut.zip", "print", "x", expect=1).stderr


def test_modules_with_products_of_matrices_need_the_driver_that_they_were_built_for(vulkan_program, tmp_path):
    sg.init(arch=sg.cpu)
    x = sg.field(sg.i32, shape=8)

    @sg.kernel
    def count():
        for i in x:
            x[i] += 1

    of_llvmpipe = {"memory_barriers": False, "loop_limit": 65535}
    for shapes, expect in (((), 0), (("m16n16k16_f16",), 1)):
        module = sg.aot.Module(sg.vulkan, caps={**of_llvmpipe, "matrix_shapes": shapes})
        module.add_field("x", x)
        module.add_kernel(count)
        module.archive(tmp_path / "m.zip")
        done = _run(vulkan_program, tmp_path / "m.zip", "run", "count", "print", "x", expect=expect)
        assert ("the module was built for NVIDIA's driver" in done.stderr) == bool(shapes)


@pytest.mark.needs("cc")
def test_cuda_gives_the_driver_what_python_would(tmp_path):
    """Against a stand-in for the driver: the memory that the program allocates, and the argument block of each launch."""
    program = _build(PROGRAMS / "cuda.c", tmp_path / "aot_cuda")
    _build(Path(__file__).with_name("cuda_log.c"), tmp_path / "libcuda.so.1", "-shared", "-fPIC")
    sg.init(arch=sg.cpu)
    x = sg.field(sg.f32, shape=300, needs_grad=True)

    @sg.kernel
    def swing(w: sg.types.NDArray[sg.f32, 2], n: sg.i32, by: sg.f32, big: sg.i64):
        for i in x:
            s = x[i]
            for k in range(n):
                s = sg.sin(s) * w[k, 0] + by
            x[i] = s + sg.cast(big, sg.f32) + w.shape[1]

    @sg.kernel
    def scaled(w: sg.types.NDArray[sg.f32, 2], n: sg.i32):
        for i in range(w.shape[0]):
            s = w[i, 0]
            for _ in range(n):
                s = sg.sin(s)
            w[i, 1] = s

    module = sg.aot.Module(sg.cuda)
    module.add_field("x", x)
    module.add_kernel(swing)
    module.add_kernel(scaled, gradients=True)
    module.save(tmp_path / "m.zip")
    sg.reset()
    words = ("array", "w", "f32", 5, 2, "fill", "x", 3, "print", "x", "run", "swing", "w", 4, 0.5, 1 << 40, "run", "scaled.grad", "w", 6)
    done = _run(program, tmp_path / "m.zip", *words, LD_LIBRARY_PATH=str(tmp_path))
    assert done.stdout == "x:" + " 3" * 300 + "\n"
    log = [line.split() for line in done.stderr.splitlines()]
    memory = {int(at): int(size) for kind, at, size, *_ in (line for line in log if line[0] == "memory")}
    launches = [line[1:] for line in log if line[0] == "launch"]
    manifest = json.loads(zipfile.ZipFile(tmp_path / "m.zip").read("manifest.json"))["manifest"]
    swing, _, gradient = manifest["kernels"]
    kernels = [swing["compiled"], *gradient["gradient"]["counting"], gradient["compiled"]]
    assert [name for name, *_ in launches] == [task["entry"] for kernel in kernels for task in kernel["tasks"]]
    at = 0
    sizes = {
        "tree": (-(-manifest["memory"][0]["nbytes"] // 16) * 16,),
        "array": (48, 16),
        "temps": (16, 32, 48, 64),
        "adstacks": (1 << 26,),
        "fault": (4224,),
    }
    for kernel in kernels:
        for task in kernel["tasks"]:
            _, _, threads, block = launches[at]
            at += 1
            assert int(threads) == max(task["group_size"], 1)
            block = bytes.fromhex(block)
            assert len(block) == kernel["args"]["size"]
            for slot in kernel["args"]["slots"]:
                kind, where = slot["kind"], slot["offset"]
                if slot["dtype"] is None:
                    assert memory[struct.unpack_from("<Q", block, where)[0]] in sizes[kind], (kind, slot)
                elif kind == "shape":
                    assert struct.unpack_from("<i", block, where)[0] == (5, 2)[slot["axis"]]
                elif kind == "adstack_heap_words":
                    assert struct.unpack_from("<i", block, where)[0] == 1 << 24
    block, slots = bytes.fromhex(launches[0][3]), swing["compiled"]["args"]["slots"]
    scalars = {slot["index"]: struct.unpack_from({"i32": "<i", "f32": "<f", "i64": "<q"}[slot["dtype"]["dtype"]], block, slot["offset"])[0]
               for slot in slots if slot["kind"] == "scalar"}  # fmt: skip
    assert scalars == {1: 4, 2: 0.5, 3: 1 << 40}
    assert int(launches[0][1]) * int(launches[0][2]) >= 300

"""Large kernels are compiled as several modules at the same time, and linked as one library."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import spirograd as sg
from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.options import CompileOptions
from spirograd.llvmgen import emit
from spirograd.llvmgen.toolchain import compile_module, compile_modules, host_caps
from spirograd.runtime import offline_cache
from spirograd.runtime.devices import cpu

N = 1000


@pytest.fixture
def modules(monkeypatch):
    """How many modules each kernel was emitted as."""
    counts: list[int] = []
    original = emit.emit_modules

    def emit_modules(*args):
        texts = original(*args)
        counts.append(len(texts))
        return texts

    monkeypatch.setattr(emit, "emit_modules", emit_modules)
    return counts


@sg.func
def polynomial(v):
    for k in sg.static(range(40)):
        v = v * 0.5 + k * 0.01
    return v


@sg.real_func
def doubled(v: sg.f32) -> sg.f32:
    return 2 * polynomial(v)


def make():
    x, y = sg.field(sg.f32, N), sg.field(sg.f32, N)
    count, total = sg.field(sg.i32, 4), sg.field(sg.f64, ())

    @sg.kernel(fuse=False)
    def large():
        for i in x:
            x[i] = doubled(x[i])
        for i in x:
            count[i % 4] += sg.cast(polynomial(x[i]) > 0.5, sg.i32)
        total[None] = 0.5
        for i in y:
            y[i] = doubled(polynomial(x[i]))
        for i in y:
            total[None] += polynomial(y[i])

    return x, y, count, total, large


def expected(values):
    def polynomial(v):
        for k in range(40):
            v = v * 0.5 + k * 0.01
        return v

    x = 2 * polynomial(values.astype(np.float64))
    y = 2 * polynomial(polynomial(x))
    passed = polynomial(x) > 0.5
    return x, y, [passed[k::4].sum() for k in range(4)], 0.5 + polynomial(y).sum()


def test_several_modules(modules, tmp_path, monkeypatch):
    monkeypatch.delenv("SG_OFFLINE_CACHE", raising=False)
    values = np.linspace(-3, 3, N).astype(np.float32)
    sg.init(arch=sg.cpu, offline_cache=True, offline_cache_file_path=str(tmp_path))
    x, y, count, total, large = make()
    x.from_numpy(values)
    large()
    for got, want in zip((x, y, count, total), expected(values), strict=True):
        np.testing.assert_allclose(got.to_numpy(), want, rtol=1e-5)
    (file,) = [file for file in tmp_path.rglob("*.sgk") if b"large" in file.read_bytes()]
    stored = offline_cache.decode(file.read_bytes())
    assert stored is not None and modules == [len(stored.binaries)] and modules[0] > 1
    cpu.open().load(stored)
    sg.reset()


def test_small_kernels_are_one_module(modules):
    sg.init(arch=sg.cpu)
    x, y = sg.field(sg.f32, N), sg.field(sg.f32, N)

    @sg.kernel(fuse=False)
    def small():
        for i in x:
            x[i] = i
        for i in y:
            y[i] = x[i] + 1

    small()
    assert modules == [1] and y[7] == 8
    sg.reset()


def test_bad_modules_are_reported():
    good = "define void @f() {\n  ret void\n}\n"
    with pytest.raises(SpirogradRuntimeError, match="LLVM rejects the generated code"):
        compile_modules([good, "define void @g( {", good.replace("@f", "@h")], host_caps(), CompileOptions())
    assert len(compile_modules([good, good.replace("@f", "@h")], host_caps(), CompileOptions())) == 2


def test_threads_compile_at_the_same_time():
    texts = [f"define float @f(float %x) {{\n  %y = fmul float %x, {k}.0\n  ret float %y\n}}\n" for k in range(8)]
    caps, options = host_caps(), CompileOptions()
    one_by_one = [compile_module(text, caps, options).binary for text in texts]
    made: dict[int, bytes] = {}

    def work(k):
        for _ in range(5):
            made[k] = compile_module(texts[k], caps, options).binary

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [made[k] for k in range(len(texts))] == one_by_one

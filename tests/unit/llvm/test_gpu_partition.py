"""The tasks of large kernels for GPUs are compiled as several modules at the same time, with the code that they have in one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import spirograd as sg
from spirograd.base.caps import Capabilities
from spirograd.compiler import compile_kernel
from spirograd.dumps import Compilation, listeners
from spirograd.llvmgen import amdgpu, ptx

N = 1000
_ENTRY = re.compile(r"^[ \t]*\.visible \.entry (\w+)\(.*?^}", re.M | re.S)


def compilation(repetitions: int) -> Compilation:
    """A kernel of three loops, each with that many additions of sines."""
    found: list[Compilation] = []
    listeners.append(found.append)
    try:
        sg.init(arch=sg.interpreter, offline_cache=False)
        x, y = sg.field(sg.f32, N), sg.field(sg.f32, N)

        @sg.real_func
        def shifted(v: sg.f32) -> sg.f32:
            return sg.sin(v) + 1.0

        @sg.kernel(fuse=False)
        def large():
            for i in x:
                for k in sg.static(range(repetitions)):
                    y[i] += shifted(x[i] * (k + 0.5))
            y[0] = 1.0
            for i in y:
                for k in sg.static(range(repetitions)):
                    x[i] += sg.exp(y[i] * (k + 0.25))

        large()
    finally:
        listeners.remove(found.append)
        sg.reset()
    return found[0]


@pytest.mark.parametrize("caps", [ptx.capabilities("sm_90"), amdgpu.capabilities("gfx1100")], ids=["cuda", "amdgpu"])
def test_several_modules(caps: Capabilities) -> None:
    one = compilation(20)
    compiled = compile_kernel(one.kernel, caps, one.options)
    assert len(compiled.binaries) > 1
    assert {task.binary for task in compiled.tasks} == set(range(len(compiled.binaries)))
    for task in compiled.tasks:
        assert task.entry.encode() in compiled.binaries[task.binary]
    again = compile_kernel(one.kernel, caps, one.options)
    assert again.binaries == compiled.binaries and again.tasks == compiled.tasks


def test_code_does_not_depend_on_the_division() -> None:
    one, caps = compilation(20), ptx.capabilities("sm_90")
    parts = compile_kernel(one.kernel, caps, one.options)
    (whole,) = compile_kernel(one.kernel, caps, replace(one.options, keep_stages=True)).binaries
    entries = {match[1]: match[0] for match in _ENTRY.finditer(whole.decode())}
    assert len(entries) == len(parts.tasks) > 1
    for binary in parts.binaries:
        for match in _ENTRY.finditer(binary.decode()):
            assert _plain(match[0]) == _plain(entries.pop(match[1]))
    assert not entries


def test_small_kernels_are_one_module() -> None:
    one = compilation(1)
    for caps in (ptx.capabilities("sm_90"), amdgpu.capabilities("gfx1100")):
        assert len(compile_kernel(one.kernel, caps, one.options).binaries) == 1


def _plain(text: str) -> str:
    """The text of an entry without the numbers of functions and calls in labels, which count those of the module."""
    return re.sub(r"\$L__(BB|tmp|func_\w+?)\d+_?", r"$L_\1_", re.sub(r"callseq \d+|prototype_\d+", "", text))

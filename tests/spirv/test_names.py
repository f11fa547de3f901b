"""Modules for tools that show them: names of functions, arguments and fields, files and lines, and the source where it is wanted."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import spirograd as sg
from spirograd import dumps
from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.spirvgen import module as module_of_generator
from spirograd.spirvgen.disasm import disassemble, instructions, opcode_names
from spirograd.spirvgen.validate import validate

from . import kit

CAPS = pytest.mark.parametrize("caps", [kit.FULL, kit.WGPU], ids=["vulkan", "wgpu"])
_OP_SOURCE, _OP_SOURCE_CONTINUED = 3, 2


@pytest.fixture(scope="module")
def kernel():
    """The IR of a kernel with arguments of each kind, as the front end makes it."""
    found: list[dumps.Compilation] = []
    sg.init(arch="interpreter")
    pressure = sg.field(sg.f32, shape=8)

    @sg.kernel
    def advance(grid: sg.types.ndarray(ndim=2), step: sg.f32):
        for i, j in sg.ndrange(grid.shape[0], grid.shape[1]):
            grid[i, j] = grid[i, j] + step * pressure[i]

    dumps.listeners.append(found.append)
    try:
        advance(sg.ndarray(sg.f32, (2, 3)), 1.0)
    finally:
        dumps.listeners.pop()
        sg.reset()
    return found[0].kernel


def _module(kernel, caps, keep_stages=False):
    (module,) = compile_kernel(kernel, caps, CompileOptions(keep_stages=keep_stages)).binaries
    return module


def _text(words):
    """A string literal: äöü and all."""
    return struct.pack(f"<{len(words)}I", *words).rstrip(b"\0").decode()


@CAPS
def test_names(kernel, caps):
    text = disassemble(_module(kernel, caps))
    assert 'OpEntryPoint GLCompute %advance_0 "main"' in text
    for name in ("advance_0", "grid", "pressure", "arguments"):
        assert f'OpName %{name} "{name}"' in text
    for name in ("grid_shape0", "grid_shape1", "step"):
        assert f'"{name}"' in text.partition("OpMemberName")[2]
    if caps is kit.FULL:
        assert 'OpMemberName %Arguments 0 "pressure"' in text


@CAPS
@pytest.mark.parametrize("keep", [False, True])
def test_sources_and_lines(kernel, caps, keep):
    module = _module(kernel, caps, keep)
    validate(module, caps.target_name)
    lines = Path(__file__).read_text(encoding="utf-8")
    sources = [words for opcode, words in instructions(module) if opcode == _OP_SOURCE]
    assert len(sources) == 1
    assert _text(sources[0][3:]) == (lines if keep else "")
    assert f'OpString "{__file__}"' in disassemble(module)
    assert f"{__file__}:{1 + lines[: lines.index('grid[i, j] = grid')].count(chr(10))}  grid[i, j] = " in disassemble(module)


@CAPS
def test_no_debug_printing(kernel, caps):
    module = _module(kernel, caps, keep_stages=True)
    assert "NonSemantic" not in disassemble(module)
    assert "OpLine" in opcode_names(module)


def test_long_sources_go_on(kernel, monkeypatch):
    """A literal holds less than 64 KiB: the source comes in pieces."""
    assert 4 * module_of_generator._SOURCE_PIECE < 65_535
    monkeypatch.setattr(module_of_generator, "_SOURCE_PIECE", 1000)
    module = _module(kernel, kit.FULL, keep_stages=True)
    validate(module, "vulkan")
    pieces = [words[3:] for opcode, words in instructions(module) if opcode == _OP_SOURCE]
    pieces += [words for opcode, words in instructions(module) if opcode == _OP_SOURCE_CONTINUED]
    assert len(pieces) > 2
    assert "".join(map(_text, pieces)) == Path(__file__).read_text(encoding="utf-8")


def test_long_sources_stay_away_from_naga(kernel, monkeypatch):
    """It refuses modules with text in several pieces, which ends the process."""
    monkeypatch.setattr(module_of_generator, "_SOURCE_PIECE", 1000)
    module = _module(kernel, kit.WGPU, keep_stages=True)
    validate(module, "wgpu")
    sources = [words for opcode, words in instructions(module) if opcode == _OP_SOURCE]
    assert len(sources) == 1 and not sources[0][3:]
    assert f'OpString "{__file__}"' in disassemble(module)
    always = property(lambda self: True, lambda self, value: None)
    monkeypatch.setattr(module_of_generator.Module, "continues_sources", always, raising=False)
    with pytest.raises(module_of_generator.ModuleError, match="SourceContinued"):
        _module(kernel, kit.WGPU, keep_stages=True)

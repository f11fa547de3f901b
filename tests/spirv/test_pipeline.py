"""Random kernels through the whole pipeline: valid SPIR-V for rich and poor devices; the generated grammar is up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cases import seeds
from ir_random import random_kernel

from spirograd.base.caps import Capabilities
from spirograd.base.errors import SpirogradUnsupportedError
from spirograd.base.options import CompileOptions
from spirograd.compiler import compile_kernel
from spirograd.spirvgen import grammar
from spirograd.spirvgen.disasm import disassemble, opcode_names
from spirograd.spirvgen.validate import validate

from . import kit

ROOT = Path(__file__).parents[2]
POOR = Capabilities("vulkan", int64=True, buffer_address=True, max_push_constants=16)
HEADERS = Path("/usr/include/spirv/unified1")


@pytest.mark.parametrize("caps", [kit.FULL, POOR], ids=["rich", "poor"])
@pytest.mark.parametrize("seed", seeds(10, 100))
def test_random_kernels_are_valid(caps: Capabilities, seed: int) -> None:
    for options in (CompileOptions(), CompileOptions(fast_math=False, optimize=False, check_bounds=True)):
        try:
            compiled = compile_kernel(random_kernel(seed, caps), caps, options)
        except SpirogradUnsupportedError:
            assert caps is POOR
            continue
        for module in compiled.binaries:
            validate(module, "vulkan")
            assert disassemble(module).count("\n") == 3 + sum(name != "OpLine" for name in opcode_names(module))


def test_validation_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setenv("SG_VALIDATE", "1")
    monkeypatch.setattr("spirograd.spirvgen.emit.validate", lambda data, target: seen.append((data, target)))
    compiled = compile_kernel(random_kernel(1, kit.FULL), kit.FULL, CompileOptions())
    assert seen == [(module, "vulkan") for module in compiled.binaries]


@pytest.mark.skipif(not HEADERS.exists(), reason="spirv-headers is not installed")
def test_grammar_is_what_the_tool_generates() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "gen_spirv_grammar.py"], capture_output=True, text=True, check=True)
    generated: dict[str, object] = {}
    exec(done.stdout, generated)
    assert generated["OPCODES"] and generated["GLSL"] == grammar.GLSL
    if "1.6 revision 1;" in done.stdout:
        assert Path(grammar.__file__).read_text() == done.stdout

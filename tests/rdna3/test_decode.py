"""The decoder of the emulator, compared with LLVM's disassembler over what the compiler makes of the corpus."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from spirograd.compiler import compile_kernel
from validation.case import load
from validation.collecting import kernels_of
from validation.profiles import AMDGPU
from validation.rdna3 import code_object
from validation.rdna3.decode import Instruction, Undecodable, decode
from validation.tools import llvm_program

CASES = {case.name: case for case in load()}
CAPS = AMDGPU["amdgpu-gfx1100"]
LINE = re.compile(r"\t(?P<text>\S.*?)\s*// (?P<address>[0-9A-F]+): (?P<words>[0-9A-F ]+?)(?: <.*>)?$")
pytestmark = pytest.mark.needs("tinygrad")


def mnemonics(text: str) -> list[str]:
    return [re.sub(r"_(e32|e64)$", "", re.sub(r"_dpp$", "", part.split()[0])) for part in text.split(" :: ")]


def own_mnemonics(ins: Instruction) -> list[str]:
    if ins.second is None:
        return [ins.name.lower()]
    return [f"v_dual_{half.name[2:].lower()}" for half in (ins, ins.second)]


@pytest.mark.needs("llvm-objdump")
@pytest.mark.parametrize(
    "name", ["division_i64", "float_division_f16", "atomic_add_f64", "matrix_inverse_4", "gradient_guard_compound", "sums_f32"]
)
def test_agrees_with_llvm(name: str, tmp_path: Path) -> None:
    program = llvm_program("llvm-objdump")
    assert program is not None
    count = 0
    for source in kernels_of(CASES[name]):
        for kernel in source.kernels(CAPS):
            (binary,) = compile_kernel(kernel, CAPS, source.options).binaries
            image = code_object.read(binary)
            file = tmp_path / "k.hsaco"
            file.write_bytes(binary)
            said = subprocess.run([program, "-d", str(file)], capture_output=True, text=True, check=True).stdout
            for found in filter(None, map(LINE.match, said.splitlines())):
                at = int(found["address"], 16)
                ins = decode(image.content, at, at)
                assert (own_mnemonics(ins), ins.size) == (mnemonics(found["text"]), 4 * len(found["words"].split())), found.group()
                count += 1
    assert count > 50


def test_dual_issue_has_two_halves() -> None:
    """v_dual_mov_b32 v2, v5 :: v_dual_add_f32 v3, 1.0, v4"""
    ins = decode(bytes.fromhex("050108caf2080202"), 0, 0)
    assert ins.second is not None
    assert (ins.name, ins.fields["vdst"], ins.fields["src0"]) == ("V_MOV_B32", 2, 256 + 5)
    assert (ins.second.name, ins.second.fields["vdst"], ins.second.fields["src0"], ins.second.fields["vsrc1"]) == ("V_ADD_F32", 3, 242, 4)


def test_no_instruction() -> None:
    with pytest.raises(Undecodable, match=r"0xffffffff at 0x10"):
        decode(b"\xff" * 8, 0, 16)

"""The linker of code objects: what it makes of LLVM's object files, compared with what LLVM's own linker makes of them."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from unittest import mock

import llvmlite.binding as llvm
import pytest
from needs import need

from spirograd.base.errors import SpirogradRuntimeError
from spirograd.base.options import CompileOptions
from spirograd.llvmgen.amdgpu import capabilities, compile_code_object
from spirograd.llvmgen.code_object import ObjectFile, Section, link_code_object
from spirograd.llvmgen.toolchain import parse
from validation.code_objects import CodeObject
from validation.tools import llvm_program

# Two kernels, one of which reads a table of constants; and memory of the module, which one of them counts in.
TEXT = """
@table = internal addrspace(4) constant [4 x float] [float 1.0, float 2.0, float 4.0, float 9.0]
@count = internal addrspace(1) global i32 5
define amdgpu_kernel void @first(ptr addrspace(1) %x, i32 %k) {
  %from = getelementptr [4 x float], ptr addrspace(4) @table, i32 0, i32 %k
  %value = load float, ptr addrspace(4) %from
  store float %value, ptr addrspace(1) %x
  ret void
}
define amdgpu_kernel void @second(ptr addrspace(1) %x) {
  %old = atomicrmw add ptr addrspace(1) @count, i32 1 monotonic
  store i32 %old, ptr addrspace(1) %x
  ret void
}
!llvm.module.flags = !{!0}
!0 = !{i32 1, !"amdhsa_code_object_version", i32 500}
"""
REL32_LO = 10
CALL = "declare void @elsewhere()\ndefine amdgpu_kernel void @k() {\n  call void @elsewhere()\n  ret void\n}\n"


def object_file(text: str, architecture: str) -> bytes:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("amdgcn-amd-amdhsa").create_target_machine(cpu=architecture, opt=2)
    return machine.emit_object(parse(text, machine))


@pytest.mark.parametrize("architecture", ["gfx906", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201"])
def test_a_code_object(architecture: str) -> None:
    code = CodeObject(link_code_object(object_file(TEXT, architecture)))
    assert set(code.kernels) == {"first.kd", "second.kd"}
    assert {name for name in code.symbols if name} == {"first", "first.kd", "second", "second.kd"}
    assert code.metadata["amdhsa.target"] == f"amdgcn-amd-amdhsa--{architecture}"
    for name in ("first", "second"):
        symbol = code.symbols[name]
        assert code.section(symbol).name == ".text" and code.descriptor(f"{name}.kd").entry == symbol.value
    starts = [section.address for section in code.file.sections[1:-1]]
    assert starts == sorted(set(starts))


@pytest.mark.parametrize("architecture", ["gfx906", "gfx942", "gfx1100", "gfx1201"])
def test_as_llvm_links_it(architecture: str, tmp_path: Path) -> None:
    """The same code and constants, at other addresses: so what a relocation changes is compared relative to these."""
    need("ld.lld")
    content = object_file(TEXT, architecture)
    (tmp_path / "k.o").write_bytes(content)
    subprocess.run([llvm_program("ld.lld"), "-shared", tmp_path / "k.o", "-o", tmp_path / "k.so"], check=True)
    ours, theirs = CodeObject(link_code_object(content)), CodeObject((tmp_path / "k.so").read_bytes())
    assert ours.metadata == theirs.metadata
    for name in ours.symbols:
        a, b = ours.symbols[name], theirs.symbols[name]
        assert (a.info, a.other, a.size) == (b.info, b.other, b.size)
        if name.endswith(".kd"):
            assert ours.descriptor(name)._replace(entry=0) == theirs.descriptor(name)._replace(entry=0)
    by_name = [{section.name: section for section in code.file.sections} for code in (ours, theirs)]
    assert by_name[0][".data"].data == by_name[1][".data"].data and len(by_name[0][".text"].data) == len(by_name[1][".text"].data)
    # A relocation holds the distance from itself to a symbol, plus what LLVM added: as far from the symbol's section in both.
    source = ObjectFile.read(content)
    relocations = next(section.data for section in source.sections if section.name == ".rela.text")
    reached = []
    for offset, info, _ in struct.iter_unpack("<QQq", relocations):
        if info & 0xFFFFFFFF == REL32_LO:
            section = source.sections[source.symbols[info >> 32].section].name
            reached.append(section)
            assert distance(by_name[0], offset, section) == distance(by_name[1], offset, section)
    assert reached == [".rodata", ".data"], "the table and the counter"


def distance(sections: dict[str, Section], offset: int, target: str) -> int:
    """From the start of section ``target`` to where the distance at ``offset`` of the code points."""
    text = sections[".text"]
    word = int.from_bytes(text.data[offset : offset + 4], "little", signed=True)
    return text.address + offset + word - sections[target].address


def test_what_cannot_be_linked_is_refused() -> None:
    with pytest.raises(SpirogradRuntimeError, match="elsewhere must be defined"):
        link_code_object(object_file(CALL, "gfx1100"))
    machine = llvm.Target.from_default_triple().create_target_machine()
    with pytest.raises(SpirogradRuntimeError, match="no object file for AMD"):
        link_code_object(machine.emit_object(parse("define void @f() {\n  ret void\n}\n", machine)))


def test_no_kernels() -> None:
    """A kernel that has nothing to do has no code: its object has no segment for that."""
    linked = ObjectFile.read(link_code_object(object_file("", "gfx1100")))
    assert ".text" not in {section.name for section in linked.sections}


def test_a_failure_leaves_no_module_behind() -> None:
    """An exception keeps frames alive; the garbage collector might free the module there after its context, which ends the process."""
    closed = []
    close = llvm.ModuleRef.close
    with (
        mock.patch.object(llvm.ModuleRef, "close", lambda module: (closed.append(module), close(module))),
        pytest.raises(SpirogradRuntimeError, match="elsewhere"),
    ):
        compile_code_object(CALL, capabilities("gfx1100"), CompileOptions())
    assert closed
